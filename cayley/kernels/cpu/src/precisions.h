/* Both precisions for one instruction set; double first, for what single precision is computed in. */

#define REAL double
#define INT int64_t
#define BITS 64
#include "real.h"
#undef REAL
#undef INT
#undef BITS

#define REAL float
#define INT int32_t
#define BITS 32
#include "real.h"
#undef REAL
#undef INT
#undef BITS

#undef ISA
#undef VECTOR_BYTES
#undef COLUMNS

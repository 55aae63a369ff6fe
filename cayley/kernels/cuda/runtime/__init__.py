"""Common parts of all CUDA kernels: compiling, launching, and laying out weights."""

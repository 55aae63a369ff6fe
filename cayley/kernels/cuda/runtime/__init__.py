"""What the CUDA kernels of all recurrences share: compiling, launching, and laying out weights."""

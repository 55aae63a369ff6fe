"""The recurrences in CUDA, for GPUs of NVIDIA."""

"""The recurrences in CUDA, for NVIDIA GPUs."""

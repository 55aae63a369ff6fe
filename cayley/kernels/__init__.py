"""The kernels: C on the CPU, CUDA on GPUs, and the choice between them and plain torch."""

from cayley.kernels.dispatch import backend

__all__ = ["backend"]

"""The LSTM recurrence as CUDA kernels."""

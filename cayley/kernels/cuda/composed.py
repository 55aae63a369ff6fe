"""Placeholder until the kernels are merged."""

refusal = composed = composed_backward = lambda *_: "no kernels yet"

"""Recurrent networks with orthogonal and unitary weights, as drop-in ``torch.nn`` layers."""

__version__ = "0.1.0.dev0"

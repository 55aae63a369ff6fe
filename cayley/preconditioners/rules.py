"""The rules that a preconditioner uses, and why some modules have none."""

import sys

from torch import nn

from cayley.preconditioners.conv import ConvRule
from cayley.preconditioners.layers import LayerRule
from cayley.preconditioners.linear import LinearRule
from cayley.preconditioners.recurrent import TorchRecurrentRule
from cayley.preconditioners.rule import Rule

__all__ = ["OPAQUE", "default_rules"]

OPAQUE: dict[type[nn.Module], str] = {
    nn.MultiheadAttention: "nn.MultiheadAttention reads its weights without calling its modules",
}
"""Modules whose submodules' hooks are never called, and what to say about them."""


def default_rules() -> tuple[Rule, ...]:
    """All rules; those for graphs only if torch_geometric has been imported.

    Example:
        >>> [rule.name for rule in default_rules()][:2]
        ['Linear', 'Conv']
    """
    rules: tuple[Rule, ...] = (LinearRule(), ConvRule(), TorchRecurrentRule(), LayerRule())
    # a model with layers of torch_geometric has imported it
    if "torch_geometric" in sys.modules:
        from cayley.preconditioners.graph import RULES

        rules += RULES
    return rules

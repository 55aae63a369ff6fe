"""Compiled code and hooks; what it means for a model is tested with BNP."""

import sys

import pytest
import torch

from cayley.preconditioners.compiled import drop_code_without_hooks


def test_code_is_dropped_once(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.compiler.reset()  # which imports what compiles
    with torch._dynamo.config.patch(skip_nnmodule_hook_guards=True):
        assert drop_code_without_hooks()
        assert not torch._dynamo.config.skip_nnmodule_hook_guards
        assert not drop_code_without_hooks()
    with torch._dynamo.config.patch(skip_nnmodule_hook_guards=True):
        monkeypatch.delitem(sys.modules, "torch._dynamo")
        assert not drop_code_without_hooks()

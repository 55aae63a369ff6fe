"""Hooks of modules in code that ``torch.compile`` makes."""

import sys

import torch

__all__ = ["drop_code_without_hooks"]


def drop_code_without_hooks() -> bool:
    """Let compiled code see hooks that modules get after it was made.

    Code is shared by all modules of the same classes, and as torch is set up nothing checks that
    their hooks are the same: a model that gets hooks would run the code of one that had none. So
    from here on this is checked, and all code that was made before is dropped.

    Returns:
        Whether there may have been such code: not if nothing was compiled so far, or if hooks have
        been checked already.
    """
    # whoever compiles has imported what does it
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is None or not dynamo.config.skip_nnmodule_hook_guards:
        return False
    dynamo.config.skip_nnmodule_hook_guards = False
    torch.compiler.reset()
    return True

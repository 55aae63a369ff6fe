"""The option ``rebase`` of scaled Cayley transforms: whether D is chosen again in training."""

from typing import Literal

from torch.utils.hooks import RemovableHandle

from cayley.cache import Cache
from cayley.checks import check_integer, is_integer

__all__ = ["Rebase", "RebaseOption"]

Rebase = Literal["auto"] | int

# Steps of the optimizer between two checks of the entries of A.
AUTO = 100


class RebaseOption:
    """Whether and how often an optimizer is to choose D again, and whether one does.

    Arguments:
        rebase: After how many steps of the optimizer to check whether entries of A have grown too
            large; ``"auto"`` for 100, None for never.

    Attributes:
        handle: The hook that :func:`cayley.optim.attach_rebase` registered with an optimizer. A
            copy of the option has none.

    Example:
        >>> option = RebaseOption("auto")
        >>> option.steps, option.is_unmet
        (100, True)
    """

    def __init__(self, rebase: Rebase | None) -> None:
        if rebase is not None and rebase != "auto":
            if not is_integer(rebase):
                raise ValueError(f'expected rebase="auto" or a number of steps, got {rebase!r}')
            check_integer("rebase", rebase)
        self.rebase = rebase
        self.handle: Cache[RemovableHandle] = Cache()

    @property
    def steps(self) -> int | None:
        """The number of steps between two checks; None for never."""
        return AUTO if self.rebase == "auto" else self.rebase

    @property
    def is_unmet(self) -> bool:
        """Whether D is to be chosen again and no optimizer does it."""
        if self.rebase is None:
            return False
        handle = self.handle.value
        hooks = None if handle is None else handle.hooks_dict_ref()
        return handle is None or hooks is None or handle.id not in hooks

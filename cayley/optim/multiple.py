"""Several optimizers as one."""

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

__all__ = ["Optimizers"]


class Optimizers(Optimizer):
    """Several optimizers that step as one, each with parameters of its own.

    It equals the loop::

        for optimizer in optimizers:
            optimizer.step()

    To everything else it is one optimizer: ``param_groups`` are the groups of its members
    themselves, so that a scheduler from :mod:`torch.optim.lr_scheduler`, gradient clipping and
    :class:`torch.amp.GradScaler` work with it. Hooks registered on it run once per step; a member's
    own hooks run with the member.

    Note:
        A closure is evaluated once, before the first member steps; so a member that has to evaluate
        it several times, such as :class:`torch.optim.LBFGS`, cannot be used. As with every torch
        optimizer, copies and pickles have no hooks.

    Arguments:
        optimizers: The members, in the order in which they step.

    Attributes:
        optimizers: The members.

    Example:
        >>> A, theta = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
        >>> optimizer = Optimizers(torch.optim.SGD([A], lr=0.5), torch.optim.SGD([theta], lr=0.25))
        >>> (A + theta).sum().backward()
        >>> optimizer.step()
        >>> A.data, theta.data
        (tensor([0.5000, 0.5000]), tensor([0.7500, 0.7500]))
    """

    optimizers: tuple[Optimizer, ...]

    def __init__(self, *optimizers: Optimizer) -> None:
        if not optimizers:
            raise ValueError("Optimizers: expected at least one optimizer, got none")
        owners: dict[Tensor, int] = {}
        for i, optimizer in enumerate(optimizers):
            if not isinstance(optimizer, Optimizer):
                raise TypeError(
                    "Optimizers: expected torch optimizers, got "
                    f"{type(optimizer).__name__} as number {i}"
                )
            for p in (p for group in optimizer.param_groups for p in group["params"]):
                if owners.setdefault(p, i) != i:
                    raise ValueError(
                        "Optimizers: expected every parameter in one optimizer, got one of shape "
                        f"{tuple(p.shape)} in numbers {owners[p]} and {i}: leave it out of one"
                    )
        first, *others = optimizers
        common = {
            name: value
            for name, value in first.defaults.items()
            if all(name in other.defaults for other in others)
        }
        # torch's __init__ would make groups and a state of its own; __setstate__, which unpickling
        # calls too, makes only what the hooks need
        self.__setstate__({"optimizers": optimizers, "defaults": common})

    @property
    # pyrefly: ignore[bad-override]
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of all members: the members' own, not copies."""
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    @property
    # pyrefly: ignore[bad-override]
    def state(self) -> "_States":
        """The state of each parameter: the members' own, and what is written is theirs."""
        return _States(self.optimizers)

    def __getstate__(self) -> dict[str, Any]:
        return {"optimizers": self.optimizers, "defaults": self.defaults}

    @torch.no_grad()
    # pyrefly: ignore[bad-override]
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Let every member step.

        Arguments:
            closure: Evaluates the model, calls ``backward`` and returns the loss.

        Returns:
            The loss of the closure; None without one.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for optimizer in self.optimizers:
            optimizer.step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of all members, or set them to zero."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused: a group belongs to one of the members."""
        raise RuntimeError(
            "Optimizers: expected a group to be added to a member: call "
            "optimizer.optimizers[i].add_param_group(...), and it appears here too"
        )

    def state_dict(self) -> dict[str, Any]:
        """The ``state_dict`` of every member, as a list under ``optimizers``."""
        for before in self._optimizer_state_dict_pre_hooks.values():
            before(self)
        result = {"optimizers": [optimizer.state_dict() for optimizer in self.optimizers]}
        for after in self._optimizer_state_dict_post_hooks.values():
            result = after(self, result) or result
        return result

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` returned."""
        state_dict = dict(state_dict)
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            state_dict = before(self, state_dict) or state_dict
        if "optimizers" not in state_dict:
            raise ValueError(
                f"Optimizers: expected the state of {len(self.optimizers)} optimizers, got a state "
                f"with the keys {sorted(state_dict)}: load the state of a single optimizer into "
                "one of optimizer.optimizers"
            )
        states = state_dict["optimizers"]
        if len(states) != len(self.optimizers):
            raise ValueError(
                f"Optimizers: expected the state of {len(self.optimizers)} optimizers, got that of "
                f"{len(states)}: build it from the optimizers that it was saved with"
            )
        own = [optimizer.state_dict() for optimizer in self.optimizers]
        for i, (optimizer, state) in enumerate(zip(self.optimizers, states, strict=True)):
            try:
                optimizer.load_state_dict(state)
            # a damaged state fails with any error
            except Exception as error:
                # all of them, or none
                for other, before in zip(self.optimizers[: i + 1], own, strict=False):
                    other.load_state_dict(before)
                raise ValueError(
                    f"Optimizers: the state of number {i}, {type(optimizer).__name__}, does not "
                    f"fit: {error!r}"
                ) from error
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)


class _States(MutableMapping[Tensor, Any]):
    """The states of several optimizers, each parameter's in the one that has it."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self.optimizers = optimizers

    def __getitem__(self, parameter: Tensor) -> Any:
        # made if there is none, as torch does
        return self._owner(parameter).state[parameter]

    def __setitem__(self, parameter: Tensor, state: Any) -> None:
        self._owner(parameter).state[parameter] = state

    def __delitem__(self, parameter: Tensor) -> None:
        del self._owner(parameter).state[parameter]

    def __contains__(self, parameter: object) -> bool:
        return any(parameter in optimizer.state for optimizer in self.optimizers)

    def __iter__(self) -> Iterator[Tensor]:
        # of a copy, as whoever reads them may also write
        return iter([p for optimizer in self.optimizers for p in optimizer.state])

    def __len__(self) -> int:
        return sum(len(optimizer.state) for optimizer in self.optimizers)

    def __repr__(self) -> str:
        return repr(dict(self))

    def _owner(self, parameter: Tensor) -> Optimizer:
        for optimizer in self.optimizers:
            groups = (group["params"] for group in optimizer.param_groups)
            if parameter in optimizer.state or any(p is parameter for ps in groups for p in ps):
                return optimizer
        raise KeyError(parameter)

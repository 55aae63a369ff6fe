"""Optimizers of several networks that step as one."""

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

__all__ = ["step_together"]


def step_together(optimizers: Sequence[Optimizer]) -> None:
    """Let the optimizers of several networks step, on a GPU those of a kind as one.

    Most parameters are small, so that a GPU spends the time of an update on launches. Optimizers of
    torch, and :class:`~cayley.optim.RMSpropTF`, update many parameters in one launch.

    Arguments:
        optimizers: One for each network, each with parameters of its own.

    Example:
        >>> import torch
        >>> weights = [torch.nn.Parameter(torch.ones(1)) for _ in range(2)]
        >>> for weight in weights:
        ...     weight.grad = torch.ones(1)
        >>> step_together([torch.optim.SGD([weight], lr=0.5) for weight in weights])
        >>> [weight.item() for weight in weights]
        [0.5, 0.5]
    """
    kinds: dict[type, list[Optimizer]] = {}
    for optimizer in optimizers:
        if not _can_join(optimizer):
            optimizer.step()
            continue
        # what a learning-rate schedule asks for, to know that it does not come first
        setattr(optimizer, "_opt_called", True)  # noqa: B010
        for member in _members(optimizer):
            kinds.setdefault(type(member), []).append(member)
    for kind, members in kinds.items():
        step_as_one(kind, members)


def step_as_one(kind: type, members: Sequence[Optimizer]) -> None:
    """Let optimizers of one class step, by one optimizer for all of them.

    Arguments:
        kind: The class.
        members: The optimizers.
    """
    whole = joined(kind, members)
    whole.step()
    for member in members:
        for p in _parameters(member):
            # states that this step has made; a parameter without a gradient still has none
            if p in whole.state:
                member.state[p] = whole.state[p]


def joined(kind: type, members: Sequence[Optimizer]) -> Optimizer:
    """One optimizer with the parameters and states of several, themselves and not copies.

    Arguments:
        kind: The class of all of them.
        members: The optimizers.
    """
    groups: list[tuple[dict[str, Any], list[Tensor]]] = []
    for member in members:
        for group in member.param_groups:
            own = {name: value for name, value in group.items() if name != "params"}
            for options, params in groups:
                # not only their values: a learning-rate schedule adds options to its groups
                if options == own:
                    params += group["params"]
                    break
            else:
                groups.append((own, [*group["params"]]))
    whole = kind([{**options, "params": params} for options, params in groups])
    for member in members:
        whole.state.update((p, member.state[p]) for p in _parameters(member) if p in member.state)
    return whole


def _can_join(optimizer: Optimizer) -> bool:
    """Whether this is on a GPU, and nothing else happens when the optimizer steps."""
    each = [optimizer, *_members(optimizer)]
    if any(one._optimizer_step_pre_hooks or one._optimizer_step_post_hooks for one in each):
        return False
    return all(p.is_cuda for p in _parameters(optimizer))


def _members(optimizer: Optimizer) -> Iterator[Optimizer]:
    yield from getattr(optimizer, "optimizers", (optimizer,))


def _parameters(optimizer: Optimizer) -> Iterator[Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]

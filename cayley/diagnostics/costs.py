"""The cost of forming W, and the error of a Neumann series against its time."""

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor

from cayley.checks import check_integer
from cayley.parametrizations import MAPS, Parametrization, neumann_update
from cayley.parametrizations.orthogonal import MapFactory, make_map

__all__ = ["NeumannStudy", "formation_seconds", "median_seconds", "neumann_errors"]


def formation_seconds(
    maps: Mapping[str, MapFactory] | Sequence[str] | None = None,
    sizes: Sequence[int] = (32, 64, 128),
    *,
    backward: bool = True,
    repeat: int = 5,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Seconds to form W, and its gradient, by parametrisation and size.

    Arguments:
        maps: Functions from n to a parametrisation, by name, or names of
            :data:`cayley.parametrizations.MAPS`; None for all of these.
        sizes: The n.
        backward: Whether the gradient of the free tensors is computed too.
        repeat: The number of runs of which the median is taken, after one that does not count.
        device: The device of the free tensors.
        dtype: The dtype of the free tensors, real even if W is complex.

    Returns:
        Float64, (maps, sizes).

    Example:
        >>> formation_seconds(["cayley", "exponential"], [4, 8], repeat=1).shape
        torch.Size([2, 2])
    """
    check_integer("repeat", repeat)
    names = maps if isinstance(maps, Mapping) else {name: name for name in maps or MAPS}
    return torch.tensor(
        [
            [
                median_seconds(
                    _formation(make_map(map, n, device), backward, device, dtype), repeat
                )
                for n in sizes
            ]
            for map in names.values()
        ],
        dtype=torch.float64,
    )


def _formation(
    map: Parametrization,
    backward: bool,
    device: torch.device | str | None,
    dtype: torch.dtype | None,
) -> Callable[[], Tensor]:
    map = map.to(device=device, dtype=dtype)
    X = map.sample(device=device, dtype=dtype)
    # alternate between two points, so that a map with a state has to update it each time
    points = cycle((X, [x + 1e-5 * torch.randn_like(x) for x in X]))

    @torch.no_grad()
    def form() -> Tensor:
        if not backward:
            return map.advance(*next(points))
        W, pullback = map.with_pullback(*next(points), update=map.stateful)
        return pullback(W)[0]

    return form


def median_seconds(run: Callable[[], Tensor], repeat: int) -> float:
    """The median time of a run, after one that does not count; includes waiting for a GPU."""
    result, found = run(), []
    for _ in range(repeat):
        _wait(result)
        start = time.perf_counter()
        result = run()
        _wait(result)
        found.append(time.perf_counter() - start)
    return median(found)


def _wait(result: Tensor) -> None:
    if result.is_cuda:
        torch.cuda.synchronize(result.device)


class NeumannStudy(NamedTuple):
    r"""The results of Neumann series of several orders along a path of A.

    Attributes:
        errors: :math:`\|\tilde A_t - (I + A_t)^{-1}\|_F`, (orders, steps).
        defects: :math:`\|W_t^\top W_t - I\|_F` of :math:`W_t = \tilde A_t (I - A_t)`, same shape.
        contractions: :math:`\|\tilde A_{t-1} \delta A_t\|_2` with the exact inverse; the series
            converges if it is below 1, (steps).
        seconds: The seconds of one update, (orders).
        exact_seconds: The seconds of one exact inverse, ().
    """

    errors: Tensor
    defects: Tensor
    contractions: Tensor
    seconds: Tensor
    exact_seconds: Tensor


@torch.no_grad()
def neumann_errors(
    path: Tensor, orders: Sequence[int] = (1, 2, 3), *, repeat: int = 5
) -> NeumannStudy:
    r"""Error and time of the running inverse of NC-GRU, by the order of its series.

    :math:`\tilde A` starts as the exact inverse at the first point of the path, and is then only
    updated, see :func:`~cayley.parametrizations.neumann_update`.

    References:
        Normalization Techniques for Sequential and Graphical Data (dissertation), Pospisil, 2023,
        section 4.1.

    Arguments:
        path: The skew-symmetric matrices of successive training steps, (steps + 1, n, n).
        orders: The highest powers of the series.
        repeat: The number of runs of which a time is the median.

    Example:
        >>> from cayley.parametrizations import Skew
        >>> A = Skew(6).sample()[0]
        >>> path = torch.stack([Skew(6)(A * (1 + 1e-3 * t)) for t in range(11)])
        >>> study = neumann_errors(path, repeat=1)
        >>> study.errors.shape, bool(study.errors[1, -1] < study.errors[0, -1])
        (torch.Size([3, 10]), True)
    """
    if path.dim() != 3 or len(path) < 2 or path.shape[1] != path.shape[2]:
        raise ValueError(
            f"expected a path of at least two matrices, (steps + 1, n, n), got {tuple(path.shape)}"
        )
    for order in orders:
        check_integer("order", order)
    eye = torch.eye(path.shape[-1], device=path.device, dtype=path.dtype)
    exact = torch.linalg.inv(eye + path)
    deltas = path[:-1] - path[1:]
    followed = []
    for order in orders:
        inverse, along = exact[0], []
        for delta in deltas:
            inverse = neumann_update(inverse, delta, order)
            along.append(inverse)
        followed.append(torch.stack(along))
    inverses = torch.stack(followed)
    W = inverses @ (eye - path[1:])
    first, delta, M = exact[0], deltas[0], eye + path[0]
    times = [
        median_seconds(lambda order=order: neumann_update(first, delta, order), repeat)
        for order in orders
    ]
    return NeumannStudy(
        torch.linalg.matrix_norm(inverses - exact[1:]),
        torch.linalg.matrix_norm(W.mT @ W - eye),
        torch.linalg.matrix_norm(exact[:-1] @ deltas, 2),
        torch.tensor(times, dtype=torch.float64),
        torch.tensor(median_seconds(lambda: torch.linalg.inv(M), repeat), dtype=torch.float64),
    )

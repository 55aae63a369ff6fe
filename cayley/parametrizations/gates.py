"""The recurrent matrices of a gated recurrence stacked into one, some of them structured."""

import copy
from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor

from cayley.parametrizations.parametrization import Parametrization, Pullback, full_precision

__all__ = ["GATES", "GateMatrices"]

GATES = ("reset", "update", "candidate")


class GateMatrices(Parametrization):
    r"""The stacked matrices of a GRU, :math:`[W_r; W_u; W_c]`, some of them structured.

    Arguments:
        n: The number of units: each matrix is (n, n).
        maps: Parametrisations of size n, under ``"reset"``, ``"update"`` and ``"candidate"``; a
            matrix without one is a free tensor itself. They are copied, so that no two matrices
            share one.

    Attributes:
        names: The free tensors' names: ``"reset_A"`` for the free tensor A of the map of the reset
            gate, ``"reset"`` for the matrix itself where it is free.
        unconstrained: Those of ``names`` that are the matrices themselves.

    Shapes:
        The free tensors of each map, or a matrix (n, n) ↦ W (3n, n).

    Example:
        >>> from cayley.parametrizations import ScaledCayley
        >>> map = GateMatrices(4, {"candidate": ScaledCayley(4)})
        >>> map.names
        ('reset', 'update', 'candidate_A')
        >>> W = map(*map.sample())
        >>> W.shape, bool(map.defect(W) < 1e-6)
        (torch.Size([12, 4]), True)
    """

    def __init__(self, n: int, maps: Mapping[str, Parametrization]) -> None:
        super().__init__(n)
        if unknown := set(maps) - set(GATES):
            raise ValueError(f"expected maps of some of {GATES}, got {sorted(unknown)}")
        for gate, map in maps.items():
            # optimizers recognise points of a manifold by the map as a whole, not by its parts
            if map.n != n or map.is_complex or map.on_manifold:
                raise ValueError(
                    f"expected for {gate!r} a real map of size {n} that any optimizer can train, "
                    f"got {map}"
                )
        for gate in GATES:
            self.register_module(gate, copy.deepcopy(maps.get(gate)))
        self.names = tuple(name for gate in GATES for name in self._names(gate))
        self.phases = tuple(
            f"{gate}_{phase}" for gate in GATES if gate in maps for phase in maps[gate].phases
        )
        self.unconstrained = tuple(gate for gate in GATES if gate not in maps)
        self.stateful = any(map.stateful for map in maps.values())

    def _names(self, gate: str) -> tuple[str, ...]:
        map = self._map(gate)
        return (gate,) if map is None else tuple(f"{gate}_{name}" for name in map.names)

    def _map(self, gate: str) -> Parametrization | None:
        return cast("Parametrization | None", self._modules[gate])

    def _own(self, X: Sequence[Tensor]) -> list[tuple[Parametrization | None, list[Tensor]]]:
        """The map of each gate, None for a free matrix, with its free tensors."""
        named = dict(zip(self.names, X, strict=True))
        return [(self._map(gate), [named[name] for name in self._names(gate)]) for gate in GATES]

    def forward(self, *X: Tensor, update: bool = False) -> Tensor:
        """The matrix [W_r; W_u; W_c]; with ``update`` the maps' buffers are updated too."""
        blocks: list[Tensor] = []
        for map, own in self._own(X):
            if map is None:
                blocks.append(own[0])
            else:
                blocks.append(map.advance(*own) if update else map(*own))
        with full_precision(*blocks):
            return torch.cat(blocks)

    @torch.no_grad()
    def with_pullback(self, *X: Tensor, update: bool = False) -> tuple[Tensor, Pullback]:
        """The matrix, detached, and its pullback, put together from those of the maps."""
        pairs = [
            (own[0], _unchanged) if map is None else map.with_pullback(*own, update=update)
            for map, own in self._own(X)
        ]

        def pullback(G: Tensor) -> Sequence[Tensor]:
            blocks = zip(pairs, G.chunk(3), strict=True)
            return [gradient for (_, own), block in blocks for gradient in own(block)]

        blocks = [W for W, _ in pairs]
        with full_precision(*blocks):
            return torch.cat(blocks), pullback

    def capturable(self, *X: Tensor) -> bool:
        """Whether a CUDA graph can capture :meth:`with_pullback`: if it can for every map."""
        return all(map is None or map.capturable(*own) for map, own in self._own(X))

    def right_inverse(self, W: Tensor) -> Sequence[Tensor]:
        """Free tensors that give ``W``: those of the maps, and the free matrices themselves."""
        before = [buffer.clone() for buffer in self.buffers()]
        free: list[Tensor] = []
        try:
            for map, block in self._blocks(W):
                X = block.clone() if map is None else map.right_inverse(block)
                free += (X,) if isinstance(X, Tensor) else X
        except Exception:
            # if a block is refused, the maps of earlier blocks must not stay changed
            for buffer, value in zip(self.buffers(), before, strict=True):
                buffer.copy_(value)
            raise
        return free

    def project(self, W: Tensor) -> Tensor:
        """The nearest matrix whose structured blocks have their structure."""
        blocks = self._blocks(W)
        return torch.cat([block if map is None else map.project(block) for map, block in blocks])

    def defect(self, W: Tensor) -> Tensor:
        """Distance of the structured blocks from their sets, as one norm."""
        defects = [map.defect(block) for map, block in self._blocks(W) if map is not None]
        return torch.linalg.vector_norm(torch.stack(defects)) if defects else W.new_zeros(())

    def sample(
        self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Sequence[Tensor]:
        """As each map draws them; a free matrix from U(−1/√n, 1/√n), as ``nn.GRU`` does."""
        bound = self.n**-0.5
        free: list[Tensor] = []
        for gate in GATES:
            map = self._map(gate)
            if map is None:
                block = torch.empty(self.n, self.n, device=device, dtype=dtype)
                free.append(block.uniform_(-bound, bound))
            else:
                free += map.sample(device=device, dtype=dtype)
        return free

    def _blocks(self, W: Tensor) -> Sequence[tuple[Parametrization | None, Tensor]]:
        """Each matrix of W with its map."""
        if W.shape != (3 * self.n, self.n):
            raise ValueError(
                f"expected a matrix of shape ({3 * self.n}, {self.n}), the reset, update and "
                f"candidate matrices stacked, got {tuple(W.shape)}"
            )
        if W.is_complex():
            raise TypeError(f"expected a real matrix, got {W.dtype}")
        return [(self._map(gate), block) for gate, block in zip(GATES, W.chunk(3), strict=True)]


def _unchanged(G: Tensor) -> Sequence[Tensor]:
    return (G,)

"""When a gated recurrence runs step by step, with the products of a library, by tiles or by teams.

A team of blocks holds W on chip and runs all steps in one launch, but its blocks exchange the
states of all rows at every step. With many rows and units that takes longer than to read W again:
then every step is one product of all rows, by cuBLAS, and one small kernel for everything between
two products, each launched by Python. Tiles are as large as those of such a product, with W on
chip and all steps in one launch, for the recurrences that have such kernels.
"""

import functools

import torch
from torch import Tensor

from cayley.kernels.cuda.runtime.chip import Chip, chip
from cayley.kernels.cuda.runtime.team_kernels import rounded
from cayley.kernels.cuda.runtime.teams import Kind, best_team
from cayley.kernels.cuda.runtime.tiles import TileKind, tile_microseconds

__all__ = ["CLOCK", "runs_by_tiles", "runs_stepwise", "step_microseconds", "team_microseconds"]

# In microseconds, or per microsecond, on an H200, of products with 1 to 512 rows and 128 to 1024
# units. With B = 512 and n = 1024 a step of an LSTM takes 125 forward and 115 backward, and Python
# takes 37 for it; of the GRU 122, 119 and 60 to 80.
CLOCK = 1755.0  # cycles
HOST_PRODUCT, HOST_LAUNCH = 20.0, 17.0  # of Python
PRODUCT, PER_INPUT = 3.0, 0.0055  # of a product with few rows: the sum over all inputs takes time
MULTIPLICATIONS = 24.2e6  # in float32
FEW = 0.5  # added to the gates of a product: one of few gates leaves multiprocessors idle
KERNEL = 3.0  # of a small kernel, with what lies between two of them
ELEMENTS = 0.75e6  # that small kernels read and write
TOTAL = 1.0  # of the statistics of a row


def runs_stepwise(h0: Tensor, kind: Kind) -> bool:
    """Whether a recurrence that no single block can compute runs step by step, not by teams.

    The plan has to be faster, and two settings of torch exclude it. Where products may be computed
    in TF32, those of every step would be as well, but our recurrences promise float32; the setting
    is that of the whole process, so that it cannot be changed for the time of a call. Deterministic
    algorithms would require a setting of cuBLAS that teams do not need.

    Arguments:
        h0: The states before the first step, (B, H), with B > 0.
        kind: What a team would compute at every step.
    """
    B, H = h0.shape
    return _is_faster(H, rounded(B), kind, chip(h0.device.index)) and _may_step()


def runs_by_tiles(h0: Tensor, kind: Kind, tile_kind: TileKind) -> bool:
    """Whether a recurrence that no single block can compute runs by tiles.

    Arguments:
        h0: The states before the first step, (B, H), with B > 0.
        kind: What a team would compute at every step.
        tile_kind: What tiles would compute.
    """
    B, H = h0.shape
    return _prefers_tiles(H, rounded(B), kind, tile_kind, chip(h0.device.index), _may_step())


@functools.cache
def _prefers_tiles(
    H: int, B: int, kind: Kind, tile_kind: TileKind, chip: Chip, may_step: bool
) -> bool:
    others = [team_microseconds(H, B, kind, chip)]
    if may_step:
        others.append(step_microseconds(H, B, kind))
    return tile_microseconds(H, B, tile_kind, chip) < min(others)


@functools.cache
def _is_faster(H: int, B: int, kind: Kind, chip: Chip) -> bool:
    return step_microseconds(H, B, kind) < team_microseconds(H, B, kind, chip)


def step_microseconds(H: int, B: int, kind: Kind) -> float:
    """Approximate time of a step with a product and a kernel for each product of the kind.

    Python launches ahead of the GPU, so that the slower of the two counts.

    Arguments:
        H: The number of units.
        B: The number of rows.
        kind: What there is to compute.

    Example:
        Few rows wait for Python, and many for the products.

        >>> from cayley.kernels.cuda.runtime.teams import GateProduct
        >>> kind = Kind((GateProduct(4, False),), 0, 0, 64)
        >>> [round(step_microseconds(1024, B, kind)) for B in (1, 128, 512)]
        [37, 39, 121]
    """
    host = len(kind.products) * (HOST_PRODUCT + HOST_LAUNCH)
    device = TOTAL * kind.totals
    for product in kind.products:
        device += PRODUCT + PER_INPUT * H + B * H * H * (product.gates + FEW) / MULTIPLICATIONS
        # of every gate the input's contribution, the product and the result, and two states
        device += KERNEL + B * H * (3 * product.gates + 2) / ELEMENTS
    return max(host, device)


def team_microseconds(H: int, B: int, kind: Kind, chip: Chip) -> float:
    """Approximate time of a step by teams of blocks; infinite if there are none."""
    team = best_team(H, B, kind, chip)
    return float("inf") if team is None else team.cost(B, chip) / CLOCK


def _may_step() -> bool:
    """Whether settings of torch leave products to a library."""
    return not _allows_tf32() and not torch.are_deterministic_algorithms_enabled()


def _allows_tf32() -> bool:
    """Whether torch may compute products of float32 matrices in TF32."""
    matmul = torch.backends.cuda.matmul
    # which torch 2.8 does not have; later versions refuse to answer the older question if the
    # newer setting has been used
    precision = getattr(matmul, "fp32_precision", None)
    if precision is None:
        return bool(matmul.allow_tf32)
    return precision not in ("none", "ieee")

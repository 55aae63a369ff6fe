"""How far recurrent matrices are from orthogonal, and their spectra."""

import math
from collections.abc import Iterator
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from cayley.diagnostics.runs import join, recurrent_layers
from cayley.layers import NCGRU
from cayley.layers.lstm import LSTM
from cayley.layers.recurrent import Recurrent
from cayley.parametrizations import (
    ComplexScaledCayley,
    EigenvalueNormalization,
    GateMatrices,
    LongShort,
    NeumannCayley,
    ScaledCayley,
    SpectralSVD,
    StructuredMatrix,
)
from cayley.parametrizations.gates import GATES

__all__ = [
    "Normalisation",
    "Spectrum",
    "eigenvalue_normalisation",
    "orthogonality_error",
    "orthogonality_errors",
    "recurrent_matrices",
    "scaling_angles",
    "spectra",
    "spectrum",
]

LSTM_GATES = ("input", "forget", "candidate", "output")


@torch.no_grad()
def orthogonality_error(W: Tensor) -> Tensor:
    r"""Distance :math:`\|W^* W - I\|_F` from the orthogonal (unitary) matrices.

    It is always computed in double precision. For a wide matrix it is :math:`\|W W^* - I\|_F`: its
    rows can be orthonormal, its columns cannot.

    References:
        Orthogonal Recurrent Neural Networks with Scaled Cayley Transform, Helfrich, Willmott, Ye,
        2018, section 4.

    Arguments:
        W: Matrices, real or complex, (..., m, n).

    Returns:
        (...).

    Example:
        >>> orthogonality_error(torch.stack((torch.eye(2), 2 * torch.eye(2))))
        tensor([0.0000, 4.2426], dtype=torch.float64)
    """
    if W.dim() < 2:
        raise ValueError(f"expected matrices (..., m, n), got {tuple(W.shape)}")
    W = _double(W)
    W = W.mH if W.shape[-1] > W.shape[-2] else W
    eye = torch.eye(W.shape[-1], device=W.device, dtype=W.dtype)
    return torch.linalg.matrix_norm(W.mH @ W - eye)


class Spectrum(NamedTuple):
    """Eigenvalues and singular values of a matrix.

    Attributes:
        eigenvalues: Complex, by decreasing modulus, (..., n).
        singular_values: In decreasing order, (..., n).
    """

    eigenvalues: Tensor
    singular_values: Tensor

    @property
    def radius(self) -> Tensor:
        """The spectral radius, (...)."""
        return self.eigenvalues[..., 0].abs()


@torch.no_grad()
def spectrum(W: Tensor) -> Spectrum:
    """Eigenvalues and singular values in double precision; NaN if W is not finite.

    Arguments:
        W: Square matrices, real or complex, (..., n, n).

    Example:
        >>> found = spectrum(torch.diag(torch.tensor([1.0, -3.0])))
        >>> found.eigenvalues.real, found.singular_values
        (tensor([-3.,  1.], dtype=torch.float64), tensor([3., 1.], dtype=torch.float64))
    """
    if W.dim() < 2 or W.shape[-1] != W.shape[-2]:
        raise ValueError(f"expected square matrices (..., n, n), got {tuple(W.shape)}")
    W = _double(W)
    if not W.isfinite().all():
        # the decomposition would raise, just when a diagnostic is needed most
        nothing = W.real.new_full(W.shape[:-1], torch.nan)
        return Spectrum(nothing.to(torch.complex128), nothing)
    eigenvalues = torch.linalg.eigvals(W)
    order = eigenvalues.abs().argsort(-1, descending=True)
    return Spectrum(eigenvalues.gather(-1, order), torch.linalg.svdvals(W))


@torch.no_grad()
def recurrent_matrices(model: nn.Module) -> dict[str, Tensor]:
    """The square recurrent matrices of a model, by name.

    The matrices of gates are separate: ``"weight_hh_l0.reset"``, ``"update"`` and ``"candidate"``
    for a GRU, ``"input"``, ``"forget"``, ``"candidate"`` and ``"output"`` for an LSTM. For
    :class:`~cayley.ENRNN` there are ``"weight_hh_l0.long"`` and ``"short"``. Complex matrices are
    returned as complex tensors. Reading them changes nothing.

    Example:
        >>> import cayley
        >>> {name: tuple(W.shape) for name, W in recurrent_matrices(cayley.ENRNN(2, 6, 4)).items()}
        {'weight_hh_l0.long': (6, 6), 'weight_hh_l0.short': (4, 4)}
    """
    found: dict[str, Tensor] = {}
    for prefix, layer in recurrent_layers(model).items():
        for suffix, _, _ in layer.suffixes():
            name = f"weight_hh_{suffix}"
            W = getattr(layer, name).detach()
            for part, block in _blocks(layer, name, W):
                found[join(prefix, join(name, part))] = block
    return found


def _blocks(layer: Recurrent, name: str, W: Tensor) -> Iterator[tuple[str, Tensor]]:
    map = _map(layer, name)
    if isinstance(map, LongShort):
        long, _, _, short = map.blocks(W)
        blocks = {"long": long, "short": short}
        yield from ((part, block) for part, block in blocks.items() if len(block))
    elif isinstance(layer, NCGRU):
        yield from zip(GATES, W.chunk(3), strict=True)
    elif isinstance(layer, LSTM):
        yield from zip(LSTM_GATES, W.chunk(4), strict=True)
    else:
        yield "", W


def _map(layer: Recurrent, name: str) -> nn.Module | None:
    if name not in layer.structured:
        return None
    return cast(StructuredMatrix, layer.structured[name]).map


def orthogonality_errors(model: nn.Module) -> dict[str, Tensor]:
    """:func:`orthogonality_error` of those recurrent matrices that should be orthogonal.

    Free matrices and those of eigenvalue normalisation are left out, and so is
    :class:`~cayley.SpectralRNN`, whose singular values may differ from 1.

    Example:
        >>> import cayley
        >>> errors = orthogonality_errors(cayley.NCGRU(2, 8, orthogonal=("candidate",)))
        >>> [*errors], bool(errors["weight_hh_l0.candidate"] < 1e-5)
        (['weight_hh_l0.candidate'], True)
    """
    layers = recurrent_layers(model)
    found = {}
    for name, W in recurrent_matrices(model).items():
        owner, _, rest = name.rpartition("weight_hh_")
        suffix, _, part = rest.partition(".")
        map = _map(layers[owner.removesuffix(".")], f"weight_hh_{suffix}")
        if isinstance(map, GateMatrices):
            # a gate without a map is free
            map = map.get_submodule(part) if part in dict(map.named_children()) else None
        if map is not None and not isinstance(map, SpectralSVD) and part != "short":
            found[name] = orthogonality_error(W)
    if not found:
        raise TypeError(
            "expected a layer whose recurrent matrix is orthogonal or unitary (ENRNN, EURNN, "
            "ExpRNN, FullURNN, NCGRU, ORNN, RNN with recurrent=, ScoRNN, ScuRNN or URNN), got "
            f"none in {sorted({type(layer).__name__ for layer in layers.values()})}: "
            "orthogonality_error(W) takes any matrix"
        )
    return found


def spectra(model: nn.Module) -> dict[str, Spectrum]:
    """:func:`spectrum` of every matrix of :func:`recurrent_matrices`."""
    return {name: spectrum(W) for name, W in recurrent_matrices(model).items()}


@torch.no_grad()
def scaling_angles(model: nn.Module) -> dict[str, Tensor]:
    r"""The angles of the diagonal D of scaled Cayley transforms, from 0 to 2π, by matrix.

    For a real D of ±1 they are 0 and π; for the :math:`D = \mathrm{diag}(e^{i\theta})` of
    :class:`~cayley.ScuRNN` they are trained.

    Example:
        >>> import cayley
        >>> scaling_angles(cayley.ScoRNN(2, 4, negative_ones=1))["weight_hh_l0"]
        tensor([0.0000, 0.0000, 0.0000, 3.1416])
    """
    found: dict[str, Tensor] = {}
    for prefix, matrix in _structured(model):
        if isinstance(matrix.map, ComplexScaledCayley):
            theta = dict(zip(matrix.map.names, matrix.free, strict=True))["theta"]
            found[prefix] = theta.detach().remainder(2 * math.pi)
        for name, map in matrix.map.named_modules():
            if isinstance(map, (ScaledCayley, NeumannCayley)):
                found[join(prefix, name)] = (map.D < 0).to(map.D.dtype) * math.pi
    if not found:
        raise TypeError(
            "expected a layer with a scaled Cayley transform (ENRNN, NCGRU, RNN with "
            f"recurrent='cayley', ScoRNN or ScuRNN), got {_kinds(model)}"
        )
    return found


def _structured(model: nn.Module) -> Iterator[tuple[str, StructuredMatrix]]:
    """The structured matrices of recurrent layers, under the names of their weights."""
    for prefix, layer in recurrent_layers(model).items():
        for name, matrix in zip(layer.structured, layer.matrices(), strict=True):
            yield join(prefix, name), matrix


def _kinds(model: nn.Module) -> list[str]:
    return sorted({type(layer).__name__ for layer in recurrent_layers(model).values()})


class Normalisation(NamedTuple):
    """The state of an eigenvalue normalisation.

    Attributes:
        radius: ρ(T), ().
        latched: Whether W_S is normalised, bool, ().
        events: How often each :class:`~cayley.parametrizations.eigenvalue.dominant.Event` has
            happened, in its order, (8).
    """

    radius: Tensor
    latched: Tensor
    events: Tensor


@torch.no_grad()
def eigenvalue_normalisation(model: nn.Module) -> dict[str, Normalisation]:
    """ρ(T), the latch and the counts of events of every T of :class:`~cayley.ENRNN`, by matrix.

    Example:
        >>> import cayley
        >>> found = eigenvalue_normalisation(cayley.ENRNN(2, 6, 4))["weight_hh_l0"]
        >>> bool(found.radius <= 1), bool(found.latched), int(found.events.sum())
        (True, False, 0)
    """
    found: dict[str, Normalisation] = {}
    for prefix, matrix in _structured(model):
        map = matrix.map.short if isinstance(matrix.map, LongShort) else matrix.map
        if isinstance(map, EigenvalueNormalization):
            T = dict(zip(matrix.map.names, matrix.free, strict=True))["T"]
            found[prefix] = Normalisation(
                spectrum(T.detach()).radius, map.latched.clone(), map.counts.clone()
            )
    if not found:
        raise TypeError(
            "expected a layer with eigenvalue normalisation (ENRNN with a short_size, or RNN with "
            f"recurrent=EigenvalueNormalization), got {_kinds(model)}"
        )
    return found


def _double(W: Tensor) -> Tensor:
    return W.detach().to(torch.complex128 if W.is_complex() else torch.float64)

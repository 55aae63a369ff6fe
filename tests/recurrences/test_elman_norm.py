"""The normalised Elman recurrence: its definition, its operator, and that it has no kernel."""

from typing import Any

import pytest
import torch
from torch import Tensor

import cayley
from cayley.activations import ACTIVATIONS
from cayley.norms.windows import TimeWindow
from cayley.recurrences import NormSite, normalized_elman, normalized_elman_loop

SIZES = [(1, 1, 2), (7, 3, 5), (4, 1, 17), (12, 4, 3)]
PACKED = torch.tensor([4, 4, 3, 1, 1])


@pytest.fixture(autouse=True)
def reference() -> Any:
    with cayley.backend("reference"):
        yield


def inputs(T: int, B: int, H: int, window: int, past: bool) -> dict[str, Tensor]:
    tensors = {"x": torch.randn(T, B, H), "h0": torch.randn(B, H), "W": torch.randn(H, H)}
    for site in "xh":
        tensors |= {f"gamma_{site}": 1 + 0.3 * torch.randn(H), f"beta_{site}": torch.randn(H)}
        if past:
            tensors |= {
                f"reference_{site}": torch.randn(B, 1),
                f"means_{site}": torch.randn(window - 1, B, 1),
                f"variances_{site}": 0.1 + torch.rand(window - 1, B, 1),
            }
    return tensors


def run(function: Any, tensors: dict[str, Tensor], window: int, **options: Any) -> list[Tensor]:
    """h, and means and variances of all steps."""
    sites = []
    for site in "xh":
        past = None
        if f"means_{site}" in tensors:
            means = tensors[f"means_{site}"]
            weights = torch.zeros_like(means)
            weights[:, ::2] = weights[-1:] = 1  # of one sequence all steps are known
            variances = tensors[f"variances_{site}"]
            past = TimeWindow(tensors[f"reference_{site}"], means, variances, weights)
        sites.append(NormSite(tensors[f"gamma_{site}"], tensors[f"beta_{site}"], past))
    x, h0, W = (tensors[name] for name in ("x", "h0", "W"))
    b = tensors.get("b")
    states = function(
        *(x, h0, W, b), input=sites[0], recurrent=sites[1], window=window, eps=1e-3, **options
    )
    return [states.h, *(values[:2] for _, values in (states.input, states.recurrent))]


def defined(tensors: dict[str, Tensor], window: int, sizes: list[int], phi: Any) -> Tensor:
    """Equations 3.3 and 3.7 to 3.9 of the dissertation, from the raw values of each window."""

    def norm(site: str, values: list[Tensor]) -> Tensor:
        last = values[-1]
        pool = torch.cat([a[: len(last)] for a in values[-window:]], 1)
        mean, var = pool.mean(1, keepdim=True), pool.var(1, correction=0, keepdim=True)
        gamma, beta = tensors[f"gamma_{site}"], tensors[f"beta_{site}"]
        return gamma * (last - mean) / (var + 1e-3).sqrt() + beta

    steps, products, hs = [], [], []
    h = tensors["h0"]
    for x_t in tensors["x"].flatten(0, -2).split(sizes):
        steps.append(x_t)
        products.append(h[: len(x_t)] @ tensors["W"].T)
        h = phi(norm("x", steps) + norm("h", products))
        hs.append(h)
    return torch.cat(hs)


@pytest.mark.parametrize("window", [1, 2, 3, 20])
@pytest.mark.parametrize("layout", ["dense", "packed"])
def test_is_the_equations_of_the_documents(window: int, layout: str) -> None:
    tensors = inputs(5, 4, 6, window, past=False)
    sizes, options = [4] * 5, {}
    if layout == "packed":
        sizes, options = PACKED.tolist(), {"batch_sizes": PACKED}
        tensors["x"] = torch.cat([tensors["x"][t, :B] for t, B in enumerate(sizes)])
    expected = defined(tensors, window, sizes, torch.tanh)
    for function in (normalized_elman, normalized_elman_loop):
        found = run(function, tensors, window, **options)[0]
        torch.testing.assert_close(found.flatten(0, -2), expected)


@pytest.mark.parametrize("nonlinearity", ["tanh", "relu", "leaky_relu", "identity", "modrelu"])
@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("layout", ["dense", "packed"])
def test_outputs_and_gradients_are_those_of_the_loop(
    nonlinearity: str, past: bool, layout: str
) -> None:
    """The gradient is written by hand; that of the loop is autograd's."""
    for T, B, H in [(5, 4, 6)] if layout == "packed" else SIZES:
        window = 3
        tensors = inputs(T, B, H, window, past)
        options: dict[str, Any] = {"nonlinearity": nonlinearity}
        if ACTIVATIONS[nonlinearity].threshold:
            tensors["b"] = 0.3 * torch.randn(H)
        if layout == "packed":
            options["batch_sizes"] = PACKED
            sizes = PACKED.tolist()
            tensors["x"] = torch.cat([tensors["x"][t, :B] for t, B in enumerate(sizes)])
        leaves = [{k: v.clone().requires_grad_() for k, v in tensors.items()} for _ in range(2)]
        results = [
            run(function, own, window, **options)
            for function, own in zip((normalized_elman, normalized_elman_loop), leaves, strict=True)
        ]
        weights = [torch.randn_like(result) for result in results[0]]
        torch.testing.assert_close(results[0], results[1])
        found, expected = (
            torch.autograd.grad(outputs, [*own.values()], weights)
            for outputs, own in zip(results, leaves, strict=True)
        )
        torch.testing.assert_close(found, expected)


def test_no_kernel_runs_it_and_that_is_said_once() -> None:
    tensors = inputs(3, 2, 4, 1, past=False)
    with cayley.backend("auto"):
        with pytest.warns(UserWarning, match="loop of torch operations, .*only for an LSTM"):
            run(normalized_elman, tensors, 1)
        run(normalized_elman, tensors, 1)
    with (
        cayley.backend("cpu"),
        pytest.raises(NotImplementedError, match="no normalisation for an Elman recurrence"),
    ):
        run(normalized_elman, tensors, 1)


def test_bad_arguments_are_refused() -> None:
    tensors = inputs(3, 2, 4, 2, past=False)
    for nonlinearity in ("sine", "modrelu_stacked"):
        with pytest.raises(ValueError, match=r"expected a nonlinearity of \['identity'"):
            run(normalized_elman, tensors, 2, nonlinearity=nonlinearity)
    with pytest.raises(ValueError, match="expected 4 thresholds b for modrelu, got none"):
        run(normalized_elman, tensors, 2, nonlinearity="modrelu")
    with pytest.raises(ValueError, match="expected 0 thresholds b for tanh, got"):
        run(normalized_elman, tensors | {"b": torch.zeros(4)}, 2)
    with pytest.raises(ValueError, match=r"expected x \(\.\.\., 4\) and W \(4, 4\)"):
        run(normalized_elman, tensors | {"W": torch.zeros(5, 4)}, 2)
    with pytest.raises(ValueError, match="expected gamma and beta of 4 features"):
        run(normalized_elman, tensors | {"gamma_x": torch.zeros(5)}, 2)

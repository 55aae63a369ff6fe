"""Assorted-time normalisation: invariants of the documents, and its own definition."""

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from gradients import check_gradients, check_second_gradients, grad_of
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from cayley.norms import AssortedTimeNorm, assorted_time_norm
from cayley.norms.atn import Over

T, B, F = 11, 4, 5
LENGTHS = torch.tensor([7, 11, 2, 7])
overs = pytest.mark.parametrize("over", ["layer", "batch"])
windows = pytest.mark.parametrize("window", [1, 2, 4, 30])


def defined(a: Tensor, window: int, over: str, eps: float = 1e-5) -> Tensor:
    """y of the values (T, B, F), by the formula; NaN stands for values that are not there."""
    ys = []
    for t in range(len(a)):
        values = a[max(0, t + 1 - window) : t + 1]
        axes = (0, 2) if over == "layer" else (0, 1)
        mean = values.nanmean(axes, keepdim=True)[0]
        var = (values - mean).square().nanmean(axes, keepdim=True)[0]
        ys.append((a[t] - mean) / (var + eps).sqrt())
    return torch.stack(ys)


def norm_of(window: int, over: Over, **options: Any) -> Any:
    norm = AssortedTimeNorm(F, window, over=over, **options)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.add_(torch.randn_like(parameter))
    return norm


@windows
@overs
def test_is_its_definition(window: int, over: Over) -> None:
    norm = norm_of(window, over)
    a = torch.randn(T, B, F) + torch.randn(T, 1, 1)
    expected = norm.gamma * defined(a, window, over) + norm.beta
    torch.testing.assert_close(norm(a), expected)


def test_window_of_one_step_is_layer_or_batch_normalisation() -> None:
    a = torch.randn(T, B, F)
    torch.testing.assert_close(
        AssortedTimeNorm(F, 1)(a), nn.functional.layer_norm(a, (F,)), rtol=1e-14, atol=1e-14
    )
    over_batch = AssortedTimeNorm(F, 1, over="batch")(a)
    for t in range(T):
        expected = nn.functional.batch_norm(a[t], None, None, training=True)
        torch.testing.assert_close(over_batch[t], expected, rtol=1e-14, atol=1e-14)


@windows
@overs
@pytest.mark.filterwarnings("ignore:.*a step of a single sequence")
def test_padding_never_enters(window: int, over: Over) -> None:
    """Of sequences of different lengths each step is normalised by what is there."""
    norm = AssortedTimeNorm(F, window, over=over)
    a = torch.randn(T, B, F)
    a[torch.arange(T)[:, None] >= LENGTHS] = torch.nan
    expected = defined(a, window, over)
    a.requires_grad_()
    y = norm(pack_padded_sequence(a, LENGTHS, enforce_sorted=False))
    y.data.sum().backward()
    assert grad_of(a).isfinite().all()
    found, lengths = pad_packed_sequence(y, padding_value=torch.nan)
    assert torch.equal(lengths, LENGTHS)
    torch.testing.assert_close(found, expected.detach(), equal_nan=True)


@windows
@overs
def test_later_steps_do_not_act_on_earlier_ones(window: int, over: Over) -> None:
    norm = norm_of(window, over)
    a = torch.randn(T, B, F, requires_grad=True)
    (grad,) = torch.autograd.grad(norm(a)[5].square().sum(), a)
    assert (grad[6:] == 0).all()
    assert (grad[max(0, 6 - window) : 6] != 0).any((1, 2)).all()  # all of the window does act
    assert (grad[: max(0, 6 - window)] == 0).all()


@windows
@overs
def test_gradients(window: int, over: Over) -> None:
    gamma, beta = torch.randn(2, 3, requires_grad=True)

    def run(a: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
        sizes = torch.tensor([2, 2, 1, 1]) if a.dim() == 2 else None
        return assorted_time_norm(a, gamma, beta, window=window, over=over, batch_sizes=sizes)[0]

    for shape in ((4, 2, 3), (6, 3)):
        a = torch.randn(shape, requires_grad=True)
        check_gradients(run, (a, gamma, beta))
        check_second_gradients(run, (a, gamma, beta))


@pytest.mark.parametrize("window", [1, 3, 20])
def test_direct_derivative(window: int) -> None:
    """∂y_i(t)/∂a_j(t−m) of the SPEC, for every i, j, t and m."""
    eps, t = 1e-2, 6
    gamma = torch.randn(F)
    a = torch.randn(T, 1, F)

    def y(a: Tensor) -> Tensor:
        return assorted_time_norm(a, gamma, window=window, eps=eps)[0][t, 0]

    jacobian = torch.autograd.functional.jacobian(y, a)[:, :, 0]
    k = min(t + 1, window)
    values = a[t + 1 - k : t + 1, 0]
    N, mu = F * k, values.mean()
    s = (values.var(correction=0) + eps).sqrt()
    expected = torch.zeros(F, T, F)
    for m in range(k):
        same = torch.eye(F) if m == 0 else torch.zeros(F, F)
        product = torch.outer(a[t, 0] - mu, a[t - m, 0] - mu)
        expected[:, t - m] = gamma[:, None] * ((same - 1 / N) / s - product / (N * s**3))
    torch.testing.assert_close(jacobian, expected)


@windows
@overs
@pytest.mark.parametrize("training", [True, False])
def test_step_is_forward_one_step_at_a_time(window: int, over: Over, training: bool) -> None:
    norm = norm_of(window, over)
    norm(torch.randn(6, B, F))  # a population to evaluate by
    norm.train(training)
    twin = copy.deepcopy(norm)
    a = torch.randn(T, B, F)
    y = norm(a)
    state, kept = None, []
    for t, a_t in enumerate(a):
        y_t, state = twin.step(a_t, state)
        torch.testing.assert_close(y_t, y[t])
        kept.append(state)
    assert state is not None
    assert state.steps == T
    if over == "batch":
        torch.testing.assert_close(twin.state_dict(), norm.state_dict())
    # an earlier state is still what it was
    torch.testing.assert_close(twin.step(a[5], kept[4])[0], y[5])


@pytest.mark.parametrize("window", [2, 45, 1000])
@overs
def test_large_mean_in_single_precision(window: int, over: Over) -> None:
    """Mean 1000, standard deviation 0.1: right to 1e-3 after 5000 steps, in a stream too."""
    norm = AssortedTimeNorm(16, window, over=over).float()
    a = (1000 + 0.1 * torch.randn(5000, 3, 16)).float()
    exact = norm.double()(a.double())
    found = norm.float()(a)
    assert found.dtype == torch.float32
    assert (found - exact).abs().max() < 1e-3
    g = torch.randn(a.shape)
    gradients = []
    for dtype in (torch.float32, torch.float64):
        x = a.to(dtype).requires_grad_()
        norm = AssortedTimeNorm(16, window, over=over, dtype=dtype)
        gradients.append(torch.autograd.grad(norm(x), x, g.to(dtype))[0].double())
    assert (gradients[0] - gradients[1]).abs().max() < 1e-3 * gradients[1].abs().max()
    state = None
    for t in range(60):
        y, state = norm.step(a[t].double(), state)
    torch.testing.assert_close(y, exact[59])


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 1e6, -1e6])
@pytest.mark.parametrize("step", [0, 3])
@windows
@overs
def test_a_bad_step_acts_on_its_own_window_only(
    bad: float, step: int, window: int, over: Over
) -> None:
    """In single precision, and in a stream and in chunks too."""
    norm = AssortedTimeNorm(F, window, over=over, affine=False).float()
    a = torch.randn(T + 30, B, F).float()
    a[step, :2] = bad
    after = step + window
    exact = defined(a.double(), window, over)
    found = norm(a)
    torch.testing.assert_close(found[after:].double(), exact[after:], rtol=0, atol=1e-5)
    assert found[:step].isfinite().all()
    packed = norm(pack_padded_sequence(a, torch.tensor([T + 30] * B)))
    torch.testing.assert_close(pad_packed_sequence(packed)[0], found, equal_nan=True)
    state, ys = None, []
    for a_t in a:
        y_t, state = norm.step(a_t, state)
        ys.append(y_t)
    torch.testing.assert_close(torch.stack(ys)[after:].double(), exact[after:], rtol=0, atol=1e-5)


def test_nothing_of_the_size_of_window_times_units_is_kept() -> None:
    norm = AssortedTimeNorm(512, 100)
    _, state = norm.step(torch.randn(3, 512))
    assert state.window is not None
    kept = sum(tensor.numel() for tensor in state.window)
    assert kept == 3 * (1 + 3 * 99)  # reference; means, variances and weights


# Table 3.5 of the dissertation: BN, WN, LN, ATN over the batch, ATN over the layer
TABLE = {
    "weight matrix re-scaling": "yes yes yes yes yes",
    "weight matrix re-centering": "no no yes no no",
    "weight vector re-scaling": "yes yes no yes no",
    "dataset re-scaling": "yes no yes yes yes",
    "dataset re-centering": "yes no no yes no",
    "single training case re-scaling": "no no yes no yes",
    "input at a single time re-scaling": "no no yes no no",
}
METHODS = ("BN", "WN", "LN", "ATN-BN", "ATN-LN")


def output(method: str, W: Tensor, x: Tensor) -> Tensor:
    """The normalised product of inputs (T, B, I), at ε = 0."""
    if method == "WN":  # the direction of each row, here with length 1
        return x @ (W / W.norm(dim=1, keepdim=True)).T
    window = 3 if method.startswith("ATN") else 1
    over = "batch" if method.endswith("BN") else "layer"
    return AssortedTimeNorm(len(W), window, over=over, eps=0.0)(x @ W.T)


def transformed(name: str, W: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    W, x = W.clone(), x.clone()
    match name:
        case "weight matrix re-scaling":
            W = 2.5 * W
        case "weight matrix re-centering":
            W = W + torch.randn(W.shape[1])
        case "weight vector re-scaling":
            W[1] *= 2.5
        case "dataset re-scaling":
            x = 2.5 * x
        case "dataset re-centering":
            x = x + torch.randn(x.shape[-1])
        case "single training case re-scaling":
            x[:, 1] *= 2.5
        case "input at a single time re-scaling":
            x[4, 1] *= 2.5
    return W, x


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("method", METHODS)
def test_invariance_table(name: str, method: str) -> None:
    expected = TABLE[name].split()[METHODS.index(method)] == "yes"
    W, x = torch.randn(F, 3), torch.randn(T, B, 3)
    change = output(method, *transformed(name, W, x)) - output(method, W, x)
    assert (change.abs().max() < 1e-10) == expected
    assert expected or change.abs().max() > 1e-3


@overs
def test_single_time_means_one_example_of_it(over: Over) -> None:
    """Scaled for the whole batch, one step does not show in BN or LN; it does in ATN (E23)."""
    a = torch.randn(T, B, F)
    scaled = a.clone()
    scaled[4] *= 2.5
    change = [
        AssortedTimeNorm(F, window, over=over, eps=0.0)(scaled)
        - AssortedTimeNorm(F, window, over=over, eps=0.0)(a)
        for window in (1, 3)
    ]
    assert change[0].abs().max() < 1e-10
    assert (change[1].abs().amax((1, 2)) > 1e-3).tolist() == [t in (4, 5, 6) for t in range(T)]


def test_evaluation_over_the_batch_uses_the_population() -> None:
    norm = AssortedTimeNorm(F, 2, over="batch")
    batches = [torch.randn(4, B, F) + 1 for _ in range(3)]
    for batch in batches:
        norm(batch)
    norm.eval()
    a = torch.randn(6, 1, F)
    y = norm(a)
    for t in range(6):
        s = min(t, 3)  # the last step seen stands for those beyond
        used = [batch[max(0, s - 1) : s + 1].flatten(0, 1) for batch in batches]
        mean = torch.stack([values.mean(0) for values in used]).mean(0)
        var = torch.stack([values.var(0) for values in used]).mean(0)
        torch.testing.assert_close(y[t, 0], (a[t, 0] - mean) / (var + 1e-5).sqrt())
    packed = pack_padded_sequence(a.expand(-1, 2, -1), torch.tensor([6, 2]))
    found, _ = pad_packed_sequence(norm(packed))
    torch.testing.assert_close(found[:, 0], y[:, 0])
    torch.testing.assert_close(found[:2, 1], y[:2, 0])


def test_a_single_sequence_does_not_enter_the_population() -> None:
    norm: Any = AssortedTimeNorm(F, 2, over="batch", max_steps=9)
    with pytest.warns(UserWarning, match="single sequence has no variance"):
        norm(pack_padded_sequence(torch.randn(T, 3, F), torch.tensor([T, 4, 4])))
    assert norm.population.batches.tolist() == [1] * 4 + [0] * 5
    norm.eval()
    assert (norm(torch.randn(T, 3, F)).abs() < 30).all()


def test_a_state_of_another_batch_is_said() -> None:
    norm = norm_of(3, "layer")
    _, state = norm.step(torch.randn(4, F))
    with pytest.raises(ValueError, match=r"expected a state of statistics \(3, 1\), got \(4, 1\)"):
        norm.step(torch.randn(3, F), state)


@overs
@pytest.mark.parametrize(("window", "other"), [(3, 5), (5, 3), (1, 2)])
def test_a_state_of_another_window_is_said(window: int, other: int, over: Over) -> None:
    _, state = norm_of(other, over).step(torch.randn(4, F))
    with pytest.raises(ValueError, match=f"window of {window} steps, got that of {other}"):
        norm_of(window, over).step(torch.randn(4, F), state)


@overs
def test_module_behaves(over: Over) -> None:
    norm = norm_of(3, over)
    a = torch.randn(T, B, F)
    expected = norm(a)
    for twin in (copy.deepcopy(norm), pickle.loads(pickle.dumps(norm))):
        torch.testing.assert_close(twin(a), expected)
    compiled = torch.compile(copy.deepcopy(norm), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(a), expected)
    half = norm.bfloat16()(a.bfloat16())
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.double(), expected, rtol=0.05, atol=0.05)
    assert norm(torch.randn(T, 0, F)).shape == (T, 0, F)
    assert AssortedTimeNorm(F, 3, over=over, device="meta")(a.to("meta")).shape == a.shape
    plain = AssortedTimeNorm(F, 3, over=over, eps=1.0, affine=False)
    assert list(plain.parameters()) == []
    torch.testing.assert_close(plain(a), defined(a, 3, over, 1.0))
    middle = "" if over == "layer" else "over='batch', "
    assert plain.extra_repr() == f"5, 3, {middle}eps=1.0, affine=False"


def test_bad_arguments_are_refused() -> None:
    for sizes in ((0, 3), (5, 0)):
        with pytest.raises(ValueError, match="to be at least 1, got 0"):
            AssortedTimeNorm(*sizes)
    with pytest.raises(ValueError, match="max_steps to be at least 1, got 0"):
        AssortedTimeNorm(5, 3, max_steps=0)
    for window in (2.0, True):
        with pytest.raises(TypeError, match="expected window to be an int"):
            AssortedTimeNorm(5, window)  # pyrefly: ignore[bad-argument-type]
    with pytest.raises(ValueError, match="'layer' or 'batch', got 'time'"):
        AssortedTimeNorm(5, 3, over="time")  # pyrefly: ignore[bad-argument-type]
    for eps in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=f"expected a finite eps of at least 0, got {eps}"):
            AssortedTimeNorm(5, 3, eps=eps)
    with pytest.raises(TypeError, match="expected eps as a float, got '1e-5'"):
        AssortedTimeNorm(5, 3, eps="1e-5")  # pyrefly: ignore[bad-argument-type]
    norm = AssortedTimeNorm(5, 3)
    for shape in ((T, 5), (T, B, 4)):
        with pytest.raises(ValueError, match=r"\(T, B, F\) with F = 5"):
            norm(torch.randn(shape))
    with pytest.raises(ValueError, match="one step"):
        norm.step(torch.randn(T, B, 5))
    for dtype in (torch.int64, torch.complex128):
        with pytest.raises(TypeError, match=f"expected real floating-point values, got {dtype}"):
            norm(torch.ones(T, B, 5, dtype=dtype))
    for over in ("layer", "batch"):
        for training in (True, False):
            with pytest.raises(RuntimeError, match="at least one step"):
                AssortedTimeNorm(5, 3, over=over).train(training)(torch.randn(0, B, 5))


def test_the_state_of_a_step_can_be_saved(tmp_path: Path) -> None:
    norm = AssortedTimeNorm(4, 3)
    _, state = norm.step(torch.randn(2, 4))
    torch.save(state, tmp_path / "state.pt")
    found = torch.load(tmp_path / "state.pt", weights_only=True)
    a = torch.randn(2, 4)
    assert torch.equal(norm.step(a, found)[0], norm.step(a, state)[0])

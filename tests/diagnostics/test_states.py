import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from variants import NETWORKS, Make

import cayley
from cayley.diagnostics.states import (
    count_nonfinite,
    first_nonfinite,
    hidden_statistics,
    moments,
    nonfinite_counts,
)

T, B, I, N = 6, 4, 3, 8  # noqa: E741


# what has no kernel says so once
@pytest.mark.filterwarnings("ignore:.*it has no normalisation for an Elman recurrence")
@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_states_of_every_network(make: Make) -> None:
    layer = make(I, N, bidirectional=True)
    x = torch.randn(T, B, I)
    found = hidden_statistics(layer, lambda: layer(x))
    output = layer(x)[0].detach()
    for suffix, h in zip(("l0", "l0_reverse"), output.chunk(2, -1), strict=True):
        of_h = found[f"{suffix}.h"]
        torch.testing.assert_close(of_h.norm, h.norm(dim=-1))
        torch.testing.assert_close(of_h.mean, h.mean(-1))
        torch.testing.assert_close(of_h.variance, h.var(-1, correction=0))


def test_layer_normalisation_gives_mean_0_and_variance_1() -> None:
    layer = cayley.LSTM(I, N, norm="layer", eps=1e-12)
    x = torch.randn(T, B, I)
    found = hidden_statistics(layer, lambda: layer(x))
    for site in ("input", "recurrent", "cell"):
        after = found[f"l0.{site}.after"]
        # W h is 0 at first, and stays so
        first = 1 if site == "recurrent" else 0
        torch.testing.assert_close(after.mean, torch.zeros(T, B))
        torch.testing.assert_close(after.variance[first:], torch.ones(T - first, B))
    before = x @ layer.weight_ih_l0.T
    torch.testing.assert_close(found["l0.input.before"].mean, before.detach().mean(-1))
    h, _ = layer(x)
    products = torch.cat((torch.zeros(1, B, N), h[:-1])).detach() @ layer.weight_hh_l0.T.detach()
    torch.testing.assert_close(found["l0.recurrent.before"].norm, products.norm(dim=-1))


def test_assorted_time_lets_the_scale_of_a_step_through() -> None:
    """After ATN moments differ from 0 and 1, and the first step is that of LN."""
    layer = cayley.LSTM(I, N, norm="atn", window=3)
    x = torch.randn(T, B, I) * torch.arange(1.0, T + 1)[:, None, None]
    after = hidden_statistics(layer, lambda: layer(x))["l0.input.after"]
    torch.testing.assert_close(after.mean[0], torch.zeros(B))
    assert ((after.variance[1:] - 1).abs() > 0.01).all()
    a = x @ layer.weight_ih_l0.T.detach()
    window = a[3:6, 0]
    z = (a[5, 0] - window.mean()) / (window.var(correction=0) + 1e-5).sqrt()
    torch.testing.assert_close(after.mean[5, 0], z.mean())
    torch.testing.assert_close(after.variance[5, 0], z.var(correction=0))


@pytest.mark.parametrize("lengths", [[6, 4, 3, 1], [3, 1, 6, 4]], ids=["sorted", "unsorted"])
def test_packed_sequences_have_nan_where_they_have_ended(lengths: list[int]) -> None:
    layer = cayley.LSTM(I, N, norm="layer", bidirectional=True)
    x = torch.randn(T, B, I)
    packed = pack_padded_sequence(x, torch.tensor(lengths), enforce_sorted=False)
    found = hidden_statistics(layer, lambda: layer(input=packed))
    for b, length in enumerate(lengths):
        h = layer(x[:length, b : b + 1])[0].detach()
        for suffix, part in zip(("l0", "l0_reverse"), h.chunk(2, -1), strict=True):
            norm = found[f"{suffix}.h"].norm[:, b]
            torch.testing.assert_close(norm[:length], part[:, 0].norm(dim=-1))
            assert norm[length:].isnan().all()


def test_batch_statistics_in_evaluation_are_given() -> None:
    layer = cayley.LSTM(I, N, norm="batch")
    x = torch.randn(T, 32, I)
    layer(x)
    layer.eval()
    found = hidden_statistics(layer, lambda: layer(x))
    assert found["l0.input.after"].mean.isfinite().all()


def test_a_pass_that_runs_nothing() -> None:
    with pytest.raises(ValueError, match="runs the recurrent layers"):
        hidden_statistics(cayley.ScoRNN(I, N), lambda: None)
    with pytest.raises(TypeError, match="LSTM"):
        hidden_statistics(nn.Linear(2, 2), lambda: None)


def test_moments_of_known_values() -> None:
    found = moments(torch.tensor([[1.0, 1.0], [2.0, 4.0], [0.0, 0.0]]), torch.tensor([2, 1]))
    torch.testing.assert_close(found.mean[0], torch.tensor([1.0, 3.0]))
    torch.testing.assert_close(found.variance[0], torch.tensor([0.0, 1.0]))
    assert found.norm[1].isnan().tolist() == [False, True]


def test_nonfinite_values_and_where_they_begin() -> None:
    values = torch.ones(5, 3)
    assert first_nonfinite(values) == -1
    values[3, 1] = torch.nan
    values[4] = torch.inf
    assert count_nonfinite(values) == 4
    assert first_nonfinite(values) == 3
    model = nn.Linear(2, 1)
    model(torch.tensor([[torch.inf, 1.0]])).sum().backward()
    counts = nonfinite_counts(model)
    assert counts["weight"] == 0
    assert counts["weight.grad"] == 1
    assert counts["bias.grad"] == 0


def test_overflow_of_a_growing_state_is_found() -> None:
    layer = cayley.RNN(1, 1, nonlinearity="identity", bias=False)
    with torch.no_grad():
        layer.weight_hh_l0.fill_(1e100)
        layer.weight_ih_l0.fill_(1.0)
    norms = hidden_statistics(layer, lambda: layer(torch.ones(6, 1, 1)))["l0.h"].norm
    # 1e300 is finite, 1e400 is not
    assert first_nonfinite(norms) == 4

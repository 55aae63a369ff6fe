import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence

from cayley.kernels.steps import (
    last_states,
    outer_products,
    previous_states,
    rows,
    step_order,
    step_sizes,
)

LENGTHS = [4, 3, 3, 1]
PADDED = torch.arange(4 * 4 * 2).view(4, 4, 2).double()
PACKED = pack_padded_sequence(PADDED, torch.tensor(LENGTHS))
H0 = -torch.arange(1, 9).view(4, 2).double()


def test_sizes_and_order() -> None:
    assert step_sizes(PADDED, None) == [4, 4, 4, 4]
    assert step_sizes(PACKED.data, PACKED.batch_sizes) == [4, 3, 3, 1]
    assert list(step_order(3, False)) == [0, 1, 2]
    assert list(step_order(3, True)) == [2, 1, 0]


def test_rows_leave_and_come_in() -> None:
    h = torch.ones(3, 2)
    torch.testing.assert_close(rows(h, H0, 2), h[:2])
    torch.testing.assert_close(rows(h, H0, 4), torch.cat((h, H0[3:])))


def test_last_states_are_those_of_each_sequence_alone() -> None:
    for b, length in enumerate(LENGTHS):
        forward = last_states(PACKED.data, PACKED.batch_sizes, reverse=False)
        backward = last_states(PACKED.data, PACKED.batch_sizes, reverse=True)
        torch.testing.assert_close(forward[b], PADDED[length - 1, b])
        torch.testing.assert_close(backward[b], PADDED[0, b])
    torch.testing.assert_close(last_states(PADDED, None, reverse=False), PADDED[-1])
    torch.testing.assert_close(last_states(PADDED, None, reverse=True), PADDED[0])


def test_previous_states_are_those_of_each_sequence_alone() -> None:
    for reverse in (False, True):
        before = previous_states(PACKED.data, H0, PACKED.batch_sizes, reverse)
        dense = previous_states(PADDED, H0, None, reverse)
        steps = before.split(PACKED.batch_sizes.tolist())
        for b, length in enumerate(LENGTHS):
            for t in range(length):
                last = t + 1 if reverse else t - 1
                expected = PADDED[last, b] if 0 <= last < length else H0[b]
                torch.testing.assert_close(steps[t][b], expected)
                if length == 4:
                    torch.testing.assert_close(dense[t, b], expected)


@pytest.mark.parametrize("T", [1, 4])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("recorded", [False, True])
def test_outer_products_of_networks(T: int, reverse: bool, recorded: bool) -> None:
    delta, h, h0 = torch.randn(3, T, 2, 5), torch.randn(3, T, 2, 5), torch.randn(2, 5)
    with torch.set_grad_enabled(recorded):
        found = outer_products(delta, h, h0.expand(3, 2, 5), None, reverse)
    for g in range(3):
        before = previous_states(h[g], h0, None, reverse)
        torch.testing.assert_close(found[g], torch.einsum("tbi,tbj->ij", delta[g], before))

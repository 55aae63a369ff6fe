"""The table of steps, against the rows of every sequence one by one."""

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence

from cayley.kernels.cuda.runtime.packed import step_table


@pytest.mark.parametrize("lengths", [[1], [4], [1, 1, 1], [3, 3], [5, 4, 4, 1, 1], [9, 2, 1]])
def test_steps_of_every_sequence(lengths: list[int]) -> None:
    T, B = max(lengths), len(lengths)
    sequence, t = torch.arange(B).expand(T, B), torch.arange(T)[:, None].expand(T, B)
    marks = torch.stack((sequence, t), -1)
    x, sizes, _, _ = pack_padded_sequence(marks, torch.tensor(lengths))
    table, steps = step_table(sizes, x, B)
    assert table is not None
    assert steps == T
    found, starts, many = table.split((T, T, B))
    assert found.tolist() == sizes.tolist()
    assert many.tolist() == lengths
    for b in range(B):
        for t in range(lengths[b]):
            assert x[starts[t] + b].tolist() == [b, t]


def test_dense_sequences_need_none() -> None:
    assert step_table(None, torch.zeros(7, 3, 2), 3) == (None, 7)


@pytest.mark.parametrize("sizes", [[3, 2, 2], [2, 3], [4, 1], [3, 2, 0]], ids=str)
def test_refuses_sizes_that_do_not_fit(sizes: list[int]) -> None:
    with pytest.raises(ValueError, match="expected batch_sizes"):
        step_table(torch.tensor(sizes), torch.zeros(5, 4), 3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_says_that_a_graph_cannot_hold_them() -> None:
    x, sizes = torch.zeros(5, 4, device="cuda"), torch.tensor([3, 2])
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        x += 1  # torch warns of an empty graph
        with pytest.raises(RuntimeError, match="capture dense sequences"):
            step_table(sizes, x, 3)

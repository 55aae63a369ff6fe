import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence

from cayley.norms.layouts import packed_table, padded, reversed_sequences, step_mask

LENGTHS = torch.tensor([5, 3, 3, 1])


def test_packed_to_padded_and_back() -> None:
    x = torch.randn(5, 4, 2)
    rows = torch.arange(5)[:, None] < LENGTHS
    x = x * rows[..., None]
    packed = pack_padded_sequence(x, LENGTHS)
    found = step_mask(packed.batch_sizes, x.device)
    assert torch.equal(found, rows)
    assert torch.equal(padded(packed.data, found), x)
    assert torch.equal(packed_table(x, packed.batch_sizes), packed.data)
    table = torch.randn(5, 1, 2)
    expected = pack_padded_sequence(table.expand(-1, 4, -1), LENGTHS).data
    assert torch.equal(packed_table(table, packed.batch_sizes), expected)
    assert packed_table(table, None) is table


@pytest.mark.parametrize("packs", [False, True])
def test_turned_sequences(packs: bool) -> None:
    x = torch.randn(5, 4, 2)
    lengths = LENGTHS if packs else torch.full((4,), 5)
    packed = pack_padded_sequence(x, lengths)
    flipped = torch.zeros_like(x)
    for b, length in enumerate(lengths.tolist()):
        flipped[:length, b] = x[:length, b].flip(0)
    if packs:
        expected = pack_padded_sequence(flipped, lengths).data
        assert torch.equal(reversed_sequences(packed.data, packed.batch_sizes), expected)
        assert torch.equal(reversed_sequences(expected, packed.batch_sizes), packed.data)
    else:
        assert torch.equal(reversed_sequences(x, None), flipped)

"""Records as flat lists and back, and their schemas."""

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from cayley.kernels.calls import ElmanCall, GruCall, LstmCall, Site
from cayley.kernels.records import Fields


class Wrong(NamedTuple):
    """A number before a tensor."""

    times: float
    x: Tensor


def test_flat_records() -> None:
    fields = Fields.of(ElmanCall)
    assert fields.names == ElmanCall._fields
    assert fields.tensors == (*GruCall._fields[:-1],)
    x = torch.zeros(1)
    call = ElmanCall(x, x, x, U=x, nonlinearity="relu")
    assert fields.unflatten(fields.flatten(call)) is not call
    assert all(a is b for a, b in zip(fields.unflatten(fields.flatten(call)), call, strict=True))


@pytest.mark.parametrize("sites", [(), ("input",), ("recurrent", "cell")])
def test_records_in_a_record(sites: tuple[str, ...]) -> None:
    fields = Fields.of(LstmCall)
    x, gamma, beta, past = torch.zeros(4, 1).unbind()
    normed: dict[str, Any] = dict.fromkeys(sites, Site(gamma, beta, past=past))
    call = LstmCall(x, x, x, x, **normed, window=7)
    flat = fields.flatten(call)
    named = dict(zip(fields.names, flat, strict=True))
    for name in ("input", "recurrent", "cell"):
        assert (named[f"{name}_gamma"] is gamma) == (name in sites)
        assert (named[f"{name}_past"] is past) == (name in sites)
        assert named[f"{name}_given"] is None
    again = fields.unflatten(flat)
    assert [site is None for site in again.sites()] == [site is None for site in call.sites()]
    assert all(a is b for a, b in zip(fields.flatten(again), flat, strict=True))


def test_schema_of_a_record_that_may_be_none() -> None:
    schema = Fields.of(LstmCall).schema
    assert schema.startswith("Tensor x, Tensor h0, Tensor c0, Tensor W, Tensor? b, Tensor? input_")
    assert schema.endswith("SymInt window, bool over_batch, float eps")


def test_tensors_come_first() -> None:
    with pytest.raises(AssertionError, match="tensors first"):
        Fields.of(Wrong)

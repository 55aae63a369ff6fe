"""Diagnostics at given training steps, recorded as a dictionary of tensors."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from cayley.checks import check_integer, is_integer
from cayley.diagnostics.gradients import run_gradients
from cayley.diagnostics.orthogonality import (
    eigenvalue_normalisation,
    orthogonality_errors,
    scaling_angles,
    spectra,
)
from cayley.diagnostics.runs import LayerRun, Runs, join, recurrent_layers, watched
from cayley.diagnostics.states import nonfinite_counts, run_statistics
from cayley.notices import warn_once

__all__ = ["DIAGNOSTICS", "Diagnostic", "Record", "Recorder"]

Found = Mapping[str, Tensor]


@dataclass(frozen=True)
class Diagnostic:
    """Something to record.

    Attributes:
        measure: A function of the model, and of the runs of its recurrences in this step, that
            returns tensors by name.
        check: Raises if the diagnostic is not possible for a model.
        needs_runs: Whether it needs the runs; otherwise none are recorded for it.
    """

    measure: Callable[[nn.Module, Runs], Found]
    check: Callable[[nn.Module], object] = recurrent_layers
    needs_runs: bool = False


Own = Diagnostic | Callable[[nn.Module], Any] | None


def _named(runs: Runs) -> Iterator[tuple[str, LayerRun]]:
    """Runs by name; a second one of the same recurrence is ``"l0:2"``."""
    seen: Counter[str] = Counter()
    for run in runs:
        seen[run.name] += 1
        yield run.name if seen[run.name] == 1 else f"{run.name}:{seen[run.name]}", run


def _fields(found: Mapping[str, Any]) -> dict[str, Tensor]:
    """Named tuples of tensors as separate tensors, each under its own name."""
    return {
        join(name, field): value
        for name, record in found.items()
        for field, value in record._asdict().items()
    }


def _gradient_norms(model: nn.Module, runs: Runs) -> Found:
    return {
        name: run_gradients(run).norms().nanmean(1)
        for name, run in _named(runs)
        if run.gradients is not None
    }


def _states(model: nn.Module, runs: Runs) -> Found:
    return {
        join(name, key): value.nanmean(1)
        for name, run in _named(runs)
        for key, value in _fields(run_statistics(run)).items()
    }


DIAGNOSTICS: dict[str, Diagnostic] = {
    "orthogonality": Diagnostic(
        lambda model, runs: orthogonality_errors(model), check=orthogonality_errors
    ),
    "spectrum": Diagnostic(lambda model, runs: _fields(spectra(model))),
    "angles": Diagnostic(lambda model, runs: scaling_angles(model), check=scaling_angles),
    "normalisation": Diagnostic(
        lambda model, runs: _fields(eigenvalue_normalisation(model)), check=eigenvalue_normalisation
    ),
    "gradient_norms": Diagnostic(_gradient_norms, needs_runs=True),
    "states": Diagnostic(_states, needs_runs=True),
    "nonfinite": Diagnostic(lambda model, runs: nonfinite_counts(model), check=lambda model: None),
}
"""What a :class:`Recorder` knows by name."""


class Record(NamedTuple):
    """One quantity over the steps of a training.

    Attributes:
        steps: The steps in which it was recorded, (S).
        values: Its values, (S, ...); if sizes differ from step to step, the smaller ones are padded
            with NaN.
    """

    steps: Tensor
    values: Tensor


class Recorder:
    """Records diagnostics of a model at some steps of its training, in any loop.

    ::

        recorder = Recorder(model, ["orthogonality", "gradient_norms"], every=100)
        for x, y in batches:
            with recorder.step():
                loss = criterion(model(x), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        recorder.records()["gradient_norms/rnn.l0"].values  # (S, T + 1)

    In a step that is not recorded, nothing is attached to the model and nothing is computed. In a
    recorded step, hooks observe the passes without changing them. Matrices are measured at the end
    of the step, gradients and states as they were in its passes, averaged over the batch.

    Arguments:
        model: The model, called in eager mode.
        diagnostics: Names of :data:`DIAGNOSTICS`; or a dictionary of such names with the value
            None, and of names of your own with a :class:`Diagnostic`, or with a function of the
            model that returns a tensor or tensors by name.
        every: Record the first step and every ``every``-th after it.
        at: Record these steps, counted from 0.

    Attributes:
        count: The number of steps so far.

    Example:
        >>> import cayley
        >>> layer, x = cayley.ScoRNN(2, 8), torch.randn(5, 3, 2)
        >>> recorder = Recorder(layer, ["orthogonality", "gradient_norms"], every=2)
        >>> for _ in range(3):
        ...     with recorder.step():
        ...         layer(x)[0].square().sum().backward()
        >>> {name: tuple(record.values.shape) for name, record in recorder.records().items()}
        {'orthogonality/weight_hh_l0': (2,), 'gradient_norms/l0': (2, 6)}
        >>> recorder.records()["gradient_norms/l0"].steps
        tensor([0, 2])
    """

    def __init__(
        self,
        model: nn.Module,
        diagnostics: Iterable[str] | Mapping[str, Own],
        *,
        every: int | None = None,
        at: Iterable[int] = (),
    ) -> None:
        if every is not None:
            check_integer("every", every)
        at = frozenset(at)
        if not all(is_integer(step) and step >= 0 for step in at):
            raise ValueError(f"expected at to hold steps, ints from 0, got {[*at]}")
        if every is None and not at:
            raise ValueError("expected every= or at=, or nothing would be recorded; got neither")
        given = diagnostics if isinstance(diagnostics, Mapping) else dict.fromkeys(diagnostics)
        self.model, self.every, self.at = model, every, at
        self.diagnostics = {name: _diagnostic(name, own) for name, own in given.items()}
        for diagnostic in self.diagnostics.values():
            diagnostic.check(model)
        self.count = 0
        self._steps: dict[str, list[int]] = {}
        self._values: dict[str, list[Tensor]] = {}

    @property
    def is_on(self) -> bool:
        """Whether the next step is recorded."""
        return self.count in self.at or (self.every is not None and self.count % self.every == 0)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Context of one step of the training, backward pass and optimizer included.

        A step that raises is not recorded, and does not count.
        """
        if not self.is_on:
            yield
        elif any(diagnostic.needs_runs for diagnostic in self.diagnostics.values()):
            with watched(self.model) as runs:
                yield
            if not runs:
                warn_once(
                    f"Recorder: no run of a recurrent layer was seen in step {self.count}: in "
                    "recorded steps call the model itself, without torch.compile, whose code does "
                    "not call hooks",
                    key="no run",
                    owner=self,
                )
            self._record(runs)
        else:
            yield
            self._record([])
        self.count += 1

    def _record(self, runs: Runs) -> None:
        for name, diagnostic in self.diagnostics.items():
            for key, value in diagnostic.measure(self.model, runs).items():
                whole = f"{name}/{key}" if key else name
                before = self._values.setdefault(whole, [])
                if before and before[0].dim() != value.dim():
                    raise ValueError(
                        f"expected {whole} with {before[0].dim()} dimensions, as in the steps "
                        f"before, got {value.dim()}: measure tensors of one rank"
                    )
                self._steps.setdefault(whole, []).append(self.count)
                before.append(value.detach().cpu().clone())

    def records(self) -> dict[str, Record]:
        """All records, under names such as ``"diagnostic/quantity"``."""
        return {
            key: Record(torch.tensor(steps), _stacked(self._values[key]))
            for key, steps in self._steps.items()
        }

    def first_nonfinite(self) -> int | None:
        """The first recorded step with a value that is inf or NaN; needs ``"nonfinite"``."""
        if "nonfinite" not in self.diagnostics:
            raise ValueError(
                f'expected "nonfinite" among the diagnostics, got {[*self.diagnostics]}'
            )
        bad = [
            step
            for key, values in self._values.items()
            if key.startswith("nonfinite/")
            for step, value in zip(self._steps[key], values, strict=True)
            if value > 0
        ]
        return min(bad, default=None)

    def state_dict(self) -> dict[str, Any]:
        """The number of steps and all that has been recorded."""
        return {
            "count": self.count,
            "steps": {key: [*steps] for key, steps in self._steps.items()},
            "values": {key: [*values] for key, values in self._values.items()},
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from what :meth:`state_dict` returned."""
        self.count = state_dict["count"]
        self._steps = {key: [*steps] for key, steps in state_dict["steps"].items()}
        self._values = {key: [*values] for key, values in state_dict["values"].items()}


def _diagnostic(name: str, own: Own) -> Diagnostic:
    if isinstance(own, Diagnostic):
        return own
    if own is None:
        if name not in DIAGNOSTICS:
            raise ValueError(
                f"expected diagnostics of {[*DIAGNOSTICS]}, or a function of the model under a "
                f"name of its own, got {name!r}"
            )
        return DIAGNOSTICS[name]

    def measure(model: nn.Module, runs: Runs) -> Found:
        found = own(model)
        return {"": found} if isinstance(found, Tensor) else found

    return Diagnostic(measure, check=lambda model: None)


def _stacked(values: list[Tensor]) -> Tensor:
    """Tensors of the same rank stacked, the smaller ones padded with NaN."""
    shape = [max(sizes) for sizes in zip(*(v.shape for v in values), strict=True)]
    if all([*v.shape] == shape for v in values):
        return torch.stack(values)
    dtype = values[0].dtype
    if not dtype.is_floating_point and not dtype.is_complex:
        dtype = torch.get_default_dtype()
    result = torch.full((len(values), *shape), torch.nan, dtype=dtype)
    for row, value in zip(result, values, strict=True):
        row[tuple(slice(size) for size in value.shape)] = value
    return result

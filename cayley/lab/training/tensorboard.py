"""Scalars, histograms and figures of a run for TensorBoard, with torch's own writer."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from cayley.diagnostics import DIAGNOSTICS, orthogonality_errors, scaling_angles, spectra
from cayley.lab.errors import MachineError
from cayley.lab.processes import find_processes
from cayley.lab.runs import Record, RunDescription, RunResult
from cayley.lab.training.reporters import Reporter

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch.utils.tensorboard import SummaryWriter

__all__ = ["FOLDER", "TensorBoard", "check_tensorboard"]

# inside the run folder
FOLDER = "tensorboard"


class TensorBoard(Reporter):
    """Writes the progress of a run for TensorBoard, and passes it on to another reporter.

    At every record it writes scalars; at every evaluation also histograms of the weights and, for
    networks with recurrent layers of this package, the distance of W from the orthogonal matrices,
    its spectrum and the angles of D. This does not affect training. Of several processes, only
    the first writes.

    Arguments:
        inner: The other reporter, which shows the progress.
        folder: The run folder; give it, or a folder above it, to ``tensorboard --logdir``.
    """

    def __init__(self, inner: Reporter, folder: Path) -> None:
        self.inner, self.folder = inner, folder
        self.writer: SummaryWriter | None = None

    def begin(self, description: RunDescription, step: int, model: nn.Module) -> None:
        """Open the files; their content after the step of the checkpoint is dropped."""
        self.inner.begin(description, step, model)
        self.model = model
        self.measures = [measure for name, measure in MEASURES.items() if _serves(model, name)]
        if find_processes().first:
            self.writer = _open(self.folder / FOLDER, step)

    def step(self, step: int, epoch: float) -> None:
        """Only pass it on."""
        self.inner.step(step, epoch)

    def evaluate(self, split: str, batch: int, batches: int) -> None:
        """Only pass it on."""
        self.inner.evaluate(split, batch, batches)

    def record(self, record: Record) -> None:
        """Write the numbers of a record and, after an evaluation, the diagnostics."""
        self.inner.record(record)
        if self.writer is None:
            return
        step = record["step"]
        for name, value in _scalars(record).items():
            self.writer.add_scalar(name, value, step)
        if record["kind"] == "event":
            self.writer.add_text("events", f"{record['event']}: {record['message']}", step)
        if record["kind"] == "eval":
            self._look_inside(self.writer, step)

    def end(self, result: RunResult | None) -> None:
        """Close the files."""
        if self.writer is not None:
            self.writer.close()
        self.inner.end(result)

    def found(self, description: RunDescription, result: RunResult) -> None:
        """Only pass it on."""
        self.inner.found(description, result)

    def _look_inside(self, writer: "SummaryWriter", step: int) -> None:
        for name, parameter in self.model.named_parameters():
            # no histogram can be made of non-finite values, which the loop reports anyway
            if parameter.isfinite().all():
                writer.add_histogram(name, parameter.detach(), step)
        for measure in self.measures:
            measure(self.model, writer, step)


def check_tensorboard() -> None:
    """Raise unless TensorBoard is installed."""
    if find_spec("tensorboard") is None:
        raise MachineError(
            "expected the package tensorboard for --tensorboard, got none: pip install "
            "tensorboard, or leave the option out"
        )


def _open(folder: Path, step: int) -> "SummaryWriter":
    from torch.utils.tensorboard import SummaryWriter

    # without a checkpoint a run starts over, with an evaluation at step 0
    return SummaryWriter(str(folder), purge_step=step + 1 if step else 0)


def _serves(model: nn.Module, name: str) -> bool:
    """Whether a diagnostic is possible for a network."""
    try:
        DIAGNOSTICS[name].check(model)
    except TypeError:
        return False
    return True


def _scalars(record: Record) -> dict[str, float]:
    """The numbers of a record, by name."""
    if record["kind"] == "train":
        rates = {f"lr/{name}": value for name, value in record["lr"].items()}
        return {"loss/train": record["loss"], **rates}
    if record["kind"] == "eval":
        return {
            f"{metric}/{split}": value
            for split, scores in record["scores"].items()
            for metric, value in scores.items()
        }
    return {}


def _orthogonality(model: nn.Module, writer: "SummaryWriter", step: int) -> None:
    for name, error in orthogonality_errors(model).items():
        writer.add_scalar(f"orthogonality/{name}", float(error), step)


def _spectra(model: nn.Module, writer: "SummaryWriter", step: int) -> None:
    from cayley.diagnostics.plots import plot_singular_values, plot_spectrum

    found = spectra(model)
    for name, one in found.items():
        figure, axes = _panel()
        plot_spectrum(one, axes)
        writer.add_figure(f"spectrum/{name}", figure, step)
    figure, axes = _panel()
    plot_singular_values(found, axes)
    writer.add_figure("singular_values", figure, step)


def _angles(model: nn.Module, writer: "SummaryWriter", step: int) -> None:
    from cayley.diagnostics.plots import plot_angles

    for name, angles in scaling_angles(model).items():
        figure, axes = _panel("polar")
        plot_angles(angles, axes)
        writer.add_figure(f"angles/{name}", figure, step)


MEASURES = {"orthogonality": _orthogonality, "spectrum": _spectra, "angles": _angles}


def _panel(projection: str | None = None) -> tuple["Figure", Any]:
    """A figure that is drawn into memory, without a screen."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4, 4), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot(projection=projection)

"""What a network says: a text that goes on, the sound of its predictions."""

import io
import wave
from pathlib import Path

import torch
from torch import Tensor

from cayley.lab.runs import RunFolder
from cayley.lab.tasks import task_class
from cayley.lab.tasks.speech import Speech
from cayley.lab.tasks.text import Text
from cayley.lab.training.restoring import RestoredRun, restore_run

__all__ = ["has_samples", "make_samples", "write_samples"]

TOKENS = {"characters": 400, "words": 80}
SECONDS = 4


def has_samples(task: str) -> bool:
    """Whether networks of a task, by its name, have something to say.

    Example:
        >>> has_samples("characters"), has_samples("adding")
        (True, False)
    """
    return issubclass(task_class(task), (Text, Speech))


def write_samples(
    folder: Path, *, device: str = "", data: Path | None = None, trust: bool = False
) -> list[str]:
    """Let the selected weights of a run say something, into files of its folder.

    Arguments:
        folder: Of the run; it is finished.
        device: Another one than that of the run; empty for the same.
        data: Where the data are now; None for the same place.
        trust: Whether the recipe may name a module outside cayley, whose code then runs.

    Returns:
        The names of the files.
    """
    samples = make_samples(restore_run(folder, device=device, data=data, trust=trust))
    with RunFolder(folder) as run:
        for name, content in samples.items():
            run.write(name, content)
    return [*samples]


@torch.no_grad()
def make_samples(run: RestoredRun) -> dict[str, bytes]:
    """The samples of a task that has any, as files by name.

    Of a text it is how the network goes on after the beginning of the test set; of speech, a
    recording of the test set beside what the predictions make of it.
    """
    fabric = run.settings.machine.fabric()
    model = fabric.setup_module(run.model).eval()
    task, device = run.task, fabric.device
    if isinstance(task, Text):
        tokens = go_on(model, task.encoded[1]["test"][: task.K].to(device), task)
        return {"sample.txt": task.decode(tokens).encode()}
    if isinstance(task, Speech):
        batch = next(task.batches("test", 1, device=device, dtype=run.settings.machine.dtype))
        output, _ = model(batch.input, None)
        (pair,) = task.sound(output, batch)
        names = ("sample-true.wav", "sample-predicted.wav")
        return {name: _wave(x, task.rate) for name, x in zip(names, pair, strict=True)}
    return {}


def go_on(model: torch.nn.Module, start: Tensor, task: Text) -> list[int]:
    """Tokens that a network draws, one after the other, from what it predicts.

    Segments are run again from their first token, so that a normalisation over time sees of each
    what it sees in training.

    Arguments:
        model: In evaluation.
        start: What it is to go on after, (N).
        task: Of the network.
    """
    draws = torch.Generator().manual_seed(0)
    state, segment, said = None, start, []
    for _ in range(TOKENS[task.level]):
        if len(segment) > task.K:
            if task.carry:
                _, state = model(segment[: task.K, None], state)
            segment = segment[task.K :]
        output, _ = model(segment[:, None], state)
        # the greatest of logits + Gumbel noise is a draw from the softmax, whatever their size
        logits = output[-1, 0].double().cpu()
        noise = -torch.empty_like(logits).exponential_(generator=draws).log()
        said.append(int((logits + noise).argmax()))
        segment = torch.cat((segment, segment.new_tensor(said[-1:])))
    return said


def _wave(x: Tensor, rate: int) -> bytes:
    """The first seconds as a file of 16-bit samples."""
    x = x[: SECONDS * rate].cpu()
    whole = (x * 32767 / x.abs().max().clamp_min(1.0)).round().to(torch.int16)
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(rate)
        sound.writeframes(whole.numpy().tobytes())
    return file.getvalue()

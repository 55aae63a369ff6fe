"""Samples of a network: a text that it continues, or the sound of its predictions."""

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
    """Whether networks for a task, given by its name, can produce samples.

    Example:
        >>> has_samples("characters"), has_samples("adding")
        (True, False)
    """
    return issubclass(task_class(task), (Text, Speech))


def write_samples(
    folder: Path, *, device: str = "", data: Path | None = None, trust: bool = False
) -> list[str]:
    """Write samples of a run's network, with its selected weights, to the run folder.

    Arguments:
        folder: The folder of a finished run.
        device: A different device than that of the run; empty for the same.
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
    """Samples for a task that has any, as the contents of files by name.

    For a text, the network continues the beginning of the test set; for speech, the samples are a
    recording of the test set and the same recording made from the predictions.
    """
    engine = run.settings.machine.engine()
    model = engine.setup_module(run.model).eval()
    task, device = run.task, engine.device
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
    """Tokens drawn one after the other from the predictions of a network.

    Every token is predicted from the first token of its segment on, so that a normalisation over
    time sees the same as in training.

    Arguments:
        model: The network, in evaluation mode.
        start: The tokens to continue, (N).
        task: The task of the network.
    """
    draws = torch.Generator().manual_seed(0)
    state, segment, said = None, start, []
    for _ in range(TOKENS[task.level]):
        if len(segment) > task.K:
            if task.carry:
                _, state = model(segment[: task.K, None], state)
            segment = segment[task.K :]
        output, _ = model(segment[:, None], state)
        # the argmax of logits + Gumbel noise is a draw from the softmax, for logits of any size
        logits = output[-1, 0].double().cpu()
        noise = -torch.empty_like(logits).exponential_(generator=draws).log()
        said.append(int((logits + noise).argmax()))
        segment = torch.cat((segment, segment.new_tensor(said[-1:])))
    return said


def _wave(x: Tensor, rate: int) -> bytes:
    """The first seconds as a WAV file with 16-bit samples."""
    x = x[: SECONDS * rate].cpu()
    whole = (x * 32767 / x.abs().max().clamp_min(1.0)).round().to(torch.int16)
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(rate)
        sound.writeframes(whole.numpy().tobytes())
    return file.getvalue()

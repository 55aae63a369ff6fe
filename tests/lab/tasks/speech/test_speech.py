from typing import Any

import pytest
import torch

from cayley.lab.tasks import SPLITS, Position, Split, score_split
from cayley.lab.tasks.sources import Source
from cayley.lab.tasks.speech import Speech
from cayley.lab.tasks.speech.audio import log_power, spectrum
from cayley.lab.tasks.speech.speech import Reduction, frame_error


@pytest.mark.parametrize("reduction", ["none", "padded", "valid"])
def test_three_errors_entry_by_entry(reduction: Reduction) -> None:
    T, B, F = 5, 3, 2
    output, target, lengths = torch.randn(T, B, F), torch.randn(T, B, F), torch.tensor([5, 2, 4])
    total, count = 0.0, 0
    for t in range(T):
        for b in range(B):
            for f in range(F):
                spoken = t < lengths[b]
                if spoken or reduction == "none":
                    total += float(output[t, b, f] - target[t, b, f]) ** 2
                count += bool(spoken or reduction != "valid")
    got = frame_error(output, target, lengths, reduction)
    assert [float(x) for x in got] == pytest.approx([total, count])


def test_batches_are_frames_and_the_frames_after_them() -> None:
    task = Speech(invented=True)
    batch: Any = task.batch("train", 4, Position())
    waves = task.utterances("train").waves
    for b, number in enumerate(batch.index.tolist()):
        frames = log_power(spectrum(waves[number])).double()
        n = int(batch.lengths[b])
        assert n == len(frames) - 1
        torch.testing.assert_close(batch.input[:n, b], frames[:-1])
        torch.testing.assert_close(batch.target[:n, b], frames[1:])
        # after the last frame comes silence
        assert (batch.input[n + 1 :, b] == -50).all()
        assert (batch.target[n:, b] == -50).all()
    assert len(batch.input) == batch.lengths.max()


@pytest.mark.parametrize("split", SPLITS)
def test_padding_to_the_split_or_the_batch(split: Split) -> None:
    """In evaluation too."""
    longest = Speech(invented=True).utterances(split).longest - 1
    sizes = {
        pad: [len(b.input) for b in Speech(invented=True, pad=pad, minibatch=2).batches(split, 2)]
        for pad in ("batch", "split")
    }
    assert set(sizes["split"]) == {longest}
    assert max(sizes["batch"]) == longest
    assert len(set(sizes["batch"])) > 1


@pytest.mark.parametrize("reduction", ["none", "padded", "valid"])
@pytest.mark.parametrize("B", [1, 2, 4, 5, 6])
def test_padding_counts_within_the_minibatch(reduction: Reduction, B: int) -> None:
    """U 5.4: the mean over the whole minibatch with its zeros, here of four and two recordings."""
    task = Speech(invented=True, reduction=reduction, minibatch=4)
    frames = [log_power(spectrum(x)).double() for x in task.utterances("test").waves]
    total, count = 0.0, 0
    for group in (frames[:4], frames[4:]):
        T = max(len(x) for x in group) - 1
        for x in group:
            # the naive predictor repeats the frame before, padding is silence
            y = torch.cat((x, torch.full((T + 1 - len(x), 129), -50.0)))
            squares = y.diff(dim=0).square()
            total += float((squares if reduction == "none" else squares[: len(x) - 1]).sum())
            count += 129 * (len(x) - 1 if reduction == "valid" else T)
    got = score_split(task, lambda b, s: (task.naive(b), None), "test", B)
    assert got["mse"] == pytest.approx(total / count)
    assert task.baseline("test")["mse"] == pytest.approx(total / count)


@pytest.mark.parametrize("reduction", ["none", "padded", "valid"])
def test_loss_is_the_metric_of_a_whole_split(reduction: Reduction) -> None:
    task = Speech(invented=True, reduction=reduction)
    batch = task.batch("test", 6, Position())
    output = torch.randn_like(batch.target)
    scores = score_split(task, lambda b, s: (output, None), "test", 6)
    assert scores["mse"] == scores[f"mse_{reduction}"]
    assert float(task.loss(output, batch)) == pytest.approx(scores["mse"])


def test_perfect_predictions_sound_like_the_recording() -> None:
    task = Speech(invented=True)
    batch = task.batch("test", 6, Position())
    for true, guessed in task.sound(batch.target, batch):
        # the floor of 1e-5 in the power is all that is off
        assert (true - guessed).abs().max() < 2e-3
        assert true.shape == guessed.shape


def test_a_wrong_frame_is_heard_where_it_is() -> None:
    task = Speech(invented=True)
    batch = task.batch("test", 1, Position())
    output = batch.target.clone()
    output[6] -= 6.0206  # half the modulus of frame 7
    ((true, guessed),) = task.sound(output, batch)
    # frame 7 covers samples 7 · 128 − 256 to 7 · 128
    off = (true - guessed).abs() > 2e-3
    assert off.any()
    assert not off[: 7 * 128 - 256].any()
    assert not off[7 * 128 :].any()


def test_scores_of_sound() -> None:
    task = Speech(invented=True)
    segsnr = task.audio_metrics[0]
    assert [metric.name for metric in task.audio_metrics] == ["segsnr_db", "stoi", "pesq"]
    good = score_split(task, lambda b, s: (b.target, None), "test", 4, metrics=[segsnr])
    # half the modulus, but for the first frame: half of the signal is noise, 6 dB
    bad = score_split(task, lambda b, s: (b.target - 6.0206, None), "test", 4, metrics=[segsnr])
    assert good["segsnr_db"] > 30
    assert bad["segsnr_db"] == pytest.approx(6.0206, abs=0.5)


def test_real_speech(source: Source) -> None:
    pytest.importorskip("soundfile")
    task = Speech(corpus="nltk", source=source)
    assert task.size("test") == 16
    frames = task.utterances("test").frames.tensors["frames"]
    assert frames.isfinite().all()
    assert frames.min() >= -50.0001
    segsnr = task.audio_metrics[0]
    got = score_split(task, lambda b, s: (b.target, None), "test", 16, metrics=[segsnr])
    assert got["segsnr_db"] > 10
    naive = score_split(task, lambda b, s: (task.naive(b), None), "test", 5)
    assert naive == pytest.approx(task.baseline("test"), rel=1e-6)

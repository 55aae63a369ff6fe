"""The next frame of sound: log-power spectra, recordings of several lengths, ENRNN.

    python examples/audio_frames.py [FOLDER] [--steps 200]

FOLDER holds wav files (16 bits, one channel); without it, tones that glide are made up. The error
in dB² is printed beside that of repeating the last frame.
"""

import argparse
import wave
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

import cayley

WINDOW, HOP = 256, 128


def read_wav(path: Path) -> Tensor:
    """The samples of one file, from −1 to 1."""
    with wave.open(str(path), "rb") as file:
        if file.getsampwidth() != 2 or file.getnchannels() != 1:
            raise SystemExit(f"{path}: expected 16 bits and one channel")
        content = bytearray(file.readframes(file.getnframes()))
    return torch.frombuffer(content, dtype=torch.int16).float() / 2**15


def gliding_tone(number: int) -> Tensor:
    """Half a second or more at 8 kHz, of a tone whose pitch rises or falls."""
    generator = torch.Generator().manual_seed(number)
    first, last, length = torch.rand(3, generator=generator).tolist()
    seconds = torch.arange(int(4000 + 4000 * length)) / 8000
    pitch = 200 + 1500 * (first + (last - first) * seconds)
    tone = torch.sin(2 * torch.pi * pitch.cumsum(0) / 8000)
    return 0.3 * tone + 0.01 * torch.randn(len(seconds), generator=generator)


def frames(sound: Tensor) -> Tensor:
    """10 log₁₀(10⁻⁵ + |X|²) of each frame, (T, 129)."""
    spectrum = torch.stft(
        sound, WINDOW, HOP, window=torch.hann_window(WINDOW), return_complex=True, center=False
    )
    return 10 * (1e-5 + spectrum.abs().square()).log10().T


def next_frames(examples: list[Tensor]) -> tuple[PackedSequence, PackedSequence]:
    """All frames but the last, and all but the first, of each recording."""
    return (
        pack_sequence([x[:-1] for x in examples], enforce_sorted=False),
        pack_sequence([x[1:] for x in examples], enforce_sorted=False),
    )


def main(arguments: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", help="with wav files")
    parser.add_argument("--steps", type=int, default=200, help="(%(default)s)")
    parser.add_argument("--sizes", type=int, nargs=2, default=[96, 32], help="long, short")
    options = parser.parse_args(arguments)
    torch.manual_seed(5544)

    if options.folder is None:
        sounds = [gliding_tone(number) for number in range(400)]
    else:
        sounds = [read_wav(path) for path in sorted(options.folder.rglob("*.wav"))]
        if not sounds:
            raise SystemExit(f"{options.folder}: expected wav files, got none")
    examples = [frames(sound) for sound in sounds if len(sound) >= 4 * WINDOW]
    mean = torch.cat(examples).mean(0)
    examples = [x - mean for x in examples]
    cut = 4 * len(examples) // 5
    train, test = examples[:cut], examples[cut:]

    rnn = cayley.ENRNN(WINDOW // 2 + 1, *options.sizes)
    head = nn.Linear(rnn.output_size, WINDOW // 2 + 1)
    model = nn.ModuleList([rnn, head])
    optimizer = torch.optim.Adam(cayley.parameter_groups(model, lr=1e-3, recurrent_lr=1e-4))

    def error(batch: list[Tensor]) -> Tensor:
        x, y = next_frames(batch)
        # one row for each real frame: nothing is padded, so that nothing is masked
        return nn.functional.mse_loss(x.data + head(rnn(x)[0].data), y.data)

    for step in range(options.steps):
        chosen = torch.randint(len(train), (16,)).tolist()
        loss = error([train[i] for i in chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % 50 == 0:
            print(f"step {step + 1}: training error {loss.item():.1f} dB²", flush=True)
    with torch.no_grad():
        x, y = next_frames(test)
        found = {
            "ENRNN": float(error(test)),
            "repeated": float(nn.functional.mse_loss(x.data, y.data)),
        }
    print(f"test error {found['ENRNN']:.1f} dB²; repeating the last frame {found['repeated']:.1f}")
    return found


if __name__ == "__main__":
    main()

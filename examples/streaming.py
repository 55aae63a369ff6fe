"""A service of many streams: each sends numbers one at a time and gets an answer at once.

    python examples/streaming.py [--streams 50] [--rounds 200]

Streams come and go. Those that have sent something since the last round are answered together, in
one batch; each has its own state, of constant size. What a stream is told is what the network would
say if it saw the whole sequence at once, which is checked at the end.
"""

import argparse
import random
import time
from typing import cast

import torch
from torch import Tensor, nn

import cayley


class Service:
    """Answers streams one step at a time.

    Arguments:
        rnn: A recurrent layer, frozen.
        head: What makes answers of its outputs.
    """

    def __init__(self, rnn: cayley.layers.recurrent.Recurrent, head: nn.Module) -> None:
        self.rnn, self.head = rnn, head
        self.states: dict[str, Tensor] = {}
        # at its first step a stream has the state that the layer starts with
        self.start = torch.stack([rnn.initial_state(s, 1)[0] for s, _, _ in rnn.suffixes()])

    @torch.inference_mode()
    def answer(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """The answers to the next inputs of some streams, (m) each."""
        names = [*inputs]
        x = torch.stack([inputs[name] for name in names])
        states = torch.stack([self.states.get(name, self.start) for name in names], 1)
        y, after = self.rnn.step(x, states)
        self.states |= zip(names, cast(Tensor, after).unbind(1), strict=True)
        return dict(zip(names, self.head(y), strict=True))

    def close(self, name: str) -> None:
        """Forget a stream."""
        self.states.pop(name, None)


def main(arguments: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--streams", type=int, default=50, help="at most (%(default)s)")
    parser.add_argument("--rounds", type=int, default=200, help="(%(default)s)")
    options = parser.parse_args(arguments)
    torch.manual_seed(5544)
    chance = random.Random(5544)
    rnn, head = cayley.ScoRNN(4, 128, num_layers=2).freeze(), nn.Linear(128, 3).eval()
    service = Service(rnn, head)

    seen: dict[str, list[Tensor]] = {}
    last: dict[str, Tensor] = {}
    answered, seconds, opened = 0, 0.0, 0
    for _ in range(options.rounds):
        while len(seen) < options.streams and chance.random() < 0.3:
            seen[f"stream {opened}"] = []
            opened += 1
        due = {name: torch.randn(4) for name in seen if chance.random() < 0.8}
        if not due:
            continue
        begun = time.perf_counter()
        last |= service.answer(due)
        seconds += time.perf_counter() - begun
        answered += len(due)
        for name, x in due.items():
            seen[name].append(x)
        for name in [name for name in seen if seen[name] and chance.random() < 0.002]:
            service.close(name)
            del seen[name], last[name]

    error = 0.0
    with torch.inference_mode():
        for name, inputs in seen.items():
            if inputs:
                whole = head(rnn(torch.stack(inputs))[0][-1])
                error = max(error, float((whole - last[name]).abs().max()))
    print(f"{answered} answers, {1e6 * seconds / max(answered, 1):.0f} µs each")
    print(f"largest difference from the whole sequence at once: {error:.1e}")
    return error


if __name__ == "__main__":
    main()

"""A language model of words, with a stacked NC-GRU.

    python examples/language_model.py [TEXT] [--steps 400]

TEXT is any text file; without one it learns the help pages that come with Python. The state is
carried from segment to segment, and the perplexity of the last tenth is printed beside that of
the words' frequencies alone.
"""

import argparse
import math
import re
from collections import Counter
from pathlib import Path

import torch
from torch import Tensor, nn

import cayley


def read_words(path: Path | None) -> list[str]:
    """The words and punctuation marks of a text, in lower case."""
    if path is None:
        from pydoc_data.topics import topics

        text = "\n".join(topics.values())
    else:
        text = path.read_text(encoding="utf-8", errors="replace")
    return re.findall(r"\w+|[^\w\s]", text.lower())


class LanguageModel(nn.Module):
    """Embedding, two layers of NC-GRU, and an output layer that shares the embedding's weights."""

    def __init__(self, words: int, size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, size)
        self.rnn = cayley.NCGRU(size, size, num_layers=2, dropout=0.2)
        self.output = nn.Linear(size, words)
        self.output.weight = self.embedding.weight
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)

    def forward(self, x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """Words (T, B) and the state before ↦ logits (T, B, words) and the state after."""
        h, state = self.rnn(self.embedding(x), state)
        return self.output(h), state


def columns(data: Tensor, batch: int) -> Tensor:
    """A long text as B texts side by side, (N / B, B)."""
    return data[: len(data) // batch * batch].view(batch, -1).T


@torch.no_grad()
def perplexity(model: LanguageModel, data: Tensor, segment: int) -> float:
    model.eval()
    state, total, count = None, 0.0, 0
    for start in range(0, len(data) - 1, segment):
        x, y = data[start : start + segment], data[start + 1 : start + 1 + segment]
        logits, state = model(x[: len(y)], state)
        total += nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten()).item() * y.numel()
        count += y.numel()
    model.train()
    return math.exp(total / count)


def main(arguments: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("text", type=Path, nargs="?", help="a text file")
    parser.add_argument("--steps", type=int, default=400, help="(%(default)s)")
    parser.add_argument("--size", type=int, default=128, help="units (%(default)s)")
    parser.add_argument("--vocabulary", type=int, default=2000, help="words (%(default)s)")
    parser.add_argument("--segment", type=int, default=35, help="steps of a segment (%(default)s)")
    options = parser.parse_args(arguments)
    torch.manual_seed(5544)

    words = read_words(options.text)
    known = ["<unknown>", *(w for w, _ in Counter(words).most_common(options.vocabulary - 1))]
    number = {word: i for i, word in enumerate(known)}
    data = torch.tensor([number.get(word, 0) for word in words])
    train, test = (columns(part, 16) for part in data.split(9 * len(data) // 10 + 1))
    frequency = (torch.bincount(train.flatten(), minlength=len(known)) + 1).double()
    naive = math.exp(-(frequency / frequency.sum()).log()[test.flatten()].mean().item())

    model = LanguageModel(len(known), options.size)
    optimizer = torch.optim.Adam(cayley.parameter_groups(model, lr=2e-3, recurrent_lr=5e-4))
    state, start = None, 0
    for step in range(options.steps):
        if start + options.segment >= len(train):
            state, start = None, 0
        x = train[start : start + options.segment]
        y = train[start + 1 : start + 1 + options.segment]
        logits, state = model(x, state)
        state, start = state.detach(), start + options.segment
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 100 == 0:
            print(f"step {step + 1}: training perplexity {math.exp(loss.item()):.1f}", flush=True)
    found = {"perplexity": perplexity(model, test, options.segment), "frequencies": naive}
    print(f"test perplexity {found['perplexity']:.1f}; by frequencies alone {naive:.1f}")
    return found


if __name__ == "__main__":
    main()

"""A LightningModule: ScoRNN on the adding problem, with a learning rate of its own for W.

    pip install lightning
    python examples/lightning_module.py [--steps 1500]

The mean squared error is that of an answer of 1 always, 0.167, until the network has found out
where the marked numbers are; then it falls.
"""

import argparse

import lightning  # pyrefly: ignore[missing-import]
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import cayley


def adding(examples: int, steps: int) -> tuple[Tensor, Tensor]:
    """Numbers and two markers, (N, T, 2), and the sum of the two marked numbers, (N)."""
    numbers, markers = torch.rand(examples, steps), torch.zeros(examples, steps)
    for half in (0, steps // 2):
        markers[torch.arange(examples), half + torch.randint(steps // 2, (examples,))] = 1
    return torch.stack((numbers, markers), -1), (numbers * markers).sum(1)


class Adder(lightning.LightningModule):
    """A ScoRNN, and an answer after the last step."""

    def __init__(self, hidden: int = 64) -> None:
        super().__init__()
        self.rnn = cayley.ScoRNN(2, hidden, batch_first=True)
        self.head = nn.Linear(self.rnn.output_size, 1)

    def forward(self, x: Tensor) -> Tensor:
        output, _ = self.rnn(x)
        return self.head(output[:, -1]).squeeze(-1)

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        x, y = batch
        return nn.functional.mse_loss(self.forward(x), y)

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        x, y = batch
        self.log("error", nn.functional.mse_loss(self.forward(x), y), prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(cayley.parameter_groups(self, lr=1e-2, recurrent_lr=3e-3))


def main(arguments: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=1500, help="(%(default)s)")
    parser.add_argument("--length", type=int, default=100, help="of a sequence (%(default)s)")
    options = parser.parse_args(arguments)
    lightning.seed_everything(5544, verbose=False)
    train = DataLoader(TensorDataset(*adding(20_000, options.length)), 50, shuffle=True)
    valid = DataLoader(TensorDataset(*adding(500, options.length)), 500)
    trainer = lightning.Trainer(
        max_steps=options.steps,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    model = Adder()
    trainer.fit(model, train, valid)
    (scores,) = trainer.validate(model, valid, verbose=False)
    print(f"mean squared error {scores['error']:.4f}; an answer of 1 always: 0.1667")
    return scores["error"]


if __name__ == "__main__":
    main()

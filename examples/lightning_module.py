"""A LightningModule: ScoRNN with a learning rate of its own for W, and BNP on the input layer.

    pip install lightning
    python examples/lightning_module.py [--steps 500]

Sequences are classified by which of two marked numbers is the larger.
"""

import argparse

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import cayley


def marked_numbers(examples: int, steps: int) -> tuple[Tensor, Tensor]:
    """Numbers and two markers, (N, T, 2), and whether the first marked number is the larger."""
    numbers, markers = torch.rand(examples, steps), torch.zeros(examples, steps)
    half = steps // 2
    places = torch.stack(
        (torch.randint(half, (examples,)), half + torch.randint(half, (examples,)))
    )
    rows = torch.arange(examples)
    for place in places:
        markers[rows, place] = 1
    target = numbers[rows, places[0]] > numbers[rows, places[1]]
    return torch.stack((numbers, markers), -1), target.long()


class Classifier(lightning.LightningModule):
    """A dense layer on each step, a ScoRNN, and an answer after the last step."""

    def __init__(self, hidden: int = 64) -> None:
        super().__init__()
        self.encoder = nn.Linear(2, 16)
        self.rnn = cayley.ScoRNN(16, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 2)

    def forward(self, x: Tensor) -> Tensor:
        output, _ = self.rnn(torch.relu(self.encoder(x)))
        return self.head(output[:, -1])

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        x, y = batch
        self.log("accuracy", (self(x).argmax(-1) == y).float().mean(), prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        groups = cayley.parameter_groups(self, lr=0.05, recurrent_lr=0.01)
        optimizer = torch.optim.SGD(groups, lr=0.05, momentum=0.9)
        # before every step of the optimiser, after the gradients of accumulated batches are summed
        cayley.BNP(self, include="encoder").attach(optimizer)
        return optimizer


def main(arguments: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=500, help="(%(default)s)")
    parser.add_argument("--length", type=int, default=50, help="of a sequence (%(default)s)")
    options = parser.parse_args(arguments)
    lightning.seed_everything(5544, verbose=False)
    train = TensorDataset(*marked_numbers(5000, options.length))
    valid = TensorDataset(*marked_numbers(500, options.length))
    trainer = lightning.Trainer(
        max_steps=options.steps,
        accelerator="auto",
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    model = Classifier()
    validation = DataLoader(valid, batch_size=500)
    trainer.fit(model, DataLoader(train, batch_size=50, shuffle=True), validation)
    (scores,) = trainer.validate(model, validation, verbose=False)
    print(f"validation accuracy {scores['accuracy']:.3f}")
    return scores["accuracy"]


if __name__ == "__main__":
    main()

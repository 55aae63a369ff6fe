"""A recurrent matrix of one's own: a Kronecker product of small orthogonal matrices.

    python examples/custom_parametrization.py [--steps 300]

W = W₁ ⊗ W₂ with orthogonal factors of size √n is orthogonal, and has n − √n free numbers in the
place of n(n − 1)/2. It is trained on the copying problem beside ScoRNN.
"""

import argparse
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

import cayley
from cayley.lab.tasks.synthetic import Copying
from cayley.parametrizations import Parametrization, ScaledCayley


class Kronecker(Parametrization):
    r"""Kronecker product of two scaled Cayley transforms of size :math:`\sqrt n`.

    .. math:: W = W_1 \otimes W_2

    Arguments:
        n: The size of W, a square number.
    """

    names = ("A1", "A2")

    def __init__(self, n: int) -> None:
        super().__init__(n)
        side = math.isqrt(n)
        if side * side != n:
            raise ValueError(f"expected a square number, got {n}: {side**2} is the next below")
        self.first, self.second = ScaledCayley(side), ScaledCayley(side)

    def forward(self, A1: Tensor, A2: Tensor) -> Tensor:
        return torch.kron(self.first(A1), self.second(A2))

    def sample(
        self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Sequence[Tensor]:
        factors = (self.first, self.second)
        return [A for factor in factors for A in factor.sample(device=device, dtype=dtype)]


def train(rnn: cayley.RNN, steps: int, T: int) -> tuple[list[float], int]:
    """The losses over the training, and the number of parameters of W."""
    head = nn.Linear(rnn.output_size, 9)
    model = nn.ModuleList([rnn, head])
    optimizer = torch.optim.RMSprop(cayley.parameter_groups(model, lr=1e-3, recurrent_lr=1e-4))
    losses = []
    batches = Copying(T=T, train=20 * steps).batches("train", 20)
    for batch in batches:
        logits = head(rnn(batch.input)[0])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch.target.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, sum(p.numel() for p in rnn.structured.parameters())


def main(arguments: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=300, help="(%(default)s)")
    parser.add_argument("--length", type=int, default=100, help="T (%(default)s)")
    parser.add_argument("--hidden", type=int, default=144, help="a square (%(default)s)")
    options = parser.parse_args(arguments)
    found = {}
    networks = {
        "Kronecker": cayley.RNN(10, options.hidden, recurrent=Kronecker, nonlinearity="modrelu"),
        "ScoRNN": cayley.ScoRNN(10, options.hidden),
    }
    baseline = 10 * math.log(8) / (options.length + 20)
    for name, rnn in networks.items():
        torch.manual_seed(5544)
        losses, count = train(rnn, options.steps, options.length)
        found[name] = sum(losses[-20:]) / len(losses[-20:])
        error = cayley.diagnostics.orthogonality_error(rnn.weight_hh_l0)
        print(
            f"{name}: {count} parameters of W, cross entropy {found[name]:.4f} (baseline "
            f"{baseline:.4f}), ‖WᵀW − I‖ = {error:.1e}"
        )
    return found


if __name__ == "__main__":
    main()

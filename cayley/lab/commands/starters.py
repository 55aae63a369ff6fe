"""The files of ``cayley new``: a task, a model and a recipe that run as they are."""

__all__ = ["STARTERS"]

TASK = '''\
"""A task of your own.

Try it out:  cayley train quickstart --task {module}:{name} --tiny
Train:       cayley train quickstart --task {module}:{name} --set task.T=50
"""

from torch import Tensor

from cayley.lab.tasks import DrawnTask, Draws


class {name}(DrawnTask):
    """Say here what is to be learnt; as it stands, the mean of T numbers."""

    # the numbers that the network reads at each step
    input_size = 1
    # the numbers that it answers; for classes, how many classes there are
    output_size = 1
    # when it answers: "last" for after the last step, "each" for every step
    answers = "last"

    def draw(self, draws: Draws) -> tuple[Tensor, Tensor]:
        """B examples: input (T, B, input_size), and the target.

        Numbers are learnt with the mean squared error, (B, output_size); classes, int64 of shape
        (B), with the cross entropy. With answers = "each" targets begin with T: (T, B, …).
        """
        # all that is random comes from draws, so that a run can stop and go on:
        # draws.uniform(T, 1) and draws.normal(T, 1) are (T, B, 1), draws.integers(10) is (B)
        x = draws.uniform(self.T, 1)
        return x, x.mean(0)
'''

MODEL = '''\
"""A recurrent layer of your own.

Try it out:  cayley train quickstart --set model.name={module}:{name} --tiny
"""

import torch
from torch import Tensor, nn


class {name}(nn.Module):
    """Say here what it computes; as it stands, h_t = tanh(U x_t + W h_(t-1) + b).

    Further arguments of the class are settings: --set model.gain=0.9 is gain=0.9 here.
    """

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, *, gain: float = 1.0
    ) -> None:
        super().__init__()
        if num_layers != 1:
            raise ValueError(f"expected one layer, got {{num_layers}}: set model.hidden to a list")
        # the laboratory reads this to attach the output layer
        self.output_size = hidden_size
        self.input = nn.Linear(input_size, hidden_size)
        self.recurrent = nn.Linear(hidden_size, hidden_size, bias=False)
        nn.init.orthogonal_(self.recurrent.weight, gain)

    def forward(self, x: Tensor, h: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Input (T, B, I) and the state before, or None ↦ output (T, B, H) and the state after."""
        u = self.input(x)
        h = u.new_zeros(u.shape[1:]) if h is None else h
        steps = []
        for u_t in u:
            h = torch.tanh(u_t + self.recurrent(h))
            steps.append(h)
        return torch.stack(steps), h
'''

RECIPE = """\
# A recipe of your own.
#
# Try it out:  cayley train {file} --tiny
# Train:       cayley train {file} --seeds 3
# Every key and its default:  cayley show {file}

name = "{recipe}"

# a name such as adding, copying, mnist, characters, cora, or module:Class of your own (see cayley
# new task); the other keys are its settings
[task]
name = "adding"
T = 100

# ScoRNN, ScuRNN, NCGRU, LSTM, torch.LSTM, MLP, GCN …, or module:Class (see cayley new model); keys
# other than hidden, layers, dropout … are arguments of the class
[model]
name = "ScoRNN"
hidden = 128

# recurrent_lr is the learning rate of the free tensors of structured matrices
[optim]
name = "Adam"
lr = 1e-3
recurrent_lr = 1e-4

# epochs, or steps
[training]
batch = 50
steps = 2000

# the numbers of the run are those of the evaluation that is best on valid
[evaluation]
every = 250
select = "valid"
"""

# the content and the ending of each kind
STARTERS = {"task": (TASK, ".py"), "model": (MODEL, ".py"), "recipe": (RECIPE, ".toml")}

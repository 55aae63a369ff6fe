"""Time of following the dominant eigenpair against a full decomposition, in real training.

ENRNN on the adding problem. At every step the same T goes through the operator that the layer uses
and through ``torch.linalg.eig``, in the precision of the layer; ρ is compared with that of
``torch.linalg.eigvals`` in double precision. Times are process times of one thread, so that others
on the machine count less; what torch loads at the first call of an operator is loaded before.

    python benchmarks/eigenvalue.py            # s = 64, 256, 720 over 200 steps, some minutes
    python benchmarks/eigenvalue.py --quick    # 20 steps
    python benchmarks/eigenvalue.py --device cuda
    python benchmarks/eigenvalue.py --recipe PTB --steps 500  # a recipe from its start
    python benchmarks/eigenvalue.py --audit PTB --steps 500   # no times: is ρ right at every step?

On a GPU it is the whole step that is timed, after the first 100, in turns with that of a second
network that has a constant in the place of ρ; sequences have T = 50 and B = 32. The last two run
the first steps of ``enrnn/characters-310-720`` as ``cayley train`` does, with the files of Penn
Treebank in a folder PTB.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from cayley.lab.runs import Machine
from cayley.lab.studies.training import Subject
from cayley.lab.training import RunSettings
from cayley.layers.enrnn import ENRNN
from cayley.parametrizations.eigenvalue import EigenvalueNormalization, spectral_radius
from cayley.parametrizations.eigenvalue.dominant import Event, dominant_eigenpair
from cayley.parametrizations.long_short import LongShort


@dataclass(frozen=True)
class Setting:
    """A network, an optimiser and the sequences it sees."""

    long_size: int
    short_size: int
    optimizer: str
    lr: float
    T: int
    B: int


# the reference's settings, but for shorter sequences and smaller batches: sizes and RMSProp 1e-4 of
# its adding problem, and the sizes and Adam 1e-3 of its characters
SETTINGS = [
    Setting(96, 64, "RMSprop", 1e-4, 100, 20),
    Setting(96, 256, "RMSprop", 1e-4, 100, 20),
    Setting(96, 720, "RMSprop", 1e-4, 50, 20),
    Setting(310, 720, "Adam", 1e-3, 50, 10),
]

RECIPE = "enrnn/characters-310-720"


@dataclass
class Times:
    """Milliseconds of every step, and the largest error of ρ."""

    followed: list[float] = field(default_factory=list)
    decomposed: list[float] = field(default_factory=list)
    error: float = 0.0


def adding(T: int, B: int) -> tuple[Tensor, Tensor]:
    """Numbers in [0, 1), two of them marked, one in each half; the target is their sum."""
    first, second = torch.randint(0, T // 2, (B,)), torch.randint(T // 2, T, (B,))
    x = torch.stack((torch.rand(T, B), torch.zeros(T, B)), -1)
    rows = torch.arange(B)
    x[first, rows, 1] = x[second, rows, 1] = 1.0
    return x, x[first, rows, 0] + x[second, rows, 0]


def measure(T: Tensor, map: EigenvalueNormalization, times: Times) -> None:
    """One T through both, in the state in which training will meet it."""
    nothing = T.new_zeros(len(T), 0)
    right = nothing if map.right is None else map.right
    left = nothing if map.left is None else map.left
    state = (map.counts, ~map.latched)
    start = time.process_time()
    rho = dominant_eigenpair(T, right, left, *state)[0]
    middle = time.process_time()
    torch.linalg.eig(T)
    end = time.process_time()
    times.followed.append(1e3 * (middle - start))
    times.decomposed.append(1e3 * (end - middle))
    exact = torch.linalg.eigvals(T.double()).abs().max()
    times.error = max(times.error, float((rho.double() - exact).abs() / exact))


def train(setting: Setting, steps: int) -> tuple[Times, dict[str, int], float]:
    """Train, measuring at every step; times, events and the last ρ(T)."""
    torch.manual_seed(5544)
    layer = ENRNN(
        2, setting.long_size, setting.short_size, negative_ones=3 * setting.long_size // 10
    )
    head = nn.Linear(layer.output_size, 1)
    parameters = [*layer.parameters(), *head.parameters()]
    optimizer = getattr(torch.optim, setting.optimizer)(parameters, lr=setting.lr)
    matrix = next(layer.matrices())
    assert isinstance(matrix.map, LongShort)
    map = matrix.map.short
    assert map is not None
    free, times = matrix.get_parameter("T"), Times()
    for _ in range(steps):
        measure(free.detach(), map, times)
        x, y = adding(setting.T, setting.B)
        optimizer.zero_grad()
        loss = (head(layer(x)[0][-1])[:, 0] - y).square().mean()
        loss.backward()
        optimizer.step()
    rho = float(torch.linalg.eigvals(free.detach()).abs().max())
    return times, map.events, rho


class Constant:
    """In the place of the map: division by a number, which is no function of T."""

    def __init__(self, rho: float) -> None:
        self.rho = rho

    def __call__(
        self, T: Tensor, *, update: bool
    ) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor]]]:
        with torch.no_grad():
            return T / self.rho, lambda G: (G / self.rho,)


class Network:
    """ENRNN on the adding problem on a GPU."""

    def __init__(self, setting: Setting) -> None:
        torch.manual_seed(5544)
        self.layer = ENRNN(
            2, setting.long_size, setting.short_size, negative_ones=3 * setting.long_size // 10
        ).to("cuda")
        self.head = nn.Linear(self.layer.output_size, 1).to("cuda")
        parameters = [*self.layer.parameters(), *self.head.parameters()]
        self.optimizer = getattr(torch.optim, setting.optimizer)(parameters, lr=setting.lr)
        matrix = next(self.layer.matrices())
        assert isinstance(matrix.map, LongShort)
        assert matrix.map.short is not None
        self.map, self.T = matrix.map.short, matrix.get_parameter("T")

    @property
    def rho(self) -> float:
        """The ρ that was followed last."""
        assert self.map.status is not None
        return float(self.map.status[:2].norm())

    def step(self, x: Tensor, y: Tensor) -> float:
        """Train; the milliseconds that it took."""
        torch.cuda.synchronize()
        start = time.perf_counter()
        self.optimizer.zero_grad()
        loss = (self.head(self.layer(x)[0][-1])[:, 0] - y).square().mean()
        loss.backward()
        self.optimizer.step()
        torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - start)


def train_on_gpu(setting: Setting, steps: int) -> None:
    """Print the times of a step with the eigenvalues and without, and the largest error of ρ."""
    batches = [[x.to("cuda") for x in adding(50, 32)] for _ in range(50)]
    followed, constant = Network(setting), Network(setting)
    error = 0.0
    for number in range(100):
        T = followed.T.detach().double().cpu()
        followed.step(*batches[number % len(batches)])
        exact = float(torch.linalg.eigvals(T).abs().max())
        error = max(error, abs(followed.rho - exact) / exact)
    # an attribute of its own goes before the method
    vars(constant.map)["with_pullback"] = Constant(followed.rho)
    times: dict[str, list[float]] = {"followed": [], "constant": []}
    for number in range(steps):
        # in turns, so that a busy moment of the machine falls on both
        times["constant"].append(constant.step(*batches[number % len(batches)]))
        times["followed"].append(followed.step(*batches[number % len(batches)]))
    means = [sum(values) / len(values) for values in times.values()]
    print(
        f"| {setting.long_size} + {setting.short_size} | {setting.optimizer} {setting.lr:g} "
        f"| {spread(times['followed'])} | {spread(times['constant'])} | {means[0]:.2f} "
        f"| {means[1]:.2f} | {error:.1e} | {happened(followed.map)} |",
        flush=True,
    )


def prepare(data: Path, device: str) -> tuple[Subject, EigenvalueNormalization]:
    """The network of the recipe, and its map."""
    subject = Subject(RECIPE, [], 5544, RunSettings(Machine(device, graph=None), data=data))
    modules = subject.model.modules()
    return subject, next(one for one in modules if isinstance(one, EigenvalueNormalization))


def happened(map: EigenvalueNormalization) -> str:
    """What has happened so far, and how often."""
    return ", ".join(f"{key} {n}" for key, n in map.events.items() if n)


def time_recipe(data: Path, steps: int, device: str) -> None:
    """Print the times of the first steps; those of the first fifth include all that is compiled."""
    subject, map = prepare(data, device)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        # it reads the losses, and so waits for the last step
        subject.train(steps // 5)
        times.append(1e3 * (time.perf_counter() - start) / (steps // 5))
    shown = ", ".join(f"{value:.2f}" for value in times)
    print(f"{RECIPE}, {steps} steps on {device}: {shown} ms a step by fifths; {happened(map)}")


def audit(data: Path, steps: int, device: str) -> None:
    """Print how far ρ was off in training by a recipe, and at how many steps."""
    subject, map = prepare(data, device)
    free = subject.model.get_parameter("layers.0.structured.weight_hh_l0.T")
    errors = []
    for _ in range(steps):
        T = free.detach()
        exact = torch.linalg.eigvals(T.double().cpu()).abs().max().to(device)
        # what the next pass will divide by; before the latch closes, by nothing
        W = map(T)
        if bool(map.latched) or exact > 1:
            rho = T.double().norm() / W.double().norm() - map.eps
            errors.append(float((rho - exact).abs() / exact))
        subject.train(1)
    wrong, worst = sum(error > 1e-5 for error in errors), max(errors, default=0.0)
    print(
        f"{RECIPE}, {steps} steps on {device}: ρ off by {worst:.1e} at most, and by more than "
        f"1e-5 at {wrong} of {len(errors)} steps; {happened(map)}"
    )


def spread(values: list[float]) -> str:
    """Median and the tenth to the ninetieth percentile."""
    low, median, high = torch.tensor(values).quantile(torch.tensor([0.1, 0.5, 0.9])).tolist()
    return f"{median:7.2f} ({low:.2f}–{high:.2f})"


def main() -> None:
    """Print a row a setting."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="20 steps instead of 200")
    parser.add_argument("--steps", type=int, default=200, help="training steps a setting")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    folder = {"type": Path, "metavar": "PTB"}
    parser.add_argument("--recipe", **folder, help="time a recipe; a folder with Penn Treebank")
    parser.add_argument("--audit", **folder, help="check ρ in the recipe instead")
    arguments = parser.parse_args()
    steps = 20 if arguments.quick else arguments.steps
    if arguments.recipe:
        time_recipe(arguments.recipe, steps, arguments.device)
        return
    if arguments.audit:
        audit(arguments.audit, steps, arguments.device)
        return
    if arguments.device == "cuda":
        print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}, float32; ms of a step\n")
        print("| q + s | training | ρ followed | ρ constant | means | | ρ off by | events |")
        print("|---|---|---|---|---|---|---|---|")
        for setting in SETTINGS[2:]:
            train_on_gpu(setting, max(steps, 50))
        return
    torch.set_num_threads(1)
    spectral_radius(torch.diag(torch.tensor([1.0, 2.0])))
    print(f"torch {torch.__version__}, one thread, float32, {steps} steps; process times in ms\n")
    print(
        "| q + s | training | followed | torch.linalg.eig | median ratio | total ratio | ρ off by |"
    )
    print("|---|---|---|---|---|---|---|")
    details = []
    for setting in SETTINGS:
        times, events, rho = train(setting, steps)
        name = f"{setting.long_size} + {setting.short_size}"
        medians = [torch.tensor(t).median() for t in (times.followed, times.decomposed)]
        print(
            f"| {name} | {setting.optimizer} {setting.lr:g} | {spread(times.followed)} "
            f"| {spread(times.decomposed)} | {medians[1] / medians[0]:.1f} "
            f"| {sum(times.decomposed) / sum(times.followed):.1f} | {times.error:.1e} |",
            flush=True,
        )
        seen = ", ".join(f"{Event[key].name} {n}" for key, n in events.items() if n)
        details.append(f"{name}: {seen}; ρ(T) at the end {rho:.4f}")
    print("\n" + "\n".join(details))


if __name__ == "__main__":
    main()

"""Training steps of G networks together beside the same steps one network after the other.

    python benchmarks/ensembles.py [--device cuda] [--networks 1 4 16] [--repeat 10] [-o FILE.json]

A step is everything that ``cayley train`` does with a batch that is already on the device: forward,
output layer, loss, backward, clipping, optimizers. Together is ``cayley train --together``, one at
a time a loop over the networks, both from the same seeds and in the same run; on a GPU each also as
CUDA graphs. Some steps follow one another before the clock stops, since training does not wait for
the device after every step. No speed is printed before the losses of the first steps agree.

The lower table is the recipe of ``torch.func`` for ensembles, ``vmap(grad(loss))`` over
``functional_call``, without optimizers, beside ``backward`` of each network: on the kernels, and as
the loop of torch's operations that transforms saw before there were batching rules.
"""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from measure import Run, machine, rounds, write
from torch import Tensor
from torch.func import functional_call, grad, stack_module_state, vmap

import cayley
from cayley.lab.recipes import Recipe, find_recipe
from cayley.lab.runs import Machine
from cayley.lab.tasks import Batch, Position
from cayley.lab.training import RunSettings, build_task, initial_model
from cayley.lab.training.ensemble import Ensemble
from cayley.lab.training.learner import Learner

# a recipe, what is changed in it, B and T
CASES: dict[str, tuple[str, tuple[str, ...], int, int]] = {
    "ScoRNN 170": ("scornn/mnist-170", (), 50, 784),
    "LSTM 128": ("lstm/pmnist-128", (), 50, 784),
    "NC-GRU 118": ("scornn/mnist-170", ("model.name=NCGRU", "model.hidden=118"), 50, 200),
}
STEPS = 4  # of a timed run
AGREED = 2  # first steps whose losses are compared: on made-up data rounding grows fast
TOLERANCE = 1e-4


def made_up(recipe: Recipe, B: int, T: int, seed: int, device: str) -> Batch:
    """The batch of the network of a seed."""
    task = build_task(recipe.task, RunSettings(tiny=True))
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(T, B, task.input_size, generator=generator).to(device)
    y = torch.randint(task.output_size, (B,), generator=generator).to(device)
    return Batch(x, y, "train", Position(0, 1), Position(0, 2))


def made_up_of(recipe: Recipe, B: int, T: int, G: int, device: str) -> list[Batch]:
    """A batch of each network."""
    return [made_up(recipe, B, T, seed, device) for seed in range(1, G + 1)]


def make_learner(recipe: Recipe, seed: int, device: str, graph: bool) -> Learner:
    """A network of a seed with its optimizers."""
    task = build_task(recipe.task, RunSettings(tiny=True))
    place = Machine(device, graph=graph)
    return Learner(recipe, task, initial_model(recipe, task, seed, place), place)


def learners(recipe: Recipe, G: int, device: str, graph: bool) -> list[Learner]:
    """One for each of G seeds."""
    return [make_learner(recipe, seed, device, graph) for seed in range(1, G + 1)]


def one_by_one(own: Sequence[Learner], batches: Sequence[Batch]) -> list[Tensor]:
    return [learner.learn(batch) for learner, batch in zip(own, batches, strict=True)]


def several(step: Callable[[], object]) -> None:
    """STEPS steps, one after the other."""
    for _ in range(STEPS):
        step()


def first_losses(step: Callable[[], list[Tensor]]) -> list[list[float]]:
    """The losses of all networks in each of the first steps."""
    return [torch.stack(step()).tolist() for _ in range(AGREED)]


def check_losses(what: str, found: list[list[float]], expected: list[list[float]]) -> None:
    """Raise unless the first losses are those of one network at a time."""
    error = float((torch.tensor(found) - torch.tensor(expected)).abs().max())
    if not error <= TOLERANCE:
        raise RuntimeError(
            f"expected the losses of the first {AGREED} steps within {TOLERANCE} of one at a time, "
            f"got {error:g} for {what}: no speed is reported"
        )


def measure_steps(name: str, G: int, device: str, repeat: int) -> dict[str, Any]:
    """Milliseconds of a step and network, together and one at a time, and their ratio."""
    recipe_name, changes, B, T = CASES[name]
    recipe = find_recipe(recipe_name).recipe(overrides=changes)
    batches = made_up_of(recipe, B, T, G, device)
    runs: dict[str, Callable[[], list[Tensor]]] = {}
    for graph in (False, True) if device == "cuda" else (False,):
        alone, joined = (learners(recipe, G, device, graph) for _ in range(2))
        suffix = ", graph" if graph else ""
        runs[f"one at a time{suffix}"] = partial(one_by_one, alone, batches)
        ensemble = Ensemble(joined[0].model)
        runs[f"together{suffix}"] = partial(ensemble.learn, joined, batches)
    losses = {key: first_losses(run) for key, run in runs.items()}
    for key, found in losses.items():
        check_losses(f"{name}, {key}", found, losses["one at a time"])
    timed: dict[str, Run] = {key: partial(several, run) for key, run in runs.items()}
    clocked = rounds(timed, repeat, device)
    times = {key: 1e3 * median(own) / (G * STEPS) for key, own in clocked.items()}
    row: dict[str, Any] = {"network": name, "B": B, "T": T, "networks": G}
    row |= {f"{key}, ms": time for key, time in times.items()}
    best = min(time for key, time in times.items() if key.startswith("one"))
    row["ratio"] = best / min(time for key, time in times.items() if key.startswith("together"))
    return row


def measure_gradients(name: str, G: int, device: str, repeat: int) -> dict[str, Any]:
    """Milliseconds a network of all gradients by ``vmap(grad)``, and of each by autograd."""
    recipe_name, changes, B, T = CASES[name]
    recipe = find_recipe(recipe_name).recipe(overrides=changes)
    batches = made_up_of(recipe, B, T, G, device)
    own = learners(recipe, G, device, False)
    models = [learner.model for learner in own]
    parameters, buffers = stack_module_state(models)
    parameters = {key: value.detach() for key, value in parameters.items()}
    x = torch.stack([batch.input for batch in batches if isinstance(batch.input, Tensor)])
    y = torch.stack([batch.target for batch in batches])

    def loss(p: dict[str, Tensor], b: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        output, _ = functional_call(models[0], (p, b), (x,))
        return torch.nn.functional.cross_entropy(output, y)

    def transformed() -> dict[str, Tensor]:
        return vmap(grad(loss))(parameters, buffers, x, y)

    def loop() -> dict[str, Tensor]:
        with cayley.backend("reference"):
            return transformed()

    def alone() -> dict[str, Tensor]:
        found = []
        for learner, batch in zip(own, batches, strict=True):
            value = learner.task.loss(learner.model(batch.input)[0], batch)
            found.append(torch.autograd.grad(value, [*learner.model.parameters()]))
        return {
            key: torch.stack(values)
            for key, values in zip(parameters, zip(*found, strict=True), strict=True)
        }

    found = {"one at a time": alone(), "together": transformed(), "together, loop": loop()}
    expected = found["one at a time"]
    for key, gradients in found.items():
        for parameter, value in gradients.items():
            error = float((value - expected[parameter]).norm() / expected[parameter].norm())
            # a GRU sees the exact inverse here, and not the one that follows the training
            if not error <= 1e-3:
                raise RuntimeError(
                    f"expected gradients of {name} within 1e-3 of one at a time, got {error:g} for "
                    f"{parameter}, {key}: no speed is reported"
                )
    runs: dict[str, Run] = {"one at a time": alone, "together": transformed, "together, loop": loop}
    times = {key: 1e3 * median(own) / G for key, own in rounds(runs, repeat, device).items()}
    row: dict[str, Any] = {"network": name, "B": B, "T": T, "networks": G}
    row |= {f"{key}, ms": time for key, time in times.items()}
    row["ratio"] = times["one at a time"] / times["together"]
    return row


def show(row: dict[str, Any]) -> None:
    print(f"{row['network']}, B{row['B']} T{row['T']}, {row['networks']} networks:", end=" ")
    parts = [f"{key[:-4]} {row[key]:.3f} ms" for key in row if key.endswith(", ms")]
    print(f"{', '.join(parts)} a network; ratio {row['ratio']:.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--networks", type=int, nargs="+", default=[16])
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("-o", "--output", type=Path, help="write the numbers as JSON too")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_flush_denormal(True)
    rows = []
    for kind, run in (("whole steps", measure_steps), ("gradients", measure_gradients)):
        print(kind)
        for name in options.cases:
            for G in options.networks:
                row = run(name, G, options.device, options.repeat)
                show(row)
                rows.append({"kind": kind, **row})
    write(options.output, machine(options.device, precision="float32"), rows)


if __name__ == "__main__":
    main()

"""Runs that several processes train together: the numbers are those of one."""

import functools
import importlib.metadata
import itertools
import os
import random
import signal
import sys
from contextlib import redirect_stderr
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import call, call_in_processes, free_port
from torch import Tensor
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from cayley.cli import main
from cayley.lab.errors import Interrupted
from cayley.lab.processes import find_processes
from cayley.lab.recipes import write_recipe
from cayley.lab.recipes.schema import Recipe, read_recipe
from cayley.lab.runs import Interrupts, find_runs, load_tensors, read_metrics
from cayley.lab.runs.machine import Machine
from cayley.lab.tasks import Batch
from cayley.lab.tasks.synthetic import Copying
from cayley.lab.training import Quiet, RunSettings, agreement, resume, train
from cayley.lab.training.loop import Loop
from cayley.layers import NETWORKS

SETTINGS = RunSettings(Machine("cpu", "64-true", 1), tiny=True)
ADDING = {"name": "adding", "T": 12}
# statistics over the batch are exchanged at every step
SHORT = ADDING | {"T": 5}
TEXT = {"name": "characters", "K": 6, "jitter": True}
HIDDEN = {"ENRNN": [6, 3]}
# the numbers of a network that a step does not forget grow apart slowly: what is compared after
# these is compared to more digits than training needs
STEPS = 10


@dataclass(frozen=True)
class Weighted(Copying):
    """A loss of its own, in which answers do not count the same."""

    def loss(self, output: Tensor, batch: Batch) -> Tensor:
        weights = torch.linspace(1, 2, output.shape[-1], dtype=output.dtype)
        return torch.nn.functional.cross_entropy(
            output.flatten(0, -2), batch.target.flatten(), weights, reduction="sum"
        )


def recipe(name: str, task: dict[str, Any], model: dict[str, Any], **changes: Any) -> Recipe:
    content: dict[str, Any] = {
        "name": name,
        "task": task,
        "model": model,
        "optim": {"name": "Adam", "lr": 1e-3},
        "training": {"batch": 12, "steps": STEPS, "clip_norm": 1.0, "log": 1},
        "evaluation": {"every": STEPS},
    }
    return read_recipe(content | changes)


def network(name: str, **options: Any) -> dict[str, Any]:
    return {"name": name, "hidden": HIDDEN.get(name, 6), **options}


def networks() -> list[Recipe]:
    """Every network, with its own optimizer where it has one."""
    stiefel = {"name": "Adam", "lr": 1e-3, "recurrent": "StiefelRMSprop", "recurrent_lr": 1e-4}
    return [
        recipe(
            name.lower(),
            ADDING,
            network(name),
            **({"optim": stiefel} if name == "FullURNN" else {}),
        )
        for name in NETWORKS
    ]


def others() -> list[Recipe]:
    """Preconditioners, statistics over the batch, masks, streams, rows, losses of one's own."""
    sgd = {"name": "SGD", "lr": 1e-2, "options": {"momentum": 0.9}}
    tiny_steps = {"batch": 12, "steps": STEPS, "clip_value": 0.5, "log": 1}
    by_test = {"every": 5, "select": "test"}
    mlp = {"name": "MLP", "hidden": [8, 6], "norm": "batch"}
    return [
        recipe("bnp", ADDING, network("RNN"), optim=sgd, bnp={"momentum": 0.9, "q": True}),
        recipe("batch", SHORT, network("LSTM", norm="batch"), optim=sgd),
        recipe(
            "atn-batch",
            SHORT,
            network("LSTM", norm="atn", window=3, over="batch"),
            optim=sgd,
            training=tiny_steps,
        ),
        recipe("layer", ADDING, network("LSTM", norm="layer"), training=tiny_steps),
        recipe(
            "text",
            TEXT,
            network("LSTM", embedding=5, norm="atn", window=3),
            optim={"name": "Adam", "lr": 1e-3, "lr_by_length": True},
        ),
        recipe("mlp", {"name": "cifar10"}, mlp, training=tiny_steps, evaluation=by_test),
        recipe(
            "mlp-average",
            {"name": "cifar10"},
            mlp | {"inference": "average"},
            optim=sgd,
            evaluation=by_test,
        ),
        recipe(
            "speech",
            {"name": "speech", "reduction": "valid"},
            network("ScoRNN"),
            training=tiny_steps | {"batch": 6},
        ),
        recipe(
            "own",
            {"name": f"{Path(__file__).stem}:Weighted", "T": 5},
            network("ScoRNN"),
            training=tiny_steps,
        ),
    ]


def quicken() -> None:
    """Do without what a test need not wait for; see the fixture ``quick_runs``."""
    torch.set_num_threads(1)
    entry_points = functools.cache(importlib.metadata.entry_points)
    patch = pytest.MonkeyPatch()
    patch.setattr(importlib.metadata, "entry_points", entry_points)
    patch.setattr(os, "fsync", lambda file: None)


def together(rank: int, count: int, port: str) -> None:
    """Make this process one of several, as torchrun does."""
    quicken()
    torch.set_default_dtype(torch.float64)
    os.environ |= {
        "TORCHELASTIC_RUN_ID": "test",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        **dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank)),
        **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(count)),
        "GROUP_RANK": "0",
    }


def train_all(rank: int, count: int, port: str, folder: str, kind: str) -> None:
    together(rank, count, port)
    for one in globals()[kind]():
        train(one, Path(folder, one.name), settings=SETTINGS)
    torch.distributed.destroy_process_group()


def train_on_gpus(rank: int, count: int, port: str, folder: str) -> None:
    together(rank, count, port)
    settings = replace(SETTINGS, machine=replace(SETTINGS.machine, device="cuda"))
    for one in (*networks(), *others()):
        if one.name != "own":
            train(one, Path(folder, one.name), settings=settings)
    torch.distributed.destroy_process_group()


def in_processes(count: int, function: str, *arguments: Any) -> None:
    port = free_port()
    calls = [(rank, count, port, *map(str, arguments)) for rank in range(count)]
    call_in_processes(__file__, function, *calls)


def curve(folder: Path) -> list[dict[str, Any]]:
    """Losses and scores."""
    kept = ("kind", "step", "epoch", "loss", "scores", "train_loss")
    return [
        {key: record[key] for key in kept if key in record}
        for record in read_metrics(folder)
        if record["kind"] != "event"
    ]


def assert_same(one: Any, other: Any, tolerance: float, where: str) -> None:
    """Compare nests of numbers and tensors."""
    if isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            assert_same(one[key], other[key], tolerance, f"{where}, {key}")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), where
        for k, pair in enumerate(zip(one, other, strict=True)):
            assert_same(*pair, tolerance, f"{where}, {k}")
    elif isinstance(one, Tensor):
        message = f"{where}\n"
        torch.testing.assert_close(
            one, other, rtol=tolerance, atol=tolerance, msg=lambda m: message + m
        )
    elif isinstance(one, float):
        assert one == pytest.approx(other, rel=tolerance, abs=tolerance), where
    else:
        assert one == other, where


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "count"), [("networks", 2), ("others", 3)])
def test_losses_are_those_of_one_device(
    kind: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # where a class of one's own is
    monkeypatch.syspath_prepend(Path(__file__).parent)
    in_processes(count, "train_all", tmp_path / "shared", kind)
    for one in globals()[kind]():
        alone, shared = tmp_path / "alone" / one.name, tmp_path / "shared" / one.name
        train(one, alone, settings=SETTINGS)
        assert_same(curve(shared), curve(alone), 1e-9, one.name)
        ours, theirs = (load_tensors(folder, "checkpoint.pt") for folder in (shared, alone))
        assert_same(ours["learner"]["model"], theirs["learner"]["model"], 1e-8, one.name)
        assert_same(ours["learner"]["state"], theirs["learner"]["state"], 1e-8, one.name)
        assert {path.name for path in shared.iterdir()} == {path.name for path in alone.iterdir()}


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="NCCL needs two GPUs")
def test_losses_on_two_gpus_are_those_of_one_device(tmp_path: Path) -> None:
    in_processes(2, "train_on_gpus", tmp_path / "shared")
    for folder in (tmp_path / "shared").iterdir():
        (one,) = (each for each in (*networks(), *others()) if each.name == folder.name)
        train(one, tmp_path / "alone" / one.name, settings=SETTINGS)
        assert_same(curve(folder), curve(tmp_path / "alone" / one.name), 1e-6, one.name)


class Stop(Quiet):
    """Gets a signal, or dies, after a step."""

    def __init__(self, step: int, number: int) -> None:
        self.when, self.number = step, number

    def step(self, step: int, epoch: float) -> None:
        if step == self.when:
            signal.raise_signal(self.number)


# the last batch of an epoch has two examples, which all three learn from
CARRIED = {"batch": 12, "steps": 16, "log": 1}
STOPPED = {
    "text": recipe("text", TEXT, network("LSTM", embedding=5), training=CARRIED),
    "tail": recipe(
        "tail",
        SHORT | {"train": 26, "valid": 20, "test": 20},
        network("LSTM", norm="batch"),
        training=CARRIED,
        bnp={"q": True},
        optim={"name": "SGD", "lr": 1e-2},
    ),
}


# the steps after which they are stopped: between evaluations, and when one is due
STOPS = {"text": STEPS - 2, "tail": STEPS}


def stop_and_go_on(rank: int, count: int, port: str, folder: str) -> None:
    """Go on with what one process has begun; stop by a signal that only the last process gets."""
    together(rank, count, port)
    # the others are told after every step
    pytest.MonkeyPatch().setattr(agreement, "SECONDS", 0.0)
    for name, step in STOPS.items():
        run = Path(folder, name)
        reporter = Stop(step, signal.SIGTERM if rank == count - 1 else 0)
        with Interrupts() as interrupts, pytest.raises(Interrupted, match="stopped after") as e:
            resume(run, reporter=reporter if reporter.number else None, interrupts=interrupts)
        assert e.value.code == 128 + signal.SIGTERM
    torch.distributed.destroy_process_group()


def test_a_run_goes_on_with_another_number_of_processes(tmp_path: Path) -> None:
    for name, one in STOPPED.items():
        settings = replace(SETTINGS, tiny=name == "text")
        train(one, tmp_path / "whole" / name, settings=settings)
        run, reporter = tmp_path / name, Stop(3, signal.SIGINT)
        with Interrupts() as interrupts, pytest.raises(Interrupted):
            train(one, run, settings=settings, reporter=reporter, interrupts=interrupts)
    in_processes(3, "stop_and_go_on", tmp_path)
    for name in STOPPED:
        run = tmp_path / name
        records = list(read_metrics(run))
        events = [record["event"] for record in records if record["kind"] == "event"]
        assert events == ["interrupted", "resumed", "interrupted"]
        assert any(record.get("message") == "on cpu, 3 processes" for record in records)
        result = resume(run)
        assert result.status == "done"
        assert_same(curve(run), curve(tmp_path / "whole" / name), 1e-7, name)


def run_command(rank: int, count: int, port: str, folder: str) -> None:
    """Run a command, and look for threads that exchange tensors."""
    together(rank, count, port)
    words = ["train", "quickstart", "--tiny", "--quiet", "--device", "cpu"]
    assert main([*words, "-o", folder, "--set", "training.steps=20"]) == 0
    threads = [file.read_text() for file in Path("/proc/self/task").glob("*/comm")]
    assert threads
    assert not any("gloo" in name for name in threads), threads


@pytest.mark.skipif(sys.platform != "linux", reason="threads have names in /proc on Linux alone")
def test_a_command_leaves_no_thread_that_could_abort_the_process(tmp_path: Path) -> None:
    in_processes(2, "run_command", tmp_path)


def killed(folder: str, kills: int, seed: float) -> None:
    """Train, and die at a random step for the first few times."""
    quicken()
    processes = find_processes()
    # all processes choose alike, and all of them know of the last time
    choice = random.Random(seed + processes.restarts)
    when, who = choice.randint(2, 12), choice.randrange(processes.count)
    if processes.restarts < kills and who == processes.rank:
        step, taken = Loop.step, itertools.count(1)

        def die(self: Loop) -> None:
            if next(taken) == when:
                os.kill(os.getpid(), signal.SIGKILL)
            step(self)

        Loop.step = die
    words = ["train", f"{folder}/recipe.toml", "--tiny", "--quiet", "--device", "cpu"]
    words += ["--set", "training.batch=12", "training.steps=40"]
    said = Path(folder, f"said-{processes.restarts}-{processes.rank}")
    with open(said, "w") as file, redirect_stderr(file):
        code = main([*words, "-o", f"{folder}/runs", "--checkpoint-every", "0.05"])
    if code:
        sys.exit(code)


@pytest.mark.slow
def test_killed_processes_are_started_again_and_nothing_differs(tmp_path: Path) -> None:
    one = recipe("killed", ADDING, network("ScoRNN"), training=CARRIED | {"steps": 40})
    text = write_recipe(one)
    folders = {}
    for kills in (0, 2):
        folder = tmp_path / str(kills)
        folder.mkdir()
        (folder / "recipe.toml").write_text(text)
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=3,
            run_id="test",
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            max_restarts=kills,
            monitor_interval=0.1,
            start_method="forkserver",
            logs_specs=DefaultLogsSpecs(),
        )
        elastic_launch(config, call)(__file__, "killed", str(folder), kills, random.random())
        (folders[kills],) = find_runs(folder / "runs")
    whole, disturbed = folders.values()
    # not to rounding: to the last bit
    assert_same(curve(disturbed), curve(whole), 0.0, "killed")
    ours, theirs = (load_tensors(folder, "checkpoint.pt") for folder in (disturbed, whole))
    assert_same(ours["learner"]["model"], theirs["learner"]["model"], 0.0, "model")
    events = [record["event"] for record in read_metrics(disturbed) if record["kind"] == "event"]
    assert set(events) <= {"resumed"}
    for restart in range(2):
        said = [path.read_text() for path in (tmp_path / "2").glob(f"said-{restart}-*")]
        assert sum(bool(text) for text in said) <= 1, said
    assert not any(path.read_text() for path in (tmp_path / "2").glob("said-2-*"))

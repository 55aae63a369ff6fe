"""Runs as tasks: most tests have a stand-in for Ray, one has a cluster of three nodes."""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from processes import free_port

import cayley.cli
from cayley.lab.commands.cluster import Share, Task, task_starter
from cayley.lab.commands.node import Outcome
from cayley.lab.commands.queue import Queue, Work
from cayley.lab.commands.side_by_side import child_command, run_side_by_side
from cayley.lab.errors import Interrupted
from cayley.lab.runs import Interrupts, load_tensors, read_metrics

TINY = ["--tiny", "--set", "training.steps=2", "model.hidden=4", "--checkpoint-every", "0.1"]


class RayError(Exception):
    """Any error of Ray."""


class RayTaskError(RayError):
    """One that a task has raised."""


class TaskCancelledError(RayError):
    """A task that was cancelled."""


class Ray(ModuleType):
    """A stand-in for Ray: a task is done when it is asked for, or never."""

    def __init__(self) -> None:
        super().__init__("ray")
        self.exceptions = SimpleNamespace(
            RayError=RayError, RayTaskError=RayTaskError, TaskCancelledError=TaskCancelledError
        )
        self.endless = False
        self.resources = {"CPU": 2.0}
        self.asked: list[dict[str, Any]] = []
        self.addresses: list[str] = []
        self.cancelled: list[bool] = []

    def init(self, address: str, **options: Any) -> None:
        if address == "ray://nowhere":
            raise ConnectionError("nobody there\nand more")
        self.addresses.append(address)

    def shutdown(self) -> None:
        self.addresses.append("")

    def nodes(self) -> list[dict[str, Any]]:
        gone = {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}}
        return [gone, {"Alive": True, "Resources": self.resources}]

    def remote(self, **options: Any) -> Callable[..., Any]:
        def wrap(function: Callable[..., Any]) -> Any:
            def call(*arguments: Any) -> list[Any]:
                self.asked.append(options)
                return [] if self.endless else [function(*arguments)]

            task = SimpleNamespace(remote=call)
            return SimpleNamespace(options=lambda name: task)

        return wrap

    def wait(self, promises: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        return [one for one in promises if one], [one for one in promises if not one]

    def get(self, promise: list[Any]) -> Any:
        if isinstance(promise[0], Exception):
            raise promise[0]
        return promise[0]

    def cancel(self, promise: list[Any], force: bool = False) -> None:
        self.cancelled.append(force)
        promise.append(TaskCancelledError(""))


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Ray:
    found = Ray()
    monkeypatch.setitem(sys.modules, "ray", found)
    return found


def work(folder: Path, *arguments: str) -> Work:
    return Work("a", "a", folder / "a", child_command(arguments))


@pytest.mark.parametrize("fetch", [False, True])
def test_every_run_of_a_table_is_a_task(
    fetch: bool, ray: Ray, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["reproduce", "quickstart", "--seeds", "2", "--ray", "auto", *TINY, "-o"]
    command += [str(tmp_path), *(["--fetch"] * fetch)]
    assert cayley.cli.main(command) == 0
    assert ray.addresses == ["auto", ""]
    assert [(one["num_cpus"], one["num_gpus"]) for one in ray.asked] == [(1, 0.0)] * 2
    assert len(list(tmp_path.rglob("result.json"))) == 2
    assert "seed5545: done" in capsys.readouterr().err
    # what is done is skipped, here or there
    before = {path: path.read_bytes() for path in tmp_path.rglob("metrics.jsonl")}
    assert cayley.cli.main(command) == 0
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("metrics.jsonl")}


@pytest.mark.parametrize("fetch", [False, True])
def test_a_study_is_a_task(
    fetch: bool, ray: Ray, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["study", "modrelu-surface", "--set", "grid=5", "-o", str(tmp_path), "--ray", "auto"]
    assert cayley.cli.main([*command, *(["--fetch"] * fetch)]) == 0
    assert (tmp_path / "modrelu-surface" / "picture.png").exists()
    out, err = capsys.readouterr()
    assert "modrelu-surface: done" in err
    # printed here, computed there
    assert "is there already" in out
    assert "peak 30.3" in out


def test_without_ray_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    command = ["reproduce", "quickstart", *TINY, "--ray", "local", "-o", str(tmp_path)]
    assert cayley.cli.main(command) == 1
    assert "pip install 'cayley[cluster]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--ray", "ray://nowhere"], 1, "expected a Ray cluster at ray://nowhere, got none"),
        (["--ray", "ray://nowhere"], 1, "RAY_AUTH_MODE=token if it asks for one. nobody there"),
        (["--ray", f"127.0.0.1:{free_port()}"], 1, "Connection refused"),
        (["--ray", "local", "--gpus-per-run", "0.5"], 1, "0.5 GPU for a run, got at most 2 and 0"),
        (["--gpus-per-run", "1"], 2, "expected --gpus-per-run with a cluster, got none"),
        (["--ray", "auto", "--jobs", "2"], 2, "expected --ray or --jobs, got both"),
        (["--ray", "auto", "--device", "cuda"], 2, "expected --gpus-per-run"),
        (["--ray", "auto", "--device", "cuda:1", "--gpus-per-run", "1"], 2, "got --device cuda:1"),
    ],
)
def test_what_cannot_be_done_is_said(
    options: list[str],
    code: int,
    words: str,
    ray: Ray,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert (
        cayley.cli.main(["reproduce", "quickstart", *TINY, "-o", str(tmp_path), *options]) == code
    )
    assert words in capsys.readouterr().err
    assert not ray.asked


def test_a_share_of_a_gpu(ray: Ray, tmp_path: Path) -> None:
    ray.resources = {"CPU": 8.0, "GPU": 1.0}
    ray.endless = True
    command = ["reproduce", "quickstart", *TINY, "--ray", "local", "--gpus-per-run", "0.25"]
    command += ["--threads", "2", "--budget", "0.3", "-o", str(tmp_path)]
    assert cayley.cli.main(command) == 0
    assert [(one["num_cpus"], one["num_gpus"]) for one in ray.asked] == [(2, 0.25)]
    # the time was over before there was a node
    assert ray.cancelled == [False]


def test_a_signal_cancels_tasks(ray: Ray, tmp_path: Path) -> None:
    ray.endless = True
    queue = Queue([work(tmp_path)], tmp_path / "queue.json")
    interrupts = Interrupts()
    interrupts.signal = signal.SIGINT

    def start(one: Work) -> Task:
        raise AssertionError("nothing is started after a signal")

    with pytest.raises(Interrupted, match="stopped with 1 run to do"):
        run_side_by_side(queue, 1, interrupts, tell=lambda words: None, start=start)
    task = task_starter(Share())(queue.works[0])
    assert task.poll() is None
    task.stop()
    assert task.wait(0.0)
    assert task.poll() == 130
    task.kill()
    assert ray.cancelled == [False, True]


@pytest.mark.parametrize(
    ("found", "code", "words"),
    [
        (Outcome(3, "not finite", 2.0), 3, "not finite"),
        (RayTaskError("ray::a\nImportError: no cayley"), 1, "ImportError: no cayley"),
        (RayError("the node is gone\nlong story"), 137, "the node is gone"),
    ],
)
def test_how_a_task_may_end(found: Any, code: int, words: str, ray: Ray, tmp_path: Path) -> None:
    task = Task([found], tmp_path)
    assert task.poll() == code
    assert task.take_words() == words


def numbers(folder: Path) -> list[Any]:
    """What a run came to, but for times and events."""
    own = {"seconds", "evaluation_seconds", "seconds_per_epoch", "finished", "metrics", "seal"}
    result = json.loads((folder / "result.json").read_text())
    records = [one for one in read_metrics(folder) if one["kind"] != "event"]
    return [{key: one[key] for key in one.keys() - own} for one in (result, *records)]


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A cluster of three nodes on this machine, with a processor each."""
    if find_spec("ray") is None:
        pytest.skip("ray is not installed: pip install '.[cluster]'")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    # by default workers come after everything else on the machine
    monkeypatch.setenv("RAY_worker_niceness", "0")
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    from ray.cluster_utils import Cluster

    before = signal.getsignal(signal.SIGTERM)
    # without monitors: the test does not need them, and each is a process that has to start
    bare = {"num_cpus": 1, "no_monitor": True, "include_log_monitor": False}
    found = Cluster(initialize_head=True, head_node_args={**bare, "include_dashboard": False})
    for _ in range(2):
        found.add_node(**bare)
    yield found
    found.shutdown()
    signal.signal(signal.SIGTERM, before)


def parent(process: int) -> int:
    """The process that has started another."""
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def kill_a_node(nodes: Any, folder: Path, killed: dict[Path, bytes]) -> None:
    """Once a run on one of the two other nodes has a checkpoint, end all processes of that node.

    What the checkpoint knows of the metrics, with their times, is noted.
    """
    raylets = {one.all_processes["raylet"][0].process.pid: one for one in nodes.worker_nodes}
    while True:
        for run in folder.glob("*/*"):
            if not (run / "checkpoint.pt").exists() or (run / "result.json").exists():
                continue
            size = load_tensors(run, "checkpoint.pt")["mark"][0]
            process = int((run / "lock").read_text().split()[1])
            raylet = parent(process)
            if size and raylet in raylets:
                for one in (process, raylet):
                    os.kill(one, signal.SIGKILL)
                killed[run] = (run / "metrics.jsonl").read_bytes()[:size]
                nodes.remove_node(raylets[raylet], allow_graceful=False)
                return
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
# those of other packages are not ours to cure
@pytest.mark.filterwarnings("ignore")
def test_a_node_is_killed_and_nothing_is_lost(
    nodes: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three rows on three nodes: they end with the numbers of runs without a cluster."""
    settings = ["--set", "training.steps=200", "--checkpoint-every", "0.1"]
    command = ["reproduce", "quickstart", "--tiny", "--seeds", "3", *settings, "-o"]
    killed: dict[Path, bytes] = {}
    here, there = tmp_path / "here", tmp_path / "there"
    killer = threading.Thread(target=kill_a_node, args=(nodes, there, killed), daemon=True)
    killer.start()
    assert cayley.cli.main([*command, str(there), "--ray", nodes.address]) == 0
    killer.join(60)
    assert capsys.readouterr().err.count(": done") == 3
    assert cayley.cli.main([*command, str(here), "--quiet"]) == 0
    runs = sorted(path.parent.relative_to(here) for path in here.rglob("result.json"))
    assert len(runs) == 3
    for run in runs:
        assert numbers(there / run) == numbers(here / run)
    # it was not begun anew
    ((run, known),) = killed.items()
    assert known
    assert (run / "metrics.jsonl").read_bytes().startswith(known)

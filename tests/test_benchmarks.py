"""The programs in ``benchmarks`` that are more than a table of times, with tiny sizes."""

import json
from pathlib import Path
from types import ModuleType

import pytest
import torch

FOLDER = Path(__file__).parent.parent / "benchmarks"

pytestmark = pytest.mark.skipif(not FOLDER.exists(), reason="benchmarks are not installed")


@pytest.fixture
def throughput(same_start: None, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, as a user runs it."""
    pytest.importorskip("matplotlib")
    torch.set_default_dtype(torch.float32)
    monkeypatch.syspath_prepend(FOLDER)
    import throughput

    return throughput


@pytest.mark.slow
def test_runs_per_hour_over_runs_at_once(throughput: ModuleType, tmp_path: Path) -> None:
    options = {"batch": 2, "length": 4, "hidden": 20, "runs": 1, "seconds": 0.01, "repeat": 1}
    file = tmp_path / "found" / "throughput.json"
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    throughput.main([*words, "--output", str(file)])
    found = json.loads(file.read_text())
    ways = [(row["way"], row["runs"]) for row in found["rows"]]
    assert ways == [("one at a time", 1), ("processes", 1), ("together", 1)]
    assert all(row["runs per hour"] > 0 for row in found["rows"])
    assert found["machine"]["B"] == 2
    assert file.with_suffix(".png").stat().st_size > 0


def test_the_last_process_stops_the_clock(throughput: ModuleType) -> None:
    early = throughput.Timing([[1.0], [2.0]], [(0.0, 1.0)])
    late = throughput.Timing([[3.0], [4.0]], [(0.5, 77.0)])
    both = throughput.joined([early, late])
    assert both == throughput.Timing([[1.0, 3.0], [2.0, 4.0]], [(0.0, 77.0)])
    # 77 steps of two networks in 77 seconds: a run of 77,000 steps takes 77,000 seconds
    row = throughput.row_of("processes", 2, 77, both)
    assert row["runs per hour"] == pytest.approx(2 * 3600 / 77_000)
    assert row["milliseconds"] == pytest.approx(500)


def test_no_speed_without_equal_losses(throughput: ModuleType) -> None:
    throughput.check_losses("these", [[1.0, 2.0]], [[1.0, 2.00001]])
    for wrong in (2.1, float("nan")):
        with pytest.raises(RuntimeError, match="for these: no speed is reported"):
            throughput.check_losses("these", [[1.0, 2.0]], [[1.0, wrong]])

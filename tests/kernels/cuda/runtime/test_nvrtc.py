"""Compiled kernels are kept; what fails says so."""

import threading
from pathlib import Path

import pytest
import torch

from cayley.kernels.cuda.runtime import nvrtc
from cayley.kernels.cuda.runtime.clusters import Plan

SIZES = Plan(5, 1, 1, 1, 4, 4, 2, 1).sizes("tanh")

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@gpu
def test_compiles_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAYLEY_CACHE", str(tmp_path))
    first = nvrtc.compile_source("elman_forward", SIZES, "sm_90")
    (kept,) = tmp_path.iterdir()
    assert kept.read_bytes().endswith(first)

    def compile_again(*_: object) -> bytes:
        raise AssertionError("compiled although it is in the cache")

    monkeypatch.setattr(nvrtc, "_compile", compile_again)
    assert nvrtc.compile_source("elman_forward", SIZES, "sm_90") == first
    with pytest.raises(AssertionError, match="compiled although"):
        nvrtc.compile_source("elman_forward", SIZES.replace("H = 5", "H = 6"), "sm_90")
    with pytest.raises(AssertionError, match="compiled although"):
        nvrtc.compile_source("elman_forward", SIZES, "sm_80")


@gpu
def test_warns_where_nothing_can_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_text("no folder")
    monkeypatch.setenv("CAYLEY_CACHE", str(file / "cache"))
    with pytest.warns(UserWarning, match="set CAYLEY_CACHE to a folder of your own"):
        assert nvrtc.compile_source("elman_forward", SIZES, "sm_90")


@gpu
def test_errors_of_the_compiler_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAYLEY_CACHE", str(tmp_path))
    with pytest.raises(RuntimeError, match=r"elman_forward\.cu does not compile(.|\n)*H"):
        nvrtc.compile_source("elman_forward", SIZES.replace("int H", "int G"), "sm_90")
    assert not list(tmp_path.iterdir())


@gpu
def test_errors_of_the_driver_are_shown() -> None:
    with nvrtc.on(0):
        kernel = nvrtc.Kernel("elman_forward", SIZES, 2048, 1, 4096)
        with pytest.raises(RuntimeError, match="CUDA: invalid argument"):
            kernel(1)
        with pytest.raises(RuntimeError, match="CUDA: invalid argument"):
            kernel.repeated()(1, 0)


@gpu
def test_clusters_that_run_at_a_time() -> None:
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    plan = Plan(5, 1, 1, 1, 4, 4, 2, 1)
    with nvrtc.on(0):
        kernel = nvrtc.Kernel("elman_forward", SIZES, plan.threads, 1, plan.memory(1))
        assert kernel.resident_clusters() >= processors


@gpu
def test_a_device_is_current_on_a_thread_of_its_own() -> None:
    found = []

    def work() -> None:
        with nvrtc.on(0):
            found.append(nvrtc.Kernel("elman_forward", SIZES, 32, 1, 4096))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found

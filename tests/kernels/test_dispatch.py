"""Which back end runs: the choice, whose it is, and what becomes of what a kernel refuses."""

import threading
import warnings

import pytest
import torch

import cayley
from cayley.kernels.dispatch import BACKENDS, backend_in_force, use_kernel

CPU = torch.device("cpu")


def test_the_choice_ends_with_its_context() -> None:
    with cayley.backend("reference"):
        with cayley.backend("cpu"):
            assert backend_in_force() == "cpu"
        assert backend_in_force() == "reference"
    assert backend_in_force() == "auto"


def test_the_choice_is_that_of_its_thread() -> None:
    entered, seen = threading.Event(), threading.Event()

    def choose() -> None:
        with cayley.backend("reference"):
            entered.set()
            assert seen.wait(10)

    thread = threading.Thread(target=choose)
    thread.start()
    try:
        assert entered.wait(10)
        assert backend_in_force() == "auto"
    finally:
        seen.set()
        thread.join()


def test_compiled_code_follows_the_choice() -> None:
    @torch.compile(fullgraph=True, backend="eager")
    def call(x: torch.Tensor) -> torch.Tensor:
        return x + BACKENDS.index(backend_in_force())

    for name in ("auto", "reference", "auto"):
        with cayley.backend(name):
            assert call(torch.zeros(())) == BACKENDS.index(name)


def test_no_other_names() -> None:
    with pytest.raises(ValueError, match="expected a back end"), cayley.backend("tpu"):
        pass


def test_what_runs() -> None:
    assert use_kernel("cpu", None, CPU, backend="auto")
    assert use_kernel("cpu", None, CPU, backend="cpu")
    assert not use_kernel("cpu", None, CPU, backend="auto", preferred=False)
    assert use_kernel("cpu", None, CPU, backend="cpu", preferred=False)
    assert not use_kernel("cpu", None, CPU, backend="reference")
    assert not use_kernel(None, None, CPU, backend="auto")
    assert not use_kernel("cpu", "it is Sunday", CPU, backend="reference")
    with pytest.raises(ValueError, match="device of back end 'cuda', got cpu"):
        use_kernel("cpu", None, CPU, backend="cuda")
    with pytest.raises(NotImplementedError, match="'cpu' cannot run this: it is Sunday"):
        use_kernel("cpu", "it is Sunday", CPU, backend="cpu")


def test_a_refusal_is_said_once() -> None:
    with pytest.warns(UserWarning, match="not on the cpu kernel: it is Sunday"):
        assert not use_kernel("cpu", "it is Sunday", CPU, backend="auto")
    assert not use_kernel("cpu", "it is Sunday", CPU, backend="auto")


def test_torch_in_the_place_of_a_kernel_needs_no_word() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for backend in ("auto", "cpu"):
            assert not use_kernel("cpu", "it is Sunday", CPU, backend=backend, otherwise=None)


def test_the_choice_in_force_is_the_default() -> None:
    with cayley.backend("reference"):
        assert not use_kernel("cpu", None, CPU)
    with cayley.backend("cpu"), pytest.raises(NotImplementedError, match="Sunday"):
        use_kernel("cpu", "it is Sunday", CPU)

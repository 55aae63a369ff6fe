"""The contract of every back end: the loop's outputs and gradients, whatever the sizes."""

import functools
import warnings
from functools import lru_cache
from typing import Any

import pytest
import torch
from backends import CASES
from torch import Tensor
from torch.utils.data import DataLoader

import cayley
from cayley.activations import ACTIVATIONS, by_slope
from cayley.kernels.cpu import native

DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
# the widest numbers that a back end computes with
WIDEST = {"cpu": torch.float64, "cuda": torch.float32}
SERVED = [
    (device, name) for device in DEVICES for name, case in CASES.items() if device in case.kernels
]
ON_CPU = [name for name, case in CASES.items() if "cpu" in case.kernels]
# with more than 512 units, C copies rows that it reads again
SIZES = [(1, 1, 1), (4, 1, 63), (1, 5, 63), (7, 3, 2), (5, 13, 17), (4, 7, 170), (2, 3, 534)]
PRECISIONS = {torch.float32: 2e-5, torch.float64: 1e-12}
PACKED = torch.tensor([5, 5, 3, 2, 2, 1])
# lengths that repeat, all that differ, one sequence, one step, equal lengths, many that are short
LAYOUTS = [[5, 5, 3, 2, 2, 1], [4, 3, 2, 1], [1, 1, 1], [4], [3, 3], [13, 2, 1]]
# more rows than C takes at a time when it adds up the gradients of matrices
LONG = torch.tensor([17] * 31 + [9] * 60 + [3] * 40)


def results(
    case: str,
    tensors: dict[str, Tensor],
    backend: str,
    *,
    wanted: tuple[str, ...] | None = None,
    **options: Any,
) -> dict[str, Tensor]:
    """Outputs, and the gradients of their sum with fixed random weights; by the loop for ""."""
    wanted = tuple(tensors) if wanted is None else wanted
    leaves = {k: v.detach().requires_grad_(k in wanted) for k, v in tensors.items()}
    if backend:
        with cayley.backend(backend):
            outputs = CASES[case].operator(*leaves.values(), **options)
    else:
        outputs = CASES[case].loop(*leaves.values(), **options)
    generator = torch.Generator().manual_seed(1)
    loss = torch.zeros((), device=outputs[0].device, dtype=outputs[0].dtype)
    for output in outputs:
        weights = torch.randn(output.shape, generator=generator, dtype=torch.float64)
        loss = loss + (output * weights.to(output)).sum()
    gradients = torch.autograd.grad(loss, [leaves[name] for name in wanted])
    found = {f"output {k}": output.detach() for k, output in enumerate(outputs)}
    return found | {f"gradient of {k}": g for k, g in zip(wanted, gradients, strict=True)}


def cast(tensors: dict[str, Tensor], device: str, dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: tensor.to(device, dtype) for name, tensor in tensors.items()}


def packed(tensors: dict[str, Tensor], sizes: Tensor = PACKED) -> dict[str, Tensor]:
    """The first ``sizes[t]`` sequences of each step."""
    x = tensors["x"]
    return {**tensors, "x": torch.cat([x[t, :B] for t, B in enumerate(sizes)])}


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor], error: float) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        distance = (found[name].cpu().double() - value.cpu()).norm()
        assert distance <= error * max(value.norm(), 1), f"{name} is off by {distance:.2g}"


@lru_cache(maxsize=1)
def problems(
    case: str, *sizes: tuple[int, int, int]
) -> list[tuple[dict[str, Tensor], dict[str, Tensor]]]:
    """Random arguments and what the loop makes of them, for all precisions and instruction sets."""
    tensors = [CASES[case].inputs(*size) for size in sizes]
    return [(own, results(case, own, "")) for own in tensors]


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("case", ON_CPU)
def test_equals_the_loop(case: str, size: tuple[int, int, int], dtype: torch.dtype) -> None:
    ((tensors, expected),) = problems(case, size)
    found = results(case, cast(tensors, "cpu", dtype), "cpu")
    assert_close(found, expected, PRECISIONS[dtype])


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("layout", ["dense", "packed"])
@pytest.mark.parametrize(("device", "case"), SERVED)
def test_equals_the_loop_in_both_directions_and_layouts(
    device: str, case: str, layout: str, reverse: bool
) -> None:
    options: dict[str, Any] = {"reverse": reverse} if CASES[case].reversible else {}
    # near 0, the complex modReLU with b > 0 enlarges what float32 rounds off
    error = 1e-12 if device == "cpu" else 1e-4
    for sizes in map(torch.tensor, LAYOUTS):
        tensors = CASES[case].inputs(len(sizes), int(sizes[0]), 19)
        if layout == "packed":
            tensors, options["batch_sizes"] = packed(tensors, sizes), sizes
        found = results(case, cast(tensors, device, WIDEST[device]), device, **options)
        assert_close(found, results(case, tensors, "", **options), error)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("device", DEVICES)
def test_nothing_goes_on_beyond_the_end(device: str, reverse: bool) -> None:
    """Two more steps of the second sequence would be more than float32 holds."""
    sizes = torch.tensor([2, 2, 1, 1, 1, 1])
    tensors = CASES["elman-relu"].inputs(6, 2, 19)
    tensors["W"] *= 1e4
    tensors["x"][:, 1] *= 1e30
    tensors = packed(tensors, sizes)
    options = {"batch_sizes": sizes, "reverse": reverse}
    found = results("elman-relu", cast(tensors, device, torch.float32), device, **options)
    expected = results("elman-relu", tensors, "", **options)
    assert_close(found, expected, PRECISIONS[torch.float32])
    # beside the second sequence the first one is nothing
    first = [0, 2, 4, 5, 6, 7]
    for name in ("output 0", "gradient of x"):
        assert_close({name: found[name][first]}, {name: expected[name][first]}, 2e-5)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("layout", ["dense", "packed"])
@pytest.mark.parametrize("case", ["elman-modrelu", "gru-modrelu", "lstm-none", "lstm-layer"])
@pytest.mark.parametrize("U", ["", ", U"])
def test_equals_the_loop_over_many_steps(case: str, U: str, layout: str, reverse: bool) -> None:
    case += "" if case == "lstm-layer" else U
    tensors = CASES[case].inputs(len(LONG), int(LONG[0]), 5)
    tensors["x"] *= 0.3
    options: dict[str, Any] = {"batch_sizes": LONG} if layout == "packed" else {}
    if layout == "packed":
        tensors = packed(tensors, LONG)
    if CASES[case].reversible:
        options["reverse"] = reverse
    found = results(case, cast(tensors, "cpu", torch.float64), "cpu", **options)
    assert_close(found, results(case, tensors, "", **options), 1e-10)


@pytest.mark.parametrize("instructions", range(len(native.INSTRUCTION_SETS)))
@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("case", ON_CPU)
def test_every_instruction_set_equals_the_loop(
    case: str, dtype: torch.dtype, instructions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if instructions > native.instruction_set():
        pytest.skip(f"this processor has no {native.INSTRUCTION_SETS[instructions]}")
    monkeypatch.setattr(native, "instruction_set", lambda: instructions)
    for tensors, expected in problems(case, (1, 1, 1), (3, 4, 9), (3, 13, 67)):
        found = results(case, cast(tensors, "cpu", dtype), "cpu")
        assert_close(found, expected, PRECISIONS[dtype])


@pytest.mark.parametrize("case", ON_CPU)
def test_threads_do_not_change_a_bit(case: str) -> None:
    few = cast(CASES[case].inputs(len(PACKED), int(PACKED[0]), 21), "cpu", torch.float32)
    many = cast(CASES[case].inputs(130, 9, 7), "cpu", torch.float32)
    runs: Any = ((few, {}), (packed(few), {"batch_sizes": PACKED}), (many, {}))
    for tensors, options in runs:
        found = {}
        for threads in (1, 2, 3, 16):
            torch.set_num_threads(threads)
            try:
                found[threads] = results(case, tensors, "cpu", **options)
            finally:
                torch.set_num_threads(1)
        for threads in (2, 3, 16):
            for name, value in found[1].items():
                # what is normalised is projected by torch, whose products may be split otherwise
                if "atn" not in case or name not in ("gradient of U", "gradient of c"):
                    assert torch.equal(found[threads][name], value), f"{threads}: {name}"


UNSUMMED = {"elman-modrelu, U": "b", "gru-tanh, U": "x", "lstm-none, U": "x"}
UNSUMMED |= {"elman-modrelu_stacked, U": "b", "rotated-neighbours, U": "theta"}


@pytest.mark.parametrize("case", UNSUMMED)
def test_threads_wait_for_one_another_where_no_matrix_has_a_gradient(case: str) -> None:
    """Steps of different sizes are in other places of the memory that threads share."""
    sizes = torch.tensor([16 - t // 75 for t in range(1200)])
    tensors = packed(CASES[case].inputs(len(sizes), int(sizes[0]), 12), sizes)
    tensors = cast(tensors, "cpu", torch.float32)
    found = []
    for threads in (1, *[2, 4] * 4):
        torch.set_num_threads(threads)
        try:
            wanted = (UNSUMMED[case],)
            found.append(results(case, tensors, "cpu", wanted=wanted, batch_sizes=sizes))
        finally:
            torch.set_num_threads(1)
    for others in found[1:]:
        for name, value in found[0].items():
            assert torch.equal(others[name], value), name


@pytest.mark.parametrize(("device", "case"), SERVED)
def test_gradients_do_not_depend_on_which_are_wanted(device: str, case: str) -> None:
    tensors = cast(CASES[case].inputs(4, 3, 19), device, WIDEST[device])
    full = results(case, tensors, device)
    for name in tensors:
        alone = results(case, tensors, device, wanted=(name,))
        torch.testing.assert_close(alone[f"gradient of {name}"], full[f"gradient of {name}"])


@pytest.mark.parametrize("case", ON_CPU)
def test_takes_tensors_that_are_not_contiguous(case: str) -> None:
    tensors = cast(CASES[case].inputs(4, 3, 6), "cpu", torch.float64)
    strided = {
        name: torch.stack((tensor, tensor), -1)[..., 0].mT.contiguous().mT
        if tensor.dim() > 1
        else torch.stack((tensor, tensor), -1)[..., 0]
        for name, tensor in tensors.items()
    }
    assert not strided["x"].is_contiguous()
    assert_close(results(case, strided, "cpu"), results(case, tensors, ""), 1e-12)
    # the gradient of a sum is one number, expanded
    leaf = tensors["x"].requires_grad_()
    arguments = [leaf if name == "x" else tensor for name, tensor in tensors.items()]
    sums = [CASES[case].operator(*arguments)[0].sum(), CASES[case].loop(*arguments)[0].sum()]
    torch.testing.assert_close(*(torch.autograd.grad(loss, leaf)[0] for loss in sums))


@pytest.mark.parametrize("layout", ["dense", "packed"])
@pytest.mark.parametrize(("device", "case"), SERVED)
def test_reads_nothing_that_it_has_not_written(device: str, case: str, layout: str) -> None:
    tensors = cast(CASES[case].inputs(6, 5, 19), device, WIDEST[device])
    options: dict[str, Any] = {}
    if layout == "packed":
        tensors, options["batch_sizes"] = packed(tensors), PACKED
    expected = results(case, tensors, device, **options)
    torch.use_deterministic_algorithms(True)  # new memory is filled with NaN
    try:
        found = results(case, tensors, device, **options)
    finally:
        torch.use_deterministic_algorithms(False)
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


@pytest.mark.parametrize("case", ON_CPU)
def test_repeats_itself_bit_for_bit(case: str) -> None:
    tensors = cast(CASES[case].inputs(9, 5, 70), "cpu", torch.float32)
    first, second = (results(case, tensors, "cpu") for _ in range(2))
    for name, value in first.items():
        assert torch.equal(second[name], value), name


DRIFTING = ["elman-modrelu", "elman-tanh", "elman-identity", "elman-relu", "elman-modrelu, U"]
DRIFTING += ["gru-modrelu, U", "gru-tanh", "lstm-none", "lstm-none, U"]


@pytest.mark.parametrize("case", DRIFTING)
def test_drift_over_2000_steps(case: str) -> None:
    tensors = CASES[case].inputs(2000, 3, 95)
    for name in tensors.keys() & {"x", "c"}:
        tensors[name] *= 0.1
    if "modrelu" in case:
        # an orthogonal map, whose rounding errors nothing damps; b ≠ 0 jumps at 0 or has a kink
        tensors["b"].zero_()
    # the gradient of the threshold is a sum of sgn(h) δ, which jumps where h is near 0: see below
    wanted = tuple(name for name in tensors if (name, "modrelu" in case) != ("b", True))
    found = results(case, cast(tensors, "cpu", torch.float32), "cpu", wanted=wanted)
    assert_close(found, results(case, tensors, "", wanted=wanted), 1e-4)


def test_drift_of_the_threshold_is_that_of_signs() -> None:
    tensors = CASES["elman-modrelu"].inputs(2000, 3, 95)
    tensors["x"] *= 0.1
    tensors["b"].zero_()
    exact = results("elman-modrelu", tensors, "")
    found = results("elman-modrelu", cast(tensors, "cpu", torch.float32), "cpu")
    found = {name: value.double() for name, value in found.items()}
    turned = found["output 0"].sign() - exact["output 0"].sign()
    assert turned.count_nonzero() < 10
    expected = exact["gradient of b"] + (turned * exact["gradient of x"]).sum((0, 1))
    assert (found["gradient of b"] - expected).norm() <= 1e-4 * expected.norm()


@pytest.mark.parametrize("case", ON_CPU)
def test_a_nan_stays_in_its_sequence(case: str) -> None:
    tensors = cast(CASES[case].inputs(4, 3, 5), "cpu", torch.float64)
    if any(name in case for name in ("batch",)):
        pytest.skip("statistics over the batch join its sequences")
    clean = CASES[case].operator(*tensors.values())[0]
    tensors["x"][1, 2, 0] = torch.nan
    h = CASES[case].operator(*tensors.values())[0]
    assert torch.equal(h[:, :2], clean[:, :2])
    # what means are measured from is found among all steps, and its choice rounds
    torch.testing.assert_close(h[0], clean[0], rtol=0, atol=1e-14)
    assert h[1:, 2].isnan().any(-1).all()


@pytest.mark.parametrize("case", ["elman-modrelu", "elman-modrelu, U", "gru-tanh", "gru-tanh, U"])
def test_no_sequence_is_no_error(case: str) -> None:
    tensors = CASES[case].inputs(3, 0, 4)
    found = results(case, tensors, "cpu")
    assert found["output 0"].shape == (3, 0, 4)
    assert not any(value.any() for value in found.values())


def test_modrelu_of_zero_is_zero() -> None:
    x, W, b = torch.zeros(2, 1, 3), torch.eye(3), torch.ones(3)
    h = cayley.recurrences.elman(x, torch.zeros(1, 3), W, b, nonlinearity="modrelu")
    assert torch.equal(h, torch.zeros(2, 1, 3))


class Work(torch.utils.data.Dataset):
    """A data set that runs recurrences in the process of the loader."""

    def __init__(self, *cases: str) -> None:
        self.cases = cases
        self.tensors = [CASES[case].inputs(4, 3, 8) for case in cases]

    def __len__(self) -> int:
        return len(self.cases)

    def __getitem__(self, index: int) -> Tensor:
        return results(self.cases[index], self.tensors[index], "cpu")["gradient of x"]


LOADED = ("elman-tanh, U", "gru-tanh, U", "lstm-none, U")


@functools.cache
def loaded(start: str) -> dict[str, tuple[Tensor, Tensor]]:
    """What a process of a loader finds, and this one: a process for all, as each takes seconds."""
    work = Work(*LOADED)
    torch.set_num_threads(2)
    try:
        expected = [work[k] for k in range(len(LOADED))]  # threads have run before it forks
    finally:
        torch.set_num_threads(1)
    with warnings.catch_warnings():
        # Python warns of forks in a process that has threads, as torch's has
        warnings.simplefilter("ignore", DeprecationWarning)
        batches = [*DataLoader(work, num_workers=1, multiprocessing_context=start)]
    pairs = zip((batch[0] for batch in batches), expected, strict=True)
    return dict(zip(LOADED, pairs, strict=True))


@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.parametrize("case", LOADED)
def test_runs_in_the_processes_of_a_loader(case: str, start: str) -> None:
    if start == "fork" and torch.cuda.is_available():
        pytest.skip("where there is a GPU, torch's gradients do not run after a fork")
    torch.testing.assert_close(*loaded(start)[case])


@pytest.mark.parametrize(
    "sizes",
    [
        torch.tensor([3, 2, 2]),
        torch.tensor([2, 3]),
        torch.tensor([4, 1]),
        torch.tensor([3, 2], dtype=torch.int32),
        torch.tensor([3, 9, 2, 9])[::2],
        torch.tensor([3, 2, 0]),
    ],
    ids=str,
)
def test_refuses_sizes_that_do_not_fit(sizes: Tensor) -> None:
    x, h0, W = torch.zeros(5, 4), torch.zeros(3, 4), torch.eye(4)
    with pytest.raises(ValueError, match="expected batch_sizes"):
        cayley.recurrences.elman(x, h0, W, batch_sizes=sizes)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_refuses_sizes_on_a_gpu() -> None:
    x, h0, W = torch.zeros(5, 4), torch.zeros(3, 4), torch.eye(4)
    with pytest.raises(ValueError, match="expected batch_sizes of int64 on the CPU"):
        cayley.recurrences.elman(x, h0, W, batch_sizes=torch.tensor([3, 2], device="cuda"))


@pytest.mark.parametrize("case", ON_CPU)
def test_refuses_tensors_on_two_devices(case: str) -> None:
    tensors = CASES[case].inputs(3, 2, 4)
    for name, tensor in tensors.items():
        moved = {**tensors, name: tensor.to("meta")}
        for run in (CASES[case].operator, CASES[case].loop):
            with pytest.raises(ValueError, match=r"one device, got .*(cpu|meta) and"):
                run(*moved.values())


def test_refuses_the_input_matrix_on_another_device() -> None:
    x, h0, W = torch.zeros(5, 3, 2), torch.zeros(3, 4), torch.eye(4)
    U, c = torch.zeros(4, 2), torch.zeros(4)
    misplaced: tuple[dict[str, Any], ...] = (
        {"U": U.to("meta"), "c": c},
        {"U": U, "c": c.to("meta")},
    )
    for inputs in misplaced:
        with pytest.raises(ValueError, match="one device, got cpu and meta"):
            cayley.recurrences.elman(x, h0, W, **inputs)


def test_refuses_thresholds_that_do_not_fit() -> None:
    x, h0, W = torch.zeros(5, 3, 4), torch.zeros(3, 4), torch.eye(4)
    for name, n in (("modrelu", 2), ("modrelu_stacked", 4)):
        with pytest.raises(ValueError, match="expected one threshold per unit"):
            cayley.recurrences.elman(x, h0, W, torch.zeros(n), nonlinearity=name)


def test_says_once_what_it_cannot_run() -> None:
    x, W = torch.randn(2, 3, 4, dtype=torch.bfloat16), torch.eye(4, dtype=torch.bfloat16)
    with pytest.warns(UserWarning, match="float32 and float64, not torch.bfloat16"):
        cayley.recurrences.elman(x, x[0], W)
    cayley.recurrences.elman(x, x[0], W)
    with cayley.backend("cpu"), pytest.raises(NotImplementedError, match="bfloat16"):
        cayley.recurrences.elman(x, x[0], W)
    with cayley.backend("cuda"), pytest.raises(ValueError, match="got cpu"):
        cayley.recurrences.elman(x, x[0], W)


@pytest.mark.parametrize("case", sorted(set(CASES) - set(ON_CPU)))
def test_what_no_kernel_has_is_the_loop(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = CASES[case].inputs(4, 3, 6)
    with pytest.warns(UserWarning, match="the CPU kernel has no"):
        found = results(case, tensors, "auto")
    assert_close(found, results(case, tensors, ""), 1e-12)


def test_an_activation_that_no_kernel_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    softsign = by_slope(torch.nn.functional.softsign, lambda h: (1 - h.abs()).square())
    monkeypatch.setitem(ACTIVATIONS, "softsign", softsign)
    x, W = torch.randn(4, 3, 5, requires_grad=True), torch.eye(5)
    with pytest.warns(UserWarning, match="the CPU kernel has no softsign"):
        h = cayley.recurrences.elman(x, x[0], W, nonlinearity="softsign")
    expected = cayley.recurrences.elman_loop(x, x[0], W, nonlinearity="softsign")
    torch.testing.assert_close(h, expected)
    gradients = [torch.autograd.grad(y.square().sum(), x) for y in (h, expected)]
    torch.testing.assert_close(*gradients)
    with cayley.backend("cpu"), pytest.raises(NotImplementedError, match="has no softsign"):
        cayley.recurrences.elman(x, x[0], W, nonlinearity="softsign")


def test_runs_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_library", lambda: None)
    x, W = torch.randn(2, 3, 4), torch.eye(4)
    with pytest.warns(UserWarning, match="installed without its C code"):
        h = cayley.recurrences.elman(x, x[0], W)
    torch.testing.assert_close(h, cayley.recurrences.elman_loop(x, x[0], W))

"""NVIDIA's compute-sanitizer over every kernel: no wrong access, no race, no lost barrier."""

import shutil
import subprocess
import sys

import pytest
import torch

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
    pytest.mark.skipif(shutil.which("compute-sanitizer") is None, reason="no compute-sanitizer"),
]

KERNELS = ("elman", "gru", "lstm", "references", "project", "row_products")
KERNELS += ("pencil", "quotient", "cayley", "neumann", "resolvent", "composed")
KERNELS += ("rotated",)

# small sizes of every kind: one block, clusters, teams, tiles, weights in registers and in shared
# memory, dense and packed, windows that are full and that are not, several networks a launch
EVERY_KERNEL = """
from functools import partial
import torch, cayley
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn.utils.rnn import pack_sequence
from cayley.kernels.crowds import crowded
from cayley.kernels.calls import ComposedCall, ElmanGradients, RotatedCall
from cayley.kernels.cuda import composed, elman, gru, resolvent, rotated
from cayley.kernels.cuda.lstm import batch, kernels as lstm_kernels
from cayley.kernels.cuda.lstm.batch_layout import BatchLayout, Share
from cayley.kernels.cuda.runtime import team_kernels, tiles
from cayley.kernels.cuda.runtime.chip import Chip, chip
from cayley.kernels.cuda.runtime.teams import Team

x = torch.randn(5, 3, 2, device="cuda")
packed = pack_sequence([torch.randn(T, 2, device="cuda") for T in (5, 4, 4, 1)])
layers = [
    cayley.RNN(2, 38, nonlinearity="modrelu"),
    cayley.RNN(2, 301),
    cayley.RNN(2, 600, nonlinearity="relu"),
    cayley.NCGRU(2, 21, orthogonal=()),
    cayley.NCGRU(2, 170, orthogonal=()),
    cayley.LSTM(2, 21),
    cayley.LSTM(2, 125, norm="layer"),
    cayley.LSTM(2, 21, norm="atn", window=3),
    cayley.LSTM(2, 21, norm="atn", window=40),
    cayley.LSTM(2, 170),
    cayley.LSTM(2, 170, norm="atn", window=3),
    cayley.LSTM(2, 21, norm="batch"),
    cayley.LSTM(2, 170, norm="atn", window=3, over="batch"),
]
in_turns = [
    cayley.RNN(2, 170, nonlinearity="modrelu"),
    cayley.ScuRNN(2, 85),
    cayley.NCGRU(2, 170, orthogonal=()),
    cayley.LSTM(2, 170, norm="atn", window=3),
]
in_steps = [
    cayley.NCGRU(2, 170, orthogonal=()),
    cayley.LSTM(2, 170),
    cayley.LSTM(2, 170, norm="atn", window=3),
]
by_tiles = [
    cayley.NCGRU(2, 170, orthogonal=()),
    *(cayley.RNN(2, 170, nonlinearity="modrelu") for _ in elman.TILES),
]
# more rows than multiprocessors, and a single input, which some kernels read themselves
crowds = [cayley.RNN(1, 38), cayley.RNN(1, 301), cayley.LSTM(1, 21), cayley.LSTM(2, 40)]
over_batch = [
    cayley.LSTM(2, 21, norm=norm, **options)
    for _ in range(2)
    for norm, options in (("batch", {}), ("atn", {"window": 3, "over": "batch"}))
]
with cayley.backend("cuda"), crowded(100, 0):
    for layer in crowds:
        layer.cuda()(x[..., : layer.input_size])[0].sum().backward()
# more than twice as many
many = torch.randn(5, 3 * torch.cuda.get_device_properties(0).multi_processor_count, 2).cuda()
with cayley.backend("cuda"):
    for layer in (cayley.LSTM(1, 21), cayley.LSTM(2, 40)):
        layer.cuda()(many[..., : layer.input_size])[0].sum().backward()
# three networks a launch
ensembles = [[make(2, H).cuda() for _ in range(3)] for make, H in (
    (cayley.ScoRNN, 38), (cayley.ScuRNN, 85), (cayley.RNN, 301), (cayley.NCGRU, 21),
    (cayley.LSTM, 21), (partial(cayley.LSTM, norm="atn", window=3), 21),
)]
with cayley.backend("cuda"):
    for networks in ensembles:
        def loss(parameters, buffers):
            return functional_call(networks[0], (parameters, buffers), (x,))[0].sum()
        vmap(grad(loss))(*stack_module_state(networks))
with cayley.backend("cuda"):
    for layer in [*layers, *in_turns, *in_steps, *by_tiles, *over_batch]:
        if layer is in_turns[0]:
            # three and four rows in two turns, and weights in shared memory
            team_kernels.best_team = lambda H, B, kind, chip: Team(H, kind, 6, 2, 128, 4, 160)
            team_kernels.chip = lambda device: Chip(6, 0, 1)
            elman.best_plan = elman._best_tiles = lambda *_: None
        if layer is in_steps[0]:
            gru.runs_stepwise = lstm_kernels.runs_stepwise = lambda *_: True
        if layer is by_tiles[0]:
            gru.runs_by_tiles = lambda *_: True
        if layer in by_tiles[1:]:
            kind = elman.TILES[by_tiles.index(layer) - 1]
            elman._best_tiles = lambda *_, kind=kind: kind
            # both sets of rows, and another turn
            rows = torch.randn(3, 64 * kind.sets + 9, 2, device="cuda")
            few = cayley.RNN(2, 20, nonlinearity="modrelu").cuda()
            tiles.chip = lambda device: Chip(2, 232448, 16)
            few(rows)[0].sum().backward()
            tiles.chip = chip
        if layer is over_batch[0]:
            # several warps a unit, and a block of a team without units
            shares = Share(8, 1), Share(32, 1, 64, 4)
            batch.best_batch_layout = lambda *_: BatchLayout(21, 2, 256, 4, 1, *shares)
        if layer is over_batch[2]:
            # without teams, two rows a lane
            shares = Share(8, 2), Share(32, 1)
            batch.best_batch_layout = lambda *_: BatchLayout(21, 2, 128, 2, 2, *shares)
        layer.cuda()
        output, state = layer(x)
        output.sum().backward()
        state = tuple(v.detach() for v in state) if isinstance(state, tuple) else state.detach()
        layer(x, state)[0].sum().backward()
        layer(packed)[0].data.sum().backward()
with torch.no_grad():
    for network in (cayley.ScoRNN, cayley.ScuRNN):
        layer = network(2, 45).cuda().freeze()
        _, state = layer.step(x[0])
        layer.step(x[1], state)
# a prime that is split, powers of two, and several units a thread
for n in (62, 64, 620):
    shapes = (3, n), (2, 2, n), (n,)
    units = *(torch.randn(*shape, device="cuda") for shape in shapes), torch.randperm(n).cuda()
    h0 = torch.randn(4, 2 * n, device="cuda")
    for steps, sizes in (((5, 4), None), ((14,), torch.tensor([4, 3, 3, 3, 1]))):
        x = torch.randn(*steps, 2 * n, device="cuda")
        call = ComposedCall(x, h0, *units, batch_sizes=sizes)
        states = composed.composed(call)
        composed.composed_backward(ElmanGradients(states.h), states, call, ("x",))
# one unit a thread and several, of neighbours and of the FFT
for n, layers, pairs in ((65, 2, 64), (64, 0, 192), (1025, 1, 512)):
    angles = *(torch.randn(size, device="cuda") for size in (pairs, pairs, n, n)),
    h0 = torch.randn(4, 2 * n, device="cuda")
    for steps, sizes in (((5, 4), None), ((14,), torch.tensor([4, 3, 3, 3, 1]))):
        x = torch.randn(*steps, 2 * n, device="cuda")
        call = RotatedCall(x, h0, *angles, batch_sizes=sizes, layers=layers)
        states = rotated.rotated(call)
        rotated.rotated_backward(ElmanGradients(states.h), states, call, ("x",))
x = torch.randn(5, 3, 2, device="cuda")
layer = cayley.ENRNN(2, 4, 100).cuda()
optimizer = torch.optim.SGD(layer.parameters(), lr=1e-5)
for _ in range(12):
    layer(x)[0].square().sum().backward()
    optimizer.step()
for map in ("cayley", "neumann"):
    for n in (3, 45, 70, 130, 200):
        matrix = cayley.parametrizations.StructuredMatrix(cayley.parametrizations.MAPS[map](n))
        matrix.cuda()
        for step in (0.0, 1e-4, 1.0):  # "neumann": anew, by a series, and anew after it
            with torch.no_grad():
                matrix.A += step
            matrix(update=True).sum().backward()
assert (int(matrix.map.updates), int(matrix.map.refreshes)) == (3, 2)
# tiles of several squares, as wide as tall and less
for processors in (5, 7):
    resolvent.chip = lambda device: Chip(processors, 232448, 16)
    resolvent.resolvent(torch.zeros(190, 190, device="cuda"))
torch.cuda.synchronize()
assert next(layer.matrices()).map.short.events["FOLLOWED"] > 0
print("all ran")
"""


@pytest.mark.timeout(500)
@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck"])
def test_every_kernel_is_clean(tool: str) -> None:
    ours = [word for name in KERNELS for word in ("--kernel-regex", f"kns={name}")]
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", *ours]
    run = subprocess.run(
        [*command, sys.executable, "-c", EVERY_KERNEL], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
    assert "all ran" in run.stdout
    assert "0 errors" in run.stdout or "0 hazards" in run.stdout, run.stdout[-2000:]

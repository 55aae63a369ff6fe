"""A two-layer GCN on Cora: epochs to 85 % validation accuracy with Adam, SGD and SGD+BNP.

FOLDER holds ind.cora.* of github.com/kimiyoung/planetoid (data). 1208 nodes train, 500 validate,
1000 test. SGD with ten times the rate for W₁ is the control: most of BNP with ε = 0.1 is that.
"""

import argparse
import platform
from pathlib import Path
from typing import Any

import torch
import torch_geometric
from torch_geometric.io import read_planetoid_data

import cayley


def train(method: str, data: Any, seed: int, lr: float, epochs: int = 250) -> tuple[float, float]:
    """The first epoch with 85 % validation accuracy; test accuracy at the best validation."""
    train_mask = ~(data.val_mask | data.test_mask)
    torch.manual_seed(seed)
    model = torch_geometric.nn.GCN(data.num_features, 16, 2, 7, dropout=0.5, cached=True)
    W, *rest = sorted(model.parameters(), key=torch.numel, reverse=True)
    first = {"params": W, "lr": 10 * lr if method == "SGD, W₁ × 10" else lr}
    optimizer = torch.optim.SGD([first, {"params": rest}], lr=lr)
    if method == "Adam":
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    if method == "SGD+BNP":
        cayley.BNP(model, eps=0.1).attach(optimizer)
    reached, best, test = float("inf"), 0.0, 0.0
    for epoch in range(1, epochs + 1):
        optimizer.zero_grad()
        output = model.train()(data.x, data.edge_index)
        torch.nn.functional.cross_entropy(output[train_mask], data.y[train_mask]).backward()
        optimizer.step()
        with torch.no_grad():
            right = (model.eval()(data.x, data.edge_index).argmax(-1) == data.y).float()
        if (validation := right[data.val_mask].mean().item()) >= 0.85:
            reached = min(reached, epoch)
        if validation > best:
            best, test = validation, right[data.test_mask].mean().item()
    return reached, test


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the files of Cora are")
    parser.add_argument("--lr", type=float, default=1.0, help="of SGD (%(default)s)")
    options = parser.parse_args()
    if not (options.folder / "ind.cora.x").exists():
        raise SystemExit(
            f"{options.folder}: expected ind.cora.x and its like, got none. The files are at "
            "https://github.com/kimiyoung/planetoid/tree/master/data"
        )
    torch.set_num_threads(1)
    print(f"python examples/cora.py FOLDER --lr {options.lr:g} (250 epochs, seeds 0 to 9, float32,")
    print(f"one thread), torch {torch.__version__}, torch_geometric {torch_geometric.__version__},")
    print(f"Python {platform.python_version()}, {platform.platform()}\n")
    print("| | epochs to 85 %: median (range) | test accuracy, % |\n|---|---|---|")
    data = read_planetoid_data(str(options.folder), "cora")
    for name in ("Adam", "SGD", "SGD, W₁ × 10", "SGD+BNP"):
        e, test = torch.tensor([train(name, data, seed, options.lr) for seed in range(10)]).T
        test = f"{100 * test.mean():.2f} ± {100 * test.std():.2f}"
        print(f"| {name} | {e.median():.0f} ({e.min():.0f}–{e.max():.0f}) | {test} |", flush=True)

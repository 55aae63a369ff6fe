import torch

from cayley.lab.tasks.resident import Resident


def test_tensors_move_once() -> None:
    data = Resident(x=torch.arange(3))
    first = data.on("meta")
    assert first["x"].is_meta
    assert data.on(torch.device("meta"))["x"] is first["x"]
    assert data.on(None)["x"] is data.tensors["x"]

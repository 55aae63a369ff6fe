from collections.abc import Iterator

import pytest
import torch

# one thread a worker: the workers share the cores
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(5544)


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    """Tests compute in double precision unless they say otherwise."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)

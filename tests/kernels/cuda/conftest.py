from collections.abc import Iterator

import pytest
from emulator import Launches, counted


@pytest.fixture
def launches() -> Iterator[Launches]:
    """Kernels are emulated, and their launches counted."""
    with counted() as launches:
        yield launches

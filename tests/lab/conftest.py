import os
from pathlib import Path

import pytest

from cayley.lab.data import Source

DATA = Path(os.environ.get("CAYLEY_DATA", Path(__file__).parents[2].parent / "shared" / "data"))


@pytest.fixture
def source() -> Source:
    """The real data, where they are."""
    if not DATA.is_dir():
        pytest.skip(f"no data in {DATA}: set CAYLEY_DATA to a folder that has them")
    return Source(DATA)

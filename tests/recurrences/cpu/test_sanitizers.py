"""The C code under the address and undefined-behaviour sanitizers."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import cayley

SOURCE = Path(cayley.__file__).parent / "recurrences/cpu/src/native.c"
SCRIPT = Path(__file__).with_name("sanitized.py")
FLAGS = ["-g", "-O1", "-std=gnu11", "-ffp-contract=fast", "-fno-sanitize-recover=all"]


@pytest.mark.skipif(sys.platform != "linux" or not shutil.which("gcc"), reason="no gcc on Linux")
def test_no_bad_access_and_nothing_undefined(tmp_path: Path) -> None:
    library, runtime = tmp_path / "native.so", tmp_path / "runtime"
    sanitizers = "-fsanitize=address,undefined"
    subprocess.run(
        ["gcc", *FLAGS, sanitizers, "-fPIC", "-shared", SOURCE, "-o", library, "-lm"], check=True
    )
    runtime = subprocess.run(
        ["gcc", "-print-file-name=libasan.so"], check=True, capture_output=True, text=True
    ).stdout.strip()
    done = subprocess.run(
        [sys.executable, SCRIPT, library],
        env={
            **os.environ,
            "LD_PRELOAD": runtime,
            # Python and torch keep what they allocate until they end
            "ASAN_OPTIONS": "detect_leaks=0",
            "PYTHONPATH": os.pathsep.join([str(SCRIPT.parents[2]), str(SOURCE.parents[4])]),
        },
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "runs" in done.stdout

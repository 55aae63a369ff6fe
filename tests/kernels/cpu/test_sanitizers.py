"""The C code under the address, undefined-behaviour and thread sanitizers."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from compiled import compiled_from

import cayley

SOURCE = Path(cayley.__file__).parent / "kernels/cpu/src/native.c"
SCRIPT = Path(__file__).with_name("sanitized.py")
FLAGS = ["-g1", "-std=gnu11", "-ffp-contract=fast", "-fno-sanitize-recover=all"]
# every function compiled once, not once for each of its callers
FLAGS += ["-Dalways_inline=unused"]
# what is compiled as it is written has every access checked, and is compiled fastest
FLAGS += ["-O0"]
BAD_ACCESS = ("-fsanitize=address,undefined", "--param=asan-instrumentation-with-call-threshold=0")
DATA_RACE = ("-fsanitize=thread",)

gcc = pytest.mark.skipif(
    sys.platform != "linux" or not shutil.which("gcc"), reason="no gcc on Linux"
)


def run_sanitized(
    sanitizers: tuple[str, ...],
    runtime: str,
    *options: str,
    launcher: tuple[str, ...] = (),
) -> subprocess.CompletedProcess[str]:
    """Compile the library with sanitizers, and run every function."""
    flags = [*FLAGS, *sanitizers, "-fPIC", "-shared", SOURCE, "-lm", "-lpthread"]
    sources = (path.read_text() for path in sorted(SOURCE.parent.iterdir()))

    def build(library: Path) -> None:
        subprocess.run(["gcc", *flags, "-o", library], check=True)

    library = compiled_from("gcc", (*sources, *map(str, flags)), build)
    found = subprocess.run(
        ["gcc", f"-print-file-name={runtime}"], check=True, capture_output=True, text=True
    )
    return subprocess.run(
        [*launcher, sys.executable, SCRIPT, library, *options],
        env={
            **os.environ,
            "LD_PRELOAD": found.stdout.strip(),
            # Python and torch keep what they allocate until they end
            "ASAN_OPTIONS": "detect_leaks=0",
            # torch's own threads are not compiled with checks: what is seen of them is no race
            "TSAN_OPTIONS": "ignore_noninstrumented_modules=1",
            "PYTHONPATH": os.pathsep.join([str(SCRIPT.parents[2]), str(SOURCE.parents[4])]),
        },
        capture_output=True,
        text=True,
        timeout=280,
    )


@pytest.mark.slow
@gcc
def test_no_bad_access_and_nothing_undefined() -> None:
    done = run_sanitized(BAD_ACCESS, "libasan.so")
    assert "runs" in done.stdout, done.stderr[-4000:]
    # the last access was a bad one
    assert "heap-buffer-overflow" in done.stderr, done.stderr[-4000:]


@pytest.mark.slow
@gcc
@pytest.mark.skipif(not shutil.which("setarch"), reason="no setarch, which thread sanitizers need")
def test_no_data_race() -> None:
    # at addresses that are not drawn at random, or the sanitizer may not start
    done = run_sanitized(
        DATA_RACE, "libtsan.so", "threads", launcher=("setarch", "--addr-no-randomize")
    )
    if "unexpected memory mapping" in done.stderr or done.stderr.startswith("setarch:"):
        pytest.skip(f"the thread sanitizer cannot run here: {done.stderr[:200]}")
    assert "runs" in done.stdout, done.stderr[-4000:]
    ours = [report for report in done.stderr.split("=" * 18) if "kernels/cpu/src" in report]
    assert not ours, ours[0]

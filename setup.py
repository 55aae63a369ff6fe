"""The C code, which is optional: without a compiler the package installs and runs without it.

The library is loaded by ctypes and knows nothing of Python, so one wheel serves every version: it
is tagged ``py3-none-<platform>``, and ``py3-none-any`` where there is no library in it.
``CAYLEY_NO_C=1`` builds without.

For aarch64, ``native.c`` can be compiled by ``aarch64-linux-gnu-gcc`` with the flags below, and
the tests run by an arm64 Python under ``qemu-aarch64-static``: emulation tells whether NEON
computes the same, not how fast.
"""

import os
from glob import glob
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel


class PlatformWheel(bdist_wheel):
    """A wheel for every Python, and for one platform if there is a library in it."""

    def get_tag(self) -> tuple[str, str, str]:
        """Python, ABI and platform."""
        built = Path(self.get_finalized_command("build").build_lib)
        self.root_is_pure = not any(built.rglob("_native*"))
        return "py3", "none", super().get_tag()[2] if not self.root_is_pure else "any"


native = Extension(
    "cayley.kernels.cpu._native",
    ["cayley/kernels/cpu/src/native.c"],
    depends=glob("cayley/kernels/cpu/src/*.h"),
    extra_compile_args=["-O3", "-std=gnu11", "-fno-math-errno", "-ffp-contract=fast"],
    libraries=["m", "pthread"],
    optional=True,
    py_limited_api=True,
)

setup(
    ext_modules=[] if os.environ.get("CAYLEY_NO_C") else [native],
    cmdclass={"bdist_wheel": PlatformWheel},
)

"""The C code, which is optional: without a compiler the package installs and runs without it.

For aarch64, ``native.c`` can be compiled by ``aarch64-linux-gnu-gcc`` with the flags below, and
the tests run by an arm64 Python under ``qemu-aarch64-static``: emulation tells whether NEON
computes the same, not how fast.
"""

from glob import glob

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "cayley.kernels.cpu._native",
            ["cayley/kernels/cpu/src/native.c"],
            depends=glob("cayley/kernels/cpu/src/*.h"),
            extra_compile_args=["-O3", "-std=gnu11", "-fno-math-errno", "-ffp-contract=fast"],
            libraries=["m", "pthread"],
            optional=True,
            py_limited_api=True,
        )
    ]
)

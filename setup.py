"""The C code, which is optional: without a compiler the package installs and runs without it."""

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

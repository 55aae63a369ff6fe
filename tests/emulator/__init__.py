"""CUDA kernels on the CPU: their logic is tested also where there is no GPU.

Every source file is compiled as C++, with ``cuda.h`` in place of CUDA, and run by ``machine.cpp``.
Blocks of a cluster or team take turns at random, and threads of a block in either order. Speed,
registers and the order in which memory becomes visible are not a GPU's.
"""

import ctypes
import functools
import itertools
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from compiled import compiled_from

from cayley.kernels.cuda.runtime.chip import Chip
from cayley.kernels.cuda.runtime.nvrtc import SOURCES

__all__ = ["COMPILER", "H200", "Kernel", "Launches", "counted", "emulated", "replacing"]

COMPILER = shutil.which("g++") if sys.platform == "linux" else None
H200 = Chip(132, 232448, 16)
# what else a GPU gives
GIVEN = {
    "on": lambda _: nullcontext(),
    "chip": lambda _: H200,
    "products_of_halves": lambda a, b: a.float().mT @ b.float(),
}
MODULES = ("cayley.kernels.cuda.",)
# what is cached in them depends on arguments alone
LAYOUTS = tuple(f"cayley.kernels.cuda.runtime.{name}" for name in ("clusters", "teams"))
MACHINE = Path(__file__).with_name("machine.cpp")
HEADERS = [Path(__file__).with_name("cuda.h"), *sorted(SOURCES.glob("*.cuh"))]
SHARED = "extern __shared__ float4 shared[];"
OPTIONS = (
    *("-std=c++17", "-ffp-contract=off", "-fno-strict-aliasing", "-w", "-fPIC"),
    # what nobody reads, and takes time to write
    *("-fno-exceptions", "-fno-rtti", "-fno-asynchronous-unwind-tables"),
    # which forbid `_longjmp` between stacks
    "-U_FORTIFY_SOURCE",
    # the headers of C alone, which are read in a third of the time
    "-D_GLIBCXX_INCLUDE_NEXT_C_HEADERS",
)
# the machine needs no library of C++, and a kernel finds those of the machine when it is loaded
OF_MACHINE = ("-nodefaultlibs", "-lm", "-lc", "-lgcc")
OF_KERNELS = ("-nostdlib",)
# those that run hundreds of times in a few sizes, so that it pays to optimise them
OFTEN = ("row_products",)


@functools.cache
def machine() -> ctypes.CDLL:
    """What runs kernels: optimised, unlike most, which take longer to compile than to run."""
    contents = (MACHINE.read_text(), HEADERS[0].read_text(), *OPTIONS, *OF_MACHINE)

    def build(library: Path) -> None:
        compile_to(library, "-O2", MACHINE, *OF_MACHINE)

    assert COMPILER is not None
    library = compiled_from(COMPILER, contents, build)
    # kernels find its functions when they are loaded
    return ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


@functools.cache
def compiled(source: str, sizes: str) -> tuple[Any, tuple[str, ...]]:
    """A kernel, and the types of its arguments."""
    text = (SOURCES / f"{source}.cu").read_text()
    text = text.replace(SHARED, "float4* const shared = emulator::shared_memory();")
    signature = re.search(rf"void {source}\((.*?)\) \{{", text, re.DOTALL)
    assert signature is not None
    parameters = signature.group(1).replace("__restrict__", "").split(",")
    types = tuple(re.sub(r"\w+\s*$", "", parameter).strip() for parameter in parameters)
    call = ", ".join(f"*static_cast<{kind}*>(arguments[{k}])" for k, kind in enumerate(types))
    text = f'{text}\nextern "C" void run_kernel(void** arguments) {{ {source}({call}); }}\n'
    level = "-O1" if source in OFTEN else "-O0"
    contents = (text, sizes, headers(), *OPTIONS, level, *OF_KERNELS)
    assert COMPILER is not None
    library = compiled_from(COMPILER, contents, partial(build, text, sizes, level))
    machine()
    return ctypes.CDLL(str(library)).run_kernel, types


@functools.cache
def headers() -> str:
    """What kernels include, but for their sizes."""
    return "".join(path.read_text() for path in HEADERS)


def build(text: str, sizes: str, level: str, library: Path) -> None:
    """Compile a kernel for sizes."""
    common = folder_of_headers().name
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "sizes.cuh").write_text(sizes)
        Path(folder, "kernel.cpp").write_text(f'#include "{common}/cuda.h"\n{text}')
        places = ("-I", common, "-I", folder)
        compile_to(library, level, *places, f"{folder}/kernel.cpp", *OF_KERNELS)


@functools.cache
def folder_of_headers() -> tempfile.TemporaryDirectory[str]:
    """A folder with all headers, and what the compiler has read of ``cuda.h``, for most kernels."""
    folder = tempfile.TemporaryDirectory()
    for path in HEADERS:
        shutil.copy(path, folder.name)
    Path(folder.name, "machine.cuh").write_text("#pragma once\n")
    header = f"{folder.name}/cuda.h"
    command = [COMPILER, *OPTIONS, "-O0", "-x", "c++-header", header, "-o", f"{header}.gch"]
    subprocess.run([*map(str, command)], check=True)
    return folder


def compile_to(library: Path, *options: object) -> None:
    """Make a shared library."""
    command = [COMPILER, *OPTIONS, "-shared", "-o", library, *options]
    subprocess.run([*map(str, command)], check=True)


class Kernel:
    """That of :mod:`cayley.kernels.cuda.runtime.nvrtc`, on the CPU.

    Attributes:
        late: The number of a block that is slower than all others; -1 for none.
    """

    late = -1

    def __init__(
        self,
        source: str,
        sizes: str,
        threads: int,
        blocks: int,
        memory: int,
        together: bool = False,
        cluster: int = 1,
    ) -> None:
        assert blocks % cluster == 0
        assert memory <= H200.memory
        assert threads % 32 == 0
        self.kernel, self.types = compiled(source, sizes)
        self.threads, self.blocks, self.cluster = threads, blocks, cluster
        self.memory = memory

    def resident_clusters(self) -> int:
        return self.blocks // self.cluster if self.cluster > 1 else 1

    def __call__(self, clusters: int, *arguments: Any, networks: int = 1) -> None:
        assert len(arguments) == len(self.types)
        # a GPU refuses to launch nothing
        assert clusters > 0
        assert networks > 0
        values = (ctypes.c_uint64 * len(arguments))()
        ranges = []
        for k, (argument, kind) in enumerate(zip(arguments, self.types, strict=True)):
            assert isinstance(argument, int) or kind != "int"
            if argument is not None:
                values[k] = argument if isinstance(argument, int) else argument.data_ptr()
            tensor = getattr(argument, "whole", argument)
            if isinstance(tensor, torch.Tensor) and tensor.numel() > 0:
                ranges += [tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes]
        ctypes.c_int.in_dll(machine(), "late_block").value = self.late
        first = ctypes.addressof(values)
        status = machine().launch(
            *(self.kernel, clusters, networks, self.blocks, self.threads, self.memory),
            (ctypes.c_void_p * len(values))(*range(first, first + 8 * len(values), 8)),
            len(ranges) // 2,
            (ctypes.c_void_p * len(ranges))(*ranges),
        )
        assert status != 1, "a kernel has used memory beyond its arguments or its own"
        assert status != 2, "a kernel waits for what does not come"
        assert status == 0, "blocks of a cluster have __shared__ variables: not emulated"

    def repeated(self, *arguments: Any) -> Callable[[int, int], None]:
        return lambda clusters, last: self(clusters, *arguments, last)


def emulated() -> AbstractContextManager[None]:
    """Context in which functions that launch kernels take tensors of the CPU."""
    return replacing(Kernel=Kernel, **GIVEN)


class Launches(Counter[str]):
    """How often kernels of each source were launched, and in ``networks`` for how many networks."""

    def __init__(self) -> None:
        super().__init__()
        self.networks: Counter[str] = Counter()


@contextmanager
def counted() -> Iterator[Launches]:
    """The same, and what was launched in it."""
    launches = Launches()

    class Counted(Kernel):
        def __init__(self, source: str, *arguments: Any, **options: Any) -> None:
            super().__init__(source, *arguments, **options)
            self.source = source

        def __call__(self, *arguments: Any, networks: int = 1) -> None:
            launches[self.source] += 1
            launches.networks[self.source] += networks
            super().__call__(*arguments, networks=networks)

    with replacing(Kernel=Counted, **GIVEN):
        yield launches


@contextmanager
def replacing(**values: Any) -> Iterator[None]:
    """Context in which modules that launch kernels have other values under these names."""
    forget_kernels()
    with ExitStack() as changes:
        changes.callback(forget_kernels)
        for module, (name, value) in itertools.product(modules(), values.items()):
            if name in vars(module):
                changes.enter_context(patch.object(module, name, value))
        yield


@functools.cache
def modules() -> list[ModuleType]:
    """Those that launch kernels; they are imported with the package."""
    return [module for name, module in sys.modules.items() if name.startswith(MODULES)]


def forget_kernels() -> None:
    """Clear what the modules have cached, but for layouts: these are the same on all machines."""
    for function in caching():
        function.cache_clear()


@functools.cache
def caching() -> list[Any]:
    """Functions of the modules that cache what depends on the device, none of them replaced."""
    found = {id(value): value for module in modules() for value in vars(module).values()}
    return [
        value
        for value in found.values()
        if hasattr(value, "cache_clear") and value.__module__ not in LAYOUTS
    ]

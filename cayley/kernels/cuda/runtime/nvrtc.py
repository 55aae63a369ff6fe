"""Compiling CUDA sources at run time, with the compiler that comes with torch, and launching."""

import ctypes
import functools
import hashlib
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from cayley.disk_cache import cache_folder, load, store
from cayley.kernels.memory import memory_refusal
from cayley.kernels.steps import check_devices

__all__ = [
    "Kernel",
    "cluster_line",
    "compile_source",
    "constants",
    "launches_together",
    "on",
    "tensor_refusal",
]

SOURCES = Path(__file__).parents[1] / "src"
MOST_ARGUMENTS = 64  # of a kernel
OPTIONS = ("--std=c++17", "--device-as-default-execution-space")

# of the CUDA driver's enumerations
MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14
COOPERATIVE_LAUNCH = 95
COOPERATIVE = 2
CLUSTER_DIMENSION = 4
RELAXED_CAPTURE = 2
PORTABLE_CLUSTER = 8


@functools.cache
def library() -> ctypes.CDLL:
    """NVRTC and the CUDA driver, through the library that torch itself uses for them."""
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libcaffe2_nvrtc.so"))


def compile_source(source: str, sizes: str, architecture: str) -> bytes:
    """Machine code of a source file, from the cache if it has been compiled before.

    Arguments:
        source: The name of a file in ``src``, without its ending.
        sizes: The text of the header ``sizes.cuh`` that it includes.
        architecture: Such as ``"sm_90"``.
    """
    headers = {path.name: path.read_bytes() for path in sorted(SOURCES.glob("*.cuh"))}
    headers["sizes.cuh"] = sizes.encode()
    text = (SOURCES / f"{source}.cu").read_bytes()
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check_nvrtc(library().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    options = (f"--gpu-architecture={architecture}", *OPTIONS)
    everything = (major.value, minor.value, options, text, headers)
    key = hashlib.sha256(repr(everything).encode()).hexdigest()[:32]
    path = cache_folder() / f"{source}-{architecture}-{key}.cubin"
    if (kept := load(path)) is not None:
        return kept
    cubin = _compile(text, f"{source}.cu", headers, options)
    try:
        store(path, cubin)
    except OSError as error:
        warnings.warn(
            f"compiled kernels cannot be cached in {path.parent}, so every process compiles them "
            f"again: set CAYLEY_CACHE to a folder of your own ({error})",
            stacklevel=2,
        )
    return cubin


def constants(**values: int) -> str:
    r"""Lines of a header that give names to numbers.

    Example:
        >>> constants(H=60)
        'constexpr int H = 60;\n'
    """
    return "".join(f"constexpr int {name} = {value};\n" for name, value in values.items())


def cluster_line(blocks: int) -> str:
    r"""The line of a header that says of how many blocks a kernel's clusters are.

    Example:
        >>> cluster_line(2), cluster_line(1)
        ('#define CLUSTER __cluster_dims__(2, 1, 1)\n', '#define CLUSTER\n')
    """
    return "#define CLUSTER" + (f" __cluster_dims__({blocks}, 1, 1)\n" if blocks > 1 else "\n")


def _compile(text: bytes, name: str, headers: dict[str, bytes], options: tuple[str, ...]) -> bytes:
    program = ctypes.c_void_p()
    names = [header.encode() for header in headers]
    arguments = [option.encode() for option in options]
    _check_nvrtc(
        library().nvrtcCreateProgram(
            ctypes.byref(program),
            text,
            name.encode(),
            len(headers),
            (ctypes.c_char_p * len(headers))(*headers.values()),
            (ctypes.c_char_p * len(headers))(*names),
        )
    )
    try:
        status = library().nvrtcCompileProgram(
            program, len(options), (ctypes.c_char_p * len(options))(*arguments)
        )
        if status:
            log = _result(program, "ProgramLog").rstrip(b"\0").decode()
            raise RuntimeError(f"{name} does not compile with {' '.join(options)}:\n{log}")
        return _result(program, "CUBIN")
    finally:
        library().nvrtcDestroyProgram(ctypes.byref(program))


def _result(program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _check_nvrtc(getattr(library(), f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    result = ctypes.create_string_buffer(size.value)
    _check_nvrtc(getattr(library(), f"nvrtcGet{what}")(program, result))
    return result.raw


class _Array(Protocol):
    """A tensor, or anything else with an address."""

    def data_ptr(self) -> int: ...


Argument = _Array | int | None


class Kernel:
    """A kernel on the current device, ready to be launched.

    Arguments:
        source: The name of a file in ``src``, without its ending; the kernel has the same name.
        sizes: The text of its header ``sizes.cuh``.
        threads: The number of threads of a block.
        blocks: The number of blocks of a cluster, or of another group of them.
        memory: The bytes of shared memory of a block.
        together: Whether blocks outside of clusters wait for each other, so that all of them have
            to run at the same time.
        cluster: The number of blocks of a cluster, if there are several of them whose blocks wait
            for each other; otherwise 1.
    """

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
        self.threads, self.blocks, self.memory, self.together = threads, blocks, memory, together
        self.cluster = cluster
        self.device = torch.cuda.current_device()
        major, minor = torch.cuda.get_device_capability()
        cubin = compile_source(source, sizes, f"sm_{major}{minor}")
        self._function = ctypes.c_void_p()
        module, mode = ctypes.c_void_p(), ctypes.c_int(RELAXED_CAPTURE)
        # a CUDA graph may be being captured, and loading must not be part of it
        _check(library().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)))
        try:
            _check(library().cuModuleLoadData(ctypes.byref(module), cubin))
            _check(
                library().cuModuleGetFunction(ctypes.byref(self._function), module, source.encode())
            )
            self._set(MAX_DYNAMIC_SHARED_SIZE_BYTES, memory)
            if blocks > PORTABLE_CLUSTER and not together:
                self._set(NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)
        finally:
            _check(library().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)))

    def _set(self, attribute: int, value: int) -> None:
        _check(library().cuFuncSetAttribute(self._function, attribute, value))

    def resident_clusters(self) -> int:
        """How many clusters the device can run at a time."""
        blocks = self.cluster if self.cluster > 1 else self.blocks
        attribute = _Attribute(CLUSTER_DIMENSION, 0, blocks, 1, 1)
        launch = _Launch(
            *(blocks, 1, 1, self.threads, 1, 1, self.memory),
            attributes=ctypes.pointer(attribute),
            count=1,
        )
        clusters = ctypes.c_int()
        _check(
            library().cuOccupancyMaxActiveClusters(
                ctypes.byref(clusters), self._function, ctypes.byref(launch)
            )
        )
        return clusters.value

    def __call__(self, clusters: int, *arguments: Argument, networks: int = 1) -> None:
        """Launch on the current stream of the kernel's device; None is a null pointer.

        Arguments:
            clusters: The number of clusters, or of other groups of blocks.
            *arguments: Those of the kernel.
            networks: How often there are so many, in the second dimension of the grid.
        """
        # torch.cuda.current_device first asks whether CUDA has been initialised, which takes longer
        if torch._C._cuda_getDevice() != self.device or not _thread.attached:
            with on(self.device):
                self._launch(clusters, networks, arguments)
        else:
            self._launch(clusters, networks, arguments)

    def _launch(self, clusters: int, networks: int, arguments: Sequence[Argument]) -> None:
        # arrays that each thread keeps: making new ones would take longer than a small kernel
        values = _thread.values
        # one by one, which takes half the time of a slice
        for k, a in enumerate(arguments):
            values[k] = 0 if a is None else a if isinstance(a, int) else a.data_ptr()
        launch = (
            self._function,
            *(clusters * self.blocks, networks, 1, self.threads, 1, 1, self.memory),
            self._stream(),
            _thread.pointers,
        )
        if self.cluster > 1:
            if networks > 1:
                raise ValueError(f"expected one network for teams of clusters, got {networks}")
            self._launch_in_clusters(clusters * self.blocks)
        elif self.together:
            # an error if they cannot all run, and no blocks of other kernels in between
            _check(library().cuLaunchCooperativeKernel(*launch))
        else:
            _check(library().cuLaunchKernel(*launch, None))

    def _launch_in_clusters(self, blocks: int) -> None:
        """All blocks together, by the arguments that the thread keeps."""
        attributes = (_Attribute * 2)(
            _Attribute(COOPERATIVE, 0, 1), _Attribute(CLUSTER_DIMENSION, 0, self.cluster, 1, 1)
        )
        launch = _Launch(
            *(blocks, 1, 1, self.threads, 1, 1, self.memory, self._stream()),
            attributes=ctypes.cast(attributes, ctypes.POINTER(_Attribute)),
            count=2,
        )
        _check(
            library().cuLaunchKernelEx(ctypes.byref(launch), self._function, _thread.pointers, None)
        )

    def _stream(self) -> ctypes.c_void_p:
        # torch.cuda.current_stream makes an object, which takes ten times as long
        return ctypes.c_void_p(torch._C._cuda_getCurrentRawStream(self.device))

    def repeated(self, *arguments: Argument) -> Callable[[int, int], None]:
        """A function that launches the kernel again and again, with arguments prepared only once.

        To be called, as the function itself is, while the kernel's device is the current one of
        :func:`on`.

        Arguments:
            *arguments: All but the last, which are the same for all launches.

        Returns:
            A function of the number of clusters and of the last argument, an integer.
        """
        count = len(arguments) + 1
        values = (ctypes.c_uint64 * count)(
            *(0 if a is None else a if isinstance(a, int) else a.data_ptr() for a in arguments)
        )
        first = ctypes.addressof(values)
        pointers = (ctypes.c_void_p * count)(*range(first, first + 8 * count, 8))
        launch, function, stream = library().cuLaunchKernel, self._function, self._stream()
        shape = (1, 1, self.threads, 1, 1, self.memory, stream, pointers, None)
        blocks, last = self.blocks, count - 1

        def again(clusters: int, argument: int) -> None:
            values[last] = argument
            if status := launch(function, clusters * blocks, *shape):
                _check(status)

        return again


def tensor_refusal(x: Tensor, *others: Tensor | None) -> str | None:
    """Why no kernel can run a call, independent of its size; None if one can.

    Arguments:
        x: A tensor of the call.
        others: All others.
    """
    check_devices(x, *others)
    for tensor in (x, *others):
        if tensor is not None and tensor.dtype != torch.float32:
            return f"the CUDA kernels compute in float32, not {tensor.dtype}"
    return _device_refusal(x.device) or memory_refusal(x, *others)


@functools.cache
def _device_refusal(device: torch.device) -> str | None:
    """Why no kernel can run on a device; None if one can."""
    if sys.platform != "linux" or torch.version.cuda is None:
        return "the CUDA kernels run on Linux, with GPUs of NVIDIA"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return f"the CUDA kernels need compute capability 8.0, and {device} has less"
    return None


def launches_together(device: int) -> bool:
    """Whether the driver can start a kernel with all of its blocks at once."""
    number, answer = ctypes.c_int(), ctypes.c_int()
    _check(library().cuDeviceGet(ctypes.byref(number), device))
    _check(library().cuDeviceGetAttribute(ctypes.byref(answer), COOPERATIVE_LAUNCH, number))
    return bool(answer.value)


class _Thread(threading.local):
    """For each thread: whether it has a CUDA context, and arrays for the arguments of a launch."""

    def __init__(self) -> None:
        self.attached = False
        self.values = (ctypes.c_uint64 * MOST_ARGUMENTS)()
        first = ctypes.addressof(self.values)
        addresses = range(first, first + 8 * MOST_ARGUMENTS, 8)
        self.pointers = (ctypes.c_void_p * MOST_ARGUMENTS)(*addresses)


_thread = _Thread()


@contextmanager
def on(device: int) -> Iterator[None]:
    """Context in which a device is the current one, for torch and for the driver."""
    with torch.cuda.device(device):
        context, number = ctypes.c_void_p(), ctypes.c_int()
        _check(library().cuCtxGetCurrent(ctypes.byref(context)))
        if not context:
            # torch has done nothing yet on this thread
            _check(library().cuDeviceGet(ctypes.byref(number), device))
            _check(library().cuDevicePrimaryCtxRetain(ctypes.byref(context), number))
            _check(library().cuCtxSetCurrent(context))
        # from now on the driver follows torch from device to device
        _thread.attached = True
        yield


class _Attribute(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_int),
        ("padding", ctypes.c_int),
        ("x", ctypes.c_uint),
        ("y", ctypes.c_uint),
        ("z", ctypes.c_uint),
        ("rest", ctypes.c_char * 52),
    )


class _Launch(ctypes.Structure):
    _fields_ = (
        *((f"size_{k}", ctypes.c_uint) for k in range(6)),
        ("memory", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


def _check_nvrtc(status: int) -> None:
    if status:
        describe = library().nvrtcGetErrorString
        describe.restype = ctypes.c_char_p
        raise RuntimeError(f"NVRTC: {describe(status).decode()}")


def _check(status: int) -> None:
    if status:
        message = ctypes.c_char_p()
        library().cuGetErrorString(status, ctypes.byref(message))
        raise RuntimeError(f"CUDA: {(message.value or b'unknown error').decode()}")

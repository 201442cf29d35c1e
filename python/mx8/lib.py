"""libmx8 through ctypes: the structs of include/mx8, errors as exceptions, contexts, and the operator table.

Nothing here needs torch. The library is looked for at $MX8_LIBRARY, beside this package (wheels), in the build folder
of a source tree, and where the loader looks.
"""

from __future__ import annotations

import ctypes
import enum
import functools
import os
import sys
from ctypes import POINTER, Structure, byref, c_char_p, c_float, c_int32, c_int64, c_size_t, c_uint32, c_void_p
from pathlib import Path

MAX_DIMS, MAX_INPUTS, MAX_OUTPUTS = 4, 16, 8
BLOCK = 32  # elements that share a scale


class Dtype(enum.IntEnum):
    """enum mx8_dtype."""

    F32, BF16, F8_E4M3, F8_E5M2, F8_E8M0, U8, I32, I64, F64 = range(9)


class Status(enum.IntEnum):
    """enum mx8_status."""

    OK = 0
    INVALID_ARGUMENT = 1
    UNSUPPORTED = 2
    OUT_OF_MEMORY = 3
    WORKSPACE_TOO_SMALL = 4
    IO_ERROR = 10
    FORMAT_ERROR = 11
    NOT_FINITE = 12
    CUDA_ERROR = 20
    LIBRARY_ERROR = 21
    COMM_ERROR = 30
    INTERRUPTED = 40
    INTERNAL = 99


class Error(RuntimeError):
    """A failed call; the message is the library's own and `status` its number."""

    status: int = Status.INTERNAL


class InvalidArgument(Error, ValueError):
    """A value, shape, stride or dtype that the function does not take."""


class Unsupported(Error, NotImplementedError):
    """Legal, but not on this device or in this build."""


class OutOfMemory(Error, MemoryError):
    """Memory ran out; the message says how much was asked for."""


_EXCEPTIONS: dict[int, type[Error]] = {
    Status.INVALID_ARGUMENT: InvalidArgument,
    Status.UNSUPPORTED: Unsupported,
    Status.OUT_OF_MEMORY: OutOfMemory,
}


class Tensor(Structure):
    """struct mx8_tensor: a view of memory. All zero means absent."""

    _fields_ = [
        ("data", c_void_p),
        ("shape", c_int64 * MAX_DIMS),
        ("stride", c_int64 * MAX_DIMS),
        ("dtype", c_int32),
        ("ndim", c_int32),
    ]


class Options(Structure):
    """struct mx8_op_options: zero is the default of every field."""

    _fields_ = [
        ("size", c_uint32),
        ("precision", c_int32),
        ("scale_rule", c_int32),
        ("scale_group", c_int32),
        ("tile_rows", c_int32),
        ("col_tile_rows", c_int32),
        ("weight_scale_group", c_int32),
        ("weight_tile_rows", c_int32),
        ("format", c_int32),
        ("exact", c_int32),
        ("wgrad_hp", c_int32),
        ("accumulate", c_int32),
        ("out_dtype", c_int32),
        ("layout", c_int32),
        ("alignment", c_int32),
        ("n_heads", c_int32),
        ("n_kv_heads", c_int32),
        ("mask", c_int32),
        ("chunk", c_int32),
        ("top_k", c_int32),
        ("score_func", c_int32),
        ("route_norm", c_int32),
        ("chunk_rows", c_int32),
        ("route_scale", c_float),
        ("eps", c_float),
        ("rope_theta", c_float),
        ("loss_scale", c_float),
        ("attn_scale", c_float),
        ("seq_len", c_int64),
        ("limit", c_float),
        ("via_bf16", c_int32),
    ]


class OpCall(Structure):
    """struct mx8_op_call."""

    # `in` is a keyword of Python; inputs it is.
    _fields_ = [
        ("inputs", Tensor * MAX_INPUTS),
        ("outputs", Tensor * MAX_OUTPUTS),
        ("n_in", c_int32),
        ("n_out", c_int32),
        ("options", Options),
        ("workspace", c_void_p),
        ("workspace_size", c_size_t),
    ]


class OpRow(Structure):
    """struct mx8_op; the passes are called through mx8_infer_op and mx8_run_op alone."""

    _fields_ = [
        ("name", c_char_p),
        ("schema", c_char_p),
        ("backward_schema", c_char_p),
        ("description", c_char_p),
        ("infer", c_void_p),
        ("infer_backward", c_void_p),
        ("forward", c_void_p),
        ("backward", c_void_p),
    ]


class ContextOptions(Structure):
    """struct mx8_context_options."""

    _fields_ = [
        ("size", c_uint32),
        ("device", c_int32),
        ("ordinal", c_int32),
        ("threads", c_int32),
        ("stream", c_void_p),
        ("isa", c_char_p),
        ("allocate", c_void_p),
        ("release", c_void_p),
        ("user", c_void_p),
    ]


_SIGNATURES = {
    "mx8_get_last_error": (c_char_p, []),
    "mx8_get_status_name": (c_char_p, [c_int32]),
    "mx8_get_version": (c_int32, []),
    "mx8_get_version_text": (c_char_p, []),
    "mx8_get_dtype_name": (c_char_p, [c_int32]),
    "mx8_create_context": (c_int32, [POINTER(ContextOptions), POINTER(c_void_p)]),
    "mx8_destroy_context": (None, [c_void_p]),
    "mx8_set_stream": (c_int32, [c_void_p, c_void_p]),
    "mx8_synchronize_context": (c_int32, [c_void_p]),
    "mx8_get_backend_name": (c_char_p, [c_void_p]),
    "mx8_get_backend_reason": (c_char_p, [c_void_p]),
    "mx8_get_thread_count": (c_int32, [c_void_p]),
    "mx8_count_products": (None, [c_void_p, POINTER(c_int64), POINTER(c_int64)]),
    "mx8_get_op_count": (c_int32, []),
    "mx8_get_op": (POINTER(OpRow), [c_int32]),
    "mx8_find_op": (POINTER(OpRow), [c_char_p]),
    "mx8_infer_op": (c_int32, [c_void_p, c_int32, c_void_p]),
    "mx8_run_op": (c_int32, [c_void_p, c_void_p, c_int32, c_void_p]),
}


def _list_places() -> list[str]:
    named = os.environ.get("MX8_LIBRARY")
    if named:
        return [named]
    here = Path(__file__).resolve().parent
    places = [here / "libs" / "libmx8.so", here.parents[1] / "build" / "libmx8.so"]
    return [str(path) for path in places if path.exists()] + ["libmx8.so.0"]


def _load_companions(folder: Path) -> None:
    """What libmx8 needs and a wheel brings, unless the machine has it; found by name once it is loaded."""
    for path in sorted(folder.glob("lib*.so.*")):
        try:
            ctypes.CDLL(path.name)
        except OSError:
            ctypes.CDLL(str(path))


def _open_library() -> ctypes.CDLL:
    failures = []
    for place in _list_places():
        if Path(place).parent.name == "libs":
            _load_companions(Path(place).parent)
        try:
            return ctypes.CDLL(place)
        except OSError as error:
            failures.append(str(error))
    raise ImportError(
        "mx8: libmx8.so does not load (" + "; ".join(failures) + "). Build it with `make`, or name it in MX8_LIBRARY."
    )


@functools.cache
def get_library() -> ctypes.CDLL:
    """The library, with the argument types of every function that is used here."""
    library = _open_library()
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def check(status: int) -> None:
    """Raises the thread's last error unless `status` is 0."""
    if status == 0:
        return
    error = _EXCEPTIONS.get(status, Error)(get_library().mx8_get_last_error().decode())
    error.status = status
    raise error


def get_version() -> str:
    """Version of the library that is loaded, "0.1.0"."""
    return get_library().mx8_get_version_text().decode()


class Context:
    """One device with its kernels and scratch memory. One thread at a time.

    device: "cpu" or "cuda"; ordinal: which GPU; threads: CPU threads, 0 for OMP_NUM_THREADS or all cores; isa:
    "scalar", "avx2" or "avx512", None for the best. Raises Unsupported where there is no such device.
    """

    def __init__(self, device: str = "cpu", ordinal: int = 0, threads: int = 0, isa: str | None = None) -> None:
        self.handle = c_void_p()
        self.stream = 0  # where the work goes, the default stream at first
        self._library = get_library()
        options = ContextOptions(
            size=ctypes.sizeof(ContextOptions),
            device=int(device == "cuda"),
            ordinal=ordinal,
            threads=threads,
            isa=isa.encode() if isa else None,
        )
        check(self._library.mx8_create_context(byref(options), byref(self.handle)))

    @property
    def backend(self) -> str:
        """Name of the kernels in use, "cpu-avx2" or "cuda-sm90"."""
        return self._library.mx8_get_backend_name(self.handle).decode()

    @property
    def reason(self) -> str:
        """Why these kernels were chosen, in one line."""
        return self._library.mx8_get_backend_reason(self.handle).decode()

    def count_products(self) -> tuple[int, int]:
        """How many MXFP8 products ran in this context: on FP8 tensor cores, and on the exact path."""
        every, fast = c_int64(), c_int64()
        self._library.mx8_count_products(self.handle, byref(every), byref(fast))
        return fast.value, every.value - fast.value

    def set_stream(self, stream: int) -> None:
        """Sends later work to this CUDA stream."""
        check(self._library.mx8_set_stream(self.handle, stream))
        self.stream = stream

    def synchronize(self) -> None:
        """Waits for the work on the context's stream."""
        check(self._library.mx8_synchronize_context(self.handle))

    def __del__(self) -> None:
        # At exit the driver may be gone before this object; the process's end frees everything anyway.
        if self.handle and not sys.is_finalizing():
            self._library.mx8_destroy_context(self.handle)
            self.handle = c_void_p()

"""Calls of the library on torch tensors.

A call is laid out once for each combination of operator, options, shapes, strides, dtypes and device: a plan, which is
the bytes of struct mx8_op_call without pointers, with what torch has to allocate. Running it again copies those bytes,
puts the pointers in and calls. Nothing waits for the device.
"""

from __future__ import annotations

import ctypes
import threading
import warnings
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from .. import lib, ops
from ._table import FROM_TORCH, TO_TORCH, Rule

MAX_PLANS = 4096  # token counts may differ in every step; the oldest half goes when this many are there
WORDS = ctypes.sizeof(lib.Tensor) // 8
OUTPUT_WORD = lib.OpCall.outputs.offset // 8
WORKSPACE_WORD = lib.OpCall.workspace.offset // 8
STRUCT_FIELDS = {entry[0] for entry in lib.Options._fields_}
PACKED = {"offsets", "starts", "ends", "bias", "blocked"}  # inputs that the library reads without strides
ROWS = {"group_pad": {"x"}, "group_unpad": {"padded"}}  # and those whose rows it reads as whole lines

_lock = threading.Lock()
_warned: set[int] = set()
_plans: dict[Any, Plan] = {}
_contexts: weakref.WeakSet[lib.Context] = weakref.WeakSet()  # of all threads


class _Local(threading.local):
    """A thread's own contexts, and the buffer that its calls are put together in."""

    def __init__(self) -> None:
        self.contexts: dict[tuple[int, int], lib.Context] = {}
        self.call = lib.OpCall()
        self.bytes = memoryview(self.call).cast("B")
        self.words = self.bytes.cast("Q")
        self.address = ctypes.addressof(self.call)


_local = _Local()


def _open_context(device: torch.device) -> lib.Context:
    if device.type == "cpu":
        return lib.Context("cpu", threads=torch.get_num_threads())
    context = lib.Context("cuda", ordinal=device.index)
    with _lock:
        if device.index not in _warned and context.backend != "cuda-sm90":
            _warned.add(device.index)
            warnings.warn(
                f"mx8: cuda:{device.index} has no fast MXFP8 path here and runs the exact one, which is correct and no "
                f"faster than bf16 ({context.reason}). docs/pytorch.md has the table of GPUs.",
                stacklevel=2,
            )
    return context


def get_context(device: torch.device, stream: int = 0) -> lib.Context:
    """The calling thread's context for a device and stream, made on first use: two streams must not share scratch."""
    key = (device.index, stream) if device.type == "cuda" else (-1, torch.get_num_threads())
    context = _local.contexts.get(key)
    if context is None:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            # Nothing can be allocated while a graph is captured; the warm-up before it left a context.
            for (index, _), other in _local.contexts.items():
                if index == device.index:
                    return other
        context = _local.contexts[key] = _open_context(device)
        with _lock:
            _contexts.add(context)
    return context


def count_products() -> dict[str, int]:
    """How many MXFP8 products this process asked for: on FP8 tensor cores ("fast") and on the exact path ("exact").

    Of all threads that are alive, forward and backward; the replay of a CUDA graph counts nothing. On Hopper, where all
    are fast with the default recipe, an exact one says that a shape, stride or option is none of the tensor cores'.
    """
    with _lock:
        counts = [context.count_products() for context in _contexts]
    return {"fast": sum(fast for fast, _ in counts), "exact": sum(exact for _, exact in counts)}


class Plan:
    """One call's layout: `template` is the struct without pointers, `outputs` what to allocate, in order."""

    __slots__ = ("template", "outputs", "inputs", "copied", "device", "gpu", "workspace", "address", "backward")

    def __init__(
        self, rule: Rule, tensors: Sequence[torch.Tensor | None], shape: Sequence[int], options: Sequence[Any]
    ):
        self.device = _check_devices(rule, tensors)
        self.gpu = self.device.index if self.device.type == "cuda" else None
        self.copied = find_copied(rule, tensors)
        tensors = copy_packed(tensors, self.copied)
        op = ops.get_ops()[rule.op]
        call = lib.OpCall(n_in=len(rule.ports.inputs), n_out=len(rule.ports.outputs))
        self.inputs = fill_call(rule, call, tensors, shape, options)
        ops.infer(op, rule.backward, call)
        skipped = set()
        if rule.backward:
            given = dict(zip((option.name for option in rule.options), options))
            if not given["bias_grad"]:
                skipped.add(len(rule.ports.outputs) - 1)
            if given["weight_dtype"] is not None and call.outputs[1].ndim:
                call.outputs[1].dtype = FROM_TORCH[given["weight_dtype"]]
        self.outputs = []
        for index in range(len(rule.ports.outputs)):
            out = call.outputs[index]
            if index in skipped:
                call.outputs[index] = lib.Tensor()
            present = call.outputs[index].ndim > 0
            sizes, strides = (tuple(out.shape[: out.ndim]), tuple(out.stride[: out.ndim])) if present else ((0,), (1,))
            word = OUTPUT_WORD + index * WORDS if present else None
            self.outputs.append((word, sizes, strides, TO_TORCH[lib.Dtype(out.dtype)]))
        self.workspace = call.workspace_size
        self.template = bytes(call)
        self.address, self.backward = op.address, int(rule.backward)


def find_copied(rule: Rule, tensors: Sequence[torch.Tensor | None]) -> tuple[int, ...]:
    """Indexes of the tensors that the library cannot read where they lie."""
    found = []
    for index, (name, tensor) in enumerate(zip(rule.names, tensors)):
        if tensor is None:
            continue
        scattered = name in PACKED and not tensor.is_contiguous()
        if scattered or (name in ROWS.get(rule.op, ()) and tensor.stride(-1) != 1):
            found.append(index)
    return tuple(found)


def copy_packed(tensors: Sequence[torch.Tensor | None], copied: tuple[int, ...]) -> Sequence[torch.Tensor | None]:
    """The tensors, with contiguous copies of those that need one."""
    if not copied:
        return tensors
    result = list(tensors)
    for index in copied:
        tensor = result[index]
        assert tensor is not None
        result[index] = tensor.contiguous()
    return result


def fill_call(
    rule: Rule, call: lib.OpCall, tensors: Sequence[torch.Tensor | None], shape: Sequence[int], options: Sequence[Any]
) -> tuple[int, ...]:
    """Writes inputs and options; returns for each tensor the word of its pointer."""
    words, given = [], iter(tensors)
    for index, port in enumerate(rule.ports.inputs):
        target = call.inputs[index]
        if port.name == "like":
            target.ndim, target.dtype = len(shape), FROM_TORCH[_get_like_dtype(tensors)]
            target.shape[: len(shape)] = list(shape)
            continue
        words.append(index * WORDS)
        tensor = next(given, None)  # absent ones at the end may be left out
        if tensor is None:
            continue
        if tensor.dtype not in FROM_TORCH or not 1 <= tensor.dim() <= lib.MAX_DIMS:
            raise lib.InvalidArgument(
                f"{rule.op}: {port.name} is {tensor.dtype} with {tensor.dim()} dimensions, which mx8 does not take"
            )
        target.ndim, target.dtype = tensor.dim(), FROM_TORCH[tensor.dtype]
        target.shape[: tensor.dim()] = tensor.shape
        target.stride[: tensor.dim()] = tensor.stride()
    call.options.size = ctypes.sizeof(lib.Options)
    for option, value in zip(rule.options, options):
        if option.name in STRUCT_FIELDS:
            setattr(call.options, option.name, option.encode(rule.op, value))
    return tuple(words)


def _get_like_dtype(tensors: Sequence[torch.Tensor | None]) -> torch.dtype:
    assert tensors[0] is not None
    return tensors[0].dtype


def _find_plan(rule: Rule, tensors: Sequence[torch.Tensor | None], shape: Sequence[int], options: tuple) -> Plan:
    key = (
        rule.key,
        options,
        shape if type(shape) is tuple else tuple(shape),
        *[None if t is None else (t.dtype, t.shape, t.stride(), t.device) for t in tensors],
    )
    plan = _plans.get(key)
    if plan is None:
        plan = Plan(rule, tensors, shape, options)
        with _lock:
            if len(_plans) >= MAX_PLANS:
                for old in list(_plans)[: MAX_PLANS // 2]:
                    del _plans[old]
            _plans[key] = plan
    return plan


def _check_devices(rule: Rule, tensors: Sequence[torch.Tensor | None]) -> torch.device:
    device = None
    for tensor in tensors:
        if tensor is None:
            continue
        if device is None:
            device = tensor.device
        elif tensor.device != device:
            raise lib.InvalidArgument(f"{rule.op}: tensors are on {device} and on {tensor.device}, expected one device")
    assert device is not None
    return device


def run(
    rule: Rule,
    tensors: Sequence[torch.Tensor | None],
    shape: Sequence[int],
    options: tuple,
    outputs: Sequence[torch.Tensor] | None = None,
) -> list[torch.Tensor]:
    """Runs a pass; an output that is not computed is empty, of shape (0,). `outputs`: earlier results of the same call,
    to be written once more."""
    plan = _find_plan(rule, tensors, shape, options)
    if plan.gpu is not None and plan.gpu != torch._C._cuda_getDevice():
        with torch.cuda.device(plan.device):
            return _run_plan(plan, tensors, outputs)
    return _run_plan(plan, tensors, outputs)


def _run_plan(
    plan: Plan, tensors: Sequence[torch.Tensor | None], outputs: Sequence[torch.Tensor] | None
) -> list[torch.Tensor]:
    device = plan.device
    library = lib.get_library()
    if plan.gpu is not None:
        stream = torch._C._cuda_getCurrentRawStream(plan.gpu)
        context = get_context(device, stream)
        if context.stream != stream:
            context.set_stream(stream)
    else:
        context = get_context(device)
    if plan.copied:
        tensors = copy_packed(tensors, plan.copied)
    local = _local
    local.bytes[:] = plan.template
    words = local.words
    for word, tensor in zip(plan.inputs, tensors):
        if tensor is not None:
            words[word] = tensor.data_ptr()
    results = []
    for index, (output_word, sizes, strides, dtype) in enumerate(plan.outputs):
        out = torch.empty_strided(sizes, strides, dtype=dtype, device=device) if outputs is None else outputs[index]
        results.append(out)
        if output_word is not None:
            words[output_word] = out.data_ptr()
    if plan.workspace:
        workspace = torch.empty(plan.workspace, dtype=torch.uint8, device=device)
        words[WORKSPACE_WORD] = workspace.data_ptr()
    status = library.mx8_run_op(context.handle, plan.address, plan.backward, local.address)
    if status:
        lib.check(status)
    return results


def infer(
    rule: Rule, tensors: Sequence[torch.Tensor | None], shape: Sequence[int], options: tuple
) -> list[tuple[tuple[int, ...], tuple[int, ...], torch.dtype]]:
    """Sizes, strides and dtype of each output of a call whose sizes are all numbers; raises what the call would."""
    return [output[1:] for output in Plan(rule, tensors, shape, options).outputs]

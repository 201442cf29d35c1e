"""The operators as torch.ops.mx8.*: schema, kernels for CPU and CUDA, fake kernels and gradients.

Schemas come from the library's table; an output that a call does not compute is an empty tensor of shape (0,), because
PyTorch's operators cannot return None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from . import _run
from ._eager import PRODUCTS
from ._table import RULES_OF, Call, Rule

# Which output is stored transposed, (E, K, N): of all others the shape says the strides.
COLUMN_CODES = {"quantize_3d": 0, "quantize_experts": 2}

TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)

library = torch.library.Library("mx8", "DEF")


class Splitter:
    """Cuts an operator's arguments into tensors, sizes and options. PyTorch leaves out trailing defaults."""

    def __init__(self, rule: Rule) -> None:
        self.n_tensors = len(rule.names)
        self.n_leading = self.n_tensors + rule.shape_argument
        self.defaults = (None,) * self.n_leading + tuple(option.default for option in rule.options)

    def split(self, args: tuple) -> tuple[tuple, Sequence[Any], tuple]:
        args += self.defaults[len(args) :]
        shape = args[self.n_tensors] if self.n_leading > self.n_tensors else ()
        return args[: self.n_tensors], shape, args[self.n_leading :]


def _make_kernel(rule: Rule, splitter: Splitter) -> Callable[..., Any]:
    def kernel(*args: Any) -> Any:
        tensors, shape, options = splitter.split(args)
        results = _run.run(rule, tensors, shape, options)
        return results[0] if len(results) == 1 else tuple(results)

    return kernel


def _is_symbolic(tensors: Sequence[torch.Tensor | None], shape: Sequence[Any]) -> bool:
    sizes = [size for tensor in tensors if tensor is not None for size in (*tensor.shape, *tensor.stride())]
    return any(not isinstance(size, int) for size in (*sizes, *shape))


def _make_fake(name: str, rule: Rule, splitter: Splitter) -> Callable[..., Any]:
    def fake(*args: Any) -> Any:
        tensors, shape, options = splitter.split(args)
        device = next(tensor.device for tensor in tensors if tensor is not None)
        results = []
        if _is_symbolic(tensors, shape):
            for sizes, dtype in rule.outputs(Call(rule, tensors, shape, options)):
                out = torch.empty((0,) if sizes is None else sizes, dtype=dtype, device=device)
                results.append(out)
            if name in COLUMN_CODES:
                index = COLUMN_CODES[name]
                E, N, K = results[index].shape
                results[index] = torch.empty_strided(
                    (E, N, K), (N * K, 1, N), dtype=results[index].dtype, device=device
                )
        else:
            for sizes, strides, dtype in _run.infer(rule, tensors, shape, options):
                results.append(torch.empty_strided(sizes, strides, dtype=dtype, device=device))
        return results[0] if len(results) == 1 else tuple(results)

    return fake


def _define(name: str, rule: Rule) -> None:
    splitter = Splitter(rule)
    library.define(rule.declare(name), tags=TAGS)
    kernel = _make_kernel(rule, splitter)
    for device in ("CPU", "CUDA"):
        library.impl(name, kernel, device)
    torch.library.register_fake(f"mx8::{name}", _make_fake(name, rule, splitter), lib=library)


# ---- gradients ----


def _setup_pad(ctx: Any, inputs: tuple, output: tuple) -> None:
    x, offsets, ctx.alignment = inputs
    ctx.mark_non_differentiable(output[1], output[2])
    ctx.save_for_backward(output[1], offsets)
    ctx.shape = x.shape


def _backward_pad(ctx: Any, grad: torch.Tensor, *_: Any) -> tuple:
    starts, offsets = ctx.saved_tensors
    return torch.ops.mx8.group_unpad(grad, starts, offsets, ctx.shape, ctx.alignment), None, None


def _setup_unpad(ctx: Any, inputs: tuple, output: torch.Tensor) -> None:
    _, _, offsets, _, ctx.alignment = inputs
    ctx.save_for_backward(offsets)


def _backward_unpad(ctx: Any, grad: torch.Tensor) -> tuple:
    (offsets,) = ctx.saved_tensors
    return torch.ops.mx8.group_pad(grad, offsets, ctx.alignment)[0], None, None, None, None


def _register() -> None:
    for name, rule in RULES_OF.items():
        _define(name, rule)
    # Codes and scales are data, not functions to differentiate, and the backward passes are not differentiated again.
    for name in set(RULES_OF) - {"linear", "grouped_linear", "group_pad", "group_unpad"}:
        library.impl(name, torch.library.fallthrough_kernel, "Autograd")
    for name, product in PRODUCTS.items():
        torch.library.register_autograd(f"mx8::{name}", product.backward, setup_context=product.setup, lib=library)
    torch.library.register_autograd("mx8::group_pad", _backward_pad, setup_context=_setup_pad, lib=library)
    torch.library.register_autograd("mx8::group_unpad", _backward_unpad, setup_context=_setup_unpad, lib=library)


_register()

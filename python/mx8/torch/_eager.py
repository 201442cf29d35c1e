"""The way around PyTorch's dispatcher, which takes as long as the rest of a call.

An operator that is called on plain tensors while nothing watches calls or rewrites them runs at once. Wherever
anything does (torch.compile, a mode, a tensor subclass, a functorch transform, the profiler), and in a torch that
cannot be asked, the call goes through torch.ops.mx8 as any other operator's does; the compiler is shown quantizing as
an operator of its own. Results are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from . import _run
from ._table import RULES_OF

try:
    from torch.distributed.tensor import DTensor
except ImportError:  # a torch without distributed, or older than 2.5

    class DTensor:  # type: ignore[no-redef]
        """No tensor is one."""


PLAIN = (torch.Tensor, torch.nn.Parameter)
ROWS = ("scale_rule", "scale_group", "tile_rows", "format")  # options of a product that its quantizers take
BOTH = (*ROWS, "col_tile_rows", "alignment")


def _find_watchers() -> tuple[Callable[[], Any], ...]:
    """Functions that are false as long as nothing watches; none in a torch that lacks one of them."""
    places = (
        (torch._C, "_len_torch_dispatch_stack"),
        (torch._C, "_len_torch_function_stack"),
        (torch._C, "_get_tracing_state"),
        (getattr(torch._C, "_functorch", None), "peek_interpreter_stack"),
        (getattr(torch._C, "_autograd", None), "_profiler_enabled"),
    )
    found = [getattr(place, name, None) for place, name in places]
    return tuple(found) if all(found) else ()  # type: ignore[arg-type]


_watchers = _find_watchers()


def is_direct(tensors: Sequence[torch.Tensor | None]) -> bool:
    """Whether a call on these tensors may skip the dispatcher."""
    if torch.compiler.is_compiling() or not _watchers:
        return False
    for watcher in _watchers:
        if watcher():
            return False
    if getattr(forward_ad, "_current_level", -1) >= 0:
        return False
    for tensor in tensors:
        if tensor is None:
            continue
        # A negation that PyTorch has only noted is not in the memory yet.
        if type(tensor) not in PLAIN or not (tensor.is_cuda or tensor.is_cpu) or tensor.is_neg():
            return False
    return True


def call(name: str, tensors: tuple[torch.Tensor | None, ...], options: tuple) -> tuple[torch.Tensor, ...]:
    """An operator without a gradient; all its outputs."""
    if is_direct(tensors):
        return tuple(_run.run(RULES_OF[name], tensors, (), options))
    results = getattr(torch.ops.mx8, name)(*tensors, *options)
    return results if isinstance(results, tuple) else (results,)


class Product:
    """linear or grouped_linear with its gradients. Saved are the operands as they came; of the codes that the compiler
    shares it decides by itself whether to keep them."""

    def __init__(self, name: str) -> None:
        self.name, self.grouped = name, name == "grouped_linear"
        self.rule, self.backward_rule = RULES_OF[name], RULES_OF[f"{name}_backward"]
        self.n_tensors, self.n_options = len(self.rule.names), len(self.rule.options)
        self.n_operands = 4 if self.grouped else 3  # tensors that are no codes
        self.bias = self.n_operands - 1
        self.no_codes = (None,) * (self.n_tensors - self.n_operands)
        self.option_at = {option.name: index for index, option in enumerate(self.rule.options)}
        self.no_backward_codes = (None,) * (len(self.backward_rule.names) - self.n_operands)

    def __call__(self, tensors: tuple[torch.Tensor | None, ...], options: tuple) -> torch.Tensor:
        """x, w, offsets where there are groups, and bias, with a value for each option of the rule."""
        if not is_direct(tensors):
            codes = self.quantize(tensors, options) if torch.compiler.is_compiling() else self.no_codes
            return getattr(torch.ops.mx8, self.name)(*tensors, *codes, *options)
        if torch.is_grad_enabled():
            for tensor in tensors:
                if tensor is not None and tensor.requires_grad:
                    return _Direct.apply(*tensors, self, options)  # type: ignore[no-any-return]
        return _run.run(self.rule, tensors, (), options)[0]

    def quantize(self, tensors: tuple, options: tuple) -> tuple:
        """Codes of x by an operator of their own, so that the compiler makes them once for all products that read x
        (w1 and w3 of an expert): to it two equal calls are one. With groups, the columns that the weight gradient wants
        come from the same read; multiply() asks for them by the same call, and what is saved is smaller than x."""
        x, w = tensors[:2]
        if isinstance(x, DTensor) or isinstance(w, DTensor):
            return self.no_codes  # given codes have no sharding rules
        if self.grouped and self.wants_columns(options) and torch.is_grad_enabled() and w.requires_grad:
            codes, scales, *_ = torch.ops.mx8.quantize_both(x, tensors[2], *self.pick(options, BOTH))
        else:
            codes, scales = torch.ops.mx8.quantize_rows(x, *self.pick(options, ROWS))
        return (codes, scales, *self.no_codes[2:])

    def wants_columns(self, options: tuple) -> bool:
        return not options[self.option_at["wgrad_hp"]]

    def pick(self, options: tuple, names: tuple[str, ...]) -> tuple:
        return tuple([options[self.option_at[name]] for name in names])

    def save(self, ctx: Any, tensors: tuple, options: tuple) -> None:
        x, w, bias = tensors[0], tensors[1], tensors[self.bias]
        # Each operand is needed for the other's gradient alone.
        saved = (
            x if w is not None and w.requires_grad else None,
            w if x is not None and x.requires_grad else None,
        )
        ctx.save_for_backward(*saved, *((tensors[2],) if self.grouped else ()))
        ctx.product = self
        ctx.shares_codes = False
        ctx.options = options
        ctx.dtypes = tuple(None if t is None else t.dtype for t in (x, w, bias))

    def multiply(self, ctx: Any, dy: torch.Tensor) -> tuple:
        """dx, dw and dbias, None where no one asks."""
        x, w, *offsets = ctx.saved_tensors
        x_dtype, w_dtype, bias_dtype = ctx.dtypes
        wants_dx, wants_dw, *_ = ctx.needs_input_grad
        wants_dbias = bias_dtype is not None and ctx.needs_input_grad[self.bias]
        x, w = x if wants_dw else None, w if wants_dx else None
        if x is None and w is None and not wants_dbias:
            return None, None, None
        # out_dtype is the last option of a product; those of the gradients follow.
        options = (*ctx.options[:-1], x_dtype, w_dtype, wants_dbias)
        tensors = (dy, x, w, *offsets)
        if is_direct(tensors):
            dx, dw, dbias = _run.run(self.backward_rule, tensors, (), options)
        else:
            op = getattr(torch.ops.mx8, f"{self.name}_backward")
            codes = self.no_backward_codes
            if ctx.shares_codes and x is not None:
                _, _, x_codes, x_scales, _ = torch.ops.mx8.quantize_both(x, *offsets, *self.pick(ctx.options, BOTH))
                tensors = (dy, None, w, *offsets)
                codes = (*codes[:5], x_codes, x_scales, *codes[7:])
            dx, dw, dbias = op(*tensors, *codes, *options)
        return (
            dx if wants_dx else None,
            dw if wants_dw else None,
            dbias.to(bias_dtype) if wants_dbias else None,
        )

    def place(self, gradients: tuple, n_others: int) -> tuple:
        """Gradients of the operands, in their order, and None for what follows."""
        dx, dw, dbias = gradients
        return (dx, dw, *((None,) if self.grouped else ()), dbias, *(None,) * n_others)

    def setup(self, ctx: Any, inputs: tuple, output: torch.Tensor) -> None:
        """As torch.library.register_autograd wants it."""
        self.save(ctx, inputs[: self.n_operands], tuple(inputs[self.n_tensors :]))
        ctx.shares_codes = self.grouped and inputs[self.n_operands] is not None and self.wants_columns(ctx.options)

    def backward(self, ctx: Any, dy: torch.Tensor) -> tuple:
        return self.place(self.multiply(ctx, dy), len(self.no_codes) + self.n_options)


class _Direct(torch.autograd.Function):
    """A product on plain tensors: the operands, then the Product and its options."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> torch.Tensor:  # type: ignore[override]
        *tensors, product, options = args
        product.save(ctx, tensors, options)
        return _run.run(product.rule, tensors, (), options)[0]

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple:  # type: ignore[override]
        product = ctx.product
        return product.place(product.multiply(ctx, dy), 2)  # type: ignore[no-any-return]


PRODUCTS = {name: Product(name) for name in ("linear", "grouped_linear")}

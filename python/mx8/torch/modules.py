"""Modules: a linear layer in MXFP8, and the forward of an expert module whose torch._grouped_mm is ours."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from .. import lib
from .functional import grouped_mm, linear
from .recipes import Recipe


class Linear(nn.Linear):
    """torch.nn.Linear whose three products are MXFP8. Parameters and state_dict are nn.Linear's own.

    in_features and out_features must be multiples of 32.
    """

    recipe: str | Recipe = "mxfp8"

    def __init__(self, *args: Any, recipe: str | Recipe = "mxfp8", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.recipe = recipe
        check_sizes("Linear", self.weight)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return linear(input, self.weight, self.bias, recipe=self.recipe)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, recipe={self.recipe!r}"


def check_sizes(name: str, weight: torch.Tensor) -> None:
    """Raises InvalidArgument unless both axes of a weight, the last two, can be cut into blocks."""
    sizes = tuple(weight.shape[-2:])
    if any(size % lib.BLOCK for size in sizes):
        raise lib.InvalidArgument(
            f"{name}: weight {tuple(weight.shape)} cannot be quantized, {sizes[0]} and {sizes[1]} must be multiples of "
            f"{lib.BLOCK}; leave it out with the filter"
        )


GROUPED_MM: set[Any] = {getattr(torch, "_grouped_mm", None), getattr(nn.functional, "grouped_mm", None)} - {None}


def _bind_grouped_mm(
    x: torch.Tensor, w_t: torch.Tensor, offs: Any = None, bias: Any = None, out_dtype: Any = None, **rest: Any
) -> tuple:
    offs = rest.get("offs", offs)
    return x, w_t, offs, bias, out_dtype


class GroupedMM(TorchFunctionMode):
    """While it is entered, torch._grouped_mm of rows (M, K) with matrices (E, K, N) and offs runs in MXFP8."""

    def __init__(self, recipe: str | Recipe) -> None:
        super().__init__()
        self.recipe = recipe
        self.calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in GROUPED_MM:
            x, w_t, offs, bias, out_dtype = _bind_grouped_mm(*args, **kwargs)
            if offs is not None and x.dim() == 2 and w_t.dim() == 3:
                if not torch.compiler.is_compiling():
                    self.calls += 1
                return grouped_mm(x, w_t, offs, bias, out_dtype=out_dtype, recipe=self.recipe)
        return func(*args, **kwargs)


@functools.cache
def teach_compiler() -> bool:
    """Lets torch.compile treat torch._grouped_mm under a mode as eager PyTorch does; False where it cannot.

    Eager PyTorch shows every function to a mode. The compiler has a list of those that it shows, from which the private
    ones are missing: it would run the bf16 product without a word.
    """
    try:
        from torch._dynamo.variables import torch as variables
        from torch._dynamo.variables import torch_function

        shown = variables.get_overridable_functions()
        shown.update(GROUPED_MM)
        return (
            hasattr(torch_function, "TorchFunctionModeVariable") and GROUPED_MM <= variables.get_overridable_functions()
        )
    except (ImportError, AttributeError):
        return False


class Experts:
    """Mixed into the class of a converted expert module."""

    # Made by convert(): the compiler follows a mode that exists before the call, not one that forward makes.
    mx8_mode: GroupedMM
    mx8_compiles: bool

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            if not self.mx8_compiles:
                raise NotImplementedError("mx8: this torch cannot compile converted experts; leave them out of compile")
            with self.mx8_mode:
                return super().forward(*args, **kwargs)  # type: ignore[misc]
        before = self.mx8_mode.calls
        with self.mx8_mode:
            result = super().forward(*args, **kwargs)  # type: ignore[misc]
        if self.mx8_mode.calls == before:
            raise lib.InvalidArgument(
                f"mx8: {type(self).__name__} was converted, but its forward called no torch._grouped_mm with offs; "
                "does it loop over experts (use_grouped_mm=False)?"
            )
        return result


@functools.cache
def get_experts_class(cls: Any) -> Any:
    """The class that a converted expert module of class `cls` gets."""
    return type(f"MX8{cls.__name__}", (Experts, cls), {"__module__": cls.__module__})

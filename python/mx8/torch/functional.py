"""What a model calls: grouped_mm, linear, and torchao's name for the former."""

from __future__ import annotations

from typing import Any

import torch

from .. import lib
from . import _register  # noqa: F401  (torch.ops.mx8)
from ._eager import PRODUCTS
from .recipes import Recipe, get_arguments


def _follow_autocast(x: torch.Tensor) -> torch.Tensor:
    device = x.device.type
    if torch.is_autocast_enabled(device):
        return x.to(torch.get_autocast_dtype(device))
    return x


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    out_dtype: torch.dtype | None = None,
    recipe: str | Recipe = "mxfp8",
) -> torch.Tensor:
    """x weight^T + bias in MXFP8, in place of torch.nn.functional.linear.

    x (..., K), bf16 or f32, any strides; weight (N, K), any strides; bias (N). Returns (..., N) of out_dtype, of x's
    dtype where that is None. Each of the three products gets operands quantized along its own contraction axis from the
    originals; all three gradients, the bias's included. K and N must be multiples of 32; the number of rows may be
    anything, 0 included. Raises InvalidArgument (a ValueError) naming the tensor, what it has and what was expected.
    """
    x = _follow_autocast(x)
    rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    y = PRODUCTS["linear"]((rows, weight, bias), get_arguments(recipe, x.device, out_dtype))
    return y if x.dim() == 2 else y.view(*x.shape[:-1], y.shape[-1])


def grouped_mm(
    x: torch.Tensor,
    w_t: torch.Tensor,
    offs: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    out_dtype: torch.dtype | None = None,
    recipe: str | Recipe = "mxfp8",
) -> torch.Tensor:
    """Rows of each group times that group's matrix in MXFP8, in place of torch._grouped_mm.

    x (M, K), bf16 or f32, any strides. w_t (E, K, N), as a rule weight.transpose(-2, -1) of a parameter (E, N, K). offs
    (E) int32: cumulative ends of the groups. bias (N), one for all groups. Returns (M, N).

    Groups may have any size, 0 included, and there may be any number of them: nothing has to be padded. Rows at and
    past offs[-1] are not read, and zero in the output and in x's gradient; the gradient of an empty group's matrix is
    zero. K and N must be multiples of 32. Nothing waits for the device: offs is read there. Raises InvalidArgument (a
    ValueError) naming the tensor, what it has and what was expected.
    """
    if x.dim() != 2 or w_t.dim() != 3:
        raise lib.InvalidArgument(
            f"grouped_mm: x has {x.dim()} dimensions and w_t {w_t.dim()}, expected x (M, K) and w_t (E, K, N)"
        )
    x = _follow_autocast(x)
    if offs.dtype != torch.int32:
        offs = offs.to(torch.int32)
    options = get_arguments(recipe, x.device, out_dtype)
    return PRODUCTS["grouped_linear"]((x, w_t.transpose(-2, -1), offs, bias), options)


def _get_name(value: Any) -> str:
    return str(getattr(value, "name", value)).rpartition(".")[2].lower()


def _to_mxfp8_then_scaled_grouped_mm(
    A: torch.Tensor,
    B_t: torch.Tensor,
    offs: torch.Tensor,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = torch.bfloat16,
    kernel_preference: Any = "AUTO",
    wgrad_with_hp: bool = False,
    scale_calculation_mode: Any = "RCEIL",
    pad_token_groups_for_grouped_mm: bool = False,
    block_size: int | None = None,
) -> torch.Tensor:
    """torchao's function of this name and signature; its enums are taken as they are, or as texts.

    EMULATED gives torchao's bits: scales per 32 elements, multiplied in high precision. AUTO is grouped_mm. Groups are
    never padded by the caller here, so pad_token_groups_for_grouped_mm changes nothing. A quantized A is not taken.
    block_size is of older versions; it has to be 32.
    """
    preference = _get_name(kernel_preference)
    if preference not in ("auto", "emulated"):
        raise lib.InvalidArgument(f"grouped_mm: kernel_preference is {kernel_preference}, expected AUTO or EMULATED")
    if offs is None:
        raise lib.InvalidArgument("grouped_mm: offs is None, expected the cumulative ends of the groups")
    if block_size not in (None, lib.BLOCK):
        raise lib.InvalidArgument(f"grouped_mm: block_size is {block_size}, expected {lib.BLOCK}")
    rule = _get_name(scale_calculation_mode)
    if preference == "emulated":
        recipe = Recipe(rule, 32, 32, 1, exact=True, wgrad_hp=wgrad_with_hp)
    else:
        recipe = Recipe(rule, wgrad_hp=wgrad_with_hp)
    return grouped_mm(A, B_t, offs, bias, out_dtype=out_dtype, recipe=recipe)

"""MXFP8 for PyTorch: quantizers, linear and grouped_mm as custom operators, on CPU and CUDA tensors.

    import mx8.torch
    y = mx8.torch.grouped_mm(x, w.transpose(-2, -1), offs)       # in place of torch._grouped_mm
    mx8.torch.convert(model, linear=mx8.torch.all_linear_except(), experts="experts")

The operators themselves are torch.ops.mx8.*.
"""

from __future__ import annotations

from ..lib import Error, InvalidArgument, OutOfMemory, Unsupported
from . import _register, _sharding  # noqa: F401  (torch.ops.mx8 and its sharding rules)
from ._run import count_products
from .convert import SKIPPED, all_linear_except, convert
from .functional import _to_mxfp8_then_scaled_grouped_mm, grouped_mm, linear
from .modules import Linear
from .quantize import (
    block_scales,
    dequantize,
    group_pad,
    group_unpad,
    quantize_3d,
    quantize_both,
    quantize_cols,
    quantize_experts,
    quantize_rows,
    unblock_scales,
)
from .recipes import RECIPES, Recipe

__all__ = [
    "Error",
    "InvalidArgument",
    "Linear",
    "OutOfMemory",
    "RECIPES",
    "Recipe",
    "SKIPPED",
    "Unsupported",
    "_to_mxfp8_then_scaled_grouped_mm",
    "all_linear_except",
    "block_scales",
    "convert",
    "count_products",
    "dequantize",
    "group_pad",
    "group_unpad",
    "grouped_mm",
    "linear",
    "quantize_3d",
    "quantize_both",
    "quantize_cols",
    "quantize_experts",
    "quantize_rows",
    "unblock_scales",
]

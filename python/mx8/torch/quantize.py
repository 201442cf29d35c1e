"""The quantizers, scale layouts and group padding as functions of tensors.

Codes are torch.float8_e4m3fn (float8_e5m2 with format="e5m2"), scales torch.uint8: exponent + 127, 255 is NaN. Inputs
are bf16 or f32 of any strides. Common options: scale_rule "rceil", "floor", "ceil" or "even"; scale_group 32, 128 or
256 elements along the blocks' axis with one scale; tile_rows 1, 32 or 128 lines with one scale. Everything here works
on CPU and CUDA tensors, under torch.compile with dynamic sizes, and raises InvalidArgument (a ValueError) that names
the tensor, what it has and what was expected.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from . import _register  # noqa: F401  (torch.ops.mx8)
from ._eager import call

Pair = tuple[torch.Tensor, torch.Tensor]


def quantize_rows(
    x: torch.Tensor, *, scale_rule: str = "rceil", scale_group: int = 32, tile_rows: int = 1, format: str = "e4m3"
) -> Pair:
    """Blocks of 1x32 along K: x (M, K) to codes (M, K) and scales (M, ceil(K/32)), both row-major."""
    return call("quantize_rows", (x,), (scale_rule, scale_group, tile_rows, format))


def quantize_cols(
    x: torch.Tensor,
    offsets: torch.Tensor | None = None,
    *,
    scale_rule: str = "rceil",
    scale_group: int = 32,
    tile_rows: int = 1,
    format: str = "e4m3",
    alignment: int = 32,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Blocks of 32x1 along M, stored transposed: x (M, K) to codes (K, M), scales (K, ceil(M/32)) and ends (0).

    With offsets (G) int32, the cumulative ends of row groups, blocks start anew in every group: codes (K, P), scales
    (K, P/32) and the padded cumulative ends (G) int32, where P = roundup(M + A G, A) with A = alignment.
    """
    return call("quantize_cols", (x, offsets), (scale_rule, scale_group, tile_rows, format, alignment))


def quantize_both(
    x: torch.Tensor,
    offsets: torch.Tensor | None = None,
    *,
    scale_rule: str = "rceil",
    scale_group: int = 32,
    tile_rows: int = 1,
    format: str = "e4m3",
    col_tile_rows: int = 0,
    alignment: int = 32,
    via_bf16: bool = False,
) -> tuple[torch.Tensor, ...]:
    """quantize_rows and quantize_cols from one read: row codes, row scales, column codes, column scales, ends.

    col_tile_rows: tile_rows of the columns alone; 0 for the same. via_bf16, without offsets: the codes of x.bfloat16()
    for a row-major f32 x, of which no more than 128 MiB are ever stored as bf16 (on Hopper in scale groups of 256 nothing).
    """
    options = (scale_rule, scale_group, tile_rows, format, col_tile_rows, alignment, via_bf16)
    return call("quantize_both", (x, offsets), options)


def quantize_3d(
    w: torch.Tensor, *, scale_rule: str = "rceil", scale_group: int = 32, tile_rows: int = 1, format: str = "e4m3"
) -> Pair:
    """Expert weights w (E, N, K) in blocks of 32x1 along N, the right operand of the input gradient.

    Codes (E, N, K) with strides (N*K, 1, N), scales (E, ceil(N/32), K) row-major.
    """
    return call("quantize_3d", (w,), (scale_rule, scale_group, tile_rows, format))


def quantize_experts(
    w: torch.Tensor,
    *,
    scale_rule: str = "rceil",
    scale_group: int = 32,
    tile_rows: int = 1,
    format: str = "e4m3",
    via_bf16: bool = False,
) -> tuple[torch.Tensor, ...]:
    """Both forms of expert weights w (E, N, K) from one read: row codes, row scales, column codes, column scales.

    Row codes (E, N, K) and scales (E, N, ceil(K/32)) are those of quantize_rows for each expert, the right operand of
    the forward pass; column codes and scales are those of quantize_3d. via_bf16: as for quantize_both.
    """
    return call("quantize_experts", (w,), (scale_rule, scale_group, tile_rows, format, via_bf16))


def dequantize(
    codes: torch.Tensor, scales: torch.Tensor, *, out_dtype: torch.dtype = torch.bfloat16, format: str = "e4m3"
) -> torch.Tensor:
    """codes (..., K) and scales (..., ceil(K/32)) to (..., K); scale byte 255 gives NaN. Up to four dimensions.

    Codes as torch.uint8 are read as `format`. Blocks run along the last axis; for others, transpose views.
    """
    return call("dequantize", (codes, scales), (format, out_dtype))[0]


def block_scales(scales: torch.Tensor, offsets: torch.Tensor | None = None, *, layout: str = "plain") -> Pair:
    """Plain scales to the 128x4 blocked layout of Blackwell's tensor cores; returns the bytes and the groups' starts.

    layout "plain" (R, C) -> (roundup(R,128) * roundup(C,4)); "m_groups" with offsets (G) -> (R + 128 G, roundup(C,4));
    "k_groups" with offsets in scale columns -> (roundup(R,128), C + 4 G); "per_expert" (E, R, C) ->
    (E, roundup(R,128) * roundup(C,4)). starts (G + 1) int64 with groups, else empty. Unused bytes are zero.
    """
    return torch.ops.mx8.block_scales(scales, offsets, layout)


def unblock_scales(
    blocked: torch.Tensor, shape: Sequence[int], offsets: torch.Tensor | None = None, *, layout: str = "plain"
) -> torch.Tensor:
    """The reverse of block_scales; `shape` is that of the plain scales. Scales past the last group are zero."""
    return torch.ops.mx8.unblock_scales(blocked, offsets, shape, layout)


def group_pad(
    x: torch.Tensor, offsets: torch.Tensor, *, alignment: int = 32
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Copies each group of x (M, K) to a start that is a multiple of `alignment`, every other row zero.

    Returns padded (roundup(M + G*alignment, alignment), K), starts (G) and ends (G) int32. Empty groups take no rows;
    rows of x at and past offsets[-1] are left out. Differentiable in x. Nothing waits for the device.
    """
    return torch.ops.mx8.group_pad(x, offsets, alignment)


def group_unpad(
    padded: torch.Tensor, starts: torch.Tensor, offsets: torch.Tensor, rows: int, *, alignment: int = 32
) -> torch.Tensor:
    """The reverse of group_pad: (rows, K), where rows at and past offsets[-1] are zero. Differentiable in padded."""
    return torch.ops.mx8.group_unpad(padded, starts, offsets, (rows, padded.shape[1]), alignment)

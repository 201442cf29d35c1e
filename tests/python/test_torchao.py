"""Beside torchao itself, in its emulated mode, where a torchao that has it is installed."""

from __future__ import annotations

import pytest
import torch

import mx8.torch as mt
from helpers import make_ends, sqnr

theirs = pytest.importorskip("torchao.prototype.moe_training.mxfp8_grouped_mm", exc_type=ImportError)
from torchao.prototype.mx_formats.config import ScaleCalculationMode  # noqa: E402
from torchao.prototype.mx_formats.mx_tensor import to_mx  # noqa: E402
from torchao.quantization.quantize_.common import KernelPreference  # noqa: E402


@pytest.mark.parametrize("hp", [False, True])
@pytest.mark.parametrize("mode", [ScaleCalculationMode.RCEIL, ScaleCalculationMode.FLOOR])
@pytest.mark.parametrize("sizes", [[64, 0, 96, 32], [128]])
def test_one_import_changes(sizes, mode, hp):
    """The same call, with torchao's own enums, through either function."""
    ends = make_ends(sizes)
    x = torch.randn(sum(sizes), 96, dtype=torch.bfloat16)
    w = torch.randn(len(sizes), 64, 96, dtype=torch.bfloat16)
    dy = torch.randn(sum(sizes), 64, dtype=torch.bfloat16)
    results = []
    for function in (theirs._to_mxfp8_then_scaled_grouped_mm, mt._to_mxfp8_then_scaled_grouped_mm):
        a, b = x.clone().requires_grad_(), w.clone().requires_grad_()
        y = function(
            a,
            b.transpose(-2, -1),
            offs=ends,
            out_dtype=torch.bfloat16,
            kernel_preference=KernelPreference.EMULATED,
            wgrad_with_hp=hp,
            scale_calculation_mode=mode,
        )
        y.backward(dy)
        full = [e for e, size in enumerate(sizes) if size]  # theirs leaves an empty group's gradient undefined
        results.append((y, a.grad, b.grad[full]))
    for got, want, name in zip(results[1], results[0], ("y", "dx", "dw")):
        assert sqnr(got, want) >= 50, name


@pytest.mark.parametrize("mode", [ScaleCalculationMode.RCEIL, ScaleCalculationMode.FLOOR])
def test_quantizer_bytes(mode):
    x = torch.randn(64, 256) * torch.exp2(torch.randint(-40, 40, (64, 1)).float())
    scales, codes = to_mx(x, torch.float8_e4m3fn, 32, mode)
    got, got_scales = mt.quantize_rows(x, scale_rule=mode.name.lower())
    assert torch.equal(got_scales, scales.view(torch.uint8)) and torch.equal(
        got.view(torch.uint8), codes.view(torch.uint8)
    )

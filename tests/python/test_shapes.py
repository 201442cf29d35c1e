"""The formulas that fake kernels use for symbolic sizes say what the library's infer says, over many shapes."""

from __future__ import annotations

import itertools

import pytest
import torch

import mx8
from mx8.torch import _run
from mx8.torch._table import RULES_OF, Call

BF16, F32, E4M3, U8, I32 = torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.uint8, torch.int32


def make(*shape, dtype=BF16):
    return torch.empty(shape, dtype=dtype, device="meta")


def blocks(n):
    return -(-n // 32)


def list_calls():
    """(operator, tensors, shape argument, options by name)"""
    sizes = (0, 1, 31, 32, 33, 96)
    for M, K in itertools.product(sizes, sizes):
        x = make(M, K)
        for style in ({}, {"format": "e5m2", "scale_group": 128, "tile_rows": 32}):
            yield "quantize_rows", [x], (), style
            yield "quantize_cols", [x, None], (), style
            yield "quantize_cols", [x, make(3, dtype=I32)], (), style
            yield "quantize_both", [x, None], (), style
            yield "quantize_both", [make(M, K, dtype=F32), make(1, dtype=I32)], (), style
        yield "quantize_3d", [make(3, M, K)], (), {}
        yield "quantize_experts", [make(3, M, K)], (), {}
        yield "dequantize", [make(M, K, dtype=E4M3), make(M, blocks(K), dtype=U8)], (), {"out_dtype": F32}
        yield "dequantize", [make(2, M, K, dtype=U8), make(2, M, blocks(K), dtype=U8)], (), {"format": "e5m2"}
        for layout, groups in (("plain", 0), ("m_groups", 2), ("k_groups", 5), ("per_expert", 0)):
            plain = (2, M, K) if layout == "per_expert" else (M, K)
            offsets = make(groups, dtype=I32) if groups else None
            yield "block_scales", [make(*plain, dtype=U8), offsets], (), {"layout": layout}
        for alignment in (32, 128, 1):
            offsets = make(3, dtype=I32)
            yield "group_pad", [x, offsets], (), {"alignment": alignment}
            rows = blocks(M + 3 * 32) * 32
            yield "group_unpad", [make(rows, K), offsets, offsets], (M, K), {}
    for M, N, K in itertools.product((0, 1, 33, 64), (32, 96), (0, 64)):
        x, w, we, dy, offsets = make(M, K), make(N, K), make(3, N, K), make(M, N), make(3, dtype=I32)
        for out_dtype in (None, F32):
            yield "linear", [x, w, None, *[None] * 4], (), {"out_dtype": out_dtype}
            yield "grouped_linear", [x, we, offsets, make(N), *[None] * 4], (), {"out_dtype": out_dtype}
        yield "linear", [make(M, K, dtype=F32), make(N, K, dtype=F32), make(N), *[None] * 4], (), {"precision": "high"}
        yield (
            "linear",
            [
                None,
                None,
                None,
                make(M, K, dtype=E4M3),
                make(M, K // 32, dtype=U8),
                make(N, K, dtype=E4M3),
                make(N, K // 32, dtype=U8),
            ],
            (),
            {},
        )
        for a, b, options in itertools.product(
            (x, None), (True, False), ({}, {"weight_dtype": BF16, "bias_grad": True})
        ):
            if a is None and not b:
                continue
            for extra in ({}, {"out_dtype": F32}, {"wgrad_hp": True}):
                yield "linear_backward", [dy, a, w if b else None, *[None] * 8], (), options | extra
                yield "grouped_linear_backward", [dy, a, we if b else None, offsets, *[None] * 9], (), options | extra


def describe(call):
    name, tensors, shape, options = call
    return f"{name}-{[None if t is None else tuple(t.shape) for t in tensors]}-{options}"


def strip(sizes, dtype):
    """Of an absent output, (0,), the dtype does not matter."""
    return sizes, None if sizes == (0,) else dtype


def test_formulas_match_infer():
    calls, seen = list(list_calls()), set()
    for name, tensors, shape, given in calls:
        rule = RULES_OF[name]
        options = tuple(given.get(option.name, option.default) for option in rule.options)
        inferred = _run.infer(rule, tensors, shape, options)
        formula = rule.outputs(Call(rule, tensors, shape, options))
        assert [strip(sizes, dtype) for sizes, _, dtype in inferred] == [
            strip((0,) if sizes is None else tuple(sizes), dtype) for sizes, dtype in formula
        ], describe((name, tensors, shape, given))
        seen.add(name)
    assert seen == set(RULES_OF) - {"unblock_scales"}  # whose shape is the caller's


@pytest.mark.parametrize(
    "op, tensors, message",
    [
        ("quantize_rows", [make(3)], r"x has 1 dimensions \(3\), expected 2"),
        ("quantize_rows", [make(3, 4, dtype=I32)], "x is i32, expected f32 or bf16"),
        ("linear", [make(3, 64), make(5, 32), None, *[None] * 4], "w has 32 columns, expected 64"),
        ("linear", [make(3, 40), make(32, 40), None, *[None] * 4], "expected a multiple of 32"),
        ("grouped_linear", [make(3, 64), make(2, 32, 64), make(3, dtype=I32), None, *[None] * 4], "expected 2"),
    ],
)
def test_errors_say_what_was_expected(op, tensors, message):
    rule = RULES_OF[op]
    with pytest.raises(mx8.InvalidArgument, match=message):
        _run.infer(rule, tensors, (), tuple(option.default for option in rule.options))

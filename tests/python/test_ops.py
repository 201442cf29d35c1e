"""The operators one by one: torch's own checks, strides, and the oracle's bytes."""

from __future__ import annotations

import pytest
import torch
from torch.library import opcheck

import mx8
import mx8.ops
import mx8.torch as mt
from helpers import make_ends
from mx8.torch._table import RULES_OF

OPS = torch.ops.mx8
E4M3 = torch.float8_e4m3fn


def rand(*shape, dtype=torch.bfloat16, grad=False):
    return torch.randn(*shape, dtype=dtype).requires_grad_(grad)


def list_opchecks():
    ends = make_ends([5, 0, 40])
    x, w, we = rand(50, 64), rand(96, 64), rand(3, 96, 64)
    codes, scales = mt.quantize_rows(x)
    padded, starts, _ = mt.group_pad(x, ends)
    plain = torch.randint(0, 255, (50, 9), dtype=torch.uint8)
    blocked, _ = mt.block_scales(plain)
    dy = rand(50, 96)
    yield "quantize_rows", (x,)
    yield "quantize_rows", (x.t(), "floor", 128, 32, "e5m2")
    yield "quantize_cols", (x,)
    yield "quantize_cols", (x, ends)
    yield "quantize_both", (x, ends)
    yield "quantize_both", (rand(33, 31, dtype=torch.float32, grad=True), None)
    yield "quantize_cols", (x, ends, "rceil", 256, 1, "e4m3", 128)
    yield "quantize_both", (x, ends, "rceil", 256, 1, "e4m3", 32, 128)
    yield "quantize_3d", (we,)
    yield "quantize_3d", (rand(2, 64, 32, grad=True).transpose(1, 2),)
    yield "quantize_experts", (we,)
    yield "quantize_experts", (rand(2, 33, 40, dtype=torch.float32, grad=True).transpose(1, 2), "floor", 128, 32, "e5m2")
    yield "dequantize", (codes.view(torch.uint8), scales)
    yield "block_scales", (plain, None)
    yield "block_scales", (plain, make_ends([5, 0, 45]), "m_groups")
    yield "unblock_scales", (blocked, None, (50, 9))
    yield "group_pad", (rand(50, 64, grad=True), ends)
    yield "group_pad", (rand(64, 50, grad=True).t(), ends, 128)
    yield "group_unpad", (padded.detach().requires_grad_(), starts, ends, (50, 64))
    yield "linear", (rand(50, 64, grad=True), rand(96, 64, grad=True), rand(96, grad=True))
    yield "linear", (x.t().contiguous().t(), w.t().contiguous().t())
    yield (
        "linear",
        (None, None, None, codes.view(torch.uint8), scales, *(t.view(torch.uint8) for t in mt.quantize_rows(w))),
    )
    yield "linear_backward", (dy, x, w)
    yield "linear_backward", (dy, None, w)
    yield "grouped_linear", (rand(50, 64, grad=True), rand(3, 96, 64, grad=True), ends, rand(96, grad=True))
    yield "grouped_linear", (rand(0, 64, grad=True), rand(3, 96, 64, grad=True), make_ends([0, 0, 0]))
    yield "grouped_linear_backward", (dy, x, we, ends)
    yield "grouped_linear_backward", (dy, x, None, ends)


@pytest.mark.parametrize("case", range(len(list(list_opchecks()))))
def test_opcheck(case):
    name, args = list(list_opchecks())[case]
    opcheck(getattr(OPS, name).default, args)


def test_every_operator_is_checked():
    assert {name for name, _ in list_opchecks()} == set(RULES_OF)


def test_table_is_listed():
    ops = mx8.ops.get_ops()
    assert {rule.op for rule in RULES_OF.values()} <= set(ops)
    assert [port.name for port in ops["linear"].forward.inputs][:3] == ["x", "w", "bias"]
    assert mx8.ops.parse_schema("f(Tensor a, Tensor? b) -> (Tensor c, Tensor? d)").outputs[1].optional
    with pytest.raises(ValueError, match="is no schema"):
        mx8.ops.parse_schema("nonsense")


def equal_codes(got: torch.Tensor, want: torch.Tensor) -> bool:
    """Bytes, where every NaN is as good as another."""
    got, want = got.contiguous().view(torch.uint8), want.contiguous().view(torch.uint8)
    nan = ((got & 0x7F) == 0x7F) & ((want & 0x7F) == 0x7F)
    return bool(((got == want) | nan).all())


@pytest.mark.parametrize("rule", ["rceil", "floor", "ceil", "even"])
@pytest.mark.parametrize(
    "source", ["bf16.normal", "bf16.wide", "bf16.special", "f32.heavy", "f32.sweep", "f32.special"]
)
def test_rows_are_torchao_bytes(oracle, source, rule):
    data = oracle("quantize")
    codes, scales = mt.quantize_rows(data[f"{source}.x"], scale_rule=rule)
    assert torch.equal(scales, data[f"{source}.{rule}.s"])
    assert equal_codes(codes, data[f"{source}.{rule}.q"])


@pytest.mark.parametrize("rule", ["rceil", "floor"])
def test_columns_and_experts_are_torchao_bytes(oracle, rule):
    data = oracle("quantize")
    codes, scales, ends = mt.quantize_cols(data["col.x"], scale_rule=rule)
    assert torch.equal(scales, data[f"col.{rule}.s"]) and equal_codes(codes, data[f"col.{rule}.q"])
    assert ends.shape == (0,)
    w = data["w3d.x"]
    E, N, K = w.shape
    codes, scales = mt.quantize_3d(w, scale_rule=rule)
    assert codes.stride() == (N * K, 1, N) and codes.dtype == E4M3
    assert scales.shape == (E, N // 32, K) and scales.is_contiguous()
    assert torch.equal(scales, data[f"w3d.{rule}.s"])
    assert equal_codes(codes.transpose(1, 2), data[f"w3d.{rule}.q_kn"])


def test_both_is_rows_and_columns():
    x, ends = rand(77, 96), make_ends([7, 0, 33, 20])
    rows, columns = mt.quantize_rows(x), mt.quantize_cols(x, ends)
    both = mt.quantize_both(x, ends)
    used = ends[-1]
    assert torch.equal(both[0][:used].view(torch.uint8), rows[0][:used].view(torch.uint8))
    assert both[0][used:].view(torch.uint8).count_nonzero() == 0
    for got, want in zip(both[2:], columns):
        assert torch.equal(got.view(torch.uint8), want.view(torch.uint8))
    tiled = mt.quantize_both(x, ends, scale_group=256, col_tile_rows=32, alignment=128)
    columns = mt.quantize_cols(x, ends, scale_group=256, tile_rows=32, alignment=128)
    assert tiled[2].shape == (96, 640) and tiled[4].tolist() == [128, 128, 256, 384]
    assert torch.equal(tiled[1][:used], mt.quantize_rows(x, scale_group=256)[1][:used])
    for got, want in zip(tiled[2:], columns):
        assert torch.equal(got.view(torch.uint8), want.view(torch.uint8))


@pytest.mark.parametrize("shape", [(2, 96, 64), (1, 33, 31), (0, 32, 32), (3, 0, 5)])
@pytest.mark.parametrize("style", [{}, {"scale_group": 256, "tile_rows": 32}, {"format": "e5m2", "scale_rule": "even"}])
def test_experts_are_rows_and_columns(shape, style):
    w = rand(*shape)
    E, N, K = shape
    row_codes, row_scales, codes, scales = mt.quantize_experts(w, **style)
    assert row_codes.is_contiguous() and (w.numel() == 0 or codes.stride() == (N * K, 1, N))
    for expert in range(E):
        want = mt.quantize_rows(w[expert], **style)
        assert torch.equal(row_codes[expert].view(torch.uint8), want[0].view(torch.uint8))
        assert torch.equal(row_scales[expert], want[1])
    want = mt.quantize_3d(w, **style)
    assert (codes.dtype, codes.stride()) == (want[0].dtype, want[0].stride())
    assert torch.equal(codes.view(torch.uint8), want[0].view(torch.uint8))
    assert torch.equal(scales, want[1])


def test_both_forms_of_experts_multiply():
    """Given to grouped_linear and its backward pass, they are what those quantize themselves."""
    x, w, dy, ends = rand(50, 64), rand(3, 96, 64), rand(50, 96), make_ends([5, 0, 45])
    row_codes, row_scales, codes, scales = mt.quantize_experts(w)
    assert torch.equal(
        OPS.grouped_linear(x, None, ends, None, None, None, row_codes, row_scales), OPS.grouped_linear(x, w, ends)
    )
    given = (*(None,) * 7, codes, scales)
    assert torch.equal(
        OPS.grouped_linear_backward(dy, None, None, ends, *given)[0], OPS.grouped_linear_backward(dy, None, w, ends)[0]
    )


def test_strides_do_not_change_codes():
    x = rand(64, 96)
    want = mt.quantize_rows(x)
    for view in (x.t().contiguous().t(), x.repeat(1, 2)[:, :96], x.repeat(2, 1)[::1][:64]):
        got = mt.quantize_rows(view)
        assert torch.equal(got[0].view(torch.uint8), want[0].view(torch.uint8)) and torch.equal(got[1], want[1])


def test_scale_groups_stay_valid_mxfp8():
    x = rand(64, 512)
    codes, scales = mt.quantize_rows(x, scale_group=256, tile_rows=32)
    assert (scales.view(2, 32, 2, 8) == scales.view(2, 32, 2, 8)[:, :1, :, :1]).all()
    back = mt.dequantize(codes, scales, out_dtype=torch.float32)
    assert (back - x.float()).norm() / x.float().norm() < 0.05


@pytest.mark.parametrize("layout", ["plain", "m_groups", "k_groups", "per_expert"])
def test_layouts_come_back(layout):
    scales = torch.randint(1, 255, (3, 70, 9) if layout == "per_expert" else (70, 9), dtype=torch.uint8)
    ends = {"m_groups": make_ends([10, 0, 60]), "k_groups": make_ends([1, 0, 8])}.get(layout)
    blocked, starts = mt.block_scales(scales, ends, layout=layout)
    assert torch.equal(mt.unblock_scales(blocked, scales.shape, ends, layout=layout), scales)
    assert starts.shape == ((4,) if ends is not None else (0,))


def test_layouts_are_torchao_bytes(oracle):
    data = oracle("layouts")
    for key in [key for key in data if key.startswith("plain.") and key.endswith(".s")]:
        blocked, _ = mt.block_scales(data[key])
        assert torch.equal(blocked, data[key[:-1] + "blocked"].flatten()), key


def test_padding_comes_back_with_its_gradient():
    x, ends = rand(57, 8, dtype=torch.float32, grad=True), make_ends([3, 0, 40, 9])
    padded, starts, padded_ends = mt.group_pad(x, ends)
    assert padded.shape == (192, 8) and starts.tolist() == [0, 32, 32, 96] and padded_ends.tolist() == [32, 32, 96, 128]
    back = mt.group_unpad(padded, starts, ends, 57)
    assert torch.equal(back[:52], x[:52]) and back[52:].count_nonzero() == 0
    (back * torch.arange(57)[:, None]).sum().backward()
    want = torch.arange(57.0)[:, None].expand(57, 8).clone()
    want[52:] = 0
    assert torch.equal(x.grad, want)


def test_codes_carry_no_gradient():
    w = rand(2, 32, 32, grad=True)
    assert not any(t.requires_grad for t in (*mt.quantize_3d(w), *mt.quantize_experts(w)))


def test_bad_words_and_devices():
    x = rand(32, 32)
    with pytest.raises(mx8.InvalidArgument, match="scale_rule is 'up', expected one of rceil, floor, ceil, even"):
        mt.quantize_rows(x, scale_rule="up")
    with pytest.raises(mx8.InvalidArgument, match="scale_group is 64, expected 0, 32, 128 or 256"):
        mt.quantize_rows(x, scale_group=64)
    with pytest.raises(mx8.InvalidArgument, match="out_dtype"):
        mt.dequantize(*mt.quantize_rows(x), out_dtype=torch.int32)
    with pytest.raises(mx8.InvalidArgument, match="torch.float16"):
        mt.quantize_rows(x.half())

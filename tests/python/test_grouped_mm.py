"""grouped_mm and linear: torchao's numbers, the SQNR that MXFP8 must reach, groups of every kind, every gradient."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import mx8
import mx8.torch as mt
from helpers import make_ends, multiply_groups, run_grouped, run_reference, sqnr

EXACT = mt.RECIPES["mxfp8_emulated_rceil"]


def make(M, N, K, E, dtype=torch.bfloat16):
    return torch.randn(M, K, dtype=dtype), torch.randn(E, N, K, dtype=dtype) * 0.1, torch.randn(M, N, dtype=dtype)


@pytest.mark.parametrize("rule", ["rceil", "floor"])
@pytest.mark.parametrize("name", ["even", "ragged", "one"])
@pytest.mark.parametrize("call", ["grouped_mm", "torchao_auto", "torchao_emulated"])
def test_parity_grouped(oracle, name, rule, call):
    data = {key.rpartition(".")[2]: t for key, t in oracle("gemm").items() if key.startswith(f"grouped.{name}.{rule}.")}
    x, w = data["x"].requires_grad_(), data["w"].requires_grad_()
    x.grad = w.grad = None
    if call == "grouped_mm":
        y = mt.grouped_mm(x, w.transpose(-2, -1), data["offs"], recipe=mt.Recipe(rule, 32, 32, 1))
    else:
        y = mt._to_mxfp8_then_scaled_grouped_mm(
            x,
            w.transpose(-2, -1),
            data["offs"],
            kernel_preference=call[8:].upper(),
            scale_calculation_mode=f"ScaleCalculationMode.{rule.upper()}",
            pad_token_groups_for_grouped_mm=True,
        )
    y.backward(data["dy"])
    assert y.dtype == torch.bfloat16
    for got, key in ((y, "y"), (x.grad, "dx"), (w.grad, "dw")):
        assert sqnr(got, data[key]) >= 50, key


@pytest.mark.parametrize("rule", ["rceil", "floor"])
@pytest.mark.parametrize("name", ["a", "b"])
def test_parity_dense(oracle, name, rule):
    data = {key.rpartition(".")[2]: t for key, t in oracle("gemm").items() if key.startswith(f"dense.{name}.{rule}.")}
    x, w = data["x"].requires_grad_(), data["w"].requires_grad_()
    x.grad = w.grad = None
    y = mt.linear(x, w, recipe=mt.Recipe(rule, 32, 32, 1))
    y.backward(data["dy"])
    for got, key in ((y, "y"), (x.grad, "dx"), (w.grad, "dw")):
        assert sqnr(got, data[key]) >= 50, key


# The proportions of research shapes (Llama4's 5120 x 8192, DeepSeek's 7168 x 2048), small enough for two CPU cores.
@pytest.mark.parametrize("recipe", ["mxfp8", "mxfp8_wgrad_with_hp", "mxfp8_emulated_rceil", mt.Recipe("floor")])
@pytest.mark.parametrize("M, K, N, E", [(512, 320, 512, 1), (1040, 320, 512, 8), (1040, 448, 128, 8)])
def test_sqnr_gates(M, K, N, E, recipe):
    x, w, dy = make(M, N, K, E)
    cuts = torch.sort(torch.randint(0, M, (E - 1,))).values.to(torch.int32)
    ends = torch.cat([cuts, torch.tensor([M], dtype=torch.int32)])
    y, dx, dw, _ = run_grouped(x, w, ends, dy, recipe=recipe)
    want = run_reference(x, w, ends, dy)
    high = isinstance(recipe, str) and "wgrad_with_hp" in recipe
    assert sqnr(y, want[0]) >= 27 and sqnr(dx, want[1]) >= 25 and sqnr(dw, want[2]) >= (34 if high else 24)


@pytest.mark.parametrize("group", [128, 256])
def test_sqnr_of_the_fast_geometry(group):
    x, w, dy = make(512, 512, 512, 2)
    ends = make_ends([200, 312])
    recipe = mt.Recipe(scale_group=group, weight_scale_group=group, weight_tile_rows=32)
    y, dx, dw, _ = run_grouped(x, w, ends, dy, recipe=recipe)
    want = run_reference(x, w, ends, dy)
    assert sqnr(y, want[0]) >= 27 and sqnr(dx, want[1]) >= 25 and sqnr(dw, want[2]) >= 24


@pytest.mark.parametrize("E", [1, 8])
def test_bias_and_its_gradient(E):
    """Apart from the product: the bias is large, so that a dropped one cannot hide in the noise."""
    x, w, dy = make(512, 128, 256, E)
    ends = (torch.arange(1, E + 1) * (500 // E)).to(torch.int32)
    bias = torch.randn(128, dtype=torch.bfloat16) * 100
    y, dx, dw, dbias = run_grouped(x, w, ends, dy, bias, out_dtype=torch.float32)
    plain, dx0, dw0, _ = run_grouped(x, w, ends, dy, out_dtype=torch.float32)
    used = int(ends[-1])
    assert sqnr(y[:used] - plain[:used], bias.float().expand(used, -1)) >= 60
    assert y[used:].count_nonzero() == 0
    assert torch.equal(dx, dx0) and torch.equal(dw, dw0)
    assert dbias.dtype == bias.dtype and sqnr(dbias, dy[:used].float().sum(0)) >= 40


def test_linear_bias_and_leading_dimensions():
    x, w, b = torch.randn(3, 5, 64, requires_grad=True), torch.randn(96, 64, requires_grad=True), torch.randn(96) * 50
    b.requires_grad_()
    y = mt.linear(x, w, b)
    assert y.shape == (3, 5, 96) and y.dtype == torch.float32
    assert sqnr(y - b, x @ w.T) >= 26
    dy = torch.randn(3, 5, 96)
    y.backward(dy)
    assert sqnr(x.grad, dy @ w) >= 25 and x.grad.shape == x.shape
    assert sqnr(w.grad, dy.flatten(0, 1).T @ x.flatten(0, 1)) >= 24
    assert sqnr(b.grad, dy.sum((0, 1))) >= 60


@pytest.mark.parametrize(
    "sizes, rows", [([0, 0, 0], 9), ([1, 0, 31], 40), ([44, 0, 113, 0], 200), ([0], 0), ([33] * 65, 2145)]
)
def test_any_groups(sizes, rows):
    """Ragged and empty groups, more than 32 of them, rows behind the last: zero, and never read."""
    x, w, dy = make(rows, 64, 96, len(sizes))
    ends = make_ends(sizes)
    used = int(ends[-1])
    x[used:] = float("nan")
    dy[used:] = float("nan")
    y, dx, dw, _ = run_grouped(x, w, ends, dy)
    want = run_reference(x[:used], w, ends, dy[:used])
    assert y[used:].count_nonzero() == 0 and dx[used:].count_nonzero() == 0
    for e, size in enumerate(sizes):
        if size == 0:
            assert dw[e].count_nonzero() == 0
    if used:
        assert sqnr(y[:used], want[0]) >= 26 and sqnr(dx[:used], want[1]) >= 25 and sqnr(dw, want[2]) >= 24


def test_strides_do_not_matter():
    x, w, dy = make(70, 96, 64, 3)
    ends = make_ends([20, 0, 50])
    want = run_grouped(x, w, ends, dy)
    wide = torch.randn(70, 128, dtype=x.dtype)
    wide[:, ::2] = x
    other = w.transpose(1, 2).contiguous().transpose(1, 2)
    for got in (
        run_grouped(wide[:, ::2], other, ends, dy),
        run_grouped(x.t().contiguous().t(), w, ends.repeat_interleave(2)[::2], dy.t().contiguous().t()),
    ):
        for a, b in zip(got[:3], want[:3]):
            assert torch.equal(a, b)
    leaf = x.clone().requires_grad_()
    mt.grouped_mm(leaf, w.transpose(1, 2), ends).sum().backward()  # a gradient with strides of 0
    assert sqnr(leaf.grad, run_reference(x, w, ends, torch.ones(70, 96))[1]) >= 25


def test_double_use_adds_gradients():
    x, w, dy = make(64, 32, 32, 2)
    ends = make_ends([32, 32])
    x, w = x.float().requires_grad_(), w.float().requires_grad_()
    (mt.grouped_mm(x, w.transpose(1, 2), ends) + mt.grouped_mm(x, w.transpose(1, 2), ends)).backward(dy.float())
    once = run_grouped(x, w, ends, dy)
    assert torch.equal(x.grad, 2 * once[1]) and torch.equal(w.grad, 2 * once[2])


def test_only_what_is_asked_for():
    x, w, _ = make(64, 32, 32, 2)
    ends = make_ends([32, 32])
    a = x.clone().requires_grad_()
    mt.grouped_mm(a, w.transpose(1, 2), ends).sum().backward()
    b = w.clone().requires_grad_()
    mt.grouped_mm(x, b.transpose(1, 2), ends).sum().backward()
    bias = torch.zeros(32, requires_grad=True)
    mt.grouped_mm(x, w.transpose(1, 2), ends, bias).sum().backward()
    assert a.grad is not None and b.grad is not None and bias.grad.tolist() == [64.0] * 32
    assert not mt.grouped_mm(x, w.transpose(1, 2), ends).requires_grad


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint(reentrant):
    x, w, dy = make(64, 32, 32, 2)
    ends = make_ends([30, 34])
    x.requires_grad_(), w.requires_grad_()
    y = checkpoint(
        lambda a: torch.nn.functional.silu(mt.grouped_mm(a, w.transpose(1, 2), ends)), x, use_reentrant=reentrant
    )
    y.backward(dy)
    got = x.grad.clone(), w.grad.clone()
    x.grad = w.grad = None
    torch.nn.functional.silu(mt.grouped_mm(x, w.transpose(1, 2), ends)).backward(dy)
    assert torch.equal(got[0], x.grad) and torch.equal(got[1], w.grad)


@pytest.mark.parametrize("x_dtype, w_dtype, out", [("bfloat16", "float32", None), ("float32", "bfloat16", "bfloat16")])
def test_gradients_have_the_dtype_of_what_they_are_for(x_dtype, w_dtype, out):
    x, w = torch.randn(40, 64, dtype=getattr(torch, x_dtype)), torch.randn(2, 32, 64, dtype=getattr(torch, w_dtype))
    dy, ends = torch.randn(40, 32), make_ends([8, 32])
    out_dtype = getattr(torch, out) if out else None
    y, dx, dw, _ = run_grouped(x, w, ends, dy, out_dtype=out_dtype)
    assert y.dtype == (out_dtype or x.dtype) and dx.dtype == x.dtype and dw.dtype == w.dtype


def test_autocast():
    x, w = torch.randn(32, 64), torch.randn(2, 32, 64)
    with torch.autocast("cpu", torch.bfloat16):
        assert mt.grouped_mm(x, w.transpose(1, 2), make_ends([16, 16])).dtype == torch.bfloat16
        assert mt.linear(x, w[0]).dtype == torch.bfloat16


def test_64_bit_offsets_and_given_codes():
    x, w, _ = make(64, 32, 64, 2)
    ends = make_ends([30, 34])
    want = mt.grouped_mm(x, w.transpose(1, 2), ends)
    assert torch.equal(mt.grouped_mm(x, w.transpose(1, 2), ends.long()), want)
    wq = mt.quantize_rows(w.flatten(0, 1))
    codes, scales = wq[0].view(2, 32, 64), wq[1].view(2, 32, 2)
    assert torch.equal(torch.ops.mx8.grouped_linear(x, None, ends, wq=codes, ws=scales), want)


def test_exact_equals_dequantized():
    x, w, _ = make(64, 32, 64, 2)
    ends = make_ends([30, 34])

    def back(t):
        return mt.dequantize(*mt.quantize_rows(t), out_dtype=torch.float32)

    want = multiply_groups(back(x), torch.stack([back(m) for m in w]), ends)
    assert sqnr(mt.grouped_mm(x.float(), w.float().transpose(1, 2), ends, recipe=EXACT), want) >= 80


def test_errors():
    x, w, _ = make(64, 32, 64, 2)
    ends = make_ends([32, 32])
    for call, message in (
        (lambda: mt.grouped_mm(x, w[0], ends), r"x has 2 dimensions and w_t 2"),
        (lambda: mt.grouped_mm(x, w, ends), "w has 32 entries in dimension 2, expected 64"),
        (lambda: mt.grouped_mm(x, w.transpose(1, 2), make_ends([64])), "expected"),
        (lambda: mt.grouped_mm(x, w.transpose(1, 2), ends, recipe="fp4"), "recipe is 'fp4', expected one of mxfp8"),
        (lambda: mt._to_mxfp8_then_scaled_grouped_mm(x, w.transpose(1, 2), None), "offs is None"),
        (lambda: mt._to_mxfp8_then_scaled_grouped_mm(x, w.transpose(1, 2), ends, kernel_preference="TRITON"), "AUTO"),
        (lambda: mt.linear(x[:, :40], w[0][:, :40]), "expected a multiple of 32"),
    ):
        with pytest.raises(mx8.InvalidArgument, match=message):
            call()

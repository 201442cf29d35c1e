"""The way around the dispatcher: the same bits as through it, and only while nothing watches; counting of products."""

from __future__ import annotations

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import mx8
import mx8.torch as mt
from helpers import make_ends, run_grouped
from mx8.torch import _eager


class Watch(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def make(rows=70):
    x, w = torch.randn(rows, 64, dtype=torch.bfloat16), torch.randn(3, 96, 64, dtype=torch.bfloat16)
    return x, w, make_ends([10, 0, rows - 13]), torch.randn(rows, 96, dtype=torch.bfloat16), torch.randn(96)


def run_linear(x, w, dy, bias, **options):
    leaves = [t.detach().requires_grad_() for t in (x, w, bias)]
    y = mt.linear(*leaves, **options)
    return (y.detach(), *torch.autograd.grad(y, leaves, dy))


def run_all():
    x, w, ends, dy, bias = make()
    scattered = torch.stack([bias, bias], 1)[:, 0]
    strided = torch.stack([ends, ends], 1)[:, 0]
    return (
        *run_linear(x, w[0], dy, bias),
        *run_linear(x.t().contiguous().t(), w[0], dy[:, :1].expand(-1, 96), scattered, recipe="mxfp8_wgrad_with_hp"),
        *run_grouped(x, w, ends, dy, bias),
        *run_grouped(x, w, strided, dy, scattered, recipe="mxfp8_emulated_rceil"),
        mt.linear(x, w[0]),
        mt.grouped_mm(x, w.transpose(-2, -1), ends),
        *mt.quantize_rows(x),
        *mt.quantize_cols(x, strided),
        *mt.quantize_both(x, ends, scale_group=128),
        *mt.quantize_3d(w),
        *mt.quantize_experts(w, scale_group=256, tile_rows=32),
        mt.dequantize(*mt.quantize_rows(x)),
    )


def test_both_ways_give_the_same(monkeypatch):
    direct = run_all()
    monkeypatch.setattr(_eager, "_watchers", ())
    torch.manual_seed(0)
    for got, want in zip(direct, run_all()):
        assert got.shape == want.shape and got.stride() == want.stride() and got.dtype == want.dtype
        assert torch.equal(got.contiguous().view(torch.uint8), want.contiguous().view(torch.uint8))


def test_this_torch_can_be_asked():
    x = torch.randn(4, 32)
    assert len(_eager._watchers) == 5 and _eager.is_direct((x, None, torch.nn.Parameter(x)))


def test_watchers_see_the_operators():
    x, w, ends, dy, bias = make()
    with Watch() as watch:
        run_grouped(x, w, ends, dy, bias)
        mt.quantize_rows(x)
    for name in ("grouped_linear", "grouped_linear_backward", "quantize_rows"):
        assert f"mx8.{name}.default" in watch.names
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        mt.linear(x, w[0])
    assert "mx8::linear" in {event.name for event in profile.events()}


class Calls(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_not_around_what_rewrites_calls():
    class Other(torch.Tensor):
        pass

    x = torch.randn(4, 32)
    assert not _eager.is_direct((x.as_subclass(Other),))
    assert not _eager.is_direct((x, x.to("meta")))
    assert not _eager.is_direct((torch.complex(x, x).conj().imag,))  # negated, but not yet in memory
    assert not torch.func.vmap(lambda t: torch.full((), _eager.is_direct((t,))))(x).any()
    with Calls() as calls:
        mt.quantize_rows(x)
    assert any("quantize_rows" in name for name in calls.names)
    want = mt.quantize_rows(-x)
    got = mt.quantize_rows(torch.complex(x, x).conj().imag)
    assert torch.equal(got[0].view(torch.uint8), want[0].view(torch.uint8))


def test_errors_are_the_same(monkeypatch):
    x, w, _, _, _ = make()
    for _ in range(2):
        with pytest.raises(mx8.InvalidArgument, match="w has 96|expected 64|K"):
            mt.linear(x, w[0].t())
        with pytest.raises(mx8.InvalidArgument, match="torch.float16"):
            mt.quantize_rows(x.half())
        monkeypatch.setattr(_eager, "_watchers", ())


def test_products_are_counted():
    x, w, ends, dy, bias = make()
    before = mt.count_products()
    run_grouped(x, w, ends, dy, bias)
    mt.linear(x, w[0])
    after = mt.count_products()
    assert after["exact"] - before["exact"] == 4 and after["fast"] == 0  # on a CPU all are exact
    run_grouped(x, w, ends, dy, bias, recipe="mxfp8_wgrad_with_hp")  # of which the weight gradient is no MXFP8 product
    assert mt.count_products()["exact"] - after["exact"] == 2

"""torch.compile: one graph, the bits of eager mode, and no compilation for each new token count."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.testing import CompileCounterWithBackend
from torch._functorch.partitioners import min_cut_rematerialization_partition

import mx8
import mx8.torch as mt
from helpers import make_ends


class Experts(torch.nn.Module):
    def __init__(self, E=3, dim=64, hidden=96):
        super().__init__()
        self.w1 = torch.nn.Parameter(torch.randn(E, hidden, dim) * 0.1)
        self.w2 = torch.nn.Parameter(torch.randn(E, dim, hidden) * 0.1)

    def forward(self, x, offs):
        h = F.silu(torch._grouped_mm(x, self.w1.bfloat16().transpose(-2, -1), offs=offs))
        return torch._grouped_mm(h, self.w2.bfloat16().transpose(-2, -1), offs=offs)


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(64, 64)
        self.experts = Experts()

    def forward(self, x, offs):
        return self.experts(self.up(x).bfloat16(), offs)


def run(f, model, x, offs):
    model.zero_grad()
    leaf = x.clone().requires_grad_()
    y = f(leaf, offs)
    y.float().square().sum().backward()
    return [y.detach(), leaf.grad, *(p.grad.clone() for p in model.parameters())]


def compare(backend):
    model = mt.convert(Layer(), linear="up", experts="experts", verbose=False)
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    frames = []
    for rows in (70, 80, 96, 33, 128, 70):
        x, offs = torch.randn(rows, 64), make_ends([10, 0, rows - 13])
        for got, want in zip(run(compiled, model, x, offs), run(model, model, x, offs)):
            assert torch.equal(got, want)
        frames.append(counter.frame_count)
    assert frames[1:] == frames[1:2] * 5, "a new token count compiled again"


def test_one_graph_for_all_token_counts():
    compare("aot_eager")


class SwiGLU(torch.nn.Module):
    """Experts and a dense layer beside them, where two products read the same x."""

    def __init__(self):
        super().__init__()
        self.w1, self.w2, self.w3 = (torch.nn.Parameter(torch.randn(3, 64, 64) * 0.1) for _ in range(3))
        self.up, self.gate = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64, bias=False)

    def forward(self, x, offs):
        h = F.silu(mt.grouped_mm(x, self.w1.transpose(-2, -1), offs)) * mt.grouped_mm(
            x, self.w3.transpose(-2, -1), offs
        )
        dense = F.silu(mt.linear(x, self.up.weight, self.up.bias)) * mt.linear(x, self.gate.weight)
        return mt.grouped_mm(h, self.w2.transpose(-2, -1), offs) + dense


def test_products_share_the_codes_of_what_they_read():
    calls = []

    def keep(graph, inputs):
        calls.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return make_boxed_func(graph.forward)

    model, x, offs = SwiGLU(), torch.randn(70, 64), make_ends([10, 0, 57])
    backend = aot_autograd(fw_compiler=keep, partition_fn=min_cut_rematerialization_partition)
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    for got, want in zip(run(compiled, model, x, offs), run(model, model, x, offs)):
        assert torch.equal(got, want)
    assert calls.count("mx8.quantize_both.default") == 2  # of x and of h, for forward and backward
    assert calls.count("mx8.quantize_rows.default") == 1  # of x, for both dense layers
    calls.clear()
    with torch.no_grad():
        assert torch.equal(compiled(x, offs), model(x, offs))
    assert "mx8.quantize_both.default" not in calls  # no gradient, no columns


def has_cxx() -> bool:
    return bool(shutil.which("g++")) and (Path(sysconfig.get_path("include")) / "Python.h").exists()


@pytest.mark.skipif(not has_cxx(), reason="inductor needs g++ and Python.h")
def test_inductor_keeps_strides():
    """Inductor may lay tensors out anew; the operators must still see and give the strides that they state."""

    def f(w):
        codes, scales = mt.quantize_3d(w * 2)
        return codes, scales, mt.quantize_3d(w.transpose(1, 2) + 1)[1], *mt.quantize_experts(w * 3)

    w = torch.randn(2, 64, 96)
    got, want = torch.compile(f, fullgraph=True)(w), f(w)
    assert got[0].stride() == want[0].stride() == got[5].stride() == (64 * 96, 1, 64)
    for a, b in zip(got, want):
        assert torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def test_every_function_compiles_with_dynamic_sizes():
    def f(x, w, ends, scales):
        padded, starts, _ = mt.group_pad(x, ends)
        back = mt.group_unpad(padded, starts, ends, x.shape[0])
        rows = mt.quantize_rows(x)
        return (
            *rows,
            *mt.quantize_cols(x, ends),
            *mt.quantize_both(x),
            *mt.quantize_3d(w),
            *mt.quantize_experts(w),
            mt.dequantize(*rows),
            back,
            mt.unblock_scales(mt.block_scales(scales)[0], scales.shape),
            *mt.block_scales(scales, ends, layout="m_groups"),
        )

    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(f, backend=counter, fullgraph=True, dynamic=True)
    for rows, cols in ((40, 64), (57, 96), (64, 128)):
        x, w = torch.randn(rows, cols), torch.randn(3, rows, cols)
        scales = torch.randint(0, 255, (rows, 5), dtype=torch.uint8)
        args = x, w, make_ends([3, 0, rows - 5]), scales
        for got, want in zip(compiled(*args), f(*args)):
            assert got.shape == want.shape and got.stride() == want.stride() and got.dtype == want.dtype
            assert torch.equal(got.contiguous().view(torch.uint8), want.contiguous().view(torch.uint8))
    assert counter.frame_count == 1


def test_errors_come_through():
    with pytest.raises(Exception, match="expected a multiple of 32") as caught:
        torch.compile(lambda x, w: mt.linear(x, w), backend="eager", fullgraph=True)(
            torch.randn(4, 40), torch.randn(32, 40)
        )
    assert isinstance(caught.value, (mx8.InvalidArgument, RuntimeError))

"""The operators on a GPU: the CPU's bits and numbers, graph capture, streams, and no wait for the device."""

from __future__ import annotations

import pytest
import torch

import mx8
import mx8.lib
import mx8.torch as mt
from helpers import make_ends, run_grouped, run_reference, sqnr


def has_backend() -> bool:
    if not torch.cuda.is_available():
        return False
    try:
        mx8.lib.Context("cuda")
    except mx8.Error:
        return False
    return True


pytestmark = pytest.mark.skipif(not has_backend(), reason="needs a CUDA device and libmx8_cuda.so")


def make(M, N, K, E):
    return (
        torch.randn(M, K, dtype=torch.bfloat16),
        torch.randn(E, N, K, dtype=torch.bfloat16) * 0.1,
        torch.randn(M, N, dtype=torch.bfloat16),
    )


def to_cuda(*tensors):
    return [t.cuda() if t is not None else None for t in tensors]


@pytest.mark.parametrize("group, tile", [(32, 1), (256, 1), (256, 32)])
def test_quantizers_give_the_cpu_bits(group, tile):
    x, w, _ = make(320, 256, 512, 2)
    ends = make_ends([100, 0, 220])
    style = dict(scale_group=group, tile_rows=tile)
    for function, tensors in (
        (mt.quantize_rows, [x]),
        (mt.quantize_cols, [x]),
        (mt.quantize_cols, [x, ends]),
        (mt.quantize_both, [x, ends]),
        (mt.quantize_3d, [w]),
        (mt.quantize_experts, [w]),
        (mt.quantize_rows, [x.t()]),
    ):
        for got, want in zip(function(*to_cuda(*tensors), **style), function(*tensors, **style)):
            assert got.stride() == want.stride()
            assert torch.equal(got.cpu().contiguous().view(torch.uint8), want.contiguous().view(torch.uint8))


@pytest.mark.parametrize("recipe", ["mxfp8", "mxfp8_32", "mxfp8_emulated_rceil", "mxfp8_wgrad_with_hp"])
@pytest.mark.parametrize("sizes, rows", [([256, 0, 300, 212], 800), ([33, 95], 130), ([1024], 1024)])
def test_grouped_mm(recipe, sizes, rows):
    x, w, dy = make(rows, 256, 512, len(sizes))
    ends = make_ends(sizes)
    used = int(ends[-1])
    bias = torch.randn(256) * 10
    got = run_grouped(*to_cuda(x, w, ends, dy, bias), recipe=recipe)
    want = run_reference(x[:used], w, ends, dy[:used], bias)
    assert sqnr(got[0][:used].cpu(), want[0]) >= 27 and got[0][used:].count_nonzero() == 0
    assert sqnr(got[1][:used].cpu(), want[1]) >= 25 and got[1][used:].count_nonzero() == 0
    assert sqnr(got[2].cpu(), want[2]) >= 24 and sqnr(got[3].cpu(), want[3]) >= 40


def step(x, w, ends):
    y = mt.grouped_mm(x, w.transpose(-2, -1), ends)
    return y, *torch.autograd.grad(y.float().square().sum(), (x, w))


def test_all_products_are_fast():
    """Shapes as large models have them: the default recipe leaves none to the exact path on Hopper."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("tensor cores that multiply FP8 by this recipe are Hopper's")
    before = mt.count_products()
    x, w, dy = to_cuda(*make(1024, 512, 768, 4))
    run_grouped(x, w, make_ends([256, 100, 412, 200]).cuda(), dy)
    leaves = [t.detach().requires_grad_() for t in (x, w[0])]
    torch.autograd.grad(mt.linear(*leaves), leaves, dy)
    after = mt.count_products()
    assert after["exact"] == before["exact"] and after["fast"] - before["fast"] == 6


def test_nothing_waits_and_graphs_capture():
    x, w, _ = to_cuda(*make(1024, 256, 512, 4))
    ends = make_ends([256, 100, 412, 200]).cuda()
    x.requires_grad_(), w.requires_grad_()
    step(x, w, ends)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step(x, w, ends)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            step(x, w, ends)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step(x, w, ends)
    for seed in (1, 2):
        torch.manual_seed(seed)
        with torch.no_grad():
            x.copy_(torch.randn_like(x))
        ends.copy_(make_ends([0, 512, 12 * seed, 300]))
        graph.replay()
        for got, want in zip(results, step(x, w, ends)):
            assert torch.equal(got, want)


def test_current_stream_is_used():
    x, w, _ = to_cuda(*make(4096, 1024, 1024, 1))
    ends = make_ends([4096]).cuda()
    want = mt.grouped_mm(x, w.transpose(-2, -1), ends)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        late = torch.zeros_like(x)
        torch.cuda._sleep(50_000_000)
        late.copy_(x)
        got = mt.grouped_mm(late, w.transpose(-2, -1), ends)
    stream.synchronize()
    assert torch.equal(got, want)


def test_compile_with_inductor():
    x, w, _ = to_cuda(*make(512, 256, 512, 2))
    x.requires_grad_(), w.requires_grad_()
    # autograd.grad stays outside: Dynamo does not trace it.
    compiled = torch.compile(lambda x, w, ends: mt.grouped_mm(x, w.transpose(-2, -1), ends), fullgraph=True)
    for rows in (512, 500, 384):
        ends = make_ends([100, rows - 120]).cuda()
        part = x[:rows].detach().requires_grad_()
        y = compiled(part, w, ends)
        results = (y, *torch.autograd.grad(y.float().square().sum(), (part, w)))
        for got, want in zip(results, step(part, w, ends)):
            assert sqnr(got, want) >= 60


def test_tensors_on_two_devices_are_refused():
    x, w, _ = make(64, 32, 32, 1)
    with pytest.raises(Exception, match="expected one device|same device|cuda"):
        mt.grouped_mm(x.cuda(), w.transpose(-2, -1), make_ends([64]))

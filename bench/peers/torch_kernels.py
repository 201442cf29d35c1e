#!/usr/bin/env python3
"""Kernel ceilings and peers on one GPU, PyTorch side: copy bandwidth, dense bf16 and fp8
GEMM, bf16 and fp8-rowwise grouped GEMM at Llama4's expert shapes (forward, dgrad, wgrad); and mx8's operators
at the same shapes in the same run, where mx8 can be imported (python/ on PYTHONPATH, MX8_LIBRARY): products,
quantizers, and what one call costs from Python. One JSON line a measurement. Names of parts (PARTS below) leave out the others. Times are medians of event-timed runs over rotated inputs."""
import json, statistics, sys, torch
dev = "cuda"; torch.manual_seed(0)


def timed(fn, n=20, warm=5):
    for _ in range(warm): fn()
    torch.cuda.synchronize(); ts = []
    for _ in range(n):
        s, e = torch.cuda.Event(True), torch.cuda.Event(True)
        s.record(); fn(); e.record(); torch.cuda.synchronize(); ts.append(s.elapsed_time(e))
    return statistics.median(ts) / 1e3


def out(name, t, flops=0, bytes_=0, **k):
    print(json.dumps(dict(name=name, us=round(t * 1e6, 1), tflops=round(flops / t / 1e12, 1),
          gbps=round(bytes_ / t / 1e9, 1), **k)), flush=True)


def attempt(f):
    try: f()
    except Exception as e: print(json.dumps(dict(error=f"{f.__name__}: {type(e).__name__}: {str(e)[:300]}")), flush=True)


def copy():
    a = torch.randn(2**30, device=dev, dtype=torch.bfloat16); b = torch.empty_like(a)
    out("copy", timed(lambda: b.copy_(a)), bytes_=2 * a.numel() * 2)


def dense(M, N, K):
    def bf16():
        a = torch.randn(M, K, device=dev, dtype=torch.bfloat16); b = torch.randn(N, K, device=dev, dtype=torch.bfloat16)
        out("bf16_mm", timed(lambda: a @ b.t()), 2 * M * N * K, shape=[M, N, K])
    def fp8_row():
        a = torch.randn(M, K, device=dev).to(torch.float8_e4m3fn); b = torch.randn(N, K, device=dev).to(torch.float8_e4m3fn)
        sa = torch.rand(M, 1, device=dev); sb = torch.rand(1, N, device=dev)
        for fast in (True, False):
            out(f"fp8_rowwise_scaled_mm fast_accum={fast}", timed(lambda: torch._scaled_mm(a, b.t(), sa, sb, out_dtype=torch.bfloat16, use_fast_accum=fast)), 2 * M * N * K, shape=[M, N, K])
    def fp8_tensor():
        a = torch.randn(M, K, device=dev).to(torch.float8_e4m3fn); b = torch.randn(N, K, device=dev).to(torch.float8_e4m3fn)
        sa = torch.ones((), device=dev); sb = torch.ones((), device=dev)
        out("fp8_tensorwise_scaled_mm", timed(lambda: torch._scaled_mm(a, b.t(), sa, sb, out_dtype=torch.bfloat16)), 2 * M * N * K, shape=[M, N, K])
    def fp8_block():
        from torch.nn.functional import scaled_mm, ScalingType
        a = torch.randn(M, K, device=dev).to(torch.float8_e4m3fn); b = torch.randn(N, K, device=dev).to(torch.float8_e4m3fn)
        sa = torch.rand(K // 128, M, device=dev).t()
        sb1 = torch.rand(K // 128, N, device=dev).t()
        sb2 = torch.rand(N // 128, K // 128, device=dev)
        def f11(): return scaled_mm(a, b.t(), sa, ScalingType.BlockWise1x128, sb1, ScalingType.BlockWise1x128, output_dtype=torch.bfloat16)
        def f12(): return scaled_mm(a, b.t(), sa, ScalingType.BlockWise1x128, sb2, ScalingType.BlockWise128x128, output_dtype=torch.bfloat16)
        def r11(): out("fp8_1x128_1x128_scaled_mm", timed(f11), 2 * M * N * K, shape=[M, N, K])
        def r12(): out("fp8_1x128_128x128_scaled_mm", timed(f12), 2 * M * N * K, shape=[M, N, K])
        attempt(r11); attempt(r12)
    for f in (bf16, fp8_row, fp8_tensor, fp8_block): attempt(f)


def grouped(M, N, K, G):
    offs = torch.arange(1, G + 1, device=dev, dtype=torch.int32) * (M // G)
    x = torch.randn(M, K, device=dev, dtype=torch.bfloat16); w = torch.randn(G, N, K, device=dev, dtype=torch.bfloat16)
    g = torch.randn(M, N, device=dev, dtype=torch.bfloat16); fl = 2 * M * N * K; k = dict(shape=[M, N, K], groups=G)
    def bf16():
        out("bf16_grouped fwd", timed(lambda: torch._grouped_mm(x, w.transpose(-2, -1), offs=offs)), fl, **k)
        out("bf16_grouped dgrad", timed(lambda: torch._grouped_mm(g, w, offs=offs)), fl, **k)
        out("bf16_grouped wgrad", timed(lambda: torch._grouped_mm(g.t(), x, offs=offs)), fl, **k)
    def fp8():
        q = x.to(torch.float8_e4m3fn); r = w.to(torch.float8_e4m3fn)
        sa = torch.rand(M, device=dev); sb = torch.rand(G, N, device=dev)
        for fast in (True, False):
            out(f"fp8_rowwise_grouped fwd fast_accum={fast}", timed(lambda: torch._scaled_grouped_mm(q, r.transpose(-2, -1), sa, sb, offs=offs, out_dtype=torch.bfloat16, use_fast_accum=fast)), fl, **k)
        gt = g.t().contiguous().to(torch.float8_e4m3fn); xt = x.t().contiguous().to(torch.float8_e4m3fn)
        s1 = torch.rand(N * G, device=dev); s2 = torch.rand(K * G, device=dev)
        out("fp8_rowwise_grouped wgrad", timed(lambda: torch._scaled_grouped_mm(gt, xt.t(), s1, s2, offs=offs, out_dtype=torch.bfloat16, use_fast_accum=True)), fl, **k)
    for f in (bf16, fp8): attempt(f)


def quantize():
    M, K = 65536, 5120
    x = torch.randn(M, K, device=dev, dtype=torch.bfloat16)
    def q(x):
        b = x.view(M, K // 32, 32).float(); am = b.abs().amax(-1)
        e = torch.ceil(torch.log2(am / 448.0)).clamp(-127, 127)
        return (b * torch.exp2(-e)[..., None]).to(torch.float8_e4m3fn).view(M, K), (e + 127).to(torch.uint8)
    def q1(x):
        b = x.view(M // 32, 32, K).float(); am = b.abs().amax(1)
        e = torch.ceil(torch.log2(am / 448.0)).clamp(-127, 127)
        return (b * torch.exp2(-e)[:, None]).to(torch.float8_e4m3fn).view(M, K).t().contiguous(), (e + 127).to(torch.uint8).t().contiguous()
    by = M * K * 3 + M * K // 32
    for n, f in (("compiled mxfp8 quantize 1x32", q), ("compiled mxfp8 quantize 32x1 transposed", q1)):
        c = torch.compile(f); out(n, timed(lambda: c(x)), bytes_=by, shape=[M, K])


def mx8_grouped(M, N, K, G):
    """Whole operators, quantizing included, and the products alone on codes that were made before."""
    import mx8.torch as mt
    op, geometry = torch.ops.mx8, mt.RECIPES["mxfp8"].get_options(torch.device(dev, torch.cuda.current_device()))
    offs = torch.arange(1, G + 1, device=dev, dtype=torch.int32) * (M // G)
    x = torch.randn(M, K, device=dev, dtype=torch.bfloat16); w = torch.randn(G, N, K, device=dev, dtype=torch.bfloat16)
    g = torch.randn(M, N, device=dev, dtype=torch.bfloat16); fl = 2 * M * N * K; k = dict(shape=[M, N, K], groups=G)
    bf = dict(weight_dtype=torch.bfloat16)
    style = dict(scale_group=geometry["scale_group"]); tile = dict(scale_group=geometry["weight_scale_group"], tile_rows=geometry["weight_tile_rows"])
    def whole():
        out("mx8_grouped fwd", timed(lambda: mt.grouped_mm(x, w.transpose(-2, -1), offs)), fl, **k)
        out("mx8_grouped dgrad", timed(lambda: op.grouped_linear_backward(g, None, w, offs, **geometry)), fl, **k)
        out("mx8_grouped wgrad", timed(lambda: op.grouped_linear_backward(g, x, None, offs, **geometry, **bf)), fl, **k)
    def products():
        xq, xs = mt.quantize_rows(x, **style)
        wq, ws = (t.view(G, N, -1) for t in mt.quantize_rows(w.view(G * N, K), **tile))
        out("mx8_grouped fwd, product alone", timed(lambda: op.grouped_linear(None, None, offs, None, xq, xs, wq, ws, **geometry)), fl, **k)
        gq, gs, gqt, gst, ends = mt.quantize_both(g, offs, alignment=geometry["alignment"], **style)
        wqt, wst = mt.quantize_3d(w, **tile)
        given = dict(dyq=gq, dys=gs, dyq_t=gqt, dys_t=gst, ends=ends)
        out("mx8_grouped dgrad, product alone", timed(lambda: op.grouped_linear_backward(g, None, None, offs, **given, wq_t=wqt, ws_t=wst, **geometry)), fl, **k)
        xqt, xst, _ = mt.quantize_cols(x, offs, **(style | dict(tile_rows=geometry["col_tile_rows"] or 1, alignment=geometry["alignment"])))
        out("mx8_grouped wgrad, product alone", timed(lambda: op.grouped_linear_backward(g, None, None, offs, **given, xq_t=xqt, xs_t=xst, **geometry, **bf)), fl, **k)
    for f in (whole, products): attempt(f)


def mx8_quantizers(M, K):
    import mx8.torch as mt
    x = torch.randn(M, K, device=dev, dtype=torch.bfloat16); w = torch.randn(8, 8192, K, device=dev, dtype=torch.bfloat16)
    ends = torch.tensor([M], device=dev, dtype=torch.int32); one, both = M * K * (3 + 1 / 32), M * K * (4 + 2 / 32)
    for group, tile in ((32, 1), (256, 1), (256, 32)):
        k = dict(shape=[M, K], scale_group=group, tile_rows=tile); o = dict(scale_group=group, tile_rows=tile)
        out("mx8 quantize_rows", timed(lambda: mt.quantize_rows(x, **o)), bytes_=one, **k)
        out("mx8 quantize_cols", timed(lambda: mt.quantize_cols(x, ends, **o)), bytes_=one, **k)
        out("mx8 quantize_both", timed(lambda: mt.quantize_both(x, ends, **o)), bytes_=both, **k)
        out("mx8 quantize_3d", timed(lambda: mt.quantize_3d(w, **o)), bytes_=w.numel() * (3 + 1 / 32), **k | dict(shape=list(w.shape)))


def mx8_overhead():
    """Time of a call from Python on tensors so small that the GPU keeps up: the host's side alone."""
    import time, mx8.torch as mt
    x = torch.randn(32, 256, device=dev, dtype=torch.bfloat16); w = torch.randn(1, 32, 256, device=dev, dtype=torch.bfloat16)
    offs = torch.tensor([32], device=dev, dtype=torch.int32)
    calls = dict(quantize_rows=lambda: mt.quantize_rows(x), grouped_mm=lambda: mt.grouped_mm(x, w.transpose(-2, -1), offs),
                 torch_grouped_mm=lambda: torch._grouped_mm(x, w.transpose(-2, -1), offs=offs), torch_empty=lambda: torch.empty(8, device=dev))
    for name, f in calls.items():
        for _ in range(50): f()
        torch.cuda.synchronize(); ts = []
        for _ in range(20):
            t = time.perf_counter()
            for _ in range(20): f()
            ts.append((time.perf_counter() - t) / 20); torch.cuda.synchronize()
        out(f"host time of {name}", statistics.median(ts))


SHAPES = [(65536, 8192, 5120, G) for G in (1, 2, 4, 8)] + [(65536, 2048, 7168, 8)]
PARTS = dict(copy=[lambda: attempt(copy)],
             dense=[lambda: dense(8192, 8192, 8192), lambda: dense(65536, 8192, 5120)],
             grouped=[lambda s=s: grouped(*s) for s in SHAPES],
             quantize=[lambda: attempt(quantize)],
             mx8_grouped=[lambda s=s: mx8_grouped(*s) for s in SHAPES],
             mx8_quantizers=[lambda: attempt(lambda: mx8_quantizers(65536, 5120))],
             mx8_overhead=[lambda: attempt(mx8_overhead)])


def main():
    names = sys.argv[1:] or list(PARTS)
    if unknown := [n for n in names if n not in PARTS]:
        sys.exit(f"torch_kernels: {unknown[0]} is no part, expected {', '.join(PARTS)}")
    try: import mx8.torch
    except ImportError as e:
        print(json.dumps(dict(skipped=f"mx8: {e}")), flush=True)
        names = [n for n in names if not n.startswith("mx8")]
    for name in names:
        for run in PARTS[name]: run()


main()

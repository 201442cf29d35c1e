#!/usr/bin/env python3
"""DeepGEMM's FP8 products at the shapes of bench/cuda_kernels.c, for a run beside it: 1 x 128 scales of tokens by
128 x 128 of weights (forward, input gradient), 1 x 128 by 1 x 128 added to fp32 (weight gradient, one product per
group along its tokens). Its scales are fp32, not powers of two: a peer in speed, not the same numbers. A JSON line a
measurement: a burst of 20 between events, then --sustain seconds without a pause. Needs deep_gemm (PyPI:
sgl-deep-gemm), which compiles its kernels at the first call with nvcc. Scales are made once; products alone are timed."""
import argparse, json, statistics, sys, time
import torch

device = "cuda"


def cast_blocks(x, rows, columns):
    """x (.., M, N) -> e4m3 codes and fp32 scales of rows x columns blocks."""
    *lead, m, n = x.shape
    blocks = x.view(*lead, m // rows, rows, n // columns, columns).float()
    scale = blocks.abs().amax((-3, -1), keepdim=True).clamp(1e-4) / 448.0
    codes = (blocks / scale).to(torch.float8_e4m3fn).view(*lead, m, n)
    return codes, scale.view(*lead, m // rows, n // columns)


def cast(x, rows, columns, piece=4096):
    """cast_blocks by pieces of the first axis: a whole fp32 copy of 65,536 x 8192 is not needed."""
    step = piece if x.dim() == 2 else 1
    parts = [cast_blocks(p, rows, columns) for p in x.split(step)]
    return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])


def cast_tokens_last(x, piece=4096):
    """x (tokens, N) -> codes (tokens, N) and scales (tokens / 128, N) of 128 tokens each."""
    parts = [cast_blocks(p, 128, 1) for p in x.split(piece)]
    return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])


def measure(name, call, flops, sustain, **labels):
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    bursts = []
    for _ in range(20):
        begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
        begin.record(); call(); end.record(); torch.cuda.synchronize()
        bursts.append(begin.elapsed_time(end) / 1e3)
    count = max(1, int(sustain / statistics.median(bursts)))
    for _ in range(count // 3): # the clock settles under the power limit
        call()
    begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
    begin.record()
    for _ in range(count):
        call()
    end.record(); torch.cuda.synchronize()
    steady = begin.elapsed_time(end) / 1e3 / count
    print(json.dumps(dict(name=name, burst_tflops=round(flops / statistics.median(bursts) / 1e12, 1),
                          tflops=round(flops / steady / 1e12, 1), runs=count, **labels)), flush=True)


def sizes(tokens, groups, skewed):
    """Rows of each group; skewed as in bench/cuda_kernels.c (1, 2, 3 .. parts), cut to the multiples of 128 that DeepGEMM needs."""
    def end(g):
        return tokens * g * (g + 1) // (groups * (groups + 1)) // 128 * 128 if skewed else tokens * g // groups
    ends = [end(g) for g in range(groups)] + [tokens]
    return [b - a for a, b in zip(ends, ends[1:])]


def m_grouped(deep, tokens, n, k, ends, skewed, sustain, what):
    groups = len(ends)
    x = cast(torch.randn(tokens, k, device=device, dtype=torch.bfloat16), 1, 128)
    w = cast(torch.randn(groups, n, k, device=device, dtype=torch.bfloat16), 128, 128)
    out = torch.empty(tokens, n, device=device, dtype=torch.bfloat16)
    layout = torch.repeat_interleave(torch.arange(groups, device=device, dtype=torch.int32), torch.tensor(ends, device=device))
    measure("deepgemm " + what, lambda: deep.m_grouped_fp8_gemm_nt_contiguous(x, w, out, layout), 2 * tokens * n * k, sustain,
            shape=[tokens, n, k], groups=groups, skewed=skewed)


def k_grouped(deep, tokens, n, k, ends, skewed, sustain):
    groups = len(ends)
    def operand(width):
        codes, scales = cast_tokens_last(torch.randn(tokens, width, device=device, dtype=torch.bfloat16))
        flat = torch.cat([part.t().reshape(-1) for part in codes.split(ends)])
        return flat, scales.t()
    dy, x = operand(n), operand(k)
    out = torch.zeros(groups, n, k, device=device)
    ks = torch.tensor(ends, device=device, dtype=torch.int32)
    measure("deepgemm wgrad", lambda: deep.k_grouped_fp8_gemm_nt_contiguous(dy, x, out, ends, ks, out, recipe=(1, 1, 128)),
            2 * tokens * n * k, sustain, shape=[tokens, n, k], groups=groups, skewed=skewed)


def dense(deep, m, n, k, sustain):
    x = cast(torch.randn(m, k, device=device, dtype=torch.bfloat16), 1, 128)
    w = cast(torch.randn(n, k, device=device, dtype=torch.bfloat16), 128, 128)
    out = torch.empty(m, n, device=device, dtype=torch.bfloat16)
    measure("deepgemm dense", lambda: deep.fp8_gemm_nt(x, w, out), 2 * m * n * k, sustain, shape=[m, n, k], groups=0, skewed=False)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--sustain", type=float, default=0.7, help="seconds without a pause [0.7]")
    p.add_argument("--groups", default="1,2,4,8")
    a = p.parse_args()
    try:
        import deep_gemm as deep
    except Exception as e: # not installed, or built for another PyTorch
        print(json.dumps(dict(skipped=f"deep_gemm: {type(e).__name__}: {e}"[:300])))
        sys.exit(0)
    torch.manual_seed(0)

    def attempt(what, call, *args):
        try:
            call(deep, *args)
        except Exception as e:
            print(json.dumps(dict(error=f"deepgemm {what} {args[:3]}: {type(e).__name__}: {e}"[:400])), flush=True)
        torch.cuda.empty_cache()
    start = time.perf_counter()
    attempt("dense", dense, 8192, 8192, 8192, a.sustain)
    attempt("dense", dense, 65536, 8192, 5120, a.sustain)
    jobs = [(65536, 8192, 5120, sizes(65536, int(g), False), False) for g in a.groups.split(",")]
    jobs += [(65536, 8192, 5120, sizes(65536, 8, True), True), (65536, 2048, 7168, sizes(65536, 8, False), False)]
    for tokens, n, k, ends, skewed in jobs:
        attempt("fwd", m_grouped, tokens, n, k, ends, skewed, a.sustain, "fwd")
        attempt("dgrad", m_grouped, tokens, k, n, ends, skewed, a.sustain, "dgrad")
        attempt("wgrad", k_grouped, tokens, n, k, ends, skewed, a.sustain)
    print(json.dumps(dict(seconds=round(time.perf_counter() - start, 1), torch=torch.__version__)))


if __name__ == "__main__":
    main()

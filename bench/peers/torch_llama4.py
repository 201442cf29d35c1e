#!/usr/bin/env python3
"""The PyTorch job of the MXFP8 benchmark, on one GPU: the side to beat, and the same job with mx8's operators in it.

A Llama4-style MoE decoder (dim 5120, 40/8 heads, top-1 sigmoid routing, one shared
expert, SwiGLU hidden 8192, vocab 202048), FSDP2 mixed precision (fp32 master weights,
bf16 compute, fp32 gradient reduction) with a world of one, torch.compile per block,
fused AdamW, gradient clipping, random tokens. Prints one JSON line:
median tokens/s and step time without the first two steps, peak memory in GiB (allocated and reserved), and how often
PyTorch's allocator had to give its cache back and ask again (alloc_retries: each one waits for the GPU), with the step
time of the steps in which it did not. --expandable-segments lets it grow what it has instead, for all recipes alike.

  torch_llama4.py --layers 2 --experts 2 --seq-len 8192 --batch 4 --recipe bf16
  recipes: bf16 | fp8_dense | fp8_moe (need torchao on PYTHONPATH: an unpacked wheel of 0.17 or 0.18 will do) |
  mx8_dense | mx8 (dense and experts; need python/ on PYTHONPATH, libmx8.so with libmx8_cuda.so beside it in MX8_LIBRARY) |
  mx8_gather (mx8, and FSDP gathers its weights as codes);
  with _head behind one of the last five the output projection is converted too. Several, with commas: one process
  after another.
"""
import argparse, json, os, statistics, subprocess, sys, time
if "--expandable-segments" in sys.argv:  # torch reads it once
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
import torch, torch.nn as nn, torch.nn.functional as F
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard, MixedPrecisionPolicy


class Attention(nn.Module):
    def __init__(s, dim, heads, kv):
        super().__init__()
        s.h, s.kv, s.d = heads, kv, dim // heads
        s.wq = nn.Linear(dim, heads * s.d, bias=False)
        s.wk = nn.Linear(dim, kv * s.d, bias=False)
        s.wv = nn.Linear(dim, kv * s.d, bias=False)
        s.wo = nn.Linear(heads * s.d, dim, bias=False)

    def forward(s, x, cs):
        b, t, _ = x.shape
        q = rope(s.wq(x).view(b, t, s.h, s.d), cs).transpose(1, 2)
        k = rope(s.wk(x).view(b, t, s.kv, s.d), cs).transpose(1, 2)
        v = s.wv(x).view(b, t, s.kv, s.d).transpose(1, 2)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return s.wo(o.transpose(1, 2).reshape(b, t, -1))


def rope(x, cs):
    c, s = cs
    xe, xo = x.float()[..., 0::2], x.float()[..., 1::2]
    c, s = c[None, : x.shape[1], None], s[None, : x.shape[1], None]
    return torch.stack((xe * c - xo * s, xe * s + xo * c), -1).flatten(3).to(x.dtype)


class FeedForward(nn.Module):
    def __init__(s, dim, hid):
        super().__init__()
        s.w1 = nn.Linear(dim, hid, bias=False)
        s.w2 = nn.Linear(hid, dim, bias=False)
        s.w3 = nn.Linear(dim, hid, bias=False)

    def forward(s, x):
        return s.w2(F.silu(s.w1(x)) * s.w3(x))


class Experts(nn.Module):
    def __init__(s, e, dim, hid):
        super().__init__()
        s.w1 = nn.Parameter(torch.empty(e, hid, dim))
        s.w2 = nn.Parameter(torch.empty(e, dim, hid))
        s.w3 = nn.Parameter(torch.empty(e, hid, dim))

    def forward(s, x, offs):
        h = F.silu(torch._grouped_mm(x, s.w1.transpose(-2, -1), offs=offs))
        h = h * torch._grouped_mm(x, s.w3.transpose(-2, -1), offs=offs)
        return torch._grouped_mm(h, s.w2.transpose(-2, -1), offs=offs)


class MoE(nn.Module):
    def __init__(s, e, dim, hid, align):
        super().__init__()
        s.gate = nn.Linear(dim, e, bias=False)
        s.experts = Experts(e, dim, hid)
        s.shared_experts = FeedForward(dim, hid)
        s.e, s.align = e, align

    def forward(s, x):
        b, t, d = x.shape
        x = x.reshape(-1, d)
        m = x.shape[0]
        top, idx = torch.topk(torch.sigmoid(s.gate(x).float()), 1, dim=1)
        idx = idx.view(-1)
        order = torch.argsort(idx, stable=True)
        cnt = torch.bincount(idx, minlength=s.e)
        # pad every group to a multiple of `align` rows, as the trainer does
        pad = (cnt + s.align - 1) // s.align * s.align
        offs = torch.cumsum(pad, 0).to(torch.int32)
        start = offs - pad
        csum = torch.cumsum(cnt, 0) - cnt
        eid = idx[order]
        dst = start[eid].long() + torch.arange(m, device=x.device) - csum[eid]
        M = m + s.e * s.align
        xr = (x[order].float() * top.view(-1)[order, None]).to(x.dtype)
        buf = x.new_zeros(M, d).index_copy(0, dst, xr)
        y = s.experts(buf, offs)[dst]
        out = s.shared_experts(x).index_add(0, order, y)
        return out.view(b, t, d)


class Block(nn.Module):
    def __init__(s, a):
        super().__init__()
        s.attention = Attention(a.dim, a.heads, a.kv_heads)
        s.moe = MoE(a.experts, a.dim, a.hidden, a.align)
        s.attention_norm = nn.RMSNorm(a.dim, eps=1e-5)
        s.ffn_norm = nn.RMSNorm(a.dim, eps=1e-5)

    def forward(s, x, cs):
        x = x + s.attention(s.attention_norm(x), cs)
        return x + s.moe(s.ffn_norm(x))


class Llama4(nn.Module):
    def __init__(s, a):
        super().__init__()
        s.tok_embeddings = nn.Embedding(a.vocab, a.dim)
        s.layers = nn.ModuleList(Block(a) for _ in range(a.layers))
        s.norm = nn.RMSNorm(a.dim, eps=1e-5)
        s.output = nn.Linear(a.dim, a.vocab, bias=False)

    def forward(s, tok, cs):
        x = s.tok_embeddings(tok)
        for l in s.layers:
            x = l(x, cs)
        return s.output(s.norm(x))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--dim", type=int, default=5120)
    p.add_argument("--heads", type=int, default=40)
    p.add_argument("--kv-heads", type=int, default=8)
    p.add_argument("--hidden", type=int, default=8192)
    p.add_argument("--vocab", type=int, default=202048)
    p.add_argument("--layers", type=int, default=2)
    p.add_argument("--experts", type=int, default=2)
    p.add_argument("--seq-len", type=int, default=8192)
    p.add_argument("--batch", type=int, default=4)
    p.add_argument("--steps", type=int, default=12)
    p.add_argument("--recipe", default="bf16")
    p.add_argument("--align", type=int, default=32)
    p.add_argument("--no-compile", action="store_true")
    p.add_argument("--expandable-segments", action="store_true", help="the allocator grows segments instead of freeing")
    p.add_argument("--profile", action="store_true", help="print the ten longest kernel families of one step")
    p.add_argument("--wait", action="store_true", help="begin when a line comes on standard input")
    a = p.parse_args()
    if "," in a.recipe:
        # Each in a process of its own: peak memory and the compiler's caches start afresh; a later --recipe wins. All
        # import PyTorch at once, then wait for their turn.
        jobs = [subprocess.Popen([sys.executable, *sys.argv, "--wait", "--recipe", r], stdin=subprocess.PIPE)
                for r in a.recipe.split(",")]
        for job in jobs:
            job.communicate(b"go\n")
        sys.exit(any(job.returncode for job in jobs))
    if a.wait:
        sys.stdin.readline()
    begun = time.perf_counter()
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29531")
    dist.init_process_group("nccl", rank=0, world_size=1)
    torch.manual_seed(0)
    dev = torch.device("cuda")
    with torch.device(dev):
        model = Llama4(a)
    for q in model.parameters():
        (nn.init.ones_ if q.dim() == 1 else lambda t: nn.init.normal_(t, std=0.02))(q)
    # Never the router's gate, wk and wv (too small to gain); the head only in recipes that say so.
    skip = ("gate", "wk", "wv") if a.recipe.endswith("_head") else ("output", "gate", "wk", "wv")
    kind = a.recipe.removesuffix("_head")
    if kind in ("mx8_dense", "mx8", "mx8_gather"):
        import mx8.torch as mt
        mt.convert(model, linear=mt.all_linear_except(*skip), experts=None if kind == "mx8_dense" else "moe.experts",
                   fsdp_gather_dtype="mxfp8" if kind == "mx8_gather" else "bf16")
    elif kind in ("fp8_dense", "fp8_moe"):
        from torchao.float8 import convert_to_float8_training, Float8LinearConfig
        convert_to_float8_training(
            model, config=Float8LinearConfig.from_recipe_name("rowwise"),
            module_filter_fn=lambda m, n: isinstance(m, nn.Linear) and not n.endswith(skip))
        if kind == "fp8_moe":
            from torchao.quantization import quantize_
            from torchao.prototype.moe_training.config import Float8TrainingOpConfig
            quantize_(model, Float8TrainingOpConfig(),
                      filter_fn=lambda m, n: n.endswith("moe.experts"))
    elif kind != "bf16":
        p.error(f"--recipe {a.recipe}: expected bf16, fp8_dense, fp8_moe, mx8_dense, mx8 or mx8_gather, each but the first with _head too")
    mp = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for i in range(len(model.layers)):
        if not a.no_compile:
            model.layers[i] = torch.compile(model.layers[i], fullgraph=True)
        fully_shard(model.layers[i], mp_policy=mp)
    fully_shard(model, mp_policy=mp)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def loss_fn(logits, y):
        return F.cross_entropy(logits.flatten(0, 1).float(), y.flatten())
    if not a.no_compile:
        loss_fn = torch.compile(loss_fn)
    d = a.dim // a.heads
    f = 1.0 / 500000.0 ** (torch.arange(0, d, 2, device=dev).float() / d)
    ang = torch.outer(torch.arange(a.seq_len, device=dev).float(), f)
    cs = (ang.cos(), ang.sin())
    seconds, retries, losses = [], [], []

    def count_retries():
        return torch.cuda.memory_stats()["num_alloc_retries"]
    torch.cuda.reset_peak_memory_stats()
    for step in range(1, a.steps + 1):
        x = torch.randint(0, a.vocab, (a.batch, a.seq_len + 1), device=dev)
        before = count_retries()
        torch.cuda.synchronize(); t0 = time.perf_counter()
        loss = loss_fn(model(x[:, :-1], cs), x[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        opt.step(); opt.zero_grad()
        losses.append(loss.item())
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - t0)
        retries.append(count_retries() - before)
    total_kernels = None
    if a.profile:
        from torch.profiler import profile, ProfilerActivity
        from collections import Counter
        with profile(activities=[ProfilerActivity.CUDA]) as prof:
            loss = loss_fn(model(x[:, :-1], cs), x[:, 1:]); loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
            opt.step(); opt.zero_grad(); torch.cuda.synchronize()
        c = Counter()
        for e in prof.key_averages(): c[e.key[:70]] += e.self_device_time_total / 1e3
        for k, v in c.most_common(24): print(f"{v:9.2f} ms  {k}")
        total_kernels = round(sum(c.values()), 2)
        print(f"{total_kernels:9.2f} ms  all kernels")
    act = sum(q.numel() for n, q in model.named_parameters() if "embed" not in n and ".experts." not in n)
    act += sum(q.numel() for n, q in model.named_parameters() if ".experts." in n) / a.experts
    flops = 6 * act + 12 * a.layers * a.dim * a.seq_len
    warm = list(zip(seconds, retries))[2:] or list(zip(seconds, retries))
    step_s = statistics.median(s for s, _ in warm)
    calm = [s for s, n in warm if n == 0]
    tokens = a.batch * a.seq_len
    med = tokens / step_s
    paths = mt.count_products() if a.recipe.startswith("mx8") else None
    print(json.dumps(dict(recipe=a.recipe, layers=a.layers, experts=a.experts, seq_len=a.seq_len,
        batch=a.batch, compile=not a.no_compile, tokens_per_s=round(med, 1),
        tflops=round(med * flops / 1e12, 1), peak_gib=round(torch.cuda.max_memory_allocated() / 2**30, 2),
        reserved_gib=round(torch.cuda.max_memory_reserved() / 2**30, 2),
        step_ms=round(step_s * 1e3, 1), kernels_ms=total_kernels,
        alloc_retries=sum(retries), step_ms_without_retries=round(statistics.median(calm) * 1e3, 1) if calm else None,
        alloc_conf=os.environ.get("PYTORCH_CUDA_ALLOC_CONF"), products=paths, wall_s=round(time.perf_counter() - begun, 1),
        first_loss=round(losses[0], 4), last_loss=round(losses[-1], 4), torch=torch.__version__)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

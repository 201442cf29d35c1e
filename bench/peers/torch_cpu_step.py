#!/usr/bin/env python3
"""A training step of the demo model on the CPU: PyTorch's beside mx8's.

  torch_cpu_step.py --mx8 build/mx8 [--rounds 3] [--steps 8] [--threads 1] [--batch 16] [--text docs] [--json FILE]
                    [--dtypes bf16,f32] [--no-compile]

Both train a Llama4-style mixture of experts (dim 256, 4 layers, 8 query and 4 key heads, 4 experts of 256 and a shared
one, top-1 sigmoid routing, bytes as tokens, 256 to a sequence) with AdamW and gradient clipping. PyTorch: the model of
torch_llama4.py with its experts one after the other, fp32 weights, bf16 autocast (and plain fp32, which is faster where
the CPU has no bf16), torch.compile, fused AdamW. mx8: recipes bf16 and mxfp8_moe. Every run is a process of its own,
and they take turns, so that a busy machine takes from all. Reported: tokens a second of the clock, median of the steps
after the second; tokens a second of processor time over the same steps, which waiting for a core does not touch;
the process's peak memory, and for PyTorch also what of it came after importing torch.

Needs torch: `python3 python/setup_venv.py FOLDER` makes an environment that has it.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MODEL = dict(dim=256, heads=8, kv_heads=4, hidden=256, vocab=288, layers=4, experts=4, align=32)
SEQ_LEN = 256
WARM_UP = 2  # steps


# ---- PyTorch, in a process of its own ----


def make_experts(torch):
    nn, F = torch.nn, torch.nn.functional

    class Experts(nn.Module):
        """One product after the other: CPUs have no grouped one worth its name."""

        def __init__(s, e, dim, hid):
            super().__init__()
            s.w1 = nn.Parameter(torch.empty(e, hid, dim))
            s.w2 = nn.Parameter(torch.empty(e, dim, hid))
            s.w3 = nn.Parameter(torch.empty(e, hid, dim))

        def forward(s, x, offs):
            out, start = [], 0
            for e, end in enumerate(offs.tolist()):
                rows = x[start:end]
                out.append(F.linear(F.silu(F.linear(rows, s.w1[e])) * F.linear(rows, s.w3[e]), s.w2[e]))
                start = end
            out.append(x.new_zeros(x.shape[0] - start, x.shape[1], dtype=out[0].dtype))
            return torch.cat(out)

    return Experts


def read_memory(name):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) / 1024
    return 0.0


def run_torch(a):
    import torch

    imported = read_memory("VmRSS")
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    import torch_llama4 as peer

    torch.manual_seed(0)
    torch.set_num_threads(a.threads)
    peer.Experts = make_experts(torch)
    model = peer.Llama4(argparse.Namespace(**MODEL))
    for q in model.parameters():
        (torch.nn.init.ones_ if q.dim() == 1 else lambda t: torch.nn.init.normal_(t, std=0.02))(q)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def find_loss(x, y, cs):
        with torch.autocast("cpu", torch.bfloat16, enabled=a.worker == "bf16"):
            logits = model(x, cs)
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), y.flatten())

    if not a.no_compile:
        for i in range(len(model.layers)):
            model.layers[i] = torch.compile(model.layers[i])
    d = MODEL["dim"] // MODEL["heads"]
    f = 1.0 / 500000.0 ** (torch.arange(0, d, 2).float() / d)
    angle = torch.outer(torch.arange(SEQ_LEN).float(), f)
    cs = (angle.cos(), angle.sin())
    rates = []
    for step in range(a.steps):
        if step == WARM_UP:
            used = time.process_time()
        x = torch.randint(0, 256, (a.batch, SEQ_LEN + 1))
        start = time.perf_counter()
        loss = find_loss(x[:, :-1], x[:, 1:], cs)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        rates.append(a.batch * SEQ_LEN / (time.perf_counter() - start))
    used = time.process_time() - used
    print(json.dumps(dict(rates=rates, cpu=used, memory=read_memory("VmHWM"), imported=imported)))


def measure_torch(a, dtype):
    command = [sys.executable, __file__, "--worker", dtype, "--steps", str(a.steps), "--threads", str(a.threads)]
    command += ["--batch", str(a.batch)] + ["--no-compile"] * a.no_compile
    environment = dict(os.environ, OMP_NUM_THREADS=str(a.threads))
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        sys.exit(f"torch_cpu_step: PyTorch fails:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


# ---- mx8 ----


def run_mx8(a, recipe, steps):
    with tempfile.TemporaryDirectory() as folder:
        command = [a.mx8, "train", "--model.flavor", "demo", "--training.steps", str(steps)]
        command += ["--training.local_batch_size", str(a.batch), "--training.seq_len", str(SEQ_LEN)]
        command += ["--training.dataset_path", a.text, "--job.dump_folder", folder, "--job.threads", str(a.threads)]
        if recipe == "mxfp8":
            command += ["--model.converters=mx", "--mx.filter_fqns=output,router.gate,wk,wv"]
            command += ["--mx.moe_fqns_prototype=experts"]
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        message = child.stderr.read()
        _, status, usage = os.wait4(child.pid, 0)
        if status:
            sys.exit(f"torch_cpu_step: {' '.join(command)} fails:\n{message[-2000:]}")
        lines = Path(folder, "metrics.jsonl").read_text().splitlines()
    rates = [json.loads(line)["tokens_per_second"] for line in lines]
    return dict(rates=rates, cpu=usage.ru_utime + usage.ru_stime, memory=usage.ru_maxrss / 1024)


def measure_mx8(a, recipe):
    start, run = run_mx8(a, recipe, WARM_UP), run_mx8(a, recipe, a.steps)
    run["cpu"] -= start["cpu"]
    return run


# ---- both ----


def describe(a, name, made):
    tokens = (a.steps - WARM_UP) * a.batch * SEQ_LEN
    return dict(name=name, clock=statistics.median(statistics.median(r["rates"][WARM_UP:]) for r in made),
                cpu=statistics.median(tokens / r["cpu"] for r in made), memory_mib=max(r["memory"] for r in made),
                imported_mib=made[0].get("imported", 0.0), rounds=made)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--mx8", default="build/mx8")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--steps", type=int, default=8)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--text", default="docs")
    p.add_argument("--dtypes", default="bf16,f32", help="of PyTorch")
    p.add_argument("--json")
    p.add_argument("--no-compile", action="store_true")
    p.add_argument("--worker", choices=("bf16", "f32"), help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.worker:
        return run_torch(a)
    if a.steps <= WARM_UP:
        sys.exit(f"torch_cpu_step: --steps is {a.steps}, expected more than {WARM_UP}")
    runs = {}
    for _ in range(a.rounds):
        for dtype in a.dtypes.split(","):
            runs.setdefault(f"PyTorch {dtype}", []).append(measure_torch(a, dtype))
        for recipe in ("bf16", "mxfp8"):
            runs.setdefault(f"mx8 {recipe}", []).append(measure_mx8(a, recipe))
    rows = [describe(a, name, made) for name, made in runs.items()]
    best = {key: max(r[key] for r in rows if r["name"].startswith("PyTorch")) for key in ("clock", "cpu")}
    for r in rows:
        own = f" ({r['memory_mib'] - r['imported_mib']:.0f} beyond importing torch)" if r["imported_mib"] else ""
        print(f"step        {r['name']:<13} {r['clock']:7.0f} tokens/s ({r['clock'] / best['clock']:.2f} of PyTorch), "
              f"{r['cpu']:7.0f} a processor second ({r['cpu'] / best['cpu']:.2f}), peak {r['memory_mib']:.0f} MiB{own}")
    if a.json:
        Path(a.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()

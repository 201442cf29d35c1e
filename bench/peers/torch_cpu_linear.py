#!/usr/bin/env python3
"""bf16 products on the CPU: torch.nn.functional.linear and `mx8 bench linear`, by turns, one line a size.

oneDNN multiplies bf16 in PyTorch where the CPU has AVX-512; the line says whether it did. Elsewhere PyTorch has a kernel
of its own. Medians of all rounds; the ratio is of medians taken in the same round.

  torch_cpu_linear.py --mx8 build/mx8 [--threads N] [--sizes 1024,2048] [--rounds N] [--json FILE]
"""
import argparse, json, pathlib, statistics, subprocess, tempfile, time

import torch


def time_torch(n, reps=3):
    a, b = torch.randn(n, n).bfloat16(), torch.randn(n, n).bfloat16()
    seconds = []
    for _ in range(reps + 1):  # the first warms up
        start = time.perf_counter()
        torch.nn.functional.linear(a, b)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])


def time_mx8(program, n, threads, folder):
    path = pathlib.Path(folder) / "linear.json"
    subprocess.run(
        [program, "bench", "linear", f"{n}x{n}x{n}", "--dtype", "bf16", "--threads", str(threads), "--reps", "5", "--json", path],
        check=True, stdout=subprocess.DEVNULL)
    return json.loads(path.read_text())["passes"][0]["median_seconds"]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--mx8", default="build/mx8")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--sizes", default="1024,2048")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--json")
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    by = "oneDNN" if torch.ops.mkldnn._is_mkldnn_bf16_supported() else "its own kernel, oneDNN needs AVX-512"
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for n in (int(size) for size in a.sizes.split(",")):
            ours, theirs = [], []
            for _ in range(a.rounds):
                theirs.append(time_torch(n))
                ours.append(time_mx8(a.mx8, n, a.threads, folder))
            ratios = sorted(t / o for t, o in zip(theirs, ours))
            rate = 2 * n**3 / 1e9
            results.append(dict(n=n, threads=a.threads, mx8=rate / statistics.median(ours), torch=rate / statistics.median(theirs),
                                ratio=statistics.median(ratios), torch_by=by, torch_version=torch.__version__))
            print(f"product     PyTorch {torch.__version__} bf16, {n}^3, {a.threads} threads ({by}): {results[-1]['torch']:.1f} GFLOP/s, ours "
                  f"{results[-1]['mx8']:.1f}, {results[-1]['ratio']:.1f} times ({ratios[0]:.1f} to {ratios[-1]:.1f}, {a.rounds} rounds)", flush=True)
    if a.json:
        pathlib.Path(a.json).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()

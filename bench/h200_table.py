#!/usr/bin/env python3
"""The figures that bench/run_h200 left in a folder, ours beside PyTorch's, as one table; also written to table.json."""
import json, pathlib, statistics, sys

folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "outputs/h200")
rows = []


def read_lines(name):
    """JSON lines of a file; other lines are other programs' talk."""
    path = folder / name
    found = []
    for line in path.read_text().splitlines() if path.exists() else []:
        if line.startswith("{"):
            found.append(json.loads(line))
    return found


def add(what, unit, ours, peer=None, peer_name="", note=""):
    ratio = ours / peer if peer else None
    rows.append(dict(what=what, unit=unit, mx8=ours, peer=peer, peer_name=peer_name, ratio=ratio, note=note))


def find(lines, **want):
    for line in lines:
        if all(line.get(k) == v for k, v in want.items()):
            return line
    return None


def add_kernels():
    path = folder / "kernels.json"
    if not path.exists():
        return
    torch, deep = read_lines("torch_kernels.jsonl"), read_lines("deepgemm.jsonl")
    names = {"mxfp8 forward": "deepgemm fwd", "mxfp8 dgrad": "deepgemm dgrad", "mxfp8 wgrad, f32 accumulate": "deepgemm wgrad"}
    peers = {"mxfp8 forward": "bf16_grouped fwd", "mxfp8 dgrad": "bf16_grouped dgrad", "mxfp8 wgrad, f32": "bf16_grouped wgrad"}
    for k in json.loads(path.read_text()):
        name, _, shape = k["name"], 0, k["shape"]
        peer = None
        if name in peers and "skewed" not in shape:
            sizes, _, groups = shape.partition(" G ")
            m, a, b = (int(v) for v in sizes.split("x"))
            size = [m, b, a] if name == "mxfp8 dgrad" else [m, a, b]
            line = find(torch, name=peers[name], shape=size, groups=int(groups or 1))
            peer = line and line["tflops"]
        if name == "mxfp8 dense":
            line = find(torch, name="bf16_mm", shape=[int(v) for v in shape.split(" ")[0].split("x")])
            peer = line and line["tflops"]
        power = f"; {k['watts']:.0f} W, {k['sm_mhz']:.0f} MHz" if k.get("watts") else ""
        add(f"{name} {shape}", k["unit"] + ", sustained", k["sustained"], peer, "PyTorch bf16, burst", f"burst {k['burst']:.0f}{power}")
        if name in names or name == "mxfp8 dense":
            size = [int(v) for v in shape.split(" ")[0].split("x")]
            groups = 0 if name == "mxfp8 dense" else int(shape.split()[2])
            line = find(deep, name=names.get(name, "deepgemm dense"), shape=size, groups=groups, skewed="skewed" in shape)
            if line:
                add(f"{name} {shape}", k["unit"] + ", sustained", k["sustained"], line["tflops"], "DeepGEMM, sustained",
                    f"bursts {k['burst']:.0f} and {line['burst_tflops']:.0f}")


def add_operators():
    lines = read_lines("torch_kernels.jsonl")
    for kind in ("fwd", "dgrad", "wgrad"):
        for line in [v for v in lines if v.get("name") == f"mx8_grouped {kind}"]:
            peer = find(lines, name=f"bf16_grouped {kind}", shape=line["shape"], groups=line["groups"])
            shape = "x".join(str(v) for v in line["shape"])
            add(f"operator grouped_mm {kind} {shape} G {line['groups']}", "TFLOP/s", line["tflops"], peer and peer["tflops"],
                "torch._grouped_mm bf16")


def add_training():
    jobs = {"bf16": "seed", "bf16-any-order": "seed", "mxfp8": "seed", "mxfp8-head": "seed", "deep-bf16": "deep", "deep-mxfp8": "deep", "seed-b-mxfp8-head": "none"}
    for name, job in jobs.items():
        path = folder / f"train-{name}" / "metrics.jsonl"
        torch = find(read_lines(f"torch_llama4_{job}.jsonl"), recipe="bf16")
        if not path.exists():
            continue
        steps = [json.loads(line) for line in path.read_text().splitlines() if '"step"' in line]
        speeds = [s.get("tokens_per_second", s.get("tps")) for s in steps[1:]]
        if not speeds:  # it stopped; run_h200 says so
            continue
        last = steps[-1]
        note = f"loss {last['loss']:.4f}, {last.get('memory', 0) / 2**30:.1f} GiB"
        peak = f"PyTorch bf16, {torch['peak_gib']} GiB" if torch else ""
        add(f"mx8 train {job} {name}", "tokens/s", statistics.median(speeds), torch and torch["tokens_per_s"], peak, f"{note}; {peak}")
    for file in ("torch_llama4.jsonl", "torch_llama4_deep.jsonl"):
        lines = read_lines(file)
        base = find(lines, recipe="bf16")
        for line in lines:
            add(f"PyTorch job, {line['recipe']}, {line['layers']} layers, {line['experts']} experts", "tokens/s",
                line["tokens_per_s"], base and base["tokens_per_s"], "PyTorch bf16", f"loss {line['last_loss']}, {line['peak_gib']} GiB")


add_kernels()
add_operators()
add_training()
print(f"{'what':62} {'mx8':>9} {'peer':>9} {'ratio':>6}  unit")
for r in rows:
    peer = f"{r['peer']:9.0f} {r['ratio']:6.2f}" if r["peer"] else " " * 16
    print(f"{r['what'][:62]:62} {r['mx8']:9.0f} {peer}  {r['unit']}  {r['note']}")
(folder / "table.json").write_text(json.dumps(rows, indent=1) + "\n")

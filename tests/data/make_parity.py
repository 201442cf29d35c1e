#!/usr/bin/env python3
"""Makes the parity fixtures of this folder from the reference runs of torchtitan's Llama4 modules.

Usage: make_parity.py ORACLE_DIR [OUT_DIR]        (python3 alone: no numpy, no torch)

ORACLE_DIR holds llama4_{moe,interleaved,softmax}.{safetensors,json}: tiny models that torchtitan's own modules trained
for 20 steps, in float32, in bf16, and with torchao's MXFP8 operators. They are too large to keep, so for each model this
script writes

  parity_NAME_start.safetensors  the start weights, whole, under torchtitan's names (the model loads it as it is)
  parity_NAME.safetensors        tokens (steps, batch, seq + 1), whole;
                                 "grad.TENSOR": float32 gradients of the first step, every 2nd row;
                                 "end.TENSOR": float32 weights after 20 steps, every 4th row
  parity_NAME.json               the configuration, losses, gradient norms and expert loads of every recipe, and
                                 "grad_sqnr": per recipe and tensor, the SQNR in dB that PyTorch's own first gradient has
                                 against its float32 one, over the rows that are kept; of expert tensors a list, the
                                 whole first, then expert by expert

Rows are those of the tensor seen as a matrix with its last axis as columns, from row 0; tensors of fewer than 1,024
elements are kept whole.
"""
import array
import json
import math
import os
import struct
import sys

NAMES = ("moe", "interleaved", "softmax")
GRAD_STRIDE, END_STRIDE, WHOLE_BELOW = 2, 4, 1024


def read(path):
    """{name: (dtype, shape, bytes)} of a safetensors file."""
    with open(path, "rb") as f:
        data = f.read()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    cut = lambda e: data[8 + size + e["data_offsets"][0] : 8 + size + e["data_offsets"][1]]
    return {name: (e["dtype"], e["shape"], cut(e)) for name, e in header.items()}


def write(path, tensors):
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            f.write(data)


def keep_rows(tensor, stride):
    """Every stride-th row of an F32 tensor, as a matrix; small tensors whole and flat."""
    dtype, shape, data = tensor
    assert dtype == "F32", dtype
    count = math.prod(shape)
    if len(shape) == 1 or count < WHOLE_BELOW:
        return dtype, [count], data
    width = 4 * shape[-1]
    rows = [data[i * width : (i + 1) * width] for i in range(0, count // shape[-1], stride)]
    return dtype, [len(rows), shape[-1]], b"".join(rows)


def get_sqnr(got, want):
    """10 log10 of the signal's energy over the difference's."""
    a, b = array.array("f", got[2]), array.array("f", want[2])
    signal = math.fsum(y * y for y in b)
    noise = math.fsum((x - y) ** 2 for x, y in zip(a, b))
    return round(10 * math.log10(signal / noise), 3) if noise and signal else None


def list_sqnr(got, want, experts):
    """SQNR of the whole, and with experts > 0 of each of that many equal parts too."""
    whole = get_sqnr(got, want)
    if not experts:
        return whole
    size = len(want[2]) // experts
    part = lambda t, e: (t[0], None, t[2][e * size : (e + 1) * size])
    return [whole] + [get_sqnr(part(got, e), part(want, e)) for e in range(experts)]


def convert(source, target, name):
    tensors = read(os.path.join(source, f"llama4_{name}.safetensors"))
    with open(os.path.join(source, f"llama4_{name}.json")) as f:
        meta = json.load(f)
    start = {k[len("start.") :]: v for k, v in tensors.items() if k.startswith("start.")}
    weights = [k for k in start if f"fp32.grad.{k}" in tensors]
    kept = {"tokens": tensors["tokens"]}
    kept |= {f"grad.{k}": keep_rows(tensors[f"fp32.grad.{k}"], GRAD_STRIDE) for k in weights}
    kept |= {f"end.{k}": keep_rows(tensors[f"fp32.end.{k}"], END_STRIDE) for k in weights}
    meta["row_stride"] = {"grad": GRAD_STRIDE, "end": END_STRIDE, "whole_below": WHOLE_BELOW}
    experts = lambda k: tensors[f"fp32.grad.{k}"][1][0] if len(tensors[f"fp32.grad.{k}"][1]) == 3 else 0
    own = lambda recipe, k: keep_rows(tensors[f"{recipe}.grad.{k}"], GRAD_STRIDE)
    meta["grad_sqnr"] = {
        recipe: {k: list_sqnr(own(recipe, k), kept[f"grad.{k}"], experts(k)) for k in weights}
        for recipe in meta["runs"] if recipe != "fp32"
    }
    write(os.path.join(target, f"parity_{name}_start.safetensors"), start)
    write(os.path.join(target, f"parity_{name}.safetensors"), kept)
    with open(os.path.join(target, f"parity_{name}.json"), "w") as f:
        json.dump(meta, f, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    for each in NAMES:
        convert(sys.argv[1], sys.argv[2] if len(sys.argv) == 3 else os.path.dirname(os.path.abspath(__file__)), each)

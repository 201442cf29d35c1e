"""Two gloo ranks on this machine: FSDP2 equals one rank, and DTensor shardings give what whole tensors give."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F

pytest.importorskip("torch.distributed.fsdp")
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor, init_device_mesh

sys.path.insert(0, str(Path(__file__).parent))
import mx8.torch as mt
from helpers import make_ends
from titan import Transformer

SMALL = dict(dim=64, n_heads=4, n_kv_heads=2, vocab_size=64, rope_theta=500000.0)
WORLD = 2


def run_ranks(function, tmp_path, *args):
    """function(rank, *args) on two ranks; a failure in one fails the test with its traceback."""
    mp.start_processes(_start, (function, str(tmp_path / "rendezvous"), args), nprocs=WORLD, start_method="spawn")


def _start(rank, function, rendezvous, args):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=WORLD)
    try:
        function(rank, *args)
    finally:
        dist.destroy_process_group()
    # The mesh keeps the group alive, and with it gloo's threads. One that drops a tensor while the interpreter shuts
    # down asks for the lock, is made to exit within a destructor, and aborts the process: so there is no shutting down.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


# ---- FSDP2 ----


def make_model():
    torch.manual_seed(7)
    model = Transformer(SMALL, dict(num_experts=4, load_balance_coeff=None), [96, 96])
    return mt.convert(model, linear=mt.all_linear_except(), experts="moe.experts", verbose=False)


def train(model, share, rank, steps=3):
    """Losses of a few steps on one batch: on this rank's half of it (share 1), or on both halves in turn (share 2)."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(3)
    batch = torch.randint(0, 64, (4, 33), generator=generator)
    losses = []
    for _ in range(steps):
        total = torch.zeros(())
        for part in batch.chunk(WORLD)[rank : rank + share]:
            logits = model(part[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1).float(), part[:, 1:].flatten())
            (loss / share).backward()
            total += loss.detach() / share
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return torch.stack(losses)


def shard_and_train(rank, path, mixed):
    model = make_model()
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if mixed else MixedPrecisionPolicy()
    mesh = init_device_mesh("cpu", (WORLD,))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    losses = train(model, 1, rank)
    dist.all_reduce(losses)
    weights = {name: p.full_tensor().detach() for name, p in model.named_parameters()}
    if rank == 0:
        torch.save((losses / WORLD, weights), path)


@pytest.mark.parametrize("mixed", [False, True])
def test_fsdp2_on_two_ranks_equals_one(tmp_path, mixed):
    path = tmp_path / "result"
    run_ranks(shard_and_train, tmp_path, str(path), mixed)
    losses, weights = torch.load(path)
    model = make_model()
    want = train(model, WORLD, 0)
    assert losses[-1] < losses[0]
    # One rank adds the two halves' gradients up in another order; mixed precision rounds weights to bf16 besides.
    assert torch.allclose(losses, want, atol=2e-2 if mixed else 1e-4)
    if not mixed:
        for name, p in model.named_parameters():
            # Adam's first steps are as long as the learning rate whatever the gradient: a sign near zero may flip.
            assert (weights[name] - p).norm() < 0.02 * p.norm() + 1e-6, name


# ---- DTensor ----


def check_bytes(mesh, a, b):
    """A DTensor's own shard, byte for byte: gloo sends no 8-bit floats."""
    whole = distribute_tensor(b.contiguous().view(torch.uint8), mesh, a.placements).to_local()
    assert torch.equal(a.to_local().contiguous().view(torch.uint8), whole)


def check(mesh, function, tensors, placements, out_placements):
    """function of DTensors gives the placements expected, without redistribution, and the values of whole tensors."""
    want = function(*tensors)
    want = want if isinstance(want, tuple) else (want,)
    got = function(*(distribute_tensor(t, mesh, [p]) if t is not None else None for t, p in zip(tensors, placements)))
    got = got if isinstance(got, tuple) else (got,)
    for a, b, placement in zip(got, want, out_placements):
        assert a.placements == (placement,), (a.placements, placement)
        if placement == Partial():
            assert (a.full_tensor().float() - b.float()).norm() <= 0.02 * b.float().norm()
        elif a.dtype.itemsize == 1:
            check_bytes(mesh, a, b)
        else:
            assert torch.equal(a.full_tensor(), b)


def check_shardings(rank):
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (WORLD,))
    R, S0, S1, S2, P = Replicate(), Shard(0), Shard(1), Shard(2), Partial()
    x, w, we = torch.randn(128, 192), torch.randn(64, 192), torch.randn(4, 64, 192)
    ends = make_ends([40, 0, 60, 28])
    for a in (R, S0, S1):
        check(mesh, mt.quantize_rows, [x], [a], [a, a])
    for a, b in ((R, R), (S0, S1), (S1, S0)):
        check(mesh, mt.quantize_cols, [x], [a], [b, b, R])
        check(mesh, mt.quantize_both, [x], [a], [a, a, b, b, R])
    for a in (R, S0, S1, S2):
        check(mesh, mt.quantize_3d, [we], [a], [a, a])
        check(mesh, mt.quantize_experts, [we], [a], [a, a, a, a])
    codes, scales = mt.quantize_rows(x)  # as bytes: gloo sends no 8-bit floats
    check(mesh, mt.dequantize, [codes.view(torch.uint8), scales], [S0, S0], [S0])
    check(mesh, mt.group_pad, [x, ends], [S1, R], [S1, R, R])
    for a, b, c in ((S0, R, S0), (R, S0, S1), (S1, S1, P)):
        check(mesh, mt.linear, [x, w], [a, b], [c])
    check(mesh, lambda x, w, b: mt.linear(x, w, b), [x, w, torch.randn(64)], [R, S0, S0], [S1])
    grouped = torch.ops.mx8.grouped_linear
    for a, b, c in ((R, S1, S1), (S1, S2, P)):
        check(mesh, grouped, [x, we, ends], [a, b, R], [c])
    # Rows of a group cannot be sharded and blocks cannot be cut: the call is redistributed and stays right.
    got = grouped(
        distribute_tensor(x, mesh, [S0]), distribute_tensor(we, mesh, [R]), distribute_tensor(ends, mesh, [R])
    )
    want = grouped(x, we, ends)
    assert (got.full_tensor() - want).norm() <= 1e-5 * want.norm()
    narrow = torch.randn(4, 32, 64)
    codes = mt.quantize_3d(distribute_tensor(narrow, mesh, [S1]))[0]
    assert torch.equal(codes.full_tensor().view(torch.uint8), mt.quantize_3d(narrow)[0].view(torch.uint8))
    square = torch.arange(128.0) * torch.ones(4, 128, 128)
    for axis in (S1, S2):  # 64 of 128 that share a scale, by columns or by rows
        got = mt.quantize_experts(distribute_tensor(square, mesh, [axis]), scale_group=128)
        for a, b in zip(got, mt.quantize_experts(square, scale_group=128)):
            check_bytes(mesh, a, b)


def check_sharded_gradients(rank):
    """A column-parallel and a row-parallel layer, as tensor parallelism has them."""
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (WORLD,))
    x, up, down = torch.randn(64, 128), torch.randn(192, 128), torch.randn(128, 192)

    def run(x, up, down):
        leaves = [t.detach().requires_grad_() for t in (x, up, down)]
        y = mt.linear(F.relu(mt.linear(leaves[0], leaves[1])), leaves[2])
        y.sum().backward()
        return y, *(leaf.grad for leaf in leaves)

    want = run(x, up, down)
    got = run(*(distribute_tensor(t, mesh, [p]) for t, p in ((x, Replicate()), (up, Shard(0)), (down, Shard(1)))))
    for a, b in zip(got, want):
        assert (a.full_tensor() - b).norm() <= 1e-5 * b.norm()


@pytest.mark.parametrize("function", [check_shardings, check_sharded_gradients])
def test_dtensor(tmp_path, function):
    run_ranks(function, tmp_path)

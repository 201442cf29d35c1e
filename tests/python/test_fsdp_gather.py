"""convert(fsdp_gather_dtype="mxfp8"): the bits of bf16 gathering, plain tensors for everybody else."""

from __future__ import annotations

import copy
import itertools
import warnings

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

pytest.importorskip("torch.distributed.fsdp")
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, init_device_mesh
from torch.utils.checkpoint import checkpoint

import mx8
import mx8.torch as mt
from mx8.torch import fsdp
from test_distributed import run_ranks

MIXED = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
TILED = mt.Recipe(scale_group=128, weight_scale_group=128, weight_tile_rows=32)


def same(a, b):
    return a.shape == b.shape and torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


# ---- one weight, without processes ----


class Mesh:
    def __init__(self, size):
        self.size = lambda: size


def gather(shards, world, whole, out=None, metadata=None):
    """What FSDP does with the shards of all ranks."""
    given = [s.fsdp_pre_all_gather(Mesh(world), whole, None, None, MIXED) for s in shards]
    assert all(g[1] == given[0][1] for g in given) or world == 1
    outputs = tuple(torch.cat(parts) for parts in zip(*(g[0] for g in given)))
    return shards[0].fsdp_post_all_gather(outputs, given[0][1], torch.bfloat16, out=out), outputs


def shard(w, world, recipe):
    return [fsdp.ShardedWeight(part, "w", recipe) for part in w.chunk(world)]


def expect_parts(codes, w, recipe):
    style = fsdp.get_style(recipe, w.device)
    names = dict(zip(("scale_rule", "scale_group", "tile_rows"), style))
    if w.dim() == 2:
        want = mt.quantize_both(w.bfloat16(), **names)[:4]
    else:
        want = mt.quantize_experts(w.bfloat16(), **names)
        want = (*want[:2], want[2].transpose(1, 2), want[3])
    assert all(same(a, b) for a, b in zip(codes.parts, want, strict=True))


@pytest.mark.parametrize("recipe", ["mxfp8", TILED], ids=str)
@pytest.mark.parametrize("shape", [(512, 96), (4, 96, 160)])
@pytest.mark.parametrize("world", [1, 2, 4])
def test_gathered_codes_are_those_of_the_whole_weight(world, shape, recipe):
    first, second = torch.randn(shape), torch.randn(shape) * 1e4
    second.view(-1)[7] = torch.nan
    (codes, owned), outputs = gather(shard(first, world, recipe), world, first.shape)
    assert codes.shape == first.shape and codes.dtype == torch.bfloat16
    expect_parts(codes, first, recipe)
    # Later gatherings come to the same memory: FSDP frees and allocates it meanwhile.
    places = [part.data_ptr() for part in codes.parts]
    result, again = gather(shard(second, world, recipe), world, first.shape, out=codes)
    assert result is None and places == [part.data_ptr() for part in codes.parts]
    for old, new in zip(outputs, again):
        old.copy_(new)
    expect_parts(codes, second, recipe)
    assert all(any(t.data_ptr() == p for t in (*owned, *outputs)) for p in places)


def test_codes_survive_a_copy_by_way_of_numbers():
    """CUDA's foreach copy of bf16 goes through f32, which makes all NaNs one."""
    w = torch.randn(4, 64, 64) * 1e3
    w[0, 3, 5], w[1], w[2, 0, 0], w[3, 0] = torch.nan, 0, torch.inf, 1e38
    for part in fsdp.quantize_shard(w, fsdp.get_style("mxfp8", w.device)):
        packed = fsdp._pack(part)
        assert packed.dtype == torch.bfloat16 and not packed.isnan().any()
        assert same(packed.float().bfloat16(), packed)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("dims", [2, 3])
def test_products_take_codes_in_either_view(dims, turned):
    """A weight (K, N) that is used transposed needs its codes with exchanged roles."""
    shape = (96, 64) if dims == 2 else (3, 96, 64)
    w = torch.randn(shape)
    (codes, _), _ = gather(shard(w, 1, "mxfp8"), 1, w.shape)
    x = torch.randn(40, 96 if turned else 64, dtype=torch.bfloat16, requires_grad=True)

    def run(weight):
        weight = nn.Parameter(weight)
        view = weight.transpose(-2, -1) if turned else weight
        if dims == 2:
            y = torch.ops.mx8.linear(x, view)
        else:
            y = torch.ops.mx8.grouped_linear(x, view, torch.tensor([7, 7, 33], dtype=torch.int32))
        return y, *torch.autograd.grad(y.float().square().sum(), (x, weight))

    got, want = run(codes), run(w.bfloat16())
    assert all(torch.equal(a, b) for a, b in zip(got, want)) and type(got[2]) is torch.Tensor


def test_codes_say_what_they_are_not_for():
    w = torch.randn(64, 64)
    (codes, _), _ = gather(shard(w, 1, "mxfp8"), 1, w.shape)
    with pytest.raises(mx8.Unsupported, match=r"aten.mul.Tensor of a weight \(64, 64\) that was gathered as MXFP8"):
        codes * 2
    with pytest.raises(mx8.InvalidArgument, match="gathered as codes of .'rceil', 32, 1. is multiplied as .'r"):
        mt.linear(torch.randn(4, 64), codes, recipe=mt.Recipe(weight_scale_group=128))


@pytest.mark.parametrize(
    "shape, world, policy, recipe, reason",
    [
        ((96, 64), 2, MIXED, "mxfp8", "48 rows a rank are no multiple of the 32"),
        ((128, 64), 2, MIXED, TILED, "64 rows a rank are no multiple of the 128"),
        ((3, 64, 64), 2, MIXED, "mxfp8", r"\(3, 64, 64\) on 2 ranks is not cut into equal parts"),
        ((1, 64, 64), 2, MIXED, "mxfp8", r"\(1, 64, 64\) on 2 ranks is not cut into equal parts"),
        ((64, 64), 2, MixedPrecisionPolicy(), "mxfp8", "modules compute in torch.float32, expected param_dtype=torch"),
    ],
)
def test_says_once_what_is_gathered_as_it_is(shape, world, policy, recipe, reason):
    w = torch.randn(shape)
    first = fsdp.ShardedWeight(w.chunk(world)[0], f"layer {shape} {recipe}", recipe)
    with pytest.warns(UserWarning, match=reason):
        (given,), metadata = first.fsdp_pre_all_gather(Mesh(world), w.shape, None, None, policy)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        last = fsdp.ShardedWeight(w[first.shape[0] :], first.label, recipe)
        (padded,), _ = last.fsdp_pre_all_gather(Mesh(world), w.shape, None, None, policy)
    assert torch.equal(given, w[: first.shape[0]].to(policy.param_dtype or w.dtype)) and given.shape == padded.shape
    plain, owned = first.fsdp_post_all_gather((torch.cat((given, padded)),), metadata, torch.bfloat16)
    assert type(plain) is torch.Tensor and owned == () and torch.equal(plain[: shape[0]], w.to(plain.dtype))


# ---- a model ----


class Experts(nn.Module):
    """One matrix (E, N, K), as most have it, and one (E, K, N)."""

    def __init__(self, n, hidden):
        super().__init__()
        self.w1, self.w2 = (nn.Parameter(torch.randn(n, hidden, 64) / 8) for _ in range(2))

    def forward(self, x, offs):
        h = F.silu(torch._grouped_mm(x, self.w1.transpose(-2, -1), offs=offs))
        return torch._grouped_mm(h, self.w2, offs=offs)


class Layer(nn.Module):
    def __init__(self, n, hidden):
        super().__init__()
        self.n, self.experts = n, Experts(n, hidden)
        self.up, self.down = nn.Linear(64, hidden), nn.Linear(hidden, 64, bias=False)

    def forward(self, x):
        rows = x.flatten(0, 1)
        offs = (torch.arange(1, self.n + 1) * rows.shape[0] // self.n).to(torch.int32)
        return x + self.experts(rows, offs).view(x.shape) + self.down(F.silu(self.up(x)))


class Model(nn.Module):
    def __init__(self, n, hidden, layers):
        super().__init__()
        self.embeddings, self.output = nn.Embedding(64, 64), nn.Linear(64, 64)
        self.layers = nn.ModuleList(Layer(n, hidden) for _ in range(layers))

    def forward(self, tokens):
        x = self.embeddings(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output(x)


def make_model(gathered, experts=4, hidden=64, layers=2):
    torch.manual_seed(7)
    chosen = dict(linear=("up", "down"), experts="experts", verbose=False)
    return mt.convert(Model(experts, hidden, layers), **chosen, fsdp_gather_dtype="mxfp8" if gathered else "bf16")


def shard_model(model, world, mode):
    mesh = init_device_mesh("cpu", (world,))
    for i, layer in enumerate(model.layers):
        if mode == "compile":
            model.layers[i] = torch.compile(layer, backend="aot_eager", fullgraph=True)
        if mode == "checkpoint":
            layer.forward = lambda *args, run=layer.forward: checkpoint(run, *args, use_reentrant=False)
        fully_shard(model.layers[i], mesh=mesh, mp_policy=MIXED)
    return fully_shard(model, mesh=mesh, mp_policy=MIXED)


def train(model, rank, steps=2):
    """Loss, gradient norm and gradients of each step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    generator = torch.Generator().manual_seed(3 + rank)
    seen = []
    for _ in range(steps):
        tokens = torch.randint(0, 64, (2, 17), generator=generator)
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        assert all(type(p.grad.to_local()) is torch.Tensor for p in model.parameters())
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True).full_tensor()
        seen.append([loss.detach(), norm, *(p.grad.to_local().clone() for p in model.parameters())])
        optimizer.step()
        optimizer.zero_grad()
    states = [t for state in optimizer.state.values() for t in state.values() if isinstance(t, DTensor)]
    assert states and all(type(t.to_local()) is torch.Tensor for t in states)
    return seen


def count_gathered(model):
    """How many weights the modules see as codes while they are gathered, and how many as values."""
    seen = [0, 0]
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.unshard()
    for module in model.modules():
        for name in getattr(module, "mx8_gathered", ()):
            seen[not isinstance(getattr(module, name), fsdp.WeightCodes)] += 1
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
    return tuple(seen)


def compare(rank, world, mode, gathered=(8, 0), **sizes):
    want, got = (
        train(model, rank) for model in (shard_model(make_model(g, **sizes), world, mode) for g in (False, True))
    )
    torch._dynamo.reset()
    for a, b in zip(itertools.chain(*got), itertools.chain(*want), strict=True):
        assert torch.equal(a, b)
    model = shard_model(make_model(True, **sizes), world, "")
    assert count_gathered(model) == gathered
    check_state(model)


def check_state(model):
    """state_dict is of plain tensors, out and in, copied or taken over."""
    before = model.state_dict()
    assert all(type(t._local_tensor) is torch.Tensor for t in before.values() if isinstance(t, DTensor))
    values = {name: t.clone() for name, t in before.items()}
    wrapped = [n for n, p in model.named_parameters() if isinstance(p._local_tensor, fsdp.ShardedWeight)]
    for assign in (False, True):
        model.load_state_dict({name: t * 2 for name, t in values.items()}, assign=assign)
        for name, p in model.named_parameters():
            assert isinstance(p._local_tensor, fsdp.ShardedWeight) == (name in wrapped)
            assert torch.equal(model.state_dict()[name].to_local(), values[name].to_local() * 2)
    kept = model.state_dict(keep_vars=True)
    assert all(kept[name] is p for name, p in model.named_parameters())


def compare_on_two_ranks(rank):
    warnings.simplefilter("ignore")
    compare(rank, 2, "")
    compare(rank, 2, "compile", gathered=(4, 0), layers=1)
    # 48 of up's 96 rows cut a block, 32 of down's 64 do not; three experts are no equal parts.
    compare(rank, 2, "", gathered=(2, 6), experts=3, hidden=96)


def test_two_ranks_compute_what_bf16_gathering_does(tmp_path):
    run_ranks(compare_on_two_ranks, tmp_path)


@pytest.fixture
def alone(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("mode, layers", [("", 2), ("compile", 1), ("checkpoint", 2)])
def test_one_rank_computes_what_bf16_gathering_does(alone, mode, layers):
    compare(0, 1, mode, gathered=(4 * layers, 0), layers=layers)


def test_one_rank_with_parameters_made_late_or_in_bf16(alone):
    with torch.device("meta"):
        model = make_model(True)
    model = shard_model(model, 1, "").to_empty(device="cpu")
    with torch.no_grad():
        for parameter, start in zip(model.parameters(), make_model(False).parameters(), strict=True):
            parameter.to_local().copy_(start)
    want = shard_model(make_model(False), 1, "")
    for a, b in zip(itertools.chain(*train(model, 0)), itertools.chain(*train(want, 0)), strict=True):
        assert torch.equal(a, b)
    assert count_gathered(model) == (8, 0)
    model = fully_shard(make_model(True).to(torch.bfloat16))
    assert count_gathered(model) == (8, 0)
    assert all(t.dtype == torch.bfloat16 for t in model.state_dict().values())


def test_convert_wraps_and_leaves(capsys):
    model = make_model(True)
    twin = copy.deepcopy(model)
    tokens = torch.randint(0, 64, (2, 16))
    assert torch.equal(model(tokens), twin(tokens))  # without FSDP nothing is different
    assert torch.equal(model(tokens), make_model(False)(tokens))
    assert all(type(t) is torch.Tensor for t in model.state_dict().values())
    weight = model.layers[0].up.weight
    with torch.no_grad():
        assert weight.mul_(2) is weight and type(weight * 2) is torch.Tensor
    assert "ShardedWeight" in repr(weight)
    tied = nn.ModuleList([nn.Embedding(64, 32), nn.Linear(32, 64, bias=False)])
    tied[1].weight = tied[0].weight
    mt.convert(tied, linear="", fsdp_gather_dtype="mxfp8")
    assert tied[1].weight is tied[0].weight and "1.weight: shared or distributed" in capsys.readouterr().out
    experts = Experts(2, 32)
    with pytest.raises(mx8.InvalidArgument, match="fsdp_gather_dtype is 'fp4', expected one of bf16, mxfp8"):
        mt.convert(experts, experts="", fsdp_gather_dtype="fp4")
    assert type(experts) is Experts

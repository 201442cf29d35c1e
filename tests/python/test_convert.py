"""convert(): what it changes, what it refuses, and that a converted model learns as torchao's."""

from __future__ import annotations

import copy
import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import mx8
import mx8.torch as mt
from conftest import DATA
from titan import GroupedExperts, MoE, Transformer

SMALL = dict(dim=64, n_heads=4, n_kv_heads=2, vocab_size=64, rope_theta=500000.0)


def make_model():
    return Transformer(SMALL, dict(num_experts=4), [96, 96])


def test_converts_in_place_and_reports(capsys):
    model = make_model()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    parameters = dict(model.named_parameters())
    assert mt.convert(model, linear=mt.all_linear_except(), experts="experts") is model
    said = capsys.readouterr().out
    assert "10 linear layers and 2 expert modules converted" in said
    assert "layers.0.moe.experts: w1 (4, 96, 64), w2 (4, 64, 96), w3 (4, 96, 64)" in said
    converted = {name for name, module in model.named_modules() if isinstance(module, mt.Linear)}
    assert not any(part in name for name in converted for part in mt.SKIPPED)
    assert type(model.layers[0].attention.wk) is nn.Linear and isinstance(model.layers[0].moe.experts, GroupedExperts)
    after = model.state_dict()
    assert list(after) == list(before) and all(type(t) is torch.Tensor for t in after.values())
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert all(parameters[name] is p for name, p in model.named_parameters())
    make_model().load_state_dict(after)
    assert "recipe='mxfp8'" in repr(model)


def test_converts_again_copies_and_roots():
    model = mt.convert(nn.Linear(64, 32), linear=lambda module, name: True, verbose=False)
    assert isinstance(model, mt.Linear)
    mt.convert(model, linear=lambda module, name: True, recipe="mxfp8_emulated_rceil", verbose=False)
    assert model.recipe == "mxfp8_emulated_rceil"
    experts = mt.convert(GroupedExperts(64, 32, 2), experts="", verbose=False)
    mt.convert(experts, experts="", verbose=False)
    x, counts = torch.randn(40, 64, dtype=torch.bfloat16), torch.tensor([17, 23])
    twin = copy.deepcopy(experts.bfloat16())
    assert torch.equal(twin(x, counts), experts(x, counts))


def test_experts_really_run_in_mxfp8():
    plain = GroupedExperts(64, 32, 2).bfloat16()
    experts = mt.convert(copy.deepcopy(plain), experts="", verbose=False)
    x, counts = torch.randn(64, 64, dtype=torch.bfloat16), torch.tensor([32, 32])
    error = (experts(x, counts) - plain(x, counts)).norm() / plain(x, counts).norm()
    assert 0.01 < error < 0.1  # bf16 alone would be 0.005


def test_bias_is_kept_with_its_gradient():
    layer = nn.Linear(64, 32)
    nn.init.constant_(layer.bias, 100.0)
    mt.convert(layer, linear="", verbose=False)
    y = layer(torch.zeros(8, 64))
    y.sum().backward()
    assert torch.equal(y, torch.full((8, 32), 100.0)) and torch.equal(layer.bias.grad, torch.full((32,), 8.0))


class Loop(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1 = nn.Parameter(torch.randn(2, 32, 32))

    def forward(self, x):
        return sum(x @ w for w in self.w1)


@pytest.mark.parametrize(
    "make, arguments, message",
    [
        (make_model, dict(linear="nothing"), "`linear` matches no nn.Linear"),
        (make_model, dict(experts="nothing"), "`experts` matches no module with parameters of three dimensions"),
        (lambda: nn.Linear(64, 16), dict(linear=""), r"Linear: weight \(16, 64\) cannot be quantized"),
        (lambda: GroupedExperts(64, 40, 2), dict(experts=""), r"GroupedExperts.w1: weight \(2, 40, 64\) cannot"),
        (make_model, dict(linear="wq", recipe="fp4"), "recipe is 'fp4'"),
        (
            lambda: nn.modules.linear.NonDynamicallyQuantizableLinear(32, 32),
            dict(linear=""),
            "expected a plain nn.Linear",
        ),
    ],
)
def test_refuses_and_changes_nothing(make, arguments, message):
    model = make()
    types = [type(module) for module in model.modules()]
    with pytest.raises(mx8.InvalidArgument, match=message):
        mt.convert(model, verbose=False, **arguments)
    assert [type(module) for module in model.modules()] == types


def test_a_loop_over_experts_is_noticed():
    model = mt.convert(Loop(), experts="", verbose=False)
    with pytest.raises(mx8.InvalidArgument, match="called no torch._grouped_mm"):
        model(torch.randn(4, 32))


def test_linear_checks_its_sizes():
    with pytest.raises(mx8.InvalidArgument, match="multiples of 32"):
        mt.Linear(64, 16)


def load_fixture(name, oracle):
    meta = json.loads((DATA / f"parity_{name}.json").read_text())
    start = oracle(f"parity_{name}_start")
    widths = []
    for i in range(meta["config"]["n_layers"]):
        key = f"layers.{i}.moe.experts.w1"
        widths.append(start[key].shape[1] if key in start else start[f"layers.{i}.feed_forward.w1.weight"].shape[0])
    model = Transformer(meta["config"], meta["moe"], widths)
    model.load_state_dict(start)
    return meta, model, oracle(f"parity_{name}")["tokens"].long()


@pytest.mark.parametrize("name", ["moe", "interleaved", "softmax"])
@pytest.mark.parametrize("recipe", ["mxfp8_dense", "mxfp8_moe"])
def test_learns_as_torchao_does(oracle, name, recipe):
    """20 steps of torchtitan's model converted by one call: bf16 compute, f32 masters; each loss within 0.02 of the run
    of torchtitan's modules with torchao's operators, gradient norms within 5 %."""
    meta, model, tokens = load_fixture(name, oracle)
    master = {key: p.detach().clone().requires_grad_() for key, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16()
    experts = "moe.experts" if recipe == "mxfp8_moe" else None
    mt.convert(model, linear=mt.all_linear_except(), experts=experts, verbose=False)
    chosen = meta["optimizer"]
    optimizer = torch.optim.AdamW(
        master.values(), lr=chosen["lr"], betas=chosen["betas"], eps=chosen["eps"], weight_decay=chosen["weight_decay"]
    )
    want = meta["runs"][recipe]
    for step in range(meta["steps"]):
        logits = model(tokens[step][:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[step][:, 1:].flatten())
        model.zero_grad()
        loss.backward()
        for key, parameter in model.named_parameters():
            master[key].grad = parameter.grad.float()
        norm = nn.utils.clip_grad_norm_(master.values(), chosen["max_norm"])
        assert abs(loss.item() - want["loss"][step]) < 0.02, step
        assert abs(norm.item() - want["grad_norm"][step]) < 0.05 * want["grad_norm"][step], step
        optimizer.step()
        with torch.no_grad():
            for key, parameter in model.named_parameters():
                parameter.copy_(master[key])
        for module in model.modules():
            if isinstance(module, MoE):
                module.update_bias()

"""Open MoE models against `transformers`: tiny random models of each family, saved by it, read by mx8 and the other way
round. Logits in f32 agree to 1e-5, weights bit for bit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
from safetensors.torch import load_file

transformers = pytest.importorskip("transformers")

MX8 = Path(os.environ["MX8_LIBRARY"]).parent / "mx8"
COMMON = dict(
    vocab_size=96,
    hidden_size=32,
    num_attention_heads=4,
    num_key_value_heads=2,
    num_hidden_layers=4,
    max_position_embeddings=128,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
LLAMA3_ROPE = dict(
    rope_type="llama3",
    factor=4.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=16,
)
LLAMA4 = dict(
    COMMON,
    head_dim=16,
    intermediate_size=24,
    intermediate_size_mlp=40,
    num_experts_per_tok=1,
    num_local_experts=4,
    attention_chunk_size=8,
    floor_scale=5,
    attn_scale=0.7,
    attn_implementation="eager",
)
MOE = dict(COMMON, intermediate_size=24, num_experts=6, num_experts_per_tok=2)

# name -> (family, config class, model class, keys)
CASES = {
    "llama4": ("Llama4Text", "Llama4", dict(LLAMA4, interleave_moe_layer_step=2, rope_scaling=LLAMA3_ROPE)),
    "llama4-top2": ("Llama4Text", "Llama4", dict(LLAMA4, num_experts_per_tok=2, no_rope_layers=[0, 1, 1, 0])),
    "llama4-plain": (
        "Llama4Text",
        "Llama4",
        dict(LLAMA4, use_qk_norm=False, attn_temperature_tuning=False, moe_layers=[0, 3], no_rope_layer_interval=9),
    ),
    "qwen3": (
        "Qwen3Moe",
        "Qwen3Moe",
        dict(MOE, head_dim=16, moe_intermediate_size=20, norm_topk_prob=True, mlp_only_layers=[1], decoder_sparse_step=1),
    ),
    "qwen3-step": (
        "Qwen3Moe",
        "Qwen3Moe",
        dict(MOE, moe_intermediate_size=20, norm_topk_prob=False, decoder_sparse_step=2, rope_scaling=LLAMA3_ROPE),
    ),
    "olmoe": ("Olmoe", "Olmoe", dict(MOE, num_key_value_heads=4, clip_qkv=1.0)),
    "olmoe-grouped": ("Olmoe", "Olmoe", dict(MOE, norm_topk_prob=True)),
    "mixtral": (
        "Mixtral",
        "Mixtral",
        dict(COMMON, intermediate_size=24, num_local_experts=4, num_experts_per_tok=2),
    ),
    "mixtral-top3": (
        "Mixtral",
        "Mixtral",
        dict(COMMON, intermediate_size=24, num_local_experts=5, num_experts_per_tok=3, head_dim=12),
    ),
}


def run(*words, code=0):
    done = subprocess.run([str(MX8), *map(str, words)], capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return done


def load_folder(folder):
    tensors = {}
    for file in sorted(Path(folder).glob("*.safetensors")):
        tensors.update(load_file(file))
    return tensors


def assert_same_tensors(one, other):
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert tensor.dtype == other[name].dtype, name
        assert torch.equal(tensor, other[name]), name


def make_model(name, dtype=torch.float32):
    config, model, keys = CASES[name]
    config = getattr(transformers, f"{config}Config")(**keys)
    model = getattr(transformers, f"{model}ForCausalLM")(config).eval()
    with torch.no_grad():
        for key, weight in model.named_parameters():
            if "norm" in key:
                weight.add_(0.2 * torch.randn_like(weight))
            elif "router" in key or ".gate." in key:
                weight.normal_(0, 0.5)  # choices that rounding does not change
            else:
                weight.normal_(0, 0.08)
    return model.to(dtype)


def compute_theirs(model, ids):
    with torch.no_grad():
        return model(input_ids=ids[None], use_cache=False).logits[0].float()


def compute_ours(folder, ids, out, precision="f32"):
    words = ",".join(map(str, ids.tolist()))
    run("generate", folder, "--ids", words, "--logits", out, "--precision", precision)
    return load_file(out)["logits"]


@pytest.mark.parametrize("name", CASES)
def test_logits_and_round_trip(name, tmp_path):
    model = make_model(name)
    ids = torch.randint(0, 96, (29,))
    model.save_pretrained(tmp_path / "theirs", max_shard_size="60KB")
    want = compute_theirs(model, ids)
    assert want.std() > 0.1

    got = compute_ours(tmp_path / "theirs", ids, tmp_path / "logits.safetensors")
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)

    run("convert", tmp_path / "theirs", tmp_path / "titan", "--to", "torchtitan")
    run("convert", tmp_path / "titan", tmp_path / "again", "--to", "hf", "--shard-mb", 1)
    assert_same_tensors(load_folder(tmp_path / "theirs"), load_folder(tmp_path / "again"))
    got = compute_ours(tmp_path / "titan", ids, tmp_path / "logits.safetensors")
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)

    # transformers reads what mx8 wrote, and computes the same bits
    keys = dict(attn_implementation="eager") if name.startswith("llama4") else {}
    back = type(model).from_pretrained(tmp_path / "again", dtype=torch.float32, **keys).eval()
    assert torch.equal(compute_theirs(back, ids), want)


@pytest.mark.parametrize("name", ["llama4", "qwen3", "olmoe", "mixtral"])
def test_bf16(name, tmp_path):
    model = make_model(name, torch.bfloat16)
    ids = torch.randint(0, 96, (29,))
    model.save_pretrained(tmp_path / "theirs")
    run("convert", tmp_path / "theirs", tmp_path / "titan", "--to", "torchtitan")
    run("convert", tmp_path / "titan", tmp_path / "again", "--to", "hf")
    assert_same_tensors(load_folder(tmp_path / "theirs"), load_folder(tmp_path / "again"))
    # The same weights in f32 are the truth; both bf16 computations may be off by their rounding, ours by no more than
    # half as much again as theirs.
    exact = compute_theirs(model.float(), ids)
    theirs = compute_theirs(model.to(torch.bfloat16), ids)
    ours = compute_ours(tmp_path / "titan", ids, tmp_path / "logits.safetensors", "bf16")
    rounding = (theirs - exact).norm() / exact.norm()
    assert (ours - exact).norm() / exact.norm() < 1.5 * rounding
    assert rounding < 0.05


@pytest.mark.parametrize("name", CASES)
def test_training(name, tmp_path):
    """From the same weights and data: the same losses and gradient norms, step after step of AdamW."""
    model = make_model(name)
    model.save_pretrained(tmp_path / "start")
    steps, length, lr = 3, 32, 1e-4
    tokens = torch.randint(3, 96, (steps, length + 1))
    header = torch.zeros(256, dtype=torch.int32)
    header[0], header[1], header[2] = 20240520, 1, tokens.numel()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.bin").write_bytes(header.numpy().tobytes() + tokens.to(torch.uint16).numpy().tobytes())
    run(
        *"train --checkpoint.initial_load_in_hf --training.mixed_precision_param=float32".split(),
        *f"--optimizer.lr={lr} --optimizer.weight_decay=0 --lr_scheduler.warmup_steps=0".split(),
        *"--lr_scheduler.decay_ratio=0 --training.max_norm=1e9 --activation_checkpoint.mode=none".split(),
        *f"--training.local_batch_size=1 --training.seq_len={length} --training.steps={steps}".split(),
        "--training.dataset=shards",
        f"--checkpoint.initial_load_path={tmp_path / 'start'}",
        f"--training.dataset_path={tmp_path / 'data'}",
        f"--job.dump_folder={tmp_path / 'run'}",
    )
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    ours = [line for line in lines if "loss" in line]
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=0)
    for ids, line in zip(tokens, ours, strict=True):
        loss = torch.nn.functional.cross_entropy(model(input_ids=ids[None, :-1], use_cache=False).logits[0], ids[1:])
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
        # AdamW's first steps go by a gradient's sign: where that is rounding, so is a step of +-lr
        first = line["step"] == 1
        assert line["loss"] == pytest.approx(loss.item(), abs=5e-6 if first else 3e-4)
        assert line["grad_norm"] == pytest.approx(norm.item(), rel=1e-5 if first else 2e-3)
        optimizer.step()


def test_vision_tensors_are_left_out(tmp_path):
    """Llama 4 as published is a model that sees images too; its text part is read out of it."""
    model = make_model("llama4")
    model.save_pretrained(tmp_path / "text")
    config = json.loads((tmp_path / "text" / "config.json").read_text())
    del config["architectures"]
    whole = dict(architectures=["Llama4ForConditionalGeneration"], model_type="llama4", text_config=config)
    tensors = {f"language_model.{k}": v for k, v in load_folder(tmp_path / "text").items()}
    tensors["vision_model.patch_embedding.weight"] = torch.zeros(3, 3)
    from safetensors.torch import save_file

    (tmp_path / "whole").mkdir()
    save_file(tensors, tmp_path / "whole" / "model.safetensors", {"format": "pt"})
    (tmp_path / "whole" / "config.json").write_text(json.dumps(whole))
    run("convert", tmp_path / "whole", tmp_path / "out", "--to", "hf")
    assert_same_tensors(load_folder(tmp_path / "text"), load_folder(tmp_path / "out"))


def test_refusals(tmp_path):
    model = make_model("mixtral")
    model.save_pretrained(tmp_path / "good")
    config = json.loads((tmp_path / "good" / "config.json").read_text())
    for key, value in [("sliding_window", 64), ("tie_word_embeddings", True), ("logit_softcapping", 30.0)]:
        bad = tmp_path / f"bad-{key}"
        shutil.copytree(tmp_path / "good", bad)
        (bad / "config.json").write_text(json.dumps({**config, key: value}))
        assert key in run("convert", bad, tmp_path / "out", "--to", "torchtitan", code=1).stderr
    done = run("convert", tmp_path / "good", tmp_path / "out", "--to", "hf", "--architecture", "qwen3_moe", code=1)
    assert "Qwen3MoeForCausalLM" in done.stderr and "model.qk_norm" in done.stderr
    assert not (tmp_path / "out").exists()

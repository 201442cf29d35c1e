"""Event files of `mx8 train`, read by TensorBoard's own reader."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy
import pytest

accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

ROOT = Path(__file__).resolve().parents[2]
MX8 = ROOT / "build" / "mx8"
# torchtitan's components/metrics.py of September 2025
TAGS = {
    "loss_metrics/global_avg_loss",
    "loss_metrics/global_max_loss",
    "grad_norm",
    "throughput(tps)",
    "tflops",
    "mfu(%)",
    "time_metrics/end_to_end(s)",
    "time_metrics/data_loading(s)",
    "time_metrics/data_loading(%)",
    "memory/max_active(GiB)",
    "memory/max_active(%)",
    "memory/max_reserved(GiB)",
    "memory/max_reserved(%)",
    "memory/num_alloc_retries",
    "memory/num_ooms",
    "n_tokens_seen",
    "lr",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    (folder / "text.txt").write_text("the quick brown fox\n" * 200)
    flags = [
        *("--model.dim=64", "--model.n_layers=2", "--model.n_heads=2", "--model.n_kv_heads=1"),
        *("--moe.num_experts=4", "--training.seq_len=64", "--training.local_batch_size=2"),
        *("--training.steps=7", "--metrics.log_freq=3"),
        *("--metrics.enable_tensorboard", "--metrics.save_tb_folder=board"),
        *(f"--training.dataset_path={folder}/text.txt", f"--job.dump_folder={folder}/out"),
    ]
    subprocess.run([MX8, "train", *flags], check=True, capture_output=True)
    return folder / "out"


def read(run: Path):
    (file,) = run.glob("board/*/events.out.tfevents.*")
    events = accumulator.EventAccumulator(str(file))
    events.Reload()
    return events


def test_tags_are_torchtitans(run):
    assert TAGS <= set(read(run).Tags()["scalars"])


def test_values_are_those_of_the_metrics(run):
    lines = {line["step"]: line for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines())}
    events = read(run)
    pairs = {
        "loss_metrics/global_avg_loss": "loss",
        "grad_norm": "grad_norm",
        "lr": "lr",
        "n_tokens_seen": "tokens",
        "mx8/saturated": "saturated",
    }
    for tag, key in pairs.items():
        scalars = events.Scalars(tag)
        assert [s.step for s in scalars] == [1, 3, 6]  # step 1 and the multiples of log_freq
        for s in scalars:
            assert s.value == numpy.float32(lines[s.step][key]), tag
    seconds = [lines[step]["seconds"] for step in (4, 5, 6)]
    (tps,) = [s.value for s in events.Scalars("throughput(tps)") if s.step == 6]
    assert tps == pytest.approx(3 * 128 / sum(seconds), rel=1e-5)
    (each,) = [s.value for s in events.Scalars("time_metrics/end_to_end(s)") if s.step == 6]
    assert each == pytest.approx(sum(seconds) / 3, rel=1e-5)


def test_a_resumed_run_shows_each_step_once(tmp_path):
    """Steps that are done again after a crash replace what the first try wrote, in the same run of TensorBoard."""
    (tmp_path / "text.txt").write_text("the quick brown fox\n" * 200)
    flags = [
        *("--model.dim=64", "--model.n_layers=2", "--model.n_heads=2", "--model.n_kv_heads=1"),
        *("--moe.num_experts=4", "--training.seq_len=64", "--training.local_batch_size=2", "--metrics.log_freq=1"),
        *("--metrics.enable_tensorboard", "--metrics.save_tb_folder=board", "--checkpoint.enable"),
        *("--checkpoint.interval=2", "--checkpoint.last_save_model_only=false"),
        *(f"--training.dataset_path={tmp_path}/text.txt", f"--job.dump_folder={tmp_path}/out"),
    ]
    subprocess.run([MX8, "train", *flags, "--training.steps=5"], check=True, capture_output=True)
    (tmp_path / "out/checkpoint/step-5").rename(tmp_path / "lost")  # as if the run had died before it was whole
    subprocess.run([MX8, "train", *flags, "--training.steps=7"], check=True, capture_output=True)
    (folder,) = (tmp_path / "out/board").iterdir()
    assert len(list(folder.iterdir())) == 2
    events = accumulator.EventAccumulator(str(folder))
    events.Reload()
    assert [s.step for s in events.Scalars("lr")] == [1, 2, 3, 4, 5, 6, 7]
    lines = {line["step"]: line for line in map(json.loads, (tmp_path / "out/metrics.jsonl").read_text().splitlines())}
    for s in events.Scalars("loss_metrics/global_avg_loss"):
        assert s.value == numpy.float32(lines[s.step]["loss"])
    assert all(s.value > 0 for s in events.Scalars("mfu(%)"))

"""Helpers of the Python tests. `./test.sh python` runs them; PYTHONPATH and MX8_LIBRARY say what is tested."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).parent))
DATA = Path(__file__).resolve().parents[1] / "data"


@pytest.fixture(autouse=True)
def fixed_seed():
    torch.manual_seed(0)
    torch._dynamo.reset()


@pytest.fixture(scope="session")
def oracle():
    """What torchao's own operators gave, by file name."""
    files = {}

    def load(name: str):
        if name not in files:
            files[name] = load_file(DATA / f"{name}.safetensors")
        return files[name]

    return load

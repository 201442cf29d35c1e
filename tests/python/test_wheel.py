"""The wheel: what is inside, and that it works in an environment of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = Path(os.environ.get("MX8_LIBRARY", ROOT / "build" / "libmx8.so"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, str(ROOT / "python" / "build_wheel.py"), str(LIBRARY.parent), str(out)]
    return Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())


def test_contents(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"mx8/__init__.py", "mx8/py.typed", "mx8/torch/__init__.py", "mx8/libs/libmx8.so"} <= names
    assert "py3-none-manylinux_2_" in wheel.name
    record = zipfile.ZipFile(wheel).read(next(n for n in names if n.endswith("RECORD"))).decode()
    assert {line.split(",")[0] for line in record.split()} == names


def test_install_and_run(wheel, tmp_path):
    """Installed without an index, away from the source tree; the package without torch, as torch is not there."""
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-index", str(wheel)], check=True)
    environment = {key: value for key, value in os.environ.items() if key not in ("MX8_LIBRARY", "PYTHONPATH")}
    code = "import mx8, mx8.lib, mx8.ops; print(mx8.__file__, mx8.lib.Context().backend, len(mx8.ops.get_ops()))"
    said = subprocess.run(
        [python, "-c", code], check=True, capture_output=True, text=True, cwd=tmp_path, env=environment
    ).stdout.split()
    assert said[0].startswith(str(tmp_path)) and said[1].startswith("cpu-") and int(said[2]) > 20

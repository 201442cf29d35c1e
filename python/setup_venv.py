#!/usr/bin/env python3
"""Makes the virtual environment that the Python tests run in: torch and little else. Standard library only.

Usage: setup_venv.py FOLDER      (a folder that is ready already is left alone; status 75: PyPI cannot be reached)
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
UNREACHABLE = 75  # EX_TEMPFAIL of sysexits.h


def main(folder: Path) -> int:
    requirements = HERE / "requirements-test.txt"
    recipe = requirements.read_text() + (HERE / "torch_stubs.py").read_text() + sys.version
    ready = folder / "ready"
    if ready.is_file() and ready.read_text() == recipe:
        return 0
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    if subprocess.run([*pip, "filelock"]).returncode:
        return UNREACHABLE
    if code := subprocess.run([*pip, "--requirement", str(requirements)]).returncode:
        return code
    site = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    subprocess.run([python, str(HERE / "torch_stubs.py"), site], check=True)
    subprocess.run([python, "-c", "import torch"], check=True)
    ready.write_text(recipe)
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1])))

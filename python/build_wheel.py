#!/usr/bin/env python3
"""Builds the wheel of the Python package, with the libraries inside. Standard library only; no setuptools.

Usage: build_wheel.py BUILD_FOLDER OUT_FOLDER

Takes libmx8.so, and libmx8_cuda.so where it was built, from the build folder, strips them, and adds what they need and
what not every machine has, libjansson and libgomp: used only where the machine has none of its own. The wheel is
py3-none-manylinux_X_Y: any Python 3, and the oldest glibc that the symbols of its libraries allow.
"""

from __future__ import annotations

import base64
import hashlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
NAME = "mx8"
# What every Linux with Python has; cuBLASLt comes with the CUDA toolkit or with torch's CUDA wheels.
SYSTEM = (
    "libc.so",
    "libm.so",
    "libpthread.so",
    "libdl.so",
    "librt.so",
    "ld-linux",
    "libgcc_s.so",
    "libstdc++.so",
    "linux-vdso",
    "libcublas",
)


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def find_version() -> str:
    header = (HERE.parent / "include" / "mx8" / "status.h").read_text()
    parts = [re.search(rf"MX8_VERSION_{part} (\d+)", header) for part in ("MAJOR", "MINOR", "PATCH")]
    return ".".join(match.group(1) for match in parts if match)


def find_dependencies(library: Path) -> list[Path]:
    """Shared libraries that have to travel along."""
    found = []
    for line in run("ldd", str(library)).splitlines():
        name, arrow, rest = line.strip().partition(" => ")
        if not arrow or name.startswith(SYSTEM):
            continue
        path = rest.split(" (")[0]
        if path == "not found":
            raise SystemExit(f"build_wheel.py: {library} needs {name}, which this machine has not")
        found.append(Path(path))
    return found


def find_glibc(libraries: list[Path]) -> tuple[int, int]:
    versions = {(2, 17)}
    for library in libraries:
        text = run("objdump", "-T", str(library))
        versions |= {(int(a), int(b)) for a, b in re.findall(r"GLIBC_(\d+)\.(\d+)", text)}
    return max(versions)


def collect_libraries(build: Path, scratch: Path) -> list[Path]:
    """Stripped copies of the libraries, under the names that they are looked for."""
    sources = [build / "libmx8.so"] + [path for path in [build / "libmx8_cuda.so"] if path.exists()]
    if not sources[0].exists():
        raise SystemExit(f"build_wheel.py: {sources[0]} is missing; run make first")
    sources += [path for source in sources[:] for path in find_dependencies(source)]
    copies = []
    for source in dict.fromkeys(sources):
        copy = scratch / source.name
        shutil.copyfile(source.resolve(), copy)
        subprocess.run(["strip", "--strip-unneeded", str(copy)], check=True)
        copies.append(copy)
    return copies


def write_wheel(target: Path, files: dict[str, bytes], info: str) -> None:
    record = []
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in sorted(files.items()):
            entry = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))  # the same files give the same wheel
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o755 if ".so" in name else 0o644) << 16
            wheel.writestr(entry, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(data)}")
        wheel.writestr(f"{info}/RECORD", "\n".join([*record, f"{info}/RECORD,,", ""]))


def main(build: Path, out: Path) -> None:
    version = find_version()
    with tempfile.TemporaryDirectory() as folder:
        libraries = collect_libraries(build, Path(folder))
        major, minor = find_glibc(libraries)
        files = {f"{NAME}/libs/{path.name}": path.read_bytes() for path in libraries}
    tag = f"py3-none-manylinux_{major}_{minor}_{platform.machine()}"
    for path in (HERE / NAME).rglob("*"):
        if path.suffix == ".py" or path.name == "py.typed":
            files[path.relative_to(HERE).as_posix()] = path.read_bytes()
    info = f"{NAME}-{version}.dist-info"
    files[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {version}\n"
        "Summary: MXFP8 training kernels, and PyTorch operators over them\nRequires-Python: >=3.9\n"
        "Provides-Extra: torch\nRequires-Dist: torch>=2.4; extra == 'torch'\n"
    ).encode()
    files[f"{info}/WHEEL"] = (f"Wheel-Version: 1.0\nGenerator: mx8\nRoot-Is-Purelib: false\nTag: {tag}\n").encode()
    out.mkdir(parents=True, exist_ok=True)
    target = out / f"{NAME}-{version}-{tag}.whl"
    write_wheel(target, files, info)
    print(target)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))

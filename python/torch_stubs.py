#!/usr/bin/env python3
"""Makes PyTorch's CUDA wheel importable on a machine without CUDA's libraries. Standard library, nm and cc only.

PyPI has no CPU build of torch for x86-64 Linux, and the CUDA build links a dozen NVIDIA libraries of 2.5 GB that a test
on the CPU never calls. This script looks up which functions torch's libraries expect from them and builds one small
library that has them all, found under each of their names beside torch's own. Each function fails with error 100, "no
device", so torch.cuda.is_available() is False. A machine with NVIDIA's driver is left alone.

Usage: torch_stubs.py SITE_PACKAGES
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

STUB = "libmx8_no_cuda.so"


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def find_cuda_names(libraries: list[Path]) -> list[str]:
    """SONAMEs of NVIDIA's libraries that torch's name and do not bring."""
    own = {path.name for path in libraries}
    needed = {
        line.split("[")[1].rstrip("]")
        for path in libraries
        for line in run("readelf", "-d", str(path)).splitlines()
        if "(NEEDED)" in line
    }
    return sorted(name for name in needed - own if name.startswith(("libcu", "libnccl", "libnv")))


def find_symbols(libraries: list[Path]) -> dict[str, str]:
    """Functions that torch's libraries use, that none of them has, and that only CUDA's libraries could have; each with
    its symbol version, "" where it has none."""
    used, defined = {}, set()
    for path in libraries:
        for line in run("nm", "-D", str(path)).splitlines():
            *_, kind, symbol = line.split()
            name, _, version = symbol.partition("@")
            if kind == "U":
                used[name] = version.lstrip("@")
            else:
                defined.add(name)
    prefixes = ("cu", "__cuda", "nccl", "nvshmem", "nvrtc", "nvtx", "nvJitLink")
    return {
        name: version
        for name, version in sorted(used.items())
        if name not in defined and (name.startswith(prefixes) or "nvshmem" in name)
    }


def write_version_script(path: Path, symbols: dict[str, str]) -> None:
    """The loader insists on the version of every symbol that was linked with one."""
    nodes: dict[str, list[str]] = {}
    for name, version in symbols.items():
        if version:
            nodes.setdefault(version, []).append(name)
    path.write_text("".join(f"{version} {{ global: {'; '.join(names)}; }};\n" for version, names in nodes.items()))


def main(site: str) -> None:
    folder = Path(site) / "torch" / "lib"
    libraries = [path for path in folder.glob("*.so*") if not path.is_symlink() and path.name != STUB]
    if has_driver():
        return
    names = find_cuda_names(libraries)
    symbols = find_symbols(libraries)
    source = "".join(f"int {name}(void) {{ return 100; }}\n" for name in symbols)
    script = folder / "libmx8_no_cuda.map"
    write_version_script(script, symbols)
    subprocess.run(
        [
            "cc",
            "-shared",
            "-fPIC",
            "-O1",
            "-w",
            "-fno-builtin",
            "-x",
            "c",
            "-",
            f"-Wl,--version-script={script}",
            "-o",
            str(folder / STUB),
        ],
        input=source,
        text=True,
        check=True,
    )
    for name in names:
        link = folder / name
        link.unlink(missing_ok=True)
        link.symlink_to(STUB)
    print(f"torch: stubs stand in for {', '.join(names)}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])

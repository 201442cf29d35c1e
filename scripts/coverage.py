"""Sums gcov's line counts by floor. Standard library only. Usage: coverage.py BUILD_FOLDER"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

WANTED = {"base": 85, "formats": 85, "ops": 85}
ROOT = Path(__file__).resolve().parents[1]


def main(build: Path) -> int:
    lines: dict[str, dict[int, int]] = {}
    for data in sorted(build.glob("CMakeFiles/mx8_*.dir/src/**/*.gcda")):
        out = subprocess.run(["gcov", "--json-format", "--stdout", data.resolve()], capture_output=True, cwd=build)
        text = gzip.decompress(out.stdout) if out.stdout[:2] == b"\x1f\x8b" else out.stdout
        for part in text.splitlines():
            for file in json.loads(part)["files"]:
                path = (build / file["file"]).resolve()
                if ROOT / "src" not in path.parents:
                    continue
                counts = lines.setdefault(str(path.relative_to(ROOT / "src")), {})
                for line in file["lines"]:
                    counts[line["line_number"]] = counts.get(line["line_number"], 0) + line["count"]
    floors: dict[str, list[int]] = {}
    for name, counts in lines.items():
        total = floors.setdefault(name.split("/")[0], [0, 0])
        total[0] += sum(1 for n in counts.values() if n)
        total[1] += len(counts)
    bad = 0
    for floor, (hit, all_lines) in sorted(floors.items()):
        per_cent = 100 * hit / all_lines
        wanted = WANTED.get(floor, 0)
        bad |= per_cent < wanted
        print(f"{floor:8} {hit:6} of {all_lines:6} lines  {per_cent:5.1f} %" + (f"  (at least {wanted})" if wanted else ""))
    low = sorted((sum(1 for n in c.values() if n) / len(c), name) for name, c in lines.items())
    print("least covered: " + ", ".join(f"{name} {100 * share:.0f} %" for share, name in low[:5]))
    return int(bad or not floors)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]).resolve()))

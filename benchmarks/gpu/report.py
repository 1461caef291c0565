"""Print results of ``python -m benchmarks.gpu --json FILE`` as Markdown, for RESULTS.md.

python -m benchmarks.gpu.report FILE [FILE ...]          later files replace sections of earlier ones
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

OURS = "scorch"
OF_THE_HOST = ("host", "compile")  # whose times are no times of the device


def read(paths: Iterable[str]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Read files; return the machine of the last, and the rows of all on the device, by section."""
    sections: dict[str, list[dict[str, Any]]] = {}
    machine: dict[str, Any] = {}
    for path in paths:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        machine = {"date": found["date"], **found["machine"]}
        for name in dict.fromkeys(row["section"] for row in found["rows"]):
            if name not in OF_THE_HOST:
                sections[name] = [row for row in found["rows"] if row["section"] == name]
    return machine, [row for rows in sections.values() for row in rows]


def best_rival(row: dict[str, Any]) -> tuple[str, float] | None:
    """Return the fastest of the others."""
    others = {name: time for name, time in row["milliseconds"].items() if not name.startswith(OURS)}
    return min(others.items(), key=lambda item: item[1]) if others else None


def ratio(row: dict[str, Any]) -> float | None:
    """Return how many times faster than the fastest of the others ours is."""
    rival, own = best_rival(row), row["milliseconds"].get(OURS)
    return None if rival is None or not own else rival[1] / own


def lines(machine: dict[str, Any], rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return geometric means by what is computed, then all rows."""
    told = ", ".join(str(machine[key]) for key in ("device", "torch", "driver", "date") if key in machine)
    found = [told, "", "| | matrices | x the best other | worst |", "|---|---|---|---|"]
    for label in dict.fromkeys(row["label"] for row in rows):
        of_label = [(r, row["matrix"]) for row in rows if row["label"] == label and (r := ratio(row))]
        if of_label:
            mean = math.exp(sum(math.log(r) for r, _ in of_label) / len(of_label))
            worst = min(of_label)
            found.append(f"| {label} | {len(of_label)} | {mean:.2f} | {worst[0]:.2f} ({worst[1]}) |")
    found += ["", "| | matrix | scorch, ms | best other, ms | | floor, ms |", "|---|---|---|---|---|---|"]
    for row in rows:
        rival, own = best_rival(row), row["milliseconds"].get(OURS)
        if own is not None and rival is not None:
            floor = f"{row['floor_ms']:.4f}" if row.get("floor_ms") else ""
            cells = (row["label"], row["matrix"], f"{own:.4g}", f"{rival[1]:.4g} ({rival[0]})")
            found.append(f"| {' | '.join(cells)} | x {rival[1] / own:.2f} | {floor} |")
    return found


if __name__ == "__main__":
    print("\n".join(lines(*read(sys.argv[1:]))))

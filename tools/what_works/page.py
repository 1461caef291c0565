"""The page ``docs/what-works.md``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from tools.what_works.check import OUTCOMES
from tools.what_works.operators import DTYPES, FORMATS, LEFT_OUT, VARIANTS
from tools.what_works.tally import Report, Tally, kept_sparse, passed

SHORT = {"float32": "f32", "float64": "f64", "bfloat16": "bf16", "int64": "i64", "bool": "bool"}

HEAD = """\
# What works

Every operator that torch tests itself, on torch's own samples, with sparse tensors in place of dense ones.
About a third of the values of each tensor are kept, the others are zeros that are not stored. An operator
*passes* if every result has the values, the dtype and the shape that it has with dense tensors. Everything
else is one of

| | |
|---|---|
| refused | an error of Scorch that says why, and mostly what to do instead |
| cryptic | any other error |
| wrong | another result, without a word |
| crashed | the process ended |
| too slow | no result in time |

This page is made by

    {command}

with torch {torch}, in {minutes} minutes; `pip install expecttest scipy` brings what it needs.
Vectors are stored in the format that is closest to the one in the heading (`s`, `o` or blocks of `s`),
tensors of more dimensions as batches, and `csf` gets samples of order 3 and more where an operator has them.
Formats and dtypes take turns with the samples of an operator.
"""

TABLES = """\
A tick stands for all dtypes that torch has for the operator, with the first tensor sparse and with all of
them; else it says which dtypes do not pass, and what happens. The last column is the result where zeros give
zeros: *sparse*, or *dense* if it is stored densely all the same; nothing, if zeros give something else, the
result is smaller than its input, or it is a product with a dense tensor, which is dense.
"""


def write_page(report: Report) -> str:
    """The page as text."""
    head = HEAD.format(command=report.command, torch=report.torch, minutes=max(1, round(report.seconds / 60)))
    parts = [head, _summary(report), "## Operators", TABLES]
    tried = {tally.operator for tally in report.tallies}
    for family in sorted(set(report.operators.values())):
        names = [name for name in report.operators if report.operators[name] == family and name in tried]
        if names:
            parts += [f"### {family}", _family(report, sorted(names))]
    parts += [_failures(report), _not_tried(report, tried)]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def operators_on(page: str) -> set[str]:
    """The operators that a page names, tried or not."""
    return set(re.findall(r"^\| `([\w.]+)` \|", page, re.M)) | set(re.findall(r"^- `([\w.]+)`$", page, re.M))


def _row(cells: Iterable[object]) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    return "\n".join([_row(head), _row(["---"] * len(head)), *map(_row, rows)])


def _summary(report: Report) -> str:
    parts = ["## In short"]
    for variant, meaning in VARIANTS.items():
        rows = []
        for format in FORMATS:
            chosen = report.select(variant=variant, format=format)
            cells = [_share(passed(t for t in chosen if t.dtype == dtype)) for dtype in DTYPES]
            rows.append([format, *cells, _share(kept_sparse(chosen))])
        head = ["format", *DTYPES, "still sparse where zeros give zeros"]
        parts += [
            f"Operators that pass, of those that torch has for a dtype, where {meaning}:",
            _table(head, rows),
        ]
    counts = {kind: sum(tally.counts.get(kind, 0) for tally in report.tallies) for kind in OUTCOMES}
    total = sum(counts.values())
    told = ", ".join(f"{number:,} {kind}" for kind, number in counts.items())
    parts.append(f"{total:,} calls of {len({t.operator for t in report.tallies})} operators: {told}.")
    return "\n\n".join(parts)


def _share(counted: tuple[int, int]) -> str:
    good, total = counted
    return f"{good} / {total}" if total else "–"


def _family(report: Report, names: Sequence[str]) -> str:
    rows = []
    for name in names:
        mine = report.select(operator=name)
        dtypes = [short for dtype, short in SHORT.items() if any(t.dtype == dtype for t in mine)]
        cells = [_cell([t for t in mine if t.format == format]) for format in FORMATS]
        rows.append([f"`{name}`", " ".join(dtypes), *cells, _kept(mine)])
    return _table(["operator", "dtypes", *FORMATS, "result"], rows)


def _cell(tallies: Sequence[Tally]) -> str:
    if not tallies:
        return "–"
    told = []
    for kind in OUTCOMES[1:]:
        dtypes = [
            short
            for dtype, short in SHORT.items()
            if any(t.dtype == dtype and t.worst == kind for t in tallies)
        ]
        if dtypes:
            told.append(f"{kind}: {' '.join(dtypes)}")
    return "; ".join(told) or "✓"


def _kept(tallies: Sequence[Tally]) -> str:
    found = {tally.is_sparse for tally in tallies} - {None}
    return (
        "" if not found else "sparse or dense" if len(found) > 1 else "sparse" if found == {True} else "dense"
    )


def _failures(report: Report) -> str:
    """What does not pass, by message."""
    groups: dict[tuple[str, str], list[Tally]] = {}
    for tally in report.tallies:
        for kind, message in tally.messages.items():
            if kind != "passed":
                groups.setdefault((kind, _general(message)), []).append(tally)
    if not groups:
        return "## What does not pass\n\nNothing."
    rows = []
    for (kind, message), tallies in sorted(groups.items(), key=lambda g: (OUTCOMES.index(g[0][0]), g[0][1])):
        names = sorted({tally.operator for tally in tallies})
        told = ", ".join(f"`{name}`" for name in names[:12]) + (
            f" and {len(names) - 12} more" if len(names) > 12 else ""
        )
        rows.append([kind, message.replace("|", "\\|"), told, _where(tallies)])
    return "## What does not pass\n\n" + _table(["", "what it says", "operators", "where"], rows)


def _general(message: str) -> str:
    """A message without the numbers that differ from call to call."""
    return (
        re.sub(r"\(\d+(, \d+)*,?\)", "(...)", re.sub(r"\b\d[\d,.e+-]*\b", "N", message))
        if "bytes" in message
        else message
    )


def _where(tallies: Sequence[Tally]) -> str:
    dtypes = [short for dtype, short in SHORT.items() if any(t.dtype == dtype for t in tallies)]
    formats = [format for format in FORMATS if any(t.format == format for t in tallies)]
    every = "all formats" if len(formats) == len(FORMATS) else " ".join(formats)
    return f"{every}; {'all dtypes' if len(dtypes) == len(SHORT) else ' '.join(dtypes)}"


def _not_tried(report: Report, tried: set[str]) -> str:
    names = sorted(set(report.operators) - tried)
    reasons = "\n".join(f"- {reason}: `{pattern}`" for reason, pattern in LEFT_OUT.items())
    listed = "\n".join(f"- `{name}`" for name in names) or "None."
    return "\n\n".join(
        [
            "## Not tried",
            "Operators whose samples have no tensor with dimensions as first tensor, whose results are\n"
            "drawn at random, or whose samples are sparse already:",
            listed,
            "Left out by their names:",
            reasons,
        ]
    )

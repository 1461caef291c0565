"""Numbers with units, and tables of them, as reports show them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def format_table(rows: Sequence[Sequence[str]], left: int = 4) -> list[str]:
    """Align columns below the first row, which is the head; all but the first ``left`` hold numbers."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = list(map(str.ljust, row[:left], widths)) + list(map(str.rjust, row[left:], widths[left:]))
        lines.append("  ".join(cells).rstrip())
    return [lines[0], "-" * max(map(len, lines)), *lines[1:]]


def group_layers(remarks: Iterable[tuple[str, str]]) -> list[tuple[str, str, int]]:
    """Join the names of layers with the same remark: ``a and b``, or ``a and 7 more``, and how many."""
    names: dict[str, list[str]] = {}
    for name, remark in remarks:
        names.setdefault(remark, []).append(name or "(model)")
    return [(_in_words(layers), remark, len(layers)) for remark, layers in names.items()]


def _in_words(names: Sequence[str]) -> str:
    more = len(names) - 1
    return names[0] if not more else f"{names[0]} and {names[1] if more == 1 else f'{more} more'}"


def format_density(density: float) -> str:
    """Format a share as ``12.34%``: two decimals, or two digits where these would show zero."""
    text = f"{density:.2%}"
    return f"{100 * density:.2g}%" if density and text == "0.00%" else text


def format_seconds(seconds: float | None) -> str:
    """Format seconds as ``1.2 ms``: two or three digits."""
    if seconds is None:
        return "-"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.2g} us"


def format_bytes(size: float) -> str:
    """Format bytes as ``1.2 MB``: three digits at most."""
    for unit in ("bytes", "KB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} TB"

"""Parts of explanations in notebooks: tables, lists, and collapsible sections."""

from __future__ import annotations

import html
from collections.abc import Collection, Iterable, Sequence

_STYLE = """\
<style>
.scorch table { border-collapse: collapse; font-size: 0.9em; }
.scorch th, .scorch td { text-align: left; vertical-align: top; padding: 0.25em 0.8em 0.25em 0; border: 0; }
.scorch tr { border-top: 1px solid rgba(128, 128, 128, 0.35); }
.scorch .number { text-align: right; white-space: nowrap; }
.scorch code, .scorch pre { font-size: 0.95em; white-space: pre-wrap; }
.scorch .faint { opacity: 0.65; }
.scorch .bar { display: inline-block; height: 0.6em; background: #c8553d; }
</style>"""


def page(*parts: str) -> str:
    """Join parts, with a common style."""
    return f'<div class="scorch">{_STYLE}{"".join(parts)}</div>'


def text(value: object) -> str:
    """Escape a text."""
    return html.escape(str(value))


def code(value: object) -> str:
    """Format a short piece of a program."""
    return f"<code>{text(value)}</code>"


def faint(value: object) -> str:
    """Format something of less weight."""
    return f'<span class="faint">{text(value)}</span>'


def heading(value: object) -> str:
    return f"<p><b>{text(value)}</b></p>"


def bar(share: float) -> str:
    """Draw a bar as long as the share is large."""
    return f'<span class="bar" style="width:{8 * min(max(share, 0.0), 1.0):.2f}em"></span>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Collection[int] = ()) -> str:
    """Format rows of cells that are HTML already; ``numbers`` are right-aligned columns."""

    def format_cells(cells: Iterable[str], tag: str) -> str:
        kinds = [' class="number"' if column in numbers else "" for column in range(len(head))]
        return "".join(f"<{tag}{kind}>{cell}</{tag}>" for cell, kind in zip(cells, kinds, strict=True))

    body = "".join(f"<tr>{format_cells(row, 'td')}</tr>" for row in rows)
    return f"<table><tr>{format_cells(map(text, head), 'th')}</tr>{body}</table>"


def listing(title: str, items: Iterable[str]) -> str:
    """Format sentences below a title."""
    return f"{heading(title)}<ul>{''.join(f'<li>{text(item)}</li>' for item in items)}</ul>"


def collapsible(head: str, body: str) -> str:
    """Hide ``body`` until ``head`` is clicked; both are HTML."""
    return f"<details><summary>{head}</summary>{body}</details>"


def source(title: str, body: str) -> str:
    """Format a long text in a collapsible section."""
    return collapsible(text(title), f"<pre>{text(body)}</pre>") if body else ""

"""The parts that explanations are made of in notebooks: tables, lists, and what can be opened."""

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
    """The parts one below the other, with the style of all."""
    return f'<div class="scorch">{_STYLE}{"".join(parts)}</div>'


def text(value: object) -> str:
    """A text as it is, whatever signs are in it."""
    return html.escape(str(value))


def code(value: object) -> str:
    """A short piece of a program."""
    return f"<code>{text(value)}</code>"


def faint(value: object) -> str:
    """Something of less weight."""
    return f'<span class="faint">{text(value)}</span>'


def heading(value: object) -> str:
    return f"<p><b>{text(value)}</b></p>"


def bar(share: float) -> str:
    """A bar as long as the share is large."""
    return f'<span class="bar" style="width:{8 * min(max(share, 0.0), 1.0):.2f}em"></span>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Collection[int] = ()) -> str:
    """Rows of cells that are HTML already; ``numbers`` are columns that end at one line."""

    def line(cells: Iterable[str], tag: str) -> str:
        kinds = [' class="number"' if place in numbers else "" for place in range(len(head))]
        return "".join(f"<{tag}{kind}>{cell}</{tag}>" for cell, kind in zip(cells, kinds, strict=True))

    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    return f"<table><tr>{line(map(text, head), 'th')}</tr>{body}</table>"


def listing(title: str, items: Iterable[str]) -> str:
    """Sentences below a title."""
    return f"{heading(title)}<ul>{''.join(f'<li>{text(item)}</li>' for item in items)}</ul>"


def opened(head: str, body: str) -> str:
    """``body``, which is shown once ``head`` is clicked; both are HTML."""
    return f"<details><summary>{head}</summary>{body}</details>"


def source(title: str, body: str) -> str:
    """A long text, to be opened."""
    return opened(text(title), f"<pre>{text(body)}</pre>") if body else ""

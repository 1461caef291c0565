"""Parts of explanations in notebooks and in pages of their own: tables, lists, figures, bars, sections.

A part inherits the colours of the notebook. ``document`` makes a page that follows the reader's preference
for light or dark. There is no JavaScript and nothing is loaded from elsewhere.
"""

from __future__ import annotations

import html
import re
from collections.abc import Collection, Iterable, Sequence

from scorch._src.html.highlight import highlight

_LIGHT = (
    "--accent: #c2410c; --calm: #64748b; --keyword: #9333ea; "
    "--type: #0369a1; --number: #b45309; --note: #15803d"
)
_DARK = (
    "--accent: #fb923c; --calm: #94a3b8; --keyword: #d8b4fe; "
    "--type: #7dd3fc; --number: #fcd34d; --note: #86efac"
)
_STYLE = f"""\
<style>
.scorch {{ {_LIGHT}; line-height: 1.45; }}
[data-jp-theme-light="false"] .scorch, .vscode-dark .scorch {{ {_DARK}; }}
.scorch table {{ border-collapse: collapse; font-size: 0.9em; display: block; overflow-x: auto; }}
.scorch th, .scorch td {{ text-align: left; vertical-align: top; padding: 0.25em 0.8em 0.25em 0; border: 0; }}
.scorch th {{ white-space: nowrap; }}
.scorch tr {{ border-top: 1px solid rgba(128, 128, 128, 0.35); background: none; }}
.scorch .number {{ text-align: right; white-space: nowrap; }}
.scorch code, .scorch pre {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; }}
.scorch code, .scorch pre {{ font-size: 0.9em; white-space: pre-wrap; background: none; color: inherit; }}
.scorch td code {{ overflow-wrap: anywhere; }}
.scorch td:first-child code {{ white-space: nowrap; }}
.scorch pre {{ overflow-x: auto; white-space: pre; padding: 0.8em; border-left: 3px solid var(--calm); }}
.scorch .faint {{ opacity: 0.7; }}
.scorch .bar {{ display: inline-block; height: 0.6em; background: var(--accent); border-radius: 2px; }}
.scorch .bar.calm {{ background: var(--calm); }}
.scorch .step {{ border: 1px solid rgba(128, 128, 128, 0.35); border-radius: 8px; }}
.scorch .step {{ padding: 0.4em 1.2em 1em; margin: 1em 0; }}
.scorch h3 {{ font-size: 1em; margin: 1.2em 0 0.4em; }}
.scorch .figures {{ display: flex; flex-wrap: wrap; gap: 1em 1.2em; align-items: flex-start; }}
.scorch figure {{ margin: 0; max-width: 9.5em; }}
.scorch figcaption {{ font-size: 0.85em; margin-top: 0.3em; }}
.scorch figure.result {{ border-left: 1px solid rgba(128, 128, 128, 0.5); padding-left: 1.2em; }}
.scorch .loop {{ border-left: 3px solid var(--accent); padding: 0.15em 0 0.15em 0.9em; margin: 0.15em 0; }}
.scorch .loop .loop {{ border-left-color: var(--calm); }}
.scorch dl {{ display: grid; grid-template-columns: max-content 1fr; gap: 0.2em 1em; margin: 0; }}
.scorch dl {{ font-size: 0.9em; }}
.scorch dt {{ opacity: 0.7; }} .scorch dd {{ margin: 0; }}
.scorch summary {{ cursor: pointer; padding: 0.3em 0; }}
.scorch .hl-comment {{ color: var(--note); }} .scorch .hl-directive {{ color: var(--note); }}
.scorch .hl-keyword {{ color: var(--keyword); }} .scorch .hl-type {{ color: var(--type); }}
.scorch .hl-number, .scorch .hl-text {{ color: var(--number); }} .scorch .hl-function {{ font-weight: 600; }}
@media (max-width: 40em) {{
  .scorch dl {{ grid-template-columns: 1fr; }} .scorch dd {{ margin-bottom: 0.4em; }}
  .scorch .step {{ padding: 0.2em 0.7em 0.7em; }} .scorch th {{ white-space: normal; }}
  .scorch figure.result {{ border-left: 0; padding-left: 0; }}
  .scorch .bar {{ font-size: 0.45em; height: 1.3em; }}
}}
</style>"""
_DOCUMENT = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font-family: system-ui, sans-serif; max-width: 64em; margin: 2em auto; padding: 0 1em; }}
:root {{ color-scheme: light dark; background: #ffffff; color: #1e293b; }}
@media (prefers-color-scheme: dark) {{
  :root {{ background: #0f172a; color: #e2e8f0; }}
  body .scorch {{ {dark}; }}
}}
</style>
</head>
<body>
{body}
</body>
</html>
"""
# The functions of a kernel begin with what its threads share, or with the function that is called.
_OWN_FUNCTION = re.compile(r"^(?:struct closure_\d|[^\n]*\bwork_\d+\(|[^\n]*\bscorch_\w+\()", re.MULTILINE)
_ENTRY = re.compile(r"^[^\s/][^\n]*\bscorch_compute\(", re.MULTILINE)
_COMMENTS = re.compile(r"(?://[^\n]*\n|\n)*")


def page(*parts: str) -> str:
    """Join parts, with a common style."""
    return f'<div class="scorch">{_STYLE}{"".join(parts)}</div>'


def document(title: str, body: str) -> str:
    """Make a page of its own of what ``page`` returned."""
    return _DOCUMENT.format(title=text(title), body=body, dark=_DARK)


def text(value: object) -> str:
    """Escape a text."""
    return html.escape(str(value))


def unbroken(value: object) -> str:
    """Escape a text that stays on one line, such as a shape in a table."""
    return text(value).replace(" ", "&nbsp;")


def code(value: object) -> str:
    """Format a short piece of a program."""
    return f"<code>{text(value)}</code>"


def faint(value: object) -> str:
    """Format something of less weight."""
    return f'<span class="faint">{text(value)}</span>'


def heading(value: object) -> str:
    return f"<p><b>{text(value)}</b></p>"


def bar(share: float, kind: str = "") -> str:
    """Draw a bar as long as the share is large."""
    width = 8 * min(max(share, 0.0), 1.0)
    return f'<span class="bar {kind}" style="width:{width:.2f}em"></span>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Collection[int] = ()) -> str:
    """Format rows of cells that are HTML already; ``numbers`` are right-aligned columns."""

    def format_cells(cells: Iterable[str], tag: str) -> str:
        kinds = [' class="number"' if column in numbers else "" for column in range(len(head))]
        return "".join(f"<{tag}{kind}>{cell}</{tag}>" for cell, kind in zip(cells, kinds, strict=True))

    body = "".join(f"<tr>{format_cells(row, 'td')}</tr>" for row in rows)
    titles = f"<tr>{format_cells(map(text, head), 'th')}</tr>" if any(head) else ""
    return f"<table>{titles}{body}</table>"


def listing(title: str, items: Iterable[str]) -> str:
    """Format sentences below a title."""
    return f"{heading(title)}<ul>{''.join(f'<li>{text(item)}</li>' for item in items)}</ul>"


def definitions(facts: Iterable[tuple[str, str]]) -> str:
    """Format labels next to what they label, which is HTML already."""
    return f"<dl>{''.join(f'<dt>{text(label)}</dt><dd>{fact}</dd>' for label, fact in facts)}</dl>"


def figure(picture: str, caption: str, kind: str = "") -> str:
    """Format a picture above its caption; both are HTML already."""
    return f'<figure class="{kind}">{picture}<figcaption>{caption}</figcaption></figure>'


def collapsible(head: str, body: str, is_open: bool = False) -> str:
    """Hide ``body`` until ``head`` is clicked, unless ``is_open``; both are HTML."""
    return f"<details{' open' if is_open else ''}><summary>{head}</summary>{body}</details>"


def source(title: str, body: str) -> str:
    """Format the source of a kernel in a collapsible section, its types and helper functions in another."""
    if not body:
        return ""
    own, helpers = _split_helpers(body)
    inner = collapsible("types and helper functions", f"<pre>{highlight(helpers)}</pre>") if helpers else ""
    return collapsible(text(title), f"<pre>{highlight(own)}</pre>{inner}")


def _split_helpers(body: str) -> tuple[str, str]:
    """Split the source of one kernel into its own functions, with the comments at the top, and the others."""
    own = _OWN_FUNCTION.search(body)
    comments = _COMMENTS.match(body)
    if own is None or comments is None or len(_ENTRY.findall(body)) != 1:
        return body, ""
    return comments[0] + body[own.start() :], body[comments.end() : own.start()]

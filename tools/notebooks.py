"""Write the tutorials as notebooks.

    python -m tools.notebooks [--check]

Each page of docs/tutorials becomes a notebook: its text in Markdown cells, its Python in code
cells, and what the page says is printed as their output. ``--check`` fails where a notebook is not current.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGES, NOTEBOOKS = ROOT / "docs" / "tutorials", ROOT / "notebooks"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```\n?", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)(#[^)]*)?\)")


def convert(page: Path) -> dict[str, Any]:
    """Return a page as a notebook."""
    cells: list[dict[str, Any]] = []
    text = page.read_text(encoding="utf-8")
    end, last = 0, ""
    for fence in FENCE.finditer(text):
        language, body = fence.groups()
        between = text[end : fence.start()]
        _add_markdown(cells, between)
        if language == "python":
            cells.append(_cell("code", body, execution_count=None, outputs=[]))
        elif language == "text" and last == "python" and not between.strip():
            cells[-1]["outputs"] = [{"name": "stdout", "output_type": "stream", "text": _lines(body)}]
        else:
            _add_markdown(cells, fence[0])
        end, last = fence.end(), language
    _add_markdown(cells, text[end:])
    for number, cell in enumerate(cells):
        cell["id"] = f"{page.stem}-{number}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {
        "cells": cells,
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def _add_markdown(cells: list[dict[str, Any]], text: str) -> None:
    """Add text as a cell; links to pages of the site lead into the docs folder."""
    text = LINK.sub(lambda found: f"]({_from_notebooks(found[1])}{found[2] or ''})", text.strip())
    if text:
        cells.append(_cell("markdown", text + "\n"))


def _from_notebooks(link: str) -> str:
    path = (PAGES / link).resolve()
    return Path("..", path.relative_to(ROOT)).as_posix()


def _cell(kind: str, source: str, **fields: Any) -> dict[str, Any]:
    return {"cell_type": kind, "id": "", "metadata": {}, "source": _lines(source), **fields}


def _lines(text: str) -> list[str]:
    return text.rstrip("\n").splitlines(keepends=True)


def write_all(check: bool = False) -> list[str]:
    """Write all notebooks, or return the names of those that are not current."""
    pages = [page for page in sorted(PAGES.glob("*.md")) if page.stem != "index"]
    stale = []
    for page in pages:
        path = NOTEBOOKS / f"{page.stem}.ipynb"
        wanted = json.dumps(convert(page), indent=1, ensure_ascii=False) + "\n"
        if not path.exists() or path.read_text(encoding="utf-8") != wanted:
            stale.append(path.name)
            if not check:
                NOTEBOOKS.mkdir(exist_ok=True)
                path.write_text(wanted, encoding="utf-8")
    names = {f"{page.stem}.ipynb" for page in pages}
    return stale + [path.name for path in NOTEBOOKS.glob("*.ipynb") if path.name not in names]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.notebooks", description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if a notebook is not current"
    )
    options = parser.parse_args()
    stale = write_all(options.check)
    for name in stale:
        print(f"{'not current' if options.check else 'written'}: {name}")
    return int(options.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())

"""The code of a page of documentation: found, run in order in one namespace, and what it prints.

``python tests/pages.py PAGE`` runs a page by itself and names the first block that does not do what it says.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import re
import sys
import textwrap
import traceback
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>[^\n`]*)\n(?P<body>.*?)^(?P=indent)``` *$", re.DOTALL | re.MULTILINE
)


@dataclass(frozen=True)
class Block:
    """A block of code, the line where it begins, and what it must print (None: whatever it likes)."""

    number: int
    line: int
    code: str
    printed: str | None


def fences(text: str) -> list[re.Match[str]]:
    return list(FENCE.finditer(text))


def python_blocks(text: str) -> list[Block]:
    """The ``python`` blocks of a page; a ``text`` block directly after one is what it prints."""
    found = fences(text)
    blocks = []
    for place, fence in enumerate(found):
        if fence["language"].strip() != "python":
            continue
        printed, after = None, next(iter(found[place + 1 :]), None)
        if after and after["language"].strip() == "text" and not text[fence.end() : after.start()].strip():
            printed = textwrap.dedent(after["body"])
        line = text.count("\n", 0, fence.start("body")) + 1
        blocks.append(Block(len(blocks) + 1, line, textwrap.dedent(fence["body"]), printed))
    return blocks


def run_page(page: Path) -> str:
    """Run the blocks of a page; returns '' or the words for the first that fails or prints something else."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in python_blocks(page.read_text(encoding="utf-8")):
        where = f"{page}, block {block.number} (line {block.line})"
        source = "\n" * (block.line - 1) + block.code  # so that a traceback names the line of the page
        name = f"{page}#{block.number}"
        # What asks for the source of a function finds it here.
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        shown = io.StringIO()
        try:
            with contextlib.redirect_stdout(shown):
                exec(compile(source, name, "exec"), namespace)
        except BaseException:
            return f"{where} failed\n{traceback.format_exc()}\nprinted before: {shown.getvalue()}"
        if block.printed is not None and shown.getvalue() != block.printed:
            return f"{where} printed\n{shown.getvalue()}\ninstead of\n{block.printed}"
    return ""


if __name__ == "__main__":
    message = "\n".join(filter(None, (run_page(Path(page)) for page in sys.argv[1:])))
    sys.exit(message or 0)

"""Highlight C and CUDA source in HTML, by a few kinds of tokens."""

from __future__ import annotations

import html
import re

_WORDS = (
    "auto|break|case|const|continue|default|do|else|enum|extern|for|goto|if|inline|register|restrict|return|"
    "sizeof|static|struct|switch|typedef|union|volatile|while|__restrict__|__global__|__device__|__shared__"
)
_TYPES = (
    "void|char|short|int|long|float|double|signed|unsigned|bool|_Bool|size_t|"
    "u?int(?:8|16|32|64)_t|[iuf](?:8|16|32|64)"
)
_TOKENS = re.compile(
    "|".join(
        f"(?P<{kind}>{pattern})"
        for kind, pattern in {
            "comment": r"//[^\n]*|/\*.*?\*/",
            "text": r'"(?:\\.|[^"\\\n])*"',
            "directive": r"^[ \t]*#[^\n]*",
            "keyword": rf"\b(?:{_WORDS})\b",
            "type": rf"\b(?:{_TYPES})\b",
            "number": r"\b(?:0[xX][0-9a-fA-F]+|\d+\.?\d*(?:[eE][+-]?\d+)?)[uUlLfF]*\b",
            "function": r"\b[A-Za-z_]\w*(?=\()",
        }.items()
    ),
    re.DOTALL | re.MULTILINE,
)


def highlight(source: str) -> str:
    """Return the source as HTML, with a ``span`` of class ``hl-...`` around each token of a known kind."""
    parts, end = [], 0
    for token in _TOKENS.finditer(source):
        parts.append(html.escape(source[end : token.start()]))
        parts.append(f'<span class="hl-{token.lastgroup}">{html.escape(token[0])}</span>')
        end = token.end()
    return "".join([*parts, html.escape(source[end:])])

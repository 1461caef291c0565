"""Let names in the text break between their words, where a line or a column is too short for them."""

from __future__ import annotations

import re
from typing import Any

NAME = re.compile(r'(?<=<span class="pre">)[^<]{12,}(?=</span>)')
BETWEEN_WORDS = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[._(=,/])(?=\w)")


def insert(app: Any, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Insert ``<wbr>`` into the long names of a page; scorch.css ignores it on wide screens."""
    body = context.get("body") or ""
    context["body"] = NAME.sub(lambda name: BETWEEN_WORDS.sub("<wbr>", name[0]), body)

"""Link methods and functions of the reference to their source, wherever it was written.

Sphinx finds what a module defines under its own name. ``SparseTensor.to_scipy`` is a function of another
module, properties name no module, and reductions are generated: their code says where they are.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from types import CodeType
from typing import Any

from sphinx.pycode import ModuleAnalyzer


def code_of(module: str, name: str) -> CodeType | None:
    """Return the code of a documented function, method or property of Scorch."""
    value: Any = functools.reduce(
        lambda owner, part: getattr(owner, part, None), name.split("."), importlib.import_module(module)
    )
    value = getattr(value, "fget", None) or getattr(value, "func", None) or value  # of properties
    value = getattr(value, "__func__", value)
    plain = inspect.unwrap(value)
    return getattr(plain if is_ours(plain) else value, "__code__", None)


def is_ours(value: Any) -> bool:
    return (getattr(value, "__module__", None) or "").startswith("scorch")


def follow(app: Any, module: str, name: str) -> str | None:
    """Return the module whose source defines ``name``, and let viewcode find it there."""
    code = code_of(module, name) if module else None
    homes = [key for key, value in sys.modules.items() if getattr(value, "__file__", None) == _file(code)]
    if code is None or not homes or not homes[0].startswith("scorch"):
        return None
    analyzer = ModuleAnalyzer.for_module(homes[0])
    tags = analyzer.find_tags()
    around = [tag for tag in tags.values() if tag[1] <= code.co_firstlineno <= tag[2]]
    if around:
        tags.setdefault(name, max(around, key=lambda tag: tag[1]))
    return homes[0]


def _file(code: CodeType | None) -> str | None:
    return code and code.co_filename

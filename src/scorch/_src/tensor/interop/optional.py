"""Import packages that Scorch works without, where a function needs one."""

from __future__ import annotations

import importlib
from typing import Any

from scorch.errors import UnsupportedError


def optional_module(name: str, title: str, instead: str = "") -> Any:
    """Import the module ``name`` of the package ``title``, or say how to get it, or do without."""
    try:
        return importlib.import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        raise UnsupportedError(
            f"this needs {title}, which is not installed; install it with: pip install {package}{instead}"
        ) from None

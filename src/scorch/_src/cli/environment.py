"""``python -m scorch env``: what to paste into a bug report, with the user's folder written as ``~``."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

from scorch._src import __version__
from scorch._src.backends.cpu import toolchain
from scorch._src.backends.cuda import backend as cuda_backend
from scorch.settings import DEFAULT, current

PACKAGES = ("numpy", "scipy", "torch_geometric", "safetensors")


def describe_environment() -> dict[str, str]:
    """Return versions, CPU, compiler, GPU, cache and settings, by label."""
    facts = {"scorch": __version__, **toolchain.describe(), "platform": platform.platform()}
    facts |= {name: version for name in PACKAGES if (version := _version(name))}
    facts |= cuda_backend.describe()
    facts["settings"] = _changed_settings() or "defaults"
    facts["environment"] = (
        " ".join(
            f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith("SCORCH_")
        )
        or "no SCORCH_ variables"
    )
    return {label: hide_home(fact) for label, fact in facts.items()}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _changed_settings() -> str:
    names = [field.name for field in dataclasses.fields(DEFAULT)]
    changed = {name: getattr(current(), name) for name in names}
    plain: Any = type(DEFAULT)()
    return ", ".join(f"{name}={value}" for name, value in changed.items() if value != getattr(plain, name))


def hide_home(text: str) -> str:
    """Write the user's folder as ``~``, so that a report names nobody."""
    home = str(Path.home())
    return text.replace(home, "~") if home not in ("", "/") else text

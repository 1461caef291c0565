"""Drop-in replacements for other libraries: change an import, and programs run on Scorch."""

from typing import NoReturn as _NoReturn


def __getattr__(name: str) -> _NoReturn:
    """Say how to import a submodule."""
    cure = f"; import scorch.compat.{name} first" if name in ("pyg", "torch_sparse") else ""
    raise AttributeError(f"module 'scorch.compat' has no attribute {name!r}{cure}")

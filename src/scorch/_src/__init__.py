"""The code of ``scorch``. Folders are layers: each uses those below it, as ``pyproject.toml`` states."""

__version__ = "0.1.0"

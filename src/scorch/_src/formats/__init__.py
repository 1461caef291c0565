"""How tensors are stored: kinds of levels, and formats built from them."""

from scorch._src.formats.format import LEVELS, NAMES, Format, as_format, dense_format, register_level
from scorch._src.formats.level import Level, LevelArrays

__all__ = [
    "LEVELS",
    "NAMES",
    "Format",
    "Level",
    "LevelArrays",
    "as_format",
    "dense_format",
    "register_level",
]

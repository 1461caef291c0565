"""The element types of kernels, and what torch calls them.

``float16`` and ``bfloat16`` are storage types: a load widens them to ``float32``, in which kernels
compute. Index arithmetic is always ``int64``, whatever the width of the stored coordinates.
"""

from __future__ import annotations

from scorch._src.dataclass import dataclass


@dataclass(frozen=True)
class Type:
    """A scalar type: ``kind`` is one of bool, int, uint, float, complex."""

    name: str
    kind: str
    bytes: int

    def __repr__(self) -> str:
        return self.name

    @property
    def is_integer(self) -> bool:
        return self.kind in ("bool", "int", "uint")

    @property
    def computes_in(self) -> Type:
        """The type a value of this type has once it is loaded."""
        return FLOAT32 if self.kind == "float" and self.bytes == 2 else self


BOOL = Type("bool", "bool", 1)
UINT8 = Type("uint8", "uint", 1)
INT8 = Type("int8", "int", 1)
INT16 = Type("int16", "int", 2)
INT32 = Type("int32", "int", 4)
INT64 = Type("int64", "int", 8)
FLOAT16 = Type("float16", "float", 2)
BFLOAT16 = Type("bfloat16", "float", 2)
FLOAT32 = Type("float32", "float", 4)
FLOAT64 = Type("float64", "float", 8)
COMPLEX64 = Type("complex64", "complex", 8)
COMPLEX128 = Type("complex128", "complex", 16)

_INTEGERS = (BOOL, UINT8, INT8, INT16, INT32, INT64)
_FLOATS = (FLOAT16, BFLOAT16, FLOAT32, FLOAT64, COMPLEX64, COMPLEX128)
TYPES = {t.name: t for t in (*_INTEGERS, *_FLOATS)}

LAST_INT32 = 2**31 - 1

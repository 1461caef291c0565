"""Whether given tensors fit a statement, checked before anything is compiled."""

from __future__ import annotations

from collections.abc import Mapping

from scorch._src.notation.indexing import Statement
from scorch._src.notation.nodes import Access
from scorch._src.notation.show import show
from scorch._src.notation.trees import accesses
from scorch.errors import NotationError, ShapeError, counted

Shape = tuple[int, ...]


def shapes_of(statement: Statement, shapes: Mapping[str, Shape]) -> dict[str, int]:
    """The size of every index, once each tensor is given, has the right rank, and sizes agree.

    Nothing is broadcast here: unlike in einsum, a dimension of size 1 fits only an index of size 1.

    >>> from scorch._src.notation.indexing import parse
    >>> shapes_of(parse("y[i] = A[i,j] * x[j]"), {"A": (2, 3), "x": (3,)})
    {'i': 2, 'j': 3}
    """
    used = accesses(statement.assign.value)
    _check_names(statement, used, shapes)
    sizes: dict[str, int] = {}
    owner: dict[str, Access] = {}
    for access in used:
        shape = tuple(shapes[access.tensor])
        if len(shape) != len(access.indices):
            letters = ",".join("ijklmn"[: len(shape)])
            cure = f"; write {access.tensor}[{letters}]" if not access.indices and len(shape) < 7 else ""
            raise ShapeError(
                f"{access.tensor!r} has {counted(len(shape), 'dimension')} (shape {shape}) "
                f"but {show(access)!r} names {counted(len(access.indices), 'index', 'indices')}{cure}"
            )
        for index, size in zip(access.indices, shape, strict=True):
            if sizes.setdefault(index, size) != size:
                raise ShapeError(_disagreement(index, owner[index], sizes[index], access, size, shapes))
            owner.setdefault(index, access)
    return sizes


def _check_names(statement: Statement, used: tuple[Access, ...], shapes: Mapping[str, Shape]) -> None:
    needed = list(dict.fromkeys(access.tensor for access in used))
    target = statement.assign.target.tensor
    missing = [name for name in needed if name not in shapes]
    if missing:
        example = ", ".join(f"{name}={name}" for name in missing)
        adds = statement.accumulate and target in missing
        why = f"; '+=' adds to {target!r}, so it is an operand too" if adds else ""
        raise NotationError(f"missing tensor for {_names(missing)}; pass {example}{why}")
    unused = [name for name in shapes if name not in needed]
    if target in unused:
        raise NotationError(
            f"{target!r} is the result, not an operand; do not pass it, or write '+=' to add to it"
        )
    if unused:
        verb = "is" if len(unused) == 1 else "are"
        raise NotationError(f"{_names(unused)} {verb} passed but not used in {show(statement)!r}")


def _disagreement(
    index: str, first: Access, first_size: int, second: Access, size: int, shapes: Mapping[str, Shape]
) -> str:
    if first == second:
        where = f"in {show(second)!r} (shape {tuple(shapes[second.tensor])}); a diagonal needs equal sizes"
        return f"index {index!r} is both {first_size} and {size} {where}"
    text = (
        f"index {index!r} is {first_size} in {show(first)!r} (shape {tuple(shapes[first.tensor])}) "
        f"but {size} in {show(second)!r} (shape {tuple(shapes[second.tensor])})"
    )
    if 1 in (first_size, size):
        text += "; sizes of 1 are not broadcast here: squeeze the dimension and drop the index"
    return text


def _names(names: list[str]) -> str:
    return ", ".join(map(repr, names))

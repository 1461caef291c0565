"""``scorch.rearrange``: split, merge, permute, add and repeat the axes of a tensor by a pattern.

    "b (h w) c -> b c h w"     names between spaces; parentheses split on the left and merge on the right
    "bd->bnd"                  without spaces each letter is a name
    "b d -> b n d"             an axis that is only on the right is new: the tensor is repeated along it

A sparse tensor stays sparse: splitting and merging renumber its entries, repeating repeats them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from scorch._src.tensor.create.construct import from_torch
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import NotationError, OperandError, ShapeError, counted, is_integer, kind_of

ELLIPSIS = "..."
_TOKENS = {  # by whether each letter is a name
    False: re.compile(r"\.\.\.|[A-Za-z_]\w*|\d+|[()]|\S"),
    True: re.compile(r"\.\.\.|[A-Za-z]|\d+|[()]|\S"),
}
# The axes that one dimension is made of, outermost first; none: a dimension of size 1.
Group = tuple[str, ...]
Side = list[Group | str]  # groups, and '...' for unnamed axes


def rearrange(x: Any, pattern: str, /, **sizes: int) -> torch.Tensor:
    """Split, merge, permute and repeat dimensions by a pattern, like ``einops.rearrange`` and ``repeat``.

    Args:
        x: a sparse or dense tensor, or a list of tensors to stack along a new first dimension.
        pattern: the axes before and after, such as ``"b (h w) -> b h w"``.
        sizes: the lengths of axes that do not follow from the shape of ``x``.

    Returns:
        The rearranged tensor, sparse if ``x`` is.

    Raises:
        NotationError: the pattern is malformed.
        ShapeError: the sizes do not match the shape of ``x``.

    Example:

        >>> import torch, scorch
        >>> S = scorch.from_torch(torch.eye(4), format="csr")
        >>> scorch.rearrange(S, "b (h w) -> h b w", h=2).shape
        torch.Size([2, 4, 2])
        >>> scorch.rearrange(S, "bd->bnd", n=3).nnz
        12
    """
    tensor = _as_tensor(x)
    shape = tuple(tensor.shape)
    for name, size in sizes.items():
        if not is_integer(size, 0):
            raise ShapeError(
                f"{name}={size!r} in rearrange of {pattern!r}; sizes must be non-negative integers"
            )
    left, right = _expand_ellipsis(*_parse(pattern), shape, pattern)
    lengths = _axis_lengths(left, shape, sizes, pattern)
    old_axes = [axis for group in left for axis in group]
    new_axes = [axis for group in right for axis in group]
    _check_axes(old_axes, new_axes, sizes, pattern)
    for axis in new_axes:
        lengths.setdefault(axis, int(axis) if axis.isdigit() else sizes.get(axis, 0))
    kept_axes = [axis for axis in new_axes if axis in old_axes]
    result = tensor.reshape([lengths[axis] for axis in old_axes])
    result = result.permute([old_axes.index(axis) for axis in kept_axes])
    if len(new_axes) > len(kept_axes):
        result = result.reshape([lengths[axis] if axis in old_axes else 1 for axis in new_axes])
        result = result.expand([lengths[axis] for axis in new_axes])
    return result.reshape([math.prod(lengths[axis] for axis in group) for group in right])


setattr(SparseTensor, "rearrange", rearrange)  # noqa: B010 - a method; tensors know nothing of operations


def _as_tensor(x: Any) -> torch.Tensor:
    if isinstance(x, (list, tuple)) and x and all(isinstance(item, torch.Tensor) for item in x):
        return torch.stack(list(x))
    if not isinstance(x, torch.Tensor):
        raise OperandError(f"rearrange expected a tensor or a list of tensors, but got {kind_of(x)}")
    return x if x.layout is torch.strided else from_torch(x)


# the pattern -----------------------------------------------------------------------------------------


def _parse(pattern: Any) -> tuple[Side, Side]:
    """Parse the groups of axes on both sides of the arrow."""
    if not isinstance(pattern, str):
        raise NotationError(f"the pattern must be a string such as 'b (h w) -> b h w', but got {pattern!r}")
    sides = pattern.split("->")
    if len(sides) != 2:
        raise NotationError(f"pattern {pattern!r} must have one arrow: 'b (h w) -> b h w'")
    is_compact = not any(re.search(r"\s", side.strip()) for side in sides)
    left, right = (_parse_side(_TOKENS[is_compact].findall(side), pattern) for side in sides)
    for name, side in (("left", left), ("right", right)):
        axes = [axis for group in side for axis in ([group] if group == ELLIPSIS else group)]
        twice = [axis for axis in axes if axes.count(axis) > 1 and not axis.isdigit()]
        if twice:
            raise NotationError(f"axis {twice[0]!r} appears twice on the {name} of pattern {pattern!r}")
    if any(group != ELLIPSIS and ELLIPSIS in group for group in left):
        raise NotationError(f"pattern {pattern!r}: '...' cannot be split on the left; name its axes")
    return left, right


def _parse_side(tokens: Sequence[str], pattern: str) -> Side:
    side: Side = []
    group: list[str] | None = None
    for token in tokens:
        if token == "(" and group is None:
            group = []
        elif token == ")" and group is not None:
            side.append(tuple(group))
            group = None
        elif token in ("(", ")"):
            raise NotationError(f"pattern {pattern!r}: parentheses must be balanced and cannot be nested")
        elif token != ELLIPSIS and not token.replace("_", "a").isalnum():
            raise NotationError(
                f"pattern {pattern!r} has {token!r}; axes are names, numbers, '...' and parentheses"
            )
        elif group is not None:
            group += [] if token == "1" else [token]
        else:
            side.append(ELLIPSIS if token == ELLIPSIS else () if token == "1" else (token,))
    if group is not None:
        raise NotationError(f"pattern {pattern!r} has a '(' that is not closed")
    return side


def _expand_ellipsis(
    left: Side, right: Side, shape: Sequence[int], pattern: str
) -> tuple[list[Group], list[Group]]:
    """Name each of the axes that '...' stands for, on both sides."""
    named_count = len(left) - (ELLIPSIS in left)
    count = len(shape) - named_count
    if count < 0 or (count > 0 and ELLIPSIS not in left):
        raise ShapeError(
            f"pattern {pattern!r} has {counted(named_count, 'axis', 'axes')} on the left, but the tensor has "
            f"{counted(len(shape), 'dimension')} (shape {tuple(shape)})"
        )
    if ELLIPSIS not in left and any(ELLIPSIS in group for group in right):
        raise NotationError(f"pattern {pattern!r} has '...' on the right only")
    names = tuple(f"{ELLIPSIS}{number}" for number in range(count))

    def expand(side: Side) -> list[Group]:
        groups: list[Group] = []
        for group in side:
            if group == ELLIPSIS:
                groups += [(name,) for name in names]
            else:
                groups.append(tuple(a for axis in group for a in (names if axis == ELLIPSIS else (axis,))))
        return groups

    return expand(left), expand(right)


def _axis_lengths(
    left: list[Group], shape: Sequence[int], sizes: Mapping[str, int], pattern: str
) -> dict[str, int]:
    """Return the length of every axis on the left."""
    lengths: dict[str, int] = {}
    for dim, (group, size) in enumerate(zip(left, shape, strict=True)):
        for axis in group:
            if axis.isdigit():
                raise NotationError(f"pattern {pattern!r} has the number {axis} on the left; use a name")
        unknown = [axis for axis in group if axis not in sizes]
        known = {axis: sizes[axis] for axis in group if axis in sizes}
        known_product = math.prod(known.values())
        lengths |= known
        if len(unknown) > 1:
            raise ShapeError(
                f"pattern {pattern!r} splits dimension {dim} into {' '.join(group)}: the sizes of "
                f"{len(unknown)} of them are unknown; pass all but one: {unknown[0]}=..."
            )
        fits = size % known_product == 0 if known_product and unknown else size == known_product
        if not fits:
            factors = " * ".join(f"{axis}={length}" for axis, length in known.items()) or "1"
            relation = "is not divided by" if unknown else "is not"
            raise ShapeError(
                f"dimension {dim} has size {size}, which {relation} {factors} (pattern {pattern!r})"
            )
        if unknown:
            lengths[unknown[0]] = size // known_product if known_product else 0
    return lengths


def _check_axes(old: Sequence[str], new: Sequence[str], sizes: Mapping[str, int], pattern: str) -> None:
    for axis in old:
        if axis not in new:
            name = "'...'" if axis.startswith(ELLIPSIS) else repr(axis)
            raise NotationError(
                f"axis {name} is missing on the right of pattern {pattern!r}; to sum over it, use "
                "scorch.einsum or .sum()"
            )
    for axis in new:
        if axis not in old and axis not in sizes and not axis.isdigit():
            raise ShapeError(f"axis {axis!r} is new in pattern {pattern!r}; pass its size: {axis}=...")
    for name in sizes:
        if name not in old and name not in new:
            raise NotationError(f"{name}={sizes[name]} names an axis that pattern {pattern!r} does not have")

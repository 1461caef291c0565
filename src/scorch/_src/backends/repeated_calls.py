"""Repeat cached calls without Python in between: what a backend is told for it, and what it offers.

A warm call of a small tensor spends more time between its operands and the kernel than in the kernel. The
backend of the host can look a call up, run it and wrap its result in a single builtin; it leaves to Python
whatever is unusual about a call, and returns None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

Run = Callable[[Sequence[Any]], Any]  # of storages and dense tensors; None where it does not fit them

COMBINATIONS = {"add": 0, "sub": 1, "mul": 2}  # of values on one pattern, by the names of operators
# what the result of an operator depends on beside its operands' kinds
NO_RULE, SUM, PRODUCT, DIFFERENCE = range(4)


class CallObjects(NamedTuple):
    """What ``repeat`` looks at and returns, of torch and the layers above, as ``c/repeat.c`` lists it."""

    sparse: type
    storage: type
    pattern: type
    dense: type
    parameter: type
    format: type
    builtin: type
    make_wrapper: Callable[..., Any]
    wrap: Callable[[Any], Any]  # a storage as a sparse tensor
    default_dtype: Callable[[], Any]
    float32: Any
    float64: Any
    is_grad_enabled: Callable[[], bool]
    any_requires_grad: Callable[..., bool]
    is_autocast: Callable[[], bool]
    is_neg: Callable[[Any], bool]
    forward: Any  # the module with the level of forward mode
    level: str
    no_level: int
    in_block: Callable[[], Any]  # the settings of a ``with`` block
    applied: list[Any]
    usual: Any
    is_usual: Callable[[Any], bool]
    quiet: tuple[Callable[[], Any], ...]  # which return nothing where nobody tracks calls
    empty: tuple[Any, ...]  # collections that are empty then
    most_on_pattern: int  # values on one pattern, from which on PyTorch combines them
    names: tuple[str, ...]  # of attributes


ATTRIBUTES = (
    *("storage", "origin", "strides", "key", "tensors", "pattern", "values"),
    *("format", "shape", "pos", "crd", "counts", "requires_grad"),
)


class Repeater(NamedTuple):
    """Builtins that repeat calls.

    ``repeat(recent, others, head, rule, *operands)`` runs the last such call in ``recent``, or one in
    ``others``; ``functions`` are those of a sparse tensor, by the names of routines of its values.
    """

    repeat: Callable[..., Any]
    functions: Mapping[str, Callable[[Any], Any]]


class RunParts(NamedTuple):
    """How a cached call goes from its sources to the arrays of a kernel, and from its result to a tensor."""

    sources: Sequence[tuple[int, bool]]  # of each operand which source it is, and whether that is a storage
    pattern: int  # which operand has the pattern of the result, or -1
    combines: int  # one of ``COMBINATIONS``, for operands and a result on one pattern, or -1
    wrap: Callable[[Any], Any] | None  # takes the arrays of a new pattern
    # of a pattern with one array of coordinates: format, shape, what lies above, and the counts there
    appended: tuple[Any, ...] | None

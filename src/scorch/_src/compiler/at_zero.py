"""What an expression is where nothing is stored, in the arithmetic of its dtypes: 0 - 3 is 253 as uint8."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from scorch._src.compiler.lattice import EVERYWHERE
from scorch._src.compiler.lower.express import value_of
from scorch._src.compiler.plan import Operand
from scorch._src.compiler.schedule.infer_format import support_of
from scorch._src.loops.closures import Evaluator
from scorch._src.loops.memory import BoundsError
from scorch._src.loops.operators import OPERATORS
from scorch._src.notation.nodes import Access, Expr, Op
from scorch._src.notation.trees import accesses, children, walk, with_children


def value_at_zero(body: Expr, operands: Mapping[Access, Operand]) -> float | None:
    """The value of ``body`` where no operand is stored; None if that depends on a dense one."""
    used = accesses(body)
    if any(not operands[access].is_sparse for access in used) or _asks_what_is_stored(body):
        return None
    types = {access.tensor: operands[access].element for access in used}
    try:
        with np.errstate(all="ignore"):
            value = Evaluator({}, _no_function).expr(value_of(body, types, lambda access: None))([])
    except BoundsError:  # integers divided by zero
        return None
    number = complex(value)
    return None if number.imag else number.real


def _asks_what_is_stored(body: Expr) -> bool:
    return any(isinstance(node, Op) and node.name == "present" for node in walk(body))


def _no_function(*_: object) -> int:
    raise AssertionError("values of index expressions call no functions")


def mark_vanishing(body: Expr, operands: Mapping[Access, Operand]) -> Expr:
    """Mark parts that are zero where nothing is stored although a part of theirs is not.

    2 * A[i,j] + relu(B[i,j] - 3)   ->   2 * A[i,j] + vanishing(relu(B[i,j] - 3))

    ``lattice.support`` looks at one operator at a time and cannot know that relu is given a negative number.
    """
    marked = with_children(body, tuple(mark_vanishing(part, operands) for part in children(body)))
    if not isinstance(marked, Op) or marked.name not in OPERATORS or not accesses(marked):
        return marked
    if support_of(marked, operands) != EVERYWHERE or value_at_zero(body, operands) != 0:
        return marked
    return Op("vanishing", (body,))

"""A sparse operand so full that a dense product is faster: then it is multiplied as a dense one.

A product with a dense matrix costs one multiply-add for every stored entry and column; the dense product,
by torch's BLAS, costs fewer cycles for each but has them for every place. Both are in units of a
multiply-add of the sparse product, measured side by side.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from scorch._src.compiler.plan import Operand, Step, fullness
from scorch._src.compiler.schedule.contract import factors_of
from scorch._src.loops.types import FLOAT32, FLOAT64
from scorch.settings import enabled

DENSE_PRODUCT = 0.42  # a multiply-add of the dense product
MADE_DENSE = 3.0  # a place of the operand written as zero or value
MIN_MULTIPLY_ADDS = 100_000  # multiply-adds below which calls cost more than products


def nearly_full(step: Step, operands: Mapping[str, Operand], sizes: Mapping[str, int]) -> str | None:
    """The name of the only sparse operand of a matrix product, if it is better multiplied as a dense one."""
    sparse = [operand for operand in operands.values() if operand.is_sparse]
    if len(sparse) != 1 or not enabled("dense") or step.reduction != "sum" or not step.reduced:
        return None
    operand = sparse[0]
    if fullness(operand.nnz, operand.shape) / 32 < DENSE_PRODUCT:
        return None
    factors = factors_of(step.body)
    if factors is None or len(factors) != 2 or any(len(set(a.indices)) < len(a.indices) for a in factors):
        return None
    if any(o.element not in (FLOAT32, FLOAT64) or o.element != operand.element for o in operands.values()):
        return None
    mine = [access for access in factors if access.tensor == operand.name]
    if len(mine) != 1:  # a sparse tensor times itself has a sparse result
        return None
    columns = math.prod(sizes[index] for index in step.indices if index not in mine[0].indices)
    sparse_work, dense_work = prices(operand, columns)
    return operand.name if sparse_work >= MIN_MULTIPLY_ADDS and dense_work < sparse_work else None


def prices(operand: Operand, columns: int) -> tuple[float, float]:
    """What a product with ``columns`` columns costs with a sparse and with a dense operand."""
    places = math.prod(operand.shape)
    making = 0.0 if operand.is_full else MADE_DENSE
    work = fullness(operand.nnz, operand.shape) / 32 * places * columns
    return work, places * (DENSE_PRODUCT * columns + making)

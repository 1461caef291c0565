"""The dtype of every part of an expression, by torch's rules of promotion.

As in torch, tensors with dimensions outrank scalars, and scalars outrank the numbers written in the
expression; a lower rank only matters if it is of a higher category (bool < integer < float < complex).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import torch

from scorch._src.compiler.plan import Step
from scorch._src.dataclass import dataclass
from scorch._src.loops.operators import OPERATORS, REDUCTIONS
from scorch._src.loops.types import BOOL, FLOAT32, FLOAT64, INT64, TYPES, Type
from scorch._src.loops.values import wrap
from scorch._src.notation.nodes import Access, Expr, Literal, Op, Reduce
from scorch._src.notation.trees import accesses, children, free_indices, with_children
from scorch.errors import DtypeError

_CATEGORY = {"bool": 0, "int": 1, "uint": 1, "float": 2, "complex": 3}
NUMBER, SCALAR, TENSOR = 0, 1, 2


@dataclass(frozen=True)
class Typed:
    """The dtype of a value and its rank in promotion."""

    type: Type
    rank: int


@functools.cache
def type_of_dtype(dtype: torch.dtype) -> Type:
    """Scorch's type for a torch dtype."""
    element = TYPES.get(str(dtype).removeprefix("torch."))
    if element is None:
        wide = "complex64" if dtype.is_complex else "float32"
        raise DtypeError(
            f"dtype {dtype} is not supported; choose from {', '.join(TYPES)}; convert with .to(torch.{wide})"
        )
    return element


@functools.cache
def dtype_of_type(element: Type) -> torch.dtype:
    dtype = getattr(torch, element.name)
    assert isinstance(dtype, torch.dtype)
    return dtype


@functools.cache
def promote(a: Type, b: Type) -> Type:
    return type_of_dtype(torch.promote_types(dtype_of_type(a), dtype_of_type(b)))


def default_float() -> Type:
    return FLOAT64 if torch.get_default_dtype() == torch.float64 else FLOAT32


def type_of(expr: Expr, types: Mapping[str, Type]) -> Typed:
    """The dtype of ``expr`` given the dtypes of its tensors."""
    match expr:
        case Access(tensor, indices):
            return Typed(types[tensor], TENSOR if indices else SCALAR)
        case Literal(value):
            kind = BOOL if isinstance(value, bool) else INT64 if isinstance(value, int) else default_float()
            return Typed(kind, NUMBER)
        case Op("present", _):
            return Typed(INT64, TENSOR)
        case Op("everywhere" | "vanishing", (part,)) | Op("on", (_, part)):
            return type_of(part, types)
        case Op(name, args):
            return _type_of_op(name, [type_of(arg, types) for arg in args])
        case Reduce(op, _, body):
            element = reduced_type(op, body, type_of(body, types).type)
            return Typed(element, TENSOR if free_indices(expr) else SCALAR)
    raise AssertionError(f"no dtype for {expr!r}")


def settle(expr: Expr, types: Mapping[str, Type]) -> Expr:
    """``expr`` written as its dtypes have it.

    A number is what the integer type that it is used in makes of it, as in torch: -1 is 255 as uint8. (Where
    an expression differs from zero depends on its numbers.) Nested reductions by one operator are one, unless
    the inner one has another dtype: a sum of products of uint8 wraps around, and the sum of that does not.
    So are sums of products inside one, which ``contract`` takes apart again where that is cheaper:

    sum(k, sum(j, T[i,j,k] * B[j,r]) * C[k,r])   ->   sum(k, j, T[i,j,k] * B[j,r] * C[k,r])
    """
    parts = tuple(settle(part, types) for part in children(expr))
    settled = with_children(expr, parts)
    match settled:
        case Op(name, args) if name in OPERATORS:
            wanted = argument_type(name, [type_of(part, types) for part in args])
            first = 1 if name == "where" else 0
            if wanted.kind in ("int", "uint"):
                return Op(name, (*args[:first], *(_fitted(part, wanted) for part in args[first:])))
        case Reduce(op, outer, Reduce(same, inner, body)) if op == same:
            joined = Reduce(op, (*outer, *inner), body)
            if type_of(joined, types) == type_of(settled, types):
                return joined
        case Reduce("sum", outer, Op("mul", (left, right))):
            (before, factors), (after, more) = _contraction(left), _contraction(right)
            if factors and more and (before or after):
                whole = functools.reduce(lambda a, b: Op("mul", (a, b)), (*factors, *more))
                joined = Reduce("sum", (*outer, *before, *after), whole)
                if type_of(joined, types) == type_of(settled, types):
                    return joined
    return settled


def _contraction(expr: Expr) -> tuple[tuple[str, ...], tuple[Expr, ...]]:
    """What a product sums over and its factors; no factors if it is anything else.

    Every index summed over stands in two factors: else the sum would be over fewer terms than the product.
    """
    match expr:
        case Access():
            return (), (expr,)
        case Op("mul", (left, right)):
            (first, factors), (second, more) = _contraction(left), _contraction(right)
            if factors and more:
                return (*first, *second), (*factors, *more)
        case Reduce("sum", indices, body):
            inner, factors = _contraction(body)
            uses = [i for f in factors if isinstance(f, Access) for i in set(f.indices)]
            if all(uses.count(index) > 1 for index in indices):
                return (*indices, *inner), factors
    return (), ()


def widened(expr: Expr, types: Mapping[str, Type], all_tensors: bool = False) -> dict[str, Type]:
    """The dtypes that some operands of products are converted to before anything is computed.

    A product of several tensors is computed in some order, partial sums first. In mixed dtypes a partial
    result may be narrower than the result: the sum of A over j is one in float32 in

    y[] = A[i,j] * x[i]    (A in float32, x in float64)

    With ``all_tensors`` operands without dimensions count as tensors in promotion, as in ``torch.einsum``.
    Tensors that are used elsewhere too stay as they are.
    """
    if len(set(types.values())) < 2:
        return {}
    found: list[tuple[str, Type]] = []
    _widen(expr, types, all_tensors, found)
    uses = [access.tensor for access in accesses(expr)]
    asked = [name for name, _ in found]
    wanted = dict(found)
    return {
        name: kind
        for name, kind in wanted.items()
        if kind != types[name] and asked.count(name) == uses.count(name) and (name, kind) in found
    }


def _widen(expr: Expr, types: Mapping[str, Type], all_tensors: bool, wider: list[tuple[str, Type]]) -> None:
    """Add the factors of each product that has to be computed in one dtype, and that dtype, to ``wider``."""
    product = _factors(expr)
    if product is None:
        for part in children(expr):
            _widen(part, types, all_tensors, wider)
        return
    factors, has_partial = product
    own = [types[factor.tensor] for factor in factors]
    if len(set(own)) < 2:
        return
    inferred = type_of(expr, types).type
    wanted = functools.reduce(promote, own) if all_tensors else inferred
    partial = {promote(a, b) for n, a in enumerate(own) for b in own[n + 1 :]} if len(own) > 2 else set()
    if has_partial:
        partial |= set(own)
    if inferred != wanted or partial - {BOOL, wanted}:
        wider += [(factor.tensor, wanted) for factor in factors]


def _factors(expr: Expr) -> tuple[list[Access], bool] | None:
    """The tensors of a sum of products, and whether a factor is a sum; None if it is anything else."""
    match expr:
        case Access():
            return [expr], False
        case Literal():
            return [], False
        case Reduce("sum", _, body):
            return _factors(body)
        case Op("neg", (part,)):
            return _factors(part)
        case Op("mul", args):
            parts = [found for found in map(_factors, args) if found is not None]
            if len(parts) == len(args):
                is_sum = any(isinstance(arg, Reduce) for arg in args) or any(part for _, part in parts)
                return [factor for factors, _ in parts for factor in factors], is_sum
    return None


def _fitted(part: Expr, wanted: Type) -> Expr:
    match part:
        case Literal(int(value)) if not isinstance(value, bool):
            return Literal(wrap(value, wanted))
    return part


def result_type(step: Step, types: Mapping[str, Type]) -> Type:
    """The dtype of the result of ``step``."""
    element = type_of(step.body, types).type
    return reduced_type(step.reduction, step.body, element) if step.reduced else element


def reduced_type(op: str, body: Expr, element: Type) -> Type:
    """The dtype of a reduction: as ``torch.einsum`` for products of tensors, else as ``torch.sum``."""
    if op == "any":
        return BOOL
    if REDUCTIONS[op].ordered and element.kind == "complex":
        raise DtypeError(f"{op}() is not defined for {element.name}; complex numbers are not ordered")
    if op in ("sum", "prod") and element.is_integer and not _is_product_of_tensors(body):
        return INT64
    return element


def _is_product_of_tensors(body: Expr) -> bool:
    match body:
        case Op("mul", args):
            return all(isinstance(arg, Access) or _is_product_of_tensors(arg) for arg in args)
        case Op("on", (_, part)):
            return _is_product_of_tensors(part)
    return False


def argument_type(name: str, args: list[Typed]) -> Type:
    """The dtype that the arguments of an operator are converted to before it is applied."""
    operator = OPERATORS[name]
    joined = _join(args[1:] if operator.dtype == "where" else args)
    if name == "square" and joined == BOOL:
        return INT64  # as in torch, where it is a power
    return default_float() if operator.dtype == "float" and joined.is_integer else joined


def _type_of_op(name: str, args: list[Typed]) -> Typed:
    operator, element = OPERATORS[name], argument_type(name, args)
    if operator.ordered and element.kind == "complex":
        raise DtypeError(f"{name}() is not defined for {element.name}; complex numbers are not ordered")
    if name in ("sub", "neg") and element == BOOL:
        raise DtypeError(f"{name} is not defined for bool; use != or convert with .to(torch.int8)")
    if operator.dtype == "bool":
        element = BOOL
    elif operator.dtype == "real" and element.kind == "complex":
        element = FLOAT32 if element.bytes == 8 else FLOAT64
    return Typed(element, max(arg.rank for arg in args))


def _join(args: list[Typed]) -> Type:
    best: Type | None = None
    for rank in (TENSOR, SCALAR, NUMBER):
        at_rank = [arg.type for arg in args if arg.rank == rank]
        if not at_rank:
            continue
        joined = functools.reduce(promote, at_rank)
        if best is None:
            best = joined
        elif _CATEGORY[joined.kind] > _CATEGORY[best.kind]:
            best = _lift(best, joined, rank)
    assert best is not None
    return best


def _lift(best: Type, joined: Type, rank: int) -> Type:
    """``best`` raised to the category of ``joined``: a number only lends its category, not its width."""
    if joined.kind == "complex" and best.kind == "float":
        return promote(best, TYPES["complex64"])
    if rank == NUMBER and joined.kind == "float":
        return default_float()
    return joined

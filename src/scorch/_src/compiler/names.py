"""Names that users gave, made different from those that generated code has of its own.

Kernels are printed with the user's names, and an index may well be called ``acc`` or a tensor ``w``. Those
few get an underscore; all others stay as they were written.
"""

from __future__ import annotations

import re

from scorch._src.compiler.plan import Plan, Splits, Step
from scorch._src.dataclass import replace
from scorch._src.notation.nodes import Access, Expr
from scorch._src.notation.trees import accesses, rename, substitute

# Generated names are these words or have an underscore or a digit; k_1 is how fresh indices are called.
_WORDS = {"acc", "at", "chunk", "chunks", "count", "discard", "found", "fresh", "length", "order"}
_WORDS |= {"span", "threads"}
_FRESH = re.compile(r"[A-Za-z]+_[0-9]+")
_TENSORS = frozenset(("chunk", "entry", "part", "sorted", "w"))
_NUMBERED = re.compile(r".*_[0-9]+_")  # as a tensor's second access is called


def safe_index(name: str) -> str:
    """``name``, or one that no kernel has for anything but this index."""
    if len(name) == 1 or _FRESH.fullmatch(name):
        return name
    return f"{name}_" if name in _WORDS or re.search("[_0-9]", name) else name


def safe_tensor(name: str) -> str:
    """``name``, or one whose arrays no kernel has for anything but this tensor."""
    return f"{name}_" if name.rstrip("_") in _TENSORS or _NUMBERED.fullmatch(name) else name


def with_safe_names(plan: Plan) -> Plan:
    """``plan`` as it is lowered; the order of operands and indices, by which kernels are called, stays."""
    step = plan.step
    indices = {index: safe_index(index) for index in step.indices}
    tensors = {operand.name: safe_tensor(operand.name) for operand in plan.operands}
    target = safe_tensor(step.target.tensor)
    if all(old == new for old, new in (*indices.items(), *tensors.items(), (step.target.tensor, target))):
        return plan

    def access(old: Access) -> Access:
        return Access(tensors[old.tensor], tuple(indices[index] for index in old.indices))

    def loop(old: str) -> str:
        index, _ = plan.splits.origin(old)
        return indices[index] + old[len(index) :]

    body: Expr = substitute(
        step.body, {old: Access(tensors[old.tensor], old.indices) for old in accesses(step.body)}
    )
    body = rename(body, indices)
    balance = plan.balance and (tensors[plan.balance[0]], plan.balance[1])
    return replace(
        plan,
        step=Step(
            Access(target, tuple(indices[index] for index in step.target.indices)),
            body,
            step.reduction,
            tuple(indices[index] for index in step.reduced),
            tensors.get(step.sampled_at, ""),
            step.covers,
        ),
        operands=tuple(replace(operand, name=tensors[operand.name]) for operand in plan.operands),
        splits=Splits(
            tuple((indices[index], block) for index, block in plan.splits.blocks),
            tuple((indices[index], size) for index, size in plan.splits.extents),
        ),
        order=tuple(loop(old) for old in plan.order),
        pattern=None if plan.pattern is None else access(plan.pattern),
        balance=balance,
        noted=None if plan.noted is None else access(plan.noted),
        slots=tuple((tensors[name], level) for name, level in plan.slots),
        searched=frozenset((access(old), level) for old, level in plan.searched),
        vectors=plan.vectors and replace(plan.vectors, loop=loop(plan.vectors.loop)),
        factors=tuple((access(old), depth) for old, depth in plan.factors),
        prefetched=tuple((access(old), count, step) for old, count, step in plan.prefetched),
    )

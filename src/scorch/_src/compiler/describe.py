"""What a plan does, in words, for ``explain`` and the first lines of a kernel."""

from __future__ import annotations

from scorch._src.compiler.plan import Plan, Vectors
from scorch._src.compiler.schedule.convert_operands import Conversion
from scorch._src.compiler.schedule.cost import SERIAL, Cost, prefix_of
from scorch._src.formats import Format
from scorch._src.loops.nodes import MAX_SUM_TURNS


def describe_inner(plan: Plan) -> str:
    """How the innermost loop runs."""
    if not plan.order:
        return "no loops"
    parts = [_vectors_in_words(plan, plan.vectors) if plan.vectors else _scalar_in_words(plan)]
    for access, depth in plan.factors:
        loops = ", ".join(plan.order[depth : _innermost(plan)])
        parts.append(f"{access.tensor} is multiplied once, after {loops}")
    if plan.prefetched:
        names = " and ".join(dict.fromkeys(access.tensor for access, _, _ in plan.prefetched))
        parts.append(f"rows of {names} are prefetched")
    return "; ".join(parts)


def _innermost(plan: Plan) -> int:
    """How many loops are summed over outside the vectors."""
    return len(plan.order) - (plan.row_vectors is not None)


def _vectors_in_words(plan: Plan, vectors: Vectors) -> str:
    jam = f"; {plan.order[vectors.depth - 1]} unrolled by {vectors.jam}" if vectors.jam > 1 else ""
    x, lanes = vectors.loop, f"vectors of {vectors.lanes}" if vectors.lanes > 1 else "scalars"
    size = "fully unrolled" if vectors.whole else f"{vectors.width} elements at a time"
    if vectors.kind == "sums":
        sums = f"{vectors.sums} partial sums" if vectors.sums > 1 else "one partial sum"
        rest = f", remainder of {vectors.rest}" if vectors.rest else ""
        return f"{x} in {lanes}, {size}, in {sums}{rest}{jam}"
    inside = plan.order[vectors.depth : -1]
    loops = f"the loop{'s' if len(inside) > 1 else ''} over {', '.join(inside)}"
    words = f"{x} in {lanes}, {size}; the results stay in registers during {loops}{jam}"
    if vectors.apart > 1:
        words += f", in {vectors.apart} partial sums"
    if vectors.panels > 1:
        words += f"; {inside[-1]} in {vectors.panels} panels, each of which stays in the cache for many rows"
    if vectors.opens < vectors.depth:
        words += f"; {x} is tiled outermost, so that a tile of the dense operand stays in the cache"
    return words


def _scalar_in_words(plan: Plan) -> str:
    x = plan.order[-1]
    if plan.gathered and x not in plan.result_loops:  # a sum
        dense = (a for a in plan.step.accesses if not plan.operand(a.tensor).is_sparse)
        how = "gathered" if any(x in access.indices for access in dense) else "with a mask for the remainder"
        return f"{x} in vectors of {plan.gathered}, {how}"
    if plan.noted is not None and plan.notes_rows_once:
        row = f"{x} is looked up in a row of {plan.noted.tensor}"
        return f"scalar {x}; {row}, whose positions are noted before the loop over {plan.order[-2]}"
    if 1 < plan.sums <= MAX_SUM_TURNS:
        return f"scalar {x}, in {plan.sums} partial sums"
    return f"scalar {x}, vectorization left to the C compiler"


def describe_assembly(plan: Plan) -> str:
    """How the result is built, in words."""
    bounds = " and ".join(name for name, _ in plan.slots)
    words = {
        "dense": "dense values",
        "shared": _shared_in_words(plan),
        "rows": "appended row by row" + (f", in place: at most the nonzeros of {bounds}" if bounds else ""),
        "buckets": "counted row by row, then written in place",
        "list": "a list of coordinates, " + ("packed" if plan.comes_sorted else "sorted and packed"),
    }[plan.assembly]
    if plan.workspace is not None:
        words += f", through a {plan.workspace} workspace over {workspace_loops(plan)}"
        words += " with a bitmap" if plan.bitmap else ""
    return words


def _shared_in_words(plan: Plan) -> str:
    if plan.pattern is None:
        return ""
    levels = plan.pattern_levels
    is_whole = levels == len(plan.operand(plan.pattern.tensor).format)
    first = "" if is_whole else f"the first {levels} levels of " if levels > 1 else "the first level of "
    return f"values on {first}the sparsity pattern of {plan.pattern.tensor}"


def workspace_loops(plan: Plan) -> str:
    """The loops over the part of the result that a workspace holds."""
    left = plan.result_uses[plan.prefix_levels :]
    return ", ".join(dict.fromkeys(loop for use in left for loop in (use.loops or sorted(use.needs))))


def describe_format(form: Format) -> str:
    """The name of a format; for a dense one with its order of dimensions in memory."""
    if form.is_dense and form.order != tuple(range(form.dims)):
        return f"dense with dimensions in order {', '.join(map(str, form.order))}"
    return str(form)


def describe_conversion(conversion: Conversion) -> str:
    """``A is stored by j, i, but the loops run i, j, k: transposed to csr as A_t ...``."""
    if conversion.reason.startswith("stored"):
        why, done = f"{conversion.tensor} is {conversion.reason}", "transposed"
    else:
        why, done = f"{conversion.tensor}: {conversion.reason}", "converted"
    if conversion.format.is_dense:
        return f"{why}: copied to {describe_format(conversion.format)} as {conversion.name} at each call"
    return f"{why}: {done} to {conversion.format} as {conversion.name}; the {done} sparsity pattern is cached"


def describe_dearer(cost: Cost, chosen: Cost, plan: Plan) -> str:
    """Why an order is worse than the chosen one."""
    reasons = []
    names = dict.fromkeys(access.tensor for access in cost.transposed)
    if names:
        reasons.append(f"transposes {' and '.join(names)}")
    is_short = cost.is_short and not chosen.is_short
    if cost.work > 1.5 * chosen.work * (SERIAL if is_short else 1.0):
        reasons.append(f"{cost.work / max(chosen.work, 1.0):.1f} x the loop work")
    if cost.assembly > 1.5 * chosen.assembly:
        reasons.append(_assembly_in_words(cost, plan))
    if cost.order[0] not in plan.result_loops and chosen.order[0] in plan.result_loops:
        reasons.append("outermost loop not parallel")
    elif is_short:
        reasons.append("outermost loop too short for threads")
    return "; ".join(reasons) or "slightly higher cost"


def _assembly_in_words(cost: Cost, plan: Plan) -> str:
    if plan.assembly in ("dense", "shared"):
        return "adds to memory instead of a register"
    prefix, levels = prefix_of(cost.order, plan.result_uses)
    if levels == len(plan.result):
        return "appends more elements"
    return "needs a workspace" if prefix else "needs a sort"


def describe_threads(plan: Plan, used: int, available: int) -> str:
    """How many threads share the outermost loop, and how, or why only one."""
    if not plan.order:
        return "one thread: there are no loops"
    first = plan.order[0]
    if not plan.parallel:
        if plan.assembly == "list":
            return "one thread: coordinates are appended to one list"
        if first not in plan.result_loops:
            return f"one thread: iterations of {first} add to the same elements"
        return f"one thread: iterations of {first} depend on each other"
    balance = f", balanced by the nonzeros of {plan.balance[0]}" if plan.balance else ""
    if used == 1:
        return f"one thread: {'too little work for more' if available > 1 else 'no more are allowed'}"
    return f"{used} threads share {first}{balance}"

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
        names = " and ".join(dict.fromkeys(access.tensor for access, _ in plan.prefetched))
        parts.append(f"rows of {names} are fetched ahead")
    return "; ".join(parts)


def _innermost(plan: Plan) -> int:
    """How many loops are summed over outside the vectors."""
    return len(plan.order) - (plan.row_vectors is not None)


def _vectors_in_words(plan: Plan, vectors: Vectors) -> str:
    jam = f"; {vectors.jam} turns of {plan.order[vectors.depth - 1]} side by side" if vectors.jam > 1 else ""
    x, lanes = vectors.loop, f"vectors of {vectors.lanes}" if vectors.lanes > 1 else "scalars"
    size = "all of it" if vectors.whole else f"{vectors.width} at a time"
    if vectors.kind == "sums":
        sums = f"{vectors.sums} partial sums" if vectors.sums > 1 else "one partial sum"
        rest = f", {vectors.rest} left over" if vectors.rest else ""
        return f"{x} in {lanes}, {size}, in {sums}{rest}{jam}"
    over = ", ".join(plan.order[vectors.depth : -1])
    words = f"{x} in {lanes}, {size}, which stay in registers over {over}{jam}"
    if vectors.opens < vectors.depth:
        words += f"; these stretches of {x} are outermost, so that a dense operand's stays in the cache"
    return words


def _scalar_in_words(plan: Plan) -> str:
    x = plan.order[-1]
    if plan.gathered:
        return f"{x} in lanes of {plan.gathered}, gathered"
    if 1 < plan.sums <= MAX_SUM_TURNS:
        return f"{x} one by one, sums in {plan.sums} parts"
    return f"{x} one by one, or as the C compiler sees fit"


def describe_assembly(plan: Plan) -> str:
    """How the result is built, in words."""
    bounds = " and ".join(name for name, _ in plan.slots)
    words = {
        "dense": "dense values",
        "shared": _shared_in_words(plan),
        "rows": "appended row by row" + (f", in place: no more entries than in {bounds}" if bounds else ""),
        "buckets": "counted row by row, then put in place",
        "list": "a list of entries, " + ("packed" if plan.comes_sorted else "sorted and packed"),
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
    return f"values on {first}the pattern of {plan.pattern.tensor}"


def workspace_loops(plan: Plan) -> str:
    """The loops over the part of the result that a workspace holds."""
    left = plan.result_uses[plan.prefix_levels :]
    return ", ".join(dict.fromkeys(loop for use in left for loop in (use.loops or sorted(use.needs))))


def describe_format(form: Format) -> str:
    """The name of a format; a dense one with the order in which it lies."""
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
    return f"{why}: {done} to {conversion.format} as {conversion.name}; its pattern is kept"


def describe_dearer(cost: Cost, chosen: Cost, plan: Plan) -> str:
    """The disadvantages of an order compared with the chosen one."""
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
        reasons.append("first loop serial")
    elif is_short:
        reasons.append("first loop too short for threads")
    return "; ".join(reasons) or "slightly more of everything"


def _assembly_in_words(cost: Cost, plan: Plan) -> str:
    if plan.assembly in ("dense", "shared"):
        return "adds to memory instead of a register"
    prefix, levels = prefix_of(cost.order, plan.result_uses)
    if levels == len(plan.result):
        return "appends more entries"
    return "needs a workspace" if prefix else "needs a sort"


def describe_threads(plan: Plan, used: int, available: int) -> str:
    """How many threads share the outermost loop, and how, or why only one."""
    if not plan.order:
        return "one thread: there are no loops"
    first = plan.order[0]
    if not plan.parallel:
        if plan.assembly == "list":
            return "one thread: entries are collected in one list"
        if first not in plan.result_loops:
            return f"one thread: turns of {first} add to the same places"
        return f"one thread: turns of {first} cannot be shared out"
    balance = f", by the number of entries of {plan.balance[0]}" if plan.balance else ""
    if used == 1 and available > 1:
        return f"one thread: too little work to share {first}"
    return f"{used} thread{'s' if used > 1 else ''} share {first}{balance}"

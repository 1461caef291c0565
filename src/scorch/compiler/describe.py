"""What a plan does, in words, for ``explain`` and the first lines of a kernel."""

from __future__ import annotations

from scorch.compiler.plan import Plan, Vectors


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
    in_rows = plan.vectors is not None and plan.vectors.kind == "rows"
    return len(plan.order) - in_rows


def _vectors_in_words(plan: Plan, vectors: Vectors) -> str:
    x, lanes = vectors.loop, f"vectors of {vectors.lanes}" if vectors.lanes > 1 else "scalars"
    size = "all of it" if vectors.whole else f"{vectors.width} at a time"
    if vectors.kind == "sums":
        sums = f"{vectors.sums} partial sums" if vectors.sums > 1 else "one partial sum"
        rest = f", {vectors.rest} left over" if vectors.rest else ""
        return f"{x} in {lanes}, {size}, in {sums}{rest}"
    over = ", ".join(plan.order[vectors.depth : -1])
    words = f"{x} in {lanes}, {size}, which stay in registers over {over}"
    if vectors.opens < vectors.depth:
        words += f"; these stretches of {x} are outermost, so that a dense operand's stays in the cache"
    return words


def _scalar_in_words(plan: Plan) -> str:
    x = plan.order[-1]
    if plan.sums == 2:
        return f"{x} one by one, sums in two parts"
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
        left = [use for use in plan.result_uses[plan.prefix_levels :]]
        over = ", ".join(dict.fromkeys(loop for use in left for loop in (use.loops or sorted(use.needs))))
        words += f", through a {plan.workspace} workspace over {over}" + (
            " with a bitmap" if plan.bitmap else ""
        )
    return words


def _shared_in_words(plan: Plan) -> str:
    if plan.pattern is None:
        return ""
    levels = plan.pattern_levels
    is_whole = levels == len(plan.operand(plan.pattern.tensor).format)
    first = "" if is_whole else f"the first {levels} levels of " if levels > 1 else "the first level of "
    return f"values on {first}the pattern of {plan.pattern.tensor}"

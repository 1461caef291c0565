"""The innermost loop in vector registers, and products taken apart so that less is multiplied inside.

    C[i,k] = A[i,j] * B[j,k], loops i, j, k      rows: a stretch of C's row stays in registers over all of j
    D[i,j] = S[i,j] * X[i,k] * Y[j,k]            sums: several partial sums of the row of X times that of Y

Both need an innermost loop over a dense index along which every tensor that has it lies in memory. A factor
that does not change in an inner loop is taken out of its sum, S above after k, and in

    M[i,r] = T[i,j,k] * B[j,r] * C[k,r]          B after all of k: M += B * (the sum over k of T * C)

which is how the partial products of a matricised tensor times Khatri-Rao product are kept.
"""

from __future__ import annotations

from collections.abc import Mapping

from scorch._src.compiler.lattice import required
from scorch._src.compiler.plan import Operand, Plan, Splits, Vectors
from scorch._src.compiler.schedule.contract import factors_of
from scorch._src.compiler.schedule.infer_format import support_of
from scorch._src.compiler.target import Target, target
from scorch._src.compiler.vector.panels import choose_panels
from scorch._src.dataclass import replace
from scorch._src.loops.nodes import MAX_SUM_TURNS
from scorch._src.loops.operators import OPERATORS
from scorch._src.loops.types import FLOAT32, FLOAT64, INT32, INT64
from scorch._src.notation.nodes import Access, Op
from scorch._src.notation.trees import walk
from scorch.settings import enabled

AHEAD = 8  # entries between fetching a row and using it
FETCHED = 1024  # at most so many bytes of a row are fetched ahead
LONG_ROW = 64  # entries from which on gathered vectors pay
LONG_LOOP = 1024  # turns from which on the extent of a loop does not go into its kernel
JAMMED = (4, 3, 2)  # turns that run side by side, the first that divide a block
SHORT_ROW = 4  # entries of a row below which they run one by one
USUAL_ROW = 16  # entries from which on two sums pay that have several registers
MAX_WAITING = 2  # registers whose additions wait for each other
GATHERED = 8  # the most lanes of a gathered sum: more are empty too often
FEW_GATHERED = 4  # the most where lanes are loaded one by one, and most rows have so few entries
WIDE_MASKS = 64  # bytes of the registers of processors whose masks are numbers, not registers
LANES = 16  # the most lanes that compilers may make of a sum
QUICK = ("add", "sub", "mul", "div", "maximum", "minimum", "where", "lt", "gt", "ne", "le", "ge", "eq")
POLYNOMIAL = ("add", "sub", "mul", "neg")  # what vectors are computed by
REUSED = 4  # uses of each row of a dense operand that make it worth keeping it in the cache


def vectorize(plan: Plan, operands: Mapping[Access, Operand], sizes: Mapping[str, int]) -> Plan:
    """``plan`` with its innermost loop in vector registers and factors taken out of sums, where possible."""
    if not plan.order or plan.step.reduction != "sum" or plan.is_grid:
        return plan
    gathered, masked = _gathered(plan, operands)
    plan = replace(plan, sums=_parts(plan, operands), gathered=gathered, masked=masked)
    plan = replace(plan, in_blocks=_has_blocks(plan, operands))
    if not _is_plain(plan, operands):
        return plan
    vectors = _rows(plan, operands, sizes) or _sums(plan, operands, sizes)
    plan = replace(plan, vectors=vectors, splits=_with_extent(plan.splits, vectors, sizes))
    if enabled("contract"):
        plan = replace(plan, factors=_factors(plan))
    if vectors is None or not enabled("prefetch"):
        return plan
    return replace(plan, prefetched=_prefetched(plan, vectors, operands, sizes))


def _parts(plan: Plan, operands: Mapping[Access, Operand]) -> int:
    """In how many parts an innermost sum is added: two where rows are too short for gathered vectors."""
    if not enabled("sums"):
        return 1
    x = plan.order[-1]
    rows = [operand.row_length for access, operand in operands.items() if _walks(plan, access, operand, x)]
    gathers = any(x in access.indices and not operand.is_sparse for access, operand in operands.items())
    if rows and gathers and min(rows) < LONG_ROW:
        return 2
    return MAX_SUM_TURNS if not rows and _jumps(operands, x) else LANES


def _gathered(plan: Plan, operands: Mapping[Access, Operand]) -> tuple[int, int]:
    """In how many lanes an innermost sum over stored entries gathers what dense operands have there.

    Without any, compilers do as well in long rows; in short ones, masks for what is left over pay, too. Then
    how many registers of so many lanes end a row: two where few rows fit one and many do not, so that a
    jump would often be predicted wrong. Lanes that are loaded one by one take time also if they are empty.
    """
    x, widest = plan.order[-1], target().gather_bytes
    if not widest or not enabled("sums") or plan.element not in (FLOAT32, FLOAT64):
        return 0, 1
    walked = [operand for access, operand in operands.items() if _walks(plan, access, operand, x)]
    gathers = any(x in access.indices and not operand.is_sparse for access, operand in operands.items())
    if len(walked) != 1 or not (gathers or walked[0].row_length < LONG_ROW):
        return 0, 1
    most = FEW_GATHERED if target().gathers_slowly and walked[0].row_length <= FEW_GATHERED + 1 else GATHERED
    lanes = min(most, widest // max(plan.element.bytes, walked[0].index.bytes))
    return lanes, 2 if widest >= WIDE_MASKS and walked[0].row_length >= lanes * 5 / 4 else 1


def _has_blocks(plan: Plan, operands: Mapping[Access, Operand]) -> bool:
    """Whether entries that are merged can be moved to the lanes that a mask picks, and coordinates fit these.

    What is computed of them is computed in lanes that are left, too, so it must not take long.
    """
    if target().gather_bytes < WIDE_MASKS or not plan.slots or not enabled("blocks"):
        return False
    indices = {operand.index for operand in operands.values() if operand.is_sparse}
    functions = {node.name for node in walk(plan.step.body) if isinstance(node, Op)}
    is_narrow = indices | {plan.index} == {INT32}
    return is_narrow and plan.element in (FLOAT32, FLOAT64, INT32, INT64) and all(map(_is_quick, functions))


def _is_quick(name: str) -> bool:
    entry = OPERATORS.get(name)
    return name in QUICK or (entry is not None and entry.in_lanes and not entry.is_slow)


def _jumps(operands: Mapping[Access, Operand], x: str) -> bool:
    """Whether a dense operand has an index inside ``x`` in memory."""
    return any(
        not operand.is_sparse and x in access.indices and access.indices[operand.format.order[-1]] != x
        for access, operand in operands.items()
    )


def _prefetched(
    plan: Plan, vectors: Vectors, operands: Mapping[Access, Operand], sizes: Mapping[str, int]
) -> tuple[tuple[Access, int, int], ...]:
    """Dense operands too large for the cache whose rows a level picks that lists its coordinates.

    Short rows that are added up are not fetched where the core looks ahead, as it would have more to load,
    nor are those of a panel, which are in the cache. Sums wait for each row before the next.
    """
    if len(plan.order) < 2 or vectors.panels > 1:
        return ()
    x = plan.order[-2]
    walked = [operand for access, operand in operands.items() if _walks(plan, access, operand, x)]
    if not walked or any(operand.format.is_finished for operand in walked):
        return ()
    are_long = vectors.kind == "rows" and walked[0].row_length >= AHEAD
    most = FETCHED // plan.element.bytes
    count = vectors.width if vectors.kind == "rows" else min(sizes[vectors.loop], most)
    prefetched = []
    for access, operand in operands.items():
        picked = not operand.is_sparse and {x, vectors.loop} <= set(access.indices)
        apart = _lines_apart(vectors.kind, operand.nnz * operand.element.bytes, are_long) if picked else None
        is_seen = vectors.kind == "rows" and count * operand.element.bytes <= target().looks_ahead
        if apart is not None and not is_seen:
            prefetched.append((access, count, apart // operand.element.bytes))
    return tuple(prefetched)


def _lines_apart(kind: str, size: int, are_long: bool) -> int | None:
    """How many bytes apart the lines are that are fetched of rows of an operand of ``size`` bytes: 0 for
    each line, None for none. ``are_long``: most entries are in the same row as the one fetched ahead of them.

    A core that looks ahead loads from the second cache as fast as it can, also within long rows from the
    shared one, where it loads the lines next to one that is fetched: fetching takes the place of loading.
    """
    machine = target()
    if not machine.looks_ahead:
        share = 2 if kind == "rows" else 16  # sums wait for every row, also for those in the second cache
        return 0 if size > machine.cache_bytes // share else None
    if size <= machine.cache_bytes:
        return None
    return machine.looks_ahead if are_long and size <= machine.shared_cache_bytes // 2 else 0


def _walks(plan: Plan, access: Access, operand: Operand, x: str) -> bool:
    """Whether a stored level of ``access`` gives the coordinates of ``x``, each once."""
    uses = plan.uses(access)
    return any(
        use.loop == x
        and not operand.format.levels[use.level].is_full
        and operand.format.levels[use.level].is_iterable
        and operand.format.is_unique(use.level)
        and (access, use.level) not in plan.searched
        for use in uses
    )


def _is_plain(plan: Plan, operands: Mapping[Access, Operand]) -> bool:
    """Whether every point visited has all operands, of one type that vectors come in."""
    sparse = {access for access, operand in operands.items() if operand.is_sparse}
    where = support_of(plan.step.body, operands)
    return (
        plan.element in (FLOAT32, FLOAT64, INT32, INT64)
        and all(operand.element == plan.element for operand in operands.values())
        and len(where) == 1
        and sparse <= set(required(where))
        and all(not isinstance(node, Op) or node.name in POLYNOMIAL for node in walk(plan.step.body))
    )


def _lies_along(plan: Plan, operands: Mapping[Access, Operand], x: str) -> bool:
    """Whether all operands that have index ``x`` lie in memory along it, and some do."""
    some_do = False
    for access, operand in operands.items():
        uses = plan.uses(access)
        touching = [use for use in uses if x in use.needs]
        is_last = [use.level == len(uses) - 1 and operand.format.levels[-1].is_full for use in touching]
        if touching and is_last != [True]:
            return False
        some_do = some_do or bool(touching)
    return some_do


def _rows(plan: Plan, operands: Mapping[Access, Operand], sizes: Mapping[str, int]) -> Vectors | None:
    """A stretch of the result in registers: dense, along the innermost loop, summed over loops outside it."""
    x, size = plan.order[-1], sizes.get(plan.order[-1], 0)
    results, order = plan.result_loops, plan.order
    is_placed = plan.assembly in ("dense", "shared")
    if x not in results or size < 1 or not is_placed or not enabled("registers"):
        return None
    last = plan.result_uses[-1]
    if last.loop != x or sum(x in use.needs for use in plan.result_uses) != 1:
        return None
    depth = next((place for place, loop in enumerate(order) if loop not in results), len(order))
    if depth >= len(order) - 1 or any(loop in results for loop in order[depth:-1]) or plan.is_private:
        return None
    if not _lies_along(plan, operands, x):
        return None
    machine = target()
    turns = _turns(plan, operands, depth)
    most = _accumulators(machine) // turns * machine.vector_bytes // plan.element.bytes
    pieces = -(-size // most)
    width = -(-size // pieces)
    opens = 0 if pieces > 1 and _fits_in_stretches(operands, x, width, size) else depth
    lanes = _lanes(plan, width)
    walked = _picking(plan, operands) if turns == 1 else None
    is_even = (
        pieces == 1 and width % lanes == 0
    )  # else registers overlap, and adding them to memory adds twice
    panels = choose_panels(plan, operands, walked, sizes) if is_even else 1
    apart = _apart(plan, operands, walked, -(-width // lanes)) if panels == 1 else 1
    return Vectors("rows", x, width, lanes, 0, width == size, 0, depth, opens, turns, apart, panels)


def _picking(plan: Plan, operands: Mapping[Access, Operand]) -> Access | None:
    """The operand whose entries pick what the innermost loop runs over, if nothing else is stored."""
    walking = [a for a, operand in operands.items() if _walks(plan, a, operand, plan.order[-2])]
    stored = [access for access, operand in operands.items() if operand.is_sparse]
    return walking[0] if len(walking) == 1 and stored == walking else None


def _apart(plan: Plan, operands: Mapping[Access, Operand], walked: Access | None, registers: int) -> int:
    """In how many sums, of ``registers`` each, the entries of a row of ``walked`` are added up in turn.

    One addition need not wait for the last then, which more registers hide anyway; short rows lose more by
    adding up the sums.
    """
    if walked is None or registers > MAX_WAITING or not enabled("jam"):
        return 1
    return 2 if operands[walked].row_length >= (SHORT_ROW if registers == 1 else USUAL_ROW) else 1


def _turns(plan: Plan, operands: Mapping[Access, Operand], depth: int) -> int:
    """How many turns of the last of ``depth`` loops run side by side: 1 if they share nothing.

    That takes a counted loop on which no loop inside depends, such as the one over the rows of a block, and
    inside loops over the entries of one operand: where several are merged, each turn would need positions.
    Rows that come from memory are better read whole than in the narrow stretches that turns leave room for.
    """
    if depth == 0 or plan.assembly not in ("dense", "shared") or not enabled("jam"):
        return 1
    if _bytes_along(operands, {plan.order[-1]}) > target().shared_cache_bytes // 2:
        return 1
    loop, inside = plan.order[depth - 1], plan.order[depth:-1]
    shared = False
    walked: list[str | None] = []
    for access, operand in operands.items():
        uses = plan.uses(access)
        walked += [use.loop for use in uses if not operand.format.levels[use.level].is_full]
        first = min((use.level for use in uses if loop in use.needs), default=len(uses))
        for use in uses:
            if operand.format.levels[use.level].is_full:
                continue
            if loop in use.needs or (use.level > first and not use.needs.isdisjoint(inside)):
                return 1
        shared = shared or (first == len(uses) and plan.order[-1] in access.indices)
    if not shared or any(walked.count(inner) > 1 for inner in inside):
        return 1
    block = plan.splits.block(plan.splits.origin(loop)[0])
    return next((turns for turns in JAMMED if block is None or block % turns == 0), 1)


def _entries(plan: Plan, operands: Mapping[Access, Operand]) -> int:
    """How many stored entries at a time share the row that their sums have in common.

    That hides how long a sum takes, and their sums end in one register. Rows that are picked from the second
    cache come fast enough for four; further away there is less to hide.
    """
    if len(plan.order) < 2 or plan.assembly not in ("dense", "shared") or not enabled("jam"):
        return 1
    loop, x = plan.order[-2:]
    walked = _picking(plan, operands)
    if walked is None or operands[walked].row_length < SHORT_ROW:
        return 1
    far = _bytes_along(operands, {loop, x})
    if far > target().shared_cache_bytes:
        return 1
    return 4 if far <= target().cache_bytes else 2


def _bytes_along(operands: Mapping[Access, Operand], loops: set[str]) -> int:
    """The bytes of all dense operands that have ``loops``."""
    dense = [o for a, o in operands.items() if loops <= set(a.indices) and not o.is_sparse]
    return sum(o.nnz * o.element.bytes for o in dense)


def _fits_in_stretches(operands: Mapping[Access, Operand], x: str, width: int, size: int) -> bool:
    """Whether stretches go outermost (Algorithm 3): the dense operands fit the cache only stretch by stretch.

    The loops over stored entries are then run once for each stretch, which pays where every row of the
    dense operands is used several times.
    """
    if not enabled("tiles"):
        return False
    machine = target()
    entries = max((o.nnz for o in operands.values() if o.is_sparse), default=0)
    total = _bytes_along(operands, {x})
    rows = sum(o.nnz // size for a, o in operands.items() if x in a.indices and not o.is_sparse)
    is_large, fits = total > machine.shared_cache_bytes, total * width // size <= machine.cache_bytes // 2
    return is_large and fits and entries >= REUSED * rows


def _sums(plan: Plan, operands: Mapping[Access, Operand], sizes: Mapping[str, int]) -> Vectors | None:
    """Partial sums over the innermost loop, which the result does not have."""
    x, size = plan.order[-1], sizes.get(plan.order[-1], 0)
    if x in plan.result_loops or not enabled("sums") or not _lies_along(plan, operands, x):
        return None
    machine = target()
    lanes = machine.vector_bytes // plan.element.bytes
    if size < lanes:
        return None
    registers = size // lanes
    most = _accumulators(machine)
    if registers > most:  # several turns: as many registers as divide the loop, if many do
        registers = next((n for n in range(most, 3, -1) if registers % n == 0), 4)
    depth = len(plan.order) - 1
    turns = _turns(plan, operands, depth)
    entries = _entries(plan, operands) if turns == 1 else turns
    alone = turns == 1 and entries < 4
    sums = next(n for n in (machine.partial_sums, 2, 3, 5, 1) if registers % n == 0) if alone else 1
    width = registers * lanes
    return Vectors("sums", x, width, lanes, sums, size == width, size % width, depth, 0, entries)


def _with_extent(splits: Splits, vectors: Vectors | None, sizes: Mapping[str, int]) -> Splits:
    """A short loop in vectors has its extent as a number: products by it are shifts, and rows are whole."""
    if vectors is None or sizes.get(vectors.loop, LONG_LOOP) >= LONG_LOOP:
        return splits
    return replace(splits, extents=((vectors.loop, sizes[vectors.loop]),))


def _accumulators(machine: Target) -> int:
    return machine.vector_registers // 2


def _lanes(plan: Plan, width: int) -> int:
    lanes = target().vector_bytes // plan.element.bytes
    while lanes > width:
        lanes //= 2
    return lanes


def _factors(plan: Plan) -> tuple[tuple[Access, int], ...]:
    """For each factor of a product that is taken out of inner sums, how many loops it stands in."""
    factors = factors_of(plan.step.body, with_numbers=True)
    if factors is None:
        return ()
    results, order = plan.result_loops, plan.order
    free = {plan.row_vectors.loop} if plan.row_vectors is not None else set()
    needed = [order.index(loop) + 1 for loop in results - free]
    outermost = max(needed, default=0)
    innermost = len(order) - len(free)
    outer_factors = []
    for access in dict.fromkeys(factors):
        loops = {loop for index in access.indices for loop in plan.splits.loops_of(index)} - free
        depth = max([outermost, *(order.index(loop) + 1 for loop in loops)])
        if depth < innermost and factors.count(access) == 1:
            outer_factors.append((access, depth))
    return tuple(outer_factors)

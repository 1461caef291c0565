"""The order of loops: Algorithm 1 of the paper, and a search over all orders where there are few.

Algorithm 1 starts with the indices that filter most outermost and pushes each one inwards while that makes
the nest cheaper (lines 3 to 10). The stored orders of all tensors then form a graph; where it has cycles the
cheapest edge is removed, which means that its tensor is transposed (lines 11 to 18). Its result is the
baseline: with up to five loops every order is costed as well and the cheapest taken. The order of the inner
product is never taken, however small or full the operands are when the kernel is made.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

from scorch._src.compiler import lattice
from scorch._src.compiler.schedule.cost import Cost, Problem, cost
from scorch._src.compiler.schedule.grid_order import order_for_grid, stored_order_for_grid
from scorch._src.compiler.target import target
from scorch._src.dataclass import dataclass
from scorch.settings import enabled

MAX_PERMUTED_LOOPS = 5  # all orders are tried up to this number
MAX_PUSHED_LOOPS = 10  # and filters are pushed down up to this one: each push prices the whole nest


@dataclass(frozen=True)
class Choice:
    """The order taken, the paper's, and the best of those rejected."""

    chosen: Cost
    paper: Cost
    rejected: tuple[Cost, ...]


def order_loops(problem: Problem) -> Choice:
    """The cheapest order of the loops of ``problem``."""
    paper = cost(problem, algorithm_1(problem))
    is_alone = len(problem.operands) == 1
    if is_alone and paper.transposed:  # a lone operand is sorted on its way into the result instead
        paper = stored_order(problem).chosen
    loops = problem.loops
    if len(loops) > MAX_PERMUTED_LOOPS or not enabled("order"):
        return Choice(paper, paper, ())
    orders = [order for order in itertools.permutations(loops) if is_legal(problem, order)]
    costs = sorted((cost(problem, order) for order in orders), key=lambda c: c.total)
    if is_alone:
        costs = [c for c in costs if not c.transposed]
    allowed = [c for c in costs if not is_inner_product(problem, c.order)]
    chosen = paper if not allowed or paper.total <= allowed[0].total else allowed[0]
    if target().is_grid:
        chosen = order_for_grid(
            problem, chosen, lambda o: is_legal(problem, o) and not is_inner_product(problem, o)
        )
    rejected = tuple(c for c in costs if c.order != chosen.order)
    return Choice(chosen, paper, rejected)


def stored_order(problem: Problem) -> Choice:
    """The order in which the only operand is stored."""
    (access,) = problem.operands
    loops = [loop for use in problem.uses[access] for loop in use.loops]
    only = cost(problem, tuple(dict.fromkeys(loops)))
    return Choice(only, only, ())


def order_to_add(problem: Problem) -> Choice:
    """The order in which the sparse operand is stored, where threads may add to the same place."""
    only = stored_order_for_grid(problem)
    return Choice(only, only, ())


def is_legal(problem: Problem, order: Sequence[str]) -> bool:
    """The number of a block is known before the place inside it."""
    return all(order.index(f"{index}_out") < order.index(f"{index}_in") for index, _ in problem.splits.blocks)


def is_inner_product(problem: Problem, order: Sequence[str]) -> bool:
    """Whether two sparse factors are intersected inside loops of each that nothing sparse connects.

    C[i,k] = A[i,j] * B[j,k] in the order i, k, j visits every i and k, also those that have no j in common.
    """
    step = problem.step
    factors = lattice.required(problem.sparse_support)
    if len(factors) < 2:
        return False
    loops = {a: {loop for use in problem.uses[a] for loop in use.loops} for a in factors}
    for place, x in enumerate(order):
        index, part = problem.splits.origin(x)
        if index not in step.reduced or part == "inner":
            continue
        outside = set(order[:place])
        for a, b in itertools.combinations([a for a in factors if x in loops[a]], 2):
            pairs = itertools.product(outside & loops[a] - loops[b], outside & loops[b] - loops[a])
            if any(not any({p, q} <= own for own in loops.values()) for p, q in pairs):
                return True
    return False


def algorithm_1(problem: Problem) -> tuple[str, ...]:
    """Algorithm 1 of the paper: push sparse filters down, then respect stored orders where possible."""

    def price(order: Sequence[str]) -> float:
        return math.inf if is_inner_product(problem, order) else cost(problem, order).total

    by_sparsity = _sort_by_sparsity(problem)
    order = _push_filters_down(list(by_sparsity), by_sparsity, price, problem)
    edges = _order_edges(problem)
    while (cycle := _find_cycle(edges)) is not None:
        cheapest = min(cycle, key=lambda edge: edges[edge])
        del edges[cheapest]
    sorted_order = _topological(order, edges)
    # The graph may lead into an order that walks everything (the inner product): keep the cheaper one.
    return min((tuple(order), tuple(sorted_order)), key=price)


def _sort_by_sparsity(problem: Problem) -> list[str]:
    """Lines 3 and 4: indices by how many stored levels filter them, then by how few turns they leave."""
    filters = {loop: 0 for loop in problem.loops}
    shared = {loop: 0 for loop in problem.loops}
    for access, operand in problem.operands.items():
        for use in problem.uses[access]:
            for loop in use.loops:
                shared[loop] += 1
                filters[loop] += not operand.format.levels[use.level].is_full
    place = {loop: number for number, loop in enumerate(problem.loops)}

    def rank(loop: str) -> tuple[int, int]:
        is_filter = filters[loop] > 0 and shared[loop] > 1
        return (-filters[loop] if is_filter else 0, place[loop])

    return _legal(sorted(problem.loops, key=rank), problem)


def _push_filters_down(
    order: list[str], candidates: Sequence[str], price: Callable[[Sequence[str]], float], problem: Problem
) -> list[str]:
    """Lines 6 to 10: move each index inwards as long as the net cost is negative."""
    if len(order) > MAX_PUSHED_LOOPS:
        return order
    best = price(order)
    for loop in candidates:
        for place in range(order.index(loop) + 1, len(order)):
            moved = [other for other in order if other != loop]
            moved.insert(place, loop)
            if is_legal(problem, moved) and (found := price(moved)) < best:
                order, best = moved, found
    return order


def _legal(order: list[str], problem: Problem) -> list[str]:
    legal: list[str] = []
    for loop in order:
        index, part = problem.splits.origin(loop)
        if part == "inner" and f"{index}_out" not in legal:
            legal.append(f"{index}_out")
        if loop not in legal:
            legal.append(loop)
    return legal


def _order_edges(problem: Problem) -> dict[tuple[str, str], float]:
    """Lines 11 to 15: an edge from each level's loop to the next, priced by what breaking it costs."""
    edges: dict[tuple[str, str], float] = {}
    tensors = [(problem.uses[a], float(o.nnz)) for a, o in problem.operands.items() if o.is_sparse]
    if not problem.result.is_dense:
        sizes = [o.nnz for o in problem.operands.values() if o.is_sparse]
        tensors.append((problem.result_uses, float(max(sizes, default=1))))
    for uses, price in tensors:
        loops = [loop for use in uses for loop in use.loops]
        for first, second in itertools.pairwise(loops):
            if first != second:
                edges[(first, second)] = edges.get((first, second), 0.0) + price
    for index, _ in problem.splits.blocks:
        edges[(f"{index}_out", f"{index}_in")] = float("inf")
    return edges


def _find_cycle(edges: dict[tuple[str, str], float]) -> list[tuple[str, str]] | None:
    """The edges of some cycle, or None; every node is visited once."""
    following: dict[str, list[str]] = {}
    for first, second in edges:
        following.setdefault(first, []).append(second)
    done: set[str] = set()

    def visit(node: str, path: list[str]) -> list[tuple[str, str]] | None:
        if node in path:
            ring = [*path[path.index(node) :], node]
            return list(itertools.pairwise(ring))
        if node in done:
            return None
        for after in following.get(node, ()):
            found = visit(after, [*path, node])
            if found is not None:
                return found
        done.add(node)
        return None

    for start in following:
        found = visit(start, [])
        if found is not None:
            return found
    return None


def _topological(order: Sequence[str], edges: dict[tuple[str, str], float]) -> list[str]:
    """The order closest to ``order`` that keeps every edge."""
    left, ordered = list(order), []
    while left:
        ready = next(
            loop for loop in left if not any(second == loop and first in left for first, second in edges)
        )
        left.remove(ready)
        ordered.append(ready)
    return ordered

"""Products by features: every rank has all entries, and all rows of some columns of the operand.

Rows are transposed to features before a product and back after it, in one exchange each; no rank needs a
halo, and all have the same work.
"""

from __future__ import annotations

from typing import Any

import torch

from scorch._src.distributed.communication.agreement import all_say
from scorch._src.distributed.communication.budget import check_budget, gradients_of_call
from scorch._src.distributed.communication.collectives import (
    Group,
    exchange_rows,
    gather_numbers,
    rank_in,
    row_bytes,
    size_of,
)
from scorch._src.distributed.communication.halo import HaloPlan
from scorch._src.distributed.communication.replicate import gather_rows
from scorch._src.distributed.communication.route import Names, Wire, finish, narrower, tracked_of
from scorch._src.distributed.row_sharded import RowSharded
from scorch._src.grad_state import outside_modes
from scorch._src.storage.coordinates import numbered_entries
from scorch._src.storage.storage import Pattern
from scorch._src.tensor.autograd import sparse_of, values_of
from scorch._src.tensor.create.torch_constructors import sparse_coo_tensor
from scorch._src.tensor.sparse_tensor import SparseTensor

Tensor = torch.Tensor


def multiply_by_features(a: RowSharded, x: Tensor) -> Tensor:
    """Return this rank's rows of ``a @ x``, given its rows of ``x``: all ranks share the columns."""
    flat = x if x.dim() == 2 else x[:, None]
    width, parts = flat.shape[1], size_of(a.group)
    padded = torch.nn.functional.pad(flat, (0, -width % parts))
    tracked = tracked_of(A=a.local, x=x)
    features = _Turn.apply(padded, a.columns, narrower(x, a.wire), True, tracked)
    product = whole_of(a) @ features
    result: Tensor = _Turn.apply(product, a.rows, narrower(product, a.wire), False, ())[:, :width]
    return result.reshape(a.rows.own, *x.shape[1:])


@gradients_of_call
class _Turn(torch.autograd.Function):
    """Rows of all features to all rows of some features, or back: one is the gradient of the other."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, plan: HaloPlan, wire: Wire, to_features: bool, tracked: Names) -> Tensor:
        ctx.how = plan, wire, to_features
        if size_of(plan.group) > 1:
            finish(plan.route.compare("features", x, wire, tracked))
        turn = _to_features if to_features else _to_rows
        return turn(x.detach(), plan, wire)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        plan, wire, to_features = ctx.how
        return _Turn.apply(grad, plan, wire, not to_features, ()), None, None, None, None


def _to_features(x: Tensor, plan: HaloPlan, wire: Wire) -> Tensor:
    parts = size_of(plan.group)
    width = x.shape[1] // parts
    blocks = x.reshape(plan.own, parts, width).transpose(0, 1).reshape(parts * plan.own, width)
    return _exchange(blocks, [plan.own] * parts, plan.cuts.diff().tolist(), plan.group, wire)


def _to_rows(y: Tensor, plan: HaloPlan, wire: Wire) -> Tensor:
    parts = size_of(plan.group)
    blocks = _exchange(y, plan.cuts.diff().tolist(), [plan.own] * parts, plan.group, wire)
    width = y.shape[1]
    return blocks.reshape(parts, plan.own, width).transpose(0, 1).reshape(plan.own, parts * width)


def _exchange(rows: Tensor, sent: list[int], received: list[int], group: Group, wire: Wire) -> Tensor:
    if size_of(group) == 1:
        return rows.clone()
    runs = max(*sent, *received) * size_of(group)  # the same on all ranks
    check_budget("exchange of features", runs * row_bytes(rows, wire))
    given = (rows if wire is None else rows.to(wire)).contiguous()
    out = given.new_empty((sum(received), rows.shape[1]))
    exchange_rows(out, given, received, sent, group)
    return out.to(rows.dtype)


# all entries on every rank --------------------------------------------------------------------------


def whole_of(a: RowSharded) -> SparseTensor:
    """Return all entries, connected to those of each rank; they are gathered when they have changed."""
    other, local = a.kept.get("transposed", (None, None))
    if other is not None and other.local is local and other.requires_grad == a.requires_grad:
        transposed: Any = whole_of(other).T
        return transposed  # type: ignore[no-any-return]
    values = a.local.storage.values
    is_tracked = torch.is_grad_enabled() and a.requires_grad
    found = a.kept.get("whole")
    is_kept = found is not None and not is_tracked and found[0] is values and found[1] == values._version
    if all_say(is_kept, a.group, a.rows.ghosts) and found is not None:
        whole: SparseTensor = found[2]
        return whole
    whole = _gather_whole(a) if is_tracked else outside_modes(_gather_whole)(a)
    if not is_tracked:
        a.kept["whole"] = values, values._version, whole
    return whole


def _gather_whole(a: RowSharded) -> SparseTensor:
    pattern, order, counts = _whole_pattern(a)
    _, places = numbered_entries(a.local.storage.pattern)
    gathered: Tensor = _Gather.apply(values_of(a.local)[places], tuple(counts), a.group)
    return sparse_of(pattern, gathered[order])


@outside_modes
def _whole_pattern(a: RowSharded) -> tuple[Pattern, Tensor, list[int]]:
    """Return the pattern of all entries, where its values are among those gathered, and how many each has."""
    cache = a.local.storage.pattern.structures
    key = "whole", id(a.rows), id(a.columns)
    found: tuple[Any, Pattern, Tensor, list[int]] | None = cache.get(key)
    is_known = [known for (known,) in gather_numbers([found is not None], a.group, a.rows.ghosts)]
    if found is None or not all(is_known):  # what one rank keeps, another may have dropped
        crd, _ = a.entries()
        everything = gather_rows(torch.stack(crd, 1), a.group)
        counts = gather_rows(torch.tensor([len(crd[0])], device=everything.device), a.group).tolist()
        numbers = torch.arange(len(everything), device=everything.device)
        whole = sparse_coo_tensor(everything.t(), numbers, a.shape, format="csr")
        assert isinstance(whole, SparseTensor)
        plans = a.rows, a.columns  # kept, so that nothing else gets their names
        found = cache[key] = plans, whole.storage.pattern, whole.storage.values, counts
    return found[1:]


@gradients_of_call
class _Gather(torch.autograd.Function):
    """The values of all ranks on each of them; its gradient adds up those of all ranks, in order."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, counts: tuple[int, ...], group: Group) -> Tensor:
        ctx.how = counts, group
        return gather_rows(values.detach(), group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _SumBack.apply(grad, *ctx.how), None, None


@gradients_of_call
class _SumBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, grad: Tensor, counts: tuple[int, ...], group: Group) -> Tensor:
        ctx.how = counts, group
        size, own = size_of(group), counts[rank_in(group)]
        if size == 1:
            return grad.clone()
        check_budget("exchange of partial sums", size * max(counts) * grad.element_size())
        found = grad.new_empty(size * own)
        exchange_rows(found, grad.contiguous(), [own] * size, list(counts), group)
        parts = found.reshape(size, own)
        total = parts[0].clone()
        for part in parts[1:]:
            total += part
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _Gather.apply(grad, *ctx.how), None, None

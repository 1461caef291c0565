"""``scorch.explain`` of statements over sharded tensors: what ranks exchange, and what each computes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from scorch._src.dataclass import dataclass
from scorch._src.distributed.align import same_plans
from scorch._src.distributed.communication.collectives import Exchange
from scorch._src.distributed.communication.halo import HaloPlan
from scorch._src.distributed.cost_model.plan import DEFAULT_NETWORK, Plan, describe_in_words
from scorch._src.distributed.row_sharded import RowSharded
from scorch._src.distributed.rules import FOLD_COLUMNS, FOLD_ROWS, LOCAL, SHARDED, SUM
from scorch._src.distributed.statements import partition_of, plan_of
from scorch._src.explain.function_report import KernelExplanation
from scorch._src.explain.render import wrap_lines
from scorch._src.explain.report import Explanation
from scorch._src.notation.nodes import Assign
from scorch._src.units import format_bytes
from scorch.errors import counted

OUTCOMES = {
    LOCAL: "every rank computes its own rows of the result: no communication",
    FOLD_ROWS: "partial rows are sent to the ranks that own them, which add them up in the order of ranks",
    FOLD_COLUMNS: "partial sums of columns are sent to the ranks that own them, which add them up in order",
    SUM: "the result is summed over all ranks, in the order of ranks",
    SHARDED: "the result is sharded like its operands: no communication",
}


@dataclass(frozen=True)
class ShardedExplanation:
    """What a statement over sharded tensors exchanges and computes, on this rank.

    ``exchanges``
        sentences: which operands bring rows of others, and what becomes of the result
    ``plan``
        bytes, memory, time, the algorithm and the runner-up of a product with these columns
    ``local``
        the explanation of what this rank computes from its own entries
    """

    text: str
    exchanges: tuple[str, ...]
    plan: Plan
    local: Explanation

    def __str__(self) -> str:
        lines = [f"{self.text}, over {counted(self.plan.load.processes, 'rank')}", ""]
        for sentence in self.exchanges:
            lines += wrap_lines(sentence, "exchange  ")
        lines += ["", str(self.plan), "", "on this rank:", self.local.report(source=False)]
        return "\n".join(lines)

    __repr__ = __str__


def explain_sharded(
    text: str,
    assign: Assign,
    tensors: Mapping[str, Any],
    explain_local: Callable[[str, Mapping[str, Any]], Explanation],
) -> ShardedExplanation:
    """Explain a statement of which some operands are sharded; nothing is exchanged for it."""
    sharded = {name: tensor for name, tensor in tensors.items() if isinstance(tensor, RowSharded)}
    aligned = dict(zip(sharded, same_plans(list(sharded.values())), strict=True))
    one = next(iter(aligned.values()))
    how = partition_of(assign, aligned)
    plans = {how.row: one.rows, how.column: one.columns}
    local: dict[str, Any] = {}
    sentences = []
    for name, tensor in tensors.items():
        local[name] = aligned[name].local if name in aligned else tensor
        for dim, index in how.extend.get(name, ()):
            plan = plans[index]
            local[name] = _extended(tensor, dim, plan)
            width = math.prod(tensor.shape) // max(plan.own, 1)
            sentences.append(_exchange_of(name, index, plan, width * (one.wire or tensor.dtype).itemsize))
    sentences.append(OUTCOMES[how.outcome])
    return ShardedExplanation(text, tuple(sentences), plan_of(how, one, tensors), explain_local(text, local))


def _extended(tensor: Any, dim: int, plan: HaloPlan) -> torch.Tensor:
    """Return an array of the size that an operand has after the exchange."""
    shape = list(tensor.shape)
    shape[dim] = plan.size
    return torch.zeros(shape, dtype=tensor.dtype, device=tensor.device)


def _exchange_of(name: str, index: str, plan: HaloPlan, row_bytes: int) -> str:
    rows, peers = plan.route.incoming, counted(plan.route.peers, "rank")
    if not plan.route.total:
        return f"{name}: no halo exchange along {index}"
    return (
        f"{name}: halo exchange of {counted(rows, 'row')} along {index} from {peers}, "
        f"{format_bytes(rows * row_bytes)}; "
        f"{plan.own:,} rows are local"
    )


def explain_exchange(subject: Exchange | Plan, measured: float) -> KernelExplanation:
    """Explain what moved between ranks in a function, or by which algorithm a product was computed."""
    if isinstance(subject, Plan):
        return KernelExplanation(
            "product",
            f"{describe_in_words(subject.chosen)}, over {subject.network.name}",
            (),
            None,
            (),
            1,
            subject.bytes,
            subject.seconds,
            measured,
            runner_up=describe_in_words(subject.runner_up),
        )
    network, peers = DEFAULT_NETWORK, counted(subject.peers, "rank")
    predicted = subject.peers * network.latency + max(subject.sent, subject.received) / network.bandwidth
    return KernelExplanation(
        "exchange",
        f"{subject.what}: {format_bytes(subject.received)} from {peers}, {format_bytes(subject.sent)} sent; "
        f"predicted for {network.name}",
        (),
        None,
        (),
        1,
        subject.received,
        predicted,
        measured,
    )

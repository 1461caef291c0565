"""Products of local shards with rows that arrive while others are multiplied, with higher-order gradients.

Three operations are closed under differentiation: the product of the entries with rows, the transposed
product, which returns its results for rows of others to their owners, and the sampled product, which
computes a number for each entry. All of them multiply the entries at own rows during the first exchange,
and then block by block as a schedule says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from scorch._src.dataclass import dataclass
from scorch._src.devices import HOST
from scorch._src.distributed.algorithms.blocks import Block, blocks_of
from scorch._src.distributed.algorithms.schedules import Schedule
from scorch._src.distributed.communication.budget import gradients_of_call
from scorch._src.distributed.communication.route import narrower
from scorch._src.statements.einsum import einsum
from scorch._src.storage.storage import Pattern
from scorch._src.tensor.sparse_tensor import SparseTensor

Tensor = torch.Tensor


@dataclass(frozen=True)
class Exchanged:
    """The blocks of a local shard, the schedule that brings rows to them, and the dtype on the wire."""

    pattern: Pattern
    schedule: Schedule
    wire: torch.dtype | None
    dim: int  # of the pattern, whose rows are exchanged

    @property
    def blocks(self) -> list[Block]:
        """The block at own rows, and then those of each round."""
        own, *others = blocks_of(self.pattern, [self.schedule.route.rows, *self.schedule.widths], self.dim)
        return [own, *(others[number] for number in self.schedule.order)]

    def each_block(self, x: Tensor, use: Callable[[Block, Tensor], None]) -> None:
        """Call ``use`` with each block and the rows it multiplies: own ones first, while others arrive.

        Rows of others are freed before more of them are fetched.
        """
        own, *others = self.blocks
        wire = narrower(x, self.wire)
        pending = self.schedule.start(x, 0, wire) if others else None
        use(own, x)
        for number, block in enumerate(others):
            if pending is None:
                pending = self.schedule.start(x, number, wire)
            rows = pending.wait()
            pending = None
            use(block, rows)
            del rows


def product(how: Exchanged, values: Tensor, x: Tensor) -> Tensor:
    """Return the product of the entries with ``x``, of which every rank passes its own rows."""
    return _Product.apply(how, values, x)  # type: ignore[no-any-return]


def transposed_product(how: Exchanged, values: Tensor, g: Tensor) -> Tensor:
    """Return own rows of the product with the transposed entries; others get theirs."""
    return _TransposedProduct.apply(how, values, g)  # type: ignore[no-any-return]


def sampled_product(how: Exchanged, g: Tensor, x: Tensor, kept: Tensor | None = None) -> Tensor:
    """Return for each entry the product of its row of ``g`` and its row of ``x``.

    ``kept`` are the rows of others where they are known.
    """
    return _SampledProduct.apply(how, g, x, kept)  # type: ignore[no-any-return]


@gradients_of_call
class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, how: Exchanged, values: Tensor, x: Tensor) -> Tensor:
        kept, result = None, torch.empty(0, device=HOST)

        def multiply(block: Block, rows: Tensor) -> None:
            nonlocal kept, result
            if rows is x:
                result = block.matrix(values) @ rows
                return
            if len(block.places):
                result = torch.addmm(result, block.matrix(values), rows)
            if how.schedule.keeps_rows and ctx.needs_input_grad[1]:
                kept = rows

        how.each_block(x, multiply)
        ctx.how = how
        ctx.save_for_backward(values, x, kept)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        values, x, kept = ctx.saved_tensors
        _, needs_values, needs_x = ctx.needs_input_grad
        to_x = transposed_product(ctx.how, torch.conj_physical(values), grad) if needs_x else None
        kept = None if kept is None else torch.conj_physical(kept)
        to_values = sampled_product(ctx.how, grad, torch.conj_physical(x), kept) if needs_values else None
        return None, to_values, to_x


@gradients_of_call
class _TransposedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, how: Exchanged, values: Tensor, g: Tensor) -> Tensor:
        ctx.how = how
        ctx.save_for_backward(values, g)
        own, *others = how.blocks
        wire = narrower(g, how.wire)
        result: Tensor | None = None
        for number, block in enumerate(others):
            part = block.matrix(values).T @ g
            pending = how.schedule.start_back(part, number, wire)
            del part
            if result is None:
                result = own.matrix(values).T @ g
            how.schedule.add(result, pending.wait(), number)
            del pending
        return own.matrix(values).T @ g if result is None else result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        values, g = ctx.saved_tensors
        _, needs_values, needs_g = ctx.needs_input_grad
        to_values = sampled_product(ctx.how, torch.conj_physical(g), grad) if needs_values else None
        to_g = product(ctx.how, torch.conj_physical(values), grad) if needs_g else None
        return None, to_values, to_g


@gradients_of_call
class _SampledProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, how: Exchanged, g: Tensor, x: Tensor, kept: Tensor | None) -> Tensor:
        ctx.how = how
        ctx.save_for_backward(g, x)
        result = x.new_zeros(how.pattern.counts[-1])  # the padding of blocks stays zero

        def sample(block: Block, rows: Tensor) -> None:
            if len(block.places):
                found = einsum("ij,ik,jk->ij", block.ones(x.dtype), g, rows, format="csr")
                assert isinstance(found, SparseTensor)
                result.index_copy_(0, block.places, found.storage.values)

        if kept is None:
            how.each_block(x, sample)
        else:
            for block, rows in zip(how.blocks, (x, kept), strict=True):
                sample(block, rows)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        g, x = ctx.saved_tensors
        _, needs_g, needs_x, _ = ctx.needs_input_grad
        to_g = product(ctx.how, grad, torch.conj_physical(x)) if needs_g else None
        to_x = transposed_product(ctx.how, grad, torch.conj_physical(g)) if needs_x else None
        return None, to_g, to_x, None

"""The routines in C, where this machine can compile them; else in torch's own operations."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import MappingProxyType
from typing import Concatenate, ParamSpec, TypeVar

import torch

from scorch._src.backends.by_torch.attention import Heads
from scorch._src.backends.by_torch.rows import Tensor
from scorch._src.backends.cpu import launch
from scorch._src.backends.cpu.routines.attention import fused
from scorch._src.backends.cpu.routines.attention.blocks import find_blocks
from scorch._src.backends.cpu.routines.coalesce import coalesced
from scorch._src.backends.cpu.routines.concat import joined
from scorch._src.backends.cpu.routines.convolve import convolve, plan_convolution
from scorch._src.backends.cpu.routines.copy_indices import copied_indices
from scorch._src.backends.cpu.routines.extremes import scattered_extremes
from scorch._src.backends.cpu.routines.few_values import NORMED, add_row, bind_norm, of_few, scaled
from scorch._src.backends.cpu.routines.finite import are_finite
from scorch._src.backends.cpu.routines.graph_attention import attend, features_backward, scores_backward
from scorch._src.backends.cpu.routines.groups import (
    has_fast_codes,
    multiply_groups,
    pack_positions,
    reads_positions,
)
from scorch._src.backends.cpu.routines.join_matrices import below, beside
from scorch._src.backends.cpu.routines.linear import bind_batch, multiply_batch
from scorch._src.backends.cpu.routines.neighbour_max import largest, largest_backward
from scorch._src.backends.cpu.routines.parse_table import parse_table
from scorch._src.backends.cpu.routines.pick_rows import picked_rows
from scorch._src.backends.cpu.routines.row_pointers import pointers_of, rows_of
from scorch._src.backends.cpu.routines.select import selected, signs_counted
from scorch._src.backends.cpu.routines.sort import sort_entries
from scorch._src.backends.cpu.routines.sorted_rows import has_sorted_rows, hash_of, owned_rows
from scorch._src.backends.cpu.routines.take import RUN_DTYPES, reduced_runs, taken
from scorch._src.backends.cpu.routines.transpose import laid_out
from scorch._src.backends.cpu.routines.transpose_rows import transposed_matrix, transposition_bytes
from scorch._src.backends.routines import Routines

Args = ParamSpec("Args")
Result = TypeVar("Result")
Method = Callable[Concatenate[Routines, Args], Result]


def _or_torch(routine: Callable[..., Result | None], by_torch: Method[Args, Result]) -> Method[Args, Result]:
    """Return a method that calls ``routine``, and ``by_torch`` where that returns None."""

    def call(self: Routines, /, *args: Args.args, **kwargs: Args.kwargs) -> Result:
        result = routine(*args, **kwargs)
        return by_torch(self, *args, **kwargs) if result is None else result

    return call


class CpuRoutines(Routines):
    answers_at_once = True
    repeats_calls = True
    batch_dtypes = (torch.float32, torch.float64, torch.bfloat16)
    batch_blocks = ((1, 1), (1, 4), (1, 8), (1, 16), (4, 1), (8, 1), (16, 1), (4, 4))
    stored_batch_dtypes = MappingProxyType({torch.float32: (torch.bfloat16, torch.int8)})
    transpose = staticmethod(laid_out)
    are_finite = _or_torch(are_finite, Routines.are_finite)
    scale = _or_torch(scaled, Routines.scale)
    add_row = _or_torch(add_row, Routines.add_row)
    copy_indices = _or_torch(copied_indices, Routines.copy_indices)
    has_sorted_rows = _or_torch(has_sorted_rows, Routines.has_sorted_rows)
    own_rows = _or_torch(owned_rows, Routines.own_rows)
    hash_indices = _or_torch(hash_of, Routines.hash_indices)
    row_pointers = _or_torch(pointers_of, Routines.row_pointers)
    row_numbers = _or_torch(rows_of, Routines.row_numbers)
    coalesce = _or_torch(coalesced, Routines.coalesce)
    sort_entries = _or_torch(sort_entries, Routines.sort_entries)
    transpose_matrix = _or_torch(transposed_matrix, Routines.transpose_matrix)
    transposition_bytes = staticmethod(transposition_bytes)
    take = _or_torch(taken, Routines.take)
    pick_rows = _or_torch(picked_rows, Routines.pick_rows)
    reduce_runs = _or_torch(reduced_runs, Routines.reduce_runs)
    scattered_extremes = _or_torch(scattered_extremes, Routines.scattered_extremes)
    count_signs = _or_torch(signs_counted, Routines.count_signs)
    select = _or_torch(selected, Routines.select)
    concat = _or_torch(joined, Routines.concat)
    concat_rows = _or_torch(below, Routines.concat_rows)
    concat_columns = _or_torch(beside, Routines.concat_columns)
    parse_table = staticmethod(parse_table)
    neighbour_max = _or_torch(largest, Routines.neighbour_max)
    neighbour_max_backward = _or_torch(largest_backward, Routines.neighbour_max_backward)
    graph_attention = _or_torch(attend, Routines.graph_attention)
    graph_attention_scores_backward = _or_torch(scores_backward, Routines.graph_attention_scores_backward)
    graph_attention_features_backward = _or_torch(
        features_backward, Routines.graph_attention_features_backward
    )
    run_dtypes = RUN_DTYPES
    norm_dtypes = tuple(NORMED)
    bind_norm = staticmethod(bind_norm)
    multiply_batch = staticmethod(multiply_batch)
    bind_batch = staticmethod(bind_batch)

    @property
    def group_dtypes(self) -> tuple[torch.dtype, ...]:  # type: ignore[override]
        return (torch.float32,) if has_fast_codes() else ()

    reads_positions = staticmethod(reads_positions)
    pack_positions = staticmethod(pack_positions)
    multiply_groups = staticmethod(multiply_groups)
    plan_convolution = staticmethod(plan_convolution)
    convolve = _or_torch(convolve, Routines.convolve)
    attention_blocks = staticmethod(find_blocks)
    attention_backward = staticmethod(fused.backward)

    @functools.cached_property
    def relu(self) -> Callable[[Tensor], Tensor]:
        return of_few(launch.RELU, torch.relu)

    @functools.cached_property
    def neg(self) -> Callable[[Tensor], Tensor]:
        return of_few(launch.NEG, torch.neg)

    @functools.cached_property
    def abs(self) -> Callable[[Tensor], Tensor]:
        return of_few(launch.ABS, torch.abs)

    def attention(
        self, query: Tensor, key: Tensor, value: Tensor, heads: Heads
    ) -> tuple[Tensor, Tensor] | None:
        if heads.blocks is None or not fused.is_able(query.dtype):
            return None
        return fused.forward(query, key, value, heads)

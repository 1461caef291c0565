"""The routines in C, where this machine can compile them; else in torch's own operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from scorch._src.backends.cpu.routines import attention, graph_attention, neighbour_max
from scorch._src.backends.cpu.routines.attention_blocks import find_blocks
from scorch._src.backends.cpu.routines.concat import joined
from scorch._src.backends.cpu.routines.join_matrices import below, beside
from scorch._src.backends.cpu.routines.parse_table import parse_table
from scorch._src.backends.cpu.routines.pick_rows import picked_rows
from scorch._src.backends.cpu.routines.row_pointers import pointers_of, rows_of
from scorch._src.backends.cpu.routines.sort import sort_entries
from scorch._src.backends.cpu.routines.transpose import laid_out
from scorch._src.backends.routines import Heads, Matrix, Options, Routines, Rows, Scores, Tensor


class CpuRoutines(Routines):
    def transpose(self, tensor: Tensor, order: Sequence[int]) -> Tensor:
        return laid_out(tensor, order)

    def row_pointers(self, rows: Tensor, count: int) -> Tensor:
        result = pointers_of(rows, count)
        return super().row_pointers(rows, count) if result is None else result

    def row_numbers(self, pos: Tensor, crd: Tensor) -> tuple[Tensor, Tensor]:
        result = rows_of(pos, crd)
        return super().row_numbers(pos, crd) if result is None else result

    def sort_entries(
        self, columns: Sequence[Tensor], sizes: Sequence[int]
    ) -> tuple[Tensor, list[Tensor]] | bool:
        result = sort_entries(columns, sizes)
        return super().sort_entries(columns, sizes) if result is None else result

    def pick_rows(
        self, pos: Tensor, crd: Tensor, values: Tensor, picked: Tensor
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        result = picked_rows(pos, crd, values, picked)
        return super().pick_rows(pos, crd, values, picked) if result is None else result

    def concat(self, arrays: Sequence[Tensor], offsets: Sequence[int] | None = None) -> Tensor:
        result = joined(arrays, offsets)
        return super().concat(arrays, offsets) if result is None else result

    def concat_rows(self, matrices: Sequence[Matrix], rows: Sequence[int], entries: int) -> Matrix | None:
        result = below(matrices, rows, entries)
        return super().concat_rows(matrices, rows, entries) if result is None else result

    def concat_columns(
        self, matrices: Sequence[Matrix], widths: Sequence[int], rows: int, entries: int
    ) -> Matrix | None:
        result = beside(matrices, widths, rows, entries)
        return super().concat_columns(matrices, widths, rows, entries) if result is None else result

    def parse_table(
        self, data: bytes, begin: int, sizes: tuple[int, ...], parts: int, whole: bool
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]] | None:
        return parse_table(data, begin, sizes, parts, whole)

    def neighbour_max(
        self, rows: tuple[Tensor, Tensor, Tensor | None], x: Tensor, with_ties: bool
    ) -> tuple[Tensor, Tensor | None]:
        result = neighbour_max.largest(rows, x, with_ties)
        return super().neighbour_max(rows, x, with_ties) if result is None else result

    def neighbour_max_backward(
        self, rows: tuple[Tensor, Tensor, Tensor | None], x: Tensor, out: Tensor, shared: Tensor
    ) -> Tensor:
        result = neighbour_max.largest_backward(rows, x, out, shared)
        return super().neighbour_max_backward(rows, x, out, shared) if result is None else result

    def graph_attention(
        self, rows: Rows, x: Tensor, scores: Scores, options: Options, keep: bool
    ) -> tuple[Tensor, Tensor | None]:
        result = graph_attention.attend(rows, x, scores, options, keep)
        return super().graph_attention(rows, x, scores, options, keep) if result is None else result

    def graph_attention_scores_backward(
        self, rows: Rows, x: Tensor, scores: Scores, options: Options, probabilities: Tensor, grad: Tensor
    ) -> tuple[Tensor, Tensor]:
        args = rows, x, scores, options, probabilities, grad
        result = graph_attention.scores_backward(*args)
        return super().graph_attention_scores_backward(*args) if result is None else result

    def graph_attention_features_backward(
        self, columns: Rows, options: Options, probabilities: Tensor, each: Tensor, grad: Tensor
    ) -> tuple[Tensor, Tensor]:
        args = columns, options, probabilities, each, grad
        result = graph_attention.features_backward(*args)
        return super().graph_attention_features_backward(*args) if result is None else result

    def attention_blocks(self, pos: Tensor, crd: Tensor, matrices: int, queries: int, keys: int) -> Any:
        return find_blocks(pos, crd, matrices, queries, keys)

    def attention(
        self, query: Tensor, key: Tensor, value: Tensor, heads: Heads
    ) -> tuple[Tensor, Tensor] | None:
        if heads.blocks is None or not attention.is_able(query.dtype):
            return None
        return attention.forward(query, key, value, heads)

    def attention_backward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        heads: Heads,
        out: Tensor,
        state: Tensor,
        gradient: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        return attention.backward(query, key, value, heads, out, state, gradient)

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
        made = pointers_of(rows, count)
        return super().row_pointers(rows, count) if made is None else made

    def row_numbers(self, pos: Tensor, crd: Tensor) -> tuple[Tensor, Tensor]:
        made = rows_of(pos, crd)
        return super().row_numbers(pos, crd) if made is None else made

    def sort_entries(
        self, columns: Sequence[Tensor], sizes: Sequence[int]
    ) -> tuple[Tensor, list[Tensor]] | bool:
        made = sort_entries(columns, sizes)
        return super().sort_entries(columns, sizes) if made is None else made

    def pick_rows(
        self, pos: Tensor, crd: Tensor, values: Tensor, picked: Tensor
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        made = picked_rows(pos, crd, values, picked)
        return super().pick_rows(pos, crd, values, picked) if made is None else made

    def concat(self, arrays: Sequence[Tensor], offsets: Sequence[int] | None = None) -> Tensor:
        made = joined(arrays, offsets)
        return super().concat(arrays, offsets) if made is None else made

    def concat_rows(self, matrices: Sequence[Matrix], rows: Sequence[int], entries: int) -> Matrix | None:
        made = below(matrices, rows, entries)
        return super().concat_rows(matrices, rows, entries) if made is None else made

    def concat_columns(
        self, matrices: Sequence[Matrix], widths: Sequence[int], rows: int, entries: int
    ) -> Matrix | None:
        made = beside(matrices, widths, rows, entries)
        return super().concat_columns(matrices, widths, rows, entries) if made is None else made

    def parse_table(
        self, data: bytes, begin: int, sizes: tuple[int, ...], parts: int, whole: bool
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]] | None:
        return parse_table(data, begin, sizes, parts, whole)

    def neighbour_max(
        self, rows: tuple[Tensor, Tensor, Tensor | None], x: Tensor, with_ties: bool
    ) -> tuple[Tensor, Tensor | None]:
        made = neighbour_max.largest(rows, x, with_ties)
        return super().neighbour_max(rows, x, with_ties) if made is None else made

    def neighbour_max_backward(
        self, rows: tuple[Tensor, Tensor, Tensor | None], x: Tensor, out: Tensor, shared: Tensor
    ) -> Tensor:
        made = neighbour_max.largest_back(rows, x, out, shared)
        return super().neighbour_max_backward(rows, x, out, shared) if made is None else made

    def graph_attention(
        self, rows: Rows, x: Tensor, scores: Scores, options: Options, keep: bool
    ) -> tuple[Tensor, Tensor | None]:
        made = graph_attention.attend(rows, x, scores, options, keep)
        return super().graph_attention(rows, x, scores, options, keep) if made is None else made

    def graph_attention_scores_backward(
        self, rows: Rows, x: Tensor, scores: Scores, options: Options, kept: Tensor, grad: Tensor
    ) -> tuple[Tensor, Tensor]:
        given = rows, x, scores, options, kept, grad
        made = graph_attention.scores_back(*given)
        return super().graph_attention_scores_backward(*given) if made is None else made

    def graph_attention_features_backward(
        self, columns: Rows, options: Options, kept: Tensor, each: Tensor, grad: Tensor
    ) -> tuple[Tensor, Tensor]:
        given = columns, options, kept, each, grad
        made = graph_attention.features_back(*given)
        return super().graph_attention_features_backward(*given) if made is None else made

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

"""Compressed rows: the row of each entry, and sums and maxima of the entries of each row."""

from __future__ import annotations

import torch

from scorch._src.devices import HOST

Tensor = torch.Tensor
Matrix = tuple[Tensor, ...]  # of compressed rows: pos, crd, values


def rows_of(pos: Tensor, entries: int) -> Tensor:
    """Return the row of each entry."""
    rows = torch.arange(pos.numel() - 1, device=pos.device)
    return rows.repeat_interleave(pos.diff().to(torch.int64), output_size=entries)


# Sums of rows that may repeat, with the same bits at every call: on a device index_put sorts, where index_add
# takes turns by chance. Both multiply by one, which makes NaN of the other part of a complex infinity.


def add_rows(out: Tensor, row: Tensor, values: Tensor) -> None:
    """Add ``values`` to rows of ``out`` in place."""
    if values.is_complex():
        out, values = torch.view_as_real(out), torch.view_as_real(values)
    if out.device == HOST:
        out.index_add_(0, row, values)
    else:
        out.index_put_((row,), values, accumulate=True)


def sum_rows(row: Tensor, values: Tensor, count: int) -> Tensor:
    """Sum the values of each row, connected to them."""
    if values.is_complex():
        return torch.view_as_complex(sum_rows(row, torch.view_as_real(values), count))
    zeros = values.new_zeros(count, *values.shape[1:])
    if zeros.device == HOST:
        return zeros.index_add(0, row, values)
    return zeros.index_put((row,), values, accumulate=True)


def take_rows(values: Tensor, row: Tensor) -> Tensor:
    """Take rows, connected to them: the gradient is a sum of rows."""
    return values.index_select(0, row) if values.device == HOST else values[row]


def maxima_of_rows(row: Tensor, values: Tensor, count: int) -> Tensor:
    """Compute the maximum of the values of each row; minus infinity for a row without entries."""
    out = values.new_full((count, *values.shape[1:]), float("-inf"))
    places = row.view(-1, *(1,) * (values.dim() - 1)).expand_as(values)
    return out.scatter_reduce_(0, places, values, "amax")

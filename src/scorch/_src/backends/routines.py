"""Routines that complement generated kernels, in PyTorch operators: they run on any device.

A backend overrides those that it has faster code for (``backends.cpu.cpu_routines``).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch

from scorch._src.backends.sort_entries import (
    MAX_KEYS,
    Sorted,
    sorted_by_columns,
    sorted_by_keys,
    stable_sort,
    sum_runs,
)
from scorch._src.dataclass import dataclass
from scorch._src.devices import HOST
from scorch._src.loops.types import LAST_INT32
from scorch._src.torch_internals import row_pointers_of

Tensor = torch.Tensor
Matrix = tuple[Tensor, ...]  # of compressed rows: pos, crd, values
# Takes the values, scales, bias and residual of a layer, and its input; None: one is not as it was.
BatchProduct = Callable[[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor], Tensor | None]
# Takes an input, the weight and the bias of a norm; None: one is not as it was.
NormFunction = Callable[[Tensor, Tensor | None, Tensor | None], Tensor | None]


def do_nothing() -> None:
    """Do nothing, where callers have nothing to do while a device works."""


def rows_of(pos: Tensor, entries: int) -> Tensor:
    """Return the row of each entry."""
    rows = torch.arange(pos.numel() - 1, device=pos.device)
    return rows.repeat_interleave(pos.diff().to(torch.int64), output_size=entries)


class Rows(NamedTuple):
    """Compressed rows: where they begin, their columns, and how often each entry counts unless once.

    ``places`` says of transposed rows where each entry is among the others.
    """

    pos: Tensor
    crd: Tensor
    counts: Tensor | None = None
    places: Tensor | None = None


class Options(NamedTuple):
    """The slope of leaky_relu below zero; the probability of dropout and the number its draws begin with."""

    slope: float
    dropout: float = 0.0
    seed: int = 0

    @property
    def scale(self) -> float:
        """The factor that corrects for dropped entries."""
        return 1.0 / (1.0 - self.dropout) if self.dropout != 1.0 else 0.0

    @property
    def drop_below(self) -> int:
        """What 32 random bits of a dropped entry are below."""
        return int(self.dropout * 2.0**32)


class Scores(NamedTuple):
    """Of sources and of targets, (nodes, heads) each, and of edges, (entries, heads), if those have any."""

    sources: Tensor
    targets: Tensor
    edges: Tensor | None = None

    def of_entries(self, rows: Rows) -> Tensor:
        """Return the sum of the scores of each entry and head."""
        row = rows_of(rows.pos, rows.crd.numel())
        total = self.sources[rows.crd.long()] + self.targets[row]
        return total if self.edges is None else total + self.edges


class Windows(NamedTuple):
    """The windows of a convolution over rows and columns; zeros are padded before and after each."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int, int, int]  # before and after the rows, then the columns
    dilation: tuple[int, int]
    groups: int

    def out(self, extent: Sequence[int]) -> tuple[int, int]:
        """Return how many windows an image of these rows and columns has, in both directions."""
        rows, columns = (
            (size + self.padding[2 * dim] + self.padding[2 * dim + 1] - self.dilation[dim] * (kernel - 1) - 1)
            // self.stride[dim]
            + 1
            for dim, (size, kernel) in enumerate(zip(extent, self.kernel, strict=True))
        )
        return rows, columns


@dataclass(frozen=True)
class Heads:
    """The parameters that all heads of a call of attention share, and the mask of each.

    ``skipped``: keys that nobody sees, as bools of shape (batch..., keys) that broadcast. ``dropout`` is the
    share of pairs left out; which ones follows from ``seed``.
    """

    blocks: Any  # the result of ``attention_blocks``; None: pair by pair
    batch: tuple[int, ...]
    masks: Sequence[int]  # the number of the mask of each head
    scale: float
    dropout: float = 0.0
    seed: tuple[int, int] = (0, 0)
    skipped: Tensor | None = None

    @property
    def count(self) -> int:
        return len(self.masks)


class Layer(NamedTuple):
    """The product ``x @ weight.T + bias``, of arrays without gaps or gradients, and what follows it.

    Columns may be 16-bit integers without a sign, whose dtype is int16 all the same, or the 8-bit integers
    that ``Routines.pack_positions`` returns. Values may be those of ``Routines.stored_batch_dtypes``, int8
    with ``scales`` of the rows. ``activation``, one of relu, gelu, gelu_tanh and silu, is applied to the
    result, and ``residual`` added to that. The weight may have blocks of a size in ``Routines.batch_blocks``,
    whose sizes divide its own.
    """

    weight: Matrix
    bias: Tensor | None
    x: Tensor
    scales: Tensor | None = None
    activation: str | None = None
    residual: Tensor | None = None
    block: tuple[int, int] = (1, 1)


class FixedNorm(NamedTuple):
    """A batch norm in evaluation mode: statistics and parameters with a number for each channel."""

    mean: Tensor
    variance: Tensor
    weight: Tensor | None
    bias: Tensor | None
    eps: float


class Epilogue(NamedTuple):
    """What follows a convolution, in this order; what is None is left out.

    A batch norm; the sum with ``residual``, an array like the result; ``activation``, as in ``Layer``.
    """

    norm: FixedNorm | None = None
    residual: Tensor | None = None
    activation: str | None = None


NOTHING = Epilogue()
_LOW_BITS = 2**32 - 1


class Norm(NamedTuple):
    """``layer_norm`` of each ``width`` numbers of arrays without gaps; ``rms_norm`` unless ``is_centered``.

    A bias comes with a weight only.
    """

    x: Tensor
    weight: Tensor | None
    bias: Tensor | None
    eps: float
    width: int
    is_centered: bool


class Routines:
    """The routines, in torch's own operations."""

    attention_dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.float64)  # which it takes as they are

    batch_dtypes: tuple[torch.dtype, ...] = ()  # of ``multiply_batch``
    batch_blocks: tuple[tuple[int, int], ...] = ((1, 1),)
    group_dtypes: tuple[torch.dtype, ...] = ()  # of ``multiply_groups``
    run_dtypes: tuple[torch.dtype, ...] = ()  # of ``reduce_runs``
    norm_dtypes: tuple[torch.dtype, ...] = ()  # of ``bind_norm``
    stored_batch_dtypes: Mapping[torch.dtype, tuple[torch.dtype, ...]] = MappingProxyType({})  # of its values

    def free_memory(self, device: torch.device) -> int | None:
        """Return the bytes that can still be allocated on a device; None if it shares the host's memory."""
        del device
        return None

    # order in time -----------------------------------------------------------------------------------

    def check_waiting(self, device: torch.device, what: str) -> None:
        """Raise where the host must not wait for a device now; ``what`` is what it would wait for."""
        del device, what

    def check_seeds(self, device: torch.device) -> None:
        """Raise where kernels must not be given seeds that are drawn on the host now."""
        del device

    def settle(self, device: torch.device) -> None:
        """Wait until what was computed may be read by anybody, before it is cached."""
        del device

    def record(self, device: torch.device) -> Callable[[], None] | None:
        """Return a function that others than this stream of work call before they read what is cached."""
        del device
        return None

    # dense tensors -----------------------------------------------------------------------------------

    def transpose(self, tensor: Tensor, order: Sequence[int]) -> Tensor:
        """Permute the dimensions of a dense tensor to ``order``, without gaps in memory."""
        return tensor.permute(*order).contiguous()

    def are_finite(self, arrays: Sequence[Tensor]) -> bool:
        """Check that all real numbers in arrays, and their sum, are finite; a device is asked once."""
        total = arrays[0].sum()
        for array in arrays[1:]:
            total = total + array.sum()
        return math.isfinite(total)

    def ask_finite(self, arrays: Sequence[Tensor]) -> Callable[[], bool]:
        """Return what answers ``are_finite``; a device is asked at once, and works while the host goes on."""
        return functools.partial(self.are_finite, arrays)

    def ask_divisor(self, array: Tensor) -> Callable[[], bool]:
        """Return what answers whether all numbers are finite, and none is zero, as ``ask_finite`` does."""
        return lambda: bool(array.all()) and self.are_finite((array,))

    def ask_nonzero(self, array: Tensor) -> Callable[[], bool]:
        """Return what answers whether any number is not zero, as ``ask_finite`` does."""
        return lambda: bool(array.count_nonzero())

    min_summed: int | None = None  # numbers from which on ``sum_columns`` is worth a call from Python

    def sum_columns(self, matrix: Tensor) -> Tensor:
        """Return the sum of each column of a dense matrix."""
        return matrix.sum(0)

    def add_row(self, result: Tensor, row: Tensor) -> Tensor:
        """Add ``row`` to every row of a dense tensor of its dtype that nothing tracks, in place."""
        return result.add_(row)

    # stored values -----------------------------------------------------------------------------------

    repeats_calls: bool = False  # whether ``backends.repeated_calls`` may repeat those of the functions below

    def scale(self, values: Tensor, factor: float) -> Tensor:
        """Multiply values by a finite number, which does not change their dtype."""
        return values * factor

    @property
    def relu(self) -> Callable[[Tensor], Tensor]:
        return torch.relu

    @property
    def neg(self) -> Callable[[Tensor], Tensor]:
        return torch.neg

    @property
    def abs(self) -> Callable[[Tensor], Tensor]:
        return torch.abs

    # index arrays ------------------------------------------------------------------------------------

    def copy_indices(self, array: Tensor, dtype: torch.dtype) -> Tensor:
        """Copy an index array, without gaps, as ``dtype``."""
        return array.to(dtype, copy=True, memory_format=torch.contiguous_format)

    def has_sorted_rows(self, pos: Tensor, crd: Tensor, size: int) -> bool:
        """Check that pointers rise from 0 to the number of entries, and that the coordinates below each are
        sorted, differ and lie in ``size``; a device is asked once.
        """
        entries = crd.numel()
        is_right = (pos[0] == 0) & (pos[-1] == entries) & (pos[1:] >= pos[:-1]).all()
        if entries:
            rises = torch.ones(entries + 1, dtype=torch.bool, device=crd.device)
            torch.gt(crd[1:], crd[:-1], out=rises[1:-1])
            rises.index_fill_(0, pos.long().clamp(0, entries), True)  # the first follows nothing
            last = min(size - 1, torch.iinfo(crd.dtype).max)  # a larger number would wrap around
            is_right = is_right & rises.all() & (crd >= 0).all() & (crd <= last).all()
        return bool(is_right)

    def own_rows(
        self, pos: Tensor, crd: Tensor, size: int, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor] | None:
        """Copy, as ``dtype``, arrays that ``has_sorted_rows``; None where they have not.

        Coordinates may be of ``torch.uint16``, which few PyTorch functions take.
        """
        crd = crd.to(dtype) if crd.dtype == torch.uint16 else crd
        if not self.has_sorted_rows(pos, crd, size):
            return None
        return self.copy_indices(pos, dtype), self.copy_indices(crd, dtype)

    def hash_indices(self, array: Tensor) -> int:
        """Return a number that differs, almost certainly, for other indices or another order of them.

        It is the same for both dtypes: the sum of all indices modulo 2**32, each times a factor of its place.
        """
        factors = torch.arange(array.numel(), device=array.device).mul_(0x9E3779B1).bitwise_and_(_LOW_BITS)
        factors.bitwise_xor_(factors >> 15).bitwise_or_(1)
        numbers = array.long()
        return int(factors.mul_(numbers ^ numbers >> 32).sum()) & _LOW_BITS

    def row_pointers(self, rows: Tensor, count: int) -> Tensor:
        """Compute where each of ``count`` rows begins among entries of the sorted ``rows``, and the end."""
        return row_pointers_of(rows, count, out_int32=rows.dtype == torch.int32)

    def row_numbers(self, pos: Tensor, crd: Tensor) -> tuple[Tensor, Tensor]:
        """Compute where the list of all entries begins and ends, and the row of each entry ``crd``."""
        ends = torch.tensor([0, crd.numel()], dtype=pos.dtype, device=pos.device)
        return ends, rows_of(pos, crd.numel()).to(pos.dtype)

    def coalesce(
        self,
        columns: Sequence[Tensor],
        sizes: Sequence[int],
        values: Tensor,
        index: torch.dtype,
        meanwhile: Callable[[], object] = do_nothing,
    ) -> tuple[Sequence[Tensor], Tensor, Tensor | None] | None:
        """Sort entries with any coordinates and add up those that repeat, all at once.

        Return new arrays of coordinates of dtype ``index``, the values, and where the list begins and ends.
        None where coordinates have to be checked, then sorted by ``sort_entries`` and added up by
        ``sum_entries``, one after the other. ``meanwhile`` is called before the host waits, if it does.
        """
        del columns, sizes, values, index, meanwhile
        return None

    def sort_entries(self, columns: Sequence[Tensor], sizes: Sequence[int]) -> Sorted | bool:
        """Sort entries by their coordinates, and find those that repeat.

        True where they are sorted and none repeats. False where some repeat and a kernel adds them up.
        """
        if columns[0].numel() < 2:
            return True
        is_numbered = math.prod(sizes) <= MAX_KEYS
        found = sorted_by_keys(columns, sizes) if is_numbered else sorted_by_columns(columns)
        if found is None:
            return True
        order, first = found
        if first.numel() == order.numel():
            return Sorted(order, [column[order] for column in columns])
        return Sorted(order, [column[order[first]] for column in columns], first)

    def sum_entries(self, found: Sorted, values: Tensor) -> Tensor:
        """Compute the value of each place, the sum of those of its entries."""
        ordered = values[found.order]
        return ordered if found.first is None else sum_runs(ordered, found.first)

    def list_levels(
        self, sizes: Sequence[int], runs: Sequence[int], crds: Sequence[Tensor], index: torch.dtype
    ) -> tuple[list[Tensor], list[Tensor]] | None:
        """Build the levels of entries that are sorted and distinct, with ``crds`` in each level.

        Full levels have ``sizes``; below them are ``runs``, by their lengths, that list coordinates. Return
        ``pos`` of each run and ``crd`` of each level in them, of dtype ``index``; None without a kernel.
        """
        del sizes, runs, crds, index
        return None

    def transpose_rows(self, pos: Tensor, crd: Tensor, columns: int) -> tuple[Tensor, Tensor, Tensor]:
        """Transpose compressed rows; return where columns begin, their rows, and the entry of each."""
        lines = torch.arange(pos.numel() - 1, dtype=crd.dtype, device=crd.device)
        line = lines.repeat_interleave(pos.diff(), output_size=crd.numel())
        across, order = stable_sort(crd)
        return self.row_pointers(across, columns).to(pos.dtype), line[order], order

    def transpose_places(
        self, pos: Tensor, crd: Tensor, columns: int
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return what ``transpose_rows`` does; None where a kernel that moves values is faster."""
        del pos, crd, columns
        return None

    def transpose_matrix(self, matrix: Matrix, columns: int) -> Matrix | None:
        """Transpose compressed rows of ``columns`` columns; None where a kernel does it as well."""
        del matrix, columns
        return None

    def take(self, values: Tensor, places: Tensor) -> Tensor:
        """Return the values at ``places``, along the first dimension."""
        return values.index_select(0, places)

    def reduce_runs(
        self, values: Tensor, begins: Tensor, how: str, order: Tensor | None = None
    ) -> Tensor | None:
        """Reduce the values, perhaps in another order, from each of ``begins`` to the next.

        ``how``: ``sum``, ``prod``, ``amax`` or ``amin``; or ``argmax`` or ``argmin``, the number of the first
        extreme among the values. It is 0 where there are none. ``cumsum`` and ``cumprod`` have
        a result for each value; ``ascending`` and ``descending`` are the numbers of the values, each run
        sorted. None where PyTorch's operators do it as well, as for dtypes
        that are not ``run_dtypes``.
        """
        del values, begins, how, order
        return None

    def pick_rows(
        self, pos: Tensor, crd: Tensor, values: Tensor, picked: Tensor, from_end: bool = True
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """Select ``pos``, ``crd`` and ``values`` of the rows ``picked``; None where one is out of range.

        Numbers below 0 count ``from_end``, or are out of range.
        """
        rows = pos.numel() - 1
        if bool(((picked < (-rows if from_end else 0)) | (picked >= rows)).any()):
            return None
        picked = torch.where(picked < 0, picked + rows, picked)
        begin, counts = pos[picked].long(), pos.diff()[picked].long()
        new = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        entries = int(new[-1])
        index = torch.int64 if entries > LAST_INT32 else pos.dtype  # rows may be picked repeatedly
        row = rows_of(new, entries)
        source = begin[row] + torch.arange(row.numel(), device=row.device) - new[row]
        return new.to(index), crd[source].to(index), values[source]

    def concat(self, arrays: Sequence[Tensor], offsets: Sequence[int] | None = None) -> Tensor:
        """Concatenate ``arrays`` of one dtype, adding its offset to all elements of each."""
        if offsets is None:
            return torch.cat(list(arrays))
        return torch.cat([a + offset if offset else a for a, offset in zip(arrays, offsets, strict=True)])

    def concat_rows(self, matrices: Sequence[Matrix], rows: Sequence[int], entries: int) -> Matrix | None:
        """Concatenate the ``rows`` of matrices; None where the caller must use a fallback."""
        del rows, entries
        starts = [0]
        for _, crd, _ in matrices:
            starts.append(starts[-1] + crd.numel())
        pos = [pos[1:] + start for (pos, _, _), start in zip(matrices, starts, strict=False)]
        first = pos[0].new_zeros(1)
        return torch.cat([first, *pos]), *(torch.cat([m[part] for m in matrices]) for part in (1, 2))

    def concat_columns(
        self, matrices: Sequence[Matrix], widths: Sequence[int], rows: int, entries: int
    ) -> Matrix | None:
        """Concatenate matrices of as many rows and ``widths`` columns along columns; None as above."""
        numbers = torch.cat([rows_of(pos, crd.numel()) for pos, crd, _ in matrices])
        order = stable_sort(numbers)[1]
        starts = [0]
        for width in widths:
            starts.append(starts[-1] + width)
        pos = matrices[0][0]
        crd = self.concat([crd for _, crd, _ in matrices], starts[:-1])
        pointers = self.row_pointers(numbers[order].to(pos.dtype), rows)
        return pointers, crd[order], torch.cat([values for _, _, values in matrices])[order]

    def parse_table(
        self, data: bytes, begin: int, sizes: tuple[int, ...], parts: int, whole: bool
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]] | None:
        """Parse the coordinates and values in lines of text from ``begin`` on; None: NumPy must read them."""
        return None

    # graphs ------------------------------------------------------------------------------------------

    def neighbour_max(
        self, rows: tuple[Tensor, Tensor, Tensor | None], x: Tensor, with_ties: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Compute the maximum of the rows of ``x`` that each row picks, and perhaps how many reach it."""
        pos, crd, counts = rows
        count, row, picked = pos.numel() - 1, rows_of(pos, crd.numel()), x[crd.long()]
        out = _maxima(row, picked, count)
        is_empty = (pos.diff() == 0).unsqueeze(1)
        ties = None
        if with_ties:
            reached = (picked == out[row]).to(x.dtype)
            ties = sum_rows(row, reached if counts is None else reached * counts.unsqueeze(1), count)
            ties = ties.masked_fill_(is_empty, 1)
        return out.masked_fill_(is_empty, 0), ties

    def neighbour_max_backward(
        self, rows: tuple[Tensor, Tensor, Tensor | None], x: Tensor, out: Tensor, shared: Tensor
    ) -> Tensor:
        """Compute the gradient of ``x``; ``rows`` are transposed, ``shared`` is a share for each tie."""
        pos, crd, counts = rows
        row, column = rows_of(pos, crd.numel()), crd.long()
        flow = torch.where(x[row] == out[column], shared[column], x.new_zeros(()))
        return sum_rows(row, flow if counts is None else flow * counts.unsqueeze(1), x.shape[0])

    def graph_attention(
        self, rows: Rows, x: Tensor, scores: Scores, options: Options, keep: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return ``out`` (targets, heads, features), and with ``keep`` the probabilities (entries, heads).

        ``x`` is (sources, heads, features); the probability of a dropped entry is negative.
        """
        count, row, total = rows.pos.numel() - 1, rows_of(rows.pos, rows.crd.numel()), scores.of_entries(rows)
        score = torch.where(total > 0, total, total * options.slope)
        weight = torch.exp(score - _maxima(row, score, count)[row])
        if rows.counts is not None:
            weight = weight * rows.counts.unsqueeze(1)
        P = weight / sum_rows(row, weight, count)[row]
        if options.drop_below:
            P = torch.where(_random_bits(options.seed, P).view_as(P) < options.drop_below, -P, P)
        return sum_rows(row, _positive(P).unsqueeze(2) * x[rows.crd.long()], count) * options.scale, P

    def graph_attention_scores_backward(
        self, rows: Rows, x: Tensor, scores: Scores, options: Options, probabilities: Tensor, grad: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Compute the gradient of each score, (entries, heads), and its sum for each target."""
        count, row = rows.pos.numel() - 1, rows_of(rows.pos, rows.crd.numel())
        dots = (grad[row] * x[rows.crd.long()]).sum(2)
        flow = torch.where(probabilities.signbit(), x.new_zeros(()), dots * options.scale)
        change = flow - sum_rows(row, probabilities * flow, count)[row]
        slope = torch.where(scores.of_entries(rows) > 0, change, options.slope * change)
        each = slope * probabilities.abs()
        return each, sum_rows(row, each, count)

    def graph_attention_features_backward(
        self, columns: Rows, options: Options, probabilities: Tensor, each: Tensor, grad: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Compute the gradient of ``x``, and the sum of those of scores for each source."""
        assert columns.places is not None
        count, row = columns.pos.numel() - 1, rows_of(columns.pos, columns.crd.numel())
        place = columns.places.long()
        flow = _positive(probabilities)[place].unsqueeze(2) * grad[columns.crd.long()]
        return sum_rows(row, flow, count) * options.scale, sum_rows(row, each[place], count)

    # layers ------------------------------------------------------------------------------------------

    def multiply_batch(self, layer: Layer) -> Tensor | None:
        """Compute what a layer does to a batch; None: a kernel must."""
        del layer
        return None

    def bind_batch(self, layer: Layer) -> BatchProduct | None:
        """Return ``multiply_batch`` for tensors of the same dtypes and shapes; None: it cannot be.

        The function reads the memory that its arguments have when it is called.
        """
        del layer
        return None

    def reads_positions(self, dtype: torch.dtype, batch: int, density: float) -> bool:
        """Whether ``multiply_batch`` reads what ``pack_positions`` returns faster than columns."""
        del dtype, batch, density
        return False

    def pack_positions(self, pos: Tensor, crd: Tensor, columns: int) -> Tensor | None:
        """Return integers that ``multiply_batch`` takes in place of columns; None without N:M sparsity."""
        del pos, crd, columns
        return None

    def multiply_groups(
        self,
        weight: Matrix,
        table: Tensor,
        bias: Tensor | None,
        x: Tensor,
        scales: Tensor | None = None,
        activation: str | None = None,
        residual: Tensor | None = None,
    ) -> Tensor | None:
        """Compute ``multiply_batch`` of one row by a weight that stores four of every eight columns.

        In place of columns it has a code for each eight, which counts rows of ``table``; these have 16 bytes:
        for each byte of four values of 32 bits, its number among the bytes of the eight that they meet.
        """
        del weight, table, bias, x, scales, activation, residual
        return None

    def bind_norm(self, norm: Norm) -> NormFunction | None:
        """Return a function that normalizes tensors of these dtypes and shapes; None where torch is as fast.

        The function returns None for a tensor of another dtype or shape, or with gaps.
        """
        del norm
        return None

    # convolutions ------------------------------------------------------------------------------------

    def plan_convolution(
        self, pos: Tensor, crd: Tensor, windows: Windows, image: tuple[int, int, int]
    ) -> Any:
        """Plan ``convolve`` for images of so many channels, rows and columns; None: it needs no plan."""
        del pos, crd, windows, image

    def convolve(
        self,
        weight: Matrix,
        bias: Tensor | None,
        input: Tensor,
        windows: Windows,
        plan: Any,
        follows: Epilogue = NOTHING,
    ) -> Tensor | None:
        """Convolve images by kernels that are compressed rows of channels, rows and columns.

        None where what follows must be computed by itself.
        """
        del plan
        if follows != NOTHING:
            return None
        pos, crd, values = weight
        rows, channels = pos.numel() - 1, input.shape[1] // windows.groups
        dense = values.new_zeros(rows, channels * math.prod(windows.kernel))
        dense[rows_of(pos, crd.numel()), crd.long()] = values
        top, bottom, left, right = windows.padding
        padded = torch.nn.functional.pad(input, (left, right, top, bottom))
        kernels = dense.view(rows, channels, *windows.kernel)
        stride, dilation = windows.stride, windows.dilation
        return torch.nn.functional.conv2d(padded, kernels, bias, stride, 0, dilation, windows.groups)

    # attention ---------------------------------------------------------------------------------------

    def attention_blocks(self, pos: Tensor, crd: Tensor, matrices: int, queries: int, keys: int) -> Any:
        """Split masks in blocks for ``attention``; None: pair by pair (``ops.attention.reference``)."""
        return None

    def attention(
        self, query: Tensor, key: Tensor, value: Tensor, heads: Heads
    ) -> tuple[Tensor, Tensor] | None:
        """Return the result, and what the backward pass needs of each query; None: it runs pair by pair."""
        return None

    def attention_backward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        heads: Heads,
        out: Tensor,
        state: Tensor,
        gradient: Tensor,
        /,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the gradients of queries, keys and values, for each head."""
        raise NotImplementedError("attention needs at least one block")


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


def _maxima(row: Tensor, values: Tensor, count: int) -> Tensor:
    """Compute the maximum of the values of each row; minus infinity for a row without entries."""
    out = values.new_full((count, *values.shape[1:]), float("-inf"))
    places = row.view(-1, *(1,) * (values.dim() - 1)).expand_as(values)
    return out.scatter_reduce_(0, places, values, "amax")


def _positive(probabilities: Tensor) -> Tensor:
    return torch.where(probabilities < 0, probabilities.new_zeros(()), probabilities)


def _random_bits(seed: int, like: Tensor) -> Tensor:
    """Draw 32 random bits for each entry by splitmix64, as the routine in C does."""
    z = _signed(seed) + (torch.arange(like.numel(), device=like.device) + 1) * _signed(0x9E3779B97F4A7C15)
    z = (z ^ _right(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _right(z, 27)) * _signed(0x94D049BB133111EB)
    return _right(z ^ _right(z, 31), 32)


def _right(bits: Tensor, by: int) -> Tensor:
    """Shift right as if there were no sign."""
    return (bits >> by) & ((1 << (64 - by)) - 1)


def _signed(bits: int) -> int:
    bits &= 2**64 - 1
    return bits - 2**64 if bits >= 2**63 else bits

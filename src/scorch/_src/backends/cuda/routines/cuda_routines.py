"""Routines over the neighbors in graphs, in CUDA C: ``c/graph_attention.cu`` and ``c/neighbour_max.cu``.

Long rows are cut into parts (``rows.parts_of``) that further launches put together in a fixed order, so that
results repeat bit for bit. What has no kernel is computed with PyTorch operators.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import overload

import torch

from scorch._src.backends.by_torch.graphs import Options, Rows, Scores
from scorch._src.backends.by_torch.rows import Tensor
from scorch._src.backends.cuda.device.cost import tells
from scorch._src.backends.cuda.device.driver import ALIGNMENT, in_context
from scorch._src.backends.cuda.device.kernel import CudaKernel, refuse
from scorch._src.backends.cuda.routines.attention import CudaAttention
from scorch._src.backends.cuda.routines.neighbours import (
    INDICES,
    TYPES,
    WARP,
    dtype_of_sums,
    power_of_two,
    print_attention,
    print_neighbour_max,
    run_of,
)
from scorch._src.backends.cuda.routines.rows import Parts, parts_of
from scorch._src.backends.launcher import address_of
from scorch._src.bounded import BoundedCache
from scorch._src.dataclass import dataclass

MAX_HEADS = WARP
# Functions that calls launch, and those that they launch besides where rows are cut.
ATTEND, SCORES, FEATURES = "scorch_attend", "scorch_scores", "scorch_features"
ATTEND_PARTS = "scorch_states", "scorch_join_states", "scorch_join"
SCORES_PARTS = "scorch_means", "scorch_join_means", "scorch_join"
LARGEST, SHARE = "scorch_largest", "scorch_share"
MAX_KERNELS = 256  # of each kind

Key = tuple[torch.dtype, torch.dtype, int, int]  # of values, of indices, and how rows are spread
Arrays = tuple[Tensor, Tensor, Tensor | None]  # pos, crd, how often each entry counts


@dataclass(frozen=True)
class _Units:
    """What warps have: rows, or parts of rows that are cut."""

    pos: Tensor
    parts: Parts | None

    @property
    def count(self) -> int:
        return self.pos.numel() - 1 if self.parts is None else self.parts.count

    @property
    def cut(self) -> int:
        return 0 if self.parts is None else self.parts.cut

    @property
    def long(self) -> int:
        return 0 if self.parts is None else self.parts.long

    @property
    def slots(self) -> list[int]:
        if self.parts is None:
            return [0] * 5 + [self.count, 0, 0]
        known = self.parts
        arrays = (known.row, known.start, known.stop, known.long_row, known.long_first)
        return [*_slots(arrays), known.count, known.cut, known.long]


class CudaRoutines(CudaAttention):
    """The routines, those over the neighbors in graphs by kernels of their own."""

    def __init__(self) -> None:
        super().__init__()
        self._attention: BoundedCache[Key, CudaKernel] = BoundedCache(MAX_KERNELS)
        self._maxima: BoundedCache[Key, CudaKernel] = BoundedCache(MAX_KERNELS)

    def free_memory(self, device: torch.device) -> int | None:
        """Return the bytes that nobody holds, and those that torch's allocator keeps for later."""
        if device.type != "cuda":
            return None
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + kept

    # attention -----------------------------------------------------------------------------------------

    @tells("attention of neighbors")
    def graph_attention(
        self, rows: Rows, x: Tensor, scores: Scores, options: Options, keep: bool
    ) -> tuple[Tensor, Tensor | None]:
        given = [x, scores.sources, scores.targets, scores.edges, rows.counts]
        with in_context(x.device):
            kernel = self._attention_kernel(rows, given, (ATTEND, SCORES, FEATURES) if keep else (ATTEND,))
            if kernel is None:
                return super().graph_attention(rows, x, scores, options, keep)
            (_, heads, width), count = x.shape, rows.pos.numel() - 1
            x, sources, targets = _plain(x), _plain(scores.sources), _plain(scores.targets)
            edges, counts = _plain(scores.edges), _plain(rows.counts)
            out = x.new_empty(count, heads, width)
            kept = _sums(x, rows.crd.numel(), heads) if keep else None
            units = _units_of(rows.pos)
            states, part_out = _sums(x, units.cut, 2 * heads), _sums(x, units.cut, heads * width)
            arrays = [counts, x, sources, targets, edges, None, kept, None, out, None, part_out, None, states]
            slots = _attention_slots(rows, units, arrays, options)
            if units.cut:
                kernel.prepare(ATTEND_PARTS, x.device.index)
                _launch(kernel, "scorch_states", slots, units.cut * WARP, x)
                _launch(kernel, "scorch_join_states", slots, units.long * WARP, x)
            _launch(kernel, ATTEND, slots, units.count * WARP, x)
            if units.cut:
                _launch(kernel, "scorch_join", slots, units.long * heads * (width + 1), x)
        return out, kept

    @tells("gradients of neighbors' scores")
    def graph_attention_scores_backward(
        self, rows: Rows, x: Tensor, scores: Scores, options: Options, probabilities: Tensor, grad: Tensor
    ) -> tuple[Tensor, Tensor]:
        given = [x, scores.sources, scores.targets, scores.edges, grad]
        with in_context(x.device):
            kernel = self._attention_kernel(rows, given, (SCORES, FEATURES), [probabilities])
            if kernel is None:
                return super().graph_attention_scores_backward(rows, x, scores, options, probabilities, grad)
            (_, heads, width), count = x.shape, rows.pos.numel() - 1
            x, sources, targets = _plain(x), _plain(scores.sources), _plain(scores.targets)
            edges, grad, kept = _plain(scores.edges), _plain(grad), _plain(probabilities)
            each, totals = _sums(x, rows.crd.numel(), heads), x.new_empty(count, heads)
            units = _units_of(rows.pos)
            states, part_totals = (_sums(x, units.cut, heads) for _ in range(2))
            results = [None, totals, None, part_totals, states]
            arrays = [None, x, sources, targets, edges, grad, kept, each, *results]
            slots = _attention_slots(rows, units, arrays, options)
            if units.cut:
                kernel.prepare(SCORES_PARTS, x.device.index)
                _launch(kernel, "scorch_means", slots, units.cut * WARP, x)
                _launch(kernel, "scorch_join_means", slots, units.long * WARP, x)
            _launch(kernel, SCORES, slots, units.count * WARP, x)
            if units.cut:
                _launch(kernel, "scorch_join", slots, units.long * heads * (width + 1), x)
        return each, totals

    @tells("gradients of neighbors' features")
    def graph_attention_features_backward(
        self, columns: Rows, options: Options, probabilities: Tensor, each: Tensor, grad: Tensor
    ) -> tuple[Tensor, Tensor]:
        with in_context(grad.device):
            kernel = self._attention_kernel(columns, [grad], (FEATURES,), [probabilities, each])
            if kernel is None:
                return super().graph_attention_features_backward(columns, options, probabilities, each, grad)
            (_, heads, width), count = grad.shape, columns.pos.numel() - 1
            grad, kept, each = _plain(grad), _plain(probabilities), _plain(each)
            out, totals = grad.new_empty(count, heads, width), grad.new_empty(count, heads)
            units = _units_of(columns.pos)
            part_out, part_totals = (_sums(grad, units.cut, size) for size in (heads * width, heads))
            results = [out, totals, part_out, part_totals, None]
            arrays = [None, None, None, None, None, grad, kept, each, *results]
            slots = _attention_slots(columns, units, arrays, options)
            _launch(kernel, FEATURES, slots, units.count * WARP, grad)
            if units.cut:
                _launch(kernel, "scorch_join", slots, units.long * heads * (width + 1), grad)
        return out, totals

    def _attention_kernel(
        self,
        rows: Rows,
        given: Sequence[Tensor | None],
        first: Sequence[str],
        computed: Sequence[Tensor] = (),
    ) -> CudaKernel | None:
        """Return the kernel for arrays, the first of which has features; None if there is none.

        ``first``: functions that this call and the next ones launch; ``computed``: arrays that another
        routine has computed.
        """
        features = given[0]
        assert features is not None
        _, heads, width = features.shape
        if not _is_able((rows.pos, rows.crd, rows.places), given):
            return None
        if any(array.dtype != dtype_of_sums(features.dtype) for array in computed):
            refuse("what was computed before has another dtype")
            return None
        if heads > MAX_HEADS:
            refuse(f"there are more than {MAX_HEADS} heads")
            return None
        key = features.dtype, rows.crd.dtype, heads, width
        kernel = self._attention.get(key)
        if kernel is None:
            kernel = self.make_kernel(print_attention(*key), "attention over the neighbors in a graph", first)
            self._attention[key] = kernel
        return kernel if kernel.is_ready() else None

    # maxima --------------------------------------------------------------------------------------------

    @tells("largest of the neighbors")
    def neighbour_max(self, rows: Arrays, x: Tensor, with_ties: bool) -> tuple[Tensor, Tensor | None]:
        pos, crd, counts = rows
        with in_context(x.device):
            kernel = self._maxima_kernel(rows, [x, counts], (LARGEST, SHARE) if with_ties else (LARGEST,))
            if kernel is None:
                return super().neighbour_max(rows, x, with_ties)
            x, counts = _plain(x), _plain(counts)
            shape = pos.numel() - 1, x.shape[1]
            out, ties = x.new_empty(shape), x.new_empty(shape) if with_ties else None
            units = _units_of(pos)
            part_out, part_ties = (_sums(x, units.cut, x.shape[1]) for _ in range(2))
            arrays = [counts, x, None, None, out, ties, part_out, part_ties]
            slots = [*_slots((pos, crd)), *units.slots, x.shape[1], *_slots(arrays)]
            _launch(kernel, LARGEST, slots, units.count * _threads_of_row(x), x)
            if units.cut:
                _launch(kernel, "scorch_join_largest", slots, units.long * x.shape[1], x)
        return out, ties

    @tells("gradient of the largest of the neighbors")
    def neighbour_max_backward(self, rows: Arrays, x: Tensor, out: Tensor, shared: Tensor) -> Tensor:
        pos, crd, counts = rows
        given = [x, counts, out, shared]
        with in_context(x.device):
            kernel = self._maxima_kernel(rows, given, (SHARE,))
            if kernel is None:
                return super().neighbour_max_backward(rows, x, out, shared)
            x, counts, out, shared = _plain(x), _plain(counts), _plain(out), _plain(shared)
            result, units = torch.empty_like(x), _units_of(pos)
            part_out = _sums(x, units.cut, x.shape[1])
            arrays = [counts, x, out, shared, result, None, part_out, None]
            slots = [*_slots((pos, crd)), *units.slots, x.shape[1], *_slots(arrays)]
            _launch(kernel, SHARE, slots, units.count * _threads_of_row(x), x)
            if units.cut:
                _launch(kernel, "scorch_join_shares", slots, units.long * x.shape[1], x)
        return result

    def _maxima_kernel(
        self, rows: Arrays, given: Sequence[Tensor | None], first: Sequence[str]
    ) -> CudaKernel | None:
        x = given[0]
        assert x is not None
        if not _is_able(rows[:2], given):
            return None
        key = x.dtype, rows[1].dtype, *_spread(x)
        kernel = self._maxima.get(key)
        if kernel is None:
            kernel = self.make_kernel(
                print_neighbour_max(*key), "the largest of the neighbors in a graph", first
            )
            self._maxima[key] = kernel
        return kernel if kernel.is_ready() else None


def _is_able(indices: Sequence[Tensor | None], given: Sequence[Tensor | None]) -> bool:
    """Check whether kernels can compute with arrays, the first of which has features."""
    known, (x, *others) = [index for index in indices if index is not None], given
    assert x is not None
    why = _why_not(known, x, [array for array in others if array is not None])
    if why:
        refuse(why)
    return not why


def _why_not(indices: Sequence[Tensor], x: Tensor, others: Sequence[Tensor]) -> str:
    if x.dtype not in TYPES:
        return f"{str(x.dtype).removeprefix('torch.')} has no kernel"
    if not x.numel() or indices[0].numel() < 2 or not indices[1].numel():
        return "there is nothing to compute"
    if indices[0].dtype not in INDICES or not all(index.is_contiguous() for index in indices):
        return "indices are neither int32 nor int64, or have gaps"
    for arrays, dtype in ((indices, indices[0].dtype), (others, x.dtype)):
        for array in arrays:
            if array.dtype != dtype or array.device != x.device:
                return "arrays differ in dtype or device"
    return ""


def _spread(x: Tensor) -> tuple[int, int]:
    """Return how many columns a lane reads at once, and how many lanes of a warp are spread over columns."""
    run = run_of(x.shape[1], x.dtype)
    return run, min(WARP, power_of_two(x.shape[1] // run))


def _threads_of_row(x: Tensor) -> int:
    run, lanes = _spread(x)
    return -(-x.shape[1] // (run * lanes)) * WARP


def _units_of(pos: Tensor) -> _Units:
    return _Units(pos, parts_of(pos, WARP))


def _attention_slots(
    rows: Rows, units: _Units, arrays: Sequence[Tensor | None], options: Options
) -> list[int]:
    places = (rows.pos, rows.crd, rows.places)
    slope, scale = struct.unpack("qq", struct.pack("dd", options.slope, options.scale))  # their bits
    return [*_slots(places), *units.slots, *_slots(arrays), slope, scale, options.drop_below, options.seed]


def _launch(kernel: CudaKernel, name: str, slots: Sequence[int], threads: int, like: Tensor) -> None:
    kernel.launch(name, slots, threads, like.device.index)


def _slots(arrays: Sequence[Tensor | None]) -> list[int]:
    """Return the addresses of arrays, and 0 for those that there are not."""
    return [0 if array is None else array.data_ptr() or address_of(array) for array in arrays]


@overload
def _plain(array: Tensor) -> Tensor: ...
@overload
def _plain(array: None) -> None: ...
def _plain(array: Tensor | None) -> Tensor | None:
    """Return an array without gaps that begins where runs of its elements can be read."""
    if array is None:
        return None
    array = array.contiguous()
    return array if array.data_ptr() % ALIGNMENT == 0 else array.clone()


def _sums(like: Tensor, *shape: int) -> Tensor:
    """Allocate what is computed of elements."""
    return like.new_empty(shape, dtype=dtype_of_sums(like.dtype))

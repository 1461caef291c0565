"""``S[i]``: a view of one row, whose arrays are cut out of those of ``S`` when they are first read.

A loop over rows takes many views, of which it may read few; and what a view needs at once, its shape and its
link to ``S``, is known without the arrays. ``S[numbers]`` copies whole rows. Only a number or a list of them,
as the index of a tensor that is stored row by row, comes here, where nothing tracks the call; torch's own way
takes all others, and raises all errors.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling

from scorch._src.formats import Format
from scorch._src.grad_state import is_grad_enabled, untracked
from scorch._src.ops.movement.shape import select_stored
from scorch._src.storage.slices import select_rows
from scorch._src.storage.storage import Step, Storage
from scorch._src.tensor.dynamo import skip_tracing
from scorch._src.tensor.flatten import LIVE
from scorch._src.tensor.sparse_tensor import SparseTensor, tensor_with
from scorch._src.tensor.views.link import join_view, ordinary_view
from scorch._src.torch_internals import (
    any_requires_grad,
    disable_current_modes,
    is_jit_tracing,
    is_torch_function_enabled,
    len_torch_dispatch_stack,
    len_torch_function_stack,
    peek_interpreter_stack,
)

_getitem = torch.Tensor.__getitem__
_select = torch.ops.aten.select.int
_no_names: dict[str, Any] = {}


class _Row:
    """The row of a storage at ``index``, in the format ``form``."""

    __slots__ = ("form", "index", "source")

    def __init__(self, source: Storage, index: int, form: Format) -> None:
        self.source, self.index, self.form = source, index, form

    def __call__(self, view: Storage) -> Storage:
        """Cut the arrays of the row, as they are now, out of those of its source."""
        if len_torch_dispatch_stack():
            with disable_current_modes():
                return self._cut(view)
        return self._cut(view)

    def _cut(self, view: Storage) -> Storage:
        source, origin = self.source, view.origin
        with untracked():
            if source.pattern.format.row != self.form and origin is not None:  # it was written to meanwhile
                return Storage.recompute_view(*origin, self.form)
            return select_stored(source, self.index)


@skip_tracing
def getitem(self: SparseTensor, key: Any) -> Any:
    """Return the view ``S[i]``, the rows ``S[numbers]``, or what torch returns for any other index."""
    kind = type(key)
    if (kind is not int and kind is not torch.Tensor) or type(self) is not SparseTensor:
        return _getitem(self, key)
    if is_dynamo_compiling() or len_torch_function_stack() or len_torch_dispatch_stack() or is_jit_tracing():
        return _getitem(self, key)
    is_tracked = peek_interpreter_stack() is not None or forward_ad._current_level >= 0 or LIVE
    if is_tracked or not is_torch_function_enabled() or (is_grad_enabled() and any_requires_grad(self)):
        return _getitem(self, key)
    source = self.storage
    if kind is not int:
        rows = _rows(source, key)
        return _getitem(self, key) if rows is None else SparseTensor(rows)
    form, shape = source.pattern.format.row, source.pattern.shape
    if form is None or not -shape[0] <= key < shape[0]:
        return _getitem(self, key)
    return _row(self, key, form)


@ordinary_view
def _row(self: SparseTensor, key: int, form: Format) -> SparseTensor:
    source, shape = self.storage, self.storage.pattern.shape
    row: Storage = object.__new__(Storage)
    row.pending = _Row(source, key if key >= 0 else key + shape[0], form)
    view = tensor_with(row, shape[1:], source.values)
    step = tuple.__new__(Step, (_select, (0, key), _no_names, None, is_grad_enabled()))  # as in ``join_view``
    join_view(view, self, (step,))
    return view


def _rows(source: Storage, numbers: torch.Tensor) -> Storage | None:
    """Return the rows with these numbers, in their order; None where the general way must be taken."""
    if (
        numbers.dim() != 1
        or numbers.dtype is not torch.int64
        or not source.pattern.format.is_compressed_matrix
    ):
        return None
    is_here = numbers.device == source.values.device and source.pattern.format.order[0] == 0
    return select_rows(source, numbers) if is_here and source.origin is None else None


setattr(SparseTensor, "__getitem__", getitem)  # noqa: B010 - torch declares another type

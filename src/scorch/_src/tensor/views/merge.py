"""Writing to a view writes to the tensor it is a view of, as with dense tensors.

    S[1, 2] = 5        S[0].zero_()        S.T.mul_(2)        S.diagonal().fill_(1)

A view of a sparse tensor has entries of its own, but records its steps. Everything here is arithmetic
on *positions*: the entries of a tensor are numbered from 1, and a view of the numbers says which entry each
entry of the view is. Values are then selected by position, so they stay connected to autograd and
``torch.func``.

When a tensor changes, its views drop their entries, and recompute them when they are read
(``storage.storage``).
"""

from __future__ import annotations

import torch

from scorch._src.backends.sort_entries import stable_sort
from scorch._src.formats import Format
from scorch._src.grad_state import untracked
from scorch._src.storage.storage import Pattern, Step, Storage, run_steps
from scorch._src.tensor.entries import Entries, entries_of, from_entries, number_entries, stored_as
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import DisableTorchFunctionSubclass
from scorch.errors import InPlaceError


def positions_through(steps: tuple[Step, ...], source: Pattern, form: Format) -> tuple[Pattern, torch.Tensor]:
    """Return the pattern of a view of ``source``, and each entry's position in ``source``, 0 for padding."""
    with torch.no_grad(), untracked():  # positions are no function of values
        view = run_steps(steps, number_entries(source, 1))
        stored = stored_as(view.storage if isinstance(view, SparseTensor) else view, form)
        return stored.pattern, stored.values


def select_values(values: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Select the values at ``positions``, connected to ``values``; 0 at position 0."""
    size = values.numel()
    if positions.numel() == size and bool(
        (positions == torch.arange(1, size + 1, device=positions.device)).all()
    ):
        return values
    return torch.cat([values.new_zeros(1), values])[positions]


def merge_view(storage: Storage, steps: tuple[Step, ...], view: Pattern) -> tuple[Pattern, torch.Tensor]:
    """Merge the pattern ``view`` of a view into its storage: return the pattern, and positions in both.

    Those of the view are counted after those of the storage.
    """
    source = storage.pattern
    with torch.no_grad(), untracked():  # positions are no function of values
        covered = run_steps(steps, number_entries(source, 1))
        is_left = torch.ones(source.size + 1, dtype=torch.bool, device=source.device)
        is_left[covered.storage.values if isinstance(covered, SparseTensor) else covered] = False
        before = entries_of(number_entries(source, 1))
        left = is_left[before.values]
        after = entries_of(number_entries(view, source.size + 1))
        meta = storage.meta_tensor()
        keys = torch.cat([before.keys[left], _keys_in_source(after, run_steps(steps, meta), meta)])
        positions = torch.cat([before.values[left], after.values])
        merged = from_entries(Entries(keys, positions, source.shape), source.format, in_order=False)
        return merged.storage.pattern, merged.storage.values


def _keys_in_source(entries: Entries, view: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Convert ``entries`` of a view to keys in its source, by the strides of both as meta tensors."""
    offsets = torch.full_like(entries.keys, int(view.storage_offset() - source.storage_offset()))
    for column, stride in zip(entries.coordinates, view.stride(), strict=True):
        offsets += column * stride
    if source.is_contiguous():
        return offsets
    keys = torch.zeros_like(offsets)
    rows = torch.empty(source.shape, device="meta").stride()
    for stride, row, size in sorted(zip(source.stride(), rows, source.shape, strict=True), reverse=True):
        if size > 1:
            keys += offsets // stride * row
            offsets %= stride
    return keys


def mark_changed(tensor: SparseTensor) -> None:
    """Increment the versions of all tensors that share memory with ``tensor``."""
    if tensor.view_of is None and not tensor.viewed_by:
        return
    base = tensor if tensor.view_of is None else tensor.view_of.parent
    views = [reference() for reference in base.viewed_by or ()]
    changed = [base, *(view for view in views if view is not None)]
    with DisableTorchFunctionSubclass():
        others = [member for member in changed if member is not tensor and not member.is_inference()]
        torch.autograd.graph.increment_version(others)
        for view in changed[1:] if base.requires_grad else ():
            if view._is_view():  # made by torch, which refuses it by itself, and even to say what it is
                continue
            steps = () if view.view_of is None else view.view_of.steps
            if any(not step.grad_mode or step.place is not None for step in steps):
                forget_gradient(view)


def forget_gradient(view: SparseTensor) -> None:
    """Mark a view whose gradient torch refuses after a write to its base, uses before the write included."""
    if view.is_leaf and view.requires_grad and not view.has_unknown_gradient:
        view.register_hook(_refuse_gradient)
    view.has_unknown_gradient = True
    if not view.requires_grad:
        view.requires_grad_()


def _refuse_gradient(_: torch.Tensor) -> None:
    raise InPlaceError(
        "a view that requires a gradient of its own has been moved into the graph of its base, which was "
        "modified inplace; create the view again"
    )


def write_entries(storage: Storage, pattern: Pattern, values: torch.Tensor) -> None:
    """Write entries to a storage, and to the storage that it is a view of."""
    origin = storage.origin
    if origin is None:
        storage.become(Storage(pattern, values))
        return
    source = origin.source
    if is_overlapping(storage.meta_tensor()):
        merged, positions, written = _merge_copies(storage, pattern, values)
        source.become(Storage(merged, select_values(torch.cat([source.values, written]), positions)))
        return
    merged, positions = merge_view(source, origin.steps, pattern)
    source.become(Storage(merged, select_values(torch.cat([source.values, values]), positions)))
    if source.layer_values is None:
        storage.take(pattern, values)  # as a refresh would compute them


def is_overlapping(meta: torch.Tensor) -> bool:
    """Whether elements of a view share memory, as after ``expand`` and some ``unfold``."""
    reach = 0  # the offset of the last element in the dimensions so far
    for stride, size in sorted(zip(meta.stride(), meta.shape, strict=True)):
        if size > 1 and stride <= reach:
            return meta.numel() > 0
        reach += stride * (size - 1)
    return False


def _merge_copies(
    storage: Storage, pattern: Pattern, values: torch.Tensor
) -> tuple[Pattern, torch.Tensor, torch.Tensor]:
    """Merge a view that has several copies of an element: the last copy that changed is written."""
    origin = storage.origin
    assert origin is not None
    source = origin.source.pattern
    before, after = entries_of(SparseTensor(storage)), entries_of(SparseTensor(Storage(pattern, values)))
    keys = torch.unique(torch.cat([before.keys, after.keys]))
    old, new = before.at(keys), after.at(keys)
    changed = (old != new) & ~((old != old) & (new != new))
    places = Entries(keys[changed], new[changed], pattern.shape)
    written = _keys_in_source(places, storage.meta_tensor(), origin.source.meta_tensor())
    written, order = stable_sort(written)
    is_last = torch.ones_like(written, dtype=torch.bool)
    is_last[:-1] = written[1:] != written[:-1]
    written, values = written[is_last], places.values[order][is_last]
    numbered = entries_of(number_entries(source, 1))
    left = ~torch.isin(numbered.keys, written)
    added = torch.arange(source.size + 1, source.size + 1 + written.numel(), device=written.device)
    both = torch.cat([numbered.keys[left], written]), torch.cat([numbered.values[left], added])
    merged = from_entries(Entries(*both, source.shape), source.format, in_order=False)
    return merged.storage.pattern, merged.storage.values, values


def recompute_view(source: Storage, steps: tuple[Step, ...], form: Format) -> Storage:
    """Recompute a view of a storage, in the format that it had."""
    pattern, positions = positions_through(steps, source.pattern, form)
    return Storage(pattern, select_values(source.values, positions))


Storage.recompute_view = recompute_view

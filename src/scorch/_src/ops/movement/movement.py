"""Differentiable versions of functions that only move entries: slices, rows, transposes, concatenations.

torch differentiates them by formulas that fill a tensor of the whole shape. Here the function is run on the
numbers of the entries instead of their values: the result shows which entry each of its values is, and the
gradient goes back the same way, in time and memory of the entries.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from scorch._src.grad_state import untracked
from scorch._src.statements.autocast import in_float32
from scorch._src.storage.storage import Step, Storage
from scorch._src.tensor.autograd import by_formula, by_torch, dense_of, sparse_of, values_of
from scorch._src.tensor.registry import implements_differentiable
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.tensor.views.link import link_view
from scorch._src.torch_internals import tree_flatten, tree_map, tree_unflatten

# fmt: off
MOVING_FUNCTIONS = [
    "atleast_1d", "atleast_2d", "atleast_3d", "broadcast_to", "cat", "chunk", "column_stack", "concat",
    "concatenate", "diag", "diag_embed", "diagonal", "dsplit", "dstack", "expand", "expand_as",
    "flatten", "flip", "fliplr",
    "flipud", "gather", "hsplit", "hstack", "index_select", "masked_select", "movedim", "moveaxis",
    "narrow", "narrow_copy", "permute", "ravel", "repeat", "repeat_interleave", "reshape", "reshape_as",
    "roll", "rot90", "row_stack", "select", "split", "split_with_sizes", "squeeze", "stack", "swapaxes",
    "swapdims", "t", "take", "take_along_dim", "tensor_split", "tile", "transpose", "tril", "triu",
    "unbind", "unflatten", "unfold", "unsafe_chunk", "unsafe_split", "unsqueeze", "view", "view_as",
    "vsplit", "vstack", "__getitem__",
]
# fmt: on


def _move(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run ``func``, which moves entries, on tensors that require gradients."""
    name = getattr(func, "__name__", "")
    joins = name.endswith("stack") or name in ("cat", "concat", "concatenate")  # integers are no indices
    leaves, spec = tree_flatten((args, kwargs))
    sparse = [leaf for leaf in leaves if isinstance(leaf, SparseTensor)]
    others = [leaf for leaf in leaves if not isinstance(leaf, SparseTensor)]
    dense = [leaf for leaf in others if isinstance(leaf, torch.Tensor)]
    is_mixed = any(joins or leaf.is_floating_point() or leaf.is_complex() for leaf in dense)
    is_unusual = kwargs.get("out") is not None or any(isinstance(leaf, torch.dtype) for leaf in others)
    if is_mixed or is_unusual or len({leaf.dtype for leaf in sparse}) != 1:
        return by_torch(func, args, kwargs)
    with torch.no_grad(), untracked():
        numbered = _number_entries(sparse)
        remaining = iter(numbered)
        new_leaves = [next(remaining) if isinstance(leaf, SparseTensor) else leaf for leaf in leaves]
        args, kwargs = tree_unflatten(new_leaves, spec)
        moved = func(*args, **kwargs)
    values = [values_of(tensor) for tensor in sparse]
    joined = torch.cat([values[0].new_zeros(1), *values])

    def connect(leaf_out: Any) -> Any:
        if not isinstance(leaf_out, SparseTensor):
            return joined[leaf_out] if isinstance(leaf_out, torch.Tensor) else leaf_out
        for numbered_source, source in zip(numbered, sparse, strict=True):
            if leaf_out is numbered_source:  # the function returned its argument
                return source
        picked = _select_values(joined, values, leaf_out.storage.values)
        steps_by_source = [_view_steps(numbered_source, leaf_out) for numbered_source in numbered]
        if all(steps is None for steps in steps_by_source) and picked is values[0]:
            picked = picked.clone()  # no view: it has memory of its own
        result = sparse_of(leaf_out.storage.pattern, picked)
        for source, steps in zip(sparse, steps_by_source, strict=True):
            if steps is not None:
                link_view(result, source, steps)
        return result

    return tree_map(connect, moved)


def _number_entries(tensors: list[SparseTensor]) -> list[SparseTensor]:
    """Return the tensors with the numbers of their entries as values, from 1 through all of them."""
    numbered, begin = [], 1
    for tensor in tensors:
        pattern = tensor.storage.pattern
        numbers = torch.arange(begin, begin + pattern.size, device=pattern.device)
        numbered.append(SparseTensor(Storage(pattern, numbers)))
        begin += pattern.size
    return numbered


def _view_steps(source: SparseTensor, view: SparseTensor) -> tuple[Step, ...] | None:
    """Return the steps from ``source`` to a view of it; None if it is no view of it."""
    link, origin = view.view_of, view.storage.origin
    if link is not None and link.parent is source:
        steps = link.steps
    elif view.storage is source.storage:
        return ()
    elif origin is not None and origin.source is source.storage:
        steps = origin.steps
    else:
        return None
    return tuple(step._replace(grad_mode=torch.is_grad_enabled()) for step in steps)


def _select_values(joined: torch.Tensor, values: list[torch.Tensor], positions: torch.Tensor) -> torch.Tensor:
    """Select the values at ``positions``; of one tensor whose entries stay in order, all of them."""
    size = joined.numel() - 1
    is_same = len(values) == 1 and positions.numel() == size
    if is_same and bool((positions == torch.arange(1, size + 1, device=positions.device)).all()):
        return values[0]
    return joined[positions]


_functions = [getattr(home, name, None) for name in MOVING_FUNCTIONS for home in (torch, torch.Tensor)]
_functions += [torch.linalg.diagonal, *(getattr(torch.Tensor, name).__get__ for name in ("T", "mT"))]
for _function in _functions:
    if _function is not None:
        implements_differentiable(_function, only_moves_entries=True)(functools.partial(_move, _function))


@implements_differentiable(torch.trace, torch.Tensor.trace)
@in_float32(is_on_host=True)
def trace(input: Any) -> Any:
    if input.dim() != 2:
        return by_formula(torch.trace, (input,), {})  # raises torch's error
    return torch.diagonal(input).sum()


@implements_differentiable(F.embedding)
def embedding(
    input: Any, weight: Any, padding_idx: Any = None, max_norm: Any = None, *args: Any, **kwargs: Any
) -> Any:
    """Gather rows of a sparse table."""
    if not isinstance(weight, SparseTensor) or padding_idx is not None or max_norm is not None:
        return by_formula(F.embedding, (input, weight, padding_idx, max_norm, *args), kwargs)
    row_numbers = dense_of(input)
    rows = torch.index_select(weight, 0, row_numbers.reshape(-1))
    return rows.reshape(*row_numbers.shape, weight.shape[1])

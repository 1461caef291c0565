"""Functions that only move entries, of tensors that are learned: slices, rows, transposes, concatenations.

torch differentiates them by formulas that fill a tensor of the whole shape. Here the function is run on the
numbers of the entries instead of their values: what comes out says which entry each value of the result is,
and the gradient goes back the same way, in time and memory of the entries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from scorch._src.grad_state import untracked
from scorch._src.storage.storage import Storage
from scorch._src.tensor.autograd import by_formula, by_torch, dense_of, sparse_of, values_of
from scorch._src.tensor.registry import implements_differentiable
from scorch._src.tensor.sparse_tensor import SparseTensor, Step, link_view
from scorch._src.torch_internals import tree_flatten, tree_map, tree_unflatten

# fmt: off
MOVING = [
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
JOINING = {  # all tensors that these are given are moved: integers are no indices
    "cat",
    "column_stack",
    "concat",
    "concatenate",
    "dstack",
    "hstack",
    "row_stack",
    "stack",
    "vstack",
}  # fmt: skip


def moved(func: Callable[..., Any]) -> Callable[..., Any]:
    """``func``, which moves entries, for tensors that are learned."""
    is_joining = getattr(func, "__name__", "") in JOINING

    def handler(*args: Any, **kwargs: Any) -> Any:
        leaves, spec = tree_flatten((args, kwargs))
        sparse = [leaf for leaf in leaves if isinstance(leaf, SparseTensor)]
        others = [
            leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and not isinstance(leaf, SparseTensor)
        ]
        is_mixed = any(is_joining or _is_tracked_kind(leaf) for leaf in others)
        if (
            not sparse
            or is_mixed
            or len({leaf.dtype for leaf in sparse}) > 1
            or kwargs.get("out") is not None
            or any(isinstance(leaf, torch.dtype) for leaf in leaves)
        ):
            return by_torch(func, args, kwargs)
        with torch.no_grad(), untracked():
            numbered = _numbered(sparse)
            rest = iter(numbered)
            given = [next(rest) if isinstance(leaf, SparseTensor) else leaf for leaf in leaves]
            args, kwargs = tree_unflatten(given, spec)
            found = func(*args, **kwargs)
        values = [values_of(tensor) for tensor in sparse]
        joined = torch.cat([values[0].new_zeros(1), *values])

        def placed(part: Any) -> Any:
            if not isinstance(part, SparseTensor):
                return joined[part] if isinstance(part, torch.Tensor) else part
            for own, source in zip(numbered, sparse, strict=True):
                if part is own:  # the function gave the tensor itself
                    return source
            picked = _picked(joined, values, part.storage.values)
            ways = [_steps_from(own, part) for own in numbered]
            if all(steps is None for steps in ways) and picked is values[0]:
                picked = picked.clone()  # no view: it has memory of its own
            result = sparse_of(part.storage.pattern, picked)
            for source, steps in zip(sparse, ways, strict=True):
                if steps is not None:
                    link_view(result, source, steps)
            return result

        return tree_map(placed, found)

    return handler


def _is_tracked_kind(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _numbered(tensors: list[SparseTensor]) -> list[SparseTensor]:
    """The tensors with the numbers of their entries as values, counted from 1 through all of them."""
    found, begin = [], 1
    for tensor in tensors:
        pattern = tensor.storage.pattern
        numbers = torch.arange(begin, begin + pattern.size, device=pattern.device)
        found.append(SparseTensor(Storage(pattern, numbers)))
        begin += pattern.size
    return found


def _steps_from(source: SparseTensor, view: SparseTensor) -> tuple[Step, ...] | None:
    """How a view was made of ``source``; None if it is no view of it."""
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


def _picked(joined: torch.Tensor, values: list[torch.Tensor], places: torch.Tensor) -> torch.Tensor:
    """The values at ``places``; of one tensor whose entries stay where they are, its own."""
    size = joined.numel() - 1
    is_same = len(values) == 1 and places.numel() == size
    if is_same and bool((places == torch.arange(1, size + 1, device=places.device)).all()):
        return values[0]
    return joined[places]


for _name in MOVING:
    for _home in (torch, torch.Tensor):
        _function = getattr(_home, _name, None)
        if _function is not None:
            implements_differentiable(_function, only_moves_entries=True)(moved(_function))

implements_differentiable(torch.linalg.diagonal, only_moves_entries=True)(moved(torch.linalg.diagonal))

for _name in ("T", "mT"):
    _view = getattr(torch.Tensor, _name).__get__
    implements_differentiable(_view, only_moves_entries=True)(moved(_view))


@implements_differentiable(torch.trace, torch.Tensor.trace)
def trace(input: Any) -> Any:
    if input.dim() != 2:
        return by_formula(torch.trace, (input,), {})  # says what is wrong
    return torch.diagonal(input).sum()


@implements_differentiable(F.embedding)
def embedding(
    input: torch.Tensor,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    """Rows of a sparse table."""
    if not isinstance(weight, SparseTensor) or padding_idx is not None or max_norm is not None:
        given = (input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
        return by_formula(F.embedding, given, {})
    places = dense_of(input)
    rows = torch.index_select(weight, 0, places.reshape(-1))
    return rows.reshape(*places.shape, weight.shape[1])

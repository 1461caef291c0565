"""``F.scaled_dot_product_attention`` with a sparse mask, in memory that follows queries, keys and the mask.

A sparse mask of bools lists the pairs to compute, per head and batch if it has those dimensions, which
broadcast. All heads are computed by one routine (``backends.cpu.routines.attention``), which saves nothing
for pairs: backward recomputes what it needs of them. A mask of numbers is added to the scores,
where what is not stored is a zero: there all pairs attend, and it is computed on dense tensors within the
dense budget.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from scorch._src.backends.base import draw_seeds, routines_for
from scorch._src.backends.by_torch.attention import Heads
from scorch._src.devices import HOST
from scorch._src.grad_state import is_composed, untracked
from scorch._src.ops.attention import reference
from scorch._src.ops.attention.mask_pairs import MaskPairs, find_pairs
from scorch._src.ops.fallback import run_densely
from scorch._src.statements.autocast import cast, is_autocast
from scorch._src.storage.budget import is_within_budget
from scorch._src.tensor.broadcast import broadcast_shape
from scorch._src.tensor.registry import implements
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import ArgumentError, CallError, DtypeError, ShapeError

MIN_DENSE_SHARE = 0.9  # of pairs, from which on dense attention is faster
Batch = tuple[int, ...]


@implements(F.scaled_dot_product_attention, differentiable=True)
def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """``softmax(query @ key.T * scale) @ value`` over the pairs that ``attn_mask`` allows.

    A sparse mask of bools of shape (..., L, S), in any format, says which they are: those stored as True. A
    query without any gives zeros. A sparse mask of numbers is added to the scores, as torch does: what is not
    stored is a bias of zero, so that all pairs attend; that, and sparse queries, keys and values, need dense
    memory, within the dense budget.
    """
    if is_autocast():
        query, key, value = cast(query, key, value)
    if not _is_pair_mask(attn_mask, query, key):
        args: Any = (query, key, value, attn_mask, dropout_p, is_causal)
        options = {"scale": scale, "enable_gqa": enable_gqa}
        return run_densely(F.scaled_dot_product_attention, args, options)
    assert isinstance(attn_mask, SparseTensor)
    if is_causal:
        raise CallError(
            "scaled_dot_product_attention takes attn_mask or is_causal=True, not both; for the causal part "
            "of a mask, pass torch.tril(attn_mask)"
        )
    query, key, value = (_to_dense(tensor) for tensor in (query, key, value))
    if not 0 <= dropout_p <= 1:
        raise ArgumentError(f"dropout_p must be a probability between 0 and 1, but got {dropout_p}")
    if not query.dtype == key.dtype == value.dtype or not query.dtype.is_floating_point:
        raise DtypeError(
            f"expected query, key and value to have the same floating-point dtype, but got {query.dtype}, "
            f"{key.dtype} and {value.dtype}"
        )
    if enable_gqa:
        key, value = _repeat_heads("key", key, query), _repeat_heads("value", value, query)
    batch = _batch(query, key, value, tuple(attn_mask.storage.pattern.shape))
    pairs = find_pairs(attn_mask)
    if pairs.density > MIN_DENSE_SHARE and is_within_budget(attn_mask.numel(), query.device):
        args = (query, key, value, attn_mask, dropout_p)
        return run_densely(F.scaled_dot_product_attention, args, {"scale": scale})
    return attend(query, key, value, pairs, batch, scale, dropout_p)


def _to_dense(tensor: torch.Tensor) -> torch.Tensor:
    """Return a dense tensor as it is, a sparse one converted to dense within the budget."""
    return run_densely(torch.Tensor.contiguous, (tensor,), {}) if isinstance(tensor, SparseTensor) else tensor


# arguments -------------------------------------------------------------------------------------------


def _is_pair_mask(mask: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor) -> bool:
    """Whether ``mask`` lists the pairs of queries and keys that attend."""
    if not isinstance(mask, SparseTensor) or mask.storage.values.dtype != torch.bool:
        return False
    shape = mask.storage.pattern.shape
    if min(query.dim(), key.dim()) < 2:
        raise ShapeError(
            f"expected query and key to be at least 2-D, but got shapes {tuple(query.shape)} and "
            f"{tuple(key.shape)}"
        )
    pairs = (query.shape[-2], key.shape[-2])
    own = (1,) * (2 - len(shape)) + tuple(shape[-2:])
    if any(mask_size not in (1, size) for mask_size, size in zip(own, pairs, strict=True)):
        raise ShapeError(
            f"attn_mask has shape {tuple(shape)}, but there are {pairs[0]} queries and {pairs[1]} keys: "
            f"it must end with {pairs}, where query has shape {tuple(query.shape)}, read as (..., tokens, "
            "features)"
        )
    return tuple(shape[-2:]) == pairs


def _repeat_heads(name: str, tensor: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Repeat each head of ``tensor`` for the heads of the queries that share it."""
    if min(tensor.dim(), query.dim()) < 3 or not tensor.shape[-3] or query.shape[-3] % tensor.shape[-3]:
        raise ShapeError(
            f"enable_gqa: the heads of query, shape {tuple(query.shape)}, must be a multiple of those of "
            f"{name}, shape {tuple(tensor.shape)}; heads are dimension -3"
        )
    times = query.shape[-3] // tensor.shape[-3]
    return tensor if times == 1 else tensor.repeat_interleave(times, -3)


def _batch(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, of_mask: Batch) -> Batch:
    """Return the batch dimensions of the result."""
    if value.dim() < 2 or query.shape[-1] != key.shape[-1] or value.shape[-2] != key.shape[-2]:
        raise ShapeError(
            f"query (L, E), key (S, E) and value (S, V) have shapes {tuple(query.shape)}, "
            f"{tuple(key.shape)} and {tuple(value.shape)}, which do not match"
        )
    if query.shape[:-2] == key.shape[:-2] == value.shape[:-2] and len(of_mask) == 2:
        return tuple(query.shape[:-2])
    try:
        batch = broadcast_shape(*(tensor.shape[:-2] for tensor in (query, key, value)))
        if broadcast_shape(batch, of_mask[:-2]) != batch:
            raise RuntimeError
    except RuntimeError:
        raise ShapeError(
            f"the batches of query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)} "
            f"and attn_mask {of_mask} cannot be broadcast together"
        ) from None
    return batch


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    pairs: MaskPairs,
    batch: Batch,
    scale: float | None = None,
    dropout: float = 0.0,
    skipped: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attend over ``pairs``, without the keys that ``skipped`` (batch..., keys) marks."""
    with untracked():
        heads = make_heads(pairs, batch, query.shape[-1], scale, dropout, skipped)
    if is_composed(query, key, value):  # of torch's own operations
        Q, K, V = _at_least_float32(query, key, value)
        return reference.attend(Q, K, V, pairs, heads).to(query.dtype)
    output: torch.Tensor = _Attention.apply(query, key, value, pairs, heads)
    return output


def make_heads(
    pairs: MaskPairs,
    batch: Batch,
    features: int,
    scale: float | None,
    dropout: float = 0.0,
    skipped: torch.Tensor | None = None,
) -> Heads:
    """Describe the heads of a batch, each with its mask."""
    factor = 1 / math.sqrt(max(features, 1)) if scale is None else scale
    masks: list[int] = [0] * math.prod(batch)
    if pairs.masks > 1:
        masks = torch.arange(pairs.masks, device=HOST).view(pairs.batch).expand(batch).flatten().tolist()
    first, second = draw_seeds(pairs.crd.device, 0, 2**32, 2) if dropout else (0, 0)
    return Heads(pairs.blocks, batch, masks, factor, dropout, (first, second), skipped)


def _at_least_float32(*tensors: torch.Tensor) -> Any:
    """Convert to float32 at least, as torch computes attention."""
    wide = (torch.float32, torch.float64)
    return [tensor if tensor.dtype in wide else tensor.float() for tensor in tensors]


def _as_taken(*tensors: torch.Tensor) -> Any:
    """Convert to what the routines of the device take."""
    is_taken = tensors[0].dtype in routines_for(tensors[0]).attention_dtypes
    return tensors if is_taken else _at_least_float32(*tensors)


class _Attention(torch.autograd.Function):
    """All heads in one call; double backward goes pair by pair."""

    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, pairs: MaskPairs, heads: Heads
    ) -> torch.Tensor:
        ctx.pairs, ctx.heads = pairs, heads
        Q, K, V = _as_taken(query.detach(), key.detach(), value.detach())
        result = routines_for(Q).attention(Q, K, V, heads)
        if result is None:
            ctx.save_for_backward(query, key, value)
            Q, K, V = _at_least_float32(Q, K, V)
            return reference.attend(Q, K, V, pairs, heads).to(query.dtype)
        ctx.save_for_backward(query, key, value, *result)
        return result[0].to(query.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Use the saved maxima and sums of queries, or go pair by pair for double backward."""
        saved, is_double_backward = ctx.saved_tensors, torch.is_grad_enabled()
        inputs, state = saved[:3], saved[3:]
        if is_double_backward or not state:
            with torch.enable_grad():
                Q, K, V = _at_least_float32(*inputs)
                output = reference.attend(Q, K, V, ctx.pairs, ctx.heads)
            needed = [tensor for tensor in inputs if tensor.requires_grad]
            grads = torch.autograd.grad(output, needed, gradient.to(output), create_graph=is_double_backward)
            remaining = iter(grads)
            return *(next(remaining) if tensor.requires_grad else None for tensor in inputs), None, None
        Q, K, V = _as_taken(*inputs)
        grads = routines_for(Q).attention_backward(Q, K, V, ctx.heads, state[0], state[1], gradient.to(Q))
        pairs = zip(grads, inputs, strict=True)
        return *(grad.sum_to_size(tensor.shape).to(tensor.dtype) for grad, tensor in pairs), None, None

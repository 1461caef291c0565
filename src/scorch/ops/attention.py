"""Attention with a sparse mask: only the pairs that the mask stores are computed.

For each head, with the pattern of its mask M, and P the softmax of S over the stored entries of each row:

    S[i,j] = scale * M[i,j] * Q[i,k] * K[j,k]        O[i,e] = P[i,j] * V[j,e]

Cost and memory follow the entries of the mask. A mask of numbers has no such form: it is added to the
scores, so that what it does not store is attended with a bias of zero. That is computed densely, as are
masks that keep most pairs, where dense attention is faster.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from scorch.errors import ArgumentError, DtypeError, ShapeError
from scorch.formats import as_format
from scorch.ops.einsum import einsum
from scorch.ops.generic import densely
from scorch.ops.softmax import softmax
from scorch.ops.statement import evaluate
from scorch.tensor.budget import is_within_budget
from scorch.tensor.dispatch import implements
from scorch.tensor.sparse_tensor import SparseTensor
from scorch.tensor.storage import Pattern, Storage

DENSE_FROM = 0.2  # the share of pairs from which on dense attention is faster
Place = tuple[int, ...]


@implements(F.scaled_dot_product_attention, learns=True)
def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """``softmax(query @ key.T * scale) @ value`` over the pairs that ``attn_mask`` allows.

    A sparse mask of bools of shape (..., L, S) says which they are: those stored as True. A query without
    any gives zeros. All other sparse arguments are made dense first, within the dense budget.
    """
    options = {"scale": scale, "enable_gqa": enable_gqa}
    if not _is_pairs(attn_mask, query, key):
        given = (query, key, value, attn_mask, dropout_p, is_causal)
        return _densely(*given, **options)
    assert isinstance(attn_mask, SparseTensor)
    query, key, value = (_plain(tensor) for tensor in (query, key, value))
    if not 0 <= dropout_p <= 1:
        raise ArgumentError(f"dropout_p is a probability between 0 and 1, not {dropout_p}")
    _check_dtypes(query, key, value)
    if enable_gqa:
        key, value = _repeated("key", key, query), _repeated("value", value, query)
    batch = _batch(query, key, value, attn_mask)
    mask = _pairs(attn_mask, is_causal)
    if mask.density > DENSE_FROM and is_within_budget(mask.numel()):
        return _densely(query, key, value, mask, dropout_p, scale=scale)
    factor = 1 / math.sqrt(max(query.shape[-1], 1)) if scale is None else scale
    heads = Heads(_patterns(mask), tuple(mask.shape[:-2]), batch, factor, dropout_p)
    return _Attention.apply(query, key, value, heads)  # type: ignore[no-any-return]


def _densely(*args: Any, **kwargs: Any) -> torch.Tensor:
    found: torch.Tensor = densely(F.scaled_dot_product_attention, args, kwargs)
    return found


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """A dense tensor, or a dense copy within the budget."""
    return densely(torch.Tensor.contiguous, (tensor,), {}) if isinstance(tensor, SparseTensor) else tensor


# what is asked ---------------------------------------------------------------------------------------


def _is_pairs(mask: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor) -> bool:
    """Whether ``mask`` lists the pairs of queries and keys that attend."""
    if not isinstance(mask, SparseTensor) or mask.dtype != torch.bool:
        return False
    if min(query.dim(), key.dim(), mask.dim()) < 2:
        raise ShapeError(
            f"attention takes tensors of at least two dimensions: query has shape {tuple(query.shape)}, "
            f"key {tuple(key.shape)} and attn_mask {tuple(mask.shape)}"
        )
    pairs = (query.shape[-2], key.shape[-2])
    if any(own not in (1, size) for own, size in zip(mask.shape[-2:], pairs, strict=True)):
        raise ShapeError(
            f"attn_mask has shape {tuple(mask.shape)}, but there are {pairs[0]} queries and {pairs[1]} keys: "
            f"it must end with {pairs}"
        )
    return tuple(mask.shape[-2:]) == pairs


def _pairs(mask: SparseTensor, is_causal: bool) -> SparseTensor:
    """What the mask keeps, row by row: where it stores True, and not after the query if that is asked."""
    kept = torch.tril(mask) if is_causal else mask
    assert isinstance(kept, SparseTensor)
    found = kept.to_format("csr")
    assert isinstance(found, SparseTensor)
    return found if bool(found.storage.values.all()) else found.eliminate_zeros()


def _check_dtypes(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    if not query.dtype == key.dtype == value.dtype or not query.dtype.is_floating_point:
        raise DtypeError(
            "query, key and value must have one floating-point dtype, not "
            f"{query.dtype}, {key.dtype} and {value.dtype}"
        )


def _repeated(name: str, tensor: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Each head of ``tensor`` for as many heads of the queries as share it."""
    if min(tensor.dim(), query.dim()) < 3 or not tensor.shape[-3] or query.shape[-3] % tensor.shape[-3]:
        raise ShapeError(
            f"enable_gqa: the heads of query, shape {tuple(query.shape)}, must be a multiple of those of "
            f"{name}, shape {tuple(tensor.shape)}; heads are dimension -3"
        )
    times = query.shape[-3] // tensor.shape[-3]
    return tensor if times == 1 else tensor.repeat_interleave(times, -3)


def _batch(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor) -> Place:
    """The batch dimensions of the result."""
    if value.dim() < 2 or query.shape[-1] != key.shape[-1] or value.shape[-2] != key.shape[-2]:
        raise ShapeError(
            f"query (L, E), key (S, E) and value (S, V) have shapes {tuple(query.shape)}, "
            f"{tuple(key.shape)} and {tuple(value.shape)}, which do not fit"
        )
    try:
        batch = torch.broadcast_shapes(*(tensor.shape[:-2] for tensor in (query, key, value)))
        if torch.broadcast_shapes(batch, mask.shape[:-2]) != batch:
            raise RuntimeError
    except RuntimeError:
        raise ShapeError(
            f"the batches of query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)} "
            f"and attn_mask {tuple(mask.shape)} do not fit together"
        ) from None
    return tuple(batch)


# heads -----------------------------------------------------------------------------------------------


def _patterns(mask: SparseTensor) -> list[Pattern]:
    """The pattern of each matrix of a batch of masks, which are csr."""
    pattern = mask.storage.pattern
    if mask.dim() == 2:
        return [pattern]
    rows, columns = mask.shape[-2:]
    pos, crd = pattern.pos[-1], pattern.crd[-1]
    assert pos is not None and crd is not None
    found = []
    for first in range(0, pos.numel() - 1, rows) if rows else []:
        begins = pos[first : first + rows + 1]
        begin, end = int(begins[0]), int(begins[-1])
        arrays = (begins - begin, crd[begin:end])
        counts = (rows, end - begin)
        found.append(
            Pattern(as_format("csr", 2), (rows, columns), (None, arrays[0]), (None, arrays[1]), counts)
        )
    return found


@dataclass(frozen=True)
class Heads:
    """Which pattern each head of a batch has, and what else is the same for all."""

    patterns: list[Pattern]
    own: Place  # the batch dimensions of the mask, which broadcast
    batch: Place
    scale: float
    dropout: float

    def __iter__(self) -> Iterator[tuple[Place, Pattern]]:
        own = (1,) * (len(self.batch) - len(self.own)) + self.own
        for place in itertools.product(*(range(size) for size in self.batch)):
            number = 0
            for size, at in zip(own, place, strict=True):
                number = number * size + (at if size > 1 else 0)
            yield place, self.patterns[number]

    def spread(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor for each head, in float32 at least, as torch computes attention."""
        plain = tensor.detach()
        plain = plain if plain.dtype in (torch.float32, torch.float64) else plain.float()
        return plain.expand(*self.batch, *tensor.shape[-2:])


def _sampled(pattern: Pattern, rows: torch.Tensor, columns: torch.Tensor, factor: float) -> SparseTensor:
    """``factor * rows @ columns.T`` at the entries of ``pattern``."""
    ones = torch.full((pattern.size,), factor, dtype=rows.dtype, device="cpu")
    M = SparseTensor(Storage(pattern, ones))
    found = evaluate("S[i,j] = M[i,j] * Q[i,k] * K[j,k]", M=M, Q=rows, K=columns, format="csr")
    assert isinstance(found, SparseTensor)
    return found


def _dropped(P: SparseTensor, keep: torch.Tensor | None) -> SparseTensor:
    return P if keep is None else SparseTensor(Storage(P.storage.pattern, P.storage.values * keep))


class _Attention(torch.autograd.Function):
    """All heads, one after the other; each keeps its probabilities, of which there is one for each entry."""

    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, heads: Heads
    ) -> torch.Tensor:
        Q, K, V = (heads.spread(tensor) for tensor in (query, key, value))
        found = Q.new_zeros(*heads.batch, Q.shape[-2], V.shape[-1])
        ctx.heads, ctx.kept = heads, []
        is_trained = any(ctx.needs_input_grad)
        for place, pattern in heads if found.numel() else ():
            P = softmax(_sampled(pattern, Q[place], K[place], heads.scale), 1)
            keep = None
            if heads.dropout:
                keep = F.dropout(torch.ones_like(P.storage.values), heads.dropout)
            found[place] = einsum("ij,je->ie", _dropped(P, keep), V[place], format="dense")
            if is_trained:
                ctx.kept.append((P, keep))
        ctx.save_for_backward(query, key, value)
        return found.to(query.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """As for every product and softmax: each gradient is sampled at the pattern, or a product with it."""
        heads, given = ctx.heads, ctx.saved_tensors
        Q, K, V = (heads.spread(tensor) for tensor in given)
        G = heads.spread(gradient)
        dQ, dK, dV = (torch.zeros(tensor.shape, dtype=tensor.dtype) for tensor in (Q, K, V))
        for (place, pattern), (P, keep) in zip(heads, ctx.kept, strict=False):
            dV[place] = einsum("ij,ie->je", _dropped(P, keep), G[place], format="dense")
            dP = _dropped(_sampled(pattern, G[place], V[place], 1.0), keep)
            mean = evaluate("m[i] = P[i,j] * D[i,j]", P=P, D=dP, format="dense")
            dS = evaluate("S[i,j] = P[i,j] * (D[i,j] - m[i])", P=P, D=dP, m=mean, format="csr")
            dQ[place] = heads.scale * einsum("ij,jk->ik", dS, K[place], format="dense")
            dK[place] = heads.scale * einsum("ij,ik->jk", dS, Q[place], format="dense")
        made = zip((dQ, dK, dV), given, strict=True)
        return *(found.sum_to_size(tensor.shape).to(tensor.dtype) for found, tensor in made), None

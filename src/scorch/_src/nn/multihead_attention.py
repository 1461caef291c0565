"""``MultiheadAttention`` over the pairs of a sparse mask, in memory that follows tokens and pairs."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from scorch._src.compile.capture.function_operators import operator
from scorch._src.nn.masks import in_rows, pointers
from scorch._src.ops.attention import reference
from scorch._src.ops.attention.mask_pairs import pairs_of
from scorch._src.ops.attention.sdpa import attend, heads_of
from scorch._src.statements.evaluate import evaluate
from scorch._src.storage.budget import check_budget
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import ArgumentError, DtypeError, OperandError, ShapeError, warn

Projected = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class MultiheadAttention(torch.nn.MultiheadAttention):
    """``torch.nn.MultiheadAttention``, with the same arguments and parameters, and ``pairs`` of tokens.

    ``pairs`` is a sparse tensor of bools, the pairs that attend: such as ``scorch._src.nn.masks`` makes and
    ``F.scaled_dot_product_attention`` takes as its mask. It has shape (L, S), (N * num_heads, L, S), or four
    dimensions that broadcast to (N, num_heads, L, S). With it, weights are returned only if
    ``need_weights=True`` is said, as a sparse tensor, without dropout and without a gradient; and a query
    that sees no key gives zeros, where torch gives NaN.

    .. warning:: ``attn_mask`` and ``key_padding_mask`` mean what torch has them mean in this layer, also if
       they are sparse: **True is masked out**, and numbers are added to the scores. A sparse ``attn_mask``
       is made dense. Only ``pairs`` saves time and memory.

    >>> near = scorch._src.nn.masks.window(64, 4)
    >>> layer = MultiheadAttention(32, 4, batch_first=True)
    >>> x = torch.randn(2, 64, 32)
    >>> layer(x, x, x, pairs=near)[0].shape
    torch.Size([2, 64, 32])
    """

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_padding_mask: torch.Tensor | None = None,
        need_weights: bool | None = None,
        attn_mask: torch.Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        *,
        pairs: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """torch's own without ``pairs``. ``need_weights``: if not given, True there and False with them."""
        if pairs is None:
            found: tuple[torch.Tensor, torch.Tensor | None] = super().forward(
                query,
                key,
                value,
                key_padding_mask,
                need_weights is not False,
                _dense_mask(attn_mask),
                average_attn_weights,
                is_causal,
            )
            return found
        mask = _checked_pairs(pairs, attn_mask)
        is_batched = query.dim() == 3
        if not is_batched:
            query, key, value = (tensor.unsqueeze(0) for tensor in (query, key, value))
            if key_padding_mask is not None:
                key_padding_mask = key_padding_mask.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = _turned(query, key, value)
        _check(query, key, value, self)
        q, k, v = self._project(query, key, value)
        mask = _for_heads(mask, (q.shape[0], self.num_heads), (q.shape[2], key.shape[1]))
        skipped = _skipped(key_padding_mask, key)
        k, v, mask, skipped = self._more_keys(k, v, mask, skipped)
        dropout = self.dropout if self.training else 0.0
        hidden = None if skipped is None else skipped[:, None]
        is_captured = torch.compiler.is_compiling()
        attend = torch.ops.scorch.masked_attention if is_captured else _attend
        weigh = torch.ops.scorch.attention_weights if is_captured else _weights
        heads = attend(q, k, v, mask, is_causal, dropout, hidden)
        out = self.out_proj(heads.transpose(1, 2).flatten(2))
        weights = weigh(q, k, mask, is_causal, hidden, average_attn_weights) if need_weights else None
        if not is_batched:
            return out[0], None if weights is None else weights[0]
        return out if self.batch_first else out.transpose(0, 1), weights

    def _project(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Projected:
        """Queries, keys and values of all heads, (N, heads, tokens, features)."""
        bias = self.in_proj_bias
        if self.in_proj_weight is not None and query is key is value:
            parts = F.linear(query, self.in_proj_weight, bias).chunk(3, -1)
        else:
            separate = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
            weights = separate if self.in_proj_weight is None else self.in_proj_weight.chunk(3)
            biases = (None,) * 3 if bias is None else bias.chunk(3)
            given = zip((query, key, value), weights, biases, strict=True)
            parts = tuple(F.linear(tensor, weight, add) for tensor, weight, add in given)
        q, k, v = (part.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2) for part in parts)
        return q, k, v

    def _more_keys(
        self, k: torch.Tensor, v: torch.Tensor, mask: SparseTensor, skipped: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor, SparseTensor, torch.Tensor | None]:
        """The keys of ``add_bias_kv`` and ``add_zero_attn``, which everybody sees."""
        size = (k.shape[0], self.num_heads, 1, self.head_dim)
        more: list[tuple[torch.Tensor, torch.Tensor]] = []
        if self.bias_k is not None and self.bias_v is not None:
            pair = (part.view(1, self.num_heads, 1, self.head_dim) for part in (self.bias_k, self.bias_v))
            more.append(tuple(part.expand(size) for part in pair))  # type: ignore[arg-type]
        if self.add_zero_attn:
            more.append((k.new_zeros(size), v.new_zeros(size)))
        if not more:
            return k, v, mask, skipped
        k, v = (
            torch.cat([own, *rest], 2)
            for own, *rest in ((k, *(m[0] for m in more)), (v, *(m[1] for m in more)))
        )
        rows = mask.numel() // max(1, mask.shape[-1])
        pos = torch.arange(rows + 1, device=k.device) * len(more)
        shape = (*mask.shape[:-1], len(more))
        everybody = torch.ones(rows * len(more), dtype=torch.bool, device=k.device)
        column = in_rows(pos, torch.arange(len(more), device=k.device).repeat(rows), everybody, shape)
        wider = torch.cat([mask.to_format("csr"), column], -1)
        assert isinstance(wider, SparseTensor)
        return k, v, wider, None if skipped is None else F.pad(skipped, (0, len(more)))


def _dense_mask(mask: torch.Tensor | None) -> torch.Tensor | None:
    """``attn_mask`` as torch's layer takes it."""
    if not isinstance(mask, SparseTensor):
        return mask
    if mask.dtype == torch.bool and not torch.compiler.is_compiling():
        warn(
            "attn_mask is a sparse tensor of bools: its True elements are masked out, as torch documents for "
            "MultiheadAttention, and all other pairs attend, on a dense copy. To list the pairs that attend "
            "(scorch._src.nn.masks), pass pairs=mask; to mask them out without this warning, pass "
            "attn_mask=mask.to_dense()"
        )
    check_budget(
        mask.numel() * mask.element_size(), "a dense attn_mask", "list the pairs that attend: pairs="
    )
    return mask.to_dense()


def _checked_pairs(pairs: torch.Tensor, attn_mask: torch.Tensor | None) -> SparseTensor:
    if attn_mask is not None:
        raise ArgumentError("give pairs or attn_mask, not both: leave out of pairs what attn_mask masks out")
    if not isinstance(pairs, SparseTensor):
        raise OperandError(
            f"pairs is a sparse tensor of bools, not a {type(pairs).__name__}; use scorch.from_torch(mask, "
            "format='csr') or scorch._src.nn.masks"
        )
    if pairs.dtype != torch.bool:
        raise DtypeError(f"pairs holds bools, not {pairs.dtype}; numbers to add to scores go as attn_mask")
    return pairs


def _turned(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Projected:
    """With the batch first; what was one tensor stays one."""
    turned = query.transpose(0, 1)
    keys = turned if key is query else key.transpose(0, 1)
    return turned, keys, keys if value is key else value.transpose(0, 1)


def _check(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layer: MultiheadAttention) -> None:
    given = {"query": (query, layer.embed_dim), "key": (key, layer.kdim), "value": (value, layer.vdim)}
    for name, (tensor, features) in given.items():
        if tensor.dim() != 3 or tensor.shape[-1] != features or tensor.shape[0] != query.shape[0]:
            raise ShapeError(
                f"{name} needs {features} features and the batch of query, {query.shape[0]}; with the batch "
                f"first its shape is {tuple(tensor.shape)}"
            )
    if key.shape[1] != value.shape[1]:
        raise ShapeError(f"there are {key.shape[1]} keys and {value.shape[1]} values")


def _for_heads(mask: SparseTensor, batch: tuple[int, int], pairs: tuple[int, int]) -> SparseTensor:
    """The mask with a batch that broadcasts to (N, heads)."""
    if mask.dim() == 3 and mask.shape[0] == batch[0] * batch[1]:
        split = mask.unflatten(0, batch)
        assert isinstance(split, SparseTensor)
        mask = split
    own = mask.shape[:-2]
    fits = not own or (len(own) == 2 and own[0] in (1, batch[0]) and own[1] in (1, batch[1]))
    if tuple(mask.shape[-2:]) != pairs or not fits:
        raise ShapeError(
            f"pairs has shape {pairs}, {(batch[0] * batch[1], *pairs)} or {(*batch, *pairs)}, "
            f"not {tuple(mask.shape)}"
        )
    return mask


def _skipped(padding: torch.Tensor | None, key: torch.Tensor) -> torch.Tensor | None:
    if padding is None:
        return None
    if padding.dtype != torch.bool:
        raise DtypeError(f"with pairs, key_padding_mask holds bools, not {padding.dtype}")
    if padding.shape != key.shape[:2]:
        wanted = tuple(key.shape[:2])
        raise ShapeError(
            f"key_padding_mask has shape {tuple(padding.shape)}, the keys {wanted} (batch, keys)"
        )
    return padding.to_dense() if isinstance(padding, SparseTensor) else padding


@operator(
    "masked_attention(Tensor q, Tensor k, Tensor v, Tensor mask, bool is_causal, float dropout, "
    "Tensor? skipped) -> Tensor",
    lambda q, k, v, *_: q.new_empty((*q.shape[:-1], v.shape[-1])),
)
def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: SparseTensor,
    is_causal: bool,
    dropout: float,
    skipped: torch.Tensor | None,
) -> torch.Tensor:
    """What each head gives, (N, heads, L, features)."""
    batch = (q.shape[0], q.shape[1])
    return attend(q, k, v, pairs_of(mask, is_causal), batch, dropout=dropout, skipped=skipped)


def _like_weights(
    q: torch.Tensor, k: torch.Tensor, mask: Any, is_causal: bool, skipped: Any, is_mean: bool
) -> torch.Tensor:
    batch = q.shape[:1] if is_mean else q.shape[:2]
    return q.new_empty((*batch, q.shape[2], k.shape[2]))


@operator(
    "attention_weights(Tensor q, Tensor k, Tensor mask, bool is_causal, Tensor? skipped, bool is_mean) "
    "-> Tensor",
    _like_weights,
)
def _weights(
    q: torch.Tensor,
    k: torch.Tensor,
    mask: SparseTensor,
    is_causal: bool,
    skipped: torch.Tensor | None,
    is_mean: bool,
) -> torch.Tensor:
    """What each query gives to each key, (N, heads, L, S), or the mean over the heads."""
    pairs, batch = pairs_of(mask, is_causal), (q.shape[0], q.shape[1])
    heads = heads_of(pairs, batch, q.shape[-1], None, skipped=skipped)
    Q, K = (
        tensor.detach() if tensor.dtype == torch.float64 else tensor.detach().float() for tensor in (q, k)
    )
    shape = (q.shape[2], k.shape[2])
    none = torch.zeros(0, dtype=torch.int64, device=Q.device)
    counts, keys, values = [none], [none], [Q.new_zeros(0)]  # there may be no heads
    for place, rows, columns in reference.entries(pairs, heads):
        counts.append(torch.bincount(rows, minlength=shape[0]))
        keys.append(columns)
        scale = torch.full(columns.shape, heads.scale, dtype=Q.dtype, device=Q.device)
        M = in_rows(pointers(counts[-1]), columns, scale, shape)
        S = evaluate("S[i,j] = M[i,j] * Q[i,k] * K[j,k]", M=M, Q=Q[place], K=K[place], format="csr")
        values.append(torch.sparse.softmax(S, 1).values())
    pos, weights = pointers(torch.cat(counts)), torch.cat(values).to(q.dtype)
    found = in_rows(pos, torch.cat(keys), weights, (*batch, *shape))
    if not is_mean:
        return found
    return evaluate(
        "M[n,i,j] = W[n,h,i,j] * m[h]", W=found, m=weights.new_full(batch[1:], 1 / batch[1]), format="csr"
    )

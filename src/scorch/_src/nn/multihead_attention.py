"""``MultiheadAttention`` over the pairs of a sparse mask, in memory proportional to tokens and pairs."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from scorch._src.compile.capture.function_operators import operator
from scorch._src.nn.layer import Layer
from scorch._src.nn.masks import csr_from_rows, row_pointers
from scorch._src.ops.attention import reference
from scorch._src.ops.attention.mask_pairs import find_pairs
from scorch._src.ops.attention.sdpa import attend, make_heads
from scorch._src.statements.autocast import without_autocast
from scorch._src.statements.evaluate import evaluate
from scorch._src.statements.operands import as_differentiable
from scorch._src.storage.budget import check_budget
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import ArgumentError, DtypeError, OperandError, ShapeError, kind_of, warn

Projected = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class MultiheadAttention(Layer, torch.nn.MultiheadAttention):
    """``torch.nn.MultiheadAttention`` with sparse attention over ``pairs`` of tokens.

    The constructor and the parameters are those of ``torch.nn.MultiheadAttention``. ``forward`` has one more
    argument, ``pairs``, the query-key pairs to compute.

    .. warning::

       ``attn_mask`` and ``key_padding_mask`` mean what they mean in PyTorch, even if they are sparse:
       **True is masked out**, and floating-point values are added to the scores. A sparse ``attn_mask``
       is converted to dense. Only ``pairs`` saves time and memory.

    Args:
        embed_dim, num_heads, dropout, bias, batch_first, device, dtype: as in PyTorch.
        add_bias_kv, add_zero_attn, kdim, vdim: as in PyTorch.

    Example:

        >>> import torch, scorch
        >>> near = scorch.nn.masks.window(64, 4)
        >>> layer = scorch.nn.MultiheadAttention(32, 4, batch_first=True)
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
        """Compute attention over ``pairs``, or as PyTorch does without them.

        Args:
            query: the queries, as in PyTorch.
            key: the keys, as in PyTorch.
            value: the values, as in PyTorch.
            key_padding_mask: the keys to ignore; must be a bool tensor with ``pairs``.
            need_weights: whether to return the attention weights; by default only without ``pairs``.
            attn_mask: PyTorch's mask, in which True is masked out; not allowed with ``pairs``.
            average_attn_weights: whether to average the attention weights over the heads.
            is_causal: whether to ignore keys after the query.
            pairs: a sparse bool tensor of the query-key pairs to compute, as ``scorch.nn.masks`` returns,
                of shape (L, S), (N * num_heads, L, S), or 4-D and broadcastable to (N, num_heads, L, S).

        Returns:
            The output and the attention weights or None. With ``pairs``, the weights are a sparse tensor,
            without dropout and detached; and the output of a query without keys is zero, where PyTorch
            returns NaN.
        """
        if pairs is None:
            result: tuple[torch.Tensor, torch.Tensor | None] = super().forward(
                query,
                key,
                value,
                key_padding_mask,
                need_weights is not False,
                _dense_mask(attn_mask),
                average_attn_weights,
                is_causal,
            )
            return result
        mask = _check_pairs(pairs, attn_mask)
        is_batched = query.dim() == 3
        if not is_batched:
            query, key, value = (tensor.unsqueeze(0) for tensor in (query, key, value))
            if key_padding_mask is not None:
                key_padding_mask = key_padding_mask.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = transpose_batch(query, key, value)
        _check(query, key, value, self)
        q, k, v = self._project(query, key, value)
        is_swapped = is_batched and not self.batch_first
        mask = _reshape_mask(mask, (q.shape[0], self.num_heads), (q.shape[2], key.shape[1]), is_swapped)
        skipped = _check_padding(key_padding_mask, key)
        k, v, mask, skipped = self._append_bias_keys(k, v, mask, skipped)
        dropout = self.dropout if self.training else 0.0
        skipped_keys = None if skipped is None else skipped[:, None]
        is_captured = torch.compiler.is_compiling()
        attend = torch.ops.scorch.masked_attention if is_captured else _masked_attention
        compute_weights = torch.ops.scorch.attention_weights if is_captured else _attention_weights
        heads = attend(q, k, v, mask, is_causal, dropout, skipped_keys)
        out = self.out_proj(heads.transpose(1, 2).flatten(2))
        weights = None
        if need_weights:
            weights = compute_weights(q, k, mask, is_causal, skipped_keys, average_attn_weights)
        if not is_batched:
            return out[0], None if weights is None else weights[0]
        return out if self.batch_first else out.transpose(0, 1), weights

    def _project(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Projected:
        """Project queries, keys and values to all heads, (N, heads, tokens, features)."""
        bias = self.in_proj_bias
        if self.in_proj_weight is not None and query is key is value:
            projections = F.linear(query, self.in_proj_weight, bias).chunk(3, -1)
        else:
            separate = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
            weights = separate if self.in_proj_weight is None else self.in_proj_weight.chunk(3)
            biases = (None,) * 3 if bias is None else bias.chunk(3)
            inputs = zip((query, key, value), weights, biases, strict=True)
            projections = tuple(F.linear(tensor, weight, add) for tensor, weight, add in inputs)
        q, k, v = (
            projection.reshape(*projection.shape[:-1], self.num_heads, self.head_dim).transpose(1, 2)
            for projection in projections
        )
        return q, k, v

    def _append_bias_keys(
        self, k: torch.Tensor, v: torch.Tensor, mask: SparseTensor, skipped: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor, SparseTensor, torch.Tensor | None]:
        """Append the keys of ``add_bias_kv`` and ``add_zero_attn``, which every query attends to."""
        size = (k.shape[0], self.num_heads, 1, self.head_dim)
        extra: list[tuple[torch.Tensor, torch.Tensor]] = []
        if self.bias_k is not None and self.bias_v is not None:
            k_bias, v_bias = (bias.view(1, *size[1:]).expand(size) for bias in (self.bias_k, self.bias_v))
            extra.append((k_bias, v_bias))
        if self.add_zero_attn:
            extra.append((k.new_zeros(size), v.new_zeros(size)))
        if not extra:
            return k, v, mask, skipped
        k = torch.cat([k, *(pair[0] for pair in extra)], 2)
        v = torch.cat([v, *(pair[1] for pair in extra)], 2)
        rows = mask.numel() // max(1, mask.shape[-1])
        pos = torch.arange(rows + 1, device=k.device) * len(extra)
        shape = (*mask.shape[:-1], len(extra))
        all_true = torch.ones(rows * len(extra), dtype=torch.bool, device=k.device)
        column = csr_from_rows(pos, torch.arange(len(extra), device=k.device).repeat(rows), all_true, shape)
        wider = torch.cat([mask.to_format("csr"), column], -1)
        assert isinstance(wider, SparseTensor)
        return k, v, wider, None if skipped is None else F.pad(skipped, (0, len(extra)))


def _dense_mask(mask: torch.Tensor | None) -> torch.Tensor | None:
    """Convert ``attn_mask`` for PyTorch's layer."""
    if not isinstance(mask, SparseTensor):
        return mask
    if mask.dtype == torch.bool and not torch.compiler.is_compiling():
        warn(
            "attn_mask is a sparse bool tensor: its True elements are masked out, as in "
            "torch.nn.MultiheadAttention, and all other pairs are computed (the mask is converted to dense). "
            "If the mask lists the pairs to compute, like those of scorch.nn.masks, pass pairs=mask; to "
            "silence this warning, pass attn_mask=mask.to_dense()"
        )
    size = mask.numel() * mask.element_size()
    check_budget(size, mask.device, "a dense attn_mask", "list the pairs to compute: pairs=")
    return mask.to_dense()


def _check_pairs(pairs: torch.Tensor, attn_mask: torch.Tensor | None) -> SparseTensor:
    if attn_mask is not None:
        raise ArgumentError(
            "pass either pairs or attn_mask, not both; remove what attn_mask masks out from pairs"
        )
    if isinstance(pairs, torch.Tensor):
        pairs = as_differentiable("pairs", pairs)
    if not isinstance(pairs, SparseTensor):
        raise OperandError(
            f"pairs must be a sparse bool tensor, but got {kind_of(pairs)}; use scorch.nn.masks or "
            "scorch.from_torch(mask, format='csr')"
        )
    if pairs.dtype != torch.bool:
        raise DtypeError(
            f"pairs must be a bool tensor, but got {pairs.dtype}; to add values to the scores, pass attn_mask"
        )
    return pairs


def transpose_batch(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Projected:
    """Put the batch first; one tensor passed twice stays one."""
    queries = query.transpose(0, 1)
    keys = queries if key is query else key.transpose(0, 1)
    return queries, keys, keys if value is key else value.transpose(0, 1)


def _check(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layer: MultiheadAttention) -> None:
    expected = {"query": (query, layer.embed_dim), "key": (key, layer.kdim), "value": (value, layer.vdim)}
    for name, (tensor, features) in expected.items():
        if tensor.dim() != 3 or tensor.shape[-1] != features or tensor.shape[0] != query.shape[0]:
            raise ShapeError(
                f"{name} must have {features} features and the batch size of query, {query.shape[0]}, but "
                "has "
                f"shape {tuple(tensor.shape)} with the batch first"
            )
    if key.shape[1] != value.shape[1]:
        raise ShapeError(
            f"key and value must have the same length, but got {key.shape[1]} and {value.shape[1]}"
        )


def _reshape_mask(
    mask: SparseTensor, batch: tuple[int, int], pairs: tuple[int, int], is_swapped: bool = False
) -> SparseTensor:
    """Reshape the mask so that its batch broadcasts to (N, heads)."""
    if mask.dim() == 3 and mask.shape[0] == batch[0] * batch[1]:
        split = mask.unflatten(0, batch)
        assert isinstance(split, SparseTensor)
        mask = split
    mask_batch = mask.shape[:-2]
    broadcasts = not mask_batch or (
        len(mask_batch) == 2 and mask_batch[0] in (1, batch[0]) and mask_batch[1] in (1, batch[1])
    )
    if tuple(mask.shape[-2:]) != pairs or not broadcasts:
        raise ShapeError(
            f"pairs must have shape {pairs}, {(batch[0] * batch[1], *pairs)} or {(*batch, *pairs)}, "
            f"but got {tuple(mask.shape)}"
            + ("; the input is read as (tokens, batch, features): batch_first=True?" if is_swapped else "")
        )
    return mask


def _check_padding(padding: torch.Tensor | None, key: torch.Tensor) -> torch.Tensor | None:
    if padding is None:
        return None
    if padding.dtype != torch.bool:
        raise DtypeError(f"with pairs, key_padding_mask must be a bool tensor, but got {padding.dtype}")
    if padding.shape != key.shape[:2]:
        expected = tuple(key.shape[:2])
        raise ShapeError(
            f"key_padding_mask must have shape (batch, keys) = {expected}, but got {tuple(padding.shape)}"
        )
    return padding.to_dense() if isinstance(padding, SparseTensor) else padding


@operator(
    "masked_attention(Tensor q, Tensor k, Tensor v, Tensor mask, bool is_causal, float dropout, "
    "Tensor? skipped) -> Tensor",
    lambda q, k, v, *_: q.new_empty((*q.shape[:-1], v.shape[-1])),
)
def _masked_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: SparseTensor,
    is_causal: bool,
    dropout: float,
    skipped: torch.Tensor | None,
) -> torch.Tensor:
    """Compute the attention of each head, (N, heads, L, features)."""
    batch = (q.shape[0], q.shape[1])
    return attend(q, k, v, find_pairs(mask, is_causal), batch, dropout=dropout, skipped=skipped)


@operator(
    "attention_weights(Tensor q, Tensor k, Tensor mask, bool is_causal, Tensor? skipped, bool is_mean) "
    "-> Tensor",
    lambda q, k, mask, is_causal, skipped, is_mean: q.new_empty(
        (*q.shape[: 1 if is_mean else 2], q.shape[2], k.shape[2])
    ),
)
def _attention_weights(
    q: torch.Tensor,
    k: torch.Tensor,
    mask: SparseTensor,
    is_causal: bool,
    skipped: torch.Tensor | None,
    is_mean: bool,
) -> torch.Tensor:
    """Compute the attention weights, (N, heads, L, S), or their mean over the heads."""
    pairs, batch = find_pairs(mask, is_causal), (q.shape[0], q.shape[1])
    heads = make_heads(pairs, batch, q.shape[-1], None, skipped=skipped)
    Q, K = (
        tensor.detach() if tensor.dtype == torch.float64 else tensor.detach().float() for tensor in (q, k)
    )
    shape = (q.shape[2], k.shape[2])
    none = torch.zeros(0, dtype=torch.int64, device=Q.device)
    counts, keys, values = [none], [none], [Q.new_zeros(0)]  # there may be no heads
    for batch_and_head, rows, columns in reference.entries(pairs, heads):
        counts.append(torch.bincount(rows, minlength=shape[0]))
        keys.append(columns)
        scale = torch.full(columns.shape, heads.scale, dtype=Q.dtype, device=Q.device)
        M = csr_from_rows(row_pointers(counts[-1]), columns, scale, shape)
        own_Q, own_K = Q[batch_and_head], K[batch_and_head]
        with without_autocast(Q.device):
            S = evaluate("S[i,j] = M[i,j] * Q[i,k] * K[j,k]", M=M, Q=own_Q, K=own_K, format="csr")
        values.append(torch.sparse.softmax(S, 1).values())
    pos, weights = row_pointers(torch.cat(counts)), torch.cat(values).to(q.dtype)
    weights_by_head = csr_from_rows(pos, torch.cat(keys), weights, (*batch, *shape))
    if not is_mean:
        return weights_by_head
    return evaluate(
        "M[n,i,j] = W[n,h,i,j] * m[h]",
        W=weights_by_head,
        m=weights.new_full(batch[1:], 1 / batch[1]),
        format="csr",
    )

"""Multi-head attention whose projections have sparse weights."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from scorch._src.grad_state import is_plain_inference, untracked
from scorch._src.name_hints import created_by_sparsify
from scorch._src.nn.multihead_attention import MultiheadAttention, Projected, transpose_batch
from scorch._src.nn.sparse_layer import SparseLayer
from scorch._src.nn.sparse_linear import SparseLinear
from scorch._src.statements.autocast import is_autocast
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import DtypeError, ShapeError

SETTINGS = (
    "embed_dim",
    "kdim",
    "vdim",
    "_qkv_same_embed_dim",
    "num_heads",
    "dropout",
    "batch_first",
    "head_dim",
    "add_zero_attn",
)
INPUTS = {"in_proj": "in_proj_weight"}
SEPARATE_INPUTS = {"q_proj": "q_proj_weight", "k_proj": "k_proj_weight", "v_proj": "v_proj_weight"}


def has_one_size(layer: torch.nn.MultiheadAttention) -> bool:
    """Whether queries, keys and values have the same number of features, and one weight."""
    return bool(layer.embed_dim == layer.kdim == layer.vdim)


def input_projections(layer: torch.nn.MultiheadAttention) -> dict[str, str]:
    """Return the names of the input projections, and of their weights in PyTorch's layer."""
    return INPUTS if has_one_size(layer) else SEPARATE_INPUTS


class SparseMultiheadAttention(SparseLayer, MultiheadAttention):
    """``torch.nn.MultiheadAttention`` with sparse weights in ``in_proj`` and ``out_proj``.

    Create it with ``scorch.sparsify``. ``forward`` has all of PyTorch's arguments and ``pairs``, as in
    ``scorch.nn.MultiheadAttention``. If queries, keys and values have different sizes, ``q_proj``, ``k_proj``
    and ``v_proj`` replace ``in_proj``.

    Example:

        >>> import torch, scorch
        >>> layer = scorch.sparsify(torch.nn.MultiheadAttention(32, 4), sparsity=0.9, prefer="size")
        >>> x = torch.ones(10, 2, 32)
        >>> layer(x, x, x)[0].shape, layer.out_proj.nnz
        (torch.Size([10, 2, 32]), 102)
    """

    in_proj: SparseLinear
    q_proj: SparseLinear
    k_proj: SparseLinear
    v_proj: SparseLinear
    out_proj: SparseLinear  # type: ignore[assignment]

    @created_by_sparsify
    def __init__(self, projections: dict[str, SparseLinear], layer: torch.nn.MultiheadAttention) -> None:
        torch.nn.Module.__init__(self)
        for name in SETTINGS:
            setattr(self, name, getattr(layer, name))
        for name, projection in projections.items():
            self.add_module(name, projection)
        for name in ("in_proj_bias", "bias_k", "bias_v"):
            old = getattr(layer, name)
            self.register_parameter(name, None if old is None else torch.nn.Parameter(old.detach().clone()))
        self._slices: dict[tuple[int, int], Any] = {}

    @classmethod
    def from_weights(
        cls, weights: dict[str, SparseTensor], layer: torch.nn.MultiheadAttention
    ) -> SparseMultiheadAttention:
        """Return a layer with these projection weights by name, and all other settings of ``layer``."""
        biases = {"out_proj": layer.out_proj.bias}
        made = {name: SparseLinear.from_weight(weight, biases.get(name)) for name, weight in weights.items()}
        return cls(made, layer)

    # what torch's layers read of the attention in them: a sparse weight keeps them off their fused kernels

    @property
    def in_proj_weight(self) -> Any:  # type: ignore[override]
        """The weight of ``in_proj``; None if there are three projections."""
        return self.in_proj.weight if has_one_size(self) else None

    @property
    def q_proj_weight(self) -> Any:  # type: ignore[override]
        return None if has_one_size(self) else self.q_proj.weight

    @property
    def k_proj_weight(self) -> Any:  # type: ignore[override]
        return None if has_one_size(self) else self.k_proj.weight

    @property
    def v_proj_weight(self) -> Any:  # type: ignore[override]
        return None if has_one_size(self) else self.v_proj.weight

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
        """Compute attention as PyTorch does, or over ``pairs``."""
        inputs = (query, key, value)
        is_usual = query.dim() == 3 and not any(tensor.is_nested for tensor in inputs)
        has_more_keys = self.bias_k is not None or self.add_zero_attn
        if pairs is not None or not is_usual or has_more_keys or isinstance(attn_mask, SparseTensor):
            return super().forward(
                *inputs,
                key_padding_mask,
                need_weights,
                attn_mask,
                average_attn_weights,
                is_causal,
                pairs=pairs,
            )
        if is_causal and attn_mask is None:
            raise RuntimeError("Need attn_mask if specifying the is_causal hint.")  # as torch says it
        if not self.batch_first:
            query, key, value = transpose_batch(query, key, value)
        needs = need_weights is not False
        is_hint_enough = is_causal and key_padding_mask is None and not needs
        if not is_hint_enough:
            _check_masks(attn_mask, key_padding_mask, query, key, self.num_heads, needs)
        q, k, v = self._project(query, key, value)
        mask = None if is_hint_enough else _merge_masks(attn_mask, key_padding_mask, q, k.shape[2])
        dropout = self.dropout if self.training else 0.0
        weights = None
        if needs:
            scores = q @ k.transpose(-2, -1) * self.head_dim**-0.5
            weights = F.softmax(scores if mask is None else scores + mask, -1)
            weights = F.dropout(weights, dropout) if dropout else weights
            heads = weights @ v
            weights = weights.mean(1) if average_attn_weights else weights
        else:
            heads = F.scaled_dot_product_attention(q, k, v, mask, dropout, is_hint_enough)
        out = self.out_proj(heads.transpose(1, 2).flatten(2))
        return out if self.batch_first else out.transpose(0, 1), weights

    def _project(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Projected:
        if not has_one_size(self):
            layers = (self.q_proj, self.k_proj, self.v_proj)
            biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
            triples = zip(layers, (query, key, value), biases, strict=True)
            parts = [layer.multiply(x, bias) for layer, x, bias in triples]
        elif query is key is value:
            parts = list(self._project_rows(query, 0, 3))
        elif key is value:
            parts = [*self._project_rows(query, 0, 1), *self._project_rows(key, 1, 3)]
        else:
            parts = [self._project_rows(x, part, part + 1)[0] for part, x in enumerate((query, key, value))]
        heads = self.num_heads, self.head_dim
        q, k, v = (part.view(*part.shape[:-1], *heads).transpose(1, 2) for part in parts)
        return q, k, v

    def _project_rows(self, x: torch.Tensor, begin: int, end: int) -> tuple[torch.Tensor, ...]:
        """Project to queries, keys and values, or those of them from ``begin`` to ``end``."""
        size = self.embed_dim
        bias = None if self.in_proj_bias is None else self.in_proj_bias[begin * size : end * size]
        if end - begin == 3:
            return self.in_proj.multiply(x, bias).chunk(3, -1)
        weight = self._weight_rows(x, begin * size, end * size)
        return F.linear(x, weight, bias).chunk(end - begin, -1)

    def _whole_weight(self, x: torch.Tensor) -> SparseTensor:
        layer = self.in_proj
        if layer.values.dtype != x.dtype:  # stored in fewer bits
            weight = layer.weight
            return weight if weight.dtype == x.dtype else weight.to(x.dtype)  # type: ignore[return-value]
        is_plain = type(x) is torch.Tensor and is_plain_inference(x, layer.values)
        return layer._detached_weight(layer.values) if is_plain else layer.weight

    def _weight_rows(self, x: torch.Tensor, begin: int, end: int) -> SparseTensor:
        """Return some rows of the weight; cached for inference while the values do not change."""
        weight = self._whole_weight(x)
        if weight.requires_grad or torch.compiler.is_compiling():
            return weight[begin:end]  # type: ignore[return-value]
        key, values = (begin, end), self.in_proj.values
        version = 0 if values.is_inference() else values._version
        state = (weight.storage.pattern, version)
        known: Any = self._slices.get(key)
        if known is None or known[0] != state or not known[1].is_set_to(values):
            with untracked():
                known = self._slices[key] = state, values.detach(), weight[begin:end]
        return known[2]  # type: ignore[no-any-return]

    def to_dense(self) -> torch.nn.MultiheadAttention:
        """Return a ``torch.nn.MultiheadAttention`` with the same weights."""
        weight, has_bias = self.out_proj.weight, self.in_proj_bias is not None
        dtype = weight.dtype if self.out_proj.bias is None else self.out_proj.bias.dtype
        layer = MultiheadAttention(
            self.embed_dim,
            self.num_heads,
            self.dropout,
            has_bias,
            self.bias_k is not None,
            self.add_zero_attn,
            self.kdim,
            self.vdim,
            self.batch_first,
            dtype=dtype,
            device=weight.device,
        )
        with torch.no_grad():
            for table, name in input_projections(self).items():
                getattr(layer, name).copy_(getattr(self, table).weight.detach().to_dense())
            layer.out_proj.weight.copy_(self.out_proj.weight.detach().to_dense())
            for name in ("in_proj_bias", "bias_k", "bias_v", "out_proj.bias"):
                if (old := _get(self, name)) is not None:
                    _get(layer, name).copy_(old)
        return layer

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_slices": {}}

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        """Accept dense weights, too, of which only the stored elements are loaded."""
        for table, name in input_projections(self).items():
            if (weight := state_dict.pop(f"{prefix}{name}", None)) is not None:
                state_dict[f"{prefix}{table}.weight"] = weight
        super()._load_from_state_dict(state_dict, prefix, *args)


def _get(layer: torch.nn.Module, path: str) -> Any:
    for name in path.split("."):
        layer = getattr(layer, name)
    return layer


def _check_masks(
    mask: torch.Tensor | None,
    padding: torch.Tensor | None,
    query: torch.Tensor,
    key: torch.Tensor,
    heads: int,
    needs_weights: bool,
) -> None:
    """Refuse the masks that PyTorch refuses, instead of broadcasting or converting them."""
    (batch, queries, _), keys = query.shape, key.shape[1]
    shapes: list[tuple[str, torch.Tensor | None, list[tuple[int, ...]]]] = [
        ("attn_mask", mask, [(queries, keys), (batch * heads, queries, keys)]),
        ("key_padding_mask", padding, [(batch, keys)]),
    ]
    added = None  # the dtype of what is added to the scores
    for name, given, allowed in shapes:
        if given is None:
            continue
        if given.dtype != torch.bool and not given.dtype.is_floating_point:
            raise DtypeError(f"{name} must be a bool or floating-point tensor, but got {given.dtype}")
        if tuple(given.shape) not in allowed:
            expected = " or ".join(str(shape) for shape in allowed)
            raise ShapeError(f"{name} must have shape {expected}, but got {tuple(given.shape)}")
        own = query.dtype if given.dtype == torch.bool else given.dtype
        added = own if added is None else torch.promote_types(added, own)
    accepted = {query.dtype} if needs_weights else {query.dtype, torch.float32}
    if added is not None and added not in accepted and not is_autocast():
        raise DtypeError(f"a mask of numbers must have the dtype of query, {query.dtype}, but got {added}")


def _merge_masks(
    mask: torch.Tensor | None, padding: torch.Tensor | None, q: torch.Tensor, keys: int
) -> torch.Tensor | None:
    """Return what is added to the scores (N, heads, L, S), from masks in which True is masked out."""
    batch, heads, queries, _ = q.shape
    if mask is not None:
        mask = _as_numbers(mask, q.dtype)
        mask = mask.view(batch, heads, queries, keys) if mask.dim() == 3 else mask
    if padding is None:
        return mask
    padding = _as_numbers(padding, q.dtype).view(batch, 1, 1, keys)
    return padding if mask is None else mask + padding


def _as_numbers(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, float("-inf"))

"""PyTorch modules that contain a sparse layer and what follows it: both are computed in one pass.

``fuse_modules`` gives such modules of a model a class that is theirs but for ``forward``, and the norms of
the model those of ``fused_norms``; parts, names and ``state_dict`` stay as they are. Where a part has hooks,
another ``forward`` or is compiled, or dropout drops, the parts are called one after the other.
"""

from __future__ import annotations

from typing import Any

import torch

from scorch._src.nn.layer import KernelLayer
from scorch._src.nn.module_mixin import ModuleMixin, original_class
from scorch._src.nn.pruned.fused_norms import FusedLayerNorm, FusedRMSNorm, fused_norm_like
from scorch._src.nn.pruned.sparse_conv import SparseConv1d, SparseConv2d
from scorch._src.nn.pruned.transposed_linear import SparseTransposedLinear
from scorch._src.nn.sparse_linear import SparseLinear
from scorch._src.ops.products.activations import name_of_activation
from scorch._src.torch_internals import has_global_hooks


class FusedSequential(ModuleMixin, KernelLayer, torch.nn.Sequential):
    """A ``Sequential`` whose sparse layers are fused with the batch norms and activations after them."""

    def forward(self, input: Any) -> Any:
        modules = list(self)
        while modules:
            layer: Any = modules.pop(0)
            norm = modules.pop(0) if modules and _is_norm_of(layer, modules[0]) else None
            name = name_of_activation(modules[0]) if modules and not has_hooks(modules[0]) else None
            is_sparse = _is_plain(layer) or _is_plain_convolution(layer)
            if not is_sparse or (name is None and norm is None):
                input = layer(input)
                continue
            modules = modules if name is None else modules[1:]
            input = layer.fused(input, name) if norm is None else layer.fused(input, name, norm=norm)
        return input


def _feed_forward(layer: Any, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
    """Compute the perceptron of a Transformer's layer, where nothing is dropped."""
    name = None if has_hooks(layer.activation) else name_of_activation(layer.activation)
    if name is not None and _is_plain(layer.linear1):
        hidden = layer.linear1.fused(x, name)
    else:
        hidden = layer.activation(layer.linear1(x))
    if residual is not None and _is_plain(layer.linear2):
        return layer.linear2.fused(hidden, None, residual)  # type: ignore[no-any-return]
    output: torch.Tensor = layer.linear2(hidden)
    return output if residual is None else residual + output


class FusedEncoderLayer(ModuleMixin, KernelLayer, torch.nn.TransformerEncoderLayer):
    """A ``TransformerEncoderLayer`` whose feed-forward block is fused with its activation and residual."""

    def forward(
        self,
        src: torch.Tensor,
        src_mask: torch.Tensor | None = None,
        src_key_padding_mask: torch.Tensor | None = None,
        is_causal: bool = False,
    ) -> torch.Tensor:
        """Do as torch's layer."""
        if self.training or src.is_nested or not _drop_nothing(self.dropout, self.dropout1, self.dropout2):
            return super().forward(src, src_mask, src_key_padding_mask, is_causal)

        def attend(x: torch.Tensor) -> torch.Tensor:
            masks: dict[str, Any] = {"attn_mask": src_mask, "key_padding_mask": src_key_padding_mask}
            return self.self_attn(x, x, x, **masks, need_weights=False, is_causal=is_causal)[0]  # type: ignore[no-any-return]

        if self.norm_first:
            src = src + attend(self.norm1(src))
            return _feed_forward(self, self.norm2(src), src)
        src = self.norm1(src + attend(src))
        return self.norm2(_feed_forward(self, src, src))  # type: ignore[no-any-return]


class FusedEncoder(ModuleMixin, torch.nn.TransformerEncoder):
    """A ``TransformerEncoder`` with sparse layers, which returns what PyTorch's returns for padded inputs.

    In inference, PyTorch drops the tokens at the end of sequences that are masked out, by nested tensors,
    which sparse layers do not take, and returns zeros there.
    """

    def forward(
        self,
        src: torch.Tensor,
        mask: torch.Tensor | None = None,
        src_key_padding_mask: torch.Tensor | None = None,
        is_causal: bool | None = None,
    ) -> torch.Tensor:
        """Do as torch's encoder."""
        padding = src_key_padding_mask
        if mask is not None or padding is None or not self._drops_padding(src, padding):
            return super().forward(src, mask, src_key_padding_mask, is_causal)
        is_padding = padding != 0  # True, or an added -inf
        for layer in self.layers:
            src = layer(src, src_mask=None, is_causal=bool(is_causal), src_key_padding_mask=is_padding)
        src = src.masked_fill(is_padding.unsqueeze(-1), 0.0)
        return src if self.norm is None else self.norm(src)

    def _drops_padding(self, src: torch.Tensor, padding: torch.Tensor) -> bool:
        """Whether torch's encoder would drop padding if its layers were dense."""
        first: Any = self.layers[0]
        checks_mask = getattr(self, "mask_check", True)
        if not self.use_nested_tensor or first.training or src.dim() != 3 or src.is_nested:
            return False
        if not torch.backends.mha.get_fastpath_enabled() or torch.is_autocast_enabled():
            return False
        if checks_mask and torch.compiler.is_compiling():
            return False
        if torch.is_grad_enabled() and any(each.requires_grad for each in (src, *first.parameters())):
            return False
        is_padding = padding != 0
        return not checks_mask or bool((is_padding[:, :-1] <= is_padding[:, 1:]).all())


class FusedDecoderLayer(ModuleMixin, KernelLayer, torch.nn.TransformerDecoderLayer):
    """A ``TransformerDecoderLayer`` whose feed-forward block is fused with its activation."""

    def _ff_block(self, x: torch.Tensor) -> torch.Tensor:
        if self.training or not _drop_nothing(self.dropout, self.dropout3):
            return super()._ff_block(x)
        return _feed_forward(self, x)


_CONVOLUTIONS = (SparseConv1d, SparseConv2d)
_LAYERS = (SparseLinear, SparseTransposedLinear, *_CONVOLUTIONS)
_FUSED: dict[type, type] = {
    torch.nn.Sequential: FusedSequential,
    torch.nn.TransformerEncoderLayer: FusedEncoderLayer,
    torch.nn.TransformerDecoderLayer: FusedDecoderLayer,
}
_WITH_SPARSE: dict[type, type] = {  # anywhere inside
    torch.nn.TransformerEncoder: FusedEncoder,
}
_NORMS: dict[type, type] = {torch.nn.LayerNorm: FusedLayerNorm, torch.nn.RMSNorm: FusedRMSNorm}


def fuse_modules(model: torch.nn.Module) -> torch.nn.Module:
    """Fuse what follows sparse layers in the modules of ``model``, and return it."""
    has_sparse = _has_sparse_layers(model)
    for module in model.modules():
        kind = original_class(module)
        if kind in _FUSED:
            is_fused = any(type(child) in _LAYERS for child in module.children())
            module.__class__ = _FUSED[kind] if is_fused else kind
        elif kind in _NORMS:
            module.__class__ = _NORMS[kind] if has_sparse else kind
        elif kind in _WITH_SPARSE:
            module.__class__ = _WITH_SPARSE[kind] if _has_sparse_layers(module) else kind
        elif kind.__name__.endswith("Norm"):
            module.__class__ = (fused_norm_like(module) if has_sparse else None) or kind
    return model


def _has_sparse_layers(module: torch.nn.Module) -> bool:
    return any(isinstance(part, SparseLinear) for part in module.modules())


def _is_plain(layer: Any) -> bool:
    """Whether a layer is a sparse one that only its ``forward`` computes."""
    return type(layer) in (SparseLinear, SparseTransposedLinear) and not has_hooks(layer)


def _is_plain_convolution(layer: Any) -> bool:
    """Whether a layer is a sparse convolution that only its ``forward`` computes."""
    return type(layer) in _CONVOLUTIONS and not has_hooks(layer)


def _is_norm_of(layer: Any, norm: Any) -> bool:
    """Whether a module is a batch norm in evaluation mode of what a sparse convolution returns."""
    if not _is_plain_convolution(layer) or norm.training or has_hooks(norm):
        return False
    kinds = {SparseConv1d: torch.nn.BatchNorm1d, SparseConv2d: torch.nn.BatchNorm2d}
    return type(norm) is kinds[type(layer)] and norm.running_mean is not None


def _drop_nothing(*modules: Any) -> bool:
    """Whether modules of dropout return what they are given, and calling them does nothing else."""
    return all(
        type(module) in (torch.nn.Dropout, torch.nn.Identity)
        and not module.training
        and not has_hooks(module)
        for module in modules
    )


def has_hooks(module: Any) -> bool:
    """Whether calling a module does more than the ``forward`` of its class; functions have no hooks."""
    if not isinstance(module, torch.nn.Module):
        return False
    own = (
        "forward" in module.__dict__,  # torch 2.8 does not trace vars()
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
        module._compiled_call_impl,
    )
    return any(own) or has_global_hooks()

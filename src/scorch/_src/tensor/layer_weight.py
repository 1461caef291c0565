"""The weight of a sparse layer: a tensor whose values are a parameter of the layer.

Each time it is read, ``layer.weight`` is a new tensor, computed from ``layer.values`` and the sparsity
pattern of the layer. To users it is what the weight of a dense layer is: a leaf, which can be written to in
place where no gradients are tracked. A write changes the values of the layer. The pattern stays fixed, as
that of a pruned layer does in training: what a function writes to all elements of the weight, or of a view of
it, is dropped where the pattern stores nothing. A write raises an error if it names elements by an index and
some of these would have to be stored, or if nothing that it writes to is stored.

A weight that is kept follows the layer, whose pattern may change. Its gradient is that of the values.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch

from scorch._src.grad_state import is_transformed
from scorch._src.storage.storage import Pattern, Storage, add_weak, plain
from scorch._src.tensor.autograd import placed, sparse_of, values_at
from scorch._src.tensor.hooks import hooks
from scorch._src.tensor.registry import implements
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import WEIGHT_NORM, DisableTorchFunctionSubclass
from scorch.errors import InPlaceError, UnsupportedError

KEPT = "_kept_weights"  # where a layer has the storages of weights that were read from it
BY_INDEX = ("fill_diagonal_", "index_", "masked_", "put_", "scatter_", "_index_put_impl_")  # how names begin


def weight_of_layer(layer: Any, pattern: Pattern, values: torch.Tensor) -> SparseTensor:
    """Return the weight of a ``SparseLinear``, which may have another shape for a user.

    The values are ``layer.values`` or computed from them.
    """
    if torch.compiler.is_compiling():
        return sparse_of(pattern, values)
    if sys._getframe(2).f_globals.get("__name__") == WEIGHT_NORM:
        raise UnsupportedError(
            "torch.nn.utils.weight_norm cannot be applied to a layer whose weight is sparse; apply it to "
            "layer.to_dense(), which scorch.sparsify leaves dense"
        )
    weight = sparse_of(pattern, values, layer)
    weight.weight_of = layer
    weight.storage.layer_values = parameter = layer.values
    if values is parameter:
        add_weak(layer.__dict__.setdefault(KEPT, []), weight.storage)
    return weight


def layer_of(weight: SparseTensor) -> Any:
    """Return the layer whose weight a tensor is, also if a compiled graph has returned it; None if it is not.

    To a graph, a weight and the same detached differ in whether they require a gradient.
    """
    reference = weight.storage.layer
    if weight.weight_of is not None or reference is None:
        return weight.weight_of
    layer = reference()
    is_detached = layer is not None and layer.values.requires_grad and not weight.requires_grad
    return None if is_detached and torch.is_grad_enabled() else layer


def rewire_kept_weights(layer: Any) -> None:
    """Give the weights that were read from a layer, and are still in use, the new pattern of the layer."""
    values, size = layer.values, layer.pattern.size
    for storage in [reference() for reference in layer.__dict__.get(KEPT, ())]:
        if storage is not None and storage.layer_values is values and values.shape == (size,):
            storage.take(layer._pattern_of_shape(storage.pattern.shape), plain(values.detach()))
            storage.drop_copies()


def computed_weight_error(name: str) -> UnsupportedError:
    """Return the error for what cannot be done to the weight of a layer."""
    return UnsupportedError(
        f"{name} cannot change the weight of a sparse layer: the weight is computed from layer.values; "
        "change layer.values in place, or use layer.rewire to change the sparsity pattern"
    )


def write_to_layer(storage: Storage, other: Storage) -> None:
    """Write ``other`` to the values of the layer whose weight ``storage`` is, on the pattern of the layer."""
    values = storage.layer_values
    assert values is not None
    if is_transformed():
        raise computed_weight_error("an in-place function inside torch.func")
    if not storage.values.is_set_to(values):
        raise UnsupportedError(
            "this tensor cannot be written to: the weight is computed from layer.values, which are stored in "
            "another dtype, or have been replaced since; change layer.values in place, read layer.weight "
            "again, or use layer.rewire to change the sparsity pattern"
        )
    with torch.no_grad():
        storage.values.copy_(placed(other.values, other.pattern, storage.pattern))


def check_layer_pattern(storage: Storage, written: Storage, name: str) -> None:
    """Refuse to write elements that the pattern of a layer does not store, unless many others are written."""
    base = storage if storage.origin is None else storage.origin.source
    if base.layer_values is None or written.pattern is storage.pattern:
        return
    if storage.pattern.size and not name.startswith(BY_INDEX):
        return
    kept = placed(written.values, written.pattern, storage.pattern)
    dropped = int(torch.count_nonzero(written.values)) - int(torch.count_nonzero(kept))
    if dropped:
        raise InPlaceError(
            f"{name} writes {dropped} nonzeros outside the sparsity pattern of a layer, which stays fixed; "
            "the weight is computed from layer.values: change those in place, or change the pattern with "
            "layer.rewire(weight), as in layer.rewire(new_weight_or_mask, new=0.0)"
        )


@implements(torch.Tensor.register_hook, differentiable=True)
def register_hook(self: torch.Tensor, hook: Callable[[torch.Tensor], Any]) -> Any:
    """Register a hook for the gradient; that of the weight of a layer is computed from that of its values."""
    layer = self.weight_of if isinstance(self, SparseTensor) else None
    if layer is None:
        with DisableTorchFunctionSubclass():
            return self.register_hook(hook)

    shape = self.shape  # not the weight, whose graph keeps the hook

    def run(gradient: torch.Tensor) -> torch.Tensor | None:
        pattern = layer._pattern_of_shape(shape)
        changed = hook(sparse_of(pattern, gradient))
        return None if changed is None else values_at(changed, pattern)

    return layer.values.register_hook(run)


@implements(torch.Tensor.register_post_accumulate_grad_hook, differentiable=True)
def register_post_accumulate_grad_hook(self: torch.Tensor, hook: Callable[[torch.Tensor], Any]) -> Any:
    """Register a hook for when a gradient is there: that of the values, for the weight of a layer."""
    layer = self.weight_of if isinstance(self, SparseTensor) else None
    if layer is None:
        with DisableTorchFunctionSubclass():
            return self.register_post_accumulate_grad_hook(hook)
    shape, reference = self.shape, weakref.ref(layer)  # the collector does not see who keeps these hooks

    def run(values: torch.Tensor) -> None:
        owner = reference()
        if owner is not None:
            hook(weight_of_layer(owner, owner._pattern_of_shape(shape), values))

    return layer.values.register_post_accumulate_grad_hook(run)


def gradient_of_weight(weight: SparseTensor) -> SparseTensor | None:
    """Return the gradient of the weight of a layer, writes to which change that of the values."""
    layer = layer_of(weight)
    gradient = None if layer is None else layer.values.grad
    if gradient is None:
        return None
    found = sparse_of(layer._pattern_of_shape(weight.shape), gradient)
    found.storage.layer_values = gradient
    return found


def _initialize(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a function of ``torch.nn.init``, none of which is tracked."""
    with torch.no_grad():
        return hooks.run_by_torch(func, args, kwargs)


for _name in ("constant_", "kaiming_uniform_", "normal_", "uniform_"):  # which torch hands over whole
    _function = getattr(torch.nn.init, _name)
    implements(_function, differentiable=True)(functools.partial(_initialize, _function))
Storage.write_to_layer, hooks.gradient_of_weight = write_to_layer, gradient_of_weight

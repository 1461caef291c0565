"""Report the sparsity that ``scorch.sparsify`` reached in a model, and the layers that it left dense.

Weights are parameters with at least two dimensions; biases and the parameters of norms are not counted. A
weight that several layers share counts once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from scorch._src.dataclass import dataclass
from scorch._src.nn.sparse_embedding import SparseEmbedding
from scorch._src.nn.sparse_linear import SparseLinear
from scorch._src.nn.weights.stored_values import WEIGHT_DTYPES
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import ConvNd

BY_REQUEST = "named in skip"
NOT_STORED_SPARSE = "its weights are not stored sparse"
SPARSITY_TOLERANCE = 0.005  # by which a rounded sparsity may miss the requested one
MAX_LAYERS_IN_WARNING = 4


@dataclass(frozen=True)
class SkippedLayer:
    """A layer whose weights were neither pruned nor stored sparse, and the reason."""

    name: str
    kind: str
    weights: int
    share: float  # of all weights of the model
    reason: str

    def __str__(self) -> str:
        return f"{self.name or '(model)'} ({self.kind}), {self.share:.1%} of all weights: {self.reason}"


@dataclass(frozen=True)
class Sparsification:
    """The requested sparsity, and the sparsity reached over the ``weights`` that ``skip`` does not name."""

    asked: float | None  # None for a model that sparsify did not make
    reached: float
    weights: int
    skipped: tuple[SkippedLayer, ...]
    weight_dtype: torch.dtype | None = None  # that sparse weights are stored in, if not in their own
    bytes: int = 0  # of the state_dict, and of one whose layers are all dense
    dense_bytes: int = 0
    error: float = 0.0  # the largest relative error of a weight by ``weight_dtype``
    kept: tuple[str, ...] = ()  # the layers that were sparse before, which keep their patterns
    is_stored_densely: bool = False  # whether no layer is stored sparse

    @property
    def skipped_share(self) -> float:
        """The fraction of all weights in layers that were left dense."""
        return sum(layer.share for layer in self.skipped)

    def __str__(self) -> str:
        head = f"sparsity {self.reached:.1%} over {self.weights:,} weights"
        head += " that are not skipped" if any(each.reason == BY_REQUEST for each in self.skipped) else ""
        head += "" if self.asked is None else f", requested {self.asked:.1%}"
        if self.weight_dtype is not None:
            head += f"; stored as {str(self.weight_dtype).removeprefix('torch.')}: {self.bytes:,} bytes "
            head += f"(dense {self.dense_bytes:,}), weights change by up to {self.error:.2%}"
        if self.is_stored_densely and self.reached:
            head += "; no layer is stored sparse: scorch.report shows why"
        if not self.skipped:
            return head
        return "\n".join([f"{head}; left dense, {self.skipped_share:.1%}:", *map(str, self.skipped)])

    def warning(self) -> str | None:
        """Return a warning if layers that the caller did not name keep the sparsity below the request."""
        if self.asked is None or self.reached >= self.asked - SPARSITY_TOLERANCE:
            return None
        unasked = [layer for layer in self.skipped if layer.reason != BY_REQUEST]
        if not unasked:
            return self._warning_of_kept() if self.kept else None
        share = sum(layer.share for layer in unasked)
        names = ", ".join(
            f"{layer.name or '(model)'} ({layer.kind})" for layer in unasked[:MAX_LAYERS_IN_WARNING]
        )
        others = len(unasked) - MAX_LAYERS_IN_WARNING
        more = f" and {others} more" if others > 0 else ""
        return (
            f"requested a sparsity of {self.asked:.1%}, reached {self.reached:.1%}: "
            f"{share:.1%} of all weights are in layers that stay dense: {names}{more}. "
            "Print .sparsification of the returned model to see why; name them in skip= if they "
            "should stay dense"
        )

    def _warning_of_kept(self) -> str:
        names = ", ".join(name or "(model)" for name in self.kept[:MAX_LAYERS_IN_WARNING])
        others = len(self.kept) - MAX_LAYERS_IN_WARNING
        more = f" and {others} more" if others > 0 else ""
        return (
            f"requested a sparsity of {self.asked:.1%}, reached {self.reached:.1%}: layers that are sparse "
            f"already keep their sparsity patterns: {names}{more}. Pass sparsity= to prune them further; "
            "layers stored as int8 cannot be pruned"
        )


def sparsification_of(
    model: torch.nn.Module,
    asked: float | None,
    skipped: dict[str, str],
    weight_dtype: torch.dtype | None = None,
    kept: tuple[str, ...] = (),
) -> Sparsification:
    """Measure what was reached in ``model``, by the names of layers left dense and the reasons."""
    counted = {key: (size, stored) for module in model.modules() for key, size, stored in _weights(module)}
    total = sum(size for size, _ in counted.values())
    nonzero = sum(stored for _, stored in counted.values())
    layers = []
    seen: set[int] = set()
    named: dict[int, tuple[int, int]] = {}  # which do not count
    for name, reason in skipped.items():
        kind, found = _find_skipped(model, name)
        size = sum(size for key, (size, _) in found.items() if key not in seen)
        seen.update(found)
        layers.append(SkippedLayer(name, kind, size, size / max(total, 1), reason))
        if reason == BY_REQUEST:
            named.update(found)
    count = total - sum(size for size, _ in named.values())
    nonzero -= sum(stored for _, stored in named.values())
    reached = 1 - nonzero / count if count else 0.0
    errors = [getattr(getattr(module, "sparsified", None), "error", 0.0) for module in model.modules()]
    sizes = _count_bytes(model) if weight_dtype is not None else (0, 0)
    is_dense = not any(isinstance(module, SparseLinear) for module in model.modules())
    return Sparsification(
        asked, reached, count, tuple(layers), weight_dtype, *sizes, max(errors), kept, is_dense
    )


def _find_skipped(model: torch.nn.Module, name: str) -> tuple[str, dict[int, tuple[int, int]]]:
    """Return the kind of a skipped module or parameter, and its weights by their keys."""
    parent, _, last = name.rpartition(".")
    owner: Any = model.get_submodule(parent)
    if last in owner._parameters:
        weights = {key: (size, stored) for key, size, stored in _weights(owner, only=last)}
        return "Parameter", weights
    module = model.get_submodule(name)
    parts = module.modules() if any(True for _ in module.children()) and not has_weights(module) else [module]
    return kind_of(module), {key: (size, n) for part in parts for key, size, n in _weights(part)}


def weight_names(module: torch.nn.Module) -> list[str]:
    """Return the names of the weights that a module has itself."""
    named = module.named_parameters(recurse=False)
    return [name for name, parameter in named if is_lazy(parameter) or parameter.dim() > 1]


def _count_bytes(model: torch.nn.Module) -> tuple[int, int]:
    """Return the bytes of a model's ``state_dict``, and of one whose layers are all dense."""
    own = sum(value.numel() * value.element_size() for value in model.state_dict().values())
    dense = own
    for module in model.modules():
        if isinstance(module, SparseLinear):
            stored = module.state_dict().items()
            sizes = {name: value.numel() * value.element_size() for name, value in stored}
            is_narrow = module.values.dtype in WEIGHT_DTYPES
            size = torch.float32.itemsize if is_narrow else module.values.element_size()
            dense += (
                module.out_features * module.in_features * size + sizes.get("bias", 0) - sum(sizes.values())
            )
    return own, dense


def has_weights(module: torch.nn.Module) -> bool:
    """Whether a module has weights of its own, not counting those of its children."""
    return any(size for _, size, _ in _weights(module)) or any(map(is_lazy, _own_parameters(module)))


def kind_of(module: torch.nn.Module) -> str:
    if parametrize.is_parametrized(module):
        return type(module).__mro__[1].__name__  # torch has derived a class for it
    return str(module._get_name())


def reason_for(module: torch.nn.Module) -> str:
    """Explain why ``sparsify`` leaves a module dense that is not one of its known layers."""
    match module:
        case _ if any(map(is_lazy, _own_parameters(module))):
            return "not initialized yet; call the model once first"
        case _ if (reason := reason_of_computed([module])) is not None:
            return reason
        case torch.nn.Linear() if getattr(module, "sparse_grad", False):
            return "it learns from sparse inputs, row by row"
        case torch.nn.Linear() | torch.nn.Embedding() | torch.nn.MultiheadAttention() | torch.nn.RNNBase():
            return f"{type(module).__name__} is a subclass, which may compute something else"
        case torch.nn.Conv1d() | torch.nn.Conv2d():
            return f"{type(module).__name__} is a subclass, which may compute something else"
        case ConvNd():
            return "only Conv1d and Conv2d have sparse kernels"
    return NOT_STORED_SPARSE


def reason_of_computed(modules: Iterable[torch.nn.Module]) -> str | None:
    """Say what computes a parameter of one of these modules anew in each call, if anything does.

    The masks of ``torch.nn.utils.prune`` do as well, but are known.
    """
    for module in modules:
        if parametrize.is_parametrized(module):
            names = list(module.parametrizations)  # type: ignore[arg-type]
            verb = "are" if len(names) > 1 else "is"
            return f"its {' and '.join(names)} {verb} computed by a parametrization; remove it first"
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, (WeightNorm, SpectralNorm)):
                norm = "weight_norm" if isinstance(hook, WeightNorm) else "spectral_norm"
                cure = f"remove it first with torch.nn.utils.remove_{norm}"
                return f"its {hook.name} is computed by torch.nn.utils.{norm}; {cure}"
    return None


def _own_parameters(module: torch.nn.Module) -> list[torch.nn.Parameter]:
    return list(module.parameters(recurse=False))


def _weights(module: torch.nn.Module, only: str | None = None) -> Iterator[tuple[int, int, int]]:
    """Yield a key, the number of elements and of nonzeros of each weight that a module has itself."""
    if isinstance(module, SparseEmbedding):
        return
    if isinstance(module, SparseLinear):
        yield id(module.values), module.out_features * module.in_features, module.nnz
        return
    if parametrize.is_parametrized(module):
        for name in module.parametrizations:  # type: ignore[union-attr]
            weight = getattr(module, name)
            if weight.dim() > 1:
                yield id(module), weight.numel(), int(torch.count_nonzero(weight.detach()))
    if isinstance(module, parametrize.ParametrizationList):
        return
    for name, parameter in module.named_parameters(recurse=False):
        if is_lazy(parameter) or parameter.dim() < 2 or only not in (None, name):
            continue
        if isinstance(parameter, SparseTensor):
            yield id(parameter), math.prod(parameter.shape), parameter.nnz
        else:
            is_pruned = name.endswith("_orig")  # by torch.nn.utils.prune
            mask = getattr(module, f"{name.removesuffix('_orig')}_mask", None) if is_pruned else None
            weight = parameter * mask if isinstance(mask, torch.Tensor) else parameter
            yield id(parameter), parameter.numel(), int(torch.count_nonzero(weight.detach()))

"""Choose how to store a pruned layer: dense, or sparse in one of several formats, by measurement."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import torch
from torch.nn.utils import prune as torch_prune

from scorch._src.backends.base import is_served
from scorch._src.dataclass import dataclass
from scorch._src.formats import Format
from scorch._src.nn import timing
from scorch._src.nn.pattern import pattern_of_mask, weight_format
from scorch._src.nn.pruned.prunable import (
    Part,
    example_call,
    input_dtype,
    kind_of_layer,
    kind_of_sparse_layer,
    parts_of,
    tables_of,
)
from scorch._src.nn.pruned.pruned_weights import keep_zeros
from scorch._src.nn.sparse_embedding import SparseEmbedding
from scorch._src.nn.sparse_linear import SparseLinear
from scorch._src.nn.timing import Call, evaluating
from scorch._src.nn.weights.stored_values import store_values
from scorch._src.storage.storage import Storage
from scorch._src.tensor.autograd import values_at
from scorch._src.tensor.sparse_tensor import SparseTensor

NOISE = 1.05  # how much longer a call takes in one measurement than in another
Masks = Mapping[str, torch.Tensor]  # of the matrices of a layer, by the names of their tables


@dataclass(frozen=True)
class Decision:
    """How a layer is stored, and why; ``seconds`` of the dense and the sparse layer, by batch size."""

    is_sparse: bool
    reason: str
    seconds: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    error: float = 0.0  # of the weight as it is stored, relative

    @property
    def gain(self) -> float:
        """The speedup over the dense layer, over all batch sizes."""
        ratios = [dense / sparse for dense, sparse in self.seconds.values()]
        return statistics.geometric_mean(ratios) if ratios else 1.0


@dataclass(frozen=True)
class Preference:
    """What decides: the formats to try, speed or size, and on which inputs layers are timed."""

    formats: Sequence[Format]
    prefer: str
    batches: Sequence[int] | None  # None for those of the layer's kind
    examples: Mapping[torch.nn.Module, Call]  # what layers were called with
    weight_dtype: torch.dtype | None = None  # that sparse weights are stored in, if not in their own

    def calls_of(
        self, layer: torch.nn.Module, candidates: Mapping[str, torch.nn.Module]
    ) -> dict[int, dict[str, Callable[[], object]]]:
        """Return a call of each candidate by batch size."""
        known = self.examples.get(layer)
        if known is None:
            kind, dtype = kind_of_layer(layer), input_dtype(layer)
            assert kind is not None
            return {
                size: {name: example_call(candidate, size, dtype) for name, candidate in candidates.items()}
                for size in self.batches or kind.batches
            }
        arguments, options = known
        tensors = [value for value in (*arguments, *options.values()) if isinstance(value, torch.Tensor)]
        size = tensors[0].shape[0] if tensors and tensors[0].dim() else 1
        return {size: {name: _bind(candidate, known) for name, candidate in candidates.items()}}


def _bind(layer: torch.nn.Module, call: Call) -> Callable[[], object]:
    return lambda: layer(*call[0], **call[1])


@dataclass(frozen=True)
class Choice:
    """The chosen layer, and the same layer stored dense."""

    layer: torch.nn.Module
    dense: torch.nn.Module


Tied = dict[int, tuple[torch.nn.Module, Masks]]


def choose_storage(layer: torch.nn.Module, masks: Masks, preference: Preference, tied: Tied) -> Choice:
    """Return the replacement of ``layer``, pruned by ``masks``; ``tied`` has the layers of seen weights."""
    kind = kind_of_layer(layer)
    assert kind is not None
    parts = kind.parts(layer)
    tied_layer = tied.get(id(parts[0].parameter))
    if tied_layer is not None:
        masks = dict(zip(masks, tied_layer[1].values(), strict=True))
    dense = prune_layer(layer, masks)
    obstacle = _obstacle(layer)
    if obstacle is not None:
        _copy_settings(dense, layer, parts, Decision(False, obstacle))
        _keep_zeros(dense, masks)
        return Choice(dense, dense)
    decision: Decision
    formats = preference.formats if kind.takes_any_format else [weight_format("csr")]
    candidates = {str(form): make_sparse(dense, masks, form) for form in formats}
    error = 0.0
    if preference.weight_dtype is not None and kind.takes_any_weight_dtype:
        tables = [table for candidate in candidates.values() for table in tables_of(candidate).values()]
        error = max(store_values(table, preference.weight_dtype) for table in tables)
    if tied_layer is not None:
        first: Any = tied_layer[0]
        chosen, decision = _tie_weights(first, dense, candidates), first.sparsified
    elif preference.prefer == "size":
        chosen, decision = _choose_smallest(dense, candidates)
    else:
        chosen, decision = _choose_fastest(
            dense, candidates, preference.calls_of(layer, {"dense": dense, **candidates})
        )
    decision = replace(decision, error=error if decision.is_sparse else 0.0)
    if tied_layer is None:
        tied[id(parts[0].parameter)] = chosen, masks
    _copy_settings(dense, layer, parts, decision)
    _keep_zeros(dense, masks)
    return Choice(_copy_settings(chosen, layer, parts, decision), dense)


def store_sparse_layers(layers: Sequence[torch.nn.Module], dtype: torch.dtype) -> None:
    """Store the weights of layers that are sparse already in ``dtype``, shared ones once."""
    stored: dict[int, tuple[SparseLinear, float]] = {}
    narrow = [layer for layer in layers if kind_of_sparse_layer(layer).takes_any_weight_dtype]
    wide = {id(table.values) for layer in set(layers) - set(narrow) for table in tables_of(layer).values()}
    for layer in narrow:
        tables = [table for table in tables_of(layer).values() if id(table.values) not in wide]
        if tables:
            error = max(_store_table(table, dtype, stored) for table in tables)
            layer.sparsified = Decision(True, "it was sparse already", error=error)  # type: ignore[assignment]


def _store_table(
    table: SparseLinear, dtype: torch.dtype, stored: dict[int, tuple[SparseLinear, float]]
) -> float:
    """Store a weight in ``dtype``, or share the values of one in ``stored``; return the relative error."""
    key = id(table.values)
    if key in stored:
        first, error = stored[key]
        table.values, table.scales = first.values, first.scales
        return error
    error = 0.0 if table.values.dtype == dtype else store_values(table, dtype)
    stored[key] = table, error
    return error


def _obstacle(layer: torch.nn.Module) -> str | None:
    """Return why a layer must stay dense, if it must."""
    device = next(layer.parameters()).device
    if not is_served(device):
        return f"on {device}"
    if isinstance(layer, torch.nn.Embedding) and (
        layer.max_norm is not None or layer.scale_grad_by_freq or layer.sparse
    ):
        return "embeddings with max_norm, scale_grad_by_freq or sparse gradients stay dense"
    return None


def detached_copies(model: torch.nn.Module) -> dict[int, Any]:
    """Copy what ``deepcopy`` refuses to copy: results, such as weights computed by PyTorch's pruning."""
    return {
        id(value): value.detach().clone()
        for module in model.modules()
        for value in vars(module).values()
        if isinstance(value, torch.Tensor) and not value.is_leaf
    }


def prune_layer(layer: torch.nn.Module, masks: Masks) -> torch.nn.Module:
    """Return a copy of a layer, zeroed where ``masks`` are, without the hooks of PyTorch's pruning."""
    pruned = copy.deepcopy(layer, detached_copies(layer))
    for module in pruned.modules():
        for name in [name for name, _ in module.named_parameters(recurse=False)]:
            own = name.removesuffix("_orig")
            if own != name and hasattr(module, f"{own}_mask"):
                torch_prune.remove(module, own)
    pruned._forward_hooks.clear()
    pruned._forward_pre_hooks.clear()
    with torch.no_grad():
        for part in parts_of(pruned):
            getattr(part.owner, part.name).mul_(part.from_matrix(masks[part.table]))
    return pruned


def _keep_zeros(dense: torch.nn.Module, masks: Masks) -> None:
    """Keep the weights of a dense layer that ``masks`` prune at zero in training."""
    names = {id(parameter): name for name, parameter in dense.named_parameters()}
    kept = {names[id(part.parameter)]: part.from_matrix(masks[part.table]) for part in parts_of(dense)}
    keep_zeros(dense, kept)


def make_sparse(dense: torch.nn.Module, masks: Masks, form: Format) -> torch.nn.Module:
    """Store the weights of a layer sparse where ``masks`` keep them."""
    kind = kind_of_layer(dense)
    assert kind is not None
    weights = {}
    for part in kind.parts(dense):
        mask, matrix = masks[part.table], part.matrix.contiguous()
        pattern = pattern_of_mask(mask, tuple(mask.shape), form)
        weights[part.table] = SparseTensor(Storage(pattern, values_at(matrix, pattern)))
    return kind.make(dense, weights)


def _tie_weights(
    first: torch.nn.Module, dense: torch.nn.Module, candidates: Mapping[str, torch.nn.Module]
) -> torch.nn.Module:
    """Return a layer that shares the weight of ``first``; both are linear layers or embeddings."""
    if isinstance(first, (torch.nn.Linear, torch.nn.Embedding)):
        dense.weight = first.weight
        return dense
    source = first.table if isinstance(first, SparseEmbedding) else first
    assert isinstance(source, SparseLinear)
    if isinstance(dense, torch.nn.Embedding):
        return SparseEmbedding(source, dense.padding_idx)
    layer = SparseLinear.from_weight(source.weight.detach(), dense.bias)  # type: ignore[arg-type]
    layer.values, layer.scales = source.values, source.scales
    return layer


def _choose_smallest(
    dense: torch.nn.Module, candidates: Mapping[str, torch.nn.Module]
) -> tuple[torch.nn.Module, Decision]:
    best = min(candidates.values(), key=_count_bytes)
    is_smaller = _count_bytes(best) < _count_bytes(dense)
    decision = Decision(is_smaller, "smaller" if is_smaller else "a sparse weight would be larger")
    return best if is_smaller else dense, decision


def _choose_fastest(
    dense: torch.nn.Module,
    candidates: Mapping[str, torch.nn.Module],
    calls: Mapping[int, Mapping[str, Callable[[], object]]],
) -> tuple[torch.nn.Module, Decision]:
    """Return the fastest candidate that is slower than ``dense`` at no batch size; ``dense`` if all are."""
    with evaluating(dense, *candidates.values()):
        by_batch = {size: timing.measure_fastest(of_batch) for size, of_batch in calls.items()}
    gains = {
        name: {size: seconds["dense"] / seconds[name] for size, seconds in by_batch.items()}
        for name in candidates
    }
    best = max(gains, key=lambda name: (NOISE * min(gains[name].values()) >= 1, _mean(gains[name])))
    seconds = {size: (found["dense"], found[best]) for size, found in by_batch.items()}
    gain, slowest = _mean(gains[best]), min(gains[best], key=lambda size: gains[best][size])
    everywhere = _join([str(size) for size in by_batch])
    if gain > 1 and NOISE * gains[best][slowest] >= 1:
        return candidates[best], Decision(True, f"{gain:.1f} x as fast at batch {everywhere}", seconds)
    reason = f"sparse takes {1 / gain:.1f} x the time at batch {everywhere}"
    if gain > 1:
        fastest = max(gains[best], key=lambda size: gains[best][size])
        reason = f"sparse takes {1 / gains[best][slowest]:.2f} x the time at batch {slowest}, although it is "
        reason += f"{gains[best][fastest]:.1f} x as fast at batch {fastest}"
    return dense, Decision(False, reason, seconds)


def _mean(gains: Mapping[int, float]) -> float:
    return statistics.geometric_mean(gains.values())


def _join(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _copy_settings(
    new: torch.nn.Module, layer: torch.nn.Module, parts: Sequence[Part], decision: Any
) -> torch.nn.Module:
    """Copy mode, hooks and ``requires_grad`` of the old layer to the new one."""
    new.sparsified = decision
    old = dict(layer.named_parameters())
    for part in parts:
        prefix = f"{part.table}." if part.table else ""
        old[f"{prefix}values"] = part.parameter  # type: ignore[assignment]
        bias = (
            getattr(part.owner, f"{part.bias}_orig", getattr(part.owner, part.bias, None))
            if part.bias
            else None
        )
        if isinstance(bias, torch.Tensor):
            old[f"{prefix}bias"] = bias  # type: ignore[assignment]
    for name, parameter in new.named_parameters():
        if name in old and parameter.is_floating_point():
            parameter.requires_grad_(old[name].requires_grad)
    new._forward_hooks.update(layer._forward_hooks)
    for key, hook in layer._forward_pre_hooks.items():
        if not isinstance(hook, torch_prune.BasePruningMethod):
            new._forward_pre_hooks[key] = hook
    return new.train(layer.training)


def _count_bytes(layer: torch.nn.Module) -> int:
    return sum(value.numel() * value.element_size() for value in layer.state_dict().values())

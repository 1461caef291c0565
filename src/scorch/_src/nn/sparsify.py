"""``scorch.sparsify``: prune a trained model, with sparse weights where that is faster."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.utils import parametrize
from torch.nn.utils import prune as torch_prune

from scorch._src.backends.base import is_served
from scorch._src.formats import Format
from scorch._src.nn import prune, timing
from scorch._src.nn.pattern import pattern_of_mask, weight_format
from scorch._src.nn.sparse_embedding import SparseEmbedding
from scorch._src.nn.sparse_linear import SparseLinear
from scorch._src.nn.sparsification import BY_REQUEST, has_weights, reason_for, sparsification_of
from scorch._src.storage.storage import Storage
from scorch._src.tensor.autograd import values_at
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import ArgumentError, OperandError, warn

Layer = torch.nn.Linear | torch.nn.Embedding
EMBEDDING_SETTINGS = ("padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")


@dataclass(frozen=True)
class Decision:
    """How a layer is stored, and why; ``seconds`` of the dense and the sparse one, by batch size."""

    is_sparse: bool
    reason: str
    seconds: Mapping[int, tuple[float, float]] = field(default_factory=dict)


def sparsify(
    model: torch.nn.Module,
    sparsity: float = 0.9,
    blocks: tuple[int, int] | int | None = None,
    format: str | Format = "auto",
    *,
    nm: tuple[int, int] | None = None,
    method: str = "magnitude",
    distribution: str = "uniform",
    prefer: str = "speed",
    batch: int | Sequence[int] = (1, 32),
    skip: Iterable[str | type] = (),
    inplace: bool = False,
) -> torch.nn.Module:
    """Prune a model, with sparse weights in its Linear and Embedding layers.

    ``sparsity`` is the share that goes: of single weights, of ``blocks`` by their norms, or with
    ``nm=(2, 4)`` all but 2 of every 4. ``distribution`` says where: the same share in every layer
    (``uniform``), the smallest of all (``global``), or more in large layers (``erk``, usual with
    ``method="random"`` for networks that are sparse from the start). What ``torch.nn.utils.prune`` has
    masked is taken as it is.

    Each layer is timed dense and sparse at the sizes of ``batch``, on this machine with the threads now set;
    where sparse is slower on average the pruned weight stays dense. With ``prefer="size"`` it is sparse
    wherever that is smaller. ``scorch.report`` shows what was decided. ``skip`` has names or classes of
    modules to leave alone; the model itself is left alone unless ``inplace``.

    Attention, convolutions, recurrent and other layers stay dense. ``sparsification`` of the result lists
    them with the reasons, and has the sparsity reached over all weights of the model; where they hold it
    below the one asked for, there is a warning.

    >>> import torch, scorch
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))
    >>> scorch.sparsify(model, sparsity=0.9, prefer="size")[0]
    SparseLinear(in_features=64, out_features=32, bias=True, format=csr, nnz=205, density=10.01%)
    """
    blocks = (blocks, blocks) if isinstance(blocks, int) else blocks
    batches = (batch,) if isinstance(batch, int) else tuple(batch)
    if not isinstance(model, torch.nn.Module):
        raise OperandError(f"sparsify takes a torch.nn.Module, not a {type(model).__name__}")
    pruning = _Pruning(sparsity, blocks, nm, method, distribution)
    if prefer not in ("speed", "size"):
        raise ArgumentError(f"prefer is one of speed, size, not {prefer!r}")
    if not batches or not all(isinstance(size, int) and size > 0 for size in batches):
        raise ArgumentError(f"batch has the sizes of inputs to measure, not {batches!r}")
    forms = _candidate_formats(format, blocks)
    if not inplace:
        model = copy.deepcopy(model, _detached_copies(model))
    chosen, skipped = _select_layers(model, tuple(skip))
    replaced: dict[torch.nn.Module, torch.nn.Module] = {}
    tied: dict[int, tuple[torch.nn.Module, torch.Tensor]] = {}
    for layer, mask in zip(chosen, pruning.masks(chosen), strict=True):
        replaced[layer] = _choose_storage(layer, mask, forms, batches, prefer, tied)
    model = replace_modules(model, replaced)
    reached = sparsification_of(model, sparsity if nm is None else 1 - nm[0] / nm[1], skipped)
    model.sparsification = reached  # type: ignore[assignment]
    warning = reached.warning()
    if warning is not None:
        warn(warning)
    return model


def replace_modules(
    model: torch.nn.Module, replaced: dict[torch.nn.Module, torch.nn.Module]
) -> torch.nn.Module:
    """Replace modules of ``model``, or the model itself; return the model."""
    for module in list(model.modules()):
        for name, child in module._modules.items():
            if child in replaced:
                module._modules[name] = replaced[child]
    return replaced.get(model, model)


@dataclass(frozen=True)
class _Pruning:
    """Which weights are pruned, as ``sparsify`` takes it."""

    sparsity: float
    blocks: tuple[int, int] | None
    nm: tuple[int, int] | None
    method: str
    distribution: str

    def __post_init__(self) -> None:
        sparsity, is_plain = self.sparsity, self.method == "magnitude" and self.distribution == "uniform"
        if isinstance(sparsity, bool) or not isinstance(sparsity, (int, float)) or not 0 <= sparsity <= 1:
            raise ArgumentError(f"sparsity is the share of weights that go, from 0 to 1, not {sparsity!r}")
        if self.nm is not None and (self.blocks is not None or not is_plain):
            raise ArgumentError(
                "nm keeps the largest of each group; it goes with no blocks and no other choice"
            )
        for name, allowed in (("method", ("magnitude", "random")), ("distribution", prune.DISTRIBUTIONS)):
            if getattr(self, name) not in allowed:
                raise ArgumentError(f"{name} is one of {', '.join(allowed)}, not {getattr(self, name)!r}")
        if self.distribution == "global" and self.method == "random":
            raise ArgumentError("distribution='global' compares magnitudes; with method='random' take 'erk'")

    def masks(self, layers: Sequence[Layer]) -> list[torch.Tensor]:
        """Return a mask for each layer; masks of torch's pruning are used as they are."""
        existing = [getattr(layer, "weight_mask", None) for layer in layers]
        pairs = zip(layers, existing, strict=True)
        masks = iter(self._new_masks([layer.weight.detach() for layer, mask in pairs if mask is None]))
        return [next(masks) if mask is None else mask != 0 for mask in existing]

    def _new_masks(self, weights: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        density = 1 - self.sparsity
        if self.nm is not None:
            return [prune.nm_mask(weight, *self.nm) for weight in weights]
        if self.distribution == "global":
            return prune.global_masks(weights, density, self.blocks) if weights else []
        make_mask = prune.magnitude_mask if self.method == "magnitude" else prune.random_mask
        shares = [density] * len(weights)
        if self.distribution == "erk":
            shares = prune.erdos_renyi_densities([tuple(weight.shape) for weight in weights], density)
        return [make_mask(weight, share, self.blocks) for weight, share in zip(weights, shares, strict=True)]


def _candidate_formats(format: str | Format, blocks: tuple[int, int] | None) -> list[Format]:
    """Return the formats to try."""
    if format != "auto":
        return [weight_format(format)]
    formats = [weight_format("csr")]
    return formats if blocks is None else [weight_format("auto", blocks), *formats]


def _detached_copies(model: torch.nn.Module) -> dict[int, Any]:
    """Copy what ``deepcopy`` refuses to copy: results, such as weights computed by torch's pruning."""
    return {
        id(value): value.detach().clone()
        for module in model.modules()
        for value in vars(module).values()
        if isinstance(value, torch.Tensor) and not value.is_leaf
    }


def _select_layers(
    model: torch.nn.Module, skip: tuple[str | type, ...]
) -> tuple[list[Layer], dict[str, str]]:
    """Return the layers to prune, and the names of all others that have weights, with the reasons."""
    names = {name for name, _ in model.named_modules()}
    for skipped in skip:
        if isinstance(skipped, str) and skipped not in names:
            raise ArgumentError(f"the model has no module {skipped!r} to skip")
    selected: list[Layer] = []
    dense: dict[str, str] = {}
    for name, module in model.named_modules():
        is_named = any(
            isinstance(module, skipped)
            if isinstance(skipped, type)
            else name == skipped or name.startswith(f"{skipped}.")
            for skipped in skip
        )
        is_plain = type(module) in timing.PRUNABLE_LAYERS and not parametrize.is_parametrized(module)
        if is_named or not is_plain or getattr(module, "sparse_grad", False):  # it trains on sparse inputs
            if has_weights(module) and not isinstance(module, SparseLinear):
                dense[name] = BY_REQUEST if is_named else reason_for(module)
            continue
        assert isinstance(module, (torch.nn.Linear, torch.nn.Embedding))
        selected.append(module)
    return selected, dense


def _choose_storage(
    layer: Layer,
    mask: torch.Tensor,
    forms: Sequence[Format],
    batches: Sequence[int],
    prefer: str,
    tied: dict[int, tuple[torch.nn.Module, torch.Tensor]],
) -> torch.nn.Module:
    """Return the layer that replaces ``layer``."""
    parameter = getattr(layer, "weight_orig", layer.weight)
    tied_layer = tied.get(id(parameter))
    if tied_layer is not None:
        mask = tied_layer[1]
    dense = _prune(layer, mask)
    obstacle = _obstacle(layer)
    if obstacle is not None:
        return _copy_settings(dense, layer, Decision(False, obstacle))
    if isinstance(layer, torch.nn.Embedding):
        forms = [weight_format("csr")]
    candidates: dict[str, torch.nn.Module] = {str(form): _convert(dense, mask, form) for form in forms}
    if tied_layer is not None:
        return _copy_settings(_tie_weights(tied_layer[0], dense, candidates), layer, tied_layer[0].sparsified)
    chosen: torch.nn.Module
    if prefer == "size":
        best = min(candidates, key=lambda name: _count_bytes(candidates[name]))
        is_smaller = _count_bytes(candidates[best]) < _count_bytes(dense)
        decision = Decision(is_smaller, "smaller" if is_smaller else "sparse would take more bytes")
        chosen = candidates[best] if is_smaller else dense
    else:
        chosen, decision = _time_candidates(dense, candidates, batches)
    tied[id(parameter)] = chosen, mask
    return _copy_settings(chosen, layer, decision)


def _obstacle(layer: Layer) -> str | None:
    """Return why a layer must stay dense, if it must."""
    if not is_served(layer.weight.device):
        return f"on {layer.weight.device}"
    if isinstance(layer, torch.nn.Embedding) and (
        layer.max_norm is not None or layer.scale_grad_by_freq or layer.sparse
    ):
        return "embeddings with max_norm, scale_grad_by_freq or sparse gradients stay dense"
    return None


def _prune(layer: Layer, mask: torch.Tensor) -> Layer:
    """Return a plain layer with zeros where ``mask`` has them."""
    weight = torch.nn.Parameter((layer.weight * mask).detach())
    if isinstance(layer, torch.nn.Embedding):
        settings = {name: getattr(layer, name) for name in EMBEDDING_SETTINGS}
        return torch.nn.Embedding(layer.num_embeddings, layer.embedding_dim, _weight=weight, **settings)
    with torch.device("meta"):
        pruned = torch.nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None)
    pruned.weight = weight
    if layer.bias is not None:
        pruned.bias = torch.nn.Parameter(layer.bias.detach().clone())
    return pruned


def _convert(dense: Layer, mask: torch.Tensor, form: Format) -> torch.nn.Module:
    pattern = pattern_of_mask(mask, tuple(mask.shape), form)
    weight = SparseTensor(Storage(pattern, values_at(dense.weight.detach(), pattern)))
    if isinstance(dense, torch.nn.Embedding):
        return SparseEmbedding.from_weight(weight, dense.padding_idx)
    return SparseLinear.from_weight(weight, dense.bias)


def _tie_weights(
    first: torch.nn.Module, dense: Layer, candidates: Mapping[str, torch.nn.Module]
) -> torch.nn.Module:
    """Return a layer that shares the weight of ``first``."""
    if isinstance(first, (torch.nn.Linear, torch.nn.Embedding)):
        dense.weight = first.weight
        return dense
    source = first.table if isinstance(first, SparseEmbedding) else first
    assert isinstance(source, SparseLinear)
    if isinstance(dense, torch.nn.Embedding):
        return SparseEmbedding(source, dense.padding_idx)
    weight = SparseTensor(Storage(source.pattern, source.values.detach()))
    layer = SparseLinear.from_weight(weight, dense.bias)
    layer.values = source.values
    return layer


def _time_candidates(
    dense: torch.nn.Module, candidates: Mapping[str, torch.nn.Module], batches: Sequence[int]
) -> tuple[torch.nn.Module, Decision]:
    seconds_by_batch: dict[int, dict[str, float]] = {}
    for size in batches:
        calls = {"dense": timing.make_call(dense, size)}
        calls |= {name: timing.make_call(layer, size) for name, layer in candidates.items()}
        seconds_by_batch[size] = timing.measure_fastest(calls)
    gain = {
        name: statistics.geometric_mean(
            [seconds_by_batch[size]["dense"] / seconds_by_batch[size][name] for size in batches]
        )
        for name in candidates
    }
    best = max(gain, key=lambda name: gain[name])
    seconds = {size: (seconds_by_batch[size]["dense"], seconds_by_batch[size][best]) for size in batches}
    batch_text = " and ".join(map(str, batches))
    if gain[best] > 1:
        return candidates[best], Decision(True, f"{gain[best]:.1f} x as fast at batch {batch_text}", seconds)
    return dense, Decision(
        False, f"sparse takes {1 / gain[best]:.1f} x the time at batch {batch_text}", seconds
    )


def _copy_settings(new: torch.nn.Module, layer: Layer, decision: Any) -> torch.nn.Module:
    """Copy mode, hooks and ``requires_grad`` of the old layer to the new one."""
    new.sparsified = decision
    for name, parameter in new.named_parameters():
        own = "bias" if name.endswith("bias") else "weight"
        old = getattr(layer, f"{own}_orig", getattr(layer, own, None))
        if old is not None:
            parameter.requires_grad_(old.requires_grad)
    if new is not layer:
        new._forward_hooks.update(layer._forward_hooks)
        for key, hook in layer._forward_pre_hooks.items():
            if not isinstance(hook, torch_prune.BasePruningMethod):
                new._forward_pre_hooks[key] = hook
    return new.train(layer.training)


def _count_bytes(layer: torch.nn.Module) -> int:
    return sum(value.numel() * value.element_size() for value in layer.state_dict().values())

"""``scorch.sparsify``: prune a trained model, and store its weights sparse where that is faster."""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from scorch._src.dataclass import dataclass
from scorch._src.formats import Format
from scorch._src.name_hints import suggests_keywords
from scorch._src.nn import prune, timing
from scorch._src.nn.pattern import weight_format
from scorch._src.nn.pruned.choose_storage import (
    Choice,
    Decision,
    Masks,
    Preference,
    Tied,
    choose_storage,
    detached_copies,
    store_sparse_layers,
)
from scorch._src.nn.pruned.fused_modules import fuse_modules
from scorch._src.nn.pruned.prunable import Part, is_sparse_layer, kind_of_layer, walk_layers
from scorch._src.nn.pruned.prune_further import prune_further
from scorch._src.nn.pruned.tied_names import rename_tied_weights
from scorch._src.nn.sparsification import (
    BY_REQUEST,
    NOT_STORED_SPARSE,
    has_weights,
    reason_for,
    reason_of_computed,
    sparsification_of,
    weight_names,
)
from scorch._src.nn.stored_values import check_weight_dtype
from scorch._src.nn.timing import Call
from scorch.errors import ArgumentError, OperandError, kind_of, nearest, warn

DEFAULT_SPARSITY = 0.9
CLEAR_GAIN = 1.3  # times as fast, from which on a layer that wins alone is taken to win in the model
MIN_GAIN = 1.03  # times as fast that a model must be with sparse layers


@suggests_keywords
def sparsify(
    model: torch.nn.Module,
    sparsity: float | None = None,
    blocks: tuple[int, int] | int | None = None,
    format: str | Format = "auto",
    *,
    nm: tuple[int, int] | None = None,
    pattern: str | None = None,
    method: str = "magnitude",
    distribution: str = "uniform",
    prefer: str = "speed",
    batch: int | Sequence[int] | None = None,
    example: Any = None,
    weight_dtype: torch.dtype | None = None,
    skip: str | type | torch.nn.Module | torch.Tensor | Iterable[Any] = (),
    inplace: bool = False,
) -> torch.nn.Module:
    """Prune a model by magnitude, and store its weights sparse where that is faster.

    Linear, Embedding, Conv1d, Conv2d, MultiheadAttention, LSTM, GRU, RNN, their cells, and Hugging Face's
    Conv1D become sparse layers, anywhere in the model. Weights that ``torch.nn.utils.prune`` has masked keep
    their masks. Layers that are sparse already are pruned further, within their sparsity patterns, if
    ``sparsity`` or ``nm`` is given; without them, they stay as they are. Other layers stay dense.

    Each layer is timed dense and sparse on this machine, with the current number of threads, in the dtype of
    the model, or of ``torch.autocast`` if ``sparsify`` is called under it; where sparse is slower, the pruned
    weight stays dense. ``scorch.report`` shows the decisions. Sparse layers are fused with
    the activation after them in ``torch.nn.Sequential`` and in PyTorch's Transformer layers, convolutions
    also with the batch norm between both; layer and RMS norms, also those of Hugging Face's models, are
    computed in one pass.

    Args:
        model: the model to prune.
        sparsity: the fraction of weights to prune, 0.9 by default.
        blocks: the shape of the blocks to prune by their norms, or their size if they are square; single
            weights by default.
        format: the format of the sparse weights; ``"auto"`` tries several.
        nm: N:M sparsity, such as ``(2, 4)`` to keep 2 of every 4 consecutive weights, instead of
            ``sparsity``.
        pattern: the same as a text, such as ``"2:4"``.
        method: ``"magnitude"``, or ``"random"`` for training a sparse network from scratch.
        distribution: ``"uniform"`` prunes the same fraction of every layer, ``"global"`` the smallest weights
            of all layers, ``"erk"`` more of large layers, which is common with ``method="random"``.
        prefer: ``"speed"`` stores a layer sparse if that is faster, ``"size"`` if that is smaller.
        batch: the batch sizes to time layers with; by default 1 and 32, and in linear layers also 512 rows. A
            layer is stored sparse if it is slower by more than 5% at none of them: pass 1 for a model that
            gets one row or token at a time.
        example: an input of the model, or a tuple or dictionary of its arguments. Layers are then timed on
            the inputs they get, and finally the whole model is timed with all of the faster layers sparse,
            with some and with none, to choose the fastest.
        weight_dtype: how to store the values of sparse linear layers and attention: ``torch.bfloat16``, or
            for inference ``torch.int8`` with a scale per row; sums stay in float32.
        skip: the modules or parameters to leave unchanged, or their names or classes; one, or several of
            them.
        inplace: whether to modify ``model`` instead of a copy.

    Returns:
        The pruned model. Its attribute ``sparsification`` has the sparsity reached over all weights, and the
        layers left dense with the reasons.

    Raises:
        OperandError: ``model`` is not a ``torch.nn.Module``.
        ArgumentError: an argument is out of range, or ``skip`` names a module that does not exist.

    Warns if layers that stay dense keep the sparsity below the requested one.

    Example:

        >>> import torch, scorch
        >>> model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))
        >>> scorch.sparsify(model, sparsity=0.9, prefer="size")[0]
        SparseLinear(in_features=64, out_features=32, bias=True, format=csr, nnz=205, density=10.01%)
    """
    blocks = (blocks, blocks) if isinstance(blocks, int) else blocks
    if pattern is not None and nm is not None:
        raise ArgumentError("pass pattern or nm, not both")
    nm = _parse_pattern("pattern", pattern) if pattern is not None else nm
    nm = _parse_pattern("nm", nm) if isinstance(nm, str) else nm
    batches = None if batch is None else tuple(batch) if isinstance(batch, Iterable) else (batch,)
    if not isinstance(model, torch.nn.Module):
        raise OperandError(f"sparsify expected a torch.nn.Module, but got {kind_of(model)}")
    asked = _requested_sparsity(sparsity, nm)
    pruning = _Pruning(asked, blocks, nm, method, distribution)
    check_weight_dtype(weight_dtype)
    if prefer not in ("speed", "size"):
        raise ArgumentError(f"prefer must be 'speed' or 'size', but got {prefer!r}")
    if batches is not None and not all(map(_is_count, batches or (0,))):
        raise ArgumentError(f"batch must be a positive integer or a sequence of them, but got {batches!r}")
    formats = _candidate_formats(format, blocks)
    skipped_modules = _resolve_skip(model, skip)
    if not inplace:
        model = copy.deepcopy(model, detached_copies(model))
    layers, skipped, sparse = _select_layers(model, skipped_modules, nm)
    examples = {} if example is None else _record_calls(model, layers, example)
    preference = Preference(formats, prefer, batches, examples, weight_dtype)
    is_compared = example is not None and prefer == "speed"  # with the model all of whose layers are dense
    tied: Tied = {}
    choices: dict[torch.nn.Module, Choice] = {}
    for layer, masks in zip(layers, pruning.masks(layers), strict=True):
        choice = choose_storage(layer, masks, preference, tied)
        choices[layer] = choice if is_compared else Choice(choice.layer, choice.layer)
    model = fuse_modules(_replace_layers(model, choices, example if is_compared else None))
    kept = set(sparse.values())
    if sparsity is not None or nm is not None:
        kept = pruning.prune_further(kept)
    if weight_dtype is not None:
        store_sparse_layers(list(sparse.values()), weight_dtype)
    rename_tied_weights(model)
    reached = sparsification_of(
        model, asked, skipped, weight_dtype, tuple(n for n in sparse if sparse[n] in kept)
    )
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


def _replace_layers(
    model: torch.nn.Module, choices: dict[torch.nn.Module, Choice], example: Any
) -> torch.nn.Module:
    """Put the chosen layers in the model; with an example, only those that make the whole model fastest."""
    model = fuse_modules(replace_modules(model, {layer: choice.layer for layer, choice in choices.items()}))
    to_dense = {choice.layer: choice.dense for choice in choices.values() if choice.layer is not choice.dense}
    if example is None or not to_dense:
        return model
    decisions: dict[torch.nn.Module, Any] = {layer: layer.sparsified for layer in to_dense}
    clear = {layer for layer, decision in decisions.items() if decision.gain >= CLEAR_GAIN}
    states = [set(to_dense), clear] if 0 < len(clear) < len(to_dense) else [set(to_dense)]
    switches = [_switch(model, to_dense, kept) for kept in (set(), *states)]
    with timing.evaluating(model, *to_dense.values()):
        dense, *sparse = timing.compare_models(switches, timing.bind_example(example))
    fastest = min(range(len(states)), key=lambda number: sparse[number])
    kept = states[fastest] if sparse[fastest] * MIN_GAIN <= dense else set()
    reason = f"the model as a whole takes {sparse[fastest] / dense:.2f} x the time with sparse layers"
    if kept:
        ratio = sparse[0] / sparse[fastest]
        reason = (
            f"the model as a whole takes {ratio:.2f} x the time if layers that gain little are sparse, too"
        )
    for layer in set(to_dense) - kept:
        to_dense[layer].sparsified = Decision(False, reason, decisions[layer].seconds)  # type: ignore[assignment]
    return _switch(model, to_dense, kept)()


def _switch(
    model: torch.nn.Module, to_dense: Mapping[torch.nn.Module, torch.nn.Module], kept: set[torch.nn.Module]
) -> Callable[[], torch.nn.Module]:
    """Return a function that makes the layers ``kept`` sparse, all others dense, and returns the model."""
    pairs = [(pair, pair[0] if pair[0] in kept else pair[1]) for pair in to_dense.items()]
    wanted = {either: layer for pair, layer in pairs for either in pair}

    def switch() -> torch.nn.Module:
        nonlocal model
        model = fuse_modules(replace_modules(model, wanted))
        return model

    return switch


def _record_calls(
    model: torch.nn.Module, layers: Iterable[torch.nn.Module], example: Any
) -> dict[torch.nn.Module, Call]:
    """Return what each layer is called with first when the model runs on ``example``."""
    found: dict[torch.nn.Module, Call] = {}

    def record(layer: torch.nn.Module, arguments: Any, options: Any) -> None:
        found.setdefault(layer, (tuple(arguments), dict(options)))

    hooks = [layer.register_forward_pre_hook(record, with_kwargs=True) for layer in layers]
    arguments, options = timing.bind_example(example)
    try:
        with timing.evaluating(model), timing.calling_parts():
            model(*arguments, **options)
    finally:
        for hook in hooks:
            hook.remove()
    return found


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
            raise ArgumentError(
                f"sparsity must be between 0 and 1, the fraction of weights to prune, but got {sparsity!r}"
            )
        for name, pair, least in (("blocks", self.blocks, 1), ("nm", self.nm, 0)):
            is_pair = isinstance(pair, (tuple, list)) and len(pair) == 2
            if pair is not None and not (is_pair and all(_is_count(n, least) for n in pair)):
                raise ArgumentError(f"{name} must be a pair of positive integers, but got {pair!r}")
        if self.nm is not None and (self.blocks is not None or not is_plain):
            raise ArgumentError(
                "nm keeps the largest weights of each group; it cannot be combined with blocks or "
                "another method"
            )
        for name, allowed in (("method", ("magnitude", "random")), ("distribution", prune.DISTRIBUTIONS)):
            if getattr(self, name) not in allowed:
                raise ArgumentError(
                    f"{name} must be one of {', '.join(allowed)}, but got {getattr(self, name)!r}"
                )
        if self.distribution == "global" and self.method == "random":
            raise ArgumentError(
                "distribution='global' compares magnitudes; with method='random', use 'uniform' or 'erk'"
            )

    def masks(self, layers: Sequence[torch.nn.Module]) -> list[Masks]:
        """Return the masks of each layer's matrices; masks of PyTorch's pruning are used as they are."""
        parts = [_parts_of(layer) for layer in layers]
        existing = {part: _existing_mask(part) for of_layer in parts for part in of_layer}
        new = iter(self._new_masks([part.matrix for part, mask in existing.items() if mask is None]))
        masks = {part: next(new) if mask is None else mask for part, mask in existing.items()}
        return [{part.table: masks[part] for part in of_layer} for of_layer in parts]

    def prune_further(self, layers: Iterable[torch.nn.Module]) -> set[torch.nn.Module]:
        """Prune sparse layers in place, within their patterns; return those that stay as they are."""
        largest = replace(self, method="magnitude")
        group = 1 if self.nm is None else self.nm[1]
        return prune_further(layers, group, self.method == "random", largest._new_masks)

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


def _requested_sparsity(sparsity: Any, nm: Any) -> Any:
    """Return the sparsity to reach; ``nm`` implies one, which another would contradict."""
    if not isinstance(nm, (tuple, list)) or len(nm) != 2 or not all(map(_is_count, nm)):
        return DEFAULT_SPARSITY if sparsity is None else sparsity  # _Pruning says what is wrong
    if nm[0] > nm[1]:
        raise ArgumentError(
            f"N:M keeps N of every M weights, so N must be at most M, but got {nm[0]}:{nm[1]}; "
            f"did you mean '{nm[1]}:{nm[0]}'?"
        )
    implied = 1 - nm[0] / nm[1]
    if sparsity is not None and sparsity != implied:
        raise ArgumentError(
            f"keeping {nm[0]} of every {nm[1]} weights is a sparsity of {implied:.4g}, not {sparsity!r}; "
            "pass sparsity or the pattern, not both"
        )
    return implied


def _is_count(value: object, least: int = 1) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _parse_pattern(name: str, pattern: str) -> tuple[int, int]:
    """Return N and M of a text such as ``"2:4"``."""
    found = re.fullmatch(r"(\d+):(\d+)", pattern) if isinstance(pattern, str) else None
    if found is None:
        raise ArgumentError(f"{name} must be of the form 'N:M', such as '2:4', but got {pattern!r}")
    return int(found[1]), int(found[2])


def _candidate_formats(format: str | Format, blocks: tuple[int, int] | None) -> list[Format]:
    """Return the formats to try."""
    if format != "auto":
        return [weight_format(format)]
    formats = [weight_format("csr")]
    return formats if blocks is None else [weight_format("auto", blocks), *formats]


def _parts_of(layer: torch.nn.Module) -> list[Part]:
    kind = kind_of_layer(layer)
    assert kind is not None
    return kind.parts(layer)


def _existing_mask(part: Part) -> torch.Tensor | None:
    mask = getattr(part.owner, f"{part.name}_mask", None)
    return None if mask is None else part.as_matrix(mask) != 0


def _resolve_skip(model: torch.nn.Module, skip: Any) -> tuple[str | type, ...]:
    """Return the names and classes in ``skip``, with the name in the model for each module."""
    names: dict[Any, str] = {module: name for name, module in model.named_modules()}
    names.update((parameter, name) for name, parameter in model.named_parameters())
    resolved: list[str | type] = []
    is_one = isinstance(skip, (str, type, torch.nn.Module, torch.Tensor)) or not isinstance(skip, Iterable)
    for each in (skip,) if is_one else skip:
        name = names.get(each, "") if isinstance(each, (torch.nn.Module, torch.Tensor)) else each
        if isinstance(name, str) and name not in names.values():
            question = nearest(name, names.values())
            hint = f"; {question}" if question else ""
            raise ArgumentError(f"skip names {name!r}, but the model has no such module or parameter{hint}")
        if not isinstance(name, (str, type)) or not name:
            raise ArgumentError(
                f"skip must name modules of the model, by name, class or module, but got {kind_of(each)}"
            )
        resolved.append(name)
    return tuple(resolved)


def _select_layers(
    model: torch.nn.Module, skip: tuple[str | type, ...], nm: tuple[int, int] | None
) -> tuple[list[torch.nn.Module], dict[str, str], dict[str, torch.nn.Module]]:
    """Return the layers to prune, the names of those to leave dense with the reasons, and sparse layers."""
    selected: dict[torch.nn.Module, str] = {}
    dense: dict[str, str] = {}
    sparse: dict[str, torch.nn.Module] = {}
    for name, module, is_layer in walk_layers(model):
        reason = BY_REQUEST if _is_named(name, module, skip) else _reason_to_skip(module, nm)
        if reason is None:
            selected[module] = name
        elif is_sparse_layer(module):
            if reason != BY_REQUEST:
                sparse[name] = module
        elif is_layer:
            if any(map(has_weights, module.modules())):
                dense[name] = reason
        elif has_weights(module):
            dense.update(_reasons_by_parameter(name, module, reason, skip))
    for module in _find_sharing(model, selected):
        dense[selected.pop(module)] = "it shares its weights with another layer"
    return list(selected), dense, sparse


def _reasons_by_parameter(
    name: str, module: torch.nn.Module, reason: str, skip: tuple[str | type, ...]
) -> dict[str, str]:
    """Return why weights stay dense, by module; by parameter where a module of no known kind has some."""
    if reason != NOT_STORED_SPARSE:
        return {name: reason}
    paths = [f"{name}.{each}".lstrip(".") for each in weight_names(module)]
    return {path: BY_REQUEST if path in skip else reason for path in paths}


def _is_named(name: str, module: torch.nn.Module, skip: tuple[str | type, ...]) -> bool:
    """Whether a module, what it is in or a part of it is named in ``skip``."""
    return any(
        isinstance(module, skipped)
        if isinstance(skipped, type)
        else name == skipped
        or name.startswith(f"{skipped}.")
        or (kind_of_layer(module) is not None and skipped.startswith(f"{name}.") and bool(name))
        for skipped in skip
    )


def _reason_to_skip(module: torch.nn.Module, nm: tuple[int, int] | None) -> str | None:
    """Return why a module is left as it is, if it is."""
    is_layer = kind_of_layer(module) is not None
    computed = reason_of_computed(module.modules()) if is_layer else None
    if computed is not None:
        return computed
    if not is_layer or getattr(module, "sparse_grad", False):  # it trains on sparse inputs
        return reason_for(module)
    columns = [part.matrix.shape[1] for part in _parts_of(module)]
    if nm is not None and any(size % nm[1] for size in columns if nm[1] > 0):
        return f"its rows of {max(columns)} weights cannot be divided into groups of {nm[1]}"
    return None


def _find_sharing(model: torch.nn.Module, layers: Iterable[torch.nn.Module]) -> list[torch.nn.Module]:
    """Return layers that share a weight, unless all that do are linear layers and embeddings to be pruned."""
    parameters = {layer: {id(part.parameter) for part in _parts_of(layer)} for layer in layers}
    may_share = (torch.nn.Linear, torch.nn.Embedding)
    inside = {module for layer in parameters for module in layer.modules()}
    others = [module._parameters.values() for module in model.modules() if module not in inside]
    kept = {id(parameter) for of_module in others for parameter in of_module}
    tied = {key for layer, keys in parameters.items() if not isinstance(layer, may_share) for key in keys}
    counts = Counter(key for keys in parameters.values() for key in keys)
    return [
        layer
        for layer, keys in parameters.items()
        if keys & kept or any(counts[key] > 1 and key in tied for key in keys)
    ]

"""``scorch.sparsify``: prune a trained model, and store its weights sparse where that is faster."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from scorch._src.formats import Format
from scorch._src.grad_state import unsupported_in_jit
from scorch._src.name_hints import suggests_keywords
from scorch._src.nn import timing
from scorch._src.nn.pattern import weight_format
from scorch._src.nn.pruned.choose_storage import (
    Choice,
    Preference,
    Tied,
    choose_storage,
    detached_copies,
    store_sparse_layers,
)
from scorch._src.nn.pruned.fused_modules import fuse_modules
from scorch._src.nn.pruned.pruning import Pruning, pruning_of
from scorch._src.nn.pruned.replace_layers import replace_layers
from scorch._src.nn.pruned.select_layers import names_to_skip, select_layers
from scorch._src.nn.pruned.tied_names import rename_tied_weights
from scorch._src.nn.sparsification import sparsification_of
from scorch._src.nn.weights.stored_values import check_weight_dtype
from scorch.errors import ArgumentError, OperandError, is_integer, kind_of, warn


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
    weight stays dense. That takes about a second for each shape of a layer, and with ``example`` a few
    seconds for the whole model; ``prefer="size"`` times nothing. ``scorch.report`` shows the decisions.
    Sparse layers are fused with the activation after them in ``torch.nn.Sequential`` and in PyTorch's
    Transformer layers, convolutions also with the batch norm between both; layer and RMS norms, also those of
    Hugging Face's models, are computed in one pass.

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
    if not isinstance(model, torch.nn.Module):
        raise OperandError(f"sparsify expected a torch.nn.Module, but got {kind_of(model)}")
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        raise unsupported_in_jit("sparsify")
    pruning = pruning_of(sparsity, blocks, nm, pattern, method, distribution)
    preference = _preference_of(format, pruning.blocks, prefer, batch, weight_dtype)
    names = names_to_skip(model, skip)
    if not inplace:
        model = copy.deepcopy(model, detached_copies(model))
    layers, skipped, sparse = select_layers(model, names, pruning.nm)
    model = _prune_layers(model, layers, pruning, preference, example)
    kept = set(sparse.values())
    if sparsity is not None or pruning.nm is not None:
        kept = pruning.prune_further(kept)
    if weight_dtype is not None:
        store_sparse_layers(list(sparse.values()), weight_dtype)
    rename_tied_weights(model)
    unchanged = tuple(name for name, layer in sparse.items() if layer in kept)
    reached = sparsification_of(model, pruning.sparsity, skipped, weight_dtype, unchanged)
    model.sparsification = reached  # type: ignore[assignment]
    warning = reached.warning()
    if warning is not None:
        warn(warning)
    return model


def _preference_of(
    format: str | Format,
    blocks: tuple[int, int] | None,
    prefer: str,
    batch: int | Sequence[int] | None,
    weight_dtype: torch.dtype | None,
) -> Preference:
    """Return how to choose the storage of layers, as the arguments of ``sparsify`` say."""
    check_weight_dtype(weight_dtype)
    if prefer not in ("speed", "size"):
        raise ArgumentError(f"prefer must be 'speed' or 'size', but got {prefer!r}")
    batches = None if batch is None else tuple(batch) if isinstance(batch, Iterable) else (batch,)
    if batches is not None and not all(is_integer(size, 1) for size in batches or (0,)):
        raise ArgumentError(f"batch must be a positive integer or a sequence of them, but got {batches!r}")
    return Preference(_candidate_formats(format, blocks), prefer, batches, {}, weight_dtype)


def _candidate_formats(format: str | Format, blocks: tuple[int, int] | None) -> list[Format]:
    """Return the formats to try."""
    if format != "auto":
        return [weight_format(format)]
    formats = [weight_format("csr")]
    return formats if blocks is None else [weight_format("auto", blocks), *formats]


def _prune_layers(
    model: torch.nn.Module,
    layers: Sequence[torch.nn.Module],
    pruning: Pruning,
    preference: Preference,
    example: Any,
) -> torch.nn.Module:
    """Prune dense layers of ``model``, and store them in the way that is preferred."""
    if example is not None:
        preference = replace(preference, examples=timing.record_calls(model, layers, example))
    # with the model all of whose layers are dense
    is_compared = example is not None and preference.prefer == "speed"
    tied: Tied = {}
    choices: dict[torch.nn.Module, Choice] = {}
    for layer, masks in zip(layers, pruning.masks(layers), strict=True):
        choice = choose_storage(layer, masks, preference, tied)
        choices[layer] = choice if is_compared else Choice(choice.layer, choice.layer)
    return fuse_modules(replace_layers(model, choices, example if is_compared else None))

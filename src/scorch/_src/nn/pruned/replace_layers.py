"""Put pruned layers in a model in place of its own: all of them, or those that make it fastest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from scorch._src.nn import timing
from scorch._src.nn.pruned.choose_storage import Choice, Decision
from scorch._src.nn.pruned.fused_modules import fuse_modules

CLEAR_GAIN = 1.3  # times as fast, from which on a layer that wins alone is taken to win in the model
MIN_GAIN = 1.03  # times as fast that a model must be with sparse layers


def replace_modules(
    model: torch.nn.Module, replaced: dict[torch.nn.Module, torch.nn.Module]
) -> torch.nn.Module:
    """Replace modules of ``model``, or the model itself; return the model."""
    for module in list(model.modules()):
        for name, child in module._modules.items():
            if child in replaced:
                module._modules[name] = replaced[child]
    return replaced.get(model, model)


def replace_layers(
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

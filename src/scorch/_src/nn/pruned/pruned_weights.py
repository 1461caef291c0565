"""Keep the pruned weights of layers that stay dense at zero while an optimizer trains them.

A sparse layer trains its stored elements only. A layer that ``sparsify`` pruned but left dense has the same
sparsity pattern, and behaves the same: before a step, the gradients of its pruned weights are set to zero,
and after it the weights themselves (``nn.optimizer_hooks``). Forward passes and the ``state_dict`` are those
of an ordinary dense layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

_masks: WeakIdKeyDictionary = WeakIdKeyDictionary()  # of parameters; None: where they are not zero


class PrunedWeights:
    """The pruned parameters of a layer, by name, and where they are pruned.

    Layers hold it as an attribute, so that it is copied and pickled with their parameters. The zeros of a
    parameter are its pruned weights unless ``masks`` say otherwise; masks are stored only then, and from the
    first step on.
    """

    def __init__(
        self, parameters: Mapping[str, torch.Tensor], masks: Mapping[str, torch.Tensor | None]
    ) -> None:
        self.parameters = dict(parameters)
        for name, parameter in self.parameters.items():
            _masks[parameter] = masks.get(name)

    def __reduce__(self) -> tuple[Any, ...]:
        masks = {name: _masks.get(parameter) for name, parameter in self.parameters.items()}
        return PrunedWeights, (self.parameters, masks)


def keep_zeros(layer: torch.nn.Module, masks: Mapping[str, torch.Tensor]) -> None:
    """Keep the parameters of a dense layer, by name, at zero where ``masks`` are False."""
    parameters = {name: layer.get_parameter(name) for name in masks}
    stored = {
        name: mask
        for name, mask in masks.items()
        if not torch.equal(parameters[name].detach() != 0, mask)  # other weights are zero, too
    }
    layer.pruned_weights = PrunedWeights(parameters, stored)  # type: ignore[assignment]
    if _follow_state_dict not in layer._load_state_dict_post_hooks.values():
        layer.register_load_state_dict_post_hook(_follow_state_dict)


def _follow_state_dict(layer: torch.nn.Module, keys: Any) -> None:
    """Take the zeros of weights that were loaded for the pruned ones: they may be pruned elsewhere."""
    weights: Any = layer.pruned_weights
    parameters = {name: layer.get_parameter(name) for name in weights.parameters}
    layer.pruned_weights = PrunedWeights(parameters, {})  # type: ignore[assignment]


def are_pruned() -> bool:
    """Whether there are pruned weights at all."""
    return bool(_masks.data)


def mask_gradients(parameters: Iterable[torch.Tensor]) -> None:
    """Set the gradients of pruned weights to zero."""
    for parameter, mask in _find(parameters):
        gradient = parameter.grad
        if gradient is not None and type(gradient) is torch.Tensor and gradient.layout == torch.strided:
            gradient.mul_(mask)


def mask_weights(parameters: Iterable[torch.Tensor]) -> None:
    """Set pruned weights to zero."""
    for parameter, mask in _find(parameters):
        parameter.detach().mul_(mask)


def _find(parameters: Iterable[torch.Tensor]) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the parameters that are pruned, with their masks."""
    for parameter in parameters:
        if parameter in _masks:
            mask = _masks[parameter]
            if mask is None:
                mask = parameter.detach() != 0
            _masks[parameter] = mask = mask.to(parameter.device)
            yield parameter, mask

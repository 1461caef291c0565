"""What follows a linear layer and can be computed with it: an activation, then the sum with a residual."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F

from scorch.errors import ArgumentError


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = MappingProxyType(
    {"relu": torch.relu, "gelu": F.gelu, "gelu_tanh": _gelu_tanh, "silu": F.silu}
)
_NAMES: dict[Any, str] = {
    F.relu: "relu",
    torch.relu: "relu",
    F.gelu: "gelu",
    _gelu_tanh: "gelu_tanh",
    F.silu: "silu",
    torch.nn.ReLU: "relu",
    torch.nn.SiLU: "silu",
}


def name_of_activation(activation: Any) -> str | None:
    """Return the name in ``ACTIVATIONS`` of a function or a module; None if it has none."""
    if type(activation) is torch.nn.GELU:
        return {"none": "gelu", "tanh": "gelu_tanh"}.get(activation.approximate)
    return _NAMES.get(type(activation) if isinstance(activation, torch.nn.Module) else activation)


def check_activation(name: str | None) -> None:
    if name is not None and name not in ACTIVATIONS:
        raise ArgumentError(f"unknown activation {name!r}; choose from {', '.join(ACTIVATIONS)}")


def finish(output: Any, activation: str | None, residual: Any) -> Any:
    """Apply an activation to the output of a layer and add a residual, one after the other."""
    if activation is not None:
        output = ACTIVATIONS[activation](output)
    return output if residual is None else output + residual

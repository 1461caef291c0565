"""Run the tests with new tensors on another device than the processor: ``pytest --device cuda``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map

_HostGenerator = torch.Generator

# What dense tensors answer there by an assertion inside a kernel, after which a process can do no more.
OUT_OF_RANGE = (
    "tests/ops/test_errors.py",
    "tests/ops/test_index_calls.py",
    "tests/ops/test_kept_zeros.py::test_places_outside_are_named",
    "tests/ops/test_losses.py::test_wrong",
    "tests/ops/test_reviewed.py::test_classes_that_are_not_there",
    "tests/ops/test_torch_calls.py::test_batches_of_rows_and_columns",
    "tests/ops/test_torch_calls.py::test_errors_of_indexing",
    "tests/ops/test_gradients_of_calls.py::test_tensors_of_order_three[a ",
    "tests/ops/test_gradients_of_calls.py::test_tensors_of_order_three[pairs",
    "tests/ops/test_gradients_of_calls.py::test_tensors_of_order_three[index_",
    "tests/tensor/test_parts.py::test_rows_that_are_not_there",
    "tests/learning/test_connected.py::test_functions_that_have_handlers",
)


class _Kind(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _HostGenerator)

    def __call__(cls, device: Any = None) -> Any:
        if device is None:
            caller = sys._getframe(1).f_globals.get("__name__", "").partition(".")[0]
            device = "cpu" if caller in ("torch", "scorch") else torch.get_default_device()
        return _HostGenerator(device=device)


class _Generator(metaclass=_Kind):
    """``torch.Generator`` on the default device for tests, which torch itself makes on the processor."""


def use_device(name: str) -> None:
    """Make new tensors on the device ``name``."""
    torch.set_default_device(name)
    torch.Generator = _Generator  # type: ignore[misc,assignment]


def skip_on_device(items: list[pytest.Item]) -> None:
    """Skip what stops the process on a device, and what is about the processor: ``@pytest.mark.cpu(why)``."""
    stops = pytest.mark.skip(reason="dense tensors on this device answer it by stopping the process")
    is_elsewhere = is_on_device()
    for item in items:
        about_cpu = item.get_closest_marker("cpu")
        if item.nodeid.startswith(OUT_OF_RANGE):
            item.add_marker(stops)
        elif about_cpu is not None and is_elsewhere:
            item.add_marker(pytest.mark.skip(reason=f"about the processor: {about_cpu.args[0]}"))


def is_on_device() -> bool:
    """Whether new tensors are elsewhere than on the processor."""
    return torch.get_default_device().type != "cpu"


def on_host(call: Callable[..., Any], *tensors: torch.Tensor) -> Any:
    """Compute a reference on the processor, and bring it to the default device.

    Of equal values torch takes another place on a GPU; it multiplies no integers there, and by reciprocals
    instead of dividing.
    """
    if not is_on_device():
        return call(*tensors)
    with torch.device("cpu"):
        result = call(*(tensor.detach().cpu().requires_grad_(tensor.requires_grad) for tensor in tensors))
    device = torch.get_default_device()
    return tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf, result)

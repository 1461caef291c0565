"""Time layers, and estimate their time from what they read and multiply."""

from __future__ import annotations

import contextlib
import functools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from scorch._src.backends.base import host_threads
from scorch._src.devices import HOST
from scorch._src.nn.sparse_embedding import SparseEmbedding
from scorch._src.nn.sparse_linear import SparseLinear
from scorch.errors import OperandError

Call = tuple[tuple[Any, ...], dict[str, Any]]  # arguments
MIN_SECONDS_PER_CANDIDATE = 0.05
MIN_ROUNDS = 5


def bind_example(example: Any) -> Call:
    """Return the arguments of a call of a model; ``example`` is one, a tuple of them, or a dictionary."""
    if isinstance(example, (tuple, list)) and example and all(type(size) is int for size in example):
        raise OperandError(
            f"example must be an input of the model, but got the shape {tuple(example)}; pass "
            f"torch.randn{tuple(example)}"
        )
    if isinstance(example, dict):
        return (), example
    return tuple(example) if isinstance(example, (tuple, list)) else (example,), {}


def measure_fastest(calls: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Return the shortest time of each call in seconds; calls alternate, so that disturbances affect all."""
    seconds: dict[str, float] = {}
    with torch.no_grad():
        for call in calls.values():
            call()
        end, rounds = time.perf_counter() + MIN_SECONDS_PER_CANDIDATE * len(calls), 0
        while rounds < MIN_ROUNDS or time.perf_counter() < end:
            rounds += 1
            for name, call in calls.items():
                start = time.perf_counter()
                call()
                elapsed = time.perf_counter() - start
                seconds[name] = min(seconds.get(name, elapsed), elapsed)
    return seconds


@contextlib.contextmanager
def calling_parts() -> Iterator[None]:
    """Let PyTorch's Transformers call their parts with plain tensors, not nested ones without padding."""
    was_enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(was_enabled)


@contextlib.contextmanager
def evaluating(*models: torch.nn.Module) -> Iterator[None]:
    """Put models in evaluation mode, without gradients; each module returns to its own mode."""
    modes = {module: module.training for model in models for module in model.modules()}
    try:
        for model in models:
            model.eval()
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def compare_models(switches: Sequence[Callable[[], torch.nn.Module]], call: Call) -> list[float]:
    """Return the median time of a model in several states; a switch puts it in one and returns it."""
    seconds: list[list[float]] = [[] for _ in switches]
    end = time.perf_counter() + MIN_SECONDS_PER_CANDIDATE * len(switches)
    while len(seconds[0]) <= MIN_ROUNDS or time.perf_counter() < end:
        for times, switch in zip(seconds, switches, strict=True):
            model = switch()
            start = time.perf_counter()
            model(*call[0], **call[1])
            times.append(time.perf_counter() - start)
    return [statistics.median(times[1:]) for times in seconds]  # the first calls fill caches


class MachineRates:
    """What this machine does per second with the current threads: bytes read, operations by kind."""

    def __init__(self) -> None:
        torch_state = torch.get_rng_state()
        torch.manual_seed(0)
        size = 512
        a, b = torch.randn(size, size, device=HOST), torch.randn(size, size, device=HOST)
        large = torch.randn(1 << 23, device=HOST)
        layer = SparseLinear(1024, 1024, sparsity=0.9, bias=False, device=HOST)
        x = torch.randn(32, 1024, device=HOST)
        torch.set_rng_state(torch_state)
        seconds = measure_fastest(
            {"read": lambda: large.sum(), "dense": lambda: a @ b, "sparse": lambda: layer(x)},
        )
        self.bytes = large.numel() * 4 / seconds["read"]
        self.dense = 2 * size**3 / seconds["dense"]
        self.sparse = 2 * layer.nnz * 32 / seconds["sparse"]


@functools.cache
def _machine_rates(threads: int) -> MachineRates:
    return MachineRates()


def estimate_seconds(layer: torch.nn.Module, batch: int) -> float | None:
    """Estimate the time of reading the weight, or multiplying by it; None unless linear or an embedding."""
    linear_or_table = (torch.nn.Linear, torch.nn.Embedding, SparseLinear, SparseEmbedding)
    if not isinstance(layer, linear_or_table):
        return None
    rates = _machine_rates(host_threads())
    if isinstance(layer, SparseEmbedding):
        entry = layer.table.values.element_size() + 4
        share = layer.table.density * layer.embedding_dim * entry
        return batch * (share + layer.embedding_dim * layer.table.values.element_size()) / rates.bytes
    if isinstance(layer, torch.nn.Embedding):
        return 2 * batch * layer.embedding_dim * layer.weight.element_size() / rates.bytes
    if isinstance(layer, SparseLinear):
        bytes_read = layer.values.numel() * layer.values.element_size() + layer.pattern.bytes()
        return max(bytes_read / rates.bytes, 2 * layer.nnz * batch / rates.sparse)
    assert isinstance(layer, torch.nn.Linear)
    bytes_read = layer.weight.numel() * layer.weight.element_size()
    return max(bytes_read / rates.bytes, 2 * layer.weight.numel() * batch / rates.dense)

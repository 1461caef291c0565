"""Time layers, and estimate their time from what they read and multiply."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping

import torch

from scorch._src.backends.base import host_threads
from scorch._src.devices import HOST
from scorch._src.nn.sparse_embedding import SparseEmbedding
from scorch._src.nn.sparse_inputs import Linear
from scorch._src.nn.sparse_linear import SparseLinear

PRUNABLE_LAYERS = (torch.nn.Linear, Linear, torch.nn.Embedding)  # may be stored sparse: no subclasses
MIN_SECONDS_PER_CANDIDATE = 0.05
MIN_ROUNDS = 5


def measure_fastest(calls: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Return the shortest time of each call in seconds; calls take turns, to share disturbances."""
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


def make_call(layer: torch.nn.Module, batch: int) -> Callable[[], object]:
    """Return a call of a linear layer or an embedding on an input of ``batch`` rows."""
    parameter = next(layer.parameters())
    if isinstance(layer, (torch.nn.Embedding, SparseEmbedding)):
        input = torch.arange(batch, device=parameter.device) * 7919 % max(layer.num_embeddings, 1)
    else:
        assert isinstance(layer, (torch.nn.Linear, SparseLinear))
        input = torch.ones(batch, layer.in_features, dtype=parameter.dtype, device=parameter.device)
    return lambda: layer(input)


class MachineRates:
    """What this machine does in a second with the current threads: bytes read, operations by kind."""

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


def estimate_seconds(layer: torch.nn.Module, batch: int) -> float:
    """Estimate the time of reading the weight, or multiplying by it, at the speed of this machine."""
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

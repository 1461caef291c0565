"""How long layers take, measured, and how long they should take by what they read and multiply."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping

import torch

from scorch._src.backends.base import host_threads
from scorch._src.devices import HOST
from scorch._src.nn.embedding import SparseEmbedding
from scorch._src.nn.inputs import Linear
from scorch._src.nn.linear import SparseLinear

PLAIN = (torch.nn.Linear, Linear, torch.nn.Embedding)  # the layers that may be stored sparse: no subclasses
SECONDS = 0.05  # for each contestant, at least
ROUNDS = 5  # and at least so many calls


def fastest(calls: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """The shortest time of each call in seconds; they take turns, so that what disturbs meets all alike."""
    found: dict[str, float] = {}
    with torch.no_grad():
        for call in calls.values():
            call()
        end, rounds = time.perf_counter() + SECONDS * len(calls), 0
        while rounds < ROUNDS or time.perf_counter() < end:
            rounds += 1
            for name, call in calls.items():
                start = time.perf_counter()
                call()
                spent = time.perf_counter() - start
                found[name] = min(found.get(name, spent), spent)
    return found


def sample_input(layer: torch.nn.Module, batch: int) -> torch.Tensor:
    """Something that a linear layer or an embedding takes."""
    device = next(layer.parameters()).device
    if isinstance(layer, (torch.nn.Embedding, SparseEmbedding)):
        return torch.arange(batch, device=device) * 7919 % max(layer.num_embeddings, 1)
    assert isinstance(layer, (torch.nn.Linear, SparseLinear))
    dtype = layer.values.dtype if isinstance(layer, SparseLinear) else layer.weight.dtype
    return torch.ones(batch, layer.in_features, dtype=dtype, device=device)


def call_of(layer: torch.nn.Module, batch: int) -> Callable[[], object]:
    """The layer on an input of ``batch`` rows."""
    given = sample_input(layer, batch)
    return lambda: layer(given)


class Rates:
    """What this machine does in a second with the threads now set: bytes read, operations by kind."""

    def __init__(self) -> None:
        torch_state = torch.get_rng_state()
        torch.manual_seed(0)
        size = 512
        a, b = torch.randn(size, size, device=HOST), torch.randn(size, size, device=HOST)
        large = torch.randn(1 << 23, device=HOST)
        layer = SparseLinear(1024, 1024, sparsity=0.9, bias=False, device=HOST)
        x = torch.randn(32, 1024, device=HOST)
        torch.set_rng_state(torch_state)
        spent = fastest(
            {"read": lambda: large.sum(), "dense": lambda: a @ b, "sparse": lambda: layer(x)},
        )
        self.bytes = large.numel() * 4 / spent["read"]
        self.dense = 2 * size**3 / spent["dense"]
        self.sparse = 2 * layer.nnz * 32 / spent["sparse"]


@functools.cache
def _rates(threads: int) -> Rates:
    return Rates()


def expected_seconds(layer: torch.nn.Module, batch: int) -> float:
    """The time that reading the weight, or multiplying by it, takes at the speed of this machine."""
    rates = _rates(host_threads())
    if isinstance(layer, SparseEmbedding):
        entry = layer.table.values.element_size() + 4
        share = layer.table.density * layer.embedding_dim * entry
        return batch * (share + layer.embedding_dim * layer.table.values.element_size()) / rates.bytes
    if isinstance(layer, torch.nn.Embedding):
        return 2 * batch * layer.embedding_dim * layer.weight.element_size() / rates.bytes
    if isinstance(layer, SparseLinear):
        read = layer.values.numel() * layer.values.element_size() + layer.pattern.bytes()
        return max(read / rates.bytes, 2 * layer.nnz * batch / rates.sparse)
    assert isinstance(layer, torch.nn.Linear)
    read = layer.weight.numel() * layer.weight.element_size()
    return max(read / rates.bytes, 2 * layer.weight.numel() * batch / rates.dense)

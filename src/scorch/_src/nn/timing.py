"""Time layers, and estimate their time from what they read and multiply."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from scorch._src.backends.base import host_threads
from scorch._src.devices import HOST
from scorch._src.nn.sparse_embedding import SparseEmbedding
from scorch._src.nn.sparse_linear import SparseLinear
from scorch.errors import OperandError, add_note

RATED = (torch.float64, torch.float32, torch.bfloat16)  # dtypes in which operations are timed
Call = tuple[tuple[Any, ...], dict[str, Any]]  # arguments
MIN_SECONDS_PER_CANDIDATE, MAX_SECONDS_PER_CANDIDATE = 0.05, 0.25
MAX_SECONDS_PER_STATE = 1.0  # of a whole model
MIN_AGREEING, AGREEING = 3, 1.05  # so many times of a state are at most so many times the shortest
MIN_ROUNDS, MIN_SLOW_ROUNDS = 5, 2  # the latter of calls that take long


RUNNING_EXAMPLE = "while the model ran on example: an input, or a tuple or dictionary of its arguments"


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
    """Return the shortest time of each call in seconds; calls alternate, so that disturbances affect all.

    Under ``torch.autocast`` each call casts its weights, as it does once in each pass through a model.
    """
    seconds: dict[str, float] = {}
    with torch.no_grad():
        for call in calls.values():
            call()
        begin, rounds = time.perf_counter(), 0
        while _is_measuring(time.perf_counter() - begin, rounds, len(calls)):
            rounds += 1
            for name, call in calls.items():
                elapsed = _seconds_of(call)
                seconds[name] = min(seconds.get(name, elapsed), elapsed)
    return seconds


def _is_measuring(elapsed: float, rounds: int, candidates: int) -> bool:
    """Whether another round is worth its time."""
    is_slow = elapsed > MAX_SECONDS_PER_CANDIDATE * candidates
    least = MIN_SLOW_ROUNDS if is_slow else MIN_ROUNDS
    return rounds < least or elapsed < MIN_SECONDS_PER_CANDIDATE * candidates


def _seconds_of(call: Callable[[], object]) -> float:
    torch.clear_autocast_cache()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


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


def record_calls(
    model: torch.nn.Module, layers: Iterable[torch.nn.Module], example: Any
) -> dict[torch.nn.Module, Call]:
    """Return what each layer is called with first when the model runs on ``example``."""
    found: dict[torch.nn.Module, Call] = {}

    def record(layer: torch.nn.Module, arguments: Any, options: Any) -> None:
        found.setdefault(layer, (tuple(arguments), dict(options)))

    hooks = [layer.register_forward_pre_hook(record, with_kwargs=True) for layer in layers]
    arguments, options = bind_example(example)
    try:
        with evaluating(model), calling_parts():
            model(*arguments, **options)
    except Exception as error:
        add_note(error, RUNNING_EXAMPLE)
        raise
    finally:
        for hook in hooks:
            hook.remove()
    return found


def compare_models(switches: Sequence[Callable[[], torch.nn.Module]], call: Call) -> list[float]:
    """Return the shortest time of a model in several states; a switch puts it in one and returns it.

    Where other processes disturb a model, the median says more about those than about the model, and the
    shortest time is one only if others come close to it.
    """
    seconds: list[list[float]] = [[] for _ in switches]
    begin = time.perf_counter()
    while _is_comparing((time.perf_counter() - begin) / len(switches), seconds):
        for times, switch in zip(seconds, switches, strict=True):
            times.append(_seconds_of(functools.partial(switch(), *call[0], **call[1])))
    return [min(times[1:]) for times in seconds]  # the first calls fill caches


def _is_comparing(elapsed: float, seconds: Sequence[Sequence[float]]) -> bool:
    """Whether another round is worth its time, after so many seconds for each state."""
    if len(seconds[0]) <= MIN_ROUNDS or elapsed < MIN_SECONDS_PER_CANDIDATE:
        return True
    shortest = [sorted(times[1:])[:MIN_AGREEING] for times in seconds]
    return elapsed < MAX_SECONDS_PER_STATE and any(few[-1] > few[0] * AGREEING for few in shortest)


class MachineRates:
    """What this machine does per second with the current threads: bytes read, operations by kind."""

    def __init__(self, dtype: torch.dtype) -> None:
        torch_state = torch.get_rng_state()
        torch.manual_seed(0)
        size = 512
        a, b = (torch.randn(size, size, device=HOST).to(dtype) for _ in range(2))
        large = torch.randn(1 << 23, device=HOST)
        layer = SparseLinear(1024, 1024, sparsity=0.9, bias=False, device=HOST).to(dtype)
        x = torch.randn(32, 1024, device=HOST).to(dtype)
        torch.set_rng_state(torch_state)
        seconds = measure_fastest(
            {"read": lambda: large.sum(), "dense": lambda: a @ b, "sparse": lambda: layer(x)},
        )
        self.bytes = large.numel() * 4 / seconds["read"]
        self.dense = 2 * size**3 / seconds["dense"]
        self.sparse = 2 * layer.nnz * 32 / seconds["sparse"]


@functools.cache
def _machine_rates(threads: int, dtype: torch.dtype) -> MachineRates:
    return MachineRates(dtype)


def estimate_seconds(layer: torch.nn.Module, batch: int) -> float | None:
    """Estimate the time of reading the weight, or multiplying by it; None unless linear or an embedding."""
    linear_or_table = (torch.nn.Linear, torch.nn.Embedding, SparseLinear, SparseEmbedding)
    if not isinstance(layer, linear_or_table):
        return None
    dtypes = [parameter.dtype for parameter in layer.parameters()]
    dtype = next((dtype for dtype in dtypes if dtype in RATED), torch.float32)
    rates = _machine_rates(host_threads(), dtype)
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

"""Run recorded sparse layers: what follows a product alone is computed with it, in one routine."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from scorch._src.backends.base import host_threads
from scorch._src.backends.by_torch.convolutions import NOTHING
from scorch._src.compile.group_plan import collect_values, name_of_call, run_eager_call
from scorch._src.compile.lazy_tensor import Source, Value
from scorch._src.grad_state import is_differentiable
from scorch._src.ops.products.activations import name_of_activation
from scorch._src.ops.products.convolution import (
    apply_convolution,
    convolve,
    find_fixed_norm,
    windows_of,
)
from scorch._src.ops.products.layer import apply_layer
from scorch._src.ops.products.linear import multiply_batch

SECONDS_PER_CALL = 3e-6  # of PyTorch, beyond what it computes
SECONDS_PER_CHAIN = 2e-4  # that recording and looking up a layer with what follows takes, next to real work
BYTES_PER_SECOND = 1e10  # that a pass over a result reads and writes, for each of a few threads
MAX_THREADS = 4
PRODUCT = "product"  # the name, among the parents of a recipe, of what an activation or a residual follows


@dataclass
class LayerPlan:
    """Compute recorded layers; each of ``chains`` has the numbers of values that one routine computes.

    ``is_split``: a value inside a chain was needed later by itself, so chains run call by call.
    """

    calls: tuple[str, ...]
    chains: tuple[tuple[int, ...], ...]
    sources: tuple[int, ...]
    pattern_number: int
    statements: str
    reason: str
    is_split: bool = False

    def run(self, record: Any) -> None:
        """Compute all values of the chains that are needed."""
        items = record.items
        for number in self.sources:
            item = items[number]
            if type(item) is Source:
                item.check()
        for chain in self.chains:
            for number in record.absorbed.keys() & set(chain):
                record.absorbed[number].is_split = True
            values = [items[number] for number in chain if items[number].result is None]
            is_whole = len(values) == len(chain) and not self.is_split
            output = _run_fused(values) if is_whole else None
            if output is not None:
                values[-1].result = output
                record.absorbed.update(dict.fromkeys(chain[:-1], self))
                continue
            for value in values:
                value.result = run_eager_call(value.call, {})

    def seconds_saved(self, record: Any) -> float:
        """Estimate the time saved by fusion: a call for each value but the first, and a pass over each."""
        chains = [chain for chain in self.chains if chain[0] in record.absorbed]
        fused = [record.items[number].recipe for chain in chains for number in chain[1:]]
        passed: float = sum(2 * math.prod(recipe.shape) * recipe.dtype.itemsize for recipe in fused)
        speed = BYTES_PER_SECOND * min(host_threads(), MAX_THREADS)
        return len(fused) * SECONDS_PER_CALL + passed / speed - len(chains) * SECONDS_PER_CHAIN


def plan_layers(record: Any, values: Sequence[Value]) -> LayerPlan:
    """Plan how to compute ``values``, which are outputs of layers with one weight."""
    order = collect_values(record.items, values)
    own = {value.number for value in order}
    numbers = [number for value in order for number in value.recipe.parents.values()]
    chains = _find_chains(order, {value.number for value in values})
    statements = [_describe([record.items[number] for number in chain]) for chain in chains]
    is_single = len(order) == 1 and order[0].recipe.kind in ("linear", "convolution")
    return LayerPlan(
        tuple(name_of_call(value.call[0]) for value in order),
        chains,
        tuple(number for number in dict.fromkeys(numbers) if number not in own),
        values[0].recipe.pattern_number,
        "\n".join(statements),
        "a single call" if is_single else "",
    )


def _find_chains(order: Sequence[Value], requested: set[int]) -> tuple[tuple[int, ...], ...]:
    """Find values that follow each other and are needed for nothing else."""
    readers = Counter(number for value in order for number in value.recipe.parents.values())
    chains: dict[int, tuple[int, ...]] = {}  # by the number of the last value
    for value in order:
        product = value.recipe.parents.get(PRODUCT)
        is_inside = product in chains and readers[product] == 1 and product not in requested
        chains[value.number] = (*(chains.pop(product) if is_inside else ()), value.number)  # type: ignore[arg-type]
    return tuple(chains.values())


def _run_fused(values: Sequence[Value]) -> torch.Tensor | None:
    """Compute a chain in one routine; None where its calls must run one by one."""
    func, args, _ = values[0].call
    if func is apply_layer:
        return _run_layer(args, values[1:])
    return _run_convolution(args, values[1:]) if func is apply_convolution and len(values) > 1 else None


def _run_layer(args: Sequence[Any], followers: Sequence[Value]) -> torch.Tensor | None:
    """Compute a product with what follows."""
    input, weight, own, bias, scales, activation, residual = map(_resolve, args)
    for value in followers:
        func, args, _ = value.call
        if value.recipe.kind == "residual":
            residual = _resolve(args[1])
        else:
            activation = name_of_activation(func)
    tensors = [tensor for tensor in (input, weight, own, bias, residual) if tensor is not None]
    if is_differentiable(*tensors):
        return None
    return multiply_batch(input, weight, bias, scales, activation, residual)


def _run_convolution(args: Sequence[Any], followers: Sequence[Value]) -> torch.Tensor:
    """Compute a convolution with what follows."""
    images, weight, bias, *numbers = map(_resolve, args)
    storage, follows = weight.storage, NOTHING
    for value in followers:
        func, args, _ = value.call
        if value.recipe.kind == "normed":
            mean, variance, gain, shift, _, _, eps = map(_resolve, args[1:])
            channels = storage.pattern.shape[0]
            norm = find_fixed_norm(channels, images.dtype, mean, variance, gain, shift, eps)
            follows = follows._replace(norm=norm)
        elif value.recipe.kind == "added":
            follows = follows._replace(residual=_resolve(args[1]))
        else:
            follows = follows._replace(activation=name_of_activation(func))
    return convolve(images, storage.pattern, storage.values, bias, windows_of(tuple(numbers)), follows)


def _resolve(item: Any) -> Any:
    return item.tensor() if isinstance(item, (Value, Source)) else item


def _describe(values: Sequence[Value]) -> str:
    """Write what a chain computes in index notation."""
    func, args, _ = values[0].call
    if func is apply_convolution:
        return _describe_convolution(values)
    if func is not apply_layer:
        return f"T{values[0].number} = {name_of_call(func)}(T{values[0].recipe.parents[PRODUCT]})"
    _, _, _, bias, scales, activation, residual = args
    text = "sum(j, W[i,j] * x[...,j])"
    text = f"scales[i] * {text}" if scales is not None else text
    text = f"{text} + bias[i]" if bias is not None else text
    names = [name_of_activation(value.call[0]) for value in values[1:] if value.recipe.kind == "activation"]
    for name in (activation, *names):
        text = text if name is None else f"{name}({text})"
    has_residual = residual is not None or any(value.recipe.kind == "residual" for value in values[1:])
    return f"y[...,i] = {text}" + (" + residual[...,i]" if has_residual else "")


def _describe_convolution(values: Sequence[Value]) -> str:
    """Write a convolution and what follows."""
    _, (_, _, bias, *_), _ = values[0].call
    text = "sum(c, i, j, W[o,c,i,j] * x[n,c,y+i,x+j])" + ("" if bias is None else " + bias[o]")
    for value in values[1:]:
        if value.recipe.kind == "normed":
            text = f"(({text}) - mean[o]) / sqrt(var[o] + eps) * weight[o] + bias[o]"
        elif value.recipe.kind == "added":
            text = f"{text} + residual[n,o,y,x]"
        else:
            text = f"{name_of_activation(value.call[0])}({text})"
    return f"out[n,o,y,x] = {text}"

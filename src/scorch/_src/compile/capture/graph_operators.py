"""Sums, maxima and attention over the neighbours in a graph as operators of ``torch.compile``."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from scorch._src.compile.capture.function_operators import operator
from scorch._src.ops.graph import neighbours
from scorch._src.tensor.registry import entry

Tensor = torch.Tensor


def _like_rows(adj: Tensor, x: Tensor, targets: int, *_: Any) -> Tensor:
    return x.new_empty(targets, x.shape[1])


def _like_heads(adj: Tensor, x: Tensor, sources: Tensor, targets: Tensor, *_: Any) -> Tensor:
    return x.new_empty(targets.shape[0], x.shape[1], x.shape[2])


sum_neighbours = inspect.unwrap(neighbours.sum_neighbours)
max_neighbours = inspect.unwrap(neighbours.max_neighbours)
attend_neighbours = inspect.unwrap(neighbours.attend_neighbours)

operator(
    "sum_neighbours(Tensor adj, Tensor x, SymInt targets, str how, float? loop, Tensor? edge_weight, "
    "Tensor? bias) -> Tensor",
    _like_rows,
)(sum_neighbours)
entry(sum_neighbours).backward_ignores_result = True

operator("max_neighbours(Tensor adj, Tensor x, SymInt targets) -> Tensor", _like_rows)(max_neighbours)

operator(
    "attend_neighbours(Tensor adj, Tensor x, Tensor sources, Tensor targets, float slope, float dropout, "
    "bool loops, Tensor? edge_attr, Tensor? edge_weight, str fill, Tensor? filled) -> Tensor",
    _like_heads,
)(attend_neighbours)

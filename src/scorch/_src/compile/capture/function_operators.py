"""Scorch's own functions as operators of ``torch.compile``.

Dynamo traces a program line by line, and cannot trace Scorch's caches and tables. While it traces
(``is_dynamo_compiling``) these functions are operators, whose body it does not look into.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from scorch._src.compile.capture.program import GRAPH_FUNCTIONS
from scorch._src.compile.capture.trace import FUNCTION_OF_OPERATOR, record
from scorch._src.formats import Format
from scorch._src.notation.indexing import parse
from scorch._src.notation.trees import accesses
from scorch._src.ops.graph import joint_attention, neighbours
from scorch._src.ops.reduction import masked
from scorch._src.statements.einsum import einsum
from scorch._src.statements.evaluate import evaluate
from scorch._src.tensor.autograd import sparse_of
from scorch._src.tensor.create.build import from_coordinates
from scorch._src.tensor.create.construct import from_torch
from scorch._src.tensor.create.torch_constructors import (
    sparse_coo_tensor,
    sparse_csc_tensor,
    sparse_csr_tensor,
)
from scorch._src.tensor.entries import entries_of, from_entries
from scorch._src.tensor.flatten import TracedStorage, link_to_layer, pattern_of, read_spelled
from scorch._src.tensor.methods import with_values
from scorch._src.tensor.registry import entry
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.tensor.torch_methods import eliminate_zeros, setdiag
from scorch._src.tensor.traced import sampled, wrap_arrays
from scorch._src.torch_internals import torch_sparse_sum, tree_leaves

_library = torch.library.Library("scorch", "FRAGMENT")
Tensors = Sequence[torch.Tensor]


def operator(schema: str, fake: Callable[..., Any]) -> Callable[[Any], Any]:
    """Register a function as an operator; ``fake`` returns, of dense tensors, one of the result's shape."""

    def define(function: Any) -> Any:
        name = schema.partition("(")[0]
        _library.define(schema)

        def run(*args: Any) -> Any:
            return record(function, args, {}) if _is_traced(args) else function(*args)

        _library.impl(name, run, "CompositeImplicitAutograd")
        packet = getattr(torch.ops.scorch, name)
        FUNCTION_OF_OPERATOR[packet] = FUNCTION_OF_OPERATOR[packet.default] = function
        GRAPH_FUNCTIONS[f"scorch.{name}"] = function
        entry(function).fake = fake
        return function

    return define


def _is_traced(args: Any) -> bool:
    for tensor in tree_leaves(args):
        if isinstance(tensor, SparseTensor):
            if isinstance(tensor.storage, TracedStorage):
                return True
        elif isinstance(tensor, torch.Tensor) and type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            return True
    return False


def _like_evaluate(expression: str, names: list[str], tensors: Tensors, format: Any = None) -> torch.Tensor:
    assign = parse(expression).assign
    sizes: dict[str, Any] = {}
    for access in accesses(assign.value):
        sizes.update(zip(access.indices, tensors[names.index(access.tensor)].shape, strict=True))
    return torch.empty([sizes[index] for index in assign.target.indices], device=tensors[0].device)


@operator(
    "einsum(str equation, Tensor[] operands, str? format=None, bool sparse_grad=False) -> Tensor",
    lambda equation, operands, format=None, sparse_grad=False: torch.einsum(equation, *operands),
)
def _einsum(equation: str, operands: Tensors, format: str | None = None, sparse_grad: bool = False) -> Any:
    return einsum(equation, *operands, format=_format(format), sparse_grad=sparse_grad)


@operator(
    "evaluate(str expression, str[] names, Tensor[] tensors, str? format=None) -> Tensor", _like_evaluate
)
def _evaluate(expression: str, names: list[str], tensors: Tensors, format: str | None = None) -> Any:
    operands: dict[str, Any] = dict(zip(names, tensors, strict=True))
    return evaluate(expression, format=_format(format), **operands)


@operator("from_torch(Tensor t, str? format=None) -> Tensor", lambda t, format=None: t)
def _from_torch(t: torch.Tensor, format: str | None = None) -> Any:
    return from_torch(t, format=_format(format))


def _empty(
    kind: str, index: Tensors, values: torch.Tensor, size: Sequence[int], format: str | None = None
) -> Any:
    """Return a tensor without entries in the format of ``_sparse``."""
    form = _format(kind if format is None else format)
    no_coordinates = torch.zeros(len(size), 0, dtype=torch.int64, device=values.device)
    return from_coordinates(no_coordinates, values.new_zeros(0), size, format=form)


@operator(
    "sparse(str kind, Tensor[] index, Tensor values, SymInt[] size, str? format=None) -> Tensor",
    lambda kind, index, values, size, format=None: values.new_empty(size),
)
def _sparse(
    kind: str, index: Tensors, values: torch.Tensor, size: Sequence[int], format: str | None = None
) -> Any:
    construct: Any = {"coo": sparse_coo_tensor, "csr": sparse_csr_tensor, "csc": sparse_csc_tensor}[kind]
    return construct(*index, values, tuple(size), format=_format(format))


entry(_sparse).stand_in = _empty


def _assemble(format: str, shape: Sequence[Any], arrays: Tensors, values: torch.Tensor) -> SparseTensor:
    """Assemble a tensor from its arrays without computing anything."""
    pattern = pattern_of(read_spelled(format), tuple(shape), arrays)
    if _is_traced((arrays, values)):
        return wrap_arrays(pattern, values)
    tensor = sparse_of(pattern, values)
    link_to_layer(tensor.storage)
    return tensor


_library.define("assemble(str format, SymInt[] shape, Tensor[] arrays, Tensor values) -> Tensor")
_library.impl("assemble", _assemble, "CompositeImplicitAutograd")


def _format(text: str | None) -> Format | str | None:
    return read_spelled(text) if text is not None and ":" in text else text


def _like_rows(adj: torch.Tensor, x: torch.Tensor, targets: int, *_: Any) -> torch.Tensor:
    return x.new_empty(targets, x.shape[1])


_sum_neighbours = inspect.unwrap(neighbours.sum_neighbours)
operator(
    "sum_neighbours(Tensor adj, Tensor x, SymInt targets, str how, float? loop, Tensor? edge_weight, "
    "Tensor? bias) -> Tensor",
    _like_rows,
)(_sum_neighbours)
operator("max_neighbours(Tensor adj, Tensor x, SymInt targets) -> Tensor", _like_rows)(
    inspect.unwrap(neighbours.max_neighbours)
)
operator(
    "attend_neighbours(Tensor adj, Tensor x, Tensor sources, Tensor targets, float slope, float dropout, "
    "bool loops, Tensor? edge_attr, Tensor? edge_weight, str fill, Tensor? filled) -> Tensor",
    lambda adj, x, sources, targets, *_: x.new_empty(targets.shape[0], *x.shape[1:]),
)(inspect.unwrap(neighbours.attend_neighbours))
operator(
    "attend_additively(Tensor adj, Tensor sources, Tensor targets, Tensor attention, float slope, "
    "float dropout, bool loops, Tensor? edge_attr, Tensor? edge_weight, str fill, Tensor? filled) -> Tensor",
    lambda adj, sources, targets, *_: sources.new_empty(targets.shape[0], *sources.shape[1:]),
)(inspect.unwrap(joint_attention.attend_additively))
operator(
    "attend_by_products(Tensor adj, Tensor queries, Tensor keys, Tensor values, float dropout, "
    "Tensor? edge_attr, Tensor? edge_weight) -> Tensor",
    lambda adj, queries, keys, values, *_: values.new_empty(queries.shape[0], *values.shape[1:]),
)(inspect.unwrap(joint_attention.attend_by_products))

entry(_einsum).backward_ignores_result = entry(_sum_neighbours).backward_ignores_result = True
for _name, _masked in {**masked.OPERATIONS, **masked.PER_ENTRY}.items():
    GRAPH_FUNCTIONS[f"scorch.masked.{_name}"] = _masked
    entry(_masked).fake = getattr(torch, {"prod": "sum", "median": "nansum"}.get(_name, _name))
for _method in (SparseTensor.to_format, eliminate_zeros, setdiag, with_values):
    GRAPH_FUNCTIONS[f"scorch.{_method.__name__}"] = _method
    entry(_method).fake = lambda tensor, *_, **__: tensor
entry(with_values).fake = lambda tensor, values: tensor.to(torch.result_type(tensor, values))
entry(eliminate_zeros).stand_in = lambda tensor: from_entries(entries_of(tensor), tensor.format)
entry(with_values).stand_in = lambda tensor, values: with_values(
    tensor, torch.zeros_like(tensor.storage.values, dtype=torch.result_type(tensor.storage.values, values))
)
GRAPH_FUNCTIONS |= {"scorch.sampled": sampled, "scorch.sparse_sum": torch_sparse_sum}
entry(sampled).fake = lambda tensor, mask: mask
for _product in (torch.sparse.mm, torch.smm, torch.Tensor.smm, torch.hspmm, torch.hsmm):
    entry(_product).fake = lambda mat1, mat2, *_, **__: torch.mm(mat1, mat2)
entry(torch_sparse_sum).fake = torch.sum
entry(torch.Tensor.sparse_mask).fake = lambda tensor, mask: mask
for _same in (
    torch.sparse.softmax, torch.sparse.log_softmax, torch.sparse.sampled_addmm, torch.Tensor.coalesce,
    torch.sspaddmm, torch.Tensor.sspaddmm, torch.saddmm,
):  # fmt: skip
    entry(_same).fake = lambda tensor, *_, **__: tensor
for _name in ("", "_coo", "_csr", "_csc", "_bsr", "_bsc"):
    if hasattr(torch.Tensor, f"to_sparse{_name}"):
        entry(getattr(torch.Tensor, f"to_sparse{_name}")).fake = lambda tensor, *_, **__: tensor

"""Trace calls on sparse tensors: each becomes one operator of the graph, or torch's own on values."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from scorch._src.bounded import BoundedCache
from scorch._src.compile.capture.call_operators import memory_of  # the operators there are called below
from scorch._src.compile.capture.fake_outputs import (
    ArgumentSpec,
    FakeOutputs,
    graph_break,
    has_unknown_shape,
    infer_dense_shapes,
    infer_outputs,
    is_pointwise,
    size_hint,
    skip_frame,
)
from scorch._src.compile.capture.program import (
    Operand,
    Program,
    Result,
    Slot,
    call_filled,
    fill_slots,
    name_of,
    serialize,
)
from scorch._src.devices import HOST
from scorch._src.grad_state import is_called_from
from scorch._src.ops.movement.movement import MOVING_FUNCTIONS
from scorch._src.statements.autocast import autocast_dtype
from scorch._src.tensor.flatten import pattern_of
from scorch._src.tensor.registry import ASSIGNMENTS, ITSELF, VIEWS
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.tensor.traced import arrays_of, is_traced, same_arrays, traced, traced_values
from scorch._src.torch_internals import (
    FAKE_TENSOR_MAKER,
    GRAPH_MAKER,
    DisableTorchFunctionSubclass,
    detect_fake_mode,
    disable_current_modes,
    tree_leaves,
    tree_unflatten,
)
from scorch.errors import UnsupportedError

aten = torch.ops.aten

_METADATA_FUNCTIONS = {
    "dim", "element_size", "get_device", "is_complex", "is_contiguous", "is_floating_point", "is_inference",
    "is_same_size", "is_signed", "is_tensor", "ndimension", "nelement", "numel", "size", "storage_offset",
    "stride", "__len__", "__hash__", "__dir__", "__repr__", "__format__", "is_conj", "is_neg",
    "result_type", "untyped_storage", "_typed_storage",
    "has_names", "is_set_to", "_is_view", "is_pinned", "is_shared",
}  # fmt: skip
_IS_SPARSE = torch.Tensor.is_sparse.__get__  # type: ignore[attr-defined]
_SIZES = {
    aten.sym_size.int, aten.sym_size.default, aten.sym_stride.int, aten.sym_stride.default,
    aten.sym_numel.default, aten.sym_storage_offset.default,
}  # fmt: skip
_ALIASES = {aten.detach.default, aten.alias.default, aten.lift_fresh.default}
_ON_VALUES = {"clone", "_to_copy", "to", "float", "double", "half", "bfloat16", "dropout"}
FUNCTION_OF_OPERATOR: dict[Any, Any] = {}  # by the operator that stands for it
_cached_outputs: BoundedCache[Any, FakeOutputs] = BoundedCache(1024)


def record(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Trace ``func(*args, **kwargs)``, connected to its traced tensors."""
    func = FUNCTION_OF_OPERATOR.get(func, func)
    if func == _IS_SPARSE:
        return not is_called_from(FAKE_TENSOR_MAKER, 2)
    if func in _ALIASES:
        return SparseTensor(args[0].storage)
    if _is_metadata(func):
        with DisableTorchFunctionSubclass():
            return func(*args, **kwargs)
    name = getattr(func, "__name__", "")
    is_in_place = name.endswith("_") and not name.endswith("__")
    if is_in_place or name in ASSIGNMENTS or kwargs.get("out") is not None:
        return _record_in_place(func, name, args, kwargs)
    if has_unknown_shape(name, args, kwargs):
        raise graph_break(
            f"the shape of {name.strip('_')} of a sparse tensor depends on its values, which are not known "
            "when the graph is captured; call it outside the graph, or on S.values() and S.coo()"
        )
    call = _Call(func, args, kwargs)
    result = call.run_on_values()
    result = call.record() if result is None else result
    if _may_alias(func, name):
        call.mark_aliases(result)
    return result


def _record_in_place(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Trace ``S.mul_(2)`` as new values for S, which is possible where the result has the pattern of S."""
    plain = name.removeprefix("__i").strip("_")
    functional = getattr(torch.Tensor, plain, None)
    target = args[0]
    if plain == "copy" and any(is_called_from(GRAPH_MAKER, depth) for depth in range(3, 7)):
        target.storage.values.copy_(args[1].storage.values)  # an argument changed as below
        return target
    if is_traced(target) and target.storage.is_shared:
        raise skip_frame(
            f"{name} modifies a sparse tensor in place that is a view or has views, which is not supported "
            "in compiled graphs"
        )
    if name != "__setitem__" and functional is not None and "out" not in kwargs and is_traced(target):
        result = record(functional, args, kwargs)
        is_on_pattern = is_traced(result) and same_arrays(result.storage.pattern, target.storage.pattern)
        if is_on_pattern and result.dtype == target.dtype:
            if torch.is_grad_enabled() and (result.requires_grad or target.requires_grad):
                raise graph_break(
                    f"{name} modifies a sparse tensor that requires grad in place, which is not supported in "
                    f"compiled graphs; use S = S.{plain}(...)"
                )
            target.storage.values.copy_(result.storage.values)
            return target
    raise graph_break(
        f"{name} modifies a sparse tensor in place; in compiled graphs, only functions that keep the "
        "sparsity pattern, such as mul_, are supported in place"
    )


# Functions whose result may be a view of their argument, or the argument itself.
_MAY_ALIAS = {
    *MOVING_FUNCTIONS, *VIEWS, "adjoint", "conj", "contiguous", "cpu", "detach", "dropout", "imag",
    "positive", "real", "to", "type", "type_as", "__pos__",
}  # fmt: skip


def _may_alias(func: Any, name: str) -> bool:
    if type(func).__name__ == "OpOverload":
        return bool(func.is_view)
    if type(func).__name__ == "method-wrapper":
        return func.__self__.__name__ in VIEWS
    return name in _MAY_ALIAS


def _is_metadata(func: Any) -> bool:
    """Whether a function reads the metadata of a tensor and none of its values."""
    if type(func).__name__ == "method-wrapper":
        return func.__self__.__name__ not in VIEWS
    if func in _SIZES or getattr(func, "__module__", None) == "torch.autograd":
        return True
    name = getattr(func, "__name__", "")
    return name in ITSELF or name in _METADATA_FUNCTIONS


class _Call:
    """A call with its tensors and symbols replaced by numbered slots."""

    def __init__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.func = func
        self.tensors: list[torch.Tensor] = []
        self.sizes: list[Any] = []
        self.args = fill_slots(args, self._slot)
        self.kwargs = fill_slots(kwargs, self._slot)

    def _slot(self, value: Any) -> Any:
        if isinstance(value, torch.SymInt):
            self.sizes.append(value)
            return Slot("size", len(self.sizes) - 1)
        if isinstance(value, (torch.SymFloat, torch.SymBool)):
            if value.node.has_hint():  # an argument of the program: compiled again for other numbers
                return float(value) if isinstance(value, torch.SymFloat) else bool(value)
            raise graph_break(
                f"{name_of(self.func)} of a sparse tensor got a number that is computed in the graph; pass a "
                "0-D tensor or a Python number"
            )
        if not isinstance(value, torch.Tensor):
            return value
        self.tensors.append(value)
        return Slot("tensor", len(self.tensors) - 1)

    # torch's own functions on values -----------------------------------------------------------------

    def run_on_values(self) -> Any:
        """Run the call on arrays of values, if all tensors share one pattern and zeros stay zeros."""
        first = self.tensors[0]
        if not is_traced(first) or not first.dim():
            return None
        pattern = first.storage.pattern
        for other in self.tensors:
            if not is_traced(other) or not same_arrays(pattern, other.storage.pattern):
                return None
        name = getattr(self.func, "__name__", "").split(".")[0]
        if name not in _ON_VALUES and not (is_pointwise(self.func) and self._keeps_zeros()):
            return None
        values = [traced_values(tensor) for tensor in self.tensors]  # type: ignore[arg-type]
        result = self._call_with(values)
        if not isinstance(result, torch.Tensor) or result.shape != values[0].shape:
            return None
        return traced(pattern, result)

    def mark_aliases(self, results: Any) -> None:
        """Mark results that share memory with an argument, as the same call on meta tensors shows."""
        with disable_current_modes():
            meta_tensors = [
                torch.empty([size_hint(size) for size in tensor.shape], dtype=tensor.dtype, device="meta")
                for tensor in self.tensors
            ]
            numbers = {memory_of(tensor): number for number, tensor in enumerate(meta_tensors)}
            try:
                meta_results = tree_leaves(self._call_with(meta_tensors))
            except (RuntimeError, TypeError, ValueError):  # no such function of meta tensors
                return
        for result, meta_result in zip(tree_leaves(results), meta_results, strict=False):
            if not isinstance(meta_result, torch.Tensor) or memory_of(meta_result) not in numbers:
                continue
            for tensor in (result, self.tensors[numbers[memory_of(meta_result)]]):
                if is_traced(tensor):
                    tensor.storage.is_shared = True

    def _keeps_zeros(self) -> bool:
        with disable_current_modes():
            result = self._call_with(
                [torch.zeros((1,) * tensor.dim(), dtype=tensor.dtype, device=HOST) for tensor in self.tensors]
            )
            is_same_rank = isinstance(result, torch.Tensor) and result.dim() == self.tensors[0].dim()
            return is_same_rank and not bool(result)

    def _call_with(self, tensors: list[torch.Tensor]) -> Any:
        return call_filled(self.func, self.args, self.kwargs, tensors, self.sizes)

    # operators of Scorch -----------------------------------------------------------------------------

    def record(self) -> Any:
        """Run the call as an operator of the graph."""
        arrays, operands = self._operands()
        outputs = self._infer_outputs(operands)
        shapes = self._shapes(outputs)
        sizes = list(self.sizes)
        results = []
        for result, shape in zip(outputs.results, shapes, strict=True):
            results.append(replace(result, shape=(len(sizes), len(sizes) + len(shape))))
            sizes.extend(shape)
        seed = None
        if outputs.is_random:
            seed = len(arrays)
            arrays.append(torch.randint(2**62, (), dtype=torch.int64, device=HOST))
        autocast = autocast_dtype(arrays[0].device)
        arguments = (self.args, self.kwargs, tuple(operands), tuple(results), seed, autocast)
        program = Program(name_of(self.func), *arguments)
        has_new_arrays = any(result.values is None or None in result.arrays for result in results)
        new_arrays = torch.ops.scorch.call(program.serialize(), arrays, sizes) if has_new_arrays else []
        return tree_unflatten(_collect_tensors(results, list(new_arrays), arrays, sizes), outputs.spec)

    def _operands(self) -> tuple[list[torch.Tensor], list[Operand]]:
        """Collect all arrays, each once, and the arrays of each argument."""
        arrays: list[torch.Tensor] = []
        numbers: dict[int, int] = {}

        def number(array: torch.Tensor) -> int:
            if id(array) not in numbers:
                numbers[id(array)] = len(arrays)
                arrays.append(array)
            return numbers[id(array)]

        operands = []
        for tensor in self.tensors:
            if not isinstance(tensor, SparseTensor):
                operands.append(Operand(number(tensor)))
                continue
            pattern = tensor.storage.pattern
            index = tuple(number(array) for array in arrays_of(tensor)[:-1])
            begin = len(self.sizes)
            self.sizes.extend(pattern.shape)
            values = traced_values(tensor) if is_traced(tensor) else tensor.storage.values
            operands.append(Operand(number(values), pattern.format, index, (begin, len(self.sizes))))
        return arrays, operands

    def _infer_outputs(self, operands: list[Operand]) -> FakeOutputs:
        specs = []
        for tensor, operand in zip(self.tensors, operands, strict=True):
            shape = tuple(size_hint(size) for size in tensor.shape)
            index = tensor.storage.pattern.index_dtype if isinstance(tensor, SparseTensor) else torch.int32
            specs.append(ArgumentSpec(operand, shape, tensor.dtype, index, _device_of(tensor)))
        sizes = tuple(size_hint(size) for size in self.sizes)
        try:
            call = repr(serialize([self.args, self.kwargs]))
            key = name_of(self.func), call, tuple(specs), sizes, autocast_dtype(specs[0].device)
        except UnsupportedError as error:
            raise graph_break(str(error)) from error
        outputs = _cached_outputs.get(key)
        if outputs is None:
            outputs = _cached_outputs[key] = infer_outputs(self.func, self.args, self.kwargs, specs, sizes)
        return outputs

    def _shapes(self, outputs: FakeOutputs) -> list[tuple[Any, ...]]:
        """Return the shapes of the results, symbolic where those of the arguments are."""
        sample_shapes = list(outputs.shapes)
        specs = [(tuple(tensor.shape), tensor.dtype, _device_of(tensor)) for tensor in self.tensors]
        is_static = all(isinstance(size, int) for shape, *_ in specs for size in shape)
        if is_static and all(isinstance(size, int) for size in self.sizes):
            return sample_shapes
        mode = detect_fake_mode(self.tensors)
        shapes = infer_dense_shapes(self.func, self.args, self.kwargs, specs, self.sizes, mode)
        if shapes is None or [tuple(map(size_hint, shape)) for shape in shapes] != sample_shapes:
            raise graph_break(
                f"the shape of {name_of(self.func)} of sparse tensors cannot be derived from symbolic sizes; "
                "compile with dynamic=False"
            )
        sizes = [*self.sizes, *(size for shape, *_ in specs for size in shape)]
        if _needs_new_symbols(shapes, sizes):
            raise graph_break(
                f"{name_of(self.func)} computes new sizes from symbolic sizes, which this version of PyTorch "
                "does not support; compile with dynamic=False"
            )
        known = {size.node.expr: size for size in sizes if isinstance(size, torch.SymInt)}
        return [tuple(_computed_size(size, known) for size in shape) for shape in shapes]


def _computed_size(size: Any, known: Mapping[Any, torch.SymInt]) -> Any:
    """Return a size as the graph computes it of the ``known`` ones, by products, sums and powers of them.

    It was inferred outside of the graph, for which PyTorch finds out some expressions only.
    """

    def compute(expr: Any) -> Any:
        if expr in known:
            return known[expr]
        if expr.is_Integer:
            return int(expr)
        for other in known if expr.is_Mul else ():  # 2 * s * t, of a tensor of size s * t
            if other.is_Mul and all(factor in expr.args for factor in other.args):
                return operator.mul(known[other], compute(expr / other))
        if expr.is_Add or expr.is_Mul:
            return functools.reduce(operator.add if expr.is_Add else operator.mul, map(compute, expr.args))
        if expr.is_Pow and expr.exp.is_Integer and expr.exp > 0:
            return functools.reduce(operator.mul, [compute(expr.base)] * int(expr.exp))
        raise LookupError(expr)

    if not isinstance(size, torch.SymInt):
        return size
    try:
        return compute(size.node.expr)
    except LookupError:
        return size


def _device_of(tensor: torch.Tensor) -> torch.device:
    """Where the arrays of a tensor are."""
    return tensor.storage.device if isinstance(tensor, SparseTensor) else tensor.device


def _needs_new_symbols(shapes: list[tuple[Any, ...]], sizes: list[Any]) -> bool:
    """Whether the graph would have to compute sizes among ``shapes``, which this torch cannot do."""
    from scorch._src.torch_internals import build_proxy_for_size

    symbols = {size.node.expr for size in sizes if isinstance(size, torch.SymInt)}
    symbolic = [size for shape in shapes for size in shape if isinstance(size, torch.SymInt)]
    return build_proxy_for_size is None and any(size.node.expr not in symbols for size in symbolic)


def _collect_tensors(
    results: list[Result], new_arrays: list[torch.Tensor], arrays: list[torch.Tensor], sizes: list[Any]
) -> list[torch.Tensor]:
    """Build tensors from the arrays of an operator and those that existed before."""
    remaining = iter(new_arrays)
    tensors: list[torch.Tensor] = []
    for result in results:
        index = [next(remaining) if position is None else arrays[position] for position in result.arrays]
        values = next(remaining) if result.values is None else arrays[result.values]
        if result.format is None:
            tensors.append(values)
        else:
            tensors.append(traced(pattern_of(result.format, sizes[slice(*result.shape)], index), values))
    return tensors

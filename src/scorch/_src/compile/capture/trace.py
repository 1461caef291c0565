"""Calls on tensors that are traced: each becomes one operator of the graph, or torch's own on values."""

from __future__ import annotations

from typing import Any

import torch

from scorch._src.bounded import BoundedCache
from scorch._src.compile.capture.fake_outputs import (
    Kind,
    Outcome,
    Promise,
    dense_shapes,
    hint,
    is_pointwise,
    tried,
    unsupported,
    unsupported_function,
)
from scorch._src.compile.capture.operators import memory_of  # the operators there are called below
from scorch._src.compile.capture.program import Operand, Program, Result, filled_in
from scorch._src.compile.capture.serialize import OURS, Slot, name_of, write
from scorch._src.devices import HOST
from scorch._src.grad_state import is_asked_by
from scorch._src.ops.movement.movement import MOVING
from scorch._src.tensor.flatten import pattern_of
from scorch._src.tensor.registry import ASSIGNMENTS, ITSELF, VIEWS
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.tensor.traced import arrays_of, is_traced, same_arrays, sampled, traced, traced_values
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

OURS.update(
    {
        "scorch.to_format": SparseTensor.to_format,
        "scorch.sampled": sampled,
    }
)

_FACTS = {
    "dim", "element_size", "get_device", "is_complex", "is_contiguous", "is_floating_point", "is_inference",
    "is_same_size", "is_signed", "is_tensor", "ndimension", "nelement", "numel", "size", "storage_offset",
    "stride", "__len__", "__hash__", "__dir__", "__repr__", "__format__", "is_conj", "is_neg",
    "result_type", "untyped_storage", "_typed_storage",
    "has_names", "is_set_to", "_is_view", "is_pinned", "is_shared",
}  # fmt: skip
_IS_SPARSE = torch.Tensor.is_sparse.__get__  # type: ignore[attr-defined]
_SAME = {aten.detach.default, aten.alias.default, aten.lift_fresh.default}
_ON_VALUES = {"clone", "_to_copy", "to", "float", "double", "half", "bfloat16", "dropout"}
RENAMED: dict[Any, Any] = {}  # operators of ours that stand for a function
_outcomes: BoundedCache[Any, Outcome] = BoundedCache(1024)


def record(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``func(*args, **kwargs)`` of traced tensors, connected to them."""
    func = RENAMED.get(func, func)
    if func == _IS_SPARSE:
        return not is_asked_by(FAKE_TENSOR_MAKER, 2)
    if func in _SAME:
        return SparseTensor(args[0].storage)
    if _is_fact(func):
        with DisableTorchFunctionSubclass():
            return func(*args, **kwargs)
    name = getattr(func, "__name__", "")
    is_in_place = name.endswith("_") and not name.endswith("__")
    if is_in_place or name in ASSIGNMENTS or kwargs.get("out") is not None:
        return _in_place(func, name, args, kwargs)
    call = _Call(func, args, kwargs)
    found = call.on_values()
    found = call.recorded() if found is None else found
    if _may_share(func, name):
        call.mark_shared(found)
    return found


def _in_place(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``S.mul_(2)`` as new values for S, which is possible where the result has the pattern of S."""
    plain = name.removeprefix("__i").strip("_")
    functional = getattr(torch.Tensor, plain, None)
    target = args[0]
    if plain == "copy" and any(is_asked_by(GRAPH_MAKER, depth) for depth in range(3, 7)):
        target.storage.values.copy_(args[1].storage.values)  # an argument that was changed as below
        return target
    if getattr(target, "is_shared_in_graph", False):
        raise unsupported_function(
            f"{name} changes a sparse tensor that is a view or has views, which compiled graphs do not follow"
        )
    if name != "__setitem__" and functional is not None and "out" not in kwargs and is_traced(target):
        found = record(functional, args, kwargs)
        pattern = target.storage.pattern
        if is_traced(found) and same_arrays(found.storage.pattern, pattern) and found.dtype == target.dtype:
            if torch.is_grad_enabled() and (found.requires_grad or target.requires_grad):
                raise unsupported(f"{name} changes a sparse tensor that is learned in place; use {plain}")
            target.storage.values.copy_(found.storage.values)
            return target
    raise unsupported(
        f"{name} changes a sparse tensor in place, where compiled graphs know changes of stored values only"
    )


# Functions whose result may be a view of their argument, or the argument itself.
_SHARING = {
    *MOVING, *VIEWS, "adjoint", "conj", "contiguous", "cpu", "detach", "dropout", "imag", "positive", "real",
    "to", "type", "type_as", "__pos__",
}  # fmt: skip


def _may_share(func: Any, name: str) -> bool:
    if type(func).__name__ == "OpOverload":
        return bool(func.is_view)
    if type(func).__name__ == "method-wrapper":
        return func.__self__.__name__ in VIEWS
    return name in _SHARING


def _is_fact(func: Any) -> bool:
    """Whether it is about the tensor and no function of its values."""
    if type(func).__name__ == "method-wrapper":
        return func.__self__.__name__ not in VIEWS
    name = getattr(func, "__name__", "")
    return name in ITSELF or name in _FACTS or getattr(func, "__module__", None) == "torch.autograd"


class _Call:
    """A call with its tensors and symbols taken out and numbered."""

    def __init__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.func = func
        self.tensors: list[torch.Tensor] = []
        self.sizes: list[Any] = []
        self.args = filled_in(args, self._slot)
        self.kwargs = filled_in(kwargs, self._slot)

    def _slot(self, value: Any) -> Any:
        if isinstance(value, torch.SymInt):
            self.sizes.append(value)
            return Slot("size", len(self.sizes) - 1)
        if isinstance(value, (torch.SymFloat, torch.SymBool)):
            raise unsupported("a number that is not known yet, as an argument of a sparse function")
        if not isinstance(value, torch.Tensor):
            return value
        self.tensors.append(value)
        return Slot("tensor", len(self.tensors) - 1)

    # torch's own functions on values -----------------------------------------------------------------

    def on_values(self) -> Any:
        """The call on lists of values, if every tensor has the same pattern and zeros stay zeros."""
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
        found = self._called(values)
        if not isinstance(found, torch.Tensor) or found.shape != values[0].shape:
            return None
        return traced(pattern, found)

    def mark_shared(self, found: Any) -> None:
        """Note which results share memory with an argument, as dense tensors without memory tell."""
        with disable_current_modes(), torch.no_grad():
            given = [
                torch.empty([hint(size) for size in tensor.shape], dtype=tensor.dtype, device="meta")
                for tensor in self.tensors
            ]
            known = {memory_of(tensor): number for number, tensor in enumerate(given)}
            try:
                made = tree_leaves(self._called(given))
            except (RuntimeError, TypeError, ValueError):  # no such function of tensors without memory
                return
        for result, outline in zip(tree_leaves(found), made, strict=False):
            if not isinstance(outline, torch.Tensor) or memory_of(outline) not in known:
                continue
            for tensor in (result, self.tensors[known[memory_of(outline)]]):
                if isinstance(tensor, SparseTensor):
                    tensor.is_shared_in_graph = True

    def _keeps_zeros(self) -> bool:
        with disable_current_modes(), torch.no_grad():
            found = self._called(
                [torch.zeros((1,) * tensor.dim(), dtype=tensor.dtype, device=HOST) for tensor in self.tensors]
            )
            return (
                isinstance(found, torch.Tensor) and found.dim() == self.tensors[0].dim() and not bool(found)
            )

    def _called(self, tensors: list[torch.Tensor]) -> Any:
        given = {"tensor": tensors, "size": self.sizes}

        def filled(value: Any) -> Any:
            return given[value.kind][value.number] if isinstance(value, Slot) else value

        return self.func(*filled_in(self.args, filled), **filled_in(self.kwargs, filled))

    # operators of Scorch -----------------------------------------------------------------------------

    def recorded(self) -> Any:
        """The call as an operator of the graph."""
        arrays, operands = self._operands()
        outcome = self._outcome(operands)
        shapes = self._shapes(outcome)
        sizes = list(self.sizes)
        results = []
        for promise, shape in zip(outcome.promises, shapes, strict=True):
            results.append(_result(promise, operands, (len(sizes), len(sizes) + len(shape))))
            sizes.extend(shape)
        seed = None
        if outcome.is_random:
            seed = len(arrays)
            arrays.append(torch.randint(2**62, (), dtype=torch.int64, device=HOST))
        program = Program(name_of(self.func), self.args, self.kwargs, tuple(operands), tuple(results), seed)
        found = torch.ops.scorch.call(program.write(), arrays, sizes) if _is_computed(results) else []
        return tree_unflatten(_collected(results, list(found), arrays, sizes), outcome.spec)

    def _operands(self) -> tuple[list[torch.Tensor], list[Operand]]:
        """All arrays, each once, and which of them each argument has."""
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

    def _outcome(self, operands: list[Operand]) -> Outcome:
        kinds = []
        for tensor, operand in zip(self.tensors, operands, strict=True):
            shape = tuple(hint(size) for size in tensor.shape)
            index = tensor.storage.pattern.index_dtype if isinstance(tensor, SparseTensor) else torch.int32
            kinds.append(Kind(operand.format, shape, tensor.dtype, index, operand.arrays, _device_of(tensor)))
        sizes = tuple(hint(size) for size in self.sizes)
        try:
            key = (name_of(self.func), repr(write(self.args)), repr(write(self.kwargs)), tuple(kinds), sizes)
        except UnsupportedError as error:
            raise unsupported(str(error)) from error
        found = _outcomes.get(key)
        if found is None:
            found = _outcomes[key] = tried(self.func, self.args, self.kwargs, kinds, sizes)
        return found

    def _shapes(self, outcome: Outcome) -> list[tuple[Any, ...]]:
        """The shapes of the results, in symbols where those of the arguments are."""
        made = [promise.shape for promise in outcome.promises]
        given = [(tuple(tensor.shape), tensor.dtype, _device_of(tensor)) for tensor in self.tensors]
        known = all(isinstance(size, int) for shape, *_ in given for size in shape)
        if known and all(isinstance(size, int) for size in self.sizes):
            return made
        mode = detect_fake_mode(self.tensors)
        found = dense_shapes(self.func, self.args, self.kwargs, given, self.sizes, mode)
        if found is None or [tuple(map(hint, shape)) for shape in found] != made:
            raise unsupported(
                f"the shape of {name_of(self.func)} of sparse tensors with sizes that are not known"
            )
        if _are_new(found, [*self.sizes, *(size for shape, *_ in given for size in shape)]):
            raise unsupported(
                f"sizes that {name_of(self.func)} computes of sizes that are not known, in this torch"
            )
        return found


def _device_of(tensor: torch.Tensor) -> torch.device:
    """Where the arrays of a tensor are."""
    return tensor.storage.device if isinstance(tensor, SparseTensor) else tensor.device


def _are_new(shapes: list[tuple[Any, ...]], known: list[Any]) -> bool:
    """Whether a graph would have to compute sizes among ``shapes``, which this torch cannot do."""
    from scorch._src.torch_internals import build_proxy_for_size

    symbols = {size.node.expr for size in known if isinstance(size, torch.SymInt)}
    computed = [size for shape in shapes for size in shape if isinstance(size, torch.SymInt)]
    return build_proxy_for_size is None and any(size.node.expr not in symbols for size in computed)


def _result(promise: Promise, operands: list[Operand], shape: tuple[int, int]) -> Result:
    """A promise with arrays numbered as the graph has them."""

    def number(place: tuple[int, int] | None) -> int | None:
        if place is None:
            return None
        operand = operands[place[0]]
        return operand.values if place[1] < 0 else operand.arrays[place[1]]

    arrays = tuple(number(place) for place in promise.arrays)
    return Result(promise.dtype, shape, promise.format, promise.index, arrays, number(promise.values))


def _is_computed(results: list[Result]) -> bool:
    """Whether anything of the results is new."""
    return any(result.values is None or None in result.arrays for result in results)


def _collected(
    results: list[Result], found: list[torch.Tensor], arrays: list[torch.Tensor], sizes: list[Any]
) -> list[torch.Tensor]:
    """Tensors from the arrays that an operator gave and those that were there."""
    rest = iter(found)
    made: list[torch.Tensor] = []
    for result in results:
        index = [next(rest) if place is None else arrays[place] for place in result.arrays]
        values = next(rest) if result.values is None else arrays[result.values]
        if result.format is None:
            made.append(values)
        else:
            made.append(traced(pattern_of(result.format, sizes[slice(*result.shape)], index), values))
    return made

"""The two operators of graphs for sparse tensors: a call, and the gradients of a call.

``scorch::call`` builds the arguments of a call from arrays, runs it eagerly, and returns the arrays of its
result. Where the result has another format than when the graph was traced, it is converted.
``scorch::gradients`` runs the call again with autograd, and differentiates it.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from scorch._src.backends.base import served_devices
from scorch._src.compile.capture.program import Program, Result, parse_program
from scorch._src.grad_state import has_tangents
from scorch._src.statements.autograd import SKIP_RESULT
from scorch._src.storage.storage import Pattern
from scorch._src.tensor.autograd import WATCHED, values_at, values_of
from scorch._src.tensor.create.construct import from_torch
from scorch._src.tensor.flatten import pattern_of
from scorch._src.tensor.registry import entry, look_up
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.tensor.traced import same_arrays
from scorch._src.torch_internals import (
    AutoDispatchBelowAutograd,
    EnableTorchFunction,
    ForceDispatchKeyGuard,
    excluded_dispatch_keys,
    included_dispatch_keys,
)
from scorch.errors import UnsupportedError

Arrays = Sequence[torch.Tensor]

for _product in (
    F.linear, torch.einsum, torch.matmul, torch.mm, torch.mv, torch.bmm, torch.sparse.mm,
    torch.Tensor.matmul, torch.Tensor.__matmul__, torch.Tensor.__rmatmul__, torch.Tensor.mm,
    torch.Tensor.mv, torch.Tensor.bmm,
):  # fmt: skip
    entry(_product).backward_ignores_result = True

_DEFAULT_DISPATCH_KEYS = included_dispatch_keys(), excluded_dispatch_keys()
_library = torch.library.Library("scorch", "DEF")
_library.define("call(str program, Tensor[] arrays, SymInt[] sizes) -> Tensor[]")
_library.define(
    "gradients(str program, Tensor[] arrays, SymInt[] sizes, Tensor?[] incoming, bool[] needed) -> Tensor[]"
)


def memory_of(tensor: torch.Tensor) -> int:
    """Return a number that tensors share exactly if they share memory."""
    return int(tensor.untyped_storage()._cdata)


# running ---------------------------------------------------------------------------------------------


def _call(text: str, arrays: Arrays, sizes: Sequence[int]) -> list[torch.Tensor]:
    program = parse_program(text)
    with torch.no_grad(), EnableTorchFunction(), _as_traced(program, arrays):
        tensors = program.run(arrays, sizes)
        used_memory = {memory_of(array) for array in arrays}
        outputs: list[torch.Tensor] = []
        for result, tensor in zip(program.results, tensors, strict=True):
            values, pattern = _match_trace(program, result, tensor, arrays, sizes)
            if pattern is not None and not result.shares_operand_pattern:
                outputs.extend(array.to(result.index, copy=True) for array in pattern.entry_arrays)
            if result.values is None:
                values = values.contiguous()
                outputs.append(values.clone() if memory_of(values) in used_memory else values)
                used_memory.add(memory_of(outputs[-1]))
    return outputs


def _gradients(
    text: str,
    arrays: Arrays,
    sizes: Sequence[int],
    incoming: Sequence[torch.Tensor | None],
    needed: Sequence[bool],
) -> list[torch.Tensor]:
    program = parse_program(text)
    # torch may run a graph while tracing it, with autograd disabled
    guard: Any = ForceDispatchKeyGuard(*_DEFAULT_DISPATCH_KEYS)
    with guard, torch.enable_grad(), EnableTorchFunction(), _as_traced(program, arrays):
        inputs = [
            array.detach().requires_grad_() if is_needed else array
            for array, is_needed in zip(arrays, needed, strict=True)
        ]
        token = SKIP_RESULT.set(look_up(program.function).backward_ignores_result)
        try:
            tensors = program.run(inputs, sizes)
        finally:
            SKIP_RESULT.reset(token)
        watchers = _find_watchers(program, arrays, inputs)
        outputs, seeds, position = [], [], 0
        for result, tensor in zip(program.results, tensors, strict=True):
            position += 0 if result.format is None or result.shares_operand_pattern else len(result.arrays)
            if result.values is not None:
                continue
            seed = incoming[position]
            position += 1
            if seed is not None and tensor.requires_grad:
                outputs.append(_match_trace(program, result, tensor, inputs, sizes)[0])
                seeds.append(seed)
        differentiated = list(itertools.compress(inputs, needed))
        WATCHED.update(watchers)
        try:
            gradients: Sequence[torch.Tensor | None] = [None] * len(differentiated)
            if outputs:
                gradients = torch.autograd.grad(outputs, differentiated, seeds, allow_unused=True)
        finally:
            for number in watchers:
                del WATCHED[number]
    return [
        torch.zeros_like(array) if gradient is None else _fresh(gradient, seeds)
        for gradient, array in zip(gradients, differentiated, strict=True)
    ]


def _find_watchers(program: Program, arrays: Arrays, inputs: Arrays) -> dict[int, Callable[..., None]]:
    """Find, by the id of the values they watch in ``inputs``, the watchers of ``grad_topk``.

    Graphs pass arrays, so a tensor is recognised by the memory of its values. Watchers get copies: graphs
    reuse their memory.
    """
    watchers: dict[int, Callable[..., None]] = {}
    for watcher in WATCHED.values():
        values = watcher.__self__.tensor.storage.values  # type: ignore[attr-defined] # of ``grad_topk``
        for operand in program.operands:
            array = arrays[operand.values]
            if operand.format is not None and array.is_set_to(values) and array.dtype == values.dtype:
                watchers[id(inputs[operand.values])] = functools.partial(_watch_copies, watcher)
    return watchers


def _watch_copies(watcher: Any, call: Any, arrays: Arrays, place: int, incoming: torch.Tensor) -> None:
    watcher(call, [array.detach().clone() for array in arrays], place, incoming.clone())


def _fresh(gradient: torch.Tensor, seeds: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return a gradient with memory of its own: operators of graphs must not return their inputs."""
    if isinstance(gradient, SparseTensor):
        warnings.warn(
            "sparse_grad=True has no effect inside torch.compile, where the gradient of a dense weight is "
            "dense; call the layer outside the graph for a sparse gradient",
            stacklevel=2,
        )
        gradient = gradient.to_dense()
    is_input = any(memory_of(gradient) == memory_of(seed) for seed in seeds)
    return gradient.clone(memory_format=torch.contiguous_format) if is_input else gradient.contiguous()


@contextlib.contextmanager
def _as_traced(program: Program, arrays: Arrays) -> Iterator[None]:
    """Run a call as it was traced: with its autocast, which graphs run without, and its random numbers.

    Those are drawn from its own seed, so that its gradients draw the same ones.
    """
    with contextlib.ExitStack() as stack:
        if program.autocast is not None:
            stack.enter_context(torch.autocast(arrays[0].device.type, program.autocast))
        if program.seed is not None:
            stack.enter_context(torch.random.fork_rng(devices=()))
            torch.manual_seed(int(arrays[program.seed]))
        yield


def _match_trace(
    program: Program, result: Result, tensor: torch.Tensor, arrays: Arrays, sizes: Sequence[int]
) -> tuple[torch.Tensor, Pattern | None]:
    """Return the values, connected, and the pattern of a result in the format of the trace."""
    shape = tuple(sizes[slice(*result.shape)])
    if tuple(tensor.shape) != shape or tensor.dtype != result.dtype:
        raise UnsupportedError(
            f"the graph expected {program.name} to return shape {shape} and {result.dtype}, but got shape "
            f"{tuple(tensor.shape)} and {tensor.dtype}"
        )
    if result.format is None:
        return (tensor.to_dense() if isinstance(tensor, SparseTensor) else tensor), None
    if not isinstance(tensor, SparseTensor):
        tensor = from_torch(tensor, format=result.format)
    assert isinstance(tensor, SparseTensor)
    if result.shares_operand_pattern:
        index_arrays = [arrays[number] for number in result.arrays if number is not None]
        pattern = pattern_of(result.format, shape, index_arrays)
        return _sample_on_pattern(program, tensor, pattern), pattern
    stored = tensor if tensor.format == result.format else tensor.to_format(result.format)
    assert isinstance(stored, SparseTensor)
    return values_of(stored), stored.storage.pattern


def _sample_on_pattern(program: Program, tensor: SparseTensor, pattern: Pattern) -> torch.Tensor:
    """Return the values of a tensor on the pattern of the trace, which must lose nothing."""
    if same_arrays(tensor.storage.pattern, pattern):
        return values_of(tensor)
    values = values_at(tensor, pattern)
    lost = int(torch.count_nonzero(tensor.storage.values)) - int(torch.count_nonzero(values.detach()))
    if lost:
        raise UnsupportedError(
            f"the graph expected the result of {program.name} to be zero wherever its operand is, but "
            f"{lost} other elements are nonzero, as with infinite or NaN factors; call it without the graph"
        )
    return values


# tracing ---------------------------------------------------------------------------------------------


def _fake_call(text: str, arrays: Arrays, sizes: Sequence[Any]) -> list[torch.Tensor]:
    program = parse_program(text)
    device = arrays[0].device
    outputs = []
    for result in program.results:
        if result.shares_operand_pattern:
            array_shapes = [[_count_values(program, result, arrays, sizes)]]
        else:
            array_shapes = result.array_shapes(sizes, _new_size)
        outputs += [torch.empty(size, dtype=result.index, device=device) for size in array_shapes[:-1]]
        if result.values is None:
            outputs.append(torch.empty(array_shapes[-1], dtype=result.dtype, device=device))
    return outputs


def _count_values(program: Program, result: Result, arrays: Arrays, sizes: Sequence[Any]) -> Any:
    """Return the number of values of a result that shares the pattern of an operand."""
    for operand in program.operands:
        if operand.arrays == result.arrays:
            return arrays[operand.values].shape[0]
    index_arrays = [arrays[number] for number in result.arrays if number is not None]
    assert result.format is not None
    return pattern_of(result.format, sizes[slice(*result.shape)], index_arrays).size


def _new_size() -> Any:
    """Return a symbolic number of entries, known when the call runs."""
    from scorch._src.torch_internals import allocate_size

    return allocate_size(torch.library.get_ctx()._shape_env)


def _fake_gradients(text: str, arrays: Arrays, sizes: Any, incoming: Any, needed: Any) -> list[torch.Tensor]:
    return [array.new_empty(array.shape) for array in itertools.compress(arrays, needed)]


# gradients -------------------------------------------------------------------------------------------


class _DifferentiableCall(torch.autograd.Function):
    """A call as a differentiable function of arrays."""

    @staticmethod
    def forward(ctx: Any, text: str, sizes: Sequence[Any], *arrays: torch.Tensor) -> Any:
        ctx.text, ctx.sizes = text, sizes
        ctx.save_for_backward(*arrays)
        ctx.set_materialize_grads(False)
        with AutoDispatchBelowAutograd():
            arrays_out = torch.ops.scorch.call(text, arrays, sizes)
        ctx.mark_non_differentiable(*(array for array in arrays_out if not _is_differentiable(array)))
        return tuple(arrays_out)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *incoming: torch.Tensor | None) -> Any:
        needed = list(ctx.needs_input_grad[2:])
        if all(gradient is None for gradient in incoming):
            return None, None, *[None] * len(needed)
        args = ctx.text, ctx.saved_tensors, ctx.sizes, list(incoming), needed
        gradients = iter(torch.ops.scorch.gradients(*args))
        return None, None, *(next(gradients) if is_needed else None for is_needed in needed)


def _is_differentiable(array: torch.Tensor) -> bool:
    return array.is_floating_point() or array.is_complex()


def _differentiable_call(text: str, arrays: Arrays, sizes: Sequence[Any]) -> list[torch.Tensor]:
    """Run a call whose result is connected to the arrays."""
    if torch.is_grad_enabled() and any(array.requires_grad for array in arrays):
        return list(_DifferentiableCall.apply(text, sizes, *arrays))
    if has_tangents(arrays):
        raise UnsupportedError(
            "torch.func.linearize is not supported for sparse tensors; use torch.func.jvp, which evaluates "
            "the function at each call"
        )
    with AutoDispatchBelowAutograd():
        outputs: list[torch.Tensor] = torch.ops.scorch.call(text, arrays, sizes)
    return outputs


for _device in served_devices():
    _library.impl("call", _call, _device.upper())
    _library.impl("gradients", _gradients, _device.upper())
_library.impl("call", _differentiable_call, "Autograd")
torch.library.register_fake("scorch::call", _fake_call, lib=_library)
torch.library.register_fake("scorch::gradients", _fake_gradients, lib=_library)

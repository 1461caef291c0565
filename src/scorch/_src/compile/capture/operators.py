"""The two operators that graphs have for sparse tensors: a call, and the gradients of a call.

``scorch::call`` makes up the arguments of a call from arrays, does what it would have done without a graph,
and hands out the arrays of its result. Where the result is stored otherwise than it was when the graph was
made, it is converted. ``scorch::gradients`` runs the call again, tracked, and asks torch.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from scorch._src.compile.capture.program import Program, Result, read_program
from scorch._src.grad_state import has_tangents
from scorch._src.statements.autograd import UNREAD
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

_NORMAL = included_dispatch_keys(), excluded_dispatch_keys()
_library = torch.library.Library("scorch", "DEF")
_library.define("call(str program, Tensor[] arrays, SymInt[] sizes) -> Tensor[]")
_library.define(
    "gradients(str program, Tensor[] arrays, SymInt[] sizes, Tensor?[] incoming, bool[] needed) -> Tensor[]"
)


def memory_of(tensor: torch.Tensor) -> int:
    """A number that tensors have in common exactly if they share memory."""
    return int(tensor.untyped_storage()._cdata)


# what runs -------------------------------------------------------------------------------------------


def _call(text: str, arrays: Arrays, sizes: Sequence[int]) -> list[torch.Tensor]:
    program = read_program(text)
    with torch.no_grad(), EnableTorchFunction(), _seeded(program, arrays):
        found = program.run(arrays, sizes)
        owned = {memory_of(array) for array in arrays}
        made: list[torch.Tensor] = []
        for result, tensor in zip(program.results, found, strict=True):
            values, pattern = _as_promised(program, result, tensor, arrays, sizes)
            if pattern is not None and not result.is_on_operand:
                made.extend(array.to(result.index, copy=True) for array in pattern.entry_arrays)
            if result.values is None:
                values = values.contiguous()
                made.append(values.clone() if memory_of(values) in owned else values)
                owned.add(memory_of(made[-1]))
    return made


def _gradients(
    text: str,
    arrays: Arrays,
    sizes: Sequence[int],
    incoming: Sequence[torch.Tensor | None],
    needed: Sequence[bool],
) -> list[torch.Tensor]:
    program = read_program(text)
    with _tracked(), torch.enable_grad(), EnableTorchFunction(), _seeded(program, arrays):
        given = [
            array.detach().requires_grad_() if is_needed else array
            for array, is_needed in zip(arrays, needed, strict=True)
        ]
        token = UNREAD.set(look_up(program.function).backward_ignores_result)
        try:
            found = program.run(given, sizes)
        finally:
            UNREAD.reset(token)
        heard = _heard(program, arrays, given)
        outputs, seeds, place = [], [], 0
        for result, tensor in zip(program.results, found, strict=True):
            place += 0 if result.format is None or result.is_on_operand else len(result.arrays)
            if result.values is not None:
                continue
            seed = incoming[place]
            place += 1
            if seed is not None and tensor.requires_grad:
                outputs.append(_as_promised(program, result, tensor, given, sizes)[0])
                seeds.append(seed)
        wanted = [array for array, is_needed in zip(given, needed, strict=True) if is_needed]
        WATCHED.update(heard)
        try:
            gradients = torch.autograd.grad(outputs, wanted, seeds, allow_unused=True) if outputs else ()
        finally:
            for number in heard:
                del WATCHED[number]
    made = gradients or [None] * len(wanted)
    return [
        torch.zeros_like(array) if found is None else _fresh(found, seeds)
        for found, array in zip(made, wanted, strict=True)
    ]


def _heard(program: Program, arrays: Arrays, given: Arrays) -> dict[int, Callable[..., None]]:
    """By the ids of values that are ``given``, what listens to the tensors that have them (``grad_topk``).

    Graphs hand over arrays, so a tensor is known by the memory of its values. What is heard is copied: graphs
    use their memory again.
    """
    found: dict[int, Callable[..., None]] = {}
    for watcher in WATCHED.values():
        values = watcher.__self__.tensor.storage.values  # type: ignore[attr-defined] # it is ``grad_topk``'s
        for operand in program.operands:
            array = arrays[operand.values]
            if operand.format is not None and array.is_set_to(values) and array.dtype == values.dtype:
                found[id(given[operand.values])] = _copying(watcher)
    return found


def _copying(watcher: Callable[..., None]) -> Callable[..., None]:
    def hear(call: Any, arrays: Arrays, place: int, incoming: torch.Tensor) -> None:
        watcher(call, [array.detach().clone() for array in arrays], place, incoming.clone())

    return hear


def _fresh(gradient: torch.Tensor, seeds: Sequence[torch.Tensor]) -> torch.Tensor:
    """A gradient with memory of its own: operators of graphs hand out nothing that they were given."""
    if isinstance(gradient, SparseTensor):
        warnings.warn(
            "sparse_grad=True: inside of a graph of torch.compile the gradient of a dense weight is dense; "
            "call the layer without the graph for one that stores only what the batch meets",
            stacklevel=2,
        )
        gradient = gradient.to_dense()
    is_given = any(memory_of(gradient) == memory_of(seed) for seed in seeds)
    return gradient.clone(memory_format=torch.contiguous_format) if is_given else gradient.contiguous()


def _tracked() -> contextlib.AbstractContextManager[Any]:
    """Where autograd works, also if torch runs a graph while it is making it, with autograd switched off."""
    guard: Any = ForceDispatchKeyGuard
    made: contextlib.AbstractContextManager[Any] = guard(*_NORMAL)
    return made


@contextlib.contextmanager
def _seeded(program: Program, arrays: Arrays) -> Iterator[None]:
    """Random numbers of a call from its own seed, so that its gradients draw the same ones."""
    if program.seed is None:
        yield
        return
    before = torch.get_rng_state()
    torch.manual_seed(int(arrays[program.seed]))
    try:
        yield
    finally:
        torch.set_rng_state(before)


def _as_promised(
    program: Program, result: Result, tensor: torch.Tensor, arrays: Arrays, sizes: Sequence[int]
) -> tuple[torch.Tensor, Pattern | None]:
    """The values of what a call gave, connected, and their pattern, as the graph expects them."""
    shape = tuple(sizes[slice(*result.shape)])
    if tuple(tensor.shape) != shape or tensor.dtype != result.dtype:
        raise UnsupportedError(
            f"the graph was made for a result of {program.name} of shape {shape} and {result.dtype}, but it "
            f"has shape {tuple(tensor.shape)} and {tensor.dtype} now"
        )
    if result.format is None:
        return (tensor.to_dense() if isinstance(tensor, SparseTensor) else tensor), None
    if not isinstance(tensor, SparseTensor):
        made = from_torch(tensor, format=result.format)
        assert isinstance(made, SparseTensor)
        tensor = made
    if result.is_on_operand:
        known = [arrays[number] for number in result.arrays if number is not None]
        pattern = pattern_of(result.format, shape, known)
        return _values_on(program, tensor, pattern), pattern
    stored = tensor if tensor.format == result.format else tensor.to_format(result.format)
    assert isinstance(stored, SparseTensor)
    return values_of(stored), stored.storage.pattern


def _values_on(program: Program, tensor: SparseTensor, pattern: Pattern) -> torch.Tensor:
    """The values of a tensor on the pattern that the graph was made for, which must lose nothing."""
    if same_arrays(tensor.storage.pattern, pattern):
        return values_of(tensor)
    found = values_at(tensor, pattern)
    lost = int(torch.count_nonzero(tensor.storage.values)) - int(torch.count_nonzero(found.detach()))
    if lost:
        raise UnsupportedError(
            f"the graph was made for a result of {program.name} that is zero where its operand is, but "
            f"{lost} other elements are not, as with infinite or NaN factors; call it without the graph"
        )
    return found


# what graphs are made with ---------------------------------------------------------------------------


def _fake_call(text: str, arrays: Arrays, sizes: Sequence[Any]) -> list[torch.Tensor]:
    program = read_program(text)
    device = arrays[0].device
    made = []
    for result in program.results:
        if result.is_on_operand:
            count = _entries(program, result, arrays, sizes)
            lengths = [[count]]
        else:
            lengths = result.lengths(sizes, _new_size)
        if not result.is_on_operand:
            made += [torch.empty(size, dtype=result.index, device=device) for size in lengths[:-1]]
        if result.values is None:
            made.append(torch.empty(lengths[-1], dtype=result.dtype, device=device))
    return made


def _entries(program: Program, result: Result, arrays: Arrays, sizes: Sequence[Any]) -> Any:
    """The number of values of a result whose arrays are those of an operand."""
    for operand in program.operands:
        if operand.arrays == result.arrays:
            return arrays[operand.values].shape[0]
    known = [arrays[number] for number in result.arrays if number is not None]
    assert result.format is not None
    return pattern_of(result.format, sizes[slice(*result.shape)], known).size


def _new_size() -> Any:
    """A number of entries that will be known when the call runs."""
    from scorch._src.torch_internals import allocate_size

    return allocate_size(torch.library.get_ctx()._shape_env)


def _fake_gradients(
    text: str,
    arrays: Arrays,
    sizes: Sequence[Any],
    incoming: Sequence[torch.Tensor | None],
    needed: Sequence[bool],
) -> list[torch.Tensor]:
    return [
        torch.empty(array.shape, dtype=array.dtype, device=array.device)
        for array, is_needed in zip(arrays, needed, strict=True)
        if is_needed
    ]


# gradients -------------------------------------------------------------------------------------------


class _Call(torch.autograd.Function):
    """A call as a function of arrays, with its gradients."""

    @staticmethod
    def forward(ctx: Any, text: str, sizes: Sequence[Any], *arrays: torch.Tensor) -> Any:
        ctx.text, ctx.sizes = text, sizes
        ctx.save_for_backward(*arrays)
        ctx.set_materialize_grads(False)
        with AutoDispatchBelowAutograd():
            found = torch.ops.scorch.call(text, arrays, sizes)
        ctx.mark_non_differentiable(*(array for array in found if not _is_learned(array)))
        return tuple(found)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *incoming: torch.Tensor | None) -> Any:
        needed = list(ctx.needs_input_grad[2:])
        if all(gradient is None for gradient in incoming):
            return None, None, *[None] * len(needed)
        given = ctx.text, ctx.saved_tensors, ctx.sizes, list(incoming), needed
        found = iter(torch.ops.scorch.gradients(*given))
        return None, None, *(next(found) if is_needed else None for is_needed in needed)


def _is_learned(array: torch.Tensor) -> bool:
    return array.is_floating_point() or array.is_complex()


def _connected_call(text: str, arrays: Arrays, sizes: Sequence[Any]) -> list[torch.Tensor]:
    """A call whose result is connected to the arrays."""
    if torch.is_grad_enabled() and any(array.requires_grad for array in arrays):
        return list(_Call.apply(text, sizes, *arrays))
    if has_tangents(arrays):
        raise UnsupportedError(
            "calls on sparse tensors in graphs have no forward derivatives, which torch.func.linearize makes "
            "a graph of; use torch.func.jvp"
        )
    with AutoDispatchBelowAutograd():
        found: list[torch.Tensor] = torch.ops.scorch.call(text, arrays, sizes)
    return found


_library.impl("call", _call, "CPU")
_library.impl("call", _connected_call, "Autograd")
_library.impl("gradients", _gradients, "CPU")
torch.library.register_fake("scorch::call", _fake_call, lib=_library)
torch.library.register_fake("scorch::gradients", _fake_gradients, lib=_library)

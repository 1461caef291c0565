"""Refuse gradients after a write to a tensor that torch's own formula saves for them.

Gradient formulas save operands or results, and torch refuses a backward after a write to those. Scorch may
save fewer: the gradient of ``torch.maximum`` needs no values, only which of them was larger. Programs must
not come to depend on that. What torch saves is recorded once for each kind of call, by a run on meta tensors;
for the most frequent it is in a table, since torch imports half of its compiler for such a run.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.autograd.graph import saved_tensors_hooks

from scorch._src.bounded import BoundedCache
from scorch._src.devices import HOST, META
from scorch._src.grad_state import is_transformed
from scorch._src.storage.storage import Storage
from scorch._src.tensor.autograd import differentiated
from scorch._src.tensor.call_errors import tensors_in
from scorch._src.tensor.hooks import hooks
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import len_torch_dispatch_stack, tree_map
from scorch.errors import InPlaceError

MAX_CALL_KINDS = 4096
MAX_ELEMENTS = 1 << 16  # of dense operands, where meta tensors do not suffice
_VALUES = (bool, int, str, type(None))  # arguments whose value is part of the key; of others the type is

_state = threading.local()


class Saved(NamedTuple):
    """Which of the tensors that a call takes, and of those that it returns, are saved for its gradient."""

    operands: tuple[int, ...]
    results: tuple[int, ...]


_NEITHER, _OPERAND, _RESULT, _BOTH = Saved((), ()), Saved((0,), ()), Saved((), (0,)), Saved((0,), (0,))
KNOWN = {  # of calls of a tensor, or of a tensor and a number
    **dict.fromkeys(("add", "mean", "rsub", "sub"), _NEITHER),
    **dict.fromkeys(("atan", "cos", "erf", "log", "log1p", "sin", "square", "var"), _OPERAND),
    **dict.fromkeys(("exp", "expm1", "reciprocal", "rsqrt", "sigmoid", "sqrt", "tanh"), _RESULT),
    **dict.fromkeys(("log_softmax", "softmax"), _RESULT),
    **dict.fromkeys(("logsumexp", "norm", "std"), _BOTH),
}
WITH_NUMBER = frozenset({"add", "log_softmax", "logsumexp", "mean", "rsub", "softmax", "sub"})

_SAVED: BoundedCache[Any, Saved] = BoundedCache(MAX_CALL_KINDS)  # by the kind of call


def differentiate(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Compute ``func`` of tensors that require gradients; refuse a backward after a write as torch does."""
    is_getter = getattr(func, "__name__", "") == "__get__"  # of an attribute: it saves nothing
    if getattr(_state, "is_inside", False) or is_getter or is_transformed() or len_torch_dispatch_stack():
        return differentiated(func, args, kwargs)
    _state.is_inside = True
    try:
        key = func, tuple(kwargs), *map(_kind, _flat((*args, *kwargs.values())))
        remembered = _SAVED.get(key)
        saved = _saved_by_torch(func, args, kwargs) if remembered is None else remembered
        operands = tensors_in((args, kwargs)) if any(saved) else []
        versions = [_version(operands[place]) for place in saved.operands]
        result = differentiated(func, args, kwargs)
        if any(saved):
            _check_in_backward(func, operands, versions, result, saved.results)
        if remembered is None:
            _SAVED[key] = saved
        return result
    finally:
        _state.is_inside = False


def _flat(values: Sequence[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (tuple, list)):
            yield from _flat(value)
        else:
            yield value


def _kind(leaf: Any) -> Any:
    """Return the part of the key for one argument."""
    if isinstance(leaf, torch.Tensor):
        form = leaf.storage.pattern.format if isinstance(leaf, SparseTensor) else leaf.dim()
        return form, leaf.dtype, leaf.requires_grad, leaf.numel() > 0
    return leaf if isinstance(leaf, _VALUES) else type(leaf)


# what is saved ---------------------------------------------------------------------------------------


def _saved_by_torch(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Saved:
    """Record which tensors torch saves in a call: run it on meta tensors, or on small dense ones."""
    name = getattr(func, "__name__", "").removeprefix("__").removesuffix("__")
    if name in KNOWN and not kwargs and _is_frequent(name, args):
        return KNOWN[name]
    saved = _saved_on(META, func, args, kwargs)
    if saved is None and sum(leaf.numel() for leaf in tensors_in((args, kwargs))) <= MAX_ELEMENTS:
        saved = _saved_on(HOST, func, args, kwargs)
    return Saved((), ()) if saved is None else saved


def _is_frequent(name: str, args: tuple[Any, ...]) -> bool:
    """Whether a call takes one tensor of floating-point numbers, and a number if its function does."""
    if not isinstance(args[0], torch.Tensor) or not args[0].is_floating_point():
        return False
    return len(args) == 1 or (len(args) == 2 and name in WITH_NUMBER and type(args[1]) in (int, float))


def _saved_on(device: torch.device, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Saved | None:
    operands: list[torch.Tensor] = []
    packed: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        packed.append(tensor)
        return tensor

    def twin(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        zeros = torch.zeros(leaf.shape, dtype=leaf.dtype, device=device)
        operands.append(zeros.requires_grad_().clone() if leaf.requires_grad else zeros)
        return operands[-1]

    with torch.enable_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the call itself emits them
        twins, named = tree_map(twin, args), tree_map(twin, kwargs)
        try:
            with saved_tensors_hooks(pack, lambda tensor: tensor):
                results = tensors_in(func(*twins, **named))
        except Exception:  # a function that reads values, which meta tensors do not have
            return None
    is_saved = [_is_saved(operand, packed) for operand in operands]
    written = [any(operand is result for result in results) for operand in operands]
    places = tuple(n for n in range(len(operands)) if is_saved[n] and not written[n])
    own = {_memory(operand) for operand, is_target in zip(operands, written, strict=True) if not is_target}
    memory = {_memory(tensor) for tensor in packed} - own  # what is written to is saved as it is afterwards
    saved_results = tuple(place for place, tensor in enumerate(results) if _memory(tensor) in memory)
    return Saved(places, saved_results)


def _is_saved(operand: torch.Tensor, packed: list[torch.Tensor]) -> bool:
    """Whether a write to an operand changes a saved tensor."""
    versions = [tensor._version for tensor in packed]
    torch.autograd.graph.increment_version(operand)
    return versions != [tensor._version for tensor in packed]


def _array(tensor: torch.Tensor) -> torch.Tensor:
    """Return the array whose version counts the writes to a tensor, its base, and all views of that."""
    if not isinstance(tensor, SparseTensor):
        return tensor
    storage: Storage = tensor.storage
    return storage.values if storage.origin is None else storage.origin.source.values


def _memory(tensor: torch.Tensor) -> int:
    number: int = _array(tensor).untyped_storage()._cdata
    return number


# versions --------------------------------------------------------------------------------------------


class _Version(NamedTuple):
    counter: torch.Tensor  # an empty tensor that shares the version counter of another
    number: int

    def is_current(self) -> bool:
        return self.counter._version == self.number


def _version(tensor: torch.Tensor) -> _Version | None:
    array = _array(tensor)
    if array.is_inference():
        return None
    counter = array.detach()
    counter.data = torch.empty(0, dtype=array.dtype, device=array.device)
    return _Version(counter, counter._version)


def _check_in_backward(
    func: Any, operands: Sequence[Any], versions: list[_Version | None], result: Any, places: tuple[int, ...]
) -> None:
    results = tensors_in(result)
    checked = [version for version in versions if version is not None]
    of_results = (_version(results[place]) for place in places if place < len(results))
    checked += [version for version in of_results if version is not None]
    if not checked:
        return

    def check(_: Any) -> None:
        if not all(version.is_current() for version in checked):
            name = getattr(func, "__name__", str(func))
            raise InPlaceError(
                "one of the variables needed for gradient computation has been modified by an inplace "
                f"operation: {name} saved it, as for dense tensors; write to a clone of it"
            )

    operand_bases = {id(operand if operand._base is None else operand._base) for operand in operands}
    bases = [tensor._base for tensor in results if tensor._base is not None]
    hidden = [base for base in bases if id(base) not in operand_bases]  # a write to its view is one to it
    for node in {tensor.grad_fn for tensor in (*results, *hidden) if tensor.grad_fn is not None}:
        node.register_prehook(check)


hooks.differentiate = differentiate

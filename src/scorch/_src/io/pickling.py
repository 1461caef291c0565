"""Reduce sparse tensors for pickles, ``torch.save`` and other processes, and rebuild them.

Pickles name the functions of this module, and pass them numbers, strings and plain tensors. So ``torch.load``
accepts them with ``weights_only=True``, files do not depend on the internals of Scorch's classes, and arrays
that no kernel could follow are refused, whoever reads them. What tensors share (a pattern, a storage) they
share again. A view is saved as a tensor of its own.
"""

from __future__ import annotations

import copy
import inspect
import weakref
from collections.abc import Callable
from typing import Any

import torch

from scorch._src.devices import is_in_shared_memory
from scorch._src.formats import LEVELS, Format
from scorch._src.io.archive import check_pattern, check_values, describe_format, parse_format
from scorch._src.io.shared_memory import Piece, find_pieces, split_memory
from scorch._src.storage.storage import Pattern, Storage
from scorch._src.tensor.create.check import as_shape, as_values
from scorch._src.tensor.dynamo import skip_tracing_all
from scorch._src.tensor.flatten import Arrays, arrays_by_level, names_of
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import legacy_load
from scorch.errors import FileError, InPlaceError

Reduced = tuple[Callable[..., Any], tuple[Any, ...]]


# reducing --------------------------------------------------------------------------------------------


def reduce_tensor(tensor: SparseTensor, protocol: Any = None) -> Reduced:
    """Reduce a tensor to its storage, whether it requires grad, and its attributes."""
    return make_tensor, (tensor.storage, tensor.requires_grad, _attributes(tensor))


def reduce_storage(storage: Storage) -> Reduced:
    packed = find_pieces(storage)
    if packed is not None:
        description = describe_format(storage.pattern.format)
        return make_packed, (description, tuple(storage.pattern.shape), *packed)
    values = storage.values
    return make_storage, (storage.pattern, _without_base(values.detach() if values.requires_grad else values))


def reduce_pattern(pattern: Pattern) -> Reduced:
    pos, crd = (
        tuple(None if array is None else _without_base(array) for array in arrays)
        for arrays in (pattern.pos, pattern.crd)
    )
    return make_pattern, (describe_format(pattern.format), tuple(pattern.shape), pos, crd)


def _attributes(tensor: SparseTensor) -> dict[str, Any]:
    """Return what was set on a tensor, such as the mark that it is a parameter, but not by its class."""
    return {name: value for name, value in vars(tensor).items() if not hasattr(SparseTensor, name)}


def _without_base(array: torch.Tensor) -> torch.Tensor:
    """Copy ``array`` if it is a slice of larger memory, which would be saved as well."""
    is_all = array.numel() * array.element_size() == array.untyped_storage().nbytes()
    return array if is_all or is_in_shared_memory(array) else array.clone()


# rebuilding: files hold these names and arguments ----------------------------------------------------


def make_pattern(form: Any, shape: Any, pos: Arrays, crd: Arrays) -> Pattern:
    """Build a pattern of these arrays, or raise an error that says what does not match."""
    levels = parse_format(form)
    for arrays in (pos, crd):
        if not isinstance(arrays, tuple) or len(arrays) != len(levels):
            raise FileError(f"a sparse tensor of format {levels} needs {len(levels)} arrays of each kind")
    is_filled = not _is_filled_later()
    sizes = as_shape("shape", shape)
    return check_pattern(levels, sizes, list(pos), list(crd), has_contents=is_filled, is_sent=is_filled)


def make_storage(pattern: Pattern, values: torch.Tensor) -> Storage:
    """Build a storage: values for every position of ``pattern``."""
    if not isinstance(pattern, Pattern) or not isinstance(values, torch.Tensor) or values.dim() != 1:
        raise FileError("a sparse tensor is built from a sparsity pattern and a 1-D array of values")
    values = as_values("values", values)
    if _is_filled_later():
        storage = Storage(pattern, values)
        storage.defer(_check_deferred)
        _unchecked.add(storage)
        return storage
    check_values(pattern, values)
    return Storage(pattern, values)


def _check_deferred(pattern: Pattern, values: torch.Tensor) -> Pattern:
    """Check ``pattern``, whose arrays have been filled meanwhile, once for all tensors."""
    checked: Pattern | None = vars(pattern).get("checked")
    if checked is None:
        checked = check_pattern(pattern.format, pattern.shape, list(pattern.pos), list(pattern.crd))
        vars(pattern)["checked"] = checked
    check_values(checked, values)
    return checked


def make_packed(form: Any, shape: Any, memory: torch.Tensor, pieces: list[Piece]) -> Storage:
    """Build a storage whose arrays are ``pieces`` of ``memory``: level by level, then the values."""
    levels, arrays = parse_format(form), split_memory(memory, pieces)
    if len(arrays) != 1 + len(names_of(levels)):
        raise FileError(f"a sparse tensor of format {levels} cannot be built from {len(arrays)} arrays")
    return make_storage(make_pattern(form, shape, *arrays_by_level(levels, arrays[:-1])), arrays[-1])


def make_tensor(storage: Storage, requires_grad: bool, attributes: dict[str, Any]) -> SparseTensor:
    """Rebuild the tensor as it was saved."""
    if not isinstance(storage, Storage) or not isinstance(attributes, dict):
        raise FileError("a sparse tensor is built from a storage")
    for name in attributes:
        if not isinstance(name, str) or hasattr(SparseTensor, name) or name == "storage":
            raise FileError(f"a sparse tensor has no attribute {name!r} that a file can set")
    if storage.deferred is None:
        tensor = SparseTensor(storage)
    else:
        tensor = SparseTensor(Storage(*storage.deferred[1:]))
        tensor.__dict__["storage"] = storage
    if requires_grad:
        tensor.requires_grad_()
    vars(tensor).update(attributes)
    return tensor


_unchecked: weakref.WeakSet[Storage] = weakref.WeakSet()


def _is_filled_later() -> bool:
    """Whether torch reads a file of its old format, whose arrays it fills after building all tensors."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not legacy_load.__code__:
        frame = frame.f_back
    return frame is not None


def check_filled() -> None:
    """Check the tensors of files in the old format that were read since the last time.

    Those that ``torch.load`` reads are checked when they are first used.
    """
    unchecked = list(_unchecked)
    _unchecked.clear()
    for storage in unchecked:
        _ = storage.pattern


_SAFE: tuple[Callable[..., Any], ...] = (
    make_pattern,
    make_storage,
    make_packed,
    make_tensor,
    Format,
    *map(type, LEVELS),
)
_OLD_MODULES = {"io.pickling": "tensor.saved"}  # in files of version 0.1; others kept their names


def _old_name(target: Any) -> str:
    """Return the name of a function or class in files of version 0.1."""
    module = target.__module__.removeprefix("scorch._src.")
    return f"scorch.{_OLD_MODULES.get(module, module)}.{target.__qualname__}"


torch.serialization.add_safe_globals([*_SAFE, *((part, _old_name(part)) for part in _SAFE)])


# copies ----------------------------------------------------------------------------------------------


def deep_copy(tensor: SparseTensor, memo: dict[int, Any]) -> SparseTensor:
    """Copy a tensor with its values and attributes; the pattern never changes and is shared."""
    if not tensor.is_leaf:
        raise InPlaceError(
            "only leaf tensors can be deep-copied; use .detach().clone(), or .clone() to stay connected "
            "to the graph"
        )
    copied = SparseTensor(copy.deepcopy(tensor.storage, memo))
    memo[id(tensor)] = copied
    if tensor.requires_grad:
        copied.requires_grad_()
    if tensor.grad is not None:
        copied.grad = copy.deepcopy(tensor.grad, memo)
    vars(copied).update(copy.deepcopy(_attributes(tensor), memo))
    return copied


Pattern.__reduce__ = reduce_pattern  # type: ignore[assignment, method-assign]
Storage.__reduce__ = reduce_storage  # type: ignore[assignment, method-assign]
SparseTensor.__reduce_ex__ = reduce_tensor  # type: ignore[assignment, method-assign]
SparseTensor.__deepcopy__ = deep_copy  # type: ignore[assignment, method-assign]
skip_tracing_all([reduce_tensor, deep_copy])

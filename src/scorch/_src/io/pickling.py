"""What pickles, files of ``torch.save`` and other processes get of a sparse tensor, and the way back.

They name the functions of this module, and hand them numbers, words and plain tensors. So ``torch.load``
takes them with ``weights_only=True``, files do not depend on how Scorch's classes look inside, and arrays
that no kernel could follow are refused, whoever reads them. What tensors have in common (a pattern, a
storage) they have in common again. A view is saved as a tensor of its own.
"""

from __future__ import annotations

import copy
import inspect
import weakref
from collections.abc import Callable
from typing import Any

import torch

from scorch._src.formats import LEVELS, Format
from scorch._src.io.archive import as_stored_format, check_values, checked_pattern, format_facts
from scorch._src.io.shared_memory import Piece, cut, pieces_of
from scorch._src.storage.storage import Pattern, Storage
from scorch._src.tensor.create.check import as_shape, as_values
from scorch._src.tensor.dynamo import unread_all
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import legacy_load
from scorch.errors import FileError, InPlaceError

Reduced = tuple[Callable[..., Any], tuple[Any, ...]]
Arrays = tuple[torch.Tensor | None, ...]


# out -------------------------------------------------------------------------------------------------


def reduce_tensor(tensor: SparseTensor) -> Reduced:
    """As pickles keep it: its storage, whether it requires grad, and what was set on it."""
    return make_tensor, (tensor.storage, tensor.requires_grad, _attributes(tensor))


def reduce_storage(storage: Storage) -> Reduced:
    whole = pieces_of(storage)
    if whole is not None:
        facts = format_facts(storage.pattern.format)
        return make_packed, (facts, tuple(storage.pattern.shape), *whole)
    values = storage.values
    return make_storage, (storage.pattern, _alone(values.detach() if values.requires_grad else values))


def reduce_pattern(pattern: Pattern) -> Reduced:
    pos, crd = (
        tuple(None if array is None else _alone(array) for array in kept)
        for kept in (pattern.pos, pattern.crd)
    )
    return make_pattern, (format_facts(pattern.format), tuple(pattern.shape), pos, crd)


def _attributes(tensor: SparseTensor) -> dict[str, Any]:
    """What was set on a tensor, such as the mark that it is a parameter; nothing that the class gives it."""
    return {name: value for name, value in vars(tensor).items() if not hasattr(SparseTensor, name)}


def _alone(array: torch.Tensor) -> torch.Tensor:
    """``array`` without the rest of the memory that it is a slice of, which would be kept as well."""
    is_whole = array.numel() * array.element_size() == array.untyped_storage().nbytes()
    return array if is_whole or array.is_shared() else array.clone()


# in: names and arguments are what files hold ---------------------------------------------------------


def make_pattern(form: Any, shape: Any, pos: Arrays, crd: Arrays) -> Pattern:
    """A pattern of these arrays, or an error that says what does not fit."""
    levels = as_stored_format(form)
    for kept in (pos, crd):
        if not isinstance(kept, tuple) or len(kept) != len(levels):
            raise FileError(f"a sparse tensor of format {levels} needs {len(levels)} arrays of each kind")
    is_filled = not _is_filled_later()
    sizes = as_shape("shape", shape)
    return checked_pattern(levels, sizes, list(pos), list(crd), has_contents=is_filled, is_sent=is_filled)


def make_storage(pattern: Pattern, values: torch.Tensor) -> Storage:
    """Values for every position of ``pattern``."""
    if not isinstance(pattern, Pattern) or not isinstance(values, torch.Tensor) or values.dim() != 1:
        raise FileError("a sparse tensor is made of a pattern and a row of values")
    values = as_values("values", values)
    if _is_filled_later():
        made = Storage(pattern, values)
        made.defer(_checked)
        _unchecked.add(made)
        return made
    check_values(pattern, values)
    return Storage(pattern, values)


def _checked(pattern: Pattern, values: torch.Tensor) -> Pattern:
    """``pattern``, whose arrays have been filled meanwhile, after a look at them; one for all tensors."""
    found: Pattern | None = vars(pattern).get("checked")
    if found is None:
        found = checked_pattern(pattern.format, pattern.shape, list(pattern.pos), list(pattern.crd))
        vars(pattern)["checked"] = found
    check_values(found, values)
    return found


def make_packed(form: Any, shape: Any, memory: torch.Tensor, pieces: list[Piece]) -> Storage:
    """A storage whose arrays are ``pieces`` of ``memory``: level by level, then the values."""
    levels = as_stored_format(form)
    pos: list[torch.Tensor | None] = []
    crd: list[torch.Tensor | None] = []
    arrays = cut(memory, pieces)
    kept = [levels.starts_run(level) + (not kind.is_full) for level, kind in enumerate(levels.levels)]
    if len(arrays) != 1 + sum(kept):
        raise FileError(f"{len(arrays)} arrays do not make a sparse tensor of format {levels}")
    given = iter(arrays)
    for level, kind in enumerate(levels.levels):
        pos.append(next(given) if levels.starts_run(level) else None)
        crd.append(None if kind.is_full else next(given))
    return make_storage(make_pattern(form, shape, tuple(pos), tuple(crd)), next(given))


def make_tensor(storage: Storage, requires_grad: bool, attributes: dict[str, Any]) -> SparseTensor:
    """The tensor as it was saved."""
    if not isinstance(storage, Storage) or not isinstance(attributes, dict):
        raise FileError("a sparse tensor is made of a storage")
    for name in attributes:
        if not isinstance(name, str) or hasattr(SparseTensor, name) or name == "storage":
            raise FileError(f"a sparse tensor has no attribute {name!r} that a file can set")
    if storage.deferred is None:
        made = SparseTensor(storage)
    else:
        made = SparseTensor(Storage(*storage.deferred[1:]))
        made.storage = storage
    if requires_grad:
        made.requires_grad_()
    vars(made).update(attributes)
    return made


_unchecked: weakref.WeakSet[Storage] = weakref.WeakSet()


def _is_filled_later() -> bool:
    """Whether torch reads a file of its old format, whose arrays it fills when all tensors are made."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not legacy_load.__code__:
        frame = frame.f_back
    return frame is not None


def check_filled() -> None:
    """Check the tensors of files in the old format that were read since the last time.

    Those that ``torch.load`` reads are checked when they are first used.
    """
    made = list(_unchecked)
    _unchecked.clear()
    for storage in made:
        _ = storage.pattern


_SAFE: tuple[Callable[..., Any], ...] = (
    make_pattern,
    make_storage,
    make_packed,
    make_tensor,
    Format,
    *map(type, LEVELS),
)
_OLD_MODULES = {"io.pickling": "tensor.saved"}  # in files of version 0.1, others are named alike


def _old_name(part: Any) -> str:
    """What files of version 0.1 call a function or class."""
    module = part.__module__.removeprefix("scorch._src.")
    return f"scorch.{_OLD_MODULES.get(module, module)}.{part.__qualname__}"


torch.serialization.add_safe_globals([*_SAFE, *((part, _old_name(part)) for part in _SAFE)])


# copies ----------------------------------------------------------------------------------------------


def deep_copy(tensor: SparseTensor, memo: dict[int, Any]) -> SparseTensor:
    """A tensor with values of its own, and what was set on it; the pattern never changes and is shared."""
    if not tensor.is_leaf:
        raise InPlaceError(
            "only tensors that are not the result of a differentiated function can be deep-copied; "
            "use .detach().clone(), or .clone() to stay connected"
        )
    copied = SparseTensor(copy.deepcopy(tensor.storage, memo))
    memo[id(tensor)] = copied
    if tensor.requires_grad:
        copied.requires_grad_()
    if tensor.grad is not None:
        copied.grad = copy.deepcopy(tensor.grad, memo)
    vars(copied).update(copy.deepcopy(_attributes(tensor), memo))
    return copied


def _reduce_ex(tensor: SparseTensor, protocol: Any) -> Reduced:
    return reduce_tensor(tensor)


Pattern.__reduce__ = reduce_pattern  # type: ignore[assignment, method-assign]
Storage.__reduce__ = reduce_storage  # type: ignore[assignment, method-assign]
SparseTensor.__reduce_ex__ = _reduce_ex  # type: ignore[assignment, method-assign]
SparseTensor.__deepcopy__ = deep_copy  # type: ignore[assignment, method-assign]
unread_all([_reduce_ex, deep_copy])

"""The storage of a sparse tensor: a pattern, which is immutable and shared, and values.

A ``Pattern`` holds the index arrays of every level. Tensors with the same pattern share it, so that what is
cached with it (addresses for kernels, the same pattern in another format) serves them all.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, NoReturn, TypeVar

import torch

from scorch._src.backends import base
from scorch._src.bounded import BoundedCache
from scorch._src.compiler.plan import Operand, fullness
from scorch._src.compiler.typing import type_of_dtype
from scorch._src.devices import HOST
from scorch._src.formats import Format
from scorch._src.grad_state import untracked
from scorch._src.loops.types import INT32, INT64
from scorch._src.torch_internals import is_functorch_wrapped_tensor
from scorch.errors import InPlaceError, UnsupportedError

if TYPE_CHECKING:
    from scorch._src.storage.strides import Strides

MAX_FOLLOWERS = 64  # weak references, from which on dead ones are dropped

MAX_KEYS = 1 << 14
MAX_RELATIVES = 64  # forms of one pattern that are cached with it
MAX_GROUPS = 16  # ways to group its entries, by the dimensions that are reduced
_keys: BoundedCache[object, int] = BoundedCache(MAX_KEYS)
_counter = itertools.count()  # threads never draw the same number


def _key_of(descriptor: object) -> int:
    """Return a small number for ``descriptor``, cheap to hash at every call.

    No other descriptor ever has it. One that was evicted has another one at its next use, and with it new
    entries in the caches that have numbers as keys.
    """
    return _keys.setdefault(descriptor, next(_counter))


_lazy = functools.cached_property
_new = object.__new__


def _cache_of(most: int) -> Callable[[object], BoundedCache[Any, Any]]:
    return lambda pattern: BoundedCache(most)


class Pattern:
    """The index arrays of a tensor, level by level: ``pos`` and ``crd``, None where a level stores none.

    ``counts`` has the number of positions of each level. ``converted`` caches the same pattern in other
    formats, each with the place that every value comes from. The coordinates of levels that kernels read
    otherwise (``Level.finish``) may be dropped, and are then computed when they are needed.
    """

    wait: Callable[[], None] | None = None  # what others call before they read arrays that were copied

    def __init__(
        self,
        format: Format,
        shape: tuple[int, ...],
        pos: tuple[torch.Tensor | None, ...],
        crd: tuple[torch.Tensor | None, ...],
        counts: tuple[int, ...],
    ) -> None:
        self.format = format
        self.shape = shape
        self.pos = pos
        self.crd = crd
        self.counts = counts

    @functools.cached_property
    def crd(self) -> tuple[torch.Tensor | None, ...]:
        """The coordinates of each level, where they were dropped."""
        crds: list[torch.Tensor | None] = []
        arrays = iter(self.arrays)
        for level, (kind, pos) in enumerate(zip(self.format.levels, self.pos, strict=True)):
            if pos is not None:
                next(arrays)
            array = None if kind.is_full else next(arrays)
            if array is not None and not kind.has_coordinates:
                assert pos is not None
                size = self.format.level_size(level, self.shape)
                with untracked():
                    array = kind.coordinates(pos, array, size).to(array.dtype).contiguous()
                base.settle(array.device, f"the coordinates of {self.format}")
            crds.append(array)
        return tuple(crds)

    def forget_coordinates(self) -> None:
        """Drop the coordinates that kernels do not read."""
        if self.format.is_finished:
            _ = self.arrays
            del self.crd

    # Most patterns never have one of these.
    converted = _lazy[BoundedCache[Format, tuple["Pattern", torch.Tensor]]](_cache_of(MAX_RELATIVES))
    relatives = _lazy[BoundedCache[tuple[Format, tuple[int, ...]], "Pattern"]](_cache_of(MAX_RELATIVES))
    structures = _lazy[BoundedCache[Hashable, Any]](_cache_of(MAX_RELATIVES))  # of results
    groups = _lazy[BoundedCache[tuple[int, ...], Any]](_cache_of(MAX_GROUPS))
    masks = _lazy[dict[torch.dtype, torch.Tensor]](lambda pattern: {})
    moved = _lazy[dict[torch.device, "weakref.ref[Pattern]"]](lambda pattern: {})
    storage_keys = _lazy[dict[torch.dtype, int]](lambda pattern: {})  # by the dtype of the values

    @functools.cached_property
    def _first_array(self) -> torch.Tensor | None:
        arrays = (*self.pos, *(() if self.format.is_finished else self.crd))
        return next((array for array in arrays if array is not None), None)

    @functools.cached_property
    def index_dtype(self) -> torch.dtype:
        return torch.int32 if self._first_array is None else self._first_array.dtype

    @property
    def device(self) -> torch.device:
        """Where its arrays are; a pattern without any is on the host."""
        return HOST if self._first_array is None else self._first_array.device

    @functools.cached_property
    def arrays(self) -> tuple[torch.Tensor, ...]:
        """The arrays in the order in which kernels take them."""
        if not self.format.is_finished:
            return self.entry_arrays
        arrays = []
        for level, (pos, crd) in enumerate(zip(self.pos, self.crd, strict=True)):
            if pos is not None:
                arrays.append(pos)
            if crd is not None:
                arrays.append(self._finished(level, pos, crd))
        return tuple(arrays)

    def _finished(self, level: int, pos: torch.Tensor | None, crd: torch.Tensor) -> torch.Tensor:
        """Return the coordinates of a level as kernels read them."""
        kind, size = self.format.levels[level], self.format.level_size(level, self.shape)
        if kind.has_coordinates:
            return crd
        assert pos is not None, f"a {kind.name} level has entries of its own"
        with untracked():
            finished = kind.finish(pos, crd, size).to(crd.dtype).contiguous()
        base.settle(crd.device, f"the coordinates of {self.format}")
        return finished

    @property
    def entry_arrays(self) -> tuple[torch.Tensor, ...]:
        """``pos`` and ``crd`` of all levels, in the order of ``arrays``."""
        pairs = zip(self.pos, self.crd, strict=True)
        return tuple(array for pair in pairs for array in pair if array is not None)

    def cached_arrays(self) -> list[torch.Tensor]:
        """Return its arrays, and those that are cached with it for kernels."""
        arrays = [*self.arrays, *self.entry_arrays, *self.masks.values()]
        for pattern, places in self.converted.values():
            arrays += [*pattern.arrays, places]
        return arrays

    @functools.cached_property
    def present(self) -> torch.Tensor:
        """True for every entry: the values of a mask of the pattern."""
        return self._ones(torch.bool)

    def mask(self, dtype: torch.dtype) -> torch.Tensor:
        """Return ones for all entries, of ``dtype`` where kernels compute with that in vector registers.

        They do with operands of one dtype only, so this is cached, as ``present`` is.
        """
        if dtype not in (torch.float32, torch.float64):
            return self.present
        mask = self.masks.get(dtype)
        if mask is None:
            mask = self.masks[dtype] = self._ones(dtype)
        return mask

    def _ones(self, dtype: torch.dtype) -> torch.Tensor:
        with untracked():
            ones = torch.ones(self.size, dtype=dtype, device=self.device)
        base.settle(self.device, "the mask of a sparsity pattern")
        return ones

    @property
    def size(self) -> int:
        """The number of values."""
        return self.counts[-1] if self.counts else 1

    @functools.cached_property
    def key(self) -> int:
        """A number for what a schedule depends on.

        That is the device, the format, the shape, the width of indices, magnitudes and fullness.
        """
        magnitudes = tuple(count.bit_length() for count in self.counts)
        full = fullness(self.size, self.shape)
        return _key_of((self.format, self.shape, self.index_dtype, magnitudes, full, self.device))

    def carried(self, form: Format, shape: tuple[int, ...], levels: int) -> Pattern:
        """Return the arrays as another format: transposed, or the first ``levels`` with dense ones below."""
        if form == self.format and shape == self.shape:
            return self
        known = self.relatives.get((form, shape))
        if known is not None:  # with what is cached with it
            return known
        counts = list(self.counts[:levels])
        for level in range(levels, len(form)):
            counts.append(counts[-1] * form.level_size(level, shape))
        more = (None,) * (len(form) - levels)
        pos, crd = (*self.pos[:levels], *more), (*self.crd[:levels], *more)
        relative = Pattern(form, shape, pos, crd, tuple(counts))
        return self.relatives.setdefault((form, shape), relative)

    def bytes(self) -> int:
        arrays = list(self.arrays)
        if self.format.is_finished and "crd" in self.__dict__:
            levels = zip(self.format.levels, self.crd, strict=True)
            arrays += [crd for kind, crd in levels if crd is not None and not kind.has_coordinates]
        return sum(array.numel() * array.element_size() for array in arrays)

    def to(self, device: torch.device, non_blocking: bool = False) -> Pattern:
        """Return the pattern on another device; tensors that share it share the copy while one lives."""
        if device == self.device:
            return self
        moved = self.moved.get(device)
        known = None if moved is None else moved()
        if known is not None:
            if known.wait is not None:
                known.wait()
            return known
        for place in (self.device, device):
            base.check_waiting(place, "a copy of a sparsity pattern")
        with untracked():
            pos, crd = (
                tuple([None if a is None else a.to(device, non_blocking=non_blocking) for a in arrays])
                for arrays in (self.pos, self.crd)
            )
        known = Pattern(self.format, self.shape, pos, crd, self.counts)
        known.wait = base.record(device)
        if device != HOST or not non_blocking:  # the host cannot wait for what is still being copied to it
            self.moved[device] = weakref.ref(known)
        return known

    def __copy__(self) -> Pattern:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Pattern:
        return self


def plain(values: torch.Tensor) -> torch.Tensor:
    """Return values as kernels read them: one for each entry, without gaps, nothing lazy left."""
    if values._is_zerotensor():  # torch's gradient of a function with steps
        return torch.zeros(values.numel(), dtype=values.dtype, device=values.device)
    listed = values if values.dim() == 1 else values.reshape(-1)
    return listed.resolve_conj().resolve_neg().contiguous()


_Any = TypeVar("_Any")


def add_weak(references: list[weakref.ref[_Any]], value: _Any) -> None:
    """Add a weak reference, and drop the dead ones now and then."""
    references.append(weakref.ref(value))
    if len(references) >= MAX_FOLLOWERS and len(references) & (len(references) - 1) == 0:
        references[:] = [reference for reference in references if reference() is not None]


def mark_written(values: torch.Tensor) -> None:
    """Increment the version of values that are replaced, so that autograd raises where it needs them.

    Those that ``torch.func`` wraps stay as they are: a write in there returns new ones.
    """
    if not values.is_inference() and not is_functorch_wrapped_tensor(values):
        torch.autograd.graph.increment_version(values)


Check = Callable[[Pattern, torch.Tensor], Pattern]


class Step(NamedTuple):
    """One operation of a view: ``func(source, *args, **kwargs)``, or the result of that at ``place``."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    place: int | None
    grad_mode: bool  # whether gradients were enabled

    def of(self, source: torch.Tensor) -> Any:
        """Take the same view of another tensor."""
        result = self.func(source, *self.args, **self.kwargs)
        return result if self.place is None else result[self.place]


class Origin(NamedTuple):
    """The source of the storage of a view, itself of no view, and the steps from there."""

    source: Storage
    steps: tuple[Step, ...]


def run_steps(steps: tuple[Step, ...], source: torch.Tensor) -> Any:
    """Apply the ``steps`` of a view to ``source``."""
    for step in steps:
        source = step.of(source)
    return source


class _Restored:
    """An attribute of a storage that ``restore`` sets where it is not there.

    Unlike ``__getattr__``, it does not slow down every other attribute.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, storage: Storage | None, owner: type[Storage]) -> Any:
        if storage is None:
            return self
        storage.restore()
        try:
            return storage.__dict__[self.name]
        except KeyError:
            raise AttributeError(f"a storage has no {self.name!r}") from None


class Storage:
    """A pattern and its values, one for every position of the last level, without gaps in memory.

    That of a view has an ``origin``, and is one of the ``followers`` of the storage that it is a view of.
    When that becomes another one, a follower drops its arrays; they are recomputed when they are needed.
    One whose arrays are still to be read from a file is ``deferred``: they are checked at their first use.
    """

    if TYPE_CHECKING:
        pattern: Pattern
        values: torch.Tensor
    else:
        pattern, values = _Restored("pattern"), _Restored("values")
    recompute_view: ClassVar[Callable[..., Storage]]  # ``tensor.views.merge.recompute_view``
    write_to_layer: ClassVar[Callable[..., None]]  # ``tensor.layer_weight.write_to_layer``
    origin: Origin | None = None
    strides: Strides | None = None  # of a dense result, where it may not lie row by row
    followers: list[weakref.ref[Storage]] | None = None
    forgotten: tuple[Pattern, torch.Tensor] | None = None
    deferred: tuple[Check, Pattern, torch.Tensor] | None = None
    pending: Callable[[Storage], Storage] | None = None  # computes the arrays of a view that nobody has read
    layer_values: torch.Tensor | None = None  # the parameter of a layer whose weight this is
    is_shared: bool = False  # whether it has views, or is one, inside a graph that is traced
    layer: weakref.ref[Any] | None = None  # that layer, if a graph has returned its weight
    copied_by: str | None = None  # the function that copied another's values, where dense tensors have a view
    copy_of: Storage | None = None  # that other, if it is such a copy, too

    def __init__(self, pattern: Pattern, values: torch.Tensor) -> None:
        self.pattern = pattern
        self.values = values if values.is_contiguous() else values.contiguous()

    @staticmethod
    def of_new(pattern: Pattern, values: torch.Tensor) -> Storage:
        """Return the storage of values that were just computed, and lie without gaps for certain."""
        storage: Storage = _new(Storage)
        storage.pattern = pattern
        storage.values = values
        return storage

    @staticmethod
    def of_saved(pattern: Pattern, values: torch.Tensor) -> Storage:
        """Return the storage of values that lay without gaps, with what a call is about to ask of it."""
        storage = Storage(pattern, values)
        storage.tensors = (*pattern.arrays, storage.values)
        key = pattern.storage_keys.get(values.dtype)
        if key is not None:
            storage.key = key
        return storage

    @functools.cached_property
    def key(self) -> int:
        dtype, pattern = self.values.dtype, self.pattern
        known = pattern.storage_keys.get(dtype)
        if known is None:
            known = pattern.storage_keys[dtype] = _key_of((pattern.key, dtype))
        return known

    @property
    def device(self) -> torch.device:
        """Where its arrays are."""
        return self.values.device

    @functools.cached_property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All arrays in the order in which kernels take them."""
        return (*self.pattern.arrays, self.values)

    def to(self, device: torch.device) -> Storage:
        """Return the storage on another device, or itself."""
        if device == self.device:
            return self
        return Storage(self.pattern.to(device), self.values.to(device))

    def become(self, other: Storage) -> None:
        """Take the pattern and values of ``other``, for all tensors that have this storage.

        The weight of a layer keeps its pattern, and writes to the values of the layer.
        """
        if self.layer_values is not None:
            self.write_to_layer(other)
        else:
            mark_written(self.values)
            self.take(other.pattern, other.values)
        self.drop_copies()

    def drop_copies(self) -> None:
        """Let views, some of which copied the values, recompute theirs after a write to the values."""
        for reference in self.followers or ():
            view = reference()
            if view is not None:
                view._forget()

    def take(self, pattern: Pattern, values: torch.Tensor) -> None:
        """Replace the entries, without notice to followers."""
        self.pattern = pattern
        self.values = values if values.is_contiguous() else values.contiguous()
        for name in ("key", "tensors", "forgotten", "pending"):
            self.__dict__.pop(name, None)

    def defer(self, check: Check) -> None:
        """Defer ``check`` of the arrays to their first use; it returns their pattern."""
        self.deferred = check, self.__dict__.pop("pattern"), self.__dict__.pop("values")

    # views -------------------------------------------------------------------------------------------

    def follow(self, origin: Origin) -> None:
        """Become the storage of a view."""
        self.origin = origin
        origin.source._add_follower(self)

    def expire_with(self, source: Storage, function: str) -> None:
        """Become a copy of ``source``, in place of a view: it is not read after a write to that."""
        self.copied_by = function
        self.copy_of = None if source.copied_by is None else source  # which others refer to only weakly
        (source if source.origin is None else source.origin.source)._add_follower(self)

    def _add_follower(self, follower: Storage) -> None:
        if self.followers is None:
            self.followers = []
        add_weak(self.followers, follower)

    def meta_tensor(self) -> torch.Tensor:
        """Return a meta tensor with the strides that a dense tensor of this storage would have."""
        if self.origin is not None:
            return run_steps(self.origin.steps, self.origin.source.meta_tensor())  # type: ignore[no-any-return]
        shape = self.pattern.shape
        if self.strides is None:
            return torch.empty(shape, device="meta")
        return torch.empty_strided(shape, self.strides.find(), device="meta")

    def _forget(self) -> None:
        if self.forgotten is None and self.pending is None:
            mark_written(self.values)
            self.forgotten = self.pattern, self.values
            for name in ("pattern", "values", "key", "tensors"):
                self.__dict__.pop(name, None)
            if self.copied_by is not None:
                self.drop_copies()

    def restore(self) -> None:
        """Compute the arrays that a view has dropped or never read, or run a deferred check of them."""
        if torch.is_inference_mode_enabled():
            with untracked():
                self._restore()
        else:
            self._restore()

    def _restore(self) -> None:
        forgotten, origin, deferred, pending = self.forgotten, self.origin, self.deferred, self.pending
        if pending is not None:
            current = pending(self)
            self.take(current.pattern, current.values)
        elif deferred is not None:
            check, pattern, values = deferred
            self.take(check(pattern, values), values)
            self.deferred = None
        elif forgotten is not None and self.copied_by is not None:
            raise InPlaceError(
                f"a result of {self.copied_by}, which for sparse tensors is a copy, not a view, is used "
                f"after its base has been modified in place; call {self.copied_by} again, or clone() its "
                "result before"
            )
        elif forgotten is not None and origin is not None:  # else another thread has recomputed them
            current = Storage.recompute_view(*origin, forgotten[0].format)
            self.take(current.pattern, current.values)

    def __call__(self) -> NoReturn:
        """Refused: torch's ``tensor.storage()`` is the memory of a dense tensor."""
        raise UnsupportedError(
            "a sparse tensor has no single storage; use that of an array, such as .values().untyped_storage()"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Storage:
        return Storage(self.pattern, self.values.detach().clone())

    def operand(self, name: str) -> Operand:
        """Return this tensor as the compiler sees it."""
        pattern = self.pattern
        index = INT32 if pattern.index_dtype == torch.int32 else INT64
        element = type_of_dtype(self.values.dtype)
        return Operand(name, pattern.format, element, index, pattern.shape, pattern.counts)

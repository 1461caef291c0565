"""``SparseTensor``: a ``torch.Tensor`` with any number of dimensions, stored in any format.

To torch it is a wrapper subclass: it has a shape, a dtype and a device but no storage of its own. Calls of
torch functions arrive in ``__torch_function__`` whole, before torch takes them apart; what torch's C++ calls
by itself arrives in ``__torch_dispatch__``. Both look in ``tensor.registry``.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
import weakref
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import torch
from torch.autograd import forward_ad

from scorch._src.backends.base import MANY_VALUES, expect, routines_for, run_among_others
from scorch._src.bounded import BoundedCache
from scorch._src.devices import HOST
from scorch._src.engine.execute import convert
from scorch._src.formats import Format, as_format
from scorch._src.grad_state import (
    has_tangents,
    is_called_from,
    is_differentiable,
    is_grad_enabled,
    is_transformed,
    refuse_jit,
    untracked,
)
from scorch._src.name_hints import check_keywords, hides_unknown
from scorch._src.storage.storage import Origin, Pattern, Step, Storage, add_weak, plain, run_steps
from scorch._src.storage.strides import has_strides, keep_strides
from scorch._src.tensor import registry
from scorch._src.tensor.create.check import own, refuse_freed, sparse_advice_on
from scorch._src.tensor.dynamo import skip_tracing, skip_tracing_all
from scorch._src.tensor.flatten import (
    ALL_NAMES,
    LIVE,
    VALUES,
    TracedStorage,
    any_traced,
    array_of,
    is_tracing,
    link_to_layer,
    names_of,
    pattern_of,
    remember,
    with_symbolic_size,
    wrap_traced,
)
from scorch._src.tensor.hooks import hooks
from scorch._src.torch_internals import (
    ATTRIBUTE_READER,
    COMPILE_INPUTS,
    DISABLED_TORCH_FUNCTION,
    EXPORT_INPUTS,
    TENSOR_METHODS,
    DisableTorchFunctionSubclass,
    any_requires_grad,
    is_functorch_wrapped_tensor,
    is_jit_tracing,
    len_torch_dispatch_stack,
    make_wrapper_subclass,
    peek_interpreter_stack,
)
from scorch.errors import OperandError, ShapeError, UnsupportedError, kind_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import scipy.sparse


_default_dtype = torch.get_default_dtype
_tuple = tuple.__new__  # of a named tuple takes half the time of its constructor
_quick_function = registry.QUICK.get
NUMBERS = frozenset({int, float})
MAX_CONSTANTS, MAX_CLASSES = 256, 256
MANY_SCALED = 1 << 16  # values, up to which torch's threads do not pay
MANY_OF_ARITHMETIC = 1 << 15  # values, below which torch's arithmetic takes one thread
_GRADIENT = registry.entry(torch.Tensor.grad.__get__)  # type: ignore[union-attr]
_TORCH_FUNCTION = torch.Tensor.__torch_function__.__func__  # type: ignore[attr-defined]
_EXACT = frozenset({torch.float32, torch.float64})  # whose products with a number round it to the same dtype
_constants: BoundedCache[tuple[float, torch.dtype], torch.Tensor] = BoundedCache(MAX_CONSTANTS)


class ViewOf(NamedTuple):
    """The base of a view, itself no view, and the steps from there."""

    parent: SparseTensor
    steps: tuple[Step, ...]


def _is_inside_dtensor(value: Any) -> bool:
    return type(value) is SparseTensor and value.is_inside_dtensor


class SparseTensor(torch.Tensor):
    """A sparse ``torch.Tensor`` with any number of dimensions, in any storage format.

    PyTorch's names for sparse tensors (``values``, ``crow_indices``, ``to_sparse_csr`` ...) work, with one
    exception: ``layout`` is ``torch.strided`` in every format, since PyTorch's data loaders and compiler
    reject tensor subclasses with any other layout. ``S.format`` says how the tensor is stored.

    Example:

        >>> import torch, scorch
        >>> S = scorch.from_torch(torch.tensor([[0.0, 2.0], [3.0, 0.0]]), format="csr")
        >>> S @ torch.ones(2), S.format, S.nnz
        (tensor([2., 3.]), Format('csr'), 2)
    """

    storage: Storage
    source_values: torch.Tensor | None = None  # the values, tracked by autograd, that it was built from
    parameter: torch.Tensor | None = None  # of a detached one: what statements connect their results to
    weighted_graphs: Any = None  # that layers multiply by (``ops.graph.neighbours``)
    is_given_away: bool = False  # to a layer, which takes over its values and needs no copy
    weight_of: Any = None  # the layer whose weight it is (``tensor.layer_weight``)
    view_of: ViewOf | None = None
    viewed_by: list[weakref.ref[SparseTensor]] | None = None
    copied_by: str | None = None  # the function that returned it, where dense tensors have a view
    is_inside_dtensor: bool = False  # a DTensor's local tensor, which calls of torch do not show
    samples_gradient: bool = False  # whether gradients that arrive dense are sampled at its entries
    has_unknown_gradient: bool = False  # a view of what was written to, of a kind that torch does not follow

    if TYPE_CHECKING:  # PyTorch's reductions with ``masked=``, as ``ops.reduction.maskable`` defines them
        sum: Callable[..., torch.Tensor]
        mean: Callable[..., torch.Tensor]
        prod: Callable[..., torch.Tensor]
        amax: Callable[..., torch.Tensor]
        amin: Callable[..., torch.Tensor]
        argmax: Callable[..., torch.Tensor]
        argmin: Callable[..., torch.Tensor]
        var: Callable[..., torch.Tensor]
        std: Callable[..., torch.Tensor]
        norm: Callable[..., torch.Tensor]
        logsumexp: Callable[..., torch.Tensor]
        softmax: Callable[..., torch.Tensor]
        log_softmax: Callable[..., torch.Tensor]
        cumsum: Callable[..., torch.Tensor]
        cumprod: Callable[..., torch.Tensor]
        max: Callable[..., Any]
        min: Callable[..., Any]
        median: Callable[..., Any]

    @staticmethod
    def __new__(
        cls,
        storage: Storage | None = None,
        shape: tuple[int, ...] | None = None,
        values: torch.Tensor | None = None,
        **arrays: Any,
    ) -> SparseTensor:
        """Wrap a storage; ``shape`` and ``values`` of its kind where its arrays are computed later."""
        if type(storage) is TracedStorage:
            return wrap_traced(cls, storage)  # type: ignore[return-value]
        if arrays or not isinstance(storage, Storage):
            raise OperandError(
                "SparseTensor is not called with arrays: "
                "use scorch.sparse_coo_tensor(indices, values, size), scorch.from_torch(tensor), "
                "or scorch.compat.torch_sparse.SparseTensor(row=..., col=...)"
            )
        if shape is None or values is None:
            shape, values = storage.pattern.shape, storage.values
            if peek_interpreter_stack() is not None and is_functorch_wrapped_tensor(values):
                return hooks.wrap(storage)  # type: ignore[no-any-return]
        dtype = values.dtype
        try:  # naming the usual dtype and device doubles the cost
            if dtype is _default_dtype() and values.is_cpu:
                tensor: SparseTensor = make_wrapper_subclass(cls, shape)
            else:
                tensor = make_wrapper_subclass(cls, shape, dtype=dtype, device=values.device)
        except RuntimeError:
            raise ShapeError(
                f"a tensor of shape {shape} has too many elements: the product of its sizes must "
                f"be less than 2**63"
            ) from None
        if not values.is_cpu and "pattern" in storage.__dict__:  # neither filled in nor read later
            expect(values, storage.pattern.index_dtype)
        tensor.__dict__["storage"] = storage
        return tensor

    @classmethod
    @skip_tracing
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if len(types) > 1 and any(map(_handles_calls, types)):
            answer = _ask_others(func, types, args, kwargs)
            if answer is not _OURS:
                return answer
        quick = _quick_function(func)
        if quick is not None and not kwargs:
            mapped = quick(*args)
            if mapped is not None:
                return mapped
        if LIVE and any_traced((args, *(kwargs or {}).values())):
            return hooks.record(func, args, kwargs or {})
        entry = registry.TABLE.get(func, registry.EMPTY_ENTRY)
        if entry.is_metadata:
            if entry is _GRADIENT and (args[0].weight_of is not None or args[0].storage.layer is not None):
                return hooks.gradient_of_weight(args[0])
            if entry is _GRADIENT and LIVE and type(args[0].storage) is TracedStorage:
                _refuse_gradient()
            with DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        if len_torch_dispatch_stack() and is_tracing():
            return hooks.record(func, args, kwargs or {})
        if is_jit_tracing():
            raise hooks.refused_by_jit(func)
        handler, keeps_gradients = entry.run, entry.is_differentiable
        try:
            count = entry.maps_values
            if count and count == len(args) and not kwargs and (count == 1 or type(args[1]) in NUMBERS):
                mapped = _map_values(func, args, entry.routine)
                if mapped is not None:
                    return mapped
            if not keeps_gradients and _is_differentiated(func, args, kwargs or {}):
                result = hooks.differentiate(func, args, kwargs or {})
            elif not keeps_gradients and forward_ad._current_level >= 0 and has_tangents(args, kwargs):
                result = hooks.push_forward(func, args, kwargs or {})
            elif not keeps_gradients and is_transformed():  # of nothing that is tracked
                with untracked():
                    result = func(*args, **(kwargs or {}))
            elif handler is not None:
                if not entry.checks_operands:
                    refuse_freed(*args, *(kwargs or {}).values())
                result = handler(*args, **(kwargs or {}))
            else:
                result = hooks.run_by_torch(func, args, kwargs or {})
            if type(result) is SparseTensor:
                for value in args:  # as has_strides does, without a call
                    stored = value.storage if type(value) is SparseTensor else None
                    if stored is not None and (stored.origin is not None or stored.strides is not None):
                        keep_strides(result.storage, func, args, kwargs or {})
                        break
            return result
        except Exception as error:
            converted = hooks.retry(func, args, kwargs or {})
            if converted is not None:
                return func(*converted[0], **converted[1])
            translated = hooks.translate_error(error, func, args, kwargs or {})
            if translated is error:
                raise
        raise translated

    @classmethod
    @skip_tracing
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if LIVE and any_traced((args, *(kwargs or {}).values())):
            return hooks.record(func, args, kwargs or {})
        if torch.is_inference_mode_enabled() and func.is_view and is_ordinary_in_inference_mode(args[0]):
            with untracked():
                return cls.__torch_dispatch__(func, types, args, kwargs)
        refuse_freed(*args, *(kwargs or {}).values())
        if registry.is_in_place(func):
            hooks.check_write(func, args, kwargs)
        place = registry.place_of_index(func)
        if place is not None and len(args) > place and isinstance(args[place], SparseTensor):
            args = (*args[:place], args[place].to_dense(), *args[place + 1 :])
            if not any(isinstance(value, SparseTensor) for value in (*args, *(kwargs or {}).values())):
                return func(*args, **(kwargs or {}))
        handler = registry.look_up(func).run or registry.look_up(func.overloadpacket).run
        if handler is None or (kwargs and "out" in kwargs):  # the result of the handler is written to out
            result = hooks.run_operator(func, args, dict(kwargs or {}))
        else:
            result = handler(*args, **(kwargs or {}))
        if any(_is_inside_dtensor(value) for value in args):
            if type(result) is SparseTensor:
                result.is_inside_dtensor = True
            elif torch.Tag.pointwise in func.tags:
                hooks.refuse_inside_dtensor(func, 2)
        return as_view(result, func, args, kwargs) if func.is_view else result

    # facts -------------------------------------------------------------------------------------------

    @property
    def format(self) -> Format:
        """The storage format."""
        return self.storage.pattern.format

    @property
    def nnz(self) -> int:
        """The number of stored elements, including explicit zeros and the zeros inside blocks."""
        size = self.storage.pattern.size
        if type(size) is not int or torch.compiler.is_exporting():
            _refuse_constant("nnz", size, "S._nnz()")
        return size

    @property
    def density(self) -> float:
        """The fraction of elements that are stored; more than 1 if blocks are padded."""
        size, places = self.storage.pattern.size, math.prod(self.storage.pattern.shape)
        if type(size) is not int or torch.compiler.is_exporting():
            _refuse_constant("density", size, "S._nnz() / S.numel()")
        return size / places if places else 0.0

    @property
    def levels(self) -> tuple[dict[str, Any], ...]:
        """The kind, dimension and size of each level, outermost first, and copies of its arrays."""
        pattern = self.storage.pattern
        if type(self.storage) is TracedStorage or torch.compiler.is_exporting():
            _refuse_constant("levels", None, "S.csr() or S.coo()")
        return tuple(
            {
                "kind": level.name,
                "dim": pattern.format.order[number],
                "size": pattern.format.level_size(number, pattern.shape),
                "pos": None if pos is None else own(pos),
                "crd": None if crd is None else own(crd),
            }
            for number, (level, pos, crd) in enumerate(
                zip(pattern.format.levels, pattern.pos, pattern.crd, strict=True)
            )
        )

    # other forms -------------------------------------------------------------------------------------

    @hides_unknown
    def to_format(self, format: str | Format, **_unknown: NoReturn) -> SparseTensor | torch.Tensor:
        """Convert to another storage format.

        In-place operations on the result (``T.mul_(2)``) do not change the tensor, nor vice versa.
        As in PyTorch, ``values()`` of both may share memory: between ``csr`` and ``coo``, and in the same
        format.

        Args:
            format: the storage format, such as ``"csc"``; see ``Format``.

        Returns:
            A ``SparseTensor``, or a plain tensor if the format is dense.

        Raises:
            FormatError: ``format`` does not exist or does not match the shape.
            DensityError: a dense result would exceed the dense budget.

        Example:

            >>> import torch, scorch
            >>> scorch.eye(3, format="csr").to_format("csc").format
            Format('csc')
        """
        if _unknown:
            check_keywords("to_format", _unknown, ("format",))
        if LIVE and any_traced((self,)):
            return hooks.record(SparseTensor.to_format, (self, format), {})  # type: ignore[no-any-return]
        refuse_jit("to_format")
        form = as_format(format, len(self.storage.pattern.shape))
        if is_differentiable(self):
            return hooks.convert(self, form)  # type: ignore[no-any-return]
        converted = convert(self.storage, form)
        if converted is self.storage:
            return with_values(self, converted.values)
        return SparseTensor(converted) if isinstance(converted, Storage) else converted

    @hides_unknown
    def to_dense(
        self,
        dtype: torch.dtype | None = None,
        *,
        masked_grad: bool | None = None,
        **_unknown: NoReturn,
    ) -> torch.Tensor:
        """Convert to a plain dense tensor.

        Args:
            dtype: the dtype of the result; that of the tensor without it.
            masked_grad: whether the gradient has the sparsity pattern of the tensor. It always does, so False
                is an error for tensors that require a gradient.

        Returns:
            A plain tensor.

        Raises:
            DensityError: a dense result would exceed the dense budget.
            UnsupportedError: ``masked_grad=False`` with a tensor that requires gradients.

        Example:

            >>> import torch, scorch
            >>> scorch.eye(2, format="csr").to_dense()
            tensor([[1., 0.],
                    [0., 1.]])
        """
        if _unknown:
            check_keywords("to_dense", _unknown, ("dtype", "masked_grad"))
        if masked_grad is False and is_differentiable(self):
            raise UnsupportedError(
                "the gradient of a sparse tensor has its sparsity pattern (masked_grad=True); for a dense "
                "gradient, make a dense tensor the parameter: S.detach().to_dense().requires_grad_()"
            )
        dense = self.to_format("dense") if self.storage.pattern.shape else hooks.values_of(self).reshape(())
        return dense if dtype is None else dense.to(dtype)

    # implemented by other modules (tensor.methods) ---------------------------------------------------

    if TYPE_CHECKING:

        def to_torch(self) -> torch.Tensor: ...
        def to_scipy(self) -> scipy.sparse.sparray: ...
        def eliminate_zeros(self) -> SparseTensor: ...
        def setdiag(self, values: Any, k: int = 0) -> SparseTensor: ...
        def with_values(self, values: Any) -> SparseTensor: ...
        def coo(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]: ...
        def csr(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]: ...
        def csc(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]: ...
        def sparse_sizes(self) -> tuple[int, int]: ...
        def sparse_size(self, dim: int) -> int: ...
        def to_edge_index(self) -> tuple[torch.Tensor, torch.Tensor]: ...
        def to_networkx(self, create_using: Any = None, weight: str = "weight") -> Any: ...
        def _repr_html_(self) -> str: ...

    # Python ------------------------------------------------------------------------------------------

    def untyped_storage(self) -> torch.UntypedStorage:
        """Raise an error, since a sparse tensor has several arrays; graph capture gets one without memory."""
        if is_called_from("torch", 1) and not is_called_from(TENSOR_METHODS, 1):
            return super().untyped_storage()
        raise OperandError(
            "a sparse tensor has no single storage; use that of an array, such as .values().untyped_storage()"
        )

    # graphs of torch.compile and torch.export --------------------------------------------------------

    def __tensor_flatten__(self) -> tuple[list[str], Format]:
        """Return the names of all arrays, and the format, from which the tensor is rebuilt."""
        pattern = self.storage.pattern
        if not isinstance(self.storage, TracedStorage):
            remember(pattern)
        return [*names_of(pattern.format), VALUES], pattern.format

    @staticmethod
    def __tensor_unflatten__(
        inner: dict[str, torch.Tensor], format: Format, shape: Any, stride: Any
    ) -> SparseTensor:
        """Rebuild a tensor from its arrays; a traced one if they are traced."""
        pattern, values = pattern_of(format, shape, [inner[name] for name in names_of(format)]), inner[VALUES]
        if type(values) is not torch.Tensor:
            return SparseTensor(TracedStorage(pattern, values))
        return SparseTensor(link_to_layer(Storage(pattern, plain(values))))

    def _stable_hash_for_caching(self) -> str:
        """Return the key of a compiled graph, for torch's cache of graphs on disk."""
        pattern, values = self.storage.pattern, self.storage.values
        counts = [array.shape for array in (*pattern.entry_arrays, values)]
        return f"{pattern.format!r} {pattern.shape} {pattern.index_dtype} {values.dtype} {counts}"


@functools.lru_cache(maxsize=MAX_CLASSES)
def _handles_calls(kind: type) -> bool:
    """Whether a class that is not one of ours or torch's own has a ``__torch_function__`` of its own."""
    if issubclass(kind, SparseTensor):
        return False
    function = getattr(kind.__torch_function__, "__func__", kind.__torch_function__)  # type: ignore[attr-defined]
    return function not in (_TORCH_FUNCTION, DISABLED_TORCH_FUNCTION)


_OURS = object()


def _ask_others(func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
    """Return what other classes with a ``__torch_function__`` answer; _OURS if they leave the call to us.

    Those that only call torch's own, as subclasses that log calls do, do not know sparse tensors. They are
    dense tensors to us, unless they have a ``__torch_dispatch__``: those may have no memory.
    """
    others = list(filter(_handles_calls, types))
    if not all(issubclass(kind, torch.Tensor) for kind in others):
        return NotImplemented  # torch asks them then
    for kind in others:
        answer = kind.__torch_function__(func, types, args, kwargs or {})
        if answer is not NotImplemented:
            return answer
    have_memory = all(kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__ for kind in others)
    return _OURS if have_memory else NotImplemented


def _is_differentiated(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether autograd or ``torch.func`` tracks a tensor among the arguments."""
    if is_grad_enabled() and any_requires_grad(*args, **kwargs):
        return True
    return is_transformed() and hooks.is_any_tracked(args, kwargs)


def _refuse_constant(name: str, size: Any, alternative: str) -> None:
    """Refuse an attribute to ``torch.compile`` where it would be a constant, though patterns differ.

    It knows the size of an array that it was given, and compiles again where that changes.
    """
    is_known = size is not None and (isinstance(size, int) or size.node.has_hint())
    if (torch.compiler.is_exporting() or not is_known) and is_called_from(ATTRIBUTE_READER, 2):
        from scorch._src.torch_internals import GraphBreak

        raise GraphBreak(
            f"S.{name} depends on the sparsity pattern, which torch.compile does not know of a result, and "
            f"torch.export(strict=True) of no tensor; use {alternative} instead, or strict=False"
        )


def _refuse_gradient() -> None:
    """Refuse ``.grad`` to ``torch.compile``: that of the weight of a layer is known outside of a graph."""
    if any(is_called_from(ATTRIBUTE_READER, depth) for depth in range(2, 5)):
        from scorch._src.torch_internals import GraphBreak

        raise GraphBreak("S.grad is not known to torch.compile where S is computed in the graph")


def _array(name: str) -> property:
    """Return the property for an array of a sparse tensor by its name in graphs."""

    def read(tensor: SparseTensor) -> torch.Tensor:
        array = array_of(tensor.storage, name)
        reader = sys._getframe(1).f_globals.get("__name__")
        if reader == EXPORT_INPUTS or (reader == COMPILE_INPUTS and torch.compiler.is_exporting()):
            return array if tensor.storage.pattern.format.is_dense else with_symbolic_size(array)
        return array

    return property(read)


skip_tracing_all(vars(SparseTensor).values())
for _name in ALL_NAMES:
    setattr(SparseTensor, _name, _array(_name))


TENSORS = frozenset({SparseTensor, torch.Tensor, torch.nn.Parameter})

_aten = torch.ops.aten
_DETACHED = {_aten.detach.default, _aten.lift_fresh.default}
_COPIED = {_aten._conj.default, _aten.view.dtype, _aten.view_as_complex.default, _aten.view_as_real.default}
_RESHAPED = {
    _aten.view.default,
    _aten._unsafe_view.default,
    _aten._reshape_alias.default,
    _aten.reshape.default,
}


def is_ordinary_in_inference_mode(source: torch.Tensor) -> bool:
    """Whether views of ``source`` are created in ``torch.inference_mode``, and yet are ordinary tensors."""
    if not torch.is_inference_mode_enabled():
        return False
    with DisableTorchFunctionSubclass():
        return not source.is_inference()


def ordinary_view(take: Callable[..., Any]) -> Callable[..., Any]:
    """Take the view of an ordinary tensor outside ``torch.inference_mode``, which has its views ordinary."""

    @functools.wraps(take)
    def take_outside(*args: Any, **kwargs: Any) -> Any:
        if is_ordinary_in_inference_mode(args[0] if args else next(iter(kwargs.values()))):
            with untracked():
                return take(*args, **kwargs)
        return take(*args, **kwargs)

    return take_outside


def as_view(result: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
    """Link ``result``, one tensor or several, as views of the first argument by the operator ``func``."""
    source, rest, named = args[0], args[1:], dict(kwargs or {})
    if not isinstance(source, SparseTensor) or func in _DETACHED:
        return result
    if func in _COPIED:
        if isinstance(result, SparseTensor):
            mark_copy(result, source, func.overloadpacket.__name__)
        return result
    is_several = isinstance(result, (list, tuple))
    for place, part in enumerate(result if is_several else [result]):
        if isinstance(part, SparseTensor) and part is not source:
            step = Step(func, rest, named, place if is_several else None, is_grad_enabled())
            link_view(part, source, (step,))
    return result


def mark_copy(copy: SparseTensor, source: SparseTensor, function: str) -> None:
    """Mark the copy that ``function`` returned of ``source``, of which torch has a view."""
    copy.copied_by = function
    if type(copy.storage) is not TracedStorage and copy.storage is not source.storage:
        copy.storage.expire_with(source.storage, function.strip("_"))


def link_view(view: SparseTensor, source: SparseTensor, steps: tuple[Step, ...]) -> None:
    """Link ``view``, which is ``steps`` of ``source``, and its base: writes to one change the other."""
    is_reshaped = has_strides((source,)) and any(step.func in _RESHAPED for step in steps)
    if not is_reshaped or not _is_copy(source.storage, steps):
        join_view(view, source, steps)


def join_view(view: SparseTensor, source: SparseTensor, steps: tuple[Step, ...]) -> None:
    """Link a view that shares memory with its base for certain."""
    above, origin = source.storage, source.storage.origin
    if origin is not None:
        above = origin.source
    if view.storage is not source.storage:
        view.storage.follow(_tuple(Origin, (above, steps if origin is None else (*origin.steps, *steps))))
    link = source.view_of
    parts = (source, steps) if link is None else (link.parent, (*link.steps, *steps))
    view.__dict__["view_of"] = _tuple(ViewOf, parts)
    _register(view)


def _is_copy(source: Storage, steps: tuple[Step, ...]) -> bool:
    """Whether torch returns a copy instead of this view: a reshape that the strides do not allow."""
    try:
        run_steps(steps, source.meta_tensor())
    except RuntimeError:
        return True
    return False


def _register(view: SparseTensor) -> None:
    assert view.view_of is not None
    parent = view.view_of.parent
    if parent.viewed_by is None:
        parent.viewed_by = []
    add_weak(parent.viewed_by, view)


def without_base(result: Any) -> Any:
    """Replace views by tensors that torch does not treat as views: ``view_of`` has the base instead.

    torch would write through a view by its strides, which a sparse tensor does not have.
    Call it where PyTorch functions do not reenter ``__torch_function__``.
    """
    if isinstance(result, SparseTensor):
        if type(result.storage) is TracedStorage or not result._is_view():
            return result
        with untracked() if is_ordinary_in_inference_mode(result) else contextlib.nullcontext():
            view = SparseTensor(result.storage)
        if result.copied_by is not None:
            view.copied_by = result.copied_by
        if result.view_of is not None:
            view.view_of = result.view_of
            _register(view)
        return view
    if type(result) is list or type(result) is tuple:
        return type(result)(without_base(part) for part in result)
    return result


def _map_values(func: Any, args: tuple[Any, ...], routine: str) -> SparseTensor | None:
    """Return ``func`` of the stored values and a number; None where more is to be done.

    ``routine``, if any, computes the same, in less time for few values.
    """
    tensor = args[0]
    if type(tensor) is not SparseTensor or peek_interpreter_stack() is not None:
        return None
    storage = tensor.storage
    if (is_grad_enabled() and any_requires_grad(tensor)) or forward_ad._current_level >= 0:
        return None
    if storage.origin is not None or storage.strides is not None:
        return None
    values = storage.values
    operands: tuple[Any, ...] = (values,)
    if routine and len(args) == 1 and not len_torch_dispatch_stack() and not values.requires_grad:
        routines = routines_for(values)
        func = getattr(routines, routine)
        if routines.repeats_calls:
            hooks.repeat_by_builtins()  # the next time
    elif len(args) > 1:
        number, dtype = args[1], values.dtype
        if not number or not isfinite(number):
            return None
        is_plain = values.is_cpu and not values.requires_grad and not len_torch_dispatch_stack()
        if routine and is_plain and dtype in _EXACT and values.numel() <= MANY_SCALED:
            scaled = routines_for(values).scale(values, number)
            return tensor_of(Storage.of_new(storage.pattern, scaled))
        if dtype in _EXACT:  # torch would make a tensor of the number at every call, and convert it
            constant = _constants.get((number, dtype))
            if constant is None:
                with untracked():
                    constant = _constants[number, dtype] = torch.tensor(number, dtype=dtype, device=HOST)
            number = constant
        operands = values, number
    is_small = values.numel() < (MANY_VALUES if len(args) == 1 else MANY_OF_ARITHMETIC)
    values = func(*operands) if is_small else run_among_others(values, func, *operands)
    if type(values) is not torch.Tensor or values.requires_grad:
        return None
    return tensor_of(Storage.of_new(storage.pattern, values))


def tensor_of(storage: Storage) -> SparseTensor:
    """Return ``SparseTensor(storage)``, in less time for a storage of the usual kind."""
    return tensor_with(storage, storage.pattern.shape, storage.values)


def tensor_with(storage: Storage, shape: tuple[int, ...], values: torch.Tensor) -> SparseTensor:
    """Return ``SparseTensor(storage, shape, values)``, in less time for values of the usual kind."""
    if values.dtype is _default_dtype() and values.is_cpu:
        try:
            tensor: SparseTensor = make_wrapper_subclass(SparseTensor, shape)
        except RuntimeError:
            return SparseTensor(storage, shape, values)  # raises the error
        tensor.__dict__["storage"] = storage
        return tensor
    return SparseTensor(storage, shape, values)


def wrap(result: Storage | torch.Tensor) -> SparseTensor | torch.Tensor:
    """Return a sparse result as a ``SparseTensor``, a dense one as it is."""
    return SparseTensor(result) if isinstance(result, Storage) else result


def check_sparse(name: str, value: object) -> None:
    """Refuse what is no ``SparseTensor``, and say how to make one of it."""
    if not isinstance(value, SparseTensor):
        advice = sparse_advice_on(value)
        raise OperandError(f"{name} expected a sparse tensor, but got {kind_of(value)}; {advice}")


def with_values(tensor: SparseTensor, values: torch.Tensor) -> SparseTensor:
    """Return a tensor with the pattern of ``tensor`` and other values."""
    pattern: Pattern = tensor.storage.pattern
    return SparseTensor(Storage(pattern, values))

"""``SparseTensor``: a ``torch.Tensor`` with any number of dimensions, stored in any format.

To torch it is a wrapper subclass: it has a shape, a dtype and a device but no storage of its own. Calls of
torch functions arrive in ``__torch_function__`` whole, before torch takes them apart; what torch's C++ calls
by itself arrives in ``__torch_dispatch__``. Both look in ``tensor.registry``.
"""

from __future__ import annotations

import functools
import math
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import torch
from torch.autograd import forward_ad

from scorch._src.backends.base import expect
from scorch._src.engine.execute import convert
from scorch._src.formats import Format, as_format
from scorch._src.grad_state import (
    has_tangents,
    is_called_from,
    is_differentiable,
    is_grad_enabled,
    is_ordinary_in_inference_mode,
    is_transformed,
    refuse_jit,
    untracked,
)
from scorch._src.name_hints import check_keywords, hides_unknown
from scorch._src.storage.storage import Pattern, Step, Storage, plain
from scorch._src.storage.strides import keep_strides
from scorch._src.tensor import registry
from scorch._src.tensor.create.check import own, refuse_freed, sparse_advice_on
from scorch._src.tensor.dynamo import refuse_constant, refuse_gradient, skip_tracing, skip_tracing_all
from scorch._src.tensor.flatten import (
    ALL_NAMES,
    LIVE,
    VALUES,
    TracedStorage,
    any_traced,
    array_property,
    is_tracing,
    link_to_layer,
    names_of,
    pattern_of,
    remember,
    wrap_traced,
)
from scorch._src.tensor.hooks import hooks
from scorch._src.torch_internals import (
    DISABLED_TORCH_FUNCTION,
    INPUT_COPIER,
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
_quick_function = registry.QUICK.get
NUMBERS = frozenset({int, float})
MAX_CLASSES = 256
_GRADIENT = registry.entry(torch.Tensor.grad.__get__)  # type: ignore[union-attr]
_TORCH_FUNCTION = torch.Tensor.__torch_function__.__func__  # type: ignore[attr-defined]


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
                refuse_gradient()
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
                mapped = hooks.map_values(func, args, entry.routine)
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
        return hooks.as_view(result, func, args, kwargs) if func.is_view else result

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
            refuse_constant("nnz", size, "S._nnz()")
        return size

    @property
    def density(self) -> float:
        """The fraction of elements that are stored; more than 1 if blocks are padded."""
        size, places = self.storage.pattern.size, math.prod(self.storage.pattern.shape)
        if type(size) is not int or torch.compiler.is_exporting():
            refuse_constant("density", size, "S._nnz() / S.numel()")
        return size / places if places else 0.0

    @property
    def levels(self) -> tuple[dict[str, Any], ...]:
        """The kind, dimension and size of each level, outermost first, and copies of its arrays."""
        pattern = self.storage.pattern
        if type(self.storage) is TracedStorage or torch.compiler.is_exporting():
            refuse_constant("levels", None, "S.csr() or S.coo()")
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

    def data_ptr(self) -> int:
        """Raise an error, since a sparse tensor has several arrays; graph capture gets no address."""
        return 0 if is_called_from(INPUT_COPIER, 1) else super().data_ptr()

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


for _name in ALL_NAMES:
    setattr(SparseTensor, _name, array_property(_name))
skip_tracing_all(vars(SparseTensor).values())


TENSORS = frozenset({SparseTensor, torch.Tensor, torch.nn.Parameter})


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

"""Methods of sparse tensors that other modules implement, attached to the class."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from scorch._src.grad_state import is_called_from, is_grad_enabled, is_transformed
from scorch._src.hint_tables import ASSIGNMENT_HINTS, HINTS, TENSOR_HINTS
from scorch._src.name_hints import missing_name, unknown_name
from scorch._src.tensor.autograd import apply, sparse_of, values_at
from scorch._src.tensor.create.check import as_differentiable_values
from scorch._src.tensor.create.construct import from_torch
from scorch._src.tensor.dynamo import skip_tracing
from scorch._src.tensor.flatten import ALL_NAMES
from scorch._src.tensor.hooks import hooks
from scorch._src.tensor.interop import graphs, torch_layouts
from scorch._src.tensor.show.spy import to_html
from scorch._src.tensor.show.text import to_text
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.tensor.torch_methods import eliminate_zeros, setdiag
from scorch._src.tensor.traced import recorded
from scorch._src.torch_internals import any_requires_grad
from scorch.errors import AssignmentError, DeviceError, OperandError, ShapeError


class _Layout(torch.autograd.Function):
    """Convert S to one of torch's layouts; sample a gradient of any layout at the entries of S."""

    @staticmethod
    def forward(ctx: Any, tensor: SparseTensor) -> torch.Tensor:
        ctx.pattern = tensor.storage.pattern
        return torch_layouts.to_torch(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        converted = gradient if gradient.layout == torch.strided else from_torch(gradient)
        return sparse_of(ctx.pattern, values_at(converted, ctx.pattern))


@recorded
def to_torch(self: SparseTensor) -> torch.Tensor:
    """Convert to a PyTorch sparse tensor, in CSR, CSC, BSR or BSC if that is the format, otherwise in COO.

    Returns:
        A PyTorch sparse tensor.

    Example:

        >>> import torch, scorch
        >>> scorch.eye(3, format="csr").to_torch().layout
        torch.sparse_csr
    """
    is_connected = is_grad_enabled() and any_requires_grad(self) and not is_transformed()
    tensor: torch.Tensor = apply(_Layout, self) if is_connected else torch_layouts.to_torch(self)
    return tensor


@recorded
def with_values(self: SparseTensor, values: Any) -> SparseTensor:
    """Return a tensor with the sparsity pattern of this one and other values.

    Args:
        values: a number for all entries, or a tensor of the shape of ``S.values()``, which sets the dtype;
            its gradient is that of the values.

    Returns:
        A ``SparseTensor`` in the same format, which shares the pattern.

    Raises:
        ShapeError: ``values`` has another shape than ``S.values()``.
        DeviceError: ``values`` is on another device.

    Example:

        >>> import torch, scorch
        >>> S = scorch.from_torch(torch.tensor([[0.0, 2.0], [3.0, 0.0]]), format="csr")
        >>> S.with_values(1).to_dense()
        tensor([[0., 1.],
                [1., 0.]])
    """
    storage = self.storage
    if not isinstance(values, torch.Tensor) and isinstance(values, (bool, int, float, complex)):
        dtype = torch.result_type(storage.values, values)
        return sparse_of(storage.pattern, torch.full_like(storage.values, values, dtype=dtype))
    if not isinstance(values, torch.Tensor) and callable(values):
        raise OperandError("values must be a tensor, but got a function; pass function(S.values())")
    given = as_differentiable_values("values", values)
    shape = self.values().shape
    if given.shape != shape:
        raise ShapeError(
            f"values must be a number or have the shape of S.values(), {tuple(shape)}, but got "
            f"{tuple(given.shape)}"
        )
    if given.device != storage.device:
        raise DeviceError(
            f"values are on {given.device}, but the sparse tensor is on {storage.device}; move them with "
            f"values.to({str(storage.device)!r})"
        )
    return sparse_of(storage.pattern, given.reshape(-1))


def __repr__(self: SparseTensor, *, tensor_contents: str | None = None) -> str:  # noqa: N807
    return to_text(self)


@skip_tracing  # compiled by itself, it would return a copy where torch returns the tensor itself
def to(self: SparseTensor, *args: Any, **kwargs: Any) -> Any:
    """Convert as ``torch.Tensor.to`` does, which rejects some arguments before sparse tensors see them."""
    try:
        return torch.Tensor.to(self, *args, **kwargs)
    except TypeError as error:
        translated = hooks.translate_error(error, torch.Tensor.to, (self, *args), kwargs)
        if translated is error:
            raise
    raise translated


class ForeignName:
    """A name of other libraries that is no attribute: reading it raises an error that says what to use.

    Unlike ``__getattr__``, it answers for the class, too.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.__doc__ = f"Not an attribute; {TENSOR_HINTS[name]}."

    def __get__(self, tensor: SparseTensor | None, owner: type[SparseTensor]) -> NoReturn:
        missing = f"{owner.__name__!r} object has no attribute {self.name!r}"
        raise unknown_name(missing, self.name, TENSOR_HINTS, tuple)


class Suggestions:
    """The ``__getattr__`` of sparse tensors: the error for a missing name suggests the nearest one.

    ``torch.compile`` reads no attributes of a tensor whose class has a ``__getattr__`` that is true. Ours is
    false, because all it does is to raise an error.
    """

    def __get__(self, tensor: SparseTensor, owner: type[SparseTensor]) -> Callable[[str], NoReturn]:
        return functools.partial(refuse_name, tensor)

    def __bool__(self) -> bool:
        return False


def refuse_name(tensor: SparseTensor, name: str) -> NoReturn:
    """Raise the error for a missing name, or again that of a property."""
    if any(name in vars(owner) for owner in type(tensor).__mro__):
        object.__getattribute__(tensor, name)
    missing = f"{type(tensor).__name__!r} object has no attribute {name!r}"
    if name.startswith("_"):
        raise AttributeError(missing, name=name, obj=tensor)
    raise missing_name(missing, name, HINTS["scorch"], lambda: dir(tensor))


_CALLABLE = (types.FunctionType, types.MethodDescriptorType, types.BuiltinFunctionType)


@functools.lru_cache(maxsize=4096)
def _kind_of_fixed(owner: type[SparseTensor], name: str) -> str:
    """Return what a public name of ours or of torch is that tensors cannot have a value for; or ''.

    Names that a subclass defines are its own.
    """
    home = (
        None if name.startswith("_") else next((each for each in owner.__mro__ if name in vars(each)), None)
    )
    found = vars(home)[name] if home in SparseTensor.__mro__ else None
    if isinstance(found, _CALLABLE):
        return "method"
    return "read-only attribute" if isinstance(found, property) and found.fset is None else ""


def set_attribute(self: SparseTensor, name: str, value: Any) -> None:
    """Assign as Python does, but not to methods, which would be lost, nor to read-only attributes.

    Scorch itself writes to the ``__dict__`` of a tensor where tensors are made, which does not come here.
    """
    kind = "" if torch.compiler.is_compiling() else _kind_of_fixed(type(self), name)
    if kind:
        hint = ASSIGNMENT_HINTS.get(name, "use another name" if kind == "method" else "")
        raise AssignmentError(
            f"cannot assign to S.{name}, a {kind} of sparse tensors{'; ' if hint else ''}{hint}"
        )
    object.__setattr__(self, name, value)


def list_names(self: SparseTensor) -> list[str]:
    """List the attributes, without our own fields and the names that only raise an error.

    Only torch gets the names of arrays, since ``torch.export`` captures the attributes that it finds here.
    """
    fields = SparseTensor.__annotations__.keys() - vars(torch.Tensor).keys()
    arrays = () if is_called_from("torch", 1) else ALL_NAMES
    names = set(object.__dir__(self)).difference(fields, arrays)
    return [name for name in names if name not in TENSOR_HINTS or hasattr(self, name)]


for _method in (
    to_torch, recorded(torch_layouts.to_scipy), eliminate_zeros, setdiag, with_values, graphs.coo, graphs.csr,
    graphs.csc, graphs.sparse_sizes, graphs.sparse_size, graphs.to_edge_index, __repr__,
):  # fmt: skip
    _method.__qualname__ = f"SparseTensor.{_method.__name__}"
    setattr(SparseTensor, _method.__name__, _method)
for _name, _function in (
    ("to_networkx", recorded(graphs.to_networkx)), ("_repr_html_", to_html), ("to", to),
    ("__dir__", list_names), ("__getattr__", Suggestions()), ("__setattr__", set_attribute),
):  # fmt: skip
    setattr(SparseTensor, _name, _function)
for _name in TENSOR_HINTS:
    if not hasattr(SparseTensor, _name):
        setattr(SparseTensor, _name, ForeignName(_name))

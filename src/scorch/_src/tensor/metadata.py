"""Copies, other dtypes, and attributes of a sparse tensor.

A copy shares the pattern, which never changes, and has values of its own. Functions that need the memory of a
dense tensor (``numpy``, ``data_ptr`` ...) are refused; left to torch, some would crash the process.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import forward_ad

from scorch._src.backends.base import is_served, run_among_others, served_in_words
from scorch._src.compiler.typing import type_of_dtype
from scorch._src.devices import HOST
from scorch._src.grad_state import is_called_from
from scorch._src.name_hints import suggests_keywords
from scorch._src.storage.budget import check_budget
from scorch._src.storage.storage import Pattern, Storage
from scorch._src.tensor.layer_weight import computed_weight_error, layer_of
from scorch._src.tensor.registry import implements
from scorch._src.tensor.sparse_tensor import SparseTensor, with_values
from scorch._src.tensor.transforms.gradcheck import Perturbed
from scorch._src.torch_internals import (
    FAKE_TENSOR_MAKER,
    SUBCLASS_KEY,
    DisableTorchFunctionSubclass,
    current_autograd_node,
    has_compatible_shallow_copy_type,
)
from scorch.errors import CallError, DeviceError, OperandError, ScorchError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

aten = torch.ops.aten
LEAF_NODE = "torch::autograd::AccumulateGrad"  # which adds to the gradient of a leaf
MAX_FRAMES_OF_DTENSOR = 16  # between a call of a DTensor and that of its local tensor


# copies ----------------------------------------------------------------------------------------------


@implements(aten.detach, aten.alias, aten.lift_fresh)
def detach(self: SparseTensor) -> SparseTensor:
    """Return the same tensor without its graph; it shares all arrays."""
    if self.is_inside_dtensor:
        _refuse_parameter_of_dtensor()
    detached = SparseTensor(self.storage)
    if self.copied_by is not None:
        detached.copied_by = self.copied_by
    return detached


def _refuse_parameter_of_dtensor() -> None:
    """Refuse ``nn.Parameter(D)``, whose products have dense gradients; only leaves of ours sample them."""
    frame: Any = sys._getframe(2)
    for _ in range(MAX_FRAMES_OF_DTENSOR):
        if frame is None:
            return
        is_parameter = frame.f_globals.get("__name__") == torch.nn.Parameter.__module__
        if is_parameter and not isinstance(frame.f_locals.get("data"), SparseTensor):
            raise UnsupportedError(
                "an nn.Parameter of a DTensor with a sparse local tensor would get a dense gradient. Make "
                "the local tensor the parameter, weight = nn.Parameter(S), and wrap it where it is used, "
                "DTensor.from_local(weight, mesh, placements): then the gradient of weight is sparse"
            )
        frame = frame.f_back


@implements(aten.clone)
def clone(self: SparseTensor, *, memory_format: torch.memory_format | None = None) -> SparseTensor:
    """Copy the values, and share the pattern."""
    values = self.storage.values
    return with_values(self, run_among_others(values, values.clone))


@implements(aten.new_empty_strided)
def new_empty_strided(
    self: SparseTensor,
    size: Sequence[int],
    stride: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> torch.Tensor:
    """Create a dense tensor; for the gradient of a leaf, which torch copies then, a sparse one.

    torch copies a gradient that something else holds, too: a hook, a checkpoint, a graph, its caller.
    """
    node = current_autograd_node()
    if node is not None and node.name() == LEAF_NODE and tuple(size) == tuple(self.shape):
        return with_values(self, torch.empty_like(self.storage.values))
    dtype, device = dtype or self.dtype, device or self.device
    return torch.empty_strided(size, stride, dtype=dtype, device=device, pin_memory=pin_memory)


@implements(aten._to_copy)
def to_copy(
    self: SparseTensor,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    """Copy to another dtype or device: the operator behind ``.to``, ``.double()``, ``.cuda()`` and so on."""
    is_formula = forward_ad._current_level >= 0 or current_autograd_node() is not None
    if device is not None and device.type == "meta" and is_formula:
        # torch's formulas do this for the shape and dtype of a product with zeros
        return torch.empty(tuple(self.shape), dtype=dtype or self.dtype, device="meta")
    if device is not None and not is_served(device):
        raise DeviceError(
            f"cannot create a sparse tensor on device {device}, because Scorch supports only the "
            f"devices {served_in_words()}; S.to_torch().to('{device}') returns a PyTorch sparse tensor there"
        )
    values = self.storage.values
    if dtype is not None:
        type_of_dtype(dtype)
    options = {"device": device, "dtype": dtype, "non_blocking": non_blocking, "copy": True}
    copied = run_among_others(values, values.to, **options)
    if copied.device == values.device:
        return with_values(self, copied)
    return SparseTensor(Storage(self.storage.pattern.to(copied.device, non_blocking), copied))


@implements(torch.Tensor.to_dense, differentiable=True)
def to_dense(
    self: SparseTensor, dtype: torch.dtype | None = None, *, masked_grad: bool | None = None
) -> torch.Tensor:
    return SparseTensor.to_dense(self, dtype, masked_grad=masked_grad)


@implements(torch.is_same_size, differentiable=True)
@implements(aten.is_same_size)
def is_same_size(self: torch.Tensor, other: torch.Tensor) -> bool:
    return tuple(self.shape) == tuple(other.shape)


@implements(torch.Tensor.is_sparse.__get__, differentiable=True)  # type: ignore[attr-defined]
def is_sparse(self: SparseTensor) -> bool:
    """Return True, except to graph capture, which handles a strided tensor without memory."""
    return not is_called_from(FAKE_TENSOR_MAKER, 2)


@implements(torch.Tensor.data.__get__, differentiable=True)  # type: ignore[attr-defined]
def data(self: SparseTensor) -> SparseTensor:
    """Return the same tensor without its gradients; to gradcheck, one whose elements can be written."""
    if is_called_from("torch.autograd.gradcheck", 2):
        return Perturbed(self.storage)
    return SparseTensor(self.storage)


@implements(torch.positive, torch.Tensor.positive, torch.Tensor.__pos__, differentiable=True)
def positive(input: SparseTensor) -> SparseTensor:
    """Return the tensor itself, as torch does."""
    if input.dtype == torch.bool:
        raise CallError("The `+` operator, on a bool tensor is not supported.")
    return input


# what a sparse tensor refuses ------------------------------------------------------------------------


def _refuse(error: type[ScorchError], message: str, *functions: Any, differentiable: bool = True) -> None:
    """Register a handler that raises ``error``."""

    def handler(*_: Any, **__: Any) -> Any:
        raise error(message)

    implements(*functions, differentiable=differentiable)(handler)


NO_DLPACK = "DLPack does not support sparse tensors; pass .values() and .levels, or .to_dense()"
_refuse(OperandError, NO_DLPACK, torch.Tensor.__dlpack__)
_refuse(
    OperandError,
    "a sparse tensor cannot be converted to a NumPy array; use .to_scipy(), or .to_dense().numpy(). To "
    "compute with it, make the other operand a tensor: torch.from_numpy(array), scorch.from_scipy(matrix)",
    torch.Tensor.numpy,
    torch.Tensor.__array__,
)
_refuse(
    OperandError,
    "a sparse tensor has several arrays; use one of them: .values().data_ptr()",
    torch.Tensor.data_ptr,
    getattr(torch.Tensor, "const_data_ptr", None),  # new in torch 2.13
)
_refuse(
    UnsupportedError,
    "a sparse tensor cannot be resized in place; create a new one: scorch.sparse_coo_tensor(S.indices(), "
    "S.values(), size)",
    torch.Tensor.sparse_resize_,
    torch.Tensor.sparse_resize_and_clear_,
)
NO_SET = "set_ is not supported for sparse tensors, which have several arrays; use copy_, or pass .to_dense()"
_refuse(
    UnsupportedError,
    NO_SET,
    aten.set_,
    differentiable=False,
)


@implements(has_compatible_shallow_copy_type, differentiable=True)
def is_assignable(self: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether ``self.data = other`` is possible; ``torch.nn.Module.to`` asks, and makes a new parameter."""
    return isinstance(self, SparseTensor) and isinstance(other, SparseTensor)


def _check_data(self: torch.Tensor, other: torch.Tensor) -> None:
    if isinstance(other, SparseTensor) and not isinstance(self, SparseTensor):
        raise UnsupportedError(
            "x.data = S: the data of a dense tensor cannot become sparse; assign a new tensor or parameter, "
            "as in layer.weight = torch.nn.Parameter(S), or use x.copy_(S)"
        )


def _check_source(*tensors: Any) -> None:
    if any(isinstance(value, SparseTensor) for value in tensors):
        raise UnsupportedError(NO_SET)


_library = torch.library.Library("aten", "IMPL")


def _check_memory(operator: Any, check: Callable[..., None]) -> None:
    """Check the subclasses that reach an operator which takes their memory without calling them.

    torch looks at the key of subclasses first, and elsewhere does nothing but to go on to the next one.
    """

    def run(keys: Any, *args: Any) -> Any:
        check(*args)
        return operator.redispatch(keys.remove(SUBCLASS_KEY), *args)

    _library.impl(operator, run, SUBCLASS_KEY.name, with_keyset=True)


_check_memory(aten._has_compatible_shallow_copy_type.default, _check_data)  # of ``self.data = other``
_check_memory(aten.set_.source_Tensor_storage_offset, _check_source)


@implements(torch.Tensor.tolist, differentiable=True)
def tolist(self: SparseTensor) -> Any:
    """Return all elements as nested lists, zeros included."""
    bytes_of_number = self.storage.values.element_size() + 32  # one of Python and a reference to it
    size = self.numel() * bytes_of_number
    check_budget(size, HOST, f"a list of all elements of {tuple(self.shape)}", "use .values().tolist()")
    return self.to_dense().tolist()


@implements(torch.Tensor.data.__set__, differentiable=True)  # type: ignore[attr-defined]
def set_data(self: SparseTensor, other: torch.Tensor) -> None:
    """Replace the storage of a tensor, ``S.data = other``, and leave its gradient alone."""
    if isinstance(self, SparseTensor) and layer_of(self) is not None:
        if other.shape != self.shape or other.dtype != self.dtype:
            raise computed_weight_error("setting .data to another shape or dtype")
        self.data.copy_(other)
        return
    if not isinstance(self, SparseTensor) or not isinstance(other, SparseTensor):
        kinds = f"{type(self).__name__}.data = {type(other).__name__}"
        raise UnsupportedError(f"{kinds}: the data of a sparse tensor is sparse; use S.copy_(other)")
    with DisableTorchFunctionSubclass():
        torch.Tensor.data.__set__(self, other)  # type: ignore[attr-defined]
    self.__dict__["storage"] = other.storage


@implements(torch.Tensor.resize_, torch.Tensor.resize_as_, differentiable=True)
def resize_(self: torch.Tensor, *size: Any, **_: Any) -> torch.Tensor:
    """Refuse to change a size; a dense tensor may take the size of a sparse one."""
    requested = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
    wanted = tuple(requested.shape) if isinstance(requested, torch.Tensor) else tuple(requested)
    if not isinstance(self, SparseTensor):
        return self.resize_(wanted)
    if wanted != tuple(self.shape):
        raise UnsupportedError(
            f"a sparse tensor of shape {tuple(self.shape)} cannot be resized to {wanted} in place; use a "
            "slice or torch.nn.functional.pad"
        )
    return self


@implements(torch.Tensor.share_memory_, differentiable=True)
def share_memory_(self: SparseTensor) -> SparseTensor:
    """Move every array to shared memory, for other processes."""
    for array in (*self.storage.pattern.arrays, self.storage.values):
        array.share_memory_()
    return self


@implements(torch.Tensor.is_shared, differentiable=True)
def is_shared(self: SparseTensor) -> bool:
    return bool(self.storage.values.is_shared())


@implements(aten.is_pinned)
def is_pinned(self: SparseTensor, device: torch.device | None = None) -> bool:
    return bool(self.storage.values.is_pinned())


@implements(aten._pin_memory)
def pin_memory(self: SparseTensor, device: torch.device | None = None) -> SparseTensor:
    """Return the same tensor with all its arrays in pinned memory, from which a GPU copies fast."""
    pattern = self.storage.pattern
    pos, crd = (
        tuple([None if array is None else array.pin_memory() for array in arrays])
        for arrays in (pattern.pos, pattern.crd)
    )
    pinned = Pattern(pattern.format, pattern.shape, pos, crd, pattern.counts)
    return SparseTensor(Storage(pinned, self.storage.values.pin_memory()))


@implements(aten.record_stream)
def record_stream(self: SparseTensor, stream: torch.Stream) -> None:
    """Keep the memory of all arrays, also of converted ones, until ``stream`` has done what it is given."""
    for array in (self.storage.values, *self.storage.pattern.cached_arrays()):
        array.record_stream(stream)


@suggests_keywords
def to_dlpack(tensor: torch.Tensor) -> Any:
    """Export a dense tensor as a DLPack capsule, like ``torch.to_dlpack``.

    Args:
        tensor: a dense tensor.

    Returns:
        A DLPack capsule.

    Raises:
        OperandError: the tensor is sparse; export its arrays, such as ``S.values()``.

    Example:

        >>> import torch, scorch
        >>> torch.from_dlpack(scorch.to_dlpack(torch.ones(2)))
        tensor([1., 1.])
    """
    if isinstance(tensor, SparseTensor):
        raise OperandError(NO_DLPACK)
    return torch.to_dlpack(tensor)

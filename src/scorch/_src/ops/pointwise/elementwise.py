"""Every elementwise PyTorch function, by one rule.

Such a function f is computed by torch itself on lists of stored values. Its result at implicit zeros decides
the rest:

    f(0) = 0                    the result has the pattern of the operand, or of all operands together
    f(0, d) = 0 for every d     mul, div by d and so on: the pattern of the sparse operand; for any
                                other function, if it is zero for the operand d at hand
    anything else               the result is dense: f of the dense operands and zeros, then f at the entries

A result that is dense where no operand was is checked against the dense budget before it is made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from scorch._src.backends.base import routines_for, run_among_others
from scorch._src.devices import HOST, shares_memory
from scorch._src.grad_state import are_patterns_fixed
from scorch._src.storage.budget import check_budget
from scorch._src.storage.coordinates import coordinates_of
from scorch._src.storage.strides import restrided
from scorch._src.tensor.broadcast import broadcast_shape, common_keys, expanded, values_at
from scorch._src.tensor.create.check import refuse_freed
from scorch._src.tensor.entries import Entries, common, entries_of, format_for, from_entries, united
from scorch._src.tensor.registry import implements
from scorch._src.tensor.sparse_tensor import SparseTensor, with_values
from scorch._src.torch_internals import is_functorch_wrapped_tensor, peek_interpreter_stack

aten = torch.ops.aten
Position = int | str  # of an argument, or its name

# Arguments whose zeros make the result zero, whatever the others are (except infinities and NaN).
ANNIHILATORS: dict[Any, tuple[int, ...]] = {
    aten.mul: (0, 1),
    aten.logical_and: (0, 1),
    aten.bitwise_and: (0, 1),
    aten.bitwise_left_shift: (0,),
    aten.bitwise_right_shift: (0,),
    aten.copysign: (0,),
    aten.xlogy: (0,),
    aten.special_xlog1py: (0,),
    aten.ldexp: (0,),
    aten._prelu_kernel: (0,),
    aten.polar: (0,),
}

# As the first argument of these, but 0 / 0 is not zero.
DIVISIONS = (aten.div, aten.floor_divide, aten.fmod, aten.remainder)

# Of two tensors on one pattern these are on it too.
LINEAR = (aten.add.Tensor, aten.sub.Tensor)

# Elementwise too, though torch, or some release of it, does not tag them.
UNTAGGED_POINTWISE = (
    aten.leaky_relu,
    aten.hardswish,
    aten._prelu_kernel,
    aten.rsub,
    aten.masked_fill,
    aten.floor_divide,
    aten.complex,
    aten.polar,
    aten.leaky_relu_backward,
    aten.elu_backward,
    aten.hardtanh_backward,
    aten.hardswish_backward,
    aten.softplus_backward,
    aten.softshrink_backward,
)


def is_elementwise(func: Any) -> bool:
    """Whether ``func`` has one result, computed element by element."""
    is_one = len(func._schema.returns) == 1
    return is_one and (torch.Tag.pointwise in func.tags or func.overloadpacket in UNTAGGED_POINTWISE)


@implements(torch.Tensor.__rdiv__, torch.Tensor.__rtruediv__)
def rdiv(self: torch.Tensor, other: Any) -> Any:
    """Compute ``other / self``; torch multiplies by the reciprocal, infinite at implicit zeros."""
    if not isinstance(other, torch.Tensor):
        wide = (
            torch.float64 if isinstance(other, float) else None
        )  # all digits; it does not widen, as a number
        other = torch.as_tensor(other, dtype=wide, device=HOST)
    return torch.div(other, self)


def elementwise(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Run the elementwise function ``func``, where some of ``args`` are sparse."""
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
    arrays = [t.storage.values if isinstance(t, SparseTensor) else t for t in tensors]
    return run_among_others(max(arrays, key=torch.numel), _elementwise, func, args, kwargs)


def _elementwise(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    if func in LINEAR and not kwargs:
        left, right = args
        is_one = isinstance(left, SparseTensor) and isinstance(right, SparseTensor)
        if is_one and left.storage.pattern is right.storage.pattern:
            return with_values(left, func(left.storage.values, right.storage.values))
    call = _Call(func, args, kwargs)
    if any(not tensor.numel() for tensor in call.tensors.values()):
        return call.run_empty()
    is_division = func.overloadpacket in DIVISIONS and isinstance(args[1], SparseTensor)
    if call.is_unary and not is_division:
        return call.run_unary()
    return call.run_general()


def _zeros(shape: tuple[int, ...], like: SparseTensor) -> torch.Tensor:
    return torch.zeros(shape, dtype=like.dtype, device=like.storage.device)


class _Call:
    """One call: its tensors, and the function with others in their place."""

    def __init__(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        self.func = func
        self.args = list(args)
        self.kwargs = kwargs
        arguments: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
        self.tensors = {p: value for p, value in arguments.items() if isinstance(value, torch.Tensor)}
        self.sparse = {p: t for p, t in self.tensors.items() if isinstance(t, SparseTensor)}
        self.shape = broadcast_shape(*(tuple(tensor.shape) for tensor in self.tensors.values()))
        dense = {p: t for p, t in self.tensors.items() if p not in self.sparse and t.dim() > 0}
        self.dense = {p: undo_expand(tensor) for p, tensor in dense.items()}
        self.first = next(iter(self.sparse.values()))

    @property
    def is_unary(self) -> bool:
        """Whether all tensors with elements share one pattern."""
        pattern = self.first.storage.pattern
        return not self.dense and all(t.storage.pattern is pattern for t in self.sparse.values())

    def call_with(self, replaced: dict[Position, torch.Tensor]) -> torch.Tensor:
        """Call the function with other tensors."""
        others: dict[Position, torch.Tensor] = {**self.dense, **replaced}
        args = [others.get(position, value) for position, value in enumerate(self.args)]
        kwargs = {name: others.get(name, value) for name, value in self.kwargs.items()}
        result: torch.Tensor = self.func(*args, **kwargs)
        return result

    def background(self) -> torch.Tensor:
        """Return the function's value at implicit zeros; with dense operands a tensor of their shape."""
        return self.call_with(self._zeros())

    def _zeros(self) -> dict[Position, torch.Tensor]:
        return {p: _zeros((1,) * max(tensor.dim(), 1), tensor) for p, tensor in self.sparse.items()}

    def is_sparse(self, fill: torch.Tensor) -> bool:
        """Whether implicit zeros stay implicit where ``fill`` is the background.

        Where torch differentiates, it must be zero whatever the numbers of dense operands are: those that are
        zero by chance have gradients too. A scalar without gradients is the number that it is.
        """
        if not _is_zero(fill):
            return False
        dense = {p: self.dense.get(p, t) for p, t in self.tensors.items() if p not in self.sparse}
        if not are_patterns_fixed():
            return True
        is_by_autograd = peek_interpreter_stack() is None and forward_ad._current_level < 0
        others = {
            p: tensor * 1.25 + 0.75
            for p, tensor in dense.items()
            if tensor.is_floating_point() and (tensor.dim() or tensor.requires_grad or not is_by_autograd)
        }
        if not others:
            return True
        return _is_zero(self.call_with({**others, **self._zeros()}))

    def run_empty(self) -> torch.Tensor:
        """Return a result without elements; the function determines its dtype, and must not divide by 0."""
        zeros = {p: _zeros((), tensor).expand(tensor.shape) for p, tensor in self.sparse.items()}
        result = self.call_with(zeros)
        shape, no_keys = tuple(result.shape), torch.zeros(0, dtype=torch.int64, device=result.device)
        return from_entries(Entries(no_keys, result.reshape(-1), shape), format_for(self.first, shape))

    def run_unary(self) -> torch.Tensor:
        values = self.call_with({position: tensor.storage.values for position, tensor in self.sparse.items()})
        fill = self.background()
        if self.is_sparse(fill):
            return with_values(self.first, values)
        return self.as_dense(fill, entries_of(with_values(self.first, values)))

    def run_general(self) -> torch.Tensor:
        shape = self.shape
        operands = {position: entries_of(tensor) for position, tensor in self.sparse.items()}
        annihilators = [position for position in self._annihilators() if position in operands]
        if len(annihilators) == 2:
            shared_keys = common_keys(operands[annihilators[0]], operands[annihilators[1]], shape)
            if shared_keys is not None:
                return self.as_sparse_at(shared_keys, operands, annihilators[0])
        wide = {position: expanded(entries, shape) for position, entries in operands.items()}
        if annihilators:
            keys = common([wide[position] for position in annihilators])
            return self.as_sparse_at(keys, wide, annihilators[0])
        keys = united(list(wide.values()))
        if keys.numel() == math.prod(shape):  # and a division may have no zero to divide by
            return self.as_sparse_at(keys, wide, next(iter(wide)))
        fill = self.background()
        if self.is_sparse(fill):
            return self.as_sparse_at(keys, wide, next(iter(wide)))
        fill = fill.expand(shape) if fill.dim() <= len(shape) else fill
        return self.as_dense(fill, self.evaluate_at(keys, wide))

    def _annihilators(self) -> tuple[int, ...]:
        packet = self.func.overloadpacket
        if packet in DIVISIONS:
            divisor = self.dense.get(1, self.args[1])
            return (0,) if not isinstance(divisor, SparseTensor) and divides_zero(divisor) else ()
        zeroing = ANNIHILATORS.get(packet, ())
        stored = (tensor.storage.values for tensor in self.sparse.values())
        if zeroing and not all(is_finite(tensor) for tensor in (*self.dense.values(), *stored)):
            return ()  # 0 * inf is NaN
        return zeroing

    def evaluate_at(self, keys: torch.Tensor, wide: dict[Position, Entries]) -> Entries:
        """Evaluate the function at some keys."""
        shape = self.shape
        crd = coordinates_of(keys, shape)
        values = {position: values_at(entries, keys, crd, shape) for position, entries in wide.items()}
        for position, tensor in self.dense.items():
            values[position] = tensor.expand(shape)[tuple(crd)]
        return Entries(keys, self.call_with(values), shape)

    def as_sparse_at(self, keys: torch.Tensor, wide: dict[Position, Entries], like: Position) -> SparseTensor:
        """Return a sparse result at ``keys``, in the format of the operand ``like``."""
        return from_entries(self.evaluate_at(keys, wide), format_for(self.sparse[like], self.shape))

    def as_dense(self, fill: torch.Tensor, entries: Entries) -> torch.Tensor:
        """Return a dense result: ``fill`` everywhere but at ``entries``."""
        operand_bytes = max((t.numel() * t.element_size() for t in self.dense.values()), default=0)
        name = str(self.func.overloadpacket).removeprefix("aten.")
        result = _fill_dense(name, entries, fill, operand_bytes)
        return restrided(result, self.func, self.args, self.kwargs)


def map_elements(
    name: str, tensor: SparseTensor, function: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Apply ``function``, called ``name``, to every element; dense where it is not zero at zero."""
    values = tensor.storage.values
    values = run_among_others(values, function, values)
    fill = function(tensor.storage.values.new_zeros(1))
    result = with_values(tensor, values)
    return result if _is_zero(fill) else _fill_dense(name, entries_of(result), fill, 0)


def _fill_dense(name: str, entries: Entries, fill: torch.Tensor, held_bytes: int) -> torch.Tensor:
    """Return a dense tensor, refused beyond the budget if larger than the operands' ``held_bytes``."""
    size = math.prod(entries.shape) * entries.values.element_size()
    if size > held_bytes:
        cure, reason = "apply it to .values() for the stored elements alone", "is not zero-preserving"
        if entries.values.dtype == torch.bool:
            cure += ", count zeros with S.numel() - S.count_nonzero()"
        what = f"{name} of a tensor of shape {entries.shape}"
        check_budget(size, fill.device, what, cure, f"{name} {reason}, so its result is dense")
    result = fill.expand(entries.shape).to(entries.values.dtype).contiguous()
    result = result.clone() if shares_memory(result, fill) else result
    result.view(-1)[entries.keys] = entries.values
    return result


def is_finite(tensor: torch.Tensor) -> bool:
    """Whether no element is infinite or NaN; False too where their sum overflows."""
    if is_functorch_wrapped_tensor(tensor):
        return True  # inside torch.func values cannot be inspected
    refuse_freed(tensor)
    if tensor.dtype.is_complex:
        tensor = torch.view_as_real(tensor.detach().resolve_conj())
    return not tensor.dtype.is_floating_point or routines_for(tensor).are_finite([tensor.detach()])


def divides_zero(divisor: Any) -> bool:
    """Whether zero divided by each element is zero: none is zero or NaN."""
    numbers = divisor if isinstance(divisor, torch.Tensor) else torch.tensor(divisor, device=HOST)
    return bool(numbers.all()) and not bool(numbers.isnan().any())


def undo_expand(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view with size 1 where ``expand`` repeats one element: it broadcasts to the same tensor."""
    if isinstance(tensor, SparseTensor) or tensor.layout != torch.strided or 0 not in tensor.stride():
        return tensor
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if stride == 0 and size > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def _is_zero(fill: torch.Tensor) -> bool:
    return not bool(torch.count_nonzero(fill))

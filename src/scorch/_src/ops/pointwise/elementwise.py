"""Every function that torch applies to each element, by one rule.

Such a function f is computed by torch itself on lists of stored values. What it gives where nothing is
stored decides the rest:

    f(0) = 0                    the result has the pattern of the operand, or of all operands together
    f(0, d) = 0 for every d     mul, div by d and their like: the pattern of the sparse operand; for any
                                other function, if it is zero for the operand d at hand
    anything else               the result is dense: f of the dense operands and zeros, then f at the entries

A result that is dense where no operand was is checked against the dense budget before it is made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from scorch._src.devices import HOST, shares_memory
from scorch._src.grad_state import are_patterns_fixed
from scorch._src.storage.budget import check_budget
from scorch._src.storage.coordinates import coordinates_of
from scorch._src.tensor.broadcast import common_keys, expanded, values_at
from scorch._src.tensor.create.check import refuse_freed
from scorch._src.tensor.entries import Entries, common, entries_of, format_for, from_entries, united
from scorch._src.tensor.registry import implements
from scorch._src.tensor.sparse_tensor import SparseTensor, with_values
from scorch._src.torch_internals import is_functorch_wrapped_tensor

aten = torch.ops.aten

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


# Elementwise too, though torch, or some release of it, does not say so.
UNTAGGED = (
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
    """Whether ``func`` has one result, made of the elements of its operands one by one."""
    is_one = len(func._schema.returns) == 1
    return is_one and (torch.Tag.pointwise in func.tags or func.overloadpacket in UNTAGGED)


@implements(torch.Tensor.__rdiv__, torch.Tensor.__rtruediv__)
def rdiv(self: torch.Tensor, other: Any) -> Any:
    """``other / self``; torch multiplies by the reciprocal, which is infinite where nothing is stored."""
    wide = torch.float64 if isinstance(other, float) else None  # all digits; as a number it does not widen
    return torch.div(
        other if isinstance(other, torch.Tensor) else torch.as_tensor(other, dtype=wide, device=HOST), self
    )


def elementwise(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """``func``, which torch applies to each element, where some of ``args`` are sparse."""
    if func in LINEAR and not kwargs:
        left, right = args
        is_one = isinstance(left, SparseTensor) and isinstance(right, SparseTensor)
        if is_one and left.storage.pattern is right.storage.pattern:
            return with_values(left, func(left.storage.values, right.storage.values))
    call = _Call(func, args, kwargs)
    if any(not tensor.numel() for tensor in call.tensors.values()):
        return call.empty()
    is_division = func.overloadpacket in DIVISIONS and isinstance(args[1], SparseTensor)
    if call.is_unary and not is_division:
        return call.unary()
    return call.general()


class _Call:
    """One call: its tensors, and the function with others in their place."""

    def __init__(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        self.func = func
        self.args = list(args)
        self.kwargs = kwargs
        places: list[int | str] = [n for n, value in enumerate(args) if isinstance(value, torch.Tensor)]
        places += [name for name, value in kwargs.items() if isinstance(value, torch.Tensor)]
        self.tensors = {place: self._value(place) for place in places}
        self.sparse = {p: t for p, t in self.tensors.items() if isinstance(t, SparseTensor)}
        self.shape = tuple(torch.broadcast_shapes(*(tensor.shape for tensor in self.tensors.values())))
        dense = {p: t for p, t in self.tensors.items() if p not in self.sparse and t.dim() > 0}
        self.dense = {place: not_expanded(tensor) for place, tensor in dense.items()}
        self.first = next(iter(self.sparse.values()))

    def _value(self, place: int | str) -> Any:
        return self.args[place] if isinstance(place, int) else self.kwargs[place]

    @property
    def is_unary(self) -> bool:
        """Whether all tensors with elements have one pattern."""
        pattern = self.first.storage.pattern
        return not self.dense and all(t.storage.pattern is pattern for t in self.sparse.values())

    def apply(self, replaced: dict[int | str, torch.Tensor]) -> torch.Tensor:
        """The function with other tensors."""
        others: dict[int | str, torch.Tensor] = {**self.dense, **replaced}
        args = [others.get(place, value) for place, value in enumerate(self.args)]
        kwargs = {name: others.get(name, value) for name, value in self.kwargs.items()}
        found: torch.Tensor = self.func(*args, **kwargs)
        return found

    def background(self) -> torch.Tensor:
        """What the function gives where nothing is stored; with dense operands a tensor of their shape."""
        zeros = {
            p: torch.zeros((1,) * max(t.dim(), 1), dtype=t.dtype, device=t.storage.device)
            for p, t in self.sparse.items()
        }
        return self.apply(zeros)

    def is_sparse(self, fill: torch.Tensor) -> bool:
        """Whether nothing has to be stored where ``fill`` is, the background.

        Where torch differentiates, it must be zero whatever the numbers of dense operands are: those that are
        zero by chance have gradients too.
        """
        if not _is_zero(fill):
            return False
        given = {**{p: t for p, t in self.tensors.items() if p not in self.sparse}, **self.dense}
        others = {
            place: tensor * 1.25 + 0.75 for place, tensor in given.items() if tensor.is_floating_point()
        }
        if not others or not are_patterns_fixed():
            return True
        zeros = {
            p: torch.zeros((1,) * max(t.dim(), 1), dtype=t.dtype, device=t.storage.device)
            for p, t in self.sparse.items()
        }
        return _is_zero(self.apply({**others, **zeros}))

    def empty(self) -> torch.Tensor:
        """A result without elements; the function says its dtype, and must not meet a zero to divide by."""
        shells = {
            p: torch.zeros((), dtype=t.dtype, device=t.storage.device).expand(t.shape)
            for p, t in self.sparse.items()
        }
        found = self.apply(shells)
        shape = tuple(found.shape)
        none = Entries(torch.zeros(0, dtype=torch.int64, device=found.device), found.reshape(-1), shape)
        return from_entries(none, format_for(self.first, shape))

    def unary(self) -> torch.Tensor:
        values = self.apply({place: tensor.storage.values for place, tensor in self.sparse.items()})
        fill = self.background()
        if self.is_sparse(fill):
            return with_values(self.first, values)
        return self.filled(fill, entries_of(with_values(self.first, values)))

    def general(self) -> torch.Tensor:
        shape = self.shape
        given = {place: entries_of(tensor) for place, tensor in self.sparse.items()}
        zeroing = [place for place in self._annihilators() if place in given]
        if len(zeroing) == 2:
            meeting = common_keys(given[zeroing[0]], given[zeroing[1]], shape)
            if meeting is not None:
                return self.on(meeting, given, shape, zeroing[0])
        wide = {place: expanded(entries, shape) for place, entries in given.items()}
        if zeroing:
            keys = common([wide[place] for place in zeroing])
            return self.on(keys, wide, shape, zeroing[0])
        keys = united(list(wide.values()))
        if keys.numel() == math.prod(shape):  # and a division may have no zero to divide by
            return self.on(keys, wide, shape, next(iter(wide)))
        fill = self.background()
        if self.is_sparse(fill):
            return self.on(keys, wide, shape, next(iter(wide)))
        return self.filled(
            fill.expand(shape) if fill.dim() <= len(shape) else fill, self.at(keys, wide, shape)
        )

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

    def at(self, keys: torch.Tensor, wide: dict[int | str, Entries], shape: tuple[int, ...]) -> Entries:
        """The function at some places."""
        crd = coordinates_of(keys, shape)
        values = {place: values_at(entries, keys, crd, shape) for place, entries in wide.items()}
        for place, tensor in self.dense.items():
            values[place] = tensor.expand(shape)[tuple(crd)]
        return Entries(keys, self.apply(values), shape)

    def on(
        self, keys: torch.Tensor, wide: dict[int | str, Entries], shape: tuple[int, ...], place: int | str
    ) -> SparseTensor:
        """A sparse result at ``keys``, stored as the operand at ``place`` is."""
        return from_entries(self.at(keys, wide, shape), format_for(self.sparse[place], shape))

    def filled(self, fill: torch.Tensor, entries: Entries) -> torch.Tensor:
        """A dense result: ``fill`` everywhere but at ``entries``."""
        held = max((t.numel() * t.element_size() for t in self.dense.values()), default=0)
        return _filled(str(self.func.overloadpacket).removeprefix("aten."), entries, fill, held)


def mapped(name: str, tensor: SparseTensor, function: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """``function``, called ``name``, of every element; dense where it is not zero for zero."""
    values = function(tensor.storage.values)
    fill = function(tensor.storage.values.new_zeros(1))
    result = with_values(tensor, values)
    return result if _is_zero(fill) else _filled(name, entries_of(result), fill, 0)


def _filled(name: str, entries: Entries, fill: torch.Tensor, held: int) -> torch.Tensor:
    """A dense tensor, refused where it is beyond the budget and more than the ``held`` bytes of operands."""
    size = math.prod(entries.shape) * entries.values.element_size()
    if size > held:
        cure = f"{name} is not zero where nothing is stored, so its result is dense; apply it to .values() "
        cure += "(of S, S.numel() - S.count_nonzero() elements are zero)"
        check_budget(size, f"{name} of a tensor of shape {entries.shape}", cure)
    result = fill.expand(entries.shape).to(entries.values.dtype).contiguous()
    result = result.clone() if shares_memory(result, fill) else result
    result.view(-1)[entries.keys] = entries.values
    return result


def is_finite(tensor: torch.Tensor) -> bool:
    """Whether no element is infinite or NaN; False too where they are so large that their sum is."""
    if is_functorch_wrapped_tensor(tensor):
        return True  # inside of torch.func nothing can be asked of values
    refuse_freed(tensor)
    if tensor.dtype.is_complex:
        tensor = torch.view_as_real(tensor.detach().resolve_conj())
    return not tensor.dtype.is_floating_point or math.isfinite(float(tensor.detach().sum()))


def divides_zero(divisor: Any) -> bool:
    """Whether zero divided by each element is zero: none is zero or NaN."""
    numbers = divisor if isinstance(divisor, torch.Tensor) else torch.tensor(divisor, device=HOST)
    return bool(numbers.all()) and not bool(numbers.isnan().any())


def not_expanded(tensor: torch.Tensor) -> torch.Tensor:
    """A view with size 1 where ``expand`` repeats one element: it broadcasts to the same tensor."""
    if isinstance(tensor, SparseTensor) or tensor.layout != torch.strided or 0 not in tensor.stride():
        return tensor
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if stride == 0 and size > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def _is_zero(fill: torch.Tensor) -> bool:
    return not bool(torch.count_nonzero(fill))

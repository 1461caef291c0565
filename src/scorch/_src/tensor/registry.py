"""The registry: one entry for each PyTorch function that Scorch implements.

``ops`` fills it with ``@implements(torch.matmul, torch.Tensor.matmul)``, and everyone else reads it:
``SparseTensor`` for what users call (``__torch_function__``) and for what torch's own C++ calls
(``__torch_dispatch__``, by operators of ATen), autograd, ``scorch.compile`` and graph capture.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

Handler = TypeVar("Handler", bound=Callable[..., Any])
Rule = Callable[..., Any] | None


@dataclass(slots=True, eq=False)
class Entry:
    """How Scorch computes a PyTorch function, or an ATen operator."""

    run: Rule = None  # computes it
    is_differentiable: bool = False  # ``run`` keeps the result connected to what requires gradients
    # computes it where gradients are tracked, if torch's formula costs more than the stored entries
    run_differentiable: Rule = None
    only_moves_entries: bool = False  # ``run_differentiable`` does, whatever tracks their values
    is_metadata: bool = False  # answered by torch's own part of a sparse tensor
    checks_operands: bool = False  # ``run`` refuses operands without memory itself
    # with so many arguments, numbers after the first, it is the function of the stored values
    maps_values: int = 0
    routine: str = ""  # the routine (``backends.routines``) that computes it of stored values
    quick: Rule = None  # a builtin in place of ``repeat``
    # what its calls are cached by, and a rule of ``backends.repeated_calls``
    repeats: tuple[Any, int] | None = None
    # repeats the call of a sparse tensor and another that nothing tracks; None where there is more to do
    repeat: Rule = None
    record: Rule = None  # the rule of ``scorch.compile`` that makes it a statement
    fake: Rule = None  # in graphs: a function of dense tensors with its shapes
    stand_in: Rule = None  # in graphs: what gives what it gives, without samples
    backward_ignores_result: bool = False


TABLE: dict[Any, Entry] = {}
# builtins for sparse tensors that nothing tracks; they return None where there is more to do
QUICK: dict[Any, Callable[..., Any]] = {}
EMPTY_ENTRY = Entry()


def entry(function: Any) -> Entry:
    """Return the entry of a function, to write to; add it if there is none."""
    return TABLE.setdefault(function, Entry())


def look_up(function: Any) -> Entry:
    """Return the entry of a function, to read; an empty one if there is none."""
    return TABLE.get(function, EMPTY_ENTRY)


for _name in (
    "device",
    "dtype",
    "grad",
    "grad_fn",
    "is_cpu",
    "is_leaf",
    "layout",
    "name",
    "ndim",
    "requires_grad",
    "shape",
):
    entry(getattr(torch.Tensor, _name).__get__).is_metadata = True
for _name in ("dim", "is_complex", "is_floating_point", "ndimension", "numel", "size"):
    for _home in (torch, torch.Tensor):
        if hasattr(_home, _name):
            entry(getattr(_home, _name)).is_metadata = True
# short calls, whose operands only kernels read
for _name in ("add", "matmul", "mm", "mul", "mv", "sub", "sum"):
    for _function in (getattr(torch, _name), getattr(torch.Tensor, _name)):
        entry(_function).checks_operands = True
for _name in ("add", "matmul", "mul", "sub"):
    for _side in ("", "r"):
        entry(getattr(torch.Tensor, f"__{_side}{_name}__")).checks_operands = True


def implements(*functions: Any, differentiable: bool = False) -> Callable[[Handler], Handler]:
    """Register a handler for PyTorch functions, or ATen operators, that takes the same arguments.

    The result of a ``differentiable`` handler is connected to tensors that require gradients. Other handlers
    are skipped for those: torch decomposes the function and differentiates it by its own formulas.
    """

    def register(handler: Handler) -> Handler:
        for function in functions:
            registered = entry(function)
            assert registered.run in (None, handler), f"{function} has two handlers"
            assert not registered.is_metadata, f"{function} is answered by torch's part of the tensor"
            registered.run = handler
            registered.is_differentiable |= differentiable
        return handler

    return register


def implements_differentiable(
    *functions: Any, only_moves_entries: bool = False
) -> Callable[[Handler], Handler]:
    """Register a handler for functions of tensors that require gradients.

    It is for functions that torch differentiates by a formula whose cost does not follow the stored entries.
    """

    def register(handler: Handler) -> Handler:
        for function in functions:
            registered = entry(function)
            assert registered.run_differentiable in (None, handler), f"{function} has two handlers"
            registered.run_differentiable = handler
            registered.only_moves_entries = only_moves_entries
        return handler

    return register


@functools.lru_cache(maxsize=4096)
def place_of_index(func: Any) -> int | None:
    """Return the position of the argument ``index``, which is made dense: its zeros are indices too."""
    names = [argument.name for argument in func._schema.arguments if not argument.kwarg_only]
    return names.index("index") if "index" in names else None


@functools.lru_cache(maxsize=4096)
def is_in_place(func: Any) -> bool:
    """Whether an operator writes to its first argument."""
    first = func._schema.arguments[0] if func._schema.arguments else None
    return first is not None and first.alias_info is not None and bool(first.alias_info.is_write)


# how arguments are taken ------------------------------------------------------------------------------

VIEWS = ("T", "mT", "H", "mH", "real", "imag")  # attributes that are functions
ITSELF = {  # methods that are about the tensor and no functions of its values
    "backward",
    "detach",
    "detach_",
    "grad",  # torch.autograd.grad, whose inputs are those of the graph
    "register_hook",
    "register_post_accumulate_grad_hook",
    "requires_grad_",
    "retain_grad",
}


ASSIGNMENTS = {  # methods that write to the tensor, and are not called so
    "__setitem__",
    *(f"__i{name}__" for name in ("add", "and", "div", "floordiv", "lshift", "matmul", "mod", "mul", "or")),
    *(f"__i{name}__" for name in ("pow", "rshift", "sub", "truediv", "xor")),
}


@functools.lru_cache(maxsize=4096)
def own_arguments(func: Any) -> int:
    """Count the leading arguments that must not be copied: all (-1), the first, or none."""
    attribute = getattr(getattr(func, "__self__", None), "__name__", None)
    if type(func).__name__ == "method-wrapper":
        return 0 if attribute in VIEWS else -1
    name = getattr(func, "__name__", "")
    if name in ITSELF:
        return -1
    is_in_place = name.endswith("_") and not name.endswith("__")
    return 1 if is_in_place or name in ASSIGNMENTS else 0

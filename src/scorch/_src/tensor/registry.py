"""The one table of torch functions that sparse tensors answer.

``ops`` fills it with ``@implements(torch.matmul, torch.Tensor.matmul, ...)``; ``SparseTensor`` looks there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

Handler = TypeVar("Handler", bound=Callable[..., Any])

FUNCTIONS: dict[Any, Callable[..., Any]] = {}  # for __torch_function__: what users call
OPERATORS: dict[Any, Callable[..., Any]] = {}  # for __torch_dispatch__: what torch itself calls
WHEN_LEARNING: dict[Any, Callable[..., Any]] = {}  # for functions of tensors that require gradients
MOVES: set[Any] = set()  # handlers of the table before that only move entries, whatever tracks their values
LEARNING: set[Any] = set()  # functions of the first table whose handlers keep gradients
FACTS: set[Any] = {  # what tells facts of a tensor, which its shell knows
    *(
        getattr(torch.Tensor, name).__get__
        for name in ("device", "dtype", "grad_fn", "is_cpu", "is_leaf", "ndim", "requires_grad", "shape")
    ),
    *(
        getattr(torch.Tensor, name)
        for name in ("dim", "is_complex", "is_floating_point", "ndimension", "numel", "size")
    ),
}
DIRECT: set[Any] = {  # short calls whose operands only kernels read, which refuse those without memory
    *(getattr(torch, name) for name in ("add", "matmul", "mm", "mul", "mv", "sub")),
    *(getattr(torch.Tensor, name) for name in ("add", "matmul", "mm", "mul", "mv", "sub")),
    *(
        getattr(torch.Tensor, f"__{side}{name}__")
        for name in ("add", "matmul", "mul", "sub")
        for side in ("", "r")
    ),
}
FALLBACKS: list[Callable[[Any, Sequence[Any], dict[str, Any]], Any]] = []  # for operators in neither


def implements(*functions: Any, learns: bool = False) -> Callable[[Handler], Handler]:
    """Register a handler for torch functions; it is called with the same arguments.

    If it ``learns``, its result is connected to tensors that require gradients. The others are passed over
    then: torch takes the function apart and differentiates it by formulas of its own.
    """

    def register(handler: Handler) -> Handler:
        for function in functions:
            assert FUNCTIONS.get(function, handler) is handler, f"{function} has two handlers"
            assert function not in FACTS, f"{function} is answered by the tensor's shell"
            FUNCTIONS[function] = handler
            if learns:
                LEARNING.add(function)
        return handler

    return register


def implements_learning(*functions: Any) -> Callable[[Handler], Handler]:
    """Register a handler for torch functions of tensors that require gradients.

    It is for functions that torch differentiates by a formula whose cost does not follow the stored entries.
    """

    def register(handler: Handler) -> Handler:
        for function in functions:
            assert WHEN_LEARNING.get(function, handler) is handler, f"{function} has two handlers"
            WHEN_LEARNING[function] = handler
        return handler

    return register


def implements_operator(*operators: Any) -> Callable[[Handler], Handler]:
    """Register a handler for ATen operators, which reach it from C++."""

    def register(handler: Handler) -> Handler:
        for operator in operators:
            assert OPERATORS.get(operator, handler) is handler, f"{operator} has two handlers"
            OPERATORS[operator] = handler
        return handler

    return register


@functools.lru_cache(maxsize=4096)
def place_of_index(func: Any) -> int | None:
    """Where an operator takes a tensor of places, which is made dense: all of its zeros are places too."""
    names = [argument.name for argument in func._schema.arguments if not argument.kwarg_only]
    return names.index("index") if "index" in names else None


@functools.lru_cache(maxsize=4096)
def is_in_place(func: Any) -> bool:
    """Whether an operator writes to its first argument."""
    first = func._schema.arguments[0] if func._schema.arguments else None
    return first is not None and first.alias_info is not None and bool(first.alias_info.is_write)

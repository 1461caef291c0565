"""The one table of torch functions that sparse tensors answer.

``ops`` fills it with ``@implements(torch.matmul, torch.Tensor.matmul, ...)``; ``SparseTensor`` looks there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

Handler = TypeVar("Handler", bound=Callable[..., Any])

FUNCTIONS: dict[Any, Callable[..., Any]] = {}  # for __torch_function__: what users call
OPERATORS: dict[Any, Callable[..., Any]] = {}  # for __torch_dispatch__: what torch itself calls
FALLBACKS: list[Callable[[Any, Sequence[Any], dict[str, Any]], Any]] = []  # for operators in neither


def implements(*functions: Any) -> Callable[[Handler], Handler]:
    """Register a handler for torch functions; it is called with the same arguments."""

    def register(handler: Handler) -> Handler:
        for function in functions:
            assert FUNCTIONS.get(function, handler) is handler, f"{function} has two handlers"
            FUNCTIONS[function] = handler
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


@functools.cache
def place_of_index(func: Any) -> int | None:
    """Where an operator takes a tensor of places, which is made dense: all of its zeros are places too."""
    names = [argument.name for argument in func._schema.arguments if not argument.kwarg_only]
    return names.index("index") if "index" in names else None

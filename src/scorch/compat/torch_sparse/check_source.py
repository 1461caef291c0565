"""Refuse tensors of Scorch in functions that take torch_sparse's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from scorch._src.tensor.sparse_tensor import SparseTensor as Matrix
from scorch.errors import OperandError

Function = TypeVar("Function", bound=Callable[..., Any])


def takes_compat(function: Function) -> Function:
    """Let a function whose first argument, ``src``, is torch_sparse's tensor say how to create it."""

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if isinstance(args[0] if args else kwargs.get("src"), Matrix):
            raise OperandError(
                f"{function.__name__} takes a SparseTensor of scorch.compat.torch_sparse, but got a "
                "scorch.SparseTensor; convert it with scorch.compat.torch_sparse.SparseTensor.from_scorch(S)"
            )
        return function(*args, **kwargs)

    return checked  # type: ignore[return-value]

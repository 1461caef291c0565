"""torch's reductions with one argument more: ``scorch.amax(S, 1, masked=True)``, ``S.amax(1, masked=True)``.

Without ``masked`` they are torch's own. (``torch.amax`` itself refuses unknown arguments before it dispatches
to sparse tensors.)
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from scorch._src.name_hints import check_keywords, keywords_of, unknown_keyword
from scorch._src.ops.reduction.masked import OPERATIONS, PER_ENTRY
from scorch._src.ops.reduction.reduction_docs import document_maskable
from scorch._src.ops.torch_sparse import as_sparse
from scorch._src.tensor.flatten import LIVE, any_traced
from scorch._src.tensor.hooks import hooks
from scorch._src.tensor.sparse_tensor import SparseTensor

_NUMPY = {"axis": "dim", "keepdims": "keepdim", "input": "S"}  # torch takes these names too


def _refuse_unknown(name: str, given: Mapping[str, Any]) -> None:
    """Name the keyword argument that is wrong, where torch may name any that one of its overloads lacks."""
    documented = re.findall(r"\w+", getattr(torch, name).__doc__ or "")
    known = keywords_of({**OPERATIONS, **PER_ENTRY}[name])
    shown = dict.fromkeys(("masked", *(keyword for keyword in known if keyword != "S")))
    for keyword, value in given.items():
        if keyword not in (*shown, *_NUMPY, *documented):
            raise unknown_keyword(name, keyword, shown, value) from None


def _with_masked(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``plain``, a function or method of torch, with the argument ``masked``."""
    operation = {**OPERATIONS, **PER_ENTRY}[name]
    is_method = plain is getattr(torch.Tensor, name)

    @functools.wraps(plain)
    def call(*args: Any, masked: bool = False, **kwargs: Any) -> Any:
        if not masked:
            try:
                if is_method:  # bypasses torch
                    return SparseTensor.__torch_function__(plain, (), args, kwargs)
                return plain(*args, **kwargs)
            except TypeError:
                _refuse_unknown(name, kwargs)
                raise
        if not is_method and is_dynamo_compiling():  # dynamo calls methods without tracing them
            return getattr(args[0], name)(*args[1:], masked=True, **kwargs)
        options = {_NUMPY.get(key, key): value for key, value in kwargs.items()}
        check_keywords(name, options, keywords_of(operation))
        tensor = as_sparse(f"{name} with masked=True", args[0] if args else options.pop("S", None))
        if LIVE and any_traced((tensor,)):
            return hooks.record(operation, (tensor, *args[1:]), options)
        return operation(tensor, *args[1:], **options)

    document_maskable(call, name)
    call.__module__, call.__qualname__ = __name__, name
    return call


FUNCTIONS = {name: _with_masked(name, getattr(torch, name)) for name in (*OPERATIONS, *PER_ENTRY)}
globals().update(FUNCTIONS)
for _name in FUNCTIONS:
    setattr(SparseTensor, _name, _with_masked(_name, getattr(torch.Tensor, _name)))

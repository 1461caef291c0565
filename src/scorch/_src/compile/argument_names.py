"""Name the tensors of fused kernels as the user does, in explanations.

Steps have names that are numbered, such as ``A4``, so that a kernel depends only on the calls. Explanations
show the names of the function's arguments, and of the parameters of a module.
"""

from __future__ import annotations

import inspect
import re
import string
from collections.abc import Callable, Mapping
from typing import Any

import torch

from scorch._src.compile.lazy_tensor import LazyTensor
from scorch._src.compile.recorder import Recorder
from scorch._src.tensor.sparse_tensor import SparseTensor

RESULT = "R"
_DENSE_INDEX = re.compile(r"\be_\w+\b")
_TARGET = re.compile(r"^\s*(\w+)\[[^]=]*\] = ", re.MULTILINE)


def named_tensors(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, torch.Tensor]:
    """Return the tensors that a function is called with, and a module's own, by name."""
    module = getattr(function, "__self__", None)
    module = module if isinstance(module, torch.nn.Module) else None
    try:
        called = function if module is None else module.forward
        bound = inspect.signature(called).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        bound = {}
    named = dict(bound)
    if module is not None:
        named.update(dict(module.named_parameters()) | dict(module.named_buffers()))
    return {name: tensor for name, tensor in named.items() if isinstance(tensor, torch.Tensor)}


def user_names(recorder: Recorder, named: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Return the user's names of the tensors that recorded calls read, by their names in steps."""
    found = {source.number: find_name(source.result, named) for source in recorder.sources.values()}
    names = ((own, found.get(number)) for (number, _), own in recorder.node.names.items())
    return {own: name for own, name in names if name is not None}


def find_name(tensor: torch.Tensor, named: Mapping[str, torch.Tensor]) -> str | None:
    """Return the user's name of a tensor, of its transpose or of a row or column; None if it has none."""
    for name, value in named.items():
        if is_same_memory(tensor, value) or is_same_memory(_flatten(tensor), _flatten(value)):
            return name
        if value.dim() == 2 and value.layout == torch.strided and is_same_memory(tensor, value.T):
            return f"{name}.T"
    return None


def _flatten(tensor: torch.Tensor) -> torch.Tensor:
    """Return a dense vector without the dimensions of size 1 that broadcasting added."""
    is_vector = sum(size != 1 for size in tensor.shape) == 1 and tensor.layout == torch.strided
    is_plain = not isinstance(tensor, (SparseTensor, LazyTensor))
    return tensor.detach().squeeze() if is_vector and is_plain else tensor


def is_same_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are the same, or dense views of the same elements."""
    is_dense = a.layout == torch.strided and b.layout == torch.strided
    if a is b or a.shape != b.shape or not is_dense or isinstance(a, (SparseTensor, LazyTensor)):
        return a is b
    try:
        return bool(a.is_set_to(b))
    except RuntimeError:  # a wrapper of torch.func or of a compiler
        return False


def complete_names(header: str, names: Mapping[str, str]) -> dict[str, str]:
    """Return what replaces names in the statements of a kernel, including the name of a single result."""
    found = {own: name for own, name in names.items() if re.search(rf"\b{own}\b", header)}
    targets = _TARGET.findall(header)
    if len(targets) == 1 and RESULT not in found.values():
        found[targets[0]] = RESULT
    used = set(re.findall(r"\w+", header)) | set(found.values())
    letters = iter(letter for letter in string.ascii_lowercase[10:] if letter not in used)
    for index in dict.fromkeys(_DENSE_INDEX.findall(header)):
        found[index] = next(letters, index)
    return found


def rename(text: str, names: Mapping[str, str]) -> str:
    """Replace whole words in ``text``."""
    return re.sub(r"\w+", lambda word: names.get(word[0], word[0]), text)

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

RESULT = "R"
_DENSE_INDEX = re.compile(r"\be_\w+\b")
_TARGET = re.compile(r"^\s*(\w+)\[[^]=]*\] = ", re.MULTILINE)


def named_tensors(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[int, str]:
    """Return the names of the tensors that a function is called with, and of a module's own, by ``id``."""
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
    return {id(tensor): name for name, tensor in named.items() if isinstance(tensor, torch.Tensor)}


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

"""Hints for names that a tensor, module or function does not have: of other libraries, and misspellings.

The tables of ``hint_tables`` say what to use instead of the names that users of other libraries try. Other
names are compared with what is there, but only if somebody reads the message: ``hasattr`` does not.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import math
import sys
import types
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

import torch
from torch.compiler import is_dynamo_compiling

from scorch._src.hint_tables import KEYWORD_HINTS, OWN_KEYWORD_HINTS, SEARCHED
from scorch.errors import KeywordError, OperandError, UnknownNameError, counted, kind_of, nearest

Function = TypeVar("Function", bound=Callable[..., Any])

_COMPAT = "scorch.compat.torch_sparse"
_OPPOSITES = {"sparsity": "density", "density": "sparsity"}
_SEEDS = frozenset({"seed", "random_state", "rng"})
_OF_RESULT = {
    "dtype": ".to({value})",
    "device": ".to(device)",
    "requires_grad": ".requires_grad_()",
    "pin_memory": ".pin_memory()",
    "copy": ".clone()",
}
MAX_LISTED_KEYWORDS = 12
DTYPES = ("dtype", "weight_dtype")  # keyword arguments


def unknown_name(
    message: str, name: str, hints: Mapping[str, str], known: Callable[[], Iterable[str]]
) -> UnknownNameError:
    """Return the error for a name that is not there: with its hint, or the nearest of the ``known`` names."""
    hint = hints.get(name)
    error = UnknownNameError(message if hint is None else f"{message}; {hint}")
    error.name = name  # but not error.obj, in which Python 3.12 would look for a suggestion of its own
    if hint is None:
        error.suggest = lambda: nearest(name, known())
    return error


def missing_name(
    message: str, name: str, hints: Mapping[str, str], known: Callable[[], Iterable[str]]
) -> UnknownNameError:
    """Return the same error for a name of a module or tensor, which may be found in another place."""
    error = unknown_name(message, name, hints, known)
    if error.suggest is not None:
        error.suggest = lambda: _where_it_is(name) or nearest(name, known())
    return error


def _where_it_is(name: str) -> str:
    """Return in which module a public name is, or that it is one of tensors; '' where it is in none."""
    for place in SEARCHED:
        if _has(place, name):
            return f"it is {place}.{name}"
    value = getattr(sys.modules["scorch"].SparseTensor, name, None)
    if callable(value):
        return f"it is a method: S.{name}()"
    if value is not None:
        return f"it is an attribute of tensors: S.{name}"
    return f"it is {_COMPAT}.{name}" if _has(_COMPAT, name) else ""


def _has(place: str, name: str) -> bool:
    """Whether a module has a function or class of that name that is not one of another library."""
    value = getattr(importlib.import_module(place), name, None)
    home = getattr(value, "__module__", None) or ""
    return home.startswith(("scorch", "torch")) or isinstance(value, types.BuiltinFunctionType)


def unknown_keyword(function: str, keyword: str, known: Collection[str], value: Any = None) -> KeywordError:
    """Return the error for a keyword argument that is not among the ``known`` ones, with its hint.

    ``value`` is what was passed, which a hint may repeat.
    """
    message = f"{function}() got an unexpected keyword argument {keyword!r}"
    return KeywordError(f"{message}; {_hint_for_keyword(function, keyword, known, value)}")


def _hint_for_keyword(function: str, keyword: str, known: Collection[str], value: Any) -> str:
    if (function, keyword) in OWN_KEYWORD_HINTS:
        return OWN_KEYWORD_HINTS[function, keyword]
    other = next((name for name in KEYWORD_HINTS.get(keyword, ()) if name in known), None)
    if other is not None:
        return f"use {other}="
    if _OPPOSITES.get(keyword) in known:
        return f"use {_OPPOSITES[keyword]}=1 - {keyword}"
    question = nearest(keyword, known)
    if question:
        return question
    if keyword in _OF_RESULT:
        value = as_dtype(keyword, value) if keyword == "dtype" else value
        return f"apply it to the result, as in {function}(...){_OF_RESULT[keyword].format(value=value)}"
    if keyword in _SEEDS:
        passed = "pass generator=torch.Generator().manual_seed(0), or " if "generator" in known else ""
        return f"{passed}call torch.manual_seed(0) before"
    names = [name for name in known if not name.startswith("_")]
    if not names and keyword == "format":
        return f"convert first, as in S.to_format({value!r}).{function}()"
    if not names:
        return "it takes arguments by position only"
    if len(names) == 1:
        return f"its only keyword argument is {names[0]}"
    more = ", ..." if len(names) > MAX_LISTED_KEYWORDS else ""
    return f"its keyword arguments are {', '.join(names[:MAX_LISTED_KEYWORDS])}{more}"


def check_keywords(function: str, given: Mapping[str, Any], known: Collection[str]) -> None:
    """Refuse a keyword argument that is not among the ``known`` ones."""
    for keyword, value in given.items():
        if keyword not in known:
            raise unknown_keyword(function, keyword, known, value)


def hides_unknown(function: Function) -> Function:
    """Leave ``**_unknown``, which ``check_keywords`` refuses, out of the signature that people see."""
    signature = inspect.signature(function)
    shown = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    function.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    return function


def suggests_keywords(function: Function) -> Function:
    """Let a function or constructor say what to use instead of a keyword argument that it does not have.

    It also refuses what is no dtype, arguments by position that the function takes by name only, and a dense
    layer in place of the sizes of a sparse one. In graphs of ``torch.compile``, Python's own error is raised.
    Not for ``forward``: torch would not compile a layer by itself whose ``forward`` is wrapped by a function
    that wraps others, too.
    """
    known, most = keywords_of(function), _most_by_position(function)
    is_constructor = function.__name__ == "__init__"

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if not is_dynamo_compiling():
            name = type(args[0]).__name__ if is_constructor else function.__name__
            if is_constructor and len(args) > 1 and hasattr(args[1], "parameters"):
                _refuse_layer(args[0], args[1])
            if len(args) > most:
                raise _too_many(name, len(args) - is_constructor, most - is_constructor, known)
            check_keywords(name, kwargs, known)
            for keyword in DTYPES:
                as_dtype(keyword, kwargs.get(keyword))
        return function(*args, **kwargs)

    return checked  # type: ignore[return-value]


def _most_by_position(function: Callable[..., Any]) -> float:
    """Return how many arguments a function takes by position."""
    parameters = inspect.signature(function).parameters.values()
    if any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in parameters):
        return math.inf
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(each.kind in by_position for each in parameters)


def _too_many(name: str, given: int, most: float, known: Collection[str]) -> KeywordError:
    """Return the error for too many arguments by position, which lists those that have names only."""
    rest = list(known)[int(most) :]
    takes = f"{name}() takes {counted(int(most), 'positional argument')}, but got {given}"
    if list(known)[int(most) - 1 : int(most)] == ["example"]:
        return KeywordError(f"{takes}; pass several inputs of the model as one tuple")
    if not rest:
        return KeywordError(takes)
    more = ", ..." if len(rest) > MAX_LISTED_KEYWORDS else ""
    return KeywordError(
        f"{takes}; pass {', '.join(f'{each}=' for each in rest[:MAX_LISTED_KEYWORDS])}{more} by name"
    )


def _refuse_layer(layer: Any, given: Any) -> None:
    """Refuse a dense layer in place of the sizes of a sparse one, which another constructor takes."""
    if hasattr(layer, "from_dense"):
        name = type(layer).__name__
        raise OperandError(
            f"{name} expected the size of an input, but got {kind_of(given)}; to prune a layer, use "
            f"{name}.from_dense(layer, sparsity=0.9)"
        )


DTYPES_OF_TYPES = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}


def as_dtype(name: str, value: Any) -> torch.dtype | None:
    """Return a dtype, or that of a Python type, as torch does; the error for others says which is meant."""
    if value is None or isinstance(value, torch.dtype):
        return value
    if value in DTYPES_OF_TYPES:
        return DTYPES_OF_TYPES[value]
    word = value.__name__ if isinstance(value, type) else str(value).removeprefix("torch.")
    meant = getattr(torch, word, None)
    if isinstance(meant, torch.dtype):
        hint = f"; use {meant}"
    else:
        question = nearest(word, [key for key, each in vars(torch).items() if isinstance(each, torch.dtype)])
        hint = f"; {question}" if question else ", such as torch.float32"
    got = f"{value.__module__}.{word}" if isinstance(value, type) else repr(value)
    raise OperandError(f"{name} must be a torch.dtype, but got {got}{hint}")


def created_by_sparsify(constructor: Function) -> Function:
    """Let the constructor of a sparse layer, called with sizes like a dense one, say how to create it."""
    first = next(iter(keywords_of(constructor)))

    @functools.wraps(constructor)
    def checked(layer: Any, *args: Any, **kwargs: Any) -> Any:
        given = args[0] if args else kwargs.get(first)
        if given is None or isinstance(given, int):
            name = type(layer).__name__
            dense = f"torch.nn.{name.removeprefix('Sparse')}(...)"
            raise OperandError(
                f"{name} replaces a dense layer: use scorch.sparsify({dense}, sparsity=0.9, prefer='size'); "
                "without prefer, it is sparse only where that is faster"
            )
        return constructor(layer, *args, **kwargs)

    return checked  # type: ignore[return-value]


def keywords_of(function: Callable[..., Any]) -> dict[str, None]:
    """Return the names that a function takes as keyword arguments, in order."""
    by_keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(function).parameters.values()
    return {each.name: None for each in parameters if each.kind in by_keyword and each.name != "self"}

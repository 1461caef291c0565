"""Tensors whose numbers are computed when they are asked for: what recorded calls give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from scorch._src.compiler.plan import Step
from scorch._src.notation.nodes import Access
from scorch._src.storage.storage import Pattern
from scorch._src.tensor.registry import look_up
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import DisableTorchFunctionSubclass, make_wrapper_subclass, tree_map
from scorch.errors import InPlaceError, UnsupportedError

Call = tuple[Any, tuple[Any, ...], dict[str, Any]]  # a function and what it is given


@dataclass(eq=False)
class Source:
    """A tensor that was there before: the user's, or one that has been computed."""

    number: int
    tensor: torch.Tensor
    version: int | None

    def check(self) -> None:
        if self.version is not None and version_of(self.tensor) != self.version:
            raise InPlaceError(
                f"a tensor of shape {tuple(self.tensor.shape)} was changed in place inside of scorch.compile "
                "after it was used by a call that had not been computed yet; make a new tensor instead"
            )


@dataclass(frozen=True, eq=False)
class Recipe:
    """What is known of a recorded result before any number is: the same for all calls of the same kind.

    ``access`` stands for it in ``steps``. ``walked``: the number of the pattern whose entries are walked, -1
    for a product of dense tensors that waits for the sparse tensor it is multiplied by; ``is_sparse``: it has
    values at those entries. ``parents``: the numbers of the tensors that steps read, by the names that they
    have there; ``views`` say which dimensions are read. ``kind``: how its gradient is found: ``elementwise``,
    ``sum`` (its step is a sum of products), ``softmax`` and ``log_softmax`` (from the result), ``waits``.
    """

    access: Access
    shape: tuple[int, ...]
    dtype: torch.dtype
    is_sparse: bool
    walked: int
    steps: tuple[Step, ...]
    sizes: dict[str, int]
    parents: dict[str, int]
    views: dict[str, tuple[int, ...]]
    learns: bool
    requires_grad: bool
    kind: str


class Value:
    """A recorded result; ``call`` is what it is outside, with values and sources among the arguments."""

    __slots__ = ("__weakref__", "call", "number", "recipe", "recorder", "result")

    def __init__(self, recipe: Recipe, number: int, call: Call, recorder: Any) -> None:
        self.recipe = recipe
        self.number = number
        self.call = call
        self.recorder = recorder
        self.result: torch.Tensor | None = None

    @property
    def walked(self) -> Pattern | None:
        found: Pattern | None = None if self.recipe.walked < 0 else self.recorder.patterns[self.recipe.walked]
        return found

    def tensor(self) -> torch.Tensor:
        """The result, computed now if it has not been."""
        if self.result is None:
            self.recorder.compute([self])
        assert self.result is not None
        return self.result


class Later(torch.Tensor):
    """A tensor whose numbers are computed when they are asked for."""

    _value: Value

    @staticmethod
    def __new__(cls, value: Value) -> Later:
        recipe = value.recipe
        made: Later = make_wrapper_subclass(
            cls, recipe.shape, dtype=recipe.dtype, requires_grad=recipe.requires_grad
        )
        made._value = value
        if recipe.requires_grad:  # whoever takes it for a leaf would lose gradients
            with DisableTorchFunctionSubclass():
                made.register_hook(_refuse)
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_known_before(func):
            with DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        return func(*computed(args), **computed(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return func(*computed(args), **computed(kwargs or {}))

    def __getattr__(self, name: str) -> Any:
        if name == "_value":
            raise AttributeError(name)
        return getattr(self._value.tensor(), name)

    def __repr__(self, *, tensor_contents: str | None = None) -> str:  # type: ignore[override]
        return repr(self._value.tensor())

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._value.tensor().__reduce_ex__(protocol)


class SparseLater(Later):
    """A sparse tensor whose values are computed when they are asked for."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return SparseTensor

    @property
    def storage(self) -> Any:
        return self._value.tensor().storage


def _refuse(_: torch.Tensor) -> None:
    raise UnsupportedError(
        "inside of scorch.compile a result that was not yet computed was given to something that is no "
        "function of torch, such as an autograd.Function of your own, so its gradients are not known; "
        "call .clone() on it first"
    )


# what autograd knows of a tensor only when it is computed
_OF_THE_GRAPH = {getattr(torch.Tensor, name).__get__ for name in ("grad_fn", "is_leaf")}


def is_known_before(func: Any) -> bool:
    """Whether a function tells what is known of a tensor before anything is computed."""
    return look_up(func).is_metadata and func not in _OF_THE_GRAPH


def computed(tree: Any) -> Any:
    """``tree`` with every recorded result computed."""
    return mapped(_computed, tree)


def _computed(item: Any) -> Any:
    return item._value.tensor() if type(item) in LATER else item


def mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    """``function`` of all leaves of ``tree``; as ``tree_map``, but quicker for what most calls are given."""
    if tree is None or type(tree) in _LEAVES or isinstance(tree, torch.Tensor):
        return function(tree)
    if type(tree) in (tuple, list):
        return type(tree)([mapped(function, item) for item in tree])
    if type(tree) is dict:
        return {key: mapped(function, item) for key, item in tree.items()} if tree else tree
    return tree_map(function, tree)


LATER = (Later, SparseLater)
_LEAVES = {int, float, bool, str, slice, type(...), Value, Source}


def version_of(tensor: torch.Tensor) -> int | None:
    """How often the numbers of ``tensor`` have been changed."""
    if isinstance(tensor, SparseTensor):
        tensor = tensor.storage.values
    return None if tensor.is_inference() else tensor._version

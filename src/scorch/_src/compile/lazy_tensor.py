"""Lazy tensors: results of recorded calls, whose values are computed on first use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from scorch._src.compiler.plan import Step
from scorch._src.dataclass import dataclass
from scorch._src.devices import HOST
from scorch._src.notation.nodes import Access
from scorch._src.storage.storage import Pattern
from scorch._src.tensor.registry import look_up
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import DisableTorchFunctionSubclass, make_wrapper_subclass, tree_map
from scorch.errors import InPlaceError, UnsupportedError

Call = tuple[Any, tuple[Any, ...], dict[str, Any]]  # a function, its arguments and keyword arguments


@dataclass(eq=False)
class Source:
    """A tensor that exists before a call is recorded: the user's, or one that has been computed."""

    number: int
    result: torch.Tensor
    version: int | None
    pattern = None  # its own, if it is sparse

    @property
    def device(self) -> torch.device:
        return self.result.device

    def tensor(self) -> torch.Tensor:
        return self.result

    def check(self) -> None:
        if self.version is not None and version_of(self.result) != self.version:
            raise InPlaceError(
                f"a tensor of shape {tuple(self.result.shape)} was changed in place inside scorch.compile "
                "after it was used by a call that had not been computed yet; create a new tensor instead"
            )


@dataclass(frozen=True, eq=False)
class Recipe:
    """Describe a recorded result before any value is computed; shared by all calls of the same kind.

    ``access`` names the result in ``steps``. ``pattern_number``: the sparsity pattern whose entries are
    iterated, -1 for a product of dense tensors that is deferred until a sparse tensor multiplies it;
    ``is_sparse``: the result has values at those entries. ``parents``: the numbers of the tensors that steps
    read, by their names in steps; ``views``: the dimensions that are read. ``kind`` selects the gradient:
    ``elementwise``, ``sum`` (a sum of products), ``softmax`` and ``log_softmax`` (from the result),
    ``deferred``. Sparse layers have no steps (``layer_rules``); their kind is the last of what they compute:
    ``linear``, ``activation`` or ``residual``; of convolutions ``convolution``, ``normed``, ``added`` or
    ``activated``.
    """

    access: Access
    shape: tuple[int, ...]
    dtype: torch.dtype
    is_sparse: bool
    pattern_number: int
    steps: tuple[Step, ...]
    sizes: dict[str, int]
    parents: dict[str, int]
    views: dict[str, tuple[int, ...]]
    is_grad_enabled: bool
    requires_grad: bool
    kind: str

    @property
    def is_layer(self) -> bool:
        return not self.steps


class Value:
    """A recorded result; ``call`` is the eager call, with values and sources among its arguments.

    ``depth``: how many calls are nested in it whose results have not been computed, itself included.
    """

    __slots__ = ("__weakref__", "call", "depth", "number", "recipe", "recorder", "result")

    def __init__(self, recipe: Recipe, number: int, call: Call, recorder: Any) -> None:
        self.recipe = recipe
        self.number = number
        self.call = call
        self.recorder = recorder
        self.result: torch.Tensor | None = None
        parents = [recorder.items[number] for number in recipe.parents.values()]
        self.depth: int = 1 + max((item.depth for item in parents if item.result is None), default=0)

    @property
    def pattern(self) -> Pattern | None:
        pattern: Pattern | None = None
        if self.recipe.pattern_number >= 0:
            pattern = self.recorder.patterns[self.recipe.pattern_number]
        return pattern

    @property
    def device(self) -> torch.device:
        """The device of the operands; a number may be on the host while others are on a device."""
        if self.recipe.is_layer:  # all of whose operands are on one
            return self.recorder.items[next(iter(self.recipe.parents.values()))].device  # type: ignore[no-any-return]
        devices = [self.recorder.items[number].device for number in self.recipe.parents.values()]
        return next((device for device in devices if device != HOST), HOST)

    def tensor(self) -> torch.Tensor:
        """Return the result, computing it on first use."""
        if self.result is None:
            self.recorder.compute([self])
        assert self.result is not None
        return self.result


class LazyTensor(torch.Tensor):
    """A tensor whose values are computed on first use."""

    _value: Value

    @staticmethod
    def __new__(cls, value: Value) -> LazyTensor:
        recipe = value.recipe
        lazy: LazyTensor = make_wrapper_subclass(
            cls, recipe.shape, dtype=recipe.dtype, device=value.device, requires_grad=recipe.requires_grad
        )
        lazy._value = value
        if recipe.requires_grad:  # code that takes it for a leaf would lose gradients
            with DisableTorchFunctionSubclass():
                lazy.register_hook(_refuse)
        return lazy

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_metadata_query(func):
            with DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        return func(*materialize(args), **materialize(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return func(*materialize(args), **materialize(kwargs or {}))

    def __getattr__(self, name: str) -> Any:
        if name == "_value":
            raise AttributeError(name)
        return getattr(self._value.tensor(), name)

    def __repr__(self, *, tensor_contents: str | None = None) -> str:  # type: ignore[override]
        return repr(self._value.tensor())

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._value.tensor().__reduce_ex__(protocol)


class LazySparseTensor(LazyTensor):
    """A sparse tensor whose values are computed on first use."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return SparseTensor

    @property
    def storage(self) -> Any:
        return self._value.tensor().storage


def _refuse(_: torch.Tensor) -> None:
    raise UnsupportedError(
        "inside scorch.compile, a result that had not been computed yet was passed to something other "
        "than a PyTorch function, such as a custom autograd.Function, so its gradients are unknown; call "
        ".clone() on it first"
    )


# properties that autograd sets only when a tensor is computed
_AUTOGRAD_GETTERS = {getattr(torch.Tensor, name).__get__ for name in ("grad_fn", "is_leaf")}


def is_metadata_query(func: Any) -> bool:
    """Whether a function reads metadata that a lazy tensor has before it is computed."""
    return look_up(func).is_metadata and func not in _AUTOGRAD_GETTERS


def materialize(tree: Any) -> Any:
    """Replace every lazy tensor in ``tree`` by its computed result."""
    return map_leaves(lambda item: item._value.tensor() if type(item) in LAZY_TYPES else item, tree)


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """Apply ``function`` to all leaves of ``tree``: ``tree_map``, but faster for common argument types."""
    if tree is None or type(tree) in _LEAVES or isinstance(tree, torch.Tensor):
        return function(tree)
    if type(tree) in (tuple, list):
        return type(tree)([map_leaves(function, item) for item in tree])
    if type(tree) is dict:
        return {key: map_leaves(function, item) for key, item in tree.items()} if tree else tree
    return tree_map(function, tree)


LAZY_TYPES = (LazyTensor, LazySparseTensor)
_LEAVES = {int, float, bool, str, slice, type(...), Value, Source}


def version_of(tensor: torch.Tensor) -> int | None:
    """Return torch's version counter of the values of ``tensor``; None for inference tensors."""
    if isinstance(tensor, SparseTensor):
        tensor = tensor.storage.values
    return None if tensor.is_inference() else tensor._version

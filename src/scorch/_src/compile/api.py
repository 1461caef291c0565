"""``scorch.compile``: sparse calls of a function joined into few kernels, dense functions left to torch."""

from __future__ import annotations

import contextlib
import functools
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from scorch._src.compile.dense_parts import DenseParts
from scorch._src.compile.group import GroupPlan
from scorch._src.compile.lazy_tensor import LATER, computed
from scorch._src.compile.recorder import Node, Recorder
from scorch._src.statements.modes import recorder
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import peek_interpreter_stack, tree_leaves
from scorch.settings import current


@dataclass(frozen=True)
class GroupExplanation:
    """Recorded calls that became one kernel, or ran one by one for ``reason``."""

    calls: tuple[str, ...]
    statements: str
    source: str
    reason: str
    gradients: str = ""  # how they are computed; "" if none are asked for

    def __str__(self) -> str:
        if self.reason:
            return f"one by one: {', '.join(self.calls)}\n  {self.reason}"
        text = f"one kernel: {', '.join(self.calls)}\n" + textwrap.indent(self.statements, "  ")
        if self.gradients:
            text += "\n  gradients:\n" + textwrap.indent(self.gradients, "    ")
        return text


@dataclass(frozen=True)
class FusionExplanation:
    """What became of the sparse calls of a compiled function.

    ``groups`` in the order in which they ran; ``others``: calls on sparse tensors that were not recorded;
    ``dense``: submodules without sparse tensors, which ``torch.compile`` compiles from their second call on.
    """

    groups: tuple[GroupExplanation, ...]
    others: tuple[str, ...]
    dense: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """The kernels of all groups."""
        return "\n".join(group.source for group in self.groups if group.source)

    def __str__(self) -> str:
        parts = [str(group) for group in self.groups]
        if self.others:
            parts.append(f"as outside, there is no rule to record them: {', '.join(self.others)}")
        if self.dense:
            parts.append(f"left to torch.compile: {', '.join(self.dense)}")
        return "\n\n".join(parts) or "no sparse calls"


def compile(model: Callable[..., Any] | None = None, **options: Any) -> Any:
    """``model``, a function or module, with its calls on sparse tensors joined into few kernels.

    Takes what ``torch.compile`` takes. A function that meets no sparse tensor is compiled by
    ``torch.compile`` with the same options, and so are submodules of a module that meet none; dense calls
    between sparse ones run as they are. ``scorch.explain(compiled, *args)`` shows what was joined, how
    gradients are computed, and what was left to torch.

    >>> import torch, scorch
    >>> A = scorch.from_torch(torch.eye(3), format="csr")
    >>> layer = scorch.compile(lambda A, X, b: torch.relu(A @ X + b))
    >>> layer(A, torch.ones(3, 2), torch.tensor([1.0, -2.0]))
    tensor([[2., 0.],
            [2., 0.],
            [2., 0.]])
    """
    if model is None:
        return functools.partial(compile, **options)
    if isinstance(model, torch.nn.Module):
        return CompiledModule(model, options)
    return functools.wraps(model)(Compiled(model, options))


class Compiled:
    """A function whose sparse calls are recorded and joined."""

    def __init__(
        self, function: Callable[..., Any], options: dict[str, Any], parts: DenseParts | None = None
    ) -> None:
        self.function = function
        self.options = options
        self.parts = parts
        self.is_dense = False  # the last call without sparse arguments met no sparse tensor
        self.known: dict[Any, Node] = {}  # the calls that were made, by the settings that they depend on

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if recorder() is not None or peek_interpreter_stack() is not None or torch.compiler.is_compiling():
            return self.function(*args, **kwargs)
        if not self.is_dense:
            found, record = self._recorded(args, kwargs)
            self.is_dense = not record.met
            return found
        if any(isinstance(leaf, SparseTensor) for leaf in tree_leaves((args, kwargs))):
            return self._recorded(args, kwargs)[0]
        return self.by_torch(*args, **kwargs)

    @functools.cached_property
    def by_torch(self) -> Callable[..., Any]:
        """The function as ``torch.compile`` makes it."""
        return torch.compile(self.function, **self.options)

    def _recorded(self, args: Any, kwargs: dict[str, Any]) -> tuple[Any, Recorder]:
        without = current().without
        root = self.known.get(without)
        if root is None or root.is_full:
            root = self.known[without] = Node()
        record = Recorder(root)
        with record, self.parts or contextlib.nullcontext():
            found = self.function(*args, **kwargs)
        if type(found) in LATER:
            found = found._value.tensor()
        elif not isinstance(found, torch.Tensor):
            record.compute([leaf._value for leaf in tree_leaves(found) if type(leaf) in LATER])
            found = computed(found)
        record.close()
        return found, record

    def explain(self, *args: Any, **kwargs: Any) -> FusionExplanation:
        """What became of the sparse calls of ``self(*args, **kwargs)``, which is run."""
        _, record = self._recorded(args, kwargs)
        groups = tuple(_explained(group) for group in record.groups if group.walked >= 0)
        others = tuple(name for name in record.alone if name != "__get__")
        return FusionExplanation(groups, others, () if self.parts is None else self.parts.explain())

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)


def _explained(plan: GroupPlan) -> GroupExplanation:
    if plan.kernel is None:
        return GroupExplanation(plan.calls, "", "", plan.reason)
    gradients = "" if plan.backward is None else plan.backward.explain()
    return GroupExplanation(plan.calls, plan.kernel.header, plan.kernel.source, "", gradients)


class CompiledModule(torch.nn.Module):
    """A module whose sparse calls are recorded and joined; all else is that of the module itself."""

    def __init__(self, module: torch.nn.Module, options: dict[str, Any]) -> None:
        super().__init__()
        self._orig_mod = module
        self._compiled = Compiled(module.__call__, options, DenseParts(module, options))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._compiled(*args, **kwargs)

    def explain(self, *args: Any, **kwargs: Any) -> FusionExplanation:
        return self._compiled.explain(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("_orig_mod"), name)

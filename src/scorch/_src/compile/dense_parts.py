"""Parts of a compiled module that meet no sparse tensor, each of them left to ``torch.compile``.

A part is a submodule with at least two layers. The first time it is called inside of the compiled module it
runs as it is, to see whether a sparse tensor comes along; if none does, it is compiled, with the user's
options, when it is called next. Where ``torch.compile`` fails, say without a compiler, the part stays as it
is and ``explain`` says why. Outside of the compiled module nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from scorch._src.compile.lazy_tensor import computed
from scorch._src.compile.recorder import Paused
from scorch._src.statements.modes import recorder
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import tree_leaves

CALL = "_compiled_call_impl"  # where modules have what is called in their place, as Module.compile sets it
LEAST = 2  # layers that are worth it


class DensePart:
    """A submodule: not seen yet, met by sparse tensors, compiled, or failed for ``reason``."""

    def __init__(self, name: str, module: torch.nn.Module, options: dict[str, Any]) -> None:
        self.name = name
        self.module = module
        self.inner = list(module.modules())
        self.options = options
        self.state = "new"
        self.reason = ""
        self.compiled: Callable[..., Any] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        record = recorder()
        if record is None or self.state == "own":
            return self.module._call_impl(*args, **kwargs)
        if self.state == "dense" and not _any_sparse((args, kwargs)):
            return self._by_torch(*computed(args), **computed(kwargs))
        before = record.met
        found = self.module._call_impl(*args, **kwargs)
        is_dense = record.met == before and not _any_sparse((args, kwargs, found))
        self.state = "dense" if is_dense else "own"
        return found

    def _by_torch(self, *args: Any, **kwargs: Any) -> Any:
        """As ``torch.compile`` makes it, or, if it cannot, as it is."""
        installed = {module: module.__dict__.pop(CALL, None) for module in self.inner}
        try:
            with Paused():
                if self.compiled is None:
                    self.compiled = torch.compile(self.module._call_impl, **self.options)
                try:
                    return self.compiled(*args, **kwargs)
                except Exception as error:
                    found = self.module._call_impl(*args, **kwargs)  # the user's own errors come from here
                    self.state, self.reason = "own", f"torch.compile: {type(error).__name__}"
                    return found
        finally:
            for module, call in installed.items():
                if call is not None:
                    module.__dict__[CALL] = call


class DenseParts:
    """All parts of a module that may be dense; inside of ``with`` their calls are looked at."""

    def __init__(self, module: torch.nn.Module, options: dict[str, Any]) -> None:
        self.parts = [
            DensePart(name, part, options)
            for name, part in module.named_modules()
            if part is not module and _layers(part) >= LEAST and part._compiled_call_impl is None
        ]

    def __enter__(self) -> None:
        for part in self.parts:
            part.module.__dict__[CALL] = part

    def __exit__(self, *_: Any) -> None:
        for part in self.parts:
            part.module.__dict__.pop(CALL, None)

    def explain(self) -> tuple[str, ...]:
        """The parts that torch compiles, outermost only, and those that it could not."""
        found: list[str] = []
        names: list[str] = []
        for part in self.parts:
            if part.state == "dense" and not any(part.name.startswith(f"{name}.") for name in names):
                names.append(part.name)
                found.append(part.name)
            elif part.reason:
                found.append(f"{part.name} (runs as it is; {part.reason})")
        return tuple(found)


def _layers(module: torch.nn.Module) -> int:
    return sum(1 for part in module.modules() if next(part.children(), None) is None)


def _any_sparse(tree: Any) -> bool:
    return any(isinstance(leaf, SparseTensor) for leaf in tree_leaves(tree))

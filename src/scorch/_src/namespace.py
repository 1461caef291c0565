"""``import scorch as torch``: every name of torch is available under Scorch, submodules included.

Names of torch that Scorch does not have are copied, and those that torch adds afterwards are looked up. A
submodule ``scorch.X.Y`` that Scorch has no file for *is* ``torch.X.Y``, the same module object, so classes,
``isinstance`` and pickles are torch's own. Where Scorch has a file of the same name (``scorch.nn``), that
module answers with torch's names for what it does not have itself. Nothing in torch is changed, unless
the user assigns to a name of torch through Scorch.

A name that is replaced in torch after Scorch was imported stays what it was under Scorch.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any, NoReturn

from scorch._src.hint_tables import CALL_HINTS, HINTS
from scorch._src.name_hints import missing_name
from scorch._src.torch_internals import all_operator_names
from scorch.errors import OperandError, warn_deprecated

HERE, THERE = "scorch", "torch"


# Modules of version 0.1 that users import or that pickles name, and where they are now.
OLD_NAMES = {
    "formats.compressed": "formats.compressed",
    "formats.coordinate": "formats.coordinate",
    "formats.dense": "formats.dense",
    "formats.format": "formats.format",
    "formats.level": "formats.level",
    "formats.scratch": "formats.scratch",
    "nn.autoencoder": "nn.autoencoder",
    "nn.dynamic": "nn.dynamic_sparsity",
    "nn.embedding": "nn.sparse_embedding",
    "nn.graph": "nn.graph.graph_layers",
    "nn.graph_attention": "nn.graph.graph_attention_layer",
    "nn.inputs": "nn.sparse_inputs",
    "nn.linear": "nn.sparse_linear",
    "nn.masks": "nn.masks",
    "nn.moe": "nn.moe",
    "nn.multihead_attention": "nn.multihead_attention",
    "nn.sparsification": "nn.sparsification",
    "nn.sparsify": "nn.sparsify",
    "tensor.mapped": "io.mapped_rows",
    "tensor.samples": "io.datasets",
    "tensor.saved": "io.pickling",
}

# Names that users wrote before, by module, and those to use instead.
DEPRECATED_NAMES = {
    "scorch.distributed": {"normalise": "normalize"},
    "scorch.utils.data": {"SparseRows": "SparseDataset", "MappedRows": "MemmapSparseDataset"},
}

REPLACED_BY_TORCH = ("manual_seed",)  # by torch itself, when it imports its compiler: looked up each time


def extend(module: types.ModuleType, other: types.ModuleType) -> None:
    """Let ``module`` answer for the names of ``other`` that it does not have itself."""
    if isinstance(module, Namespace) or "__getattr__" in vars(module):
        return
    files = {module_info.name for module_info in pkgutil.iter_modules(getattr(module, "__path__", ()))}
    own = frozenset(vars(module)) | files
    copied = {
        name: value
        for name, value in vars(other).items()
        if name not in own and name not in REPLACED_BY_TORCH and _is_shared(name, value)
    }
    vars(module).update(copied)

    def look_up(name: str) -> Any:
        new = DEPRECATED_NAMES.get(module.__name__, {}).get(name)
        if new is not None:
            warn_deprecated(f"{module.__name__}.{name}", new)
            return vars(module)[new]
        is_counterpart = name in files and name in dir(other)
        if is_counterpart:  # torch has imported it already, so here too it is there without an import
            return importlib.import_module(f"{module.__name__}.{name}")
        missing = f"module {module.__name__!r} has no attribute {name!r}"
        if name in files:
            raise AttributeError(f"{missing}; import {module.__name__}.{name} first")
        if name.startswith("__") or _is_empty_ops_namespace(other, name):
            raise AttributeError(missing)
        try:
            return getattr(other, name)
        except AttributeError:
            hints = HINTS.get(module.__name__, {})
            raise missing_name(missing, name, hints, list_names) from None

    def list_names() -> list[str]:
        return sorted({*vars(module), *dir(other)})

    vars(module).update(__getattr__=look_up, __dir__=list_names, __namespace__=(own, other))
    module.__class__ = CalledNamespace if module.__name__ in CALL_HINTS else Namespace
    for name in files:
        _extend_submodule(module, name)


def _is_shared(name: str, value: object) -> bool:
    """Whether a name of torch is copied; the others are looked up on first use.

    Of the names between underscores only modules (``__config__``) are. ``torch.classes`` and similar modules
    answer to every name, which confuses tools that look through the names of a module. Private variables are
    not, because torch assigns to some of them later (``torch.distributed._spmd_types_available``).
    """
    if issubclass(type(value), types.ModuleType):  # isinstance would ask the value, which may warn
        return type(value) is types.ModuleType
    return not name.startswith("_") or (not name.startswith("__") and callable(value))


def _is_empty_ops_namespace(other: types.ModuleType, name: str) -> bool:
    """Whether ``torch.ops``, which has a namespace for any name, has no operators there."""
    if other.__name__ != "torch.ops" or name in vars(other) or hasattr(type(other), name):
        return False
    return not any(operator.startswith(f"{name}::") for operator in all_operator_names())


def _extend_submodule(module: types.ModuleType, name: str) -> None:
    """Extend the submodule of Scorch that ``module`` has under ``name``, where torch has it as well."""
    own = sys.modules.get(f"{module.__name__}.{name}")
    _, other = vars(module)["__namespace__"]
    counterpart = vars(other).get(name)
    if own is not None and isinstance(counterpart, types.ModuleType):
        extend(own, counterpart)


class Namespace(types.ModuleType):
    """A module in which assigning to a name of the other module reaches the other module."""

    @property
    def __all__(self) -> list[str]:
        """The public names, but none for ``help(scorch)``.

        It would print 80,000 lines, nearly all about PyTorch, below what says where to start.
        """
        names: list[str] | None = vars(self).get("__all__")
        if names is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute '__all__'")
        return (
            [] if self.__name__ == HERE and sys._getframe(1).f_globals.get("__name__") == "pydoc" else names
        )

    @__all__.setter
    def __all__(self, names: list[str]) -> None:
        vars(self)["__all__"] = names

    def __setattr__(self, name: str, value: Any) -> None:
        own, other = vars(self)["__namespace__"]
        super().__setattr__(name, value)
        if name in own or name.startswith("__"):
            _extend_submodule(self, name)  # the import system puts a submodule here once it is loaded
        elif vars(other).get(name) is not value:
            setattr(other, name, value)

    def __delattr__(self, name: str) -> None:
        own, other = vars(self)["__namespace__"]
        is_here = name in vars(self)
        if is_here:
            super().__delattr__(name)
        if name not in own and (hasattr(other, name) or not is_here):
            delattr(other, name)


class CalledNamespace(Namespace):
    """A module whose name is that of a function in other libraries: a call says which one is meant."""

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        name = self.__name__
        raise OperandError(f"{name} is a module, as in PyTorch; {CALL_HINTS[name]}")


# submodules ------------------------------------------------------------------------------------------


class AliasFinder(MetaPathFinder):
    """Finds ``torch.X.Y`` for ``scorch.X.Y`` where Scorch has no such file.

    It must come before the finder of files: that one would follow the path of ``torch.X``, which is what
    ``scorch.X`` is, and load a second copy of ``torch.X.Y``.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, rest = fullname.partition(".")
        if package != HERE or not rest:
            return None
        parent = fullname.rpartition(".")[0]
        is_own = getattr(sys.modules.get(parent), "__name__", None) == parent
        file = PathFinder.find_spec(fullname, path) if is_own else None
        if file is not None and file.loader is not None:  # not just a folder, such as an old __pycache__
            return None
        other = f"{THERE}.{rest}"
        spec = _find(other)
        if other not in sys.modules and spec is None:
            return None
        return ModuleSpec(fullname, AliasLoader(other), origin=None if spec is None else spec.origin)


class AliasLoader(Loader):
    """Puts a module of torch in the place of the one that is to be loaded.

    ``create_module`` must not return it: the import system would write the new name into it.
    """

    def __init__(self, other: str) -> None:
        self.other = other

    def exec_module(self, module: types.ModuleType) -> None:
        sys.modules[module.__name__] = importlib.import_module(self.other)

    def get_code(self, fullname: str) -> types.CodeType | None:
        """For ``python -m scorch.X``."""
        spec = _find(self.other)
        read: Callable[[str], types.CodeType | None] | None = getattr(
            None if spec is None else spec.loader, "get_code", None
        )
        return None if read is None else read(self.other)


def _find(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except (ModuleNotFoundError, ValueError):  # no such package, or a module without a file (torch.ops)
        return None


def install(own: Iterable[str]) -> None:
    """Make ``scorch``, whose own public names are ``own``, answer for all of torch."""
    module, other = sys.modules[HERE], importlib.import_module(THERE)
    if not any(isinstance(finder, AliasFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, AliasFinder())
    extend(module, other)
    vars(module)["__all__"] = sorted({*own, *other.__all__})
    for old, new in OLD_NAMES.items():
        sys.modules.setdefault(f"{HERE}.{old}", importlib.import_module(f"{HERE}._src.{new}"))

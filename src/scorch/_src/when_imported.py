"""Let tensors work with another library as soon as it is imported, without importing it.

``install_with`` puts a finder before those of ``sys.meta_path``. It finds one library as the others do, and
installs Scorch's side after the library was executed.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def install_with(library: str, module: str) -> None:
    """Call ``install()`` of ``module`` once ``library`` is imported: now, if it already is."""
    if sys.modules.get(library) is not None:
        _install(module)
    elif not any(isinstance(finder, LibraryFinder) and finder.library == library for finder in sys.meta_path):
        sys.meta_path.insert(0, LibraryFinder(library, module))


def _install(module: str) -> None:
    with contextlib.suppress(AttributeError, ImportError):  # where the library's version is not supported
        importlib.import_module(module).install()


class LibraryFinder(MetaPathFinder):
    """Finds a library as the other finders do, with a loader that also installs a module of Scorch."""

    def __init__(self, library: str, module: str) -> None:
        self.library, self.module, self.is_asking = library, module, False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.library or self.is_asking:
            return None
        self.is_asking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self.is_asking = False
        if spec is not None and spec.loader is not None:
            spec.loader = _LibraryLoader(spec.loader, self)
        return spec


class _LibraryLoader(Loader):
    """Executes a library with its own loader, installs the module, and is then out of the way."""

    def __init__(self, loader: Any, finder: LibraryFinder) -> None:
        self.loader, self.finder = loader, finder

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self.loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self.loader
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        if self.finder in sys.meta_path:
            sys.meta_path.remove(self.finder)
        _install(self.finder.module)

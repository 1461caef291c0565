"""``install()`` lets programs that import torch_sparse run on Scorch unchanged."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType

import torch

from scorch.compat.torch_sparse import imported_pyg, operators, script
from scorch.errors import CallError

_PACKAGE = __name__.rpartition(".")[0]
# torch_sparse's modules, and ours that has what they have
_MODULES = {
    "add": "arithmetic",
    "bandwidth": "sample",
    "cat": "arrange",
    "coalesce": "convert",
    "convert": "convert",
    "diag": "arrange",
    "eye": "convert",
    "index_select": "arrange",
    "masked_select": "arrange",
    "matmul": "matmul",
    "metis": "sample",
    "mul": "arithmetic",
    "narrow": "arrange",
    "permute": "arrange",
    "reduce": "reduce",
    "rw": "sample",
    "saint": "sample",
    "sample": "sample",
    "select": "arrange",
    "spadd": "convert",
    "spmm": "convert",
    "spspmm": "convert",
    "storage": "storage",
    "tensor": "tensor",
    "testing": "testing",
    "transpose": "convert",
    "typing": "utils",
    "utils": "utils",
}
_libraries: list[torch.library.Library] = []


def _modules() -> dict[str, ModuleType]:
    """Return the modules by the names under which programs import them."""
    submodules = {f"torch_sparse.{name}": f"{_PACKAGE}.{ours}" for name, ours in _MODULES.items()}
    return {name: import_module(ours) for name, ours in {"torch_sparse": _PACKAGE, **submodules}.items()}


def install() -> None:
    """Make ``import torch_sparse``, its submodules and ``torch.ops.torch_sparse`` refer to this package.

    Call it before anything imports torch_sparse, before or after importing PyG: PyG finds it, or gets it
    instead of the placeholders that it imported. A second call has no effect. Names mean what they mean in
    torch_sparse: ``torch_sparse.transpose`` is the function, although a module has that name, too.

    Raises:
        CallError: torch_sparse itself has already been imported.

    Example:

        >>> from scorch.compat.torch_sparse import install, uninstall
        >>> install()
        >>> import torch_sparse
        >>> torch_sparse.SparseTensor.eye(2).to_dense()
        tensor([[1., 0.],
                [0., 1.]])
        >>> uninstall()
    """
    present = sys.modules.get("torch_sparse")
    if present is not None and present is not sys.modules[_PACKAGE]:
        raise CallError("torch_sparse has already been imported; call install() before anything imports it")
    if not _libraries:
        _libraries.append(operators.register())
        script.register(sys.modules[_PACKAGE])
    sys.modules.update(_modules())
    imported_pyg.connect(sys.modules[_PACKAGE])


def uninstall() -> None:
    """Undo ``install``; modules that have imported torch_sparse in the meantime keep what they imported.

    PyG works as without torch_sparse again, but still accepts matrices if it was imported after ``install``.
    """
    imported_pyg.disconnect(sys.modules[_PACKAGE])
    for name, module in _modules().items():
        if sys.modules.get(name) is module:
            del sys.modules[name]
    while _libraries:
        _libraries.pop()._destroy()
        script.unregister(sys.modules[_PACKAGE])

"""``scorch.load`` and ``scorch.save``: tensors in files, by their suffix.

``.mtx`` and ``.tns`` are text that other programs read; ``.npz`` is SciPy's where SciPy has the format;
``.safetensors`` and ``.pt`` hold dictionaries of tensors too. All of them give back the format, dtype and
shape that were saved.
"""

from __future__ import annotations

import difflib
import inspect
import os
import pickle
import re
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from scorch._src.dataclass import dataclass
from scorch._src.formats import Format
from scorch._src.io.archive import DAMAGED
from scorch._src.io.frostt import read_frostt, write_frostt
from scorch._src.io.matrix_market import read_matrix_market, write_matrix_market
from scorch._src.io.npz import read_npz, write_npz
from scorch._src.io.pickling import check_filled
from scorch._src.io.replacement import replace_file
from scorch._src.io.safetensors import read_safetensors, write_safetensors
from scorch._src.name_hints import unknown_keyword
from scorch._src.tensor.create.construct import from_torch
from scorch._src.tensor.interop.torch_layouts import from_scipy, is_scipy
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import (
    FileError,
    KeywordError,
    MissingFileError,
    OperandError,
    ScorchError,
    add_note,
    kind_of,
)

_DEVICE = re.compile(r"(cpu|cuda|mps|xpu|meta)(:\d+)?")


@dataclass(frozen=True)
class FileKind:
    """How to read and write files with one suffix."""

    read: Callable[..., Any]
    write: Callable[..., None]
    takes_many: bool = False
    options: tuple[str, ...] | None = ()  # of reading; None for those of torch.load


def load(path: Any = None, format: Any = None, *, f: Any = None, **options: Any) -> Any:
    """Load a tensor, or a dictionary of tensors, from a file.

    Nothing in ``.npz``, ``.mtx``, ``.tns`` and ``.safetensors`` files is executed, and all indices are
    validated.

    Args:
        path: the file; see ``save`` for the suffixes. Open file objects are passed to ``torch.load``.
        format: the storage format; without it, that of the saved tensor, and ``coo`` for files that name
            none.
        f: PyTorch's name for ``path``.
        options: ``shape`` for ``.tns`` files, whose shape is otherwise that of the largest coordinates; for
            ``.pt`` files those of ``torch.load``.

    Returns:
        The tensor, or a dictionary of tensors.

    Raises:
        MissingFileError: there is no such file.
        FileError: the file is damaged or not in the format its suffix promises.

    Example:

        >>> import scorch, tempfile
        >>> S = scorch.sparse_coo_tensor([[0], [1]], [2.0], (2, 2), format="csr")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     scorch.save(f"{folder}/S.mtx", S)
        ...     print(scorch.load(f"{folder}/S.mtx").format)
        csr
    """
    source = f if path is None else path
    if not isinstance(source, (str, os.PathLike)):
        if not hasattr(source, "read"):
            raise OperandError(f"load expected a path or an open file, but got {kind_of(source)}")
        return _read_pickle(source, format, **options)
    file = Path(source)
    kind = _find_kind(file)
    if not file.is_file():
        raise MissingFileError(_describe_missing(file))
    _check_options(kind, file.name, options)
    try:
        return kind.read(file, format, **options)
    except ScorchError as error:
        if str(file) not in str(error):
            add_note(error, f"in the file {file}")
        raise


def _check_options(kind: FileKind, name: str, options: Mapping[str, Any]) -> None:
    """Check that a file of this kind has the options."""
    unknown = next((key for key in options if kind.options is not None and key not in kind.options), None)
    if unknown is None:
        return
    if unknown == "shape":
        raise KeywordError(
            f"load() takes shape= for .tns files only: {name!r} stores the shape of its tensor; change that "
            "of the result, as in scorch.load(path).reshape(...)"
        )
    if unknown in inspect.signature(torch.load).parameters:
        hint = "; move the result instead, as in scorch.load(path).to(device)"
        raise KeywordError(
            f"load() takes {unknown}=, an option of torch.load, for .pt files only, not for {name!r}"
            + (hint if unknown == "map_location" else "")
        )
    raise unknown_keyword("load", unknown, ("path", "format", *(kind.options or ())), options[unknown])


def save(
    path: Any = None, tensor: Any = None, *more: Any, obj: Any = None, f: Any = None, **options: Any
) -> None:
    """Save a tensor, or a dictionary of tensors, to a file whose suffix selects the file format.

    An existing file is replaced only once the new one is complete. The argument order of ``torch.save``,
    ``save(tensor, path)``, works as well, and open file objects are passed to ``torch.save``.

    Args:
        path: the file: ``.mtx``, ``.mtx.gz``, ``.tns``, ``.tns.gz``, ``.npz``, ``.safetensors``, ``.pt``
            or ``.pth``.
        tensor: the tensor; ``.safetensors``, ``.pt`` and ``.pth`` take dictionaries of tensors too.
        more: further arguments of ``torch.save`` for ``.pt`` files.
        obj, f: PyTorch's names for ``tensor`` and ``path``.
        options: passed to ``torch.save`` for ``.pt`` files.

    Raises:
        FileError: the suffix is unknown, or the file format cannot hold this tensor.
        MissingFileError: the folder does not exist.

    Example:

        >>> import scorch, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     scorch.save(f"{folder}/S.mtx.gz", scorch.eye(3, format="csr"))
        ...     print(scorch.load(f"{folder}/S.mtx.gz").nnz)
        3
    """
    target, content = (f, obj) if path is None and tensor is None else (path, tensor)
    if not _is_path(target) or _is_path(content):
        target, content = content, target
    if not _is_path(target):
        torch.save(content, target, *more, **options)
        return
    file = Path(target)
    kind = _find_kind(file)
    if kind.write is not _write_pickle:
        if more or options:
            raise KeywordError(
                f"the options of torch.save are only supported for .pt files, not for {file.name!r}"
            )
        is_many = kind.takes_many and isinstance(content, Mapping)
        content = {n: _as_tensor(value) for n, value in content.items()} if is_many else _as_tensor(content)
    with replace_file(file) as new_file:
        kind.write(new_file, content, *more, **options)


def _is_path(value: object) -> bool:
    return isinstance(value, (str, os.PathLike))


def _as_tensor(value: Any) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value if value.layout == torch.strided else from_torch(value)
    if is_scipy(value):
        return from_scipy(value)
    if isinstance(value, torch.nn.Module):
        raise OperandError(
            f"expected tensors to save, but got {kind_of(value)}; save its state_dict(), or the module as .pt"
        )
    raise OperandError(
        f"expected a tensor to save, but got {kind_of(value)}; create one with scorch.tensor, or "
        "save it as .pt"
        if not isinstance(value, Mapping)
        else "this file type stores one tensor; save a dictionary of tensors as .safetensors or .pt"
    )


# torch.save ------------------------------------------------------------------------------------------


def _read_pickle(source: Any, format: Any = None, **options: Any) -> Any:
    if _is_device(format):  # torch's second argument
        options["map_location"], format = format, None
    try:
        content = torch.load(source, **{"weights_only": True, **options})
        check_filled()
    except (ScorchError, FileNotFoundError, PermissionError):
        raise
    except (*DAMAGED, AssertionError, pickle.UnpicklingError, struct.error) as error:
        raise _error_of_pickle(source, error) from error
    if format is None:
        return content
    if isinstance(content, dict):
        return {
            name: value.to_format(format) if isinstance(value, SparseTensor) else value
            for name, value in content.items()
        }
    return from_torch(content, format)


def _error_of_pickle(source: Any, error: BaseException) -> FileError:
    """Return the error for a file that ``torch.load`` cannot read: damaged, or not only of tensors."""
    text = str(error)
    refused = re.search(r"GLOBAL ([\w.]+) was not an allowed global", text)
    if refused is not None:
        return FileError(
            f"{source} contains a {refused[1]}, and loading objects other than tensors can run code; if you "
            "trust the file, use torch.load(path, weights_only=False)"
        )
    cause = re.search(r"WeightsUnpickler error: *(.*)", text)
    reason = re.split(r"\. |: |\n", text if cause is None else cause[1], maxsplit=1)[0]
    advice = "" if _is_path(source) else "; for other types of files, pass the path"
    kind = type(error).__name__
    return FileError(f"{source} is not a complete torch.save file ({kind}: {reason}){advice}")


def _is_device(value: object) -> bool:
    if isinstance(value, str):
        return _DEVICE.fullmatch(value) is not None
    return value is not None and not isinstance(value, Format)


def _write_pickle(path: Path, content: Any, *more: Any, **options: Any) -> None:
    torch.save(content, path, *more, **options)


# suffixes --------------------------------------------------------------------------------------------


_FILE_KINDS = {
    ".mtx": FileKind(read_matrix_market, write_matrix_market),
    ".mtx.gz": FileKind(read_matrix_market, write_matrix_market),
    ".tns": FileKind(read_frostt, write_frostt, options=("shape",)),
    ".tns.gz": FileKind(read_frostt, write_frostt, options=("shape",)),
    ".npz": FileKind(read_npz, write_npz),
    ".safetensors": FileKind(read_safetensors, write_safetensors, takes_many=True),
    ".pt": FileKind(_read_pickle, _write_pickle, options=None),
    ".pth": FileKind(_read_pickle, _write_pickle, options=None),
}


_READ_BY_OTHERS = {
    **dict.fromkeys(
        (".txt", ".csv", ".tsv", ".edges", ".edgelist"),
        "; of edges, read numpy.loadtxt(path, dtype=int) and pass torch.from_numpy(edges.T) to "
        "scorch.from_edge_index",
    ),
    ".mat": "; read it with scipy.io.loadmat and use scorch.from_scipy",
}


def _find_kind(path: Path) -> FileKind:
    name = path.name.lower()
    for suffix, kind in _FILE_KINDS.items():
        if name.endswith(suffix):
            return kind
    if path.is_dir():
        raise FileError(f"{path} is a directory, not a file")
    advice = _READ_BY_OTHERS.get(path.suffix.lower(), "") if path.exists() else ""
    raise FileError(f"{path} has an unknown suffix; use one of {', '.join(_FILE_KINDS)}{advice}")


def _describe_missing(path: Path) -> str:
    if path.is_dir():
        return f"{path} is a directory, not a file"
    if not path.parent.is_dir():
        return f"no such file: {path}; its directory does not exist either"
    similar = difflib.get_close_matches(path.name, [entry.name for entry in path.parent.iterdir()], n=1)
    return f"no such file: {path}" + (f"; did you mean {similar[0]!r}?" if similar else "")

"""Every error Scorch raises.

People meet errors more often than documentation, so each class derives from ``ScorchError`` and from
the builtin a user would expect to catch, and each message names the operand, the index and the cure.
"""

from __future__ import annotations

import difflib
import sys
import warnings
from collections.abc import Callable, Iterable
from typing import TypeGuard

import torch


class ScorchError(Exception):
    """Base class of all errors that Scorch raises."""

    is_translated: bool = False  # whether its message is that of torch for a dense call


class ScorchWarning(UserWarning):
    """Something is slower than it could be, or may not mean what it seems to; the message says what to do."""


_NOT_USERS = {"scorch", "torch", "transformers", "functools", "contextlib", "threading"}  # frames between


def warn(message: str, category: type[Warning] = ScorchWarning) -> None:
    """Warn at the line of the user's that the call came from: the last outside libraries."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] not in _NOT_USERS:
            break
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def warn_deprecated(old: str, new: str) -> None:
    """Warn that a name is deprecated, and name the one to use."""
    warn(f"{old} is deprecated; use {new} instead", DeprecationWarning)


def add_note(error: BaseException, note: str) -> None:
    """Say where an error comes from: in a note, or below the message in Python 3.10, which has no notes."""
    if sys.version_info >= (3, 11):
        error.add_note(note)
    else:
        error.args = (f"{error}\n{note}", *error.args[1:])


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: ``1 operand``, ``2 operands``."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


_LIBRARIES = {
    "numpy": "NumPy",
    "scipy": "SciPy",
    "torch_geometric": "PyG",
    "torch_sparse": "torch_sparse",
}  # by package


def kind_of(value: object) -> str:
    """Return what was passed instead of what was expected: ``None``, ``a list``, ``a NumPy array``."""
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    name, library = type(value).__name__, type(value).__module__.partition(".")[0]
    if hasattr(type(value), "to_scorch"):
        library = "torch_sparse"  # of scorch.compat: its class has the name of ours
    if library in _LIBRARIES:
        return f"a {_LIBRARIES[library]} {'array' if name == 'ndarray' else name}"
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def is_integer(value: object, least: int | None = None, most: int | None = None) -> TypeGuard[int]:
    """Whether an argument is an integer between two numbers, if they are given; a bool is none."""
    if isinstance(value, bool) or not isinstance(value, int):
        return False
    return (least is None or value >= least) and (most is None or value <= most)


def nearest(name: str, known: Iterable[str], cutoff: float = 0.7) -> str:
    """Return the question whether the nearest of the ``known`` names is meant; empty if none is near."""
    public = [other for other in known if not other.startswith("_")]
    by_folded = {other.lower(): other for other in reversed(public)}
    by_letters = {"".join(sorted(folded)): folded for folded in reversed(by_folded)}
    exchanged = by_letters.get("".join(sorted(name.lower())))  # letters, as in cfs for csf
    near = difflib.get_close_matches(name.lower(), by_folded, n=1, cutoff=cutoff)
    found = [exchanged] if exchanged is not None else near
    return f"did you mean {by_folded[found[0]]!r}?" if found else ""


class CallError(ScorchError, RuntimeError):
    """The arguments of a PyTorch function are invalid, for dense tensors too: sizes, dtypes or values do not
    match.
    """


class DeviceError(ScorchError, RuntimeError):
    """The tensors of a call are on different devices."""


class MissingDeviceError(DeviceError, AssertionError):
    """The device does not exist on this machine, or PyTorch was built without support for it."""


class ShapeError(ScorchError, ValueError, RuntimeError):
    """Sizes that must agree do not; also a ``RuntimeError``, as PyTorch raises."""


class NotationError(ScorchError, ValueError, RuntimeError):
    """An einsum equation or an index expression cannot be parsed, or does not match its operands."""


class FormatError(ScorchError, ValueError):
    """A storage format does not exist, or does not match the tensor."""


class IndexRangeError(ScorchError, IndexError, RuntimeError):
    """An index or a dimension is out of range."""


class DtypeError(ScorchError, TypeError):
    """The operation is not defined for this dtype."""


class InPlaceError(ScorchError, RuntimeError):
    """An in-place operation is not allowed: on a leaf, on some views, on shared elements, or with another
    dtype.
    """


class OperandError(ScorchError, TypeError):
    """An operand is not a tensor, or not of the kind that the function expects."""


class KeywordError(OperandError):
    """A keyword argument that a function does not have; the message suggests what to use instead."""


class FreedError(ScorchError, RuntimeError):
    """The storage of a dense operand was freed or resized."""


class UnknownNameError(ScorchError, AttributeError):
    """A name that a tensor or module does not have; the message suggests what to use instead."""

    suggest: Callable[[], str] | None = None  # asked when the message is read

    def __str__(self) -> str:
        suggestion = self.suggest() if self.suggest is not None else ""
        return f"{super().__str__()}; {suggestion}" if suggestion else super().__str__()

    def __reduce__(self) -> tuple[type[UnknownNameError], tuple[str]]:
        return UnknownNameError, (str(self),)


class AssignmentError(ScorchError, AttributeError):
    """A method or a read-only attribute of a sparse tensor is assigned to; the message says what to use."""


class ArgumentError(ScorchError, ValueError):
    """An argument has an invalid value."""


class UnsupportedError(ScorchError, NotImplementedError):
    """Scorch does not support the call; the message names an alternative."""


class MissingAttributeError(UnsupportedError, AttributeError):
    """A sharded tensor lacks an attribute that other tensors have; the message names an alternative."""


class DensityError(ScorchError, MemoryError):
    """The result would need more dense memory than ``settings(dense_budget=)`` allows."""


class CommunicationError(ScorchError, RuntimeError):
    """An exchange between processes failed, or would exceed ``settings(exchange_budget=)``."""


class FileError(ScorchError, OSError, ValueError):
    """A file is damaged, or not in the format of its suffix."""


class MissingFileError(ScorchError, FileNotFoundError):
    """A file does not exist."""


class TorchVersionError(ScorchError, ImportError):
    """This version of PyTorch lacks something that Scorch needs."""


class CompilerNotFoundError(ScorchError, RuntimeError):
    """No C compiler works on this machine, or ``SCORCH_CC`` names one that does not."""


class CompilationError(ScorchError, RuntimeError):
    """The compiler rejected a generated kernel."""


class KernelError(ScorchError, RuntimeError):
    """A kernel could not finish, for example because it ran out of memory."""


class LinAlgError(ScorchError, torch.linalg.LinAlgError):  # type: ignore[misc]
    """A linear system has no unique solution, for example because the matrix is singular."""


class ConvergenceError(LinAlgError):
    """An iterative solver did not reach its tolerance."""

"""Every error Scorch raises.

People meet errors more often than documentation, so each class derives from ``ScorchError`` and from
the builtin a user would expect to catch, and each message names the operand, the index and the cure.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable

import torch


class ScorchError(Exception):
    """Base of all errors raised by Scorch."""

    is_translated: bool = False  # whether it tells what torch says of a call


class ScorchWarning(UserWarning):
    """Something is slower or other than it looks; the message says what to change."""


_NOT_USERS = {"scorch", "torch", "functools", "contextlib", "threading"}  # whose frames stand between


def warn(message: str) -> None:
    """Warn at the line of the user's that the call came from: the last outside of libraries."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] not in _NOT_USERS:
            break
        level, frame = level + 1, frame.f_back
    warnings.warn(message, ScorchWarning, stacklevel=level)


def add_note(error: BaseException, note: str) -> None:
    """Say where an error comes from: in a note, or below the message in Python 3.10, which has no notes."""
    if sys.version_info >= (3, 11):
        error.add_note(note)
    else:
        error.args = (f"{error}\n{note}", *error.args[1:])


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: ``1 operand``, ``2 operands``."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


class CallError(ScorchError, RuntimeError):
    """A call of a torch function that dense tensors refuse too: sizes, dtypes or numbers do not fit."""


class DeviceError(ScorchError, RuntimeError):
    """Tensors on several devices in one call."""


class MissingDeviceError(DeviceError, AssertionError):
    """A device that this machine or this torch does not have; torch raises one or the other."""


class ShapeError(ScorchError, ValueError, RuntimeError):
    """Sizes that must agree do not; a ``RuntimeError`` too, as torch raises."""


class NotationError(ScorchError, ValueError, RuntimeError):
    """An einsum equation or index expression that cannot be read."""


class FormatError(ScorchError, ValueError):
    """A format that does not exist or does not fit the tensor."""


class IndexRangeError(ScorchError, IndexError, RuntimeError):
    """A coordinate or a dimension that the tensor does not have; torch raises one or the other."""


class DtypeError(ScorchError, TypeError):
    """A dtype that the operation has no meaning for."""


class InPlaceError(ScorchError, RuntimeError):
    """A write that the tensor does not allow: to a leaf, some views, shared elements, or of another dtype."""


class OperandError(ScorchError, TypeError):
    """An operand that is not a tensor, or lives on another device."""


class FreedError(ScorchError, RuntimeError):
    """A dense operand whose memory was taken away; torch raises a ``RuntimeError``."""


class UnknownNameError(ScorchError, AttributeError):
    """A name that a tensor or module does not have; the message suggests what to use instead."""

    suggest: Callable[[], str] | None = None  # asked when the message is read

    def __str__(self) -> str:
        suggestion = self.suggest() if self.suggest is not None else ""
        return f"{super().__str__()}; {suggestion}" if suggestion else super().__str__()

    def __reduce__(self) -> tuple[type[UnknownNameError], tuple[str]]:
        return UnknownNameError, (str(self),)


class ArgumentError(ScorchError, ValueError):
    """An argument outside of the range that it has."""


class UnsupportedError(ScorchError, NotImplementedError):
    """A call that Scorch does not answer; the message names one that works."""


class DensityError(ScorchError, MemoryError):
    """A result that would need more dense memory than the budget allows."""


class CommunicationError(ScorchError, RuntimeError):
    """An exchange between processes that failed, or that would move more bytes than the budget allows."""


class FileError(ScorchError, OSError, ValueError):
    """A file that is not what its suffix or its own header says."""


class MissingFileError(ScorchError, FileNotFoundError):
    """A file that does not exist."""


class TorchVersionError(ScorchError, ImportError):
    """A version of torch that lacks what Scorch is built on."""


class CompilerNotFoundError(ScorchError, RuntimeError):
    """``SCORCH_CXX`` names a compiler that does not work; without any, torch computes."""


class CompilationError(ScorchError, RuntimeError):
    """The C compiler refused a generated kernel."""


class KernelError(ScorchError, RuntimeError):
    """A kernel could not finish, for example because memory ran out."""


class LinAlgError(ScorchError, torch.linalg.LinAlgError):  # type: ignore[misc]
    """A matrix that an equation cannot be solved with, such as a singular one."""


class ConvergenceError(LinAlgError):
    """An iterative method that did not reach its tolerance."""

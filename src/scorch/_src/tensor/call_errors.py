"""Translate errors of PyTorch functions into the words of the user's call.

A call that fails is repeated on meta tensors of the same shapes and dtypes. torch raises for those what it
raises for dense tensors: the user gets an error of the same type, which is one of Scorch's too, naming the
function and its operands. Where torch would accept the call, the error is Scorch's own.
"""

from __future__ import annotations

import contextlib
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from scorch._src.backends.base import check_waiting, is_about_waiting, is_served, needs_behind
from scorch._src.devices import HOST, bring_together
from scorch._src.formats.format import NAMES
from scorch._src.grad_state import is_transformed, unsupported_in_jit
from scorch._src.name_hints import as_dtype
from scorch._src.tensor.create.check import as_device, error_of_freed, is_freed, refuse_nested
from scorch._src.tensor.create.construct import from_torch
from scorch._src.tensor.hooks import hooks
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import (
    OpOverload,
    len_torch_dispatch_stack,
    tree_flatten,
    tree_leaves,
    tree_map,
    tree_unflatten,
)
from scorch.errors import (
    ArgumentError,
    CallError,
    DensityError,
    DeviceError,
    IndexRangeError,
    LinAlgError,
    MissingDeviceError,
    OperandError,
    ScorchError,
    UnsupportedError,
)

KINDS: dict[type[BaseException], type[ScorchError]] = {
    RuntimeError: CallError,
    IndexError: IndexRangeError,
    TypeError: OperandError,
    ValueError: ArgumentError,
    NotImplementedError: UnsupportedError,
    torch.linalg.LinAlgError: LinAlgError,
    AssertionError: MissingDeviceError,  # "Torch not compiled with CUDA enabled"
}
SIGNS = {
    "__getitem__": "S[...]",
    "__setitem__": "S[...] = value",
    "__matmul__": "@",
    "__rmatmul__": "@",
}
_state = threading.local()
MAX_COPIED_BYTES = 1 << 20
MAX_DIMS = 16
MAX_FRAMES = 50  # between a layer of PyG and a call that fails
DIFFERENTIATING = {torch.autograd.grad, torch.autograd.backward, torch.Tensor.backward}
ALLOCATING = {"tolist", "unbind"}  # functions that allocate even for meta tensors


def translate_error(error: Exception, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Exception:
    """Return the error to raise when ``func`` failed with ``error``: another one, or the same."""
    if len_torch_dispatch_stack():  # a compiler or a tracer that handles torch's errors
        return error
    if getattr(_state, "is_repeating", False):  # a tensor that torch.func had wrapped is sparse after all
        return error
    misread = _misread_option(error, args if func is torch.Tensor.to else (), kwargs)
    if misread is not None:
        return misread
    tensors, name = tensors_in((args, kwargs)), name_of(func)
    try:
        for tensor in tensors:
            refuse_nested(f"{name}: an operand", tensor)
    except UnsupportedError as refusal:
        return refusal
    if is_about_waiting(str(error)):
        return _refused_to_wait(error, name, tensors)
    freed = next((tensor for tensor in tensors if is_freed(tensor)), None)
    if freed is not None:  # torch must not read it
        kind, text = error_of_freed(freed)
        return _scorch_error(kind, name, text, tensors)
    if isinstance(error, IndexRangeError) and any(tensor.device != HOST for tensor in tensors):
        return error  # dense torch has other words for it, on the host
    elsewhere = _mixed_devices(tensors)
    if elsewhere is not None:
        return _scorch_error(DeviceError, name, elsewhere, tensors)
    if "doesn't have storage" in str(error) and is_transformed():
        text = "it is not supported inside torch.func for a sparse tensor whose values are tracked; "
        return _scorch_error(UnsupportedError, name, f"{text}apply it outside, or to .to_dense()", tensors)
    refused = re.search(r"you tried to allocate (\d+) bytes", str(error))
    if refused is not None and not isinstance(error, ScorchError):
        text = f"{int(refused[1]):,} bytes of dense memory are more than is available"
        return _scorch_error(DensityError, name, text, tensors)
    is_too_large = isinstance(error, DensityError)  # if not an operand, then the result
    if func in DIFFERENTIATING:  # it needs the graph of these very tensors
        dense, is_exact = None, False
    else:
        dense, is_exact = _error_of_dense(func, args, kwargs, tensors, is_too_large)
    needs = needs_behind(str(error if dense is None else dense))
    if needs:
        text = cleaned(str(error if dense is None else dense), name).rstrip(".")
        return _scorch_error(MissingDeviceError, name, f"{text}. {needs}", tensors)
    if isinstance(error, AssertionError) and not isinstance(dense, AssertionError):
        return error  # one of our own
    if dense is None:
        is_scorch_error = isinstance(error, ScorchError) or type(error) not in KINDS
        return error if is_scorch_error else _scorch_error(KINDS[type(error)], name, str(error), tensors)
    is_refusal = isinstance(error, (DensityError, UnsupportedError))
    is_own = isinstance(error, ScorchError) and not error.is_translated and not is_refusal
    if is_own and (isinstance(error, type(dense)) or not is_exact):
        return error
    return _scorch_error(KINDS[type(dense)], name, str(dense), tensors)


def _misread_option(error: Exception, args: Sequence[Any], kwargs: dict[str, Any]) -> ScorchError | None:
    """Return the error for a dtype or a device that torch does not know, or a format passed to ``S.to``.

    ``args`` are those of ``to``, and empty for other functions.
    """
    if not isinstance(error, (TypeError, RuntimeError)):
        return None
    options = [*kwargs.items(), *(("", value) for value in args[1:2])]
    for option, value in options:
        layout = _layout_in(value)
        if args and (option in ("format", "layout") or (not option and layout in NAMES)):
            return OperandError(
                f"to() converts dtypes and devices; to change the format, use S.to_format({layout!r})"
            )
        try:
            if option == "dtype" or (not option and _is_dtype(value)):
                as_dtype("dtype", value)
            elif option in ("", "device") and isinstance(value, str):
                as_device(value)
        except ScorchError as refusal:
            return refusal
        except RuntimeError:  # about a device that is not there
            return None
    return None


def _layout_in(value: Any) -> str:
    """Return what a format or a layout is called; '' for a tensor, which may have no memory to show."""
    word = "" if isinstance(value, torch.Tensor) else str(value)
    return word.removeprefix("torch.").removeprefix("sparse_")


def _is_dtype(value: Any) -> bool:
    """Whether a value names a dtype: ``"float32"``, or a type of NumPy's."""
    if isinstance(value, torch.Tensor):
        return False
    word = value.__name__ if isinstance(value, type) else str(value)
    return isinstance(getattr(torch, word.removeprefix("torch."), None), torch.dtype)


def _refused_to_wait(error: Exception, name: str, tensors: Sequence[torch.Tensor]) -> Exception:
    """Return the error of a call that must wait for a device now; torch ends what it records then."""
    try:
        for tensor in tensors:
            check_waiting(tensor.device, f"the result of {name}")
    except DeviceError as refusal:
        return refusal
    return error


def tensors_in(arguments: Any) -> list[torch.Tensor]:
    """Return all tensors among nested arguments or results."""
    return [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, torch.Tensor)]


def convert_operands(
    func: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Convert torch's sparse tensors among the arguments, and its zeros without memory, to what kernels read.

    Returns None if there are none, or one is written to.
    """
    leaves, spec = tree_flatten((list(args), kwargs))
    name = str(getattr(func, "__name__", ""))
    in_place = name.startswith("__i") or (name.endswith("_") and not name.endswith("__"))
    is_written = in_place and any(map(_is_converted, tree_leaves(args[:1])))
    if not any(map(_is_converted, leaves)) or is_written or kwargs.get("out") is not None:
        return None
    converted = [_converted(value) if _is_converted(value) else value for value in leaves]
    new_args, named = tree_unflatten(converted, spec)
    return tuple(new_args), named


def _is_converted(value: Any) -> bool:
    return _is_torchs(value) or (isinstance(value, torch.Tensor) and value._is_zerotensor())


def _converted(value: torch.Tensor) -> torch.Tensor:
    return from_torch(value) if _is_torchs(value) else value.clone()  # a clone of such zeros has memory


def _is_torchs(value: Any) -> bool:
    """Whether ``value`` is a sparse tensor of torch itself."""
    return (
        isinstance(value, torch.Tensor)
        and not isinstance(value, SparseTensor)
        and value.layout is not torch.strided
    )


def _mixed_devices(tensors: Sequence[torch.Tensor]) -> str | None:
    """Describe the mistake if tensors are on several devices; scalars may be on any, as in torch."""
    own = next((tensor.device for tensor in tensors if isinstance(tensor, SparseTensor)), None)
    for tensor in tensors:
        if own is not None and tensor.device != own and tensor.dim() > 0:
            other = tensor.device
            both = [("the sparse one", own), ("the other", other)]
            (first, device), (second, elsewhere) = (
                reversed(both) if own == HOST and is_served(other) else both
            )
            remedy = bring_together(first, device, second, elsewhere)
            return (
                f"expected all tensors to be on the same device, but the sparse one is on {own} and "
                f"another on {other}; {remedy}"
            )
    return None


def _error_of_dense(
    func: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    tensors: Sequence[torch.Tensor],
    is_too_large: bool,
) -> tuple[Exception | None, bool]:
    """Return the error that torch raises for dense tensors, and whether the call ran on their very values.

    Small tensors are copied; large ones, and those with too large results, are replaced by meta tensors.
    """
    if not is_too_large and are_small(tensors):
        found = _error_without_grad(_copied, func, args, kwargs)
        is_about_host = any(words in str(found) for words in ("not implemented", HOST.type))
        return found, not is_about_host or all(tensor.device == HOST for tensor in tensors)
    error = None if name_of(func) in ALLOCATING else _error_without_grad(_meta, func, args, kwargs)
    numbers = [value for value in tree_leaves((args, kwargs)) if isinstance(value, int)]
    is_harmless = len(tensors) == 1 and all(abs(number) <= MAX_DIMS for number in numbers)
    if error is None and is_harmless:  # some functions look at dims only where there is memory
        tiny = _error_without_grad(_tiny, func, args, kwargs)
        error = tiny if isinstance(tiny, IndexError) else None
    is_about_meta = isinstance(error, NotImplementedError) or "meta" in str(error)
    return (None if is_about_meta else error), False


def are_small(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether a call may be repeated on copies of the tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors) <= MAX_COPIED_BYTES


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """Copy to the host, where a mistake is an error and does not end the process."""
    copied = tensor.to_dense() if isinstance(tensor, SparseTensor) else tensor.detach().clone()
    return copied.to(HOST)


def _meta(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tuple(tensor.shape), dtype=tensor.dtype, device="meta")


def _tiny(tensor: torch.Tensor) -> torch.Tensor:
    return torch.zeros((2,) * tensor.dim(), dtype=tensor.dtype, device=HOST)


def _error_without_grad(
    stand_in: Callable[[torch.Tensor], torch.Tensor], func: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> Exception | None:
    with torch.no_grad():
        error = error_on(stand_in, func, args, kwargs)
    return None if isinstance(error, NotImplementedError) and "Could not run" in str(error) else error


@contextlib.contextmanager
def _unseen_by_hooks() -> Iterator[None]:
    """Keep what stand-ins save from ``saved_tensors_hooks`` around the call, such as those of checkpoints."""
    hooks = saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(RuntimeError):  # inside of transforms, which allow none
            stack.enter_context(hooks)
        yield


def error_on(
    stand_in: Callable[[torch.Tensor], torch.Tensor], func: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> Exception | None:
    """Return the error that torch raises with dense tensors in place of the arguments."""

    def replaced(value: Any) -> Any:
        return stand_in(value) if isinstance(value, torch.Tensor) else value

    outside, _state.is_repeating = getattr(_state, "is_repeating", False), True
    try:
        with warnings.catch_warnings(), _unseen_by_hooks():
            warnings.simplefilter("ignore")
            func(*tree_map(replaced, tuple(args)), **tree_map(replaced, kwargs))
    except Exception as error:
        return error if type(error) in KINDS else None
    finally:
        _state.is_repeating = outside
    return None


def _scorch_error(
    kind: type[ScorchError], name: str, text: str, tensors: Sequence[torch.Tensor]
) -> ScorchError:
    error = kind(f"{name}: {cleaned(text, name, tensors)}{described(tensors)}{_hint_for_caller()}")
    error.is_translated = True
    return error


def _hint_for_caller() -> str:
    """Return what a library that made the call needs for sparse tensors: PyG's layers, unless installed."""
    is_installed = bool(getattr(sys.modules.get("scorch.compat.pyg"), "_replaced", None))
    if "torch_geometric" not in sys.modules or is_installed:
        return ""
    frame: Any = sys._getframe(1)
    for _ in range(MAX_FRAMES):
        if frame is None:
            return ""
        if frame.f_globals.get("__name__", "").startswith("torch_geometric.nn."):
            return "; PyG's layers accept sparse matrices of Scorch after scorch.compat.pyg.install()"
        frame = frame.f_back
    return ""


def cleaned(text: str, name: str, tensors: Sequence[torch.Tensor] = ()) -> str:
    """Remove torch's internal names from an error message, and add how to make dtypes equal."""
    first = text.strip().split("\n")[0].strip()
    first = re.sub(r"aten::|c10::|\(sparse_coo\)", "", first)
    misfits = r"\w+\(\) received an invalid combination of arguments - got \((.*?),? ?\), but expected.*"
    first = re.sub(misfits, r"it cannot take these arguments: \1", first)
    if "same dtype" in first or re.search("expected scalar type .* but found", first):
        first = f"{first.rstrip('.')}; convert one, as in {_conversion(tensors)}"
    return re.sub(rf"^(torch\.)?{re.escape(name)}_?(\(\))?: ", "", first)


def _conversion(tensors: Sequence[torch.Tensor]) -> str:
    """Return how to make dtypes equal: a matrix of SciPy's float64 is converted for a float32 layer."""
    if len(tensors) < 2 or not isinstance(tensors[0], SparseTensor):  # a sparse weight comes after its input
        return "x.to(S.dtype)"
    S, x = (tensor.dtype for tensor in tensors[:2])
    is_wider = torch.promote_types(S, x) == S
    is_converted = x.is_floating_point and not S.is_complex and (is_wider or not S.is_floating_point)
    return "S.to(x.dtype)" if is_converted else "x.to(S.dtype)"


def described(tensors: Sequence[torch.Tensor]) -> str:
    """Describe the operands of a call."""
    if not tensors:
        return ""
    words = []
    for tensor in tensors[:4]:
        kind = str(tensor.format) if isinstance(tensor, SparseTensor) else "dense"
        dtype = str(tensor.dtype).removeprefix("torch.")
        words.append(f"{kind} {tuple(tensor.shape)} {dtype}")
    more = f" and {len(tensors) - 4} more" if len(tensors) > 4 else ""
    return f" (given {', '.join(words)}{more})"


def name_of(func: Any) -> str:
    """Return the name that users write for a PyTorch function."""
    name = str(getattr(func, "__name__", func))
    if name == "__get__":
        name = str(getattr(func.__self__, "__name__", name))
    name = re.sub(r"\.\w+$", "", name) if isinstance(func, OpOverload) else name
    name = re.sub("^linalg_", "linalg.", name)
    return SIGNS.get(name, name.removeprefix("__").removesuffix("__"))


def refused_by_jit(func: Any) -> ScorchError:
    """Return the error for a call of ``func`` that ``torch.jit`` records or runs."""
    return unsupported_in_jit(name_of(func))


hooks.retry, hooks.translate_error, hooks.refused_by_jit = convert_operands, translate_error, refused_by_jit

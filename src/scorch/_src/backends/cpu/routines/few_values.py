"""Functions of few values that torch takes longer to choose a kernel for than to compute."""

from __future__ import annotations

import struct
from collections.abc import Callable

import torch

from scorch._src.backends.by_torch.layers import Norm, NormFunction
from scorch._src.backends.cpu import jit, parallel
from scorch._src.backends.cpu.launch import builtins, pack, result_descriptor, tensor_descriptor
from scorch._src.compiler.target import target
from scorch._src.compiler.typing import type_of_dtype

Function = Callable[[torch.Tensor], torch.Tensor]
NORMS = jit.read_source("bf16.c") + jit.read_source("norms.c")
NORMED = {
    torch.float32: ("float", "float"),
    torch.float64: ("double", "double"),
    torch.bfloat16: ("unsigned short", "float"),
}
MAX_FLOAT = torch.finfo(torch.float32).max
MIN_NORMED_PER_THREAD = 1 << 14  # numbers


def of_few(code: int, by_torch: Function) -> Function:
    """Return a function of values: a builtin, and torch's where they are many, or no list of floats."""
    functions = builtins()
    if functions is None:
        return by_torch
    of_list = functions.map

    def compute(values: torch.Tensor) -> torch.Tensor:
        result = of_list(code, values)
        return by_torch(values) if result is None else result

    return compute


def scaled(values: torch.Tensor, factor: float) -> torch.Tensor | None:
    """Multiply values by a number; None where torch must."""
    functions = builtins()
    is_number = functions is not None and (values.dtype is torch.float64 or abs(factor) <= MAX_FLOAT)
    return functions.scale(values, factor) if functions is not None and is_number else None


def add_row(result: torch.Tensor, row: torch.Tensor) -> torch.Tensor | None:
    """Add ``row`` to every row of a small ``result``, in place; None where torch must."""
    functions = builtins()
    is_added = functions is not None and not row.is_neg() and functions.add(result, row)
    return result if is_added else None


def bind_norm(norm: Norm) -> NormFunction | None:
    """Return ``Routines.bind_norm`` in one pass over memory; torch's ``rms_norm`` is eight kernels."""
    x, weight, bias, eps, width, is_centered = norm
    functions = builtins()
    address = _norm_address(x.dtype) if functions is not None else 0
    if functions is None or not address:
        return None
    fill, result = functions.fill, result_descriptor(type_of_dtype(x.dtype), x.shape, zero=False)
    work, rows = x.numel(), x.numel() // width
    has = (is_centered, weight is not None, bias is not None)
    tensors = (x if weight is None else weight, x if bias is None else bias, x)
    element = type_of_dtype(x.dtype)
    facts = [tensor_descriptor(element, tensor.shape, range(tensor.dim())) for tensor in tensors]
    guard = b"".join([*facts, tensor_descriptor()])
    headers: dict[int, bytes] = {}  # by threads

    def compute(x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None) -> torch.Tensor:
        loop, threads = parallel.shared_by(work, MIN_NORMED_PER_THREAD)
        header = headers.get(threads)
        if header is None:
            header = pack([loop, threads, rows, width, *has]) + struct.pack("d", eps)
            headers[threads] = header
        others = x if weight is None else weight, x if bias is None else bias
        return fill(address, header, result, guard, *others, x)

    return compute


def _norm_address(dtype: torch.dtype) -> int:
    if dtype not in NORMED:
        return 0
    return jit.function_address(norm_source(dtype), "the norms of rows", "scorch_norm")


def norm_source(dtype: torch.dtype) -> str:
    """Return the C source for numbers of a dtype."""
    number, total = NORMED[dtype]
    head = "#define IS_BF16\n" if dtype == torch.bfloat16 else ""
    text = NORMS.replace("$VECTOR", str(target().vector_bytes))
    return head + jit.with_types(text, number_t=number, sum_t=total)

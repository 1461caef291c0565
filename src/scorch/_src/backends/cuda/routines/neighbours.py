"""CUDA C of routines over the neighbors in graphs, for dtypes and how the numbers of a row are spread.

Elements of 16 bits are computed with, and added up, in float32.
"""

from __future__ import annotations

import torch

from scorch._src.backends.cuda.device import driver
from scorch._src.backends.cuda.device.driver import ALIGNMENT
from scorch._src.backends.cuda.device.kernel import read_text
from scorch._src.backends.print.cuda import print_prelude
from scorch._src.backends.print.functions import helpers

WARP = 32

_SINGLE = {
    "T": "f32",
    "E": "f32",
    "VALUE(x)": "(x)",
    "ELEMENT(x)": "(x)",
    "EXP": "expf",
    "COPYSIGN": "copysignf",
    "LOWEST": "-3.402823466e38f",
    "INFINITE": "__builtin_inff()",
}
_DOUBLE = {
    **_SINGLE,
    "T": "f64",
    "E": "f64",
    "EXP": "exp",
    "COPYSIGN": "copysign",
    "LOWEST": "-1.7976931348623157e308",
    "INFINITE": "__builtin_inf()",
}


def _half(name: str) -> dict[str, str]:
    return {**_SINGLE, "E": "u16", "VALUE(x)": f"from_{name}(x)", "ELEMENT(x)": f"to_{name}(x)"}


TYPES = {
    torch.float32: _SINGLE,
    torch.float64: _DOUBLE,
    torch.float16: _half("f16"),
    torch.bfloat16: _half("bf16"),
}
_HELPERS = {torch.float16: ("from_f16", "to_f16"), torch.bfloat16: ("from_bf16", "to_bf16")}
INDICES = {torch.int32: "i32", torch.int64: "i64"}


def dtype_of_sums(dtype: torch.dtype) -> torch.dtype:
    """Return what elements are computed in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def print_attention(dtype: torch.dtype, index: torch.dtype, heads: int, features: int) -> str:
    """The CUDA source of attention with as many heads and features of each."""
    run = run_of(features, dtype)
    feature_lanes = min(WARP, power_of_two(-(-features // run)))
    known = {
        "HEADS": heads,
        "FEATURES": features,
        "RUN": run,
        "HEAD_LANES": power_of_two(heads),
        "FEATURE_LANES": feature_lanes,
        "GROUP_HEADS": min(power_of_two(heads), WARP // feature_lanes),
        "WARPS": driver.THREADS // WARP,
    }
    return _print("graph_attention.cu", dtype, index, known)


def print_neighbour_max(dtype: torch.dtype, index: torch.dtype, run: int, lanes: int) -> str:
    """The CUDA source of maxima of rows that ``lanes`` of a warp read, each ``run`` columns at once."""
    return _print("neighbour_max.cu", dtype, index, {"RUN": run, "LANES": lanes})


def _print(name: str, dtype: torch.dtype, index: torch.dtype, known: dict[str, int]) -> str:
    words = {**TYPES[dtype], "INDEX": INDICES[index], **known}
    lines = [f"#define {word} {meaning}" for word, meaning in words.items()]
    used = [helpers()[helper] for helper in _HELPERS.get(dtype, ())]
    return "\n\n".join([print_prelude(), *used, "\n".join(lines), read_text(name)])


def run_of(width: int, dtype: torch.dtype) -> int:
    """Return how many of ``width`` numbers are read at once, of which rows are a multiple."""
    run = ALIGNMENT // dtype.itemsize
    while width % run:
        run //= 2
    return run


def power_of_two(number: int) -> int:
    """Return the first power of two from ``number`` on."""
    return 1 << (number - 1).bit_length()

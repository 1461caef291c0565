"""Run a module while dense products of half precision are computed in float32.

    python -m tools.gpu_check.halves_in_float32 tools.gpu_check.kernels cuda

cuBLAS multiplies float16 and bfloat16 on Hopper by kernels that racecheck cannot run past when it watches
other kernels only: ``F.linear`` of two such tensors ends with "Internal Sanitizer Error: The Sanitizer
failed to handle a hardware exception" where nothing but PyTorch is loaded.
"""

from __future__ import annotations

import runpy
import sys
import warnings
from typing import Any

import torch

PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")
HALVES = (torch.float16, torch.bfloat16)


def replace_products(key: str = "CUDA") -> torch.library.Library:
    """Compute products of halves in float32 for as long as the library that is returned lives."""
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that operators have kernels already
        for name in PRODUCTS:
            library.impl(
                name, _in_float32(torch.library.get_kernel(f"aten::{name}", key)), key, with_keyset=True
            )
    return library


def _in_float32(kernel: Any) -> Any:
    def multiply(keys: Any, *operands: Any, **scales: Any) -> torch.Tensor:
        dtype = operands[0].dtype
        if dtype not in HALVES:
            return kernel.call_boxed(keys, *operands, **scales)
        wide = (each.float() if isinstance(each, torch.Tensor) else each for each in operands)
        return kernel.call_boxed(keys, *wide, **scales).to(dtype)

    return multiply


def run(key: str, words: list[str]) -> None:
    """Run a module, which is the first of the words, with the others."""
    kept = replace_products(key)
    sys.argv = words
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    del kept


if __name__ == "__main__":
    run("CUDA", sys.argv[1:])

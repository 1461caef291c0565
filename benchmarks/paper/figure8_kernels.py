"""Figure 8: SpMV, SpMM, SpMSpM and SDDMM over matrices of SuiteSparse: those parts of the kernel suite.

    python -m benchmarks.paper.figure8_kernels --data DIR [--threads N] [--json FILE] [--plot DIR] [--quick]

All other options of ``python -m benchmarks.kernels`` are taken too. There are several plots, so ``--plot``
names a folder: for each matrix, by its number of entries, the milliseconds of each contestant.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks.kernels.__main__ import main as run_suite

KERNELS = "spmv,spmm,spmspm,sddmm"


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    given = ["--plots" if word == "--plot" else word for word in given]
    return run_suite(given if "--kernels" in given else [*given, "--kernels", KERNELS])


if __name__ == "__main__":
    raise SystemExit(main())

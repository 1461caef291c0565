"""What stands above single operations, on a device beside the CPU: training, graphs, copies, processes.

python -m tools.gpu_check.layers cuda                         a line for each check
python -m tools.gpu_check.layers cuda "streams" "export"      some of them
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence

from tools.gpu_check import memory, several_processes, tensors, training
from tools.gpu_check.checks import CHECKS

MODULES = tensors, training, memory, several_processes  # which have put their checks there


def main(device: str, names: Sequence[str] = ()) -> dict[str, str]:
    """Run checks, all unless some are named; return what went wrong in each, "" where nothing did."""
    found = {}
    for name in names or CHECKS:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                CHECKS[name](device)
            found[name] = ""
        except Exception as error:
            found[name] = " ".join(f"{type(error).__name__}: {error}".split())[:400]
        print(f"{name}: {found[name] or 'ok'}", flush=True)
    return found


if __name__ == "__main__":
    sys.exit(any(main(sys.argv[1], sys.argv[2:]).values()))

"""``torch_parallel_for`` for versions of torch that do not export it (before 2.10).

torch's own loops run on the threads of OpenMP. The same library, the one that torch has loaded, runs these,
with the same rules: as many threads as ``torch.set_num_threads`` allows, and one inside a parallel loop.
"""

from __future__ import annotations

import ctypes

from scorch._src.backends.cpu import jit

_SOURCE = jit.read_source("openmp.c")
SOURCES = (_SOURCE,)

# In the order of the structure. libgomp has these, and LLVM's libomp, which answers to its names.
_NAMES = (
    *("GOMP_parallel", "omp_get_max_threads", "omp_in_parallel"),
    *("omp_get_num_threads", "omp_get_thread_num"),
)


def parallel_for(torch_library: ctypes.CDLL) -> int:
    """Return the address of a function like ``torch_parallel_for``; 0, or AttributeError, without one."""
    functions = [ctypes.cast(getattr(torch_library, name), ctypes.c_void_p) for name in _NAMES]
    library = jit.find_library(_SOURCE, "the loop that runs on torch's threads")
    if library is None:
        return 0
    set_openmp = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(library.address("scorch_set_openmp"))
    set_openmp((ctypes.c_void_p * len(functions))(*functions))
    return library.address("scorch_parallel_for")

"""``torch_parallel_for`` for versions of torch that do not export it (before 2.10).

torch's own loops run on the threads of OpenMP. The same library, the one that torch has loaded, runs these,
with the same rules: as many threads as ``torch.set_num_threads`` allows, and one inside of a parallel loop.
"""

from __future__ import annotations

import ctypes

from scorch._src.backends.cpu import jit

_SOURCE = """\
typedef void (*body_t)(long long, long long, void *);
typedef struct { long long begin, end; body_t body; void *context; } work_t;

static struct {
    void (*parallel)(void (*)(void *), void *, unsigned, unsigned);
    int (*max_threads)(void), (*in_parallel)(void), (*num_threads)(void), (*thread_num)(void);
} openmp;

void scorch_set_openmp(void *const *functions) {
    __builtin_memcpy(&openmp, functions, sizeof openmp);
}

static void run_share(void *given) {
    work_t *work = given;
    long long threads = openmp.num_threads(), share = (work->end - work->begin + threads - 1) / threads;
    long long begin = work->begin + share * openmp.thread_num(), end = begin + share;
    if (end > work->end) end = work->end;
    if (begin < end) work->body(begin, end, work->context);
}

int scorch_parallel_for(long long begin, long long end, long long grain, body_t body, void *context) {
    work_t work = {begin, end, body, context};
    long long threads = openmp.max_threads(), most = (end - begin + grain - 1) / grain;
    if (begin >= end) return 0;
    if (threads > most) threads = most;
    if (threads <= 1 || openmp.in_parallel()) body(begin, end, context);
    else openmp.parallel(run_share, &work, (unsigned)threads, 0);
    return 0;
}
"""
SOURCES = (_SOURCE,)

# In the order of the structure. libgomp has these, and LLVM's libomp, which answers to its names.
_NAMES = (
    *("GOMP_parallel", "omp_get_max_threads", "omp_in_parallel"),
    *("omp_get_num_threads", "omp_get_thread_num"),
)


def parallel_for(torch_library: ctypes.CDLL) -> int:
    """The address of a function that works as ``torch_parallel_for``; AttributeError without OpenMP."""
    functions = [ctypes.cast(getattr(torch_library, name), ctypes.c_void_p) for name in _NAMES]
    library = jit.load(_SOURCE, "the loop that runs on torch's threads")
    set_openmp = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(library.address("scorch_set_openmp"))
    set_openmp((ctypes.c_void_p * len(functions))(*functions))
    return library.address("scorch_parallel_for")

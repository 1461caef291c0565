"""``explain`` names the memory of a kernel: what calls allocate stays below it.

Allocations are counted, not estimated: a process of its own runs with ``malloc`` and its kin replaced by
functions that add up what is alive. So everything counts that a call needs beyond its operands: what the
kernel allocates, what torch does, copies, and the result. An array that grows counts twice while it is moved.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import platform
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings

import scorch
from properties.test_einsum import cases
from scorch._src.backends.cpu import jit, parallel
from scorch._src.backends.cpu.launch import release_memory
from scorch._src.backends.interpreter.executable import Interpreted, InterpretedExecutable
from scorch._src.compiler.bounds import Footprint
from scorch._src.engine import execute as running
from scorch._src.engine.executable import Prepared
from scorch._src.engine.footprint import footprint
from scorch._src.explain.explain_statement import explain
from scorch._src.loops.intrinsics import INTRINSICS
from scorch._src.storage.coordinates import coordinates
from scorch._src.storage.storage import Storage
from torch_has import needs_builtins

ROOT = Path(__file__).resolve().parent.parent
SLACK = 64_000  # objects of Python and torch that describe the result

COUNTER = """\
typedef unsigned long usize;
void *__libc_malloc(usize);
void *__libc_calloc(usize, usize);
void *__libc_realloc(void *, usize);
void *__libc_memalign(usize, usize);
void __libc_free(void *);
usize malloc_usable_size(void *);
void *dlsym(void *, const char *);

static long alive, peak;

static void note(long bytes) {
  const long now = __atomic_add_fetch(&alive, bytes, __ATOMIC_RELAXED);
  long seen = __atomic_load_n(&peak, __ATOMIC_RELAXED);
  while (now > seen && !__atomic_compare_exchange_n(&peak, &seen, now, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
    ;
}
static long size_of(void *block) { return block ? (long)malloc_usable_size(block) : 0; }
static void *counted(void *block) {
  note(size_of(block));
  return block;
}
void *malloc(usize bytes) { return counted(__libc_malloc(bytes)); }
void *calloc(usize count, usize bytes) { return counted(__libc_calloc(count, bytes)); }
void *memalign(usize align, usize bytes) { return counted(__libc_memalign(align, bytes)); }
void *aligned_alloc(usize align, usize bytes) { return counted(__libc_memalign(align, bytes)); }
int posix_memalign(void **block, usize align, usize bytes) {
  *block = counted(__libc_memalign(align, bytes));
  return *block ? 0 : 12;
}
void *realloc(void *block, usize bytes) {
  const long before = size_of(block);
  void *const moved = counted(__libc_realloc(block, bytes));
  note(-before);
  return moved;
}
void free(void *block) {
  note(-size_of(block));
  __libc_free(block);
}
/* How torch allocates, c10::alloc_cpu and c10::free_cpu: not by malloc everywhere. */
void *_ZN3c109alloc_cpuEm(usize bytes) { return bytes ? memalign(64, bytes) : (void *)0; }
void _ZN3c108free_cpuEPv(void *block) { free(block); }
/* Pages are taken with room to align them, which goes back before they are advised to be huge: noted then. */
static void *next_of(const char *name) { return dlsym((void *)-1l, name); }
void *mmap(void *at, usize bytes, int protect, int flags, int file, long offset) {
  void *const block = ((void *(*)(void *, usize, int, int, int, long))next_of("mmap"))(
      at, bytes, protect, flags, file, offset);
  if (block != (void *)-1l) __atomic_add_fetch(&alive, (long)bytes, __ATOMIC_RELAXED);
  return block;
}
int munmap(void *block, usize bytes) {
  __atomic_sub_fetch(&alive, (long)bytes, __ATOMIC_RELAXED);
  return ((int (*)(void *, usize))next_of("munmap"))(block, bytes);
}
int madvise(void *block, usize bytes, int advice) {
  note(0);
  return ((int (*)(void *, usize, int))next_of("madvise"))(block, bytes, advice);
}
long counter_begin(void) {
  __atomic_store_n(&peak, alive, __ATOMIC_RELAXED);
  return alive;
}
long counter_peak(void) { return peak > alive ? peak : alive; }
"""


def random(rows: int, columns: int, nnz: int, format: str, seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)
    places = [torch.randint(size, (nnz,), generator=generator) for size in (rows, columns)]
    values = torch.rand(nnz, generator=generator)
    return scorch.sparse_coo_tensor(torch.stack(places), values, (rows, columns), format=format)


def random_cube(size: int, nnz: int, format: str, seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)
    places = torch.randint(size, (3, nnz), generator=generator)
    return scorch.sparse_coo_tensor(places, torch.rand(nnz, generator=generator), (size,) * 3, format=format)


def make_calls(seed: int) -> dict[str, tuple[str, dict[str, Any], str | None]]:
    """Statements with their operands, and the format asked for; patterns differ with ``seed``."""
    n = 10_000
    A, B = random(n, n, 170_000, "csr", seed), random(n, n, 130_000, "csr", seed + 100)
    P, Q = random(n, n, 50_000, "csr", seed + 200), random(n, n, 50_000, "csr", seed + 300)
    T = random_cube(1_000, 100_000, "csf", seed)
    D = random(1_000, 750, 75_000, "csr", seed).to_dense()
    x = torch.ones(n)
    X, Y = torch.ones(n, 64), torch.ones(n, 16)
    product = "C[i,k] = A[i,j] * B[j,k]"
    copy = "C[i,j] = A[i,j]"
    return {
        "SpMV": ("y[i] = A[i,j] * x[j]", {"A": A, "x": x}, None),
        "SpMV of columns": ("y[i] = A[i,j] * x[j]", {"A": A.to_format("csc"), "x": x}, None),
        "SpMM": ("Y[i,k] = A[i,j] * X[j,k]", {"A": A, "X": X}, None),
        "SpMM of a view": ("Y[i,k] = A[i,j] * X[j,k]", {"A": A, "X": X[:, ::2]}, None),
        "SpMSpM": (product, {"A": P, "B": Q}, None),
        "SpMSpM, wide": (product, {"A": P, "B": random(n, 4_000_000, 50_000, "csr", seed)}, None),
        "SpMSpM to coo": (product, {"A": P, "B": Q}, "coo"),
        "SpMSpM to csc": (product, {"A": P, "B": Q}, "csc"),
        "SpMSpM of columns": (product, {"A": P.to_format("csc"), "B": Q.to_format("csc")}, None),
        "SpMSpM, outer": (product, {"A": P.to_format("csc"), "B": Q}, "coo"),
        "SDDMM": ("C[i,j] = A[i,j] * X[i,k] * Y[j,k]", {"A": A, "X": Y, "Y": Y}, None),
        "SDDMM, one across": (
            "C[i,j] = A[i,j] * X[i,k] * Y[k,j]",
            {"A": A, "X": X, "Y": torch.ones(64, n)},
            None,
        ),
        "A + B": ("C[i,j] = A[i,j] + B[i,j]", {"A": A, "B": B}, None),
        "A + B, one by columns": ("C[i,j] = A[i,j] + B[i,j]", {"A": A, "B": B.to_format("csc")}, None),
        "A + B to coo": ("C[i,j] = A[i,j] + B[i,j]", {"A": A, "B": B}, "coo"),
        "A + B to dcsr": ("C[i,j] = A[i,j] + B[i,j]", {"A": A, "B": B}, "dcsr"),
        "A * B": ("C[i,j] = A[i,j] * B[i,j]", {"A": A, "B": B}, None),
        "csr to csc": (copy, {"A": A}, "csc"),
        "csr to coo": (copy, {"A": A}, "coo"),
        "coo to csr": (copy, {"A": A.to_format("coo")}, "csr"),
        "csr to dcsr": (copy, {"A": A}, "dcsr"),
        "csr to bsr": (copy, {"A": A}, "bsr(2,2)"),
        "transposition": ("C[j,i] = A[i,j]", {"A": A}, "csr"),
        "dense to csr": (copy, {"A": D}, "csr"),
        "MTTKRP": (
            "M[i,r] = T[i,j,k] * B[j,r] * C[k,r]",
            {"T": T, "B": torch.ones(1_000, 32), "C": torch.ones(1_000, 32)},
            None,
        ),
        "A + B of halves": (
            "C[i,j] = A[i,j] + B[i,j]",
            {"A": A.to(torch.float16), "B": B.to(torch.float16)},
            None,
        ),
    }


def bytes_of(tensor: Any) -> int:
    arrays = tensor.storage.tensors if isinstance(tensor, scorch.SparseTensor) else (tensor,)
    return sum(array.numel() * array.element_size() for array in arrays)


def count(place: str, *names: str) -> None:
    """In the process with the counter: what these calls allocate, and what ``explain`` says of them."""
    counter = ctypes.CDLL(place)
    counter.counter_begin.restype = counter.counter_peak.restype = ctypes.c_long
    scorch.settings(threads=2).apply()
    # As many for every call, however busy the machine is when it is explained, and when it runs.
    parallel.threads_by_load = lambda threads, work, least: (threads, threads)
    first, second = make_calls(0), make_calls(1)
    for name in names:  # compiles, and starts threads
        text, tensors, format = first[name]
        scorch.evaluate(text, **tensors, format=format)
    gc.collect()
    gc.freeze()  # modules, which the collections below need not look at
    found = {}
    for name in names:
        text, tensors, format = second[name]
        steps = explain(text, **tensors, format=format).steps
        gc.collect()
        release_memory()
        before = counter.counter_begin()
        result = scorch.evaluate(text, **tensors, format=format)
        peak = counter.counter_peak() - before
        named = [asdict(step.memory) for step in steps if step.memory is not None]
        copies = [bytes_of(tensors["A"]) for step in steps if step.kind == "torch"]
        found[name] = {"peak": peak, "result": bytes_of(result), "steps": named, "by torch": sum(copies)}
        del result
    print(json.dumps({"calls": list(second), "found": found}))


@pytest.fixture(scope="module")
def counted(request: pytest.FixtureRequest) -> dict[str, Any]:
    """All calls by their names, and what was counted of those that this run asks for."""
    if platform.system() != "Linux" or platform.libc_ver()[0] != "glibc":
        pytest.skip("allocations are counted with glibc only")
    counter = jit.load(COUNTER).path
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    environment = {**os.environ, "LD_PRELOAD": str(counter), "PYTHONMALLOC": "malloc", "PYTHONPATH": paths}
    cases = [getattr(item, "callspec", None) for item in request.session.items if item.path == request.path]
    names = [case.params["name"] for case in cases if case is not None and case.params.get("name") in CALLS]
    done = subprocess.run(
        [sys.executable, __file__, str(counter), *names],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


CALLS = (
    "SpMV",
    "SpMV of columns",
    "SpMM",
    "SpMM of a view",
    "SpMSpM",
    "SpMSpM, wide",
    "SpMSpM to coo",
    "SpMSpM to csc",
    "SpMSpM of columns",
    "SpMSpM, outer",
    "SDDMM",
    "SDDMM, one across",
    "A + B",
    "A + B, one by columns",
    "A + B to coo",
    "A + B to dcsr",
    "A + B of halves",
    "A * B",
    "csr to csc",
    "csr to coo",
    "coo to csr",
    "csr to dcsr",
    "csr to bsr",
    "transposition",
    "dense to csr",
    "MTTKRP",
)
EXACT = ("SpMV", "SpMM", "SDDMM", "csr to csc", "csr to coo", "transposition")


@needs_builtins
@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", CALLS)
def test_peak_is_at_most_what_is_named(name: str, counted: dict[str, Any]) -> None:
    facts = counted["found"][name]
    results = sum(step["result"] for step in facts["steps"])  # those of earlier steps are still there
    workspace = max(step["workspace"] for step in facts["steps"])
    assert facts["peak"] <= results + workspace + facts["by torch"] + SLACK
    assert facts["peak"] >= facts["steps"][-1]["result"] / 100, "nothing was counted"
    if name in EXACT:
        assert facts["peak"] >= results + workspace - SLACK
        assert all(step["exact"] for step in facts["steps"])


def test_all_calls_are_counted(counted: dict[str, Any]) -> None:
    assert set(counted["calls"]) == set(CALLS)


# by the interpreter ----------------------------------------------------------------------------------


def test_any_kernel_allocates_at_most_what_is_named(
    cases_per_worker: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any einsum in any formats; lists begin with room for two entries, so that they grow."""

    def execute(prepared: Prepared, tensors: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch, scorch.settings(threads=2):
            patch.setattr("scorch._src.formats.scratch.FIRST_CAPACITY", 2)
            patch.setattr("scorch._src.compiler.lower.collect.FIRST_CAPACITY", 2)
            patch.setattr(prepared.kernel, "is_serial", False)
            patch.setattr(prepared.kernel, "least_work", 0)
            engine = Interpreted(prepared.planned.kernel())
            patch.setattr(InterpretedExecutable, "engine", engine)
            named = footprint(prepared, tensors)
            result = prepared.interpret([tensors[name] for name, _ in prepared.sources])
        assert engine.memory.peak <= named.workspace - named.copies, prepared.planned.plan.header
        arrays = result.tensors if isinstance(result, Storage) else (result,)
        if prepared.planned.plan.assembly == "shared":
            arrays = arrays[-1:]
        size = sum(array.numel() * array.element_size() for array in arrays)
        assert size == named.result if named.exact else size <= named.result, prepared.planned.plan.header
        return result

    @settings(max_examples=2 * cases_per_worker, deadline=None, suppress_health_check=list(HealthCheck))
    @given(cases())
    def run(case: Any) -> None:
        operands = [drawn.given for drawn in case.operands]
        scorch.einsum(case.equation, *operands, format=case.requested)

    monkeypatch.setattr(running, "execute", execute)
    run()


# the parts -------------------------------------------------------------------------------------------


def test_routines_that_allocate_say_how_much() -> None:
    for routine in INTRINSICS.values():
        assert ("malloc(" in routine.text) == (routine.memory is not None)


@pytest.mark.parametrize("format", ["csr", "csc", "coo", "dcsr", "bsr(2,3)"])
def test_coordinates_of_every_value(format: str) -> None:
    A = random(7, 9, 20, format, 0)
    dense = A.to_dense()
    found = coordinates(A.storage.pattern)
    rows, columns = found[0], found[1]
    inside = (rows < 7) & (columns < 9)
    assert torch.equal(dense[rows[inside], columns[inside]], A.storage.values[inside])


def test_partial_products_are_counted() -> None:
    A, B = random(50, 60, 200, "csr", 0), random(60, 40, 300, "csc", 1)
    [step] = explain("ij,jk->ik", A, B, format="csr").steps
    assert step.memory is not None
    products = torch.einsum("ij,jk->", (A.to_dense() != 0).double(), (B.to_dense() != 0).double())
    assert step.memory.values == min(int(products), 50 * 40)


def test_memory_is_told_in_a_line() -> None:
    A = scorch.from_torch(torch.eye(300), format="csr")
    found = explain("ij->i", A, format="dense")
    line = "  memory    operands 3.6 KB, result 1.2 KB, workspace none"
    assert line in found.report().splitlines()
    assert found.steps[0].memory == Footprint(3_604, 1_200, True, 0, 0, 1, 0, 300)
    named = explain("ij,jk->ik", A, A).to_dict()["steps"][0]["memory"]
    assert named["workspace"] > named["each_thread"] > 300 * (4 + 4 + 1)


if __name__ == "__main__":
    count(*sys.argv[1:])

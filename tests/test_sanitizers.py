"""A sample of kernels of every shape runs clean under AddressSanitizer and UndefinedBehaviorSanitizer.

A process of its own compiles all kernels with the sanitizers, by the very way users choose a compiler
(``SCORCH_CC``), and has their runtime loaded first, so that operands and results have guarded borders too.
Starting it takes long, so one process runs all scripts below, and ends with what has to be noticed. The
compiler does not optimise, unless with ``--long``: all is compiled in half of the time, and what a kernel
reads wrongly and does not need is still read then.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import scorch

FLAGS = "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -g"
FLAGS += " --param asan-instrumentation-with-call-threshold=0"  # checks are calls, which are compiled sooner

SETUP = """
import sys
import torch
import scorch
from scorch import Format, SparseTensor
from scorch._src.backends.cpu.jit import load
from scorch._src.engine.execute import convert, from_dense, prepare, run_step, sorted_storage
from scorch._src.storage.storage import Pattern, Storage

def random(*shape, density=0.3, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(-3, 4, shape, generator=generator)
    values = values.abs() if dtype in (torch.bool, torch.uint8) else values
    kept = torch.rand(*shape, generator=generator) < density
    return torch.where(kept, values, 0).to(dtype)

def stored(dense, form):
    return dense if form == "dense" else SparseTensor(from_dense(dense, Format(form, dims=dense.dim())))

def dense_of(tensor):
    return tensor.to_dense() if isinstance(tensor, SparseTensor) else tensor

def compare(found, truth, what):
    torch.testing.assert_close(dense_of(found), truth, rtol=1e-3, atol=1e-3, equal_nan=True, msg=what)
"""

# Between one script and the next, on both streams.
END = "== end of a script"
NEXT = f"""
print({END!r}, flush=True)
sys.stderr.write({END + chr(10)!r})
sys.stderr.flush()
"""

KERNELS = """
A, B = random(17, 19), random(19, 23, seed=1)
C, D = random(17, 19, seed=2), random(17, 19, seed=3)
X = random(19, 13, density=1.0, seed=4)
checked = 0

def check(text, truth, format=None, **tensors):
    global checked
    compare(scorch.evaluate(text, format=format, **tensors), truth, text)
    checked += 1

for f, g, result in (
    ("csr", "csr", "csr"),
    ("coo", "bsr(4,3)", "dcsr"),
):
    S = stored(A, f)
    check("C[i,k] = A[i,j] * B[j,k]", A @ B, result, A=S, B=stored(B, g))            # rows, lists, workspaces
    check("C[i,k] = A[i,j] * X[j,k]", A @ X, A=S, X=X)                               # a dense result
    check("C[i,j] = A[i,j] * d[j]", A * A[0], A=S, d=A[0])                            # a shared pattern
    check("C[i,j] = A[i,j] + C[i,j]", A + C, A=S, C=stored(C, f))                     # merged, with tails

def attend(M, Q, K, V):
    return torch.relu(torch.sparse.softmax(torch.sparse.sampled_addmm(M, Q, K.T) * 0.5, 1) @ V + 1)

for f in ("coo",):                                                                    # joined calls
    M = stored(random(17, 19, density=0.2, seed=7), f)
    args = M, random(17, 5, density=1.0), X[:, :5], X
    compare(scorch.compile(attend)(*args), attend(*args), "attention")
    chain = scorch.compile(lambda S: torch.tanh(S * 2).square())
    compare(chain(M), torch.tanh(M * 2).square().to_dense(), "chain")
    checked += 2

S = stored(A, "csr")
check("y[i] = A[i,j]", A.sum(1), A=S)                                                 # an accumulator
check("C[i,j] = A[i,j] / C[i,j]", A / C, A=S, C=stored(C, "coo"))                     # visited everywhere
check("C[i,j] = A[i,j] + C[i,j] - D[i,j]", A + C - D, A=S, C=stored(C, "dcsr"), D=stored(D, "csc"))
check("C[i,j] = A[i,j] * C[i,j]", A * C, "coo", A=S, C=stored(C, "dcsr"))             # intersected
check("y[j] = max(i, A[i,j] + C[i,j])", (A + C).amax(0), A=S, C=stored(C, "coo"))
check("y[i] = A[i,i]", A[:17, :17].diagonal(), A=stored(A[:17, :17], "coo"))          # searched

for dtype, result in (
    (torch.float16, "csr"),
    (torch.complex64, "coo"),
    (torch.int8, "dense"),
    (torch.bool, "csr"),
):
    E, F = random(9, 8, dtype=dtype), random(8, 7, seed=1, dtype=dtype)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    truth = E.to(wide) @ F.to(wide)
    truth = truth != 0 if dtype == torch.bool else truth.to(dtype)
    check("C[i,k] = A[i,j] * B[j,k]", truth, result, A=stored(E, "csr"), B=stored(F, "csr"))

T = random(6, 7, 8)
M = random(7, 5, density=1.0)
c = T[0, 0]
truth = torch.einsum("ijk,jl,k->il", T, M, c)
check("C[i,l] = A[i,j,k] * B[j,l] * c[k]", truth, A=stored(T, "csf"), B=M, c=c)
truth = torch.einsum("ikj,ikl->ijl", T, T)
check("C[i,j,l] = A[i,k,j] * B[i,k,l]", truth, "sss", A=stored(T, "sss"), B=stored(T, "sss"))
check("C[k,j,i] = A[i,j,k]", T.permute(2, 1, 0), "coo", A=stored(T, "dsd"))
check("C[i,j] = exp(-A[i,j]) + where(A[i,j] > 1, sqrt(A[i,j]), tanh(A[i,j]))",
      torch.exp(-A) + torch.where(A > 1, A.sqrt(), A.tanh()), A=stored(A, "csr"))

for rows in (0, 1):  # nothing stored, nothing there
    empty = torch.zeros(rows, 5)
    none = torch.zeros(5, 0)
    check("C[i,k] = A[i,j] * B[j,k]", empty @ none, "csr", A=stored(empty, "csr"), B=stored(none, "csr"))
    check("C[i,j] = A[i,j] + A[i,j]", empty, "coo", A=stored(empty, "coo"))

# More than 256 entries, so that arrays grow; and threads.
large = random(300, 400, density=0.2, seed=5)
L, R = stored(large, "csr"), stored(large.T.contiguous(), "csr")
for result in ("csr", "coo", "dcsr"):
    check("C[i,k] = A[i,j] * B[j,k]", large @ large.T, result, A=L, B=R)
with scorch.settings(threads=3):
    check("C[i,k] = A[i,j] * B[j,k]", large @ large.T, "csr", A=L, B=R)
    check("C[i,k] = A[i,j] * X[j,k]", large @ large.T, A=stored(large, "coo"), X=large.T.contiguous())

# Arrays moved by functions of their own: matrices together, rows picked, rows from pointers and back.
for dtype in (torch.bfloat16, torch.float64):
    near = random(300, 400, density=0.2, seed=6, dtype=dtype)
    N = stored(near, "csr")
    with scorch.settings(threads=3):
        for dim in (0, 1):
            compare(torch.cat([N, N, N], dim), torch.cat([near, near, near], dim), "cat")
        compare(N[torch.tensor([5, 0, 299, 5])], near[[5, 0, 299, 5]], "rows")
        compare(N.to_format("coo").to_format("csr"), near, "there and back")
        compare(N.to_format("csc"), near, "by columns")
    checked += 5
U, V = random(300, 21, density=1.0, seed=7), random(400, 21, density=1.0, seed=8)
check("C[i,j] = A[i,j] * U[i,k] * V[j,k]", large * (U @ V.T), A=L, U=U, V=V)         # entries side by side

# Attention: blocks of queries that share keys, queries by themselves, tails of every kind, both passes.
from scorch._src.ops.attention.sdpa import attend
from scorch._src.ops.attention.mask_pairs import find_pairs
from scorch._src.backends.cpu.routines.attention import fused as routine
routine.MIN_PAIRS_PER_THREAD = 1  # so that threads share a head
generator = torch.Generator().manual_seed(9)
for dtype, rows, columns, depth, width, dropout in (
    (torch.float32, 37, 50, 7, 5, 0.0),
    (torch.float64, 33, 90, 3, 18, 0.2),
):
    seen = (torch.arange(rows)[:, None] - torch.arange(columns)).abs() < 6
    seen[20:] = torch.rand(rows - 20, columns, generator=generator) < 0.1
    seen[:, 3] = True
    q, k, v = (torch.randn(2, *size, dtype=dtype, generator=generator).requires_grad_()
               for size in ((rows, depth), (columns, depth), (columns, width)))
    skipped = torch.rand(2, columns, generator=generator) < 0.1
    with scorch.settings(threads=3):
        found = attend(q, k, v, find_pairs(stored(seen, "csr")), (2,), dropout=dropout, skipped=skipped)
        found.sum().backward()
    if not dropout:
        kept = seen & ~skipped[:, None]
        compare(found, torch.nn.functional.scaled_dot_product_attention(q, k, v, kept), "attention")
    checked += 2

# Keys of two words: coordinates that do not fit 64 bits together.
places = torch.randint(2**40, (2, 500), generator=torch.Generator().manual_seed(0))
pos = torch.tensor([0, 500])
pattern = Pattern(Format("oo"), (2**40, 2**40), (pos, None), (places[0], places[1]), (500, 500))
ordered = sorted_storage(Storage(pattern, torch.ones(500)), Format("oo"))
turned = convert(ordered, Format("ss", order=(1, 0)))
back = convert(turned, Format("oo"))
assert all(torch.equal(a, b) for a, b in zip(back.pattern.arrays, ordered.pattern.arrays))
assert torch.equal(back.pattern.crd[0], places[0].sort().values)
checked += 3
print("clean", checked)
"""

# Patterns that functions and files with wrong arguments and contents make, and what kernels do with them.
PATTERNS = """
import pickle, sys, tempfile, warnings
from pathlib import Path
from damaged_files import READERS, draw_file, tensors_in
from index_calls import KINDS, as_sparse, draw_call
from scorch.errors import ScorchError
from validity import check_storage, dense_of as read

warnings.simplefilter("ignore")
CALLS, FILES = int(sys.argv[1]), int(sys.argv[2])
made = refused = 0

def use(tensor):
    global made
    check_storage(tensor)
    if tensor.dim() == 2 and tensor.numel() <= 10**4 and tensor.dtype == torch.float32:
        dense = read(tensor)
        right = torch.ones(dense.shape[1], 3)
        compare(tensor @ right, dense @ right, "product")
        compare(tensor + tensor, dense + dense, "sum")
        compare(tensor, dense, "dense")
        made += 1

for name in KINDS:
    for seed in range(CALLS):
        call, draw = draw_call(seed, name, is_plain=True)
        try:
            found = call.run(as_sparse(draw))
        except (IndexError, RuntimeError, TypeError, ValueError, NotImplementedError):
            refused += 1
            continue
        if isinstance(found, SparseTensor):
            use(found)

with tempfile.TemporaryDirectory() as folder:
    for kind, readers in READERS.items():
        for seed in range(FILES):
            path = draw_file(seed, kind, Path(folder), ("csr", "coo"))
            for read_file in readers:
                try:
                    tensors = list(tensors_in(read_file(path)))
                except Exception as error:
                    is_torch = read_file.__name__.startswith("by_torch")
                    assert is_torch or isinstance(error, ScorchError), repr(error)
                    refused += 1
                    continue
                for tensor in tensors:
                    if isinstance(tensor, SparseTensor):
                        try:
                            tensor.storage.pattern
                        except ScorchError:
                            refused += 1
                            continue
                        use(tensor.detach())
print("clean", made, refused)
"""

CONTROL = """
text = '''
void *malloc(unsigned long); void free(void *);
long long overflow(long long *args) {
  long long *array = malloc(80), total = array[args[0]];
  free(array);
  return total;
}
'''
import ctypes
library = load(text)
function = ctypes.CFUNCTYPE(ctypes.c_longlong, ctypes.c_void_p)(library.address("overflow"))
function((ctypes.c_longlong * 1)(10))
print("clean")
"""


@pytest.fixture(scope="module")
def said(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, cases: int
) -> dict[str, tuple[str, str, int]]:
    """What each script wrote to stdout and stderr, and the status of the process where it ended, else 0."""
    gcc = shutil.which("gcc")
    if gcc is None or not sys.platform.startswith("linux"):
        pytest.skip("the sanitizers are used through gcc on Linux, which is not here")
    libraries = []
    for name in ("libasan.so", "libubsan.so"):
        found = subprocess.run([gcc, f"-print-file-name={name}"], capture_output=True, text=True, check=False)
        path = Path(found.stdout.strip())
        if not path.is_absolute() or not path.is_file():
            pytest.skip(f"gcc has no {name}")
        libraries.append(str(path.resolve()))
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (Path(scorch.__file__).parents[1], Path(__file__).parent))),
        "PYTHONMALLOC": "malloc",
        "SCORCH_CC": f"env -u LD_PRELOAD {gcc} {FLAGS}",  # the compiler itself runs without it
        "SCORCH_CACHE_DIR": str(tmp_path_factory.mktemp("sanitized")),
        "SCORCH_OPTIMIZE": "3" if request.config.getoption("long") else "0",
        "LD_PRELOAD": " ".join(libraries),
        # Python itself leaks by design; torch's own libraries are not compiled with the sanitizers. Who has
        # allocated an array is not told: to find out takes a fifth of the time.
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:exitcode=99:malloc_context_size=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:exitcode=99",
    }
    scripts = {"kernels": KERNELS, "patterns": PATTERNS, "control": CONTROL}
    if importlib.util.find_spec("safetensors") is None:
        del scripts["patterns"]
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            SETUP + NEXT.join(scripts.values()),
            str(max(6, cases // 10)),
            str(max(12, cases // 5)),
        ],
        env=environment,
        capture_output=True,
        text=True,
        timeout=3600,
        check=False,
    )
    out, err = (text.split(END + "\n") for text in (done.stdout, done.stderr))
    last = len(out) - 1  # where the process ended
    return {
        name: (out[number], err[number], done.returncode if number == last else 0)
        for number, name in enumerate(list(scripts)[: len(out)])
    }


def is_clean(said: dict[str, tuple[str, str, int]], name: str) -> list[int]:
    """The numbers that a script printed at its end, after which nobody has complained."""
    assert name in said, f"not reached: {list(said.values())[-1][1][-6000:]}"
    out, err, status = said[name]
    assert "runtime error" not in err and "AddressSanitizer" not in err and status == 0, err[-6000:]
    word, *numbers = out.split()
    assert word == "clean"
    return [int(number) for number in numbers]


def test_kernels_are_clean(said: dict[str, tuple[str, str, int]]) -> None:
    (checked,) = is_clean(said, "kernels")
    assert checked >= 25


def test_patterns_of_wrong_places_and_files_are_clean(said: dict[str, tuple[str, str, int]]) -> None:
    pytest.importorskip("safetensors")
    made, refused = is_clean(said, "patterns")
    assert made >= 100 and refused >= 100


def test_sanitizers_would_notice(said: dict[str, tuple[str, str, int]]) -> None:
    """The same set-up stops a kernel that reads behind its array."""
    assert "control" in said, f"not reached: {list(said.values())[-1][1][-6000:]}"
    out, err, status = said["control"]
    assert status == 99 and ("heap-buffer-overflow" in err or "insufficient space" in err), err[-3000:]
    assert "clean" not in out

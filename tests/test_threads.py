"""Many threads at once, few threads in a kernel, after a fork; and what results share with operands."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from textwrap import dedent

import pytest
import torch

import scorch
from fork_server import run_python
from properties.drawing import to_dense
from scorch import Format, SparseTensor
from scorch._src.engine.execute import from_dense
from scorch._src.tensor.create.build import from_coordinates
from scorch.settings import current

THREADS = 8
FORMATS = ["csr", "csc", "coo", "dcsr", "bsr(2,2)"]


def random(*shape: int, density: float = 0.3, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return values * (torch.rand(*shape, generator=generator) < density)


def stored(dense: torch.Tensor, form: str) -> SparseTensor:
    return SparseTensor(from_dense(dense, Format(form, dims=dense.dim())))


def at_once(calls: list[Callable[[], torch.Tensor]]) -> list[torch.Tensor]:
    """The results of ``calls``, all begun at the same moment."""
    barrier = threading.Barrier(len(calls))

    def run(call: Callable[[], torch.Tensor]) -> torch.Tensor:
        barrier.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing compiled, planned or remembered yet."""
    from scorch._src.backends.cpu import jit
    from scorch._src.engine import execute
    from scorch._src.statements import call_cache

    for module in (call_cache, execute):
        for name, kept in list(vars(module).items()):
            if name.startswith("_") and isinstance(kept, dict) and not name.startswith("__"):
                empty = kept.copy()
                empty.clear()
                monkeypatch.setattr(module, name, empty)
    jit.forget()
    with scorch.settings(cache_directory=tmp_path):
        yield
    jit.forget()


# threads of the user ---------------------------------------------------------------------------------


def test_eight_threads_with_the_same_new_expression(fresh: None) -> None:
    A, B = random(40, 50), random(50, 30, seed=1)
    S, T = stored(A, "csr"), stored(B, "csc")
    settings = current()

    def call() -> torch.Tensor:
        with scorch.settings(cache_directory=settings.cache_directory):
            return to_dense(scorch.einsum("ij,jk->ik", S, T, format="csr"))

    for found in at_once([call] * THREADS):
        torch.testing.assert_close(found, A @ B)


def test_eight_threads_with_different_new_expressions(fresh: None) -> None:
    A, B = random(20, 20), random(20, 20, seed=1)
    expressions: list[tuple[str, torch.Tensor]] = [
        ("C[i,k] = A[i,j] * B[j,k]", A @ B),
        ("C[i,j] = A[i,j] + B[i,j]", A + B),
        ("C[i,j] = A[i,j] * B[i,j]", A * B),
        ("C[i,j] = A[i,j] + B[j,i]", A + B.T),
        ("C[i,j] = relu(A[i,j]) - B[i,j]", torch.relu(A) - B),
        ("C[i] = max(j, A[i,j] * B[i,j])", (A * B).amax(1)),
        ("C[i,k] = A[j,i] * B[k,j]", A.T @ B.T),
        ("C[j] = A[i,j] * B[i,j]", (A * B).sum(0)),
    ]
    settings = current()

    def make(text: str, forms: tuple[str, str]) -> Callable[[], torch.Tensor]:
        S, T = stored(A, forms[0]), stored(B, forms[1])

        def call() -> torch.Tensor:
            with scorch.settings(cache_directory=settings.cache_directory):
                return to_dense(scorch.evaluate(text, A=S, B=T))

        return call

    for forms in [("csr", "csr"), ("coo", "csc")]:
        results = at_once([make(text, forms) for text, _ in expressions])
        for (text, truth), found in zip(expressions, results, strict=True):
            torch.testing.assert_close(found, truth, msg=text)


def test_eight_threads_convert_the_same_operand() -> None:
    """The transposed pattern that is kept with the operand is made once or several times, but well."""
    A, B = random(60, 60), random(60, 60, seed=1)
    for form in FORMATS:
        S, T = stored(A, form), stored(B, "csr")
        calls = [lambda S=S, T=T: to_dense(scorch.evaluate("C[i,j] = A[i,j] + B[j,i]", A=S, B=T))] * THREADS
        for found in at_once(calls):
            torch.testing.assert_close(found, A + B.T)


def test_threads_that_keep_calling_stay_right() -> None:
    A, B = random(100, 120), random(120, 80, seed=1)
    pairs = [(stored(A, f), stored(B, g)) for f, g in itertools.product(["csr", "coo"], ["csr", "csc"])]
    truth = A @ B

    def work(number: int) -> bool:
        for turn in range(20):
            S, T = pairs[(number + turn) % len(pairs)]
            if not torch.allclose(to_dense(scorch.einsum("ij,jk->ik", S, T)), truth):
                return False
        return True

    with ThreadPoolExecutor(THREADS) as pool:
        assert all(pool.map(work, range(THREADS)))


def test_settings_belong_to_the_thread() -> None:
    seen = []

    def look() -> None:
        seen.append(current().threads)

    with scorch.settings(threads=1):
        worker = threading.Thread(target=look)
        worker.start()
        worker.join()
        assert current().threads == 1
    assert seen == [None]


# what results share ----------------------------------------------------------------------------------

ALIASES = ["ij->ij", "ij->ji"]


@pytest.mark.parametrize("form", [*FORMATS, "dense"])
@pytest.mark.parametrize("equation", ALIASES)
def test_identity_shares_no_values(equation: str, form: str) -> None:
    dense = random(6, 8)
    A = dense.clone() if form == "dense" else stored(dense, form)
    result = scorch.einsum(equation, A)
    (result.storage.values if isinstance(result, SparseTensor) else result).fill_(7.0)
    assert torch.equal(to_dense(A), dense), "the operand changed with the result"


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    "text",
    [
        "B[i,j] = A[i,j]",
        "B[j,i] = A[i,j]",
        "B[i,j] = 1 * A[i,j]",
        "B[i,j] = A[i,j] * d[j]",
        "A[i,j] += 0 * d[j]",
    ],
)
def test_shared_pattern_shares_no_values(text: str, form: str) -> None:
    dense = random(6, 8)
    A, d = stored(dense, form), torch.ones(8, dtype=torch.float64)
    result = scorch.evaluate(text, A=A, **({"d": d} if "d[" in text else {}))
    values = result.storage.values if isinstance(result, SparseTensor) else result
    values.fill_(7.0)
    assert torch.equal(to_dense(A), dense) and torch.equal(d, torch.ones_like(d))


def test_dense_identities_share_no_values() -> None:
    x = torch.ones(3, 4)
    for text in ("y[i,j] = x[i,j]", "y[j,i] = x[i,j]", "x[i,j] += 0"):
        scorch.evaluate(text, x=x).fill_(7.0)
        assert torch.equal(x, torch.ones(3, 4)), text
    scorch.einsum("ij->ij", x, format="dense").fill_(7.0)
    v = torch.ones(3, 3)
    scorch.einsum("ii->i", v).fill_(7.0)
    assert torch.equal(x, torch.ones(3, 4)) and torch.equal(v, torch.ones(3, 3))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", FORMATS)
def test_operands_are_never_changed(form: str) -> None:
    A, B = stored(random(7, 7), form), stored(random(7, 7, seed=1), "csc")
    before = [[array.clone() for array in (*t.storage.pattern.arrays, t.storage.values)] for t in (A, B)]
    for text in (
        "C[i,k] = A[i,j] * B[j,k]",
        "C[i,j] = A[i,j] + B[j,i]",
        "A[i,j] += B[i,j]",
        "C[i] = max(j, A[i,j] + B[i,j])",
    ):
        scorch.evaluate(text, A=A, B=B)
    for tensor, arrays in zip((A, B), before, strict=True):
        after = (*tensor.storage.pattern.arrays, tensor.storage.values)
        assert all(torch.equal(a, b) for a, b in zip(after, arrays, strict=True))


# threads of a kernel ---------------------------------------------------------------------------------


def graph(
    size: int, entries: int, form: str, seed: int = 0, dtype: torch.dtype = torch.float32
) -> SparseTensor:
    """Rows of very different lengths, as in a graph."""
    generator = torch.Generator().manual_seed(seed)
    rows = (torch.rand(entries, generator=generator) ** 3 * size).to(torch.int64)
    columns = torch.randint(size, (entries,), generator=generator)
    values = torch.randn(entries, generator=generator, dtype=dtype)
    found = from_coordinates(torch.stack([rows, columns]), values, (size, size), form)
    assert isinstance(found, SparseTensor)
    return found


PARALLEL = [
    ("y[i] = A[i,j] * x[j]", ("csr",)),
    ("C[i,k] = A[i,j] * X[j,k]", ("csr",)),
    ("C[i,k] = A[i,j] * X[j,k]", ("coo",)),
    ("C[i,k] = A[i,j] * B[j,k]", ("csr", "csr")),
    ("C[i,k] = A[i,j] * B[j,k]", ("dcsr", "csr")),
    ("C[i,j] = A[i,j] + B[i,j]", ("csr", "csr")),
    ("C[i,j] = A[i,j] * X[i,k] * X[j,k]", ("csr",)),
    ("C[i,j] = A[i,j] * 2", ("coo",)),
]


def operands_for(text: str, forms: tuple[str, ...]) -> dict[str, torch.Tensor]:
    size = 3000
    tensors: dict[str, torch.Tensor] = {
        name: graph(size, 40_000, form, seed)
        for seed, (name, form) in enumerate(zip("AB", forms, strict=False))
    }
    generator = torch.Generator().manual_seed(9)
    if "X[" in text:
        tensors["X"] = torch.randn(size, 16, generator=generator)
    if "x[" in text:
        tensors["x"] = torch.randn(size, generator=generator)
    return tensors


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("text", "forms"), PARALLEL)
def test_one_and_two_threads_agree_and_repeat_bitwise(text: str, forms: tuple[str, ...]) -> None:
    tensors = operands_for(text, forms)
    results = {}
    for threads in (1, 2, 3):
        with scorch.settings(threads=threads):
            first = scorch.evaluate(text, **tensors)
            for _ in range(3):
                again = scorch.evaluate(text, **tensors)
                assert_bitwise_equal(first, again)
            results[threads] = to_dense(first)
    torch.testing.assert_close(results[2], results[1], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(results[3], results[1], rtol=1e-4, atol=1e-4)


def assert_bitwise_equal(a: torch.Tensor, b: torch.Tensor) -> None:
    if isinstance(a, SparseTensor):
        assert isinstance(b, SparseTensor) and a.format == b.format
        pairs = zip(
            (*a.storage.pattern.arrays, a.storage.values),
            (*b.storage.pattern.arrays, b.storage.values),
            strict=True,
        )
        assert all(torch.equal(x, y) for x, y in pairs)
    else:
        assert torch.equal(a, b)


def test_number_of_threads_of_torch_is_obeyed() -> None:
    """With one thread in torch a kernel stays on the caller's; its result is that of settings(threads=1)."""
    text, forms = PARALLEL[3]
    tensors = operands_for(text, forms)
    with scorch.settings(threads=1):
        alone = scorch.evaluate(text, **tensors)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert_bitwise_equal(scorch.evaluate(text, **tensors), alone)
    finally:
        torch.set_num_threads(before)


def run_script(text: str, **environment: str) -> str:
    source = Path(scorch.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(source), **environment}
    done = run_python(["-c", dedent(text)], env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


SETUP = """
    import os, sys, torch, scorch
    from scorch._src.tensor.create.build import from_coordinates
    torch.manual_seed(0)
    A = from_coordinates(torch.randint(2000, (2, 60000)), torch.randn(60000), (2000, 2000), "csr")
    X = torch.randn(2000, 32)
"""


def test_one_thread_starts_no_others() -> None:
    """Counted by the system: torch.set_num_threads(1) before the first parallel kernel."""
    if not Path("/proc/self/task").is_dir():
        pytest.skip("no /proc to count threads in")
    script = f"""{SETUP}
    torch.set_num_threads(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
    before = len(os.listdir("/proc/self/task"))
    scorch.einsum("ij,jk->ik", A, X)
    scorch.einsum("ij,jk->ik", A, A)
    print(len(os.listdir("/proc/self/task")) - before)
    """
    assert int(run_script(script)) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.parametrize("threads", [1, 2])
def test_kernels_work_after_fork(threads: int) -> None:
    """A child of a process that has run kernels runs them too, on one thread as torch asks of children."""
    script = f"""{SETUP}
    import warnings; warnings.simplefilter("ignore")
    torch.set_num_threads({threads})
    truth = scorch.einsum("ij,jk->ik", A, X)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            torch.set_num_threads(1)
            found = scorch.einsum("ij,jk->ik", A, X)
            new = scorch.evaluate("C[i,k] = 3 * A[i,j] * X[j,k] + 1", A=A, X=X)  # compiled in the child
            good = torch.allclose(found, truth, atol=1e-4)
            status = 0 if good and torch.allclose(new, 3 * truth + 1, atol=1e-3) else 2
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    again = scorch.einsum("ij,jk->ik", A, X)
    print(os.waitstatus_to_exitcode(status), torch.equal(again, truth))
    """
    assert run_script(script).split() == ["0", "True"]


def test_threads_share_the_long_side_of_a_product_with_one_column():
    A, x = scorch.rand(400, 300, density=0.1, format="csr"), torch.rand(300, 1)
    loops = scorch.explain("C[i,k] = A[i,j] * x[j,k]", A=A, x=x)
    assert loops.loop_order[0] == "i"
    turned = scorch.explain("C[k,i] = x[k,j] * A[i,j]", A=A, x=x.T.contiguous())
    assert turned.loop_order[0] == "i"

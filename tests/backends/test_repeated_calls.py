"""Calls repeated by builtins: the same results as in Python, to which they leave what is unusual."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad

import scorch
from fork_server import run_python
from scorch import SparseTensor
from scorch._src.bounded import clear_plans
from scorch._src.events import LISTENERS, Event
from scorch._src.statements.call_cache import quickest
from scorch._src.tensor.hooks import hooks
from torch_has import needs_builtins

pytestmark = [needs_builtins, pytest.mark.cpu("a GPU's backend has builtins of its own")]

ADD = "C[i,j] = A[i,j] + B[i,j]"
CALLS: dict[str, Callable[..., Any]] = {
    "times a vector": lambda A, B, X, x: A @ x,
    "times a matrix": lambda A, B, X, x: A @ X,
    "sum": lambda A, B, X, x: A + B,
    "difference": lambda A, B, X, x: A - B,
    "product": lambda A, B, X, x: A * B,
    "sum with itself": lambda A, B, X, x: A + A,
    "difference on one pattern": lambda A, B, X, x: A - 3 * A,
    "product with itself": lambda A, B, X, x: A * A,
    "product with a dense matrix": lambda A, B, X, x: A * X,
    "einsum": lambda A, B, X, x: scorch.einsum("ij,j->i", A, x),
    "sampled product": lambda A, B, X, x: scorch.einsum("ij,ik,kj->ij", A, X, X),
    "evaluate": lambda A, B, X, x: scorch.evaluate(ADD, A=A, B=B),
    "relu": lambda A, B, X, x: torch.relu(A),
    "neg": lambda A, B, X, x: -A,
    "abs": lambda A, B, X, x: torch.abs(A),
}
EXPECTED: dict[str, Callable[..., torch.Tensor]] = {
    "einsum": lambda A, B, X, x: A @ x,
    "sampled product": lambda A, B, X, x: A * (X @ X),
    "evaluate": lambda A, B, X, x: A + B,
}


@pytest.fixture
def fresh() -> Iterator[None]:
    clear_plans()
    S = scorch.eye(3, format="csr")
    S + S  # from here on there are builtins
    yield
    clear_plans()


def drawn(seed: int, size: int, density: float) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)

    def matrix() -> torch.Tensor:
        values = torch.randn(size, size, generator=generator, dtype=torch.float64)
        return values * (torch.rand(size, size, generator=generator) < density)

    X = torch.randn(size, size, generator=generator, dtype=torch.float64)
    return matrix(), matrix(), X, X[0].clone()


@pytest.mark.whole
@pytest.mark.parametrize("name", CALLS)
def test_repeated_calls_are_those_of_dense_torch(fresh: None, name: str) -> None:
    for form in ("csr", "csc", "coo", "dcsr"):
        for seed, (size, density) in enumerate([(1, 1.0), (9, 0.0), (9, 0.3), (40, 0.1), (70, 0.9)]):
            A, B, X, x = drawn(seed, size, density)
            expected = EXPECTED.get(name, CALLS[name])(A, B, X, x)
            S, T = scorch.from_torch(A, format=form), scorch.from_torch(B, format=form)
            for _ in range(3):  # planned, remembered, repeated
                found = CALLS[name](S, T, X, x)
                dense = found.to_dense() if isinstance(found, SparseTensor) else found
                torch.testing.assert_close(dense, expected)


def repeated(call: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The result of a call that is repeated without planning or looking up anything in Python."""
    call()
    call()

    def fail(*args: object, **kwargs: object) -> None:
        raise AssertionError("this call is not repeated by a builtin")

    with monkeypatch.context() as quick:
        for place in ("statements.call_cache._known_run", "statements.call_cache.describe"):
            quick.setattr(f"scorch._src.{place}", fail)
        quick.setattr(hooks, "map_values", fail)
        return call()


@pytest.mark.whole
@pytest.mark.parametrize("name", CALLS)
def test_usual_calls_are_repeated_by_builtins(
    fresh: None, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    A, B, X, x = (array.float() for array in drawn(0, 20, 0.3))
    S, T = scorch.from_torch(A, format="csr"), scorch.from_torch(B, format="csr")
    U = S * 3.0  # on the pattern of S
    call = (lambda: S - U) if "one pattern" in name else (lambda: CALLS[name](S, T, X, x))
    found = repeated(call, monkeypatch)
    dense = found.to_dense() if isinstance(found, SparseTensor) else found
    torch.testing.assert_close(dense, EXPECTED.get(name, CALLS[name])(A, B, X, x))


def test_tensors_on_one_pattern_keep_it(fresh: None) -> None:
    S = scorch.from_torch(torch.eye(5), format="csr")
    for found in [S + 2.0 * S, S * S, scorch.evaluate(ADD, A=S, B=S)] * 3:
        found = S + S
        assert found.to_dense().equal(2 * torch.eye(5))
    assert (S + S).storage.pattern is S.storage.pattern
    assert (S - S).nnz == 5  # explicit zeros, as of other patterns


@pytest.mark.parametrize("number", [float("inf"), float("nan"), -float("inf")])
def test_product_with_what_is_not_finite_is_that_of_dense_tensors(fresh: None, number: float) -> None:
    A = torch.diag(torch.arange(1.0, 9.0))
    S, X = scorch.from_torch(A, format="csr"), torch.ones(8, 8)
    T = scorch.from_torch(A.flip(0).contiguous(), format="csr")
    for _ in range(3):
        assert isinstance(S * X, SparseTensor) and isinstance(S * T, SparseTensor)
    for place in [(0, 7), (3, 3), (7, 0)]:
        Y = X.clone()
        Y[place] = number
        found = S * Y
        dense = found.to_dense() if isinstance(found, SparseTensor) else found
        torch.testing.assert_close(dense, A * Y, equal_nan=True)
        B = A.flip(0).contiguous()
        B[place[0], 7 - place[0]] = number
        found = S * scorch.from_torch(B, format="csr")
        dense = found.to_dense() if isinstance(found, SparseTensor) else found
        torch.testing.assert_close(dense, A * B, equal_nan=True)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
def test_tracked_calls_are_left_to_autograd(fresh: None) -> None:
    S, x = scorch.from_torch(torch.eye(4), format="csr"), torch.ones(4)
    X = torch.ones(4, 4)
    for _ in range(3):
        S @ x, S + S, S * X, torch.relu(S), scorch.einsum("ij,j->i", S, x)
    y, T = x.clone().requires_grad_(), S.detach().clone().requires_grad_()
    assert (S @ y).requires_grad and (T @ x).requires_grad and torch.relu(T).requires_grad
    assert (T + T).requires_grad and (T * X).requires_grad
    assert scorch.einsum("ij,j->i", S, y).requires_grad
    with torch.no_grad():
        assert not (S @ y).requires_grad and not torch.relu(T).requires_grad
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(S @ forward_ad.make_dual(x, 2 * x)).tangent
        assert tangent is not None and tangent.equal(2 * x)


def test_lazily_negated_operands_are_read_with_their_sign(fresh: None) -> None:
    S, x = scorch.from_torch(torch.eye(4), format="csr"), torch.arange(4.0)
    for _ in range(3):
        S @ x
    assert (S @ torch._neg_view(x)).equal(-x)


def test_other_default_dtypes_have_the_dtype_of_the_values(fresh: None) -> None:
    S = scorch.from_torch(torch.eye(4), format="csr")
    for _ in range(3):
        S + S
    torch.set_default_dtype(torch.float64)
    try:
        assert (S + S).dtype == torch.relu(S).dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


def test_views_are_left_to_python(fresh: None) -> None:
    S = scorch.from_torch(torch.eye(4), format="csr")
    for _ in range(3):
        S + S
    view = S[1:]
    S.mul_(2)
    assert torch.relu(view).to_dense().equal(2 * torch.eye(4)[1:])
    assert (view + view).to_dense().equal(4 * torch.eye(4)[1:])


def test_listeners_hear_of_repeated_calls(fresh: None) -> None:
    S, x = scorch.from_torch(torch.eye(4), format="csr"), torch.ones(4)
    for _ in range(3):
        S @ x
    heard: list[Event] = []
    LISTENERS.append(heard.append)
    try:
        S @ x
    finally:
        LISTENERS.remove(heard.append)
    assert [event.kind for event in heard] == ["kernel"]


def test_operands_without_memory_are_refused(fresh: None) -> None:
    S, x = scorch.from_torch(torch.eye(4), format="csr"), torch.ones(4)
    for _ in range(3):
        S @ x
    x.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError):
        S @ x


def test_repeated_calls_hold_on_to_nothing(fresh: None) -> None:
    S, X = scorch.from_torch(torch.eye(6), format="csr"), torch.ones(6, 6)
    T = scorch.from_torch(torch.eye(6).flip(0).contiguous(), format="csr")
    watched = [S, T, X, S.storage, T.storage, S.storage.pattern, S.storage.values, None]

    def call() -> None:
        S + S, S + T, S * T, S * X, S @ X[0], torch.relu(S), scorch.einsum("ij,jk->ik", S, X)
        scorch.evaluate(ADD, A=S, B=T), S @ torch._neg_view(X[0])

    for _ in range(5):
        call()
    gc.collect()
    before, objects = [sys.getrefcount(each) for each in watched], len(gc.get_objects())
    for _ in range(200):
        call()
    gc.collect()
    after = [sys.getrefcount(each) for each in watched]
    assert before[:-1] == after[:-1]
    assert abs(after[-1] - before[-1]) < 100  # None
    assert len(gc.get_objects()) - objects < 100


def test_many_threads_repeat_one_call(fresh: None) -> None:
    A, B, X, x = drawn(3, 30, 0.2)
    S, T = scorch.from_torch(A, format="csr"), scorch.from_torch(B, format="csr")

    def work(number: int) -> bool:
        name = list(CALLS)[number % len(CALLS)]
        found = CALLS[name](S, T, X, x)
        dense = found.to_dense() if isinstance(found, SparseTensor) else found
        return torch.allclose(dense, EXPECTED.get(name, CALLS[name])(A, B, X, x))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(600)))


def test_what_no_call_is_known_by_is_left_to_python(fresh: None) -> None:
    S, x = scorch.from_torch(torch.eye(4), format="csr"), torch.ones(4)
    for operands in [(S, [1.0]), (S, None), (x, S), (S, x.to_sparse()), (S,) * 20, ()]:
        assert quickest.repeat(("ij,j->i", None), 0, *operands) is None
    assert quickest.repeat(([], None), 0, S, x) is None  # cannot be hashed


@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError, RuntimeError])
def test_signals_during_repeated_calls_are_raised(
    fresh: None, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    S, x = scorch.from_torch(torch.eye(4), format="csr"), torch.ones(4)
    raised = 0

    def interrupt(in_force: object) -> bool:  # as the handler of a signal does once, wherever Python runs
        nonlocal raised
        raised += 1
        if raised == 1:
            raise error("a signal")
        return True

    for call in (lambda: S @ x, lambda: S + S, lambda: torch.relu(S), lambda: scorch.einsum("ij,j->i", S, x)):
        for _ in range(3):
            call()
        raised = 0
        with scorch.settings(threads=1), monkeypatch.context() as patched:
            patched.setattr("scorch._src.statements.call_cache._is_same_kernel", interrupt)
            with pytest.raises(error, match="a signal"):
                call()


FIRST_IN_A_PROCESS = """
import torch
import scorch
from scorch._src.engine import executable

executable.UNCHECKED_BYTES = 1000  # results beyond it are compared with the free memory before each call
S, x = scorch.from_torch(torch.eye(30), format="csr"), torch.rand(30, 20)
for _ in range(4):
    assert torch.equal(S @ x, x)
"""


def test_the_first_call_of_a_process_may_be_one_that_python_checks() -> None:
    done = run_python(["-c", FIRST_IN_A_PROCESS])
    assert done.returncode == 0, done.stderr


def test_functions_of_values_are_repeated_by_builtins_in_a_process_that_calls_nothing_else() -> None:
    lines = (
        "import torch, scorch",
        "from scorch._src.tensor.registry import QUICK",
        "S = scorch.from_torch(torch.eye(3), format='csr')",
        "assert (torch.relu(S) == S).all() and torch.relu in QUICK",
    )
    done = run_python(["-c", "\n".join(lines)])
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int32])
@pytest.mark.parametrize("length", [7, 5000, 70_000])
def test_values_on_one_pattern_and_numbers_are_combined_as_torch_does(
    length: int, dtype: torch.dtype
) -> None:
    odd = [0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-30, -3.0] if dtype.is_floating_point else [7, -1]
    values = torch.tensor(odd, dtype=dtype).repeat(length // len(odd) + 1)[:length]
    pos, crd = torch.tensor([0, length]), torch.arange(length)
    S = scorch.sparse_csr_tensor(pos, crd, values, (1, length))
    T = S.with_values(values.flip(0))
    for _ in range(2):
        for sign in ("add", "sub", "mul"):
            for left, right in ((S, T), (S, S)):
                found = getattr(left, f"__{sign}__")(right)
                wanted = getattr(torch, sign)(left.values(), right.values())
                torch.testing.assert_close(found.values(), wanted, rtol=0, atol=0, equal_nan=True)
                assert isinstance(found, SparseTensor) and found.storage.pattern is S.storage.pattern
        for number in (2, -0.1, 1e-60, 2**62, 1e300 if dtype == torch.float64 else 3):
            found = S * number
            torch.testing.assert_close(found.values(), values * number, rtol=0, atol=0, equal_nan=True)

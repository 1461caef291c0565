"""Entries that operands bound are written in place; rows that come in any order are counted first."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import scorch
from scorch._src.engine.execute import convert
from scorch._src.explain.explain_statement import explain
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.settings import enabled
from validity import check_storage


def random(*shape: int, density: float = 0.3, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(1, 9, shape, generator=generator).float()
    return values * (torch.rand(*shape, generator=generator) < density)


def built(text: str, format: str | None = None, **tensors: torch.Tensor) -> str:
    return explain(text, format=format, **tensors).steps[-1].assembly


@pytest.fixture
def always_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from scorch._src.backends.cpu import executable
    from scorch._src.engine import execute
    from scorch._src.statements import call_cache

    def forget() -> None:
        for memory in (execute._plans, execute._conversions, call_cache._known, call_cache._recent):
            memory.clear()

    monkeypatch.setattr(executable, "SERIAL_WORK", -1)
    forget()
    yield
    forget()


needs_slots = pytest.mark.skipif(not enabled("slots"), reason="slots are switched off")
needs_buckets = pytest.mark.skipif(not enabled("buckets"), reason="buckets are switched off")


@needs_slots
def test_sums_and_products_say_what_bounds_them() -> None:
    A, B = (scorch.from_torch(random(8, 9, seed=seed), format="csr") for seed in (0, 1))
    assert "at most the nonzeros of A and B" in built("C[i,j] = A[i,j] + B[i,j]", A=A, B=B)
    one = built("C[i,j] = A[i,j] * B[i,j]", A=A, B=B)
    assert "at most the nonzeros of" in one and " and " not in one
    assert "no more" not in built("C[i,k] = A[i,j] * B[k,j]", A=A, B=B)
    assert "no more" not in built("C[i,j] = A[i,j] + B[i,j]", A=A.to_format("dcsr"), B=B)


@needs_buckets
def test_transposes_are_counted() -> None:
    A = scorch.from_torch(random(8, 9), format="csr")
    assert built("C[i,j] = A[i,j]", "csc", A=A) == "counted row by row, then written in place"
    assert "counted" not in built("C[i,j] = A[i,j]", "csr", A=A)
    assert "counted" not in built("C[j] = A[i,j]", "s", A=A)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("threads", [1, 2, 3, 16])
@pytest.mark.parametrize("density", [0.0, 0.1, 1.0])
def test_gaps_between_threads_close(threads: int, density: float, always_threads: None) -> None:
    dense = [random(37, 23, density=density, seed=1), random(37, 23, seed=2)]
    dense[1][5:20] = 0
    A, B = (scorch.from_torch(t, format="csr") for t in dense)
    with scorch.settings(threads=threads):
        for text, truth in (("A[i,j] + B[i,j]", sum(dense)), ("A[i,j] * B[i,j]", dense[0] * dense[1])):
            for _ in range(2):
                found = scorch.evaluate(f"C[i,j] = {text}", A=A, B=B)
                check_storage(found.storage)
                torch.testing.assert_close(found.to_dense(), truth)
        cube = random(4, 5, 6, density=density)
        T = scorch.from_torch(cube, format=scorch.Format("dds"))
        found = scorch.evaluate("C[i,j,k] = A[i,j,k] + B[i,j,k]", A=T, B=T, format=scorch.Format("dds"))
        check_storage(found.storage)
        torch.testing.assert_close(found.to_dense(), 2 * cube)


@pytest.mark.parametrize("source", ["csr", "csc", "coo", "dcsr", "bsr(2,3)", "dense"])
@pytest.mark.parametrize("target", ["csr", "csc", "coo", "dcsr", "do", "dense"])
@pytest.mark.parametrize("density", [0.0, 0.4])
def test_every_conversion_also_in_the_interpreter(source: str, target: str, density: float) -> None:
    dense = random(8, 9, density=density)
    tensor = scorch.from_torch(dense, format=source)
    if not isinstance(tensor, SparseTensor):
        return
    with scorch.settings(debug=True):
        for wanted in (scorch.Format(target), scorch.Format(target)):
            found = convert(tensor.storage, wanted)
            if not isinstance(found, torch.Tensor):
                check_storage(found)
                found = SparseTensor(found).to_dense()
            assert torch.equal(found, dense)


def test_explicit_zeros_stay() -> None:
    A = scorch.sparse_csr_tensor([0, 1, 2], [1, 0], [0.0, 5.0], (2, 2))
    B = scorch.sparse_csr_tensor([0, 1, 2], [1, 0], [0.0, -5.0], (2, 2))
    assert scorch.evaluate("C[i,j] = A[i,j] + B[i,j]", A=A, B=B).nnz == 2
    assert A.to_format("csc").nnz == 2
    assert A.to_format("coo").nnz == 2


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.float16, torch.complex64, torch.float64])
def test_transposes_of_every_dtype(dtype: torch.dtype) -> None:
    dense = random(7, 5).to(dtype)
    A = scorch.from_torch(dense, format="csr")
    for form in ("csc", "coo"):
        found = A.to_format(form)
        assert found.dtype == dtype
        assert torch.equal(found.to_dense(), dense)


@pytest.mark.parametrize("form", ["dds", "ooo", "doo", "sss"])
def test_diagonals_that_are_counted(form: str) -> None:
    """Not every entry of the operand is one of the result: the rows must not be counted from its arrays."""
    cube = random(6, 5, 6, density=0.6)
    A = scorch.from_torch(cube, format=scorch.Format(form))
    truth = torch.einsum("iji->ji", cube)
    for debug in (False, True):
        with scorch.settings(debug=debug):
            found = scorch.evaluate("C[j,i] = A[i,j,i]", A=A, format="csr")
            check_storage(found.storage)
            assert torch.equal(found.to_dense(), truth)

"""torch.sparse.softmax on any format: over stored entries only."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import grid_emulator  # noqa: F401 - registers a backend
import scorch
from properties.drawing import formats, tensors
from scorch._src.engine.fused_executable import FusedKernel
from scorch.errors import OperandError, ShapeError


def expected(dense: torch.Tensor, dim: int, log: bool) -> torch.Tensor:
    """As torch has it on COO: what is not stored is minus infinity."""
    low = torch.where(dense != 0, dense, torch.full_like(dense, float("-inf")))
    found = torch.log_softmax(low, dim) if log else torch.softmax(low, dim)
    return torch.where(dense != 0, found, torch.zeros_like(dense))


@given(st.data())
def test_softmax_of_any_format(data):
    dims = data.draw(st.integers(1, 3))
    shape = tuple(data.draw(st.integers(1, 5)) for _ in range(dims))
    form = data.draw(formats(dims).filter(lambda form: not form.is_dense))
    drawn = data.draw(tensors(shape, torch.float64, form))
    dim, log = data.draw(st.integers(-dims, dims - 1)), data.draw(st.booleans())
    # Values are drawn with stored zeros; other values make what is stored plain to see.
    pattern = drawn.given.storage.pattern
    if pattern.size == 0 or any(level.is_full for level in pattern.format.levels):
        return
    values = torch.rand(pattern.size, dtype=torch.float64) + 0.1
    A = scorch.SparseTensor(type(drawn.given.storage)(pattern, values))
    function = torch.sparse.log_softmax if log else torch.sparse.softmax
    found = function(A, dim)
    again = function(A, dim)  # the second call takes a shorter way
    assert torch.equal(found.storage.values, again.storage.values)
    assert found.format == A.format and (form.is_blocked or found.storage.pattern is pattern)
    dense = A.to_dense()
    wanted = expected(dense, dim, log)
    torch.testing.assert_close(torch.where(dense != 0, found.to_dense(), 0 * dense), wanted)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", ["csr", "csc", "coo", "dcsr"])
@pytest.mark.parametrize("dim", [0, 1])
def test_softmax_is_that_of_torch(form, dim):
    generator = torch.Generator().manual_seed(5)
    dense = torch.rand(30, 20, generator=generator) * 50
    dense[dense < 35] = 0
    wanted = torch.sparse.softmax(dense.to_sparse_coo(), dim).to_dense()
    torch.testing.assert_close(
        torch.sparse.softmax(scorch.from_torch(dense, format=form), dim).to_dense(), wanted
    )
    with scorch.settings(debug=True):
        found = torch.sparse.log_softmax(scorch.from_torch(dense, format=form), dim).to_dense()
    torch.testing.assert_close(found, torch.sparse.log_softmax(dense.to_sparse_coo(), dim).to_dense())


@pytest.mark.cpu("selects its backends")
@pytest.mark.parametrize("backend", ["cpu", "emulated"])
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_rows_take_one_kernel(name, backend, monkeypatch):
    dense = torch.randn(20, 30) * (torch.rand(20, 30) < 0.3)
    S, function = scorch.from_torch(dense, format="csr"), getattr(torch.sparse, name)
    runs = []
    run = FusedKernel.run
    monkeypatch.setattr(FusedKernel, "run", lambda *given: runs.append(0) or run(*given))
    with scorch.settings(backend=backend):
        found = function(S, 1)
        assert len(runs) == 1
        for dtype in (torch.float16, torch.bfloat16):  # which kernels of several steps do not store
            narrow = function(S.to(dtype), 1)
            assert narrow.dtype == dtype
            torch.testing.assert_close(narrow.values().float(), found.values(), rtol=3e-2, atol=3e-2)
    wanted = function(dense.to_sparse(), 1)
    torch.testing.assert_close(found.values(), wanted.values())


def test_wrong_softmax_is_refused():
    A = scorch.from_torch(torch.eye(3), format="csr")
    with pytest.raises(ShapeError, match="dimension 2 is out of range for a 2-D tensor"):
        torch.sparse.softmax(A, 2)
    with pytest.raises(OperandError, match=r"expected floating-point values, but got torch\.int64"):
        torch.sparse.softmax(scorch.from_torch(torch.eye(3, dtype=torch.int64), format="csr"), 1)

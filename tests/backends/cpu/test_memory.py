"""Results lie in memory of Scorch's own: torch may do with them what it does with its own tensors."""

from __future__ import annotations

import gc
import io
import os
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import scorch
from scorch._src.backends.cpu.launch import builtins, max_pooled_bytes, pooled_memory, release_memory
from scorch.settings import enabled

MIB = 1 << 20

pytestmark = pytest.mark.skipif(builtins() is None, reason="this torch has no exchange table")


@pytest.fixture
def empty_pool() -> Iterator[None]:
    gc.collect()
    release_memory()
    yield
    gc.collect()
    release_memory()


def product(rows: int, columns: int = 64) -> torch.Tensor:
    """A dense result of ``rows`` x ``columns`` floats."""
    S = scorch.from_torch(torch.eye(rows), format="csr") if rows <= 2000 else _diagonal(rows)
    return scorch.einsum("ij,jk->ik", S, torch.ones(rows, columns))


def _diagonal(rows: int) -> scorch.SparseTensor:
    places = torch.arange(rows)
    return scorch.sparse_coo_tensor(
        torch.stack([places, places]), torch.ones(rows), (rows, rows), format="csr"
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("rows", [5, 20_000])
def test_results_are_saved_copied_and_shared(rows: int, tmp_path: Path, empty_pool: None) -> None:
    found = product(rows)
    truth = torch.ones(rows, 64)
    assert torch.equal(found, truth)
    assert torch.equal(pickle.loads(pickle.dumps(found)), truth)
    torch.save(found, tmp_path / "found.pt")
    assert torch.equal(torch.load(tmp_path / "found.pt"), truth)
    assert os.path.getsize(tmp_path / "found.pt") < 4 * rows * 64 + 20_000
    assert torch.equal(found.clone(), truth)
    found.share_memory_()
    assert torch.equal(found, truth)
    assert found.is_shared()
    found += 1
    assert torch.equal(found, truth + 1)


@pytest.mark.whole
@pytest.mark.parametrize("rows", [50, 300])
def test_arrays_of_a_kernel_become_the_result(rows: int) -> None:
    """Those of few nonzeros, 2,500, are copied; 90,000 stay where the kernel put them."""
    dense = torch.ones(rows, rows)
    S = scorch.from_torch(torch.eye(rows) * 2 + torch.eye(rows).roll(1, 0), format="csr")
    A = scorch.from_torch(dense, format="csr")
    with scorch.settings(threads=1):
        results = [S @ A for _ in range(3)]
        del results[1]
        results.append(A @ S)
    gc.collect()
    for found in (*results, pickle.loads(pickle.dumps(results[0])), results[0].clone()):
        assert torch.equal(found.to_dense(), 3 * dense)
        for array in (found.values(), found.storage.pattern.crd[-1]):
            assert array is not None and array.untyped_storage().nbytes() == 4 * rows * rows
    before = results[0].values().clone()
    results[0].values().share_memory_()
    assert torch.equal(results[0].values(), before)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("size", [60, 3000])
def test_sums_that_are_shorter_than_they_might_be_are_saved_short(size: int) -> None:
    torch.manual_seed(0)
    dense = torch.rand(size, size) * (torch.rand(size, size) < 0.1)
    S = scorch.from_torch(dense, format="csr")
    T = scorch.from_torch(dense * 2, format="csr")
    found = scorch.evaluate("C[i,j] = A[i,j] + B[i,j]", A=S, B=T)
    assert found.nnz == S.nnz
    values = found.storage.values
    assert values.untyped_storage().nbytes() == values.numel() * values.element_size()
    written = io.BytesIO()
    torch.save(found.storage.values, written)
    assert len(written.getvalue()) < values.numel() * values.element_size() + 20_000
    torch.testing.assert_close(found.to_dense(), 3 * dense)
    again = pickle.loads(pickle.dumps(found))
    torch.testing.assert_close(again.to_dense(), 3 * dense)


@pytest.mark.skipif(not enabled("pool"), reason="the pool is switched off")
def test_freed_results_serve_the_next_ones(empty_pool: None) -> None:
    found = product(40_000)
    address = found.data_ptr()
    assert address % (2 * MIB) == 0
    assert pooled_memory() == 0
    del found
    assert pooled_memory() >= 40_000 * 64 * 4
    found = product(40_000)
    assert found.data_ptr() == address
    assert torch.equal(found, torch.ones(40_000, 64))
    del found
    assert release_memory() >= 40_000 * 64 * 4
    assert pooled_memory() == 0


@pytest.mark.skipif(not enabled("pool"), reason="the pool is switched off")
def test_memory_that_a_result_leaves_over_serves_the_next_one(empty_pool: None) -> None:
    """Pages given back to the system would have to be cleared for every call."""
    count = 600_000
    A, places = _diagonal(count), torch.arange(count)
    shifted = torch.stack([places, (places + 1).clamp(max=count - 1)])
    B = scorch.sparse_coo_tensor(shifted, torch.full((count,), 2.0), (count, count), format="csr")
    found = A * B
    assert (found.nnz, found.values().tolist(), found.col_indices().tolist()) == (1, [2.0], [count - 1])
    assert pooled_memory() >= 2 * 4 * count


@pytest.mark.skipif(not enabled("pool"), reason="the pool is switched off")
def test_reused_memory_does_not_shine_through(empty_pool: None) -> None:
    """A kernel that adds to its result, and one that leaves most of it alone."""
    rows = 40_000
    x = torch.full((rows, 64), 7.0)
    found = scorch.einsum("ij,jk->ik", _diagonal(rows), x)
    del found
    few = scorch.sparse_coo_tensor(torch.tensor([[5], [6]]), torch.ones(1), (rows, rows), format="coo")
    found = scorch.einsum("ij,jk->ik", few, x, format="dense")
    assert found.sum() == 7 * 64
    assert torch.equal(found[5], x[6])


@pytest.mark.skipif(not enabled("pool"), reason="the pool is switched off")
def test_the_pool_is_bounded(empty_pool: None) -> None:
    held = [torch.ones(1)]
    S = _diagonal(100_000)
    ones = torch.ones(100_000, 256)
    for _ in range(6):  # of 100 MB each, which is more than the pool keeps
        held.append(scorch.einsum("ij,jk->ik", S, ones))
    held.clear()
    assert 0 < pooled_memory() <= max_pooled_bytes()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_the_pool_after_a_fork(empty_pool: None) -> None:
    S, ones = _diagonal(40_000), torch.ones(40_000, 64)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # torch's own threads are not there in the child
    try:
        scorch.einsum("ij,jk->ik", S, ones)
        child = os.fork()
        if child == 0:
            found = scorch.einsum("ij,jk->ik", S, ones)
            is_right = torch.equal(found, ones)
            del found
            os._exit(0 if is_right and (release_memory() > 0 or not enabled("pool")) else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert torch.equal(scorch.einsum("ij,jk->ik", S, ones), ones)
    finally:
        torch.set_num_threads(threads)


def test_threads_that_allocate_and_free_at_once(empty_pool: None) -> None:
    wrong = []

    def work(number: int) -> None:
        with scorch.settings(threads=1):
            for turn in range(20):
                rows = 9000 + 1000 * ((number + turn) % 5)
                if not bool((product(rows) == 1).all()):
                    wrong.append((number, turn))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_result_too_large_for_memory_is_an_error() -> None:
    S = scorch.sparse_coo_tensor(torch.tensor([[0], [0]]), torch.ones(1), (10**8, 10**8), format="csr")
    with pytest.raises(scorch.errors.ScorchError):
        scorch.einsum("ij,k->ik", S, torch.ones(10**6), format="dense")

"""The backend of CUDA devices, where there is none: its kernels emulated."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import grid_emulator
import scorch
from grid_emulator import EmulatedExecutable, EmulatedKernel, EmulatedRoutines, noting
from scorch._src.backends.base import Schedule, routines_for
from scorch._src.backends.cuda.device import nvrtc, streams
from scorch._src.backends.cuda.device.kernel import CudaKernel, kernel_of
from scorch._src.backends.cuda.executables import product_turns
from scorch._src.backends.cuda.executables.product import COUNTING
from scorch._src.backends.print.cuda import print_cuda
from scorch._src.backends.print.functions import helpers
from scorch._src.bounded import clear_plans
from scorch._src.compiler.schedule.grid_facts import facts_of
from scorch._src.engine import notes
from scorch._src.engine.by_torch import structure
from scorch._src.engine.execute import copy_task, prepare
from scorch._src.engine.one_device import on_one_device
from scorch._src.formats import dense_format
from scorch._src.loops import grid
from scorch._src.loops.intrinsics import INTRINSICS
from scorch._src.loops.nodes import Kernel
from scorch.errors import CompilationError, DeviceError

FORMATS = ["csr", "csc", "coo", "dcsr", "bitmap", "banded", "bsr(2,2)"]

Call = Callable[..., Any]
CALLS: dict[str, Call] = {
    "times a vector": lambda A, B, X: A @ X[:, 0],
    "times a matrix": lambda A, B, X: A @ X,
    "a matrix times": lambda A, B, X: X.T[:, : A.shape[1]] @ A.T,
    "sampled product": lambda A, B, X: torch.einsum("ij,ik,jk->ij", A, X[: A.shape[0]], X),
    "times dense": lambda A, B, X: A * (B.to_dense() + 1),
    "plus dense": lambda A, B, X: A + (B.to_dense() + 1),
    "two sparse": lambda A, B, X: A + B,
    "product of two": lambda A, B, X: A * B,
    "matrix product": lambda A, B, X: A @ B.T,
    "row sums": lambda A, B, X: A.sum(1),
    "column maxima": lambda A, B, X: A.amax(0),
    "three operands": lambda A, B, X: torch.einsum("ij,ij,jk->ik", A, B, X),
    "to dense": lambda A, B, X: A.to_dense(),
    "transposed": lambda A, B, X: A.T,
}


def drawn(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    dense = torch.randint(-4, 5, (rows, columns)) * (torch.rand(rows, columns) < 0.3)
    return (dense + 1j * dense.flip(0) if dtype.is_complex else dense).to(dtype)


@pytest.fixture
def emulated() -> Iterator[list[str]]:
    """Run kernels of CUDA devices on the host; return the texts that were run."""
    with noting(lambda source, name: source) as texts, scorch.settings(backend="emulated"):
        yield texts


def check(call: Call, form: str, dtype: torch.dtype, rows: int = 9, columns: int = 7) -> None:
    a, b = drawn(rows, columns, dtype), drawn(rows, columns, dtype)
    X = drawn(max(rows, columns), 5, dtype)[:columns]
    if call is CALLS["sampled product"] and rows > columns:
        a, b = a[:columns], b[:columns]
    A, B = (scorch.from_torch(dense, format=form) for dense in (a, b))
    result, expected = call(A, B, X), call(a, b, X)
    dense = result.to_dense() if isinstance(result, scorch.SparseTensor) else result
    torch.testing.assert_close(dense, expected)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.complex64])
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", [name for name in CALLS if name != "column maxima"])
def test_grids_compute_what_dense_tensors_do(
    name: str, form: str, dtype: torch.dtype, emulated: list[str]
) -> None:
    check(CALLS[name], form, dtype)


@pytest.mark.parametrize("rows, columns", [(0, 4), (4, 0), (1, 1), (300, 3)])
def test_sizes_that_are_none_or_many(rows: int, columns: int, emulated: list[str]) -> None:
    for name in ("times a matrix", "row sums", "times dense", "to dense"):
        check(CALLS[name], "csr", torch.float32, rows, columns)


def product(
    rows: int, columns: int, width: int, dtype: torch.dtype = torch.float32, form: str = "csr"
) -> None:
    a, X = drawn(rows, columns, dtype), torch.randint(-3, 4, (columns, width)).to(dtype)
    torch.testing.assert_close(scorch.from_torch(a, format=form) @ X, a @ X)


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "dcsr"])
@pytest.mark.parametrize("width", [1, 3, 32, 36, 64, 130, 256])
def test_threads_of_a_unit_share_columns(width: int, form: str, emulated: list[str]) -> None:
    product(7, 9, width, form=form)
    assert ("FIRST_UNIT(1)" in emulated[-1]) == (width == 1)
    assert ("x4" in emulated[-1]) == (width % 4 == 0)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.complex64, torch.int8, torch.bfloat16, torch.float16, torch.int64]
)
def test_runs_of_every_width(dtype: torch.dtype, emulated: list[str]) -> None:
    product(5, 9, 64, dtype)
    assert ("x8" if dtype.itemsize <= 2 else "x4") in emulated[-1]


def test_dense_operands_that_begin_anywhere(emulated: list[str]) -> None:
    a, whole = drawn(5, 9, torch.float32), torch.arange(9 * 64 + 3.0)
    X = whole[3:].view(9, 64)  # a run of it would begin at 12 bytes
    torch.testing.assert_close(scorch.from_torch(a, format="csr") @ X, a @ X)


def test_dense_operands_are_laid_out_along_columns(emulated: list[str]) -> None:
    a, X = drawn(30, 40, torch.float64), torch.randn(64, 40, dtype=torch.float64).T
    A = scorch.from_torch(a, format="csr")
    torch.testing.assert_close(A @ X, a @ X)
    torch.testing.assert_close(X.T @ A.T, X.T @ a.T)
    assert all("k_t0" in text or "i_t0" in text for text in emulated[-2:])


SUMS: dict[str, Call] = {
    "vector": lambda A, x: A @ x,
    "columns": lambda A, x: A.T @ torch.ones(A.shape[0], dtype=x.dtype),
    "matrix": lambda A, x: A @ torch.stack([x, x + 1, x - 1], 1),
    "wide": lambda A, x: A @ (x[:, None] + torch.arange(64)).to(x.dtype),
    "sum": lambda A, x: reduced("y[i] = A[i,j]", A, torch.sum, 1),
    "largest": lambda A, x: reduced("y[i] = max(j, A[i,j])", A, torch.amax, 1),
}


def reduced(text: str, A: Any, function: Call, dim: int) -> torch.Tensor:
    is_sparse = isinstance(A, scorch.SparseTensor)
    return scorch.evaluate(text, format="dense", A=A) if is_sparse else function(A, dim)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128, torch.int16, torch.bfloat16])
@pytest.mark.parametrize("form", ["csr", "csc", "coo", "dcsr"])
@pytest.mark.parametrize("name", SUMS)
def test_long_rows_are_cut(
    name: str, form: str, dtype: torch.dtype, emulated: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "largest" and (dtype.is_complex or form not in ("csr", "dcsr")):
        pytest.skip("complex numbers have no order; of columns and lists, largest values are sparse first")
    monkeypatch.setattr("scorch._src.backends.cuda.routines.rows.MIN_PART", 8)
    dense = drawn(12, 500, dtype) * (torch.rand(12, 500) < 0.02)
    dense[3], dense[7, ::2] = drawn(1, 500, dtype) + 1, 1
    dense = dense.T.contiguous() if name == "columns" else dense
    x = torch.randint(-2, 3, (dense.shape[1],)).to(dtype)
    expected = SUMS[name](dense, x)
    with noting(lambda source, function: function) as ran:
        found = SUMS[name](scorch.from_torch(dense, format=form), x)
    assert "scorch_cut" in ran and "scorch_combine" in ran
    torch.testing.assert_close(found, expected)


def test_threads_share_sums_of_entries(emulated: list[str]) -> None:
    for width in (64, 63):
        a, X, Y = drawn(9, 7, torch.float32), torch.ones(7, width), torch.rand(9, width)
        A = scorch.from_torch(a, format="csr")
        sampled = torch.einsum("ij,ik,jk->ij", A, Y, X)
        with scorch.settings(backend="cpu"):
            torch.testing.assert_close(sampled.to_dense(), a * (Y @ X.T))
        assert "EXCHANGE_IN_WARP(acc_of_thread" in emulated[-1] and "row_of_entry[" in emulated[-1]
        assert ("f32x4" in emulated[-1]) == (width == 64)


@pytest.mark.parametrize(
    "dtype, width, said",
    [
        (torch.float32, 64, "k_run_turn < 4"),
        (torch.bfloat16, 64, "u16x8"),
        (torch.float32, 260, "k_run < k_run_stop"),
    ],
)
def test_entries_wait_for_nothing_but_their_coordinates(
    dtype: torch.dtype, width: int, said: str, emulated: list[str]
) -> None:
    """Neither where rows begin nor, where they are few, the number of terms is read from memory."""
    a, X, Y = drawn(9, 7, dtype), drawn(7, width, dtype), drawn(9, width, dtype)
    A = scorch.from_torch(a, format="csr")
    sampled = torch.einsum("ij,ik,jk->ij", A, Y, X)
    with scorch.settings(backend="cpu"):
        torch.testing.assert_close(sampled.to_dense(), a * (Y @ X.T))
    text = emulated[-1]
    each = r"EACH_UNIT_OF_WARP\(entry, entry_of_unit, \d+, entries\)"
    assert said in text and re.search(each, text) and "A2_pos[" not in text


@pytest.mark.parametrize("form", ["csr", "coo", "dcsr", "csc"])
@pytest.mark.parametrize("name", ["vector", "columns", "matrix", "wide", "sum"])
def test_the_interpreter_runs_grids(name: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every access is checked, and no two turns write to one place."""
    monkeypatch.setattr("scorch._src.backends.cuda.routines.rows.MIN_PART", 4)
    dense = drawn(6, 90, torch.float32) * (torch.rand(6, 90) < 0.2)
    dense[2] = 1
    x = torch.randint(-2, 3, (90,)).float()
    with scorch.settings(backend="interpreted grid"):
        found = SUMS[name](scorch.from_torch(dense, format=form), x)
    torch.testing.assert_close(found, SUMS[name](dense, x))


PRODUCTS = [(8, 9, 7, 0.3), (30, 40, 2500, 0.1), (5, 3000, 20, 0.01), (1, 1, 1, 1.0), (0, 4, 5, 0.5)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.int8]
)
@pytest.mark.parametrize(("rows", "inner", "columns", "density"), PRODUCTS)
def test_products_of_sparse_matrices(
    rows: int, inner: int, columns: int, density: float, dtype: torch.dtype
) -> None:
    """Rows with few and with many products, columns in several tiles, and nothing at all."""
    a, b = (
        (torch.randint(-3, 4, size) * (torch.rand(size) < density)).to(dtype)
        for size in ((rows, inner), (inner, columns))
    )
    A, B = (scorch.from_torch(dense, format="csr") for dense in (a, b))
    with scorch.settings(backend="emulated"):
        found, square = A @ B, scorch.evaluate("C[i,k] = A[i,j] * A[k,j]", A=A, format="csr")
    expected = A @ B
    assert torch.equal(found.crow_indices(), expected.crow_indices())
    assert torch.equal(found.col_indices(), expected.col_indices())
    torch.testing.assert_close(found.values(), expected.values())
    with scorch.settings(backend="emulated"):
        by_columns = A.to_format("csc") @ B.to_format("csc")
    torch.testing.assert_close(by_columns.to_dense(), expected.to_dense())
    torch.testing.assert_close(square.to_dense(), (A @ A.T).to_dense())


@pytest.mark.parametrize("room", [product_turns.BYTES_OF_SUMS, 64])
def test_products_with_long_rows(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row has more entries than a block has threads; its sums fit into shared memory, or do not."""
    monkeypatch.setattr(product_turns, "BYTES_OF_SUMS", room)
    a, b = torch.rand(3, 200), torch.rand(200, 400) * (torch.rand(200, 400) < 0.4)
    a[1] = 0
    A, B = (scorch.from_torch(dense, format="csr") for dense in (a, b))
    with scorch.settings(backend="emulated"):
        found, again = A @ B, A @ B
    torch.testing.assert_close(found.to_dense(), a @ b)
    assert torch.equal(found.values(), again.values())


def test_kernels_are_compiled_from_when_their_text_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    monkeypatch.setattr(grid_emulator.EmulatedKernel, "begin", lambda kernel: begun.append(kernel.source))
    build = grid_emulator.EmulatedBackend.build
    built: list[bool] = []

    def noted(*given: Any) -> Any:
        built.append(bool(begun))
        return build(*given)

    monkeypatch.setattr(grid_emulator.EmulatedBackend, "build", noted)
    clear_plans()
    A = scorch.from_torch(torch.eye(5), format="csr")
    emulated = scorch.settings(backend="emulated", cache_directory=tmp_path)  # without plans on disk
    with noting(lambda source, name: source) as texts, emulated:
        A @ torch.ones(5)
    assert built == [True] and begun == texts


def test_new_patterns_are_counted_while_the_rest_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[Sequence[str]] = []
    is_ready = grid_emulator.EmulatedKernel.is_ready

    def noted(kernel: CudaKernel, may_wait: bool = True, needed: Sequence[str] = ()) -> bool:
        waited.append(needed)
        return is_ready(kernel, may_wait, needed)

    monkeypatch.setattr(grid_emulator.EmulatedKernel, "is_ready", noted)
    A = scorch.from_torch(torch.eye(5), format="csr")
    with scorch.settings(backend="emulated"):
        A @ A
        assert waited == [COUNTING]
        A + scorch.from_torch(torch.ones(5, 5).tril(), format="csr")
    assert ["scorch_count_0", "scorch_count_1"] in waited


def test_products_with_more_columns_in_a_tile_than_16_bits_count(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = product_turns.bytes_of_sums(1 << 17)
    monkeypatch.setattr(grid_emulator.EmulatedProduct, "shared_memory", lambda self, device: memory)
    A = scorch.from_torch(torch.rand(2, 200), format="csr")
    crd = torch.arange(100_000, dtype=torch.int32)
    pos = torch.arange(0, 100_001, 500, dtype=torch.int32)
    B = scorch.sparse_csr_tensor(pos, crd, torch.rand(100_000), (200, 100_000))
    with scorch.settings(backend="emulated"):
        found = A @ B
    expected = A @ B
    assert torch.equal(found.col_indices(), expected.col_indices())
    torch.testing.assert_close(found.values(), expected.values())


def test_operands_on_two_devices_are_named() -> None:
    a, b = torch.ones(2), torch.ones(2, device="meta")
    with pytest.raises(DeviceError, match=r"A is on cpu and B is on meta; create B on cpu"):
        on_one_device({"A": a, "B": b})
    assert on_one_device({"A": torch.ones(()), "B": b})["A"].device == b.device


def test_tensors_that_share_a_pattern_share_its_copy() -> None:
    pattern = scorch.from_torch(torch.eye(3), format="csr").storage.pattern
    moved = pattern.to(torch.device("meta"))
    assert moved is pattern.to(torch.device("meta")) and moved.device.type == "meta"
    assert moved.key != pattern.key


def test_conjugates_that_are_lazy_are_read_as_they_are(emulated: list[str]) -> None:
    a, b = torch.tensor([3j, 1 + 2j, 0]), torch.tensor([1 + 0j, 2 - 1j, 5j])
    for x, y in ((a, scorch.from_torch(b, format="s")), (scorch.from_torch(a, format="s"), b)):
        torch.testing.assert_close(torch.vdot(x, y), torch.vdot(a, b))
    matrix = torch.tensor([[1j, 0], [2, 3 - 1j]])
    product = scorch.from_torch(matrix, format="csr") @ matrix.conj()
    torch.testing.assert_close(product, matrix @ matrix.conj())


def test_what_gcc_has_built_in_has_a_name_in_cuda() -> None:
    texts = [*helpers().values(), *(intrinsic.text for intrinsic in INTRINSICS.values())]
    used = {name for text in texts for name in re.findall(r"__builtin_(?!ia32_)\w+", text)}
    defined = set(re.findall(r"#define (__builtin_\w+)", print_cuda(Kernel("", (), ()))))
    assert used <= defined


def test_a_kernel_that_nvrtc_refuses_is_computed_by_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> bytes:
        raise CompilationError("NVRTC could not compile a kernel")

    a = drawn(30, 40, torch.float32)
    A, x = scorch.from_torch(a, format="csr"), torch.ones(40)
    monkeypatch.setattr(grid_emulator.EmulatedKernel, "is_ready", CudaKernel.is_ready)
    monkeypatch.setattr(nvrtc, "is_there", lambda: True)
    monkeypatch.setattr(nvrtc, "compile_cuda", refuse)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    scorch.clear_plans()
    with scorch.settings(backend="emulated"):
        with pytest.warns(
            UserWarning, match="NVRTC could not compile a kernel(?s:.*)falls back to PyTorch operators"
        ):
            torch.testing.assert_close(A @ x, a @ x)
        torch.testing.assert_close(A @ x, a @ x)  # without another warning
    scorch.clear_plans()


def test_the_plan_says_that_it_is_for_a_grid(emulated: list[str]) -> None:
    """Whoever lowers it later, as explain and the interpreter do, has the loops that were printed."""
    A = scorch.from_torch(drawn(5, 4, torch.float32), format="csr").storage
    prepared = prepare(copy_task(A, dense_format(2)))
    kernel = prepared.planned.kernel()
    spread, _ = grid.as_grid(kernel, facts_of(prepared.planned.plan))
    assert print_cuda(spread, is_narrow=True) == prepared.kernel.source


def test_explanations_say_which_way_is_taken(emulated: list[str]) -> None:
    A = scorch.from_torch(drawn(30, 40, torch.float32), format="csr")
    step = scorch.explain("ij,jk->ik", A, torch.ones(40, 64)).steps[0]
    assert step.inner.startswith("j: units share k, 4 of its values each, loaded in runs")
    assert "a grid of CUDA threads, 16 to a unit" in step.threads
    product = scorch.explain("ij,kj->ik", A, A, format="csr").steps[-1]
    assert "a warp for each" in product.threads and "products" in product.inner
    total = scorch.explain("C[i,j] = A[i,j] + B[i,j]", A=A, B=A.to_format("coo")).steps[-1]
    assert "launches that count" in total.threads and "each nonzero of A and B" in total.inner
    turned = scorch.explain("C[j,i] = A[i,j]", A=A, format="csr").steps[-1]
    assert "by joins (PyTorch's sort and search): entries come out of order" in turned.threads
    alone = scorch.explain("y[] = A[i,j]", A=A).steps[-1]
    assert "none: no loop of it owns its part" in alone.threads


def test_grids_over_stored_rows_are_explained(emulated: list[str]) -> None:
    A = scorch.from_torch(drawn(30, 40, torch.float32), format="dcsr")
    step = scorch.explain("ij,jk->ik", A, torch.ones(40, 64)).steps[0]
    assert "a grid of CUDA threads" in step.threads


def test_structures_are_made_once(emulated: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    make = structure._make
    monkeypatch.setattr(structure, "_make", lambda *given: made.append(1) or make(*given))
    a, b = drawn(9, 7, torch.float32), drawn(9, 7, torch.float32)
    A, B = (scorch.from_torch(dense, format="csr") for dense in (a, b))
    for factor in (1, 2, 3):
        torch.testing.assert_close((A * factor + B).to_dense(), a * factor + b)
    count = len(made)
    other = scorch.from_torch(b.flip(0), format="csr")
    torch.testing.assert_close((A + other).to_dense(), a + b.flip(0))
    assert len(made) > count  # for another pattern
    for text in ("C[i,j] = A[i,j] / A[i,j]", "C[i,j] = A[i,j] - 2 * A[i,j]", "C[i,j] = A[i,j] * exp(A[i,j])"):
        body = text.partition("= ")[2].replace("[i,j]", "")
        expected = eval(body, {"A": a, "exp": torch.exp})
        found = scorch.evaluate(text, A=A, format="csr")
        torch.testing.assert_close(found.to_dense(), expected, equal_nan=True)


def test_nobody_waits_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    streams.check_waiting(torch.device("cpu"), "a size")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(
        DeviceError,
        match=r"Scorch cannot wait for a size while a CUDA graph is being captured; run the function",
    ):
        streams.check_waiting(torch.device("cuda"), "a size")


def test_no_seed_is_drawn_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """All replays would have the same one."""
    E = scorch.from_torch(torch.eye(8), format="csr")
    q = torch.rand(1, 8, 4)
    layer = scorch.nn.GATConv(4, 2, dropout=0.5)

    def attend(dropout: float) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, q, q, E.bool(), dropout_p=dropout)

    layer(q[0], E), attend(0.5)
    routines = routines_for(q)
    captured = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(type(routines), "check_seeds", lambda self, device: streams.check_seeds(captured))
    for call in (lambda: layer(q[0], E), lambda: attend(0.5)):
        with pytest.raises(DeviceError, match="every replay of a CUDA graph would drop the same elements"):
            call()
    layer.eval()(q[0], E), attend(0.0)


def test_schedules_of_grids_are_cached_on_disk(emulated: list[str]) -> None:
    A = scorch.from_torch(drawn(5, 4, torch.float32), format="csr").storage
    schedule = prepare(copy_task(A, dense_format(2))).kernel.schedule
    assert schedule.grid is not None
    assert notes.read(notes.write(schedule), Schedule) == schedule


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [1, 5, 64])
def test_half_results_are_rounded_where_they_are_computed(
    width: int, dtype: torch.dtype, emulated: list[str]
) -> None:
    a, X = drawn(9, 30, dtype), torch.randn(30, width).to(dtype)
    A = scorch.from_torch(a, format="csr")
    found, expected = A @ X, (a.float() @ X.float()).to(dtype)
    assert found.dtype == dtype and torch.equal(found, expected)
    assert ("to_bf16(" if dtype == torch.bfloat16 else "to_f16(") in emulated[-1]
    assert ("u16x8" in emulated[-1]) == (width == 64)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.bfloat16, torch.complex64, torch.int8, torch.int64, torch.bool],
)
@pytest.mark.parametrize("shape", [(5, 6), (4,), (3, 4, 5), (1000, 2000)])
def test_entries_that_repeat_are_added_up(
    shape: tuple[int, ...], dtype: torch.dtype, emulated: list[str]
) -> None:
    places = torch.stack([torch.randint(size, (60,)) for size in shape])
    values = torch.randint(0 if dtype == torch.bool else -3, 4, (60,)).to(dtype)
    found = scorch.sparse_coo_tensor(places, values, shape)
    with scorch.settings(backend="cpu"):
        expected = scorch.sparse_coo_tensor(places, values, shape)
        assert torch.equal(found.to_dense(), expected.to_dense())
    assert found.dtype == dtype and torch.equal(found.indices(), expected.indices())


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "name", ["turn", "tile", "thread", "part", "first_column", "part_turn", "row_of_entry"]
)
def test_indices_with_names_of_grids(name: str, emulated: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scorch._src.backends.cuda.routines.rows.MIN_PART", 4)
    a, X = drawn(6, 90, torch.float32), torch.randint(-3, 4, (90, 200)).float()
    a[2] = 1
    A = scorch.from_torch(a, format="csr")
    for text in ("C[i,k] = A[i,j] * X[j,k]", "C[i,k] = A[i,j] * X[j,k] * A[i,j]"):
        for index in "ijk":
            found = scorch.evaluate(text.replace(index, name), A=A, X=X, format="dense")
            torch.testing.assert_close(found, (a if text.count("A") == 1 else a * a) @ X)


def test_kernels_of_one_text_are_one() -> None:
    assert kernel_of("a text of its own", "y = x") is kernel_of("a text of its own", "y = x")


def test_kernels_with_too_many_arguments_are_joins(
    emulated: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scorch._src.backends.cuda.backend.MAX_SLOTS", 3)
    scorch.clear_plans()
    a, X = drawn(7, 31, torch.float32), torch.ones(31, 3)
    S = scorch.from_torch(a, format="csr")
    emulated.clear()
    torch.testing.assert_close(S @ X, a @ X)
    assert not any("scorch_compute" in text for text in emulated)
    scorch.clear_plans()


def test_what_is_zero_everywhere_has_no_loops() -> None:
    A, w = scorch.from_torch(drawn(3, 4, torch.float64), format="csr"), torch.rand(5, dtype=torch.float64)
    T = scorch.from_torch(drawn(5, 5, torch.float64), format="csr")
    text = "y[i] = ((((A[j,k] - w[i]) * (w[i] * T[i,i])) * 0.0) * (w[i] - w[i]))"
    with scorch.settings(backend="emulated"):
        found = scorch.evaluate(text, A=A, w=w, T=T, format="dense")
    torch.testing.assert_close(found, torch.zeros_like(w))


def test_operands_are_converted_while_the_kernel_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Conversions may wait for NVRTC, too: both wait at once."""
    done: list[str] = []
    is_ready, transpose = EmulatedExecutable.is_ready, EmulatedRoutines.transpose_places

    def ready(executable: EmulatedExecutable) -> bool:
        done.append("kernel")
        return is_ready(executable)

    def transposed(*given: Any) -> Any:
        done.append("conversion")
        return transpose(*given)

    monkeypatch.setattr(EmulatedExecutable, "is_ready", ready)
    monkeypatch.setattr(EmulatedRoutines, "transpose_places", transposed)
    monkeypatch.setattr(EmulatedKernel, "is_at_work", True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    a = drawn(23, 17, torch.float32)
    S, x = scorch.from_torch(a, format="csr"), torch.rand(23)
    with scorch.settings(backend="emulated"):
        torch.testing.assert_close(S.T @ x, a.T @ x)
    assert done[:2] == ["conversion", "kernel"] and done.count("conversion") == 1

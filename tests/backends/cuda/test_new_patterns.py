"""Results with a new sparsity pattern on CUDA devices: counted, then filled in, by emulated kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import grid_emulator
import scorch
from scorch._src.backends.cuda.executables import new_pattern
from scorch._src.bounded import clear_plans
from scorch._src.compiler import pipeline
from scorch._src.compiler.lower.driven import COUNT, FILL
from scorch._src.engine.by_torch.build_levels import pack
from scorch.errors import DeviceError
from validity import check_storage

SIZE = 6
MATRICES = ["csr", "csc", "coo", "dcsr", "dcsc", "bitmap", "sd"]
TENSORS = ["csf", "coo", "dss", "sds", "dds", "ssd", "soo"]
# What is computed, and the indices of the result.
STATEMENTS = {
    "union": ("A[i,j] + B[i,j]", "ij"),
    "intersection": ("A[i,j] * B[i,j]", "ij"),
    "three": ("A[i,j] - 2 * B[i,j] + C[i,j]", "ij"),
    "product and sum": ("A[i,j] * B[i,j] + C[i,j]", "ij"),
    "sum and product": ("(A[i,j] + B[i,j]) * C[i,j]", "ij"),
    "maximum": ("maximum(A[i,j], B[i,j])", "ij"),
    "choice": ("where(A[i,j] > 1, B[i,j], C[i,j])", "ij"),
    "transposed": ("A[i,j] * A[j,i]", "ij"),
    "diagonal": ("A[i,i] * u[i] + v[i]", "i"),
    "dense factors": ("A[i,j] * x[j] + B[i,j] * x[i]", "ij"),
    "sparse rows": ("A[i,j] * v[j] + B[i,j]", "ij"),
    "outer product": ("u[i] * v[j]", "ij"),
    "every row": ("A[i,j] + v[j]", "ij"),
    "every fiber": ("T[i,j,k] * x[k] + B[i,k]", "ijk"),
    "pairs": ("A[i,j] * B[j,k]", "ijk"),
    "union of tensors": ("T[i,j,k] + U[i,j,k]", "ijk"),
    "intersection of tensors": ("T[i,j,k] * U[i,j,k]", "ijk"),
    "tensor and matrix": ("T[i,j,k] * A[i,j] + U[i,j,k]", "ijk"),
    "sums of fibers": ("sum(k, T[i,j,k] * U[i,j,k])", "ij"),
    "maxima of fibers": ("max(k, T[i,j,k] * U[i,j,k])", "ij"),
    "products of rows": ("prod(j, A[i,j] * B[i,j])", "i"),
    "sparse product": ("sum(j, A[i,j] * B[j,k])", "ik"),
    "product of tensors": ("sum(k, T[i,j,k] * A[k,l])", "ijl"),
    "two sums": ("sum(j, sum(k, T[i,j,k] * U[l,k,j]))", "il"),
    "sums of sums": ("sum(i, T[i,j,k] + U[i,j,k])", "jk"),
    "sums of rows": ("sum(j, A[i,j] * B[i,j]) + u[i]", "i"),
}
DIMS = {"T": 3, "U": 3, "u": 1, "v": 1, "x": 1}


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Run kernels of CUDA devices on the host, however few turns they have; return their names."""
    names: list[str] = []
    launch = grid_emulator.EmulatedKernel.launch

    def recorded(self: Any, name: str, *given: Any) -> None:
        names.append(name)
        launch(self, name, *given)

    monkeypatch.setattr(grid_emulator.EmulatedKernel, "launch", recorded)
    monkeypatch.setattr(new_pattern, "MIN_TURNS", 0)
    with scorch.settings(backend="emulated"):
        yield names


def drawn(dims: int, density: float, dtype: torch.dtype) -> torch.Tensor:
    shape = (SIZE,) * dims
    return (torch.randint(-2, 3, shape) * (torch.rand(shape) < density)).to(dtype)


def operands_of(text: str, pick: Any, dtype: torch.dtype) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Draw the operands of a text, with dense copies in float64; ``pick`` chooses a format."""
    dense, given = {}, {}
    for name in sorted({word[-1] for word in text.split("[")[:-1]}):
        dims = DIMS.get(name, 2)
        density = [0.0, 0.2, 0.5][int(torch.randint(3, ()))]
        dense[name] = drawn(dims, density, dtype)
        form = {1: ["s"], 2: MATRICES, 3: TENSORS}[dims]
        given[name] = dense[name] if name == "x" else scorch.from_torch(dense[name], format=pick(form))
    return given, {name: tensor.double() for name, tensor in dense.items()}


def check_statement(name: str, pick: Any, dtype: torch.dtype) -> None:
    """Compare with dense torch in float64, and the arrays with those of the CPU's kernel."""
    body, target = STATEMENTS[name]
    given, dense = operands_of(body, pick, dtype)
    form = pick({1: ["s"], 2: MATRICES, 3: TENSORS}[len(target)])
    text = f"R[{','.join(target)}] = {body}"
    found = scorch.evaluate(text, format=form, **given)
    check_storage(found.storage)
    with scorch.settings(backend="cpu"):
        expected = scorch.evaluate(text, format="dense", **dense)
        stored = scorch.evaluate(text, format=form, **given)
    assert found.dtype == stored.dtype
    torch.testing.assert_close(found.to_dense().double(), expected)
    arrays = (result.storage.pattern.arrays for result in (found, stored))
    assert all(torch.equal(*pair) for pair in zip(*arrays, strict=True) if pair[0] is not None)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16])
@pytest.mark.parametrize("name", STATEMENTS)
def test_new_patterns_are_those_of_the_cpu(name: str, dtype: torch.dtype, launched: list[str]) -> None:
    torch.manual_seed(len(name))
    check_statement(name, lambda forms: forms[int(torch.randint(len(forms), ()))], dtype)


@pytest.mark.parametrize(
    "name, form", [("tensor and matrix", "csf"), ("sums of fibers", "dss"), ("product of tensors", "coo")]
)
def test_every_access_is_checked_by_the_interpreter(
    name: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(new_pattern, "MIN_TURNS", 0)
    torch.manual_seed(3)
    with scorch.settings(backend="interpreted grid"):
        check_statement(name, lambda forms: form if form in forms else forms[0], torch.float64)


def matrices(count: int, form: str = "csr") -> list[scorch.SparseTensor]:
    return [scorch.from_torch(drawn(2, 0.4, torch.float64), format=form) for _ in range(count)]


def test_entries_are_counted_and_filled_in_once_for_a_pattern(launched: list[str]) -> None:
    A, B, C = matrices(3)
    text = "R[i,j] = A[i,j] * B[i,j] + C[i,j]"
    launched.clear()
    first = scorch.evaluate(text, A=A, B=B, C=C, format="csr")
    kinds = [kind for kind, _, number in (name.rpartition("_") for name in launched) if number.isdigit()]
    assert kinds == [COUNT, COUNT, FILL, FILL] and launched[-2:] == ["scorch_rows", "scorch_compute"]
    launched.clear()
    again = scorch.evaluate(text, A=A, B=B, C=C * 2, format="csr")
    assert launched == ["scorch_compute"] and again.storage.pattern is first.storage.pattern
    torch.testing.assert_close(again.to_dense(), A.to_dense() * B.to_dense() + 2 * C.to_dense())


def test_steps_without_a_grid_are_compared_with_the_interpreter() -> None:
    entries = torch.rand(30, 20, generator=torch.Generator().manual_seed(5))
    dense = torch.where(entries < 0.7, 0, entries)
    wanted = torch.sparse.log_softmax(dense.to_sparse_coo(), 0).to_dense()
    with scorch.settings(backend="emulated", debug=True):  # which transposes by a sort, with no kernel
        found = torch.sparse.log_softmax(scorch.from_torch(dense, format="csr"), 0).to_dense()
    torch.testing.assert_close(found, wanted)


def test_few_turns_with_loops_inside_are_left_to_joins(
    launched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(new_pattern, "MIN_TURNS", 1000)
    T, U = (scorch.from_torch(drawn(3, 0.5, torch.float64), format="csf") for _ in range(2))
    found = scorch.einsum("ijk,ijk->ij", T, U, format="csr")
    assert not any(name.startswith(COUNT) for name in launched)
    torch.testing.assert_close(found.to_dense(), (T.to_dense() * U.to_dense()).sum(2))
    step = scorch.explain("ijk,ijk->ij", T, U, format="csr").steps[-1]
    assert "none: too little to run in parallel; falls back to joins" in step.threads
    assert step.inner.endswith("which searches the other operands; k inside")


def test_terms_that_come_out_of_order_are_sorted_and_added_up(launched: list[str]) -> None:
    T, U = (scorch.from_torch(drawn(3, 0.3, torch.float64), format="csf") for _ in range(2))
    launched.clear()
    found = scorch.einsum("ijk,ljk->il", T, U, format="csr")
    assert f"{FILL}_0" in launched
    torch.testing.assert_close(found.to_dense(), torch.einsum("ijk,ljk->il", T.to_dense(), U.to_dense()))
    step = scorch.explain("ijk,ljk->il", T, U, format="csr").steps[-1]
    assert "then terms are sorted, and those of one position added up" in step.threads


def test_maxima_that_come_out_of_order_are_left_to_joins(launched: list[str]) -> None:
    A, B = matrices(2)
    text = "R[i,k] = max(j, abs(A[i,j]) * abs(B[j,k]))"
    found = scorch.evaluate(text, A=A, B=B, format="csr")
    torch.testing.assert_close(
        found.to_dense(), (A.to_dense().abs()[:, :, None] * B.to_dense().abs()).amax(1)
    )
    steps = scorch.explain(text, A=A, B=B, format="csr").steps
    assert any("by joins (PyTorch's sort and search): entries come out of order" in s.threads for s in steps)


def test_tensors_larger_than_int32_with_few_entries(launched: list[str]) -> None:
    size = 3_000_000_000
    places = torch.tensor([[5, 7, size - 1, size - 1], [0, size - 1, 3, size - 1]])
    A = scorch.sparse_coo_tensor(places, torch.arange(1.0, 5), (size, size))
    B = scorch.sparse_coo_tensor(places[:, 1:], torch.arange(1.0, 4), (size, size))
    for form in ("coo", "dcsr"):
        given = [tensor.to_format(form) for tensor in (A, B)]
        both, common = scorch.einsum("ij,ij->ij", *given, format=form), given[0] + given[1]
        assert both.values().tolist() == [2.0, 6.0, 12.0] and common.values().tolist() == [1.0, 3.0, 5.0, 7.0]
        assert common.to_format("coo").indices().tolist() == places.tolist()
    assert f"{FILL}_1" in launched


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0, 3, 2)])
def test_dimensions_of_size_zero(shape: tuple[int, ...], launched: list[str]) -> None:
    A, B = (scorch.from_torch(torch.zeros(shape), format="coo") for _ in range(2))
    indices = "ijk"[: len(shape)]
    found = scorch.einsum(f"{indices},{indices}->{indices}", A, B, format="csf")
    assert found.shape == shape and not found._nnz()


@pytest.mark.parametrize("name", ["entry_turn", "entry_place"])
def test_indices_with_names_of_kernels(name: str, launched: list[str]) -> None:
    A, B = matrices(2, "dcsr")
    found = scorch.evaluate(f"C[i,{name}] = A[i,{name}] + B[i,{name}]", A=A, B=B, format="dcsr")
    torch.testing.assert_close(found.to_dense(), A.to_dense() + B.to_dense())


def test_nobody_waits_for_the_size_while_a_graph_is_captured(
    launched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    T, U = (scorch.from_torch(drawn(3, 0.5, torch.float64), format="csf") for _ in range(2))

    def refuse(device: torch.device, what: str) -> None:
        raise DeviceError(f"cannot wait for {what}")

    monkeypatch.setattr(new_pattern, "check_waiting", refuse)
    with pytest.raises(DeviceError, match="the size of"):
        scorch.einsum("ijk,ijk->ij", T, U, format="csr")


def test_results_that_are_full_have_their_values_in_stored_order(launched: list[str]) -> None:
    a, x = torch.tensor([[0.0, 2], [3, 0], [0, 4]]), torch.arange(6.0).view(3, 2)
    A = scorch.from_torch(a, format="csc")
    found = scorch.evaluate("C[i,j] = A[i,j] + X[i,j]", A=A, X=x, format="csc")
    torch.testing.assert_close(found.to_dense(), a + x)


@pytest.mark.parametrize("letters", ["ds", "ss", "oo", "dds", "sss", "soo", "dso", "sdo"])
def test_levels_that_kernels_list_are_those_of_torch(letters: str, launched: list[str]) -> None:
    draw = torch.Generator().manual_seed(len(letters))
    for turn in range(4):
        order = torch.randperm(len(letters), generator=draw).tolist()
        dense = torch.randint(0, 2 + turn, (5, 4, 3)[: len(letters)], generator=draw) * (turn != 3)
        places = dense.permute(order).nonzero()
        index = torch.int32 if turn % 2 else torch.int64
        columns = [places[:, order.index(dim)].to(index) for dim in range(len(letters))]
        values = dense[tuple(column.long() for column in columns)]
        form = scorch.Format(letters, order=order)
        found = pack(form, tuple(dense.shape), columns, values, lambda size: None)
        check_storage(found)
        with scorch.settings(backend="cpu"):
            expected = pack(form, tuple(dense.shape), columns, values, lambda size: None)
        assert found.pattern.counts == expected.pattern.counts
        arrays = zip(found.pattern.arrays, expected.pattern.arrays, strict=True)
        assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in arrays)
    assert bool(launched) == (letters not in ("oo", "sdo"))


def test_dense_operands_are_read_by_the_kernel_that_computes_values(launched: list[str]) -> None:
    A, B = matrices(2)
    X, y = torch.arange(36.0, dtype=torch.float64).view(6, 6).T, torch.arange(6.0, dtype=torch.float64)
    text = "R[i,j] = A[i,j] * X[i,j] + B[i,j] * y[i]"
    scorch.evaluate(text, A=A, B=B, X=X, y=y, format="csr")
    launched.clear()
    found = scorch.evaluate(text, A=A, B=B, X=X, y=y, format="csr")
    assert launched == ["scorch_compute"]
    torch.testing.assert_close(found.to_dense(), A.to_dense() * X + B.to_dense() * y[:, None])


@pytest.mark.parametrize("sign", ["+", "*"])
def test_what_is_compiled_ahead_is_what_is_needed(sign: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels that list levels and compute values are compiled while those of the pattern are."""
    kernel = grid_emulator.EmulatedKernel
    begun: list[str] = []
    launched: list[str] = []
    monkeypatch.setattr(kernel, "begin", lambda self: begun.append(self.source))
    launch = kernel.launch

    def recorded(self: Any, name: str, *given: Any) -> None:
        launched.append(self.source)
        launch(self, name, *given)

    monkeypatch.setattr(kernel, "launch", recorded)
    a, b = (torch.rand(7, 9) * (torch.rand(7, 9) < 0.4) for _ in range(2))
    clear_plans()
    with scorch.settings(backend="emulated"):
        A, B = (scorch.from_torch(dense, format="csr") for dense in (a, b))
        launched.clear()
        result = scorch.evaluate(f"C[i,j] = A[i,j] {sign} B[i,j]", A=A, B=B)
        begun = [text for text in begun if text]  # steps that run by joins have none
        assert len({*begun}) == 3 and {*begun} == {*launched} and "scorch_count_0" in begun[0]
    torch.testing.assert_close(result.to_dense(), a + b if sign == "+" else a * b)


def test_a_transposed_operand_is_sorted_without_a_plan_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    labels: list[str] = []
    launch = grid_emulator.EmulatedKernel.launch

    def recorded(self: Any, *given: Any) -> None:
        labels.append(self.label)
        launch(self, *given)

    monkeypatch.setattr(grid_emulator.EmulatedKernel, "launch", recorded)
    dense = drawn(2, 0.4, torch.float64)
    with scorch.settings(backend="emulated"):
        for form in ("csr", "csc"):
            A = scorch.from_torch(dense, format=form)
            labels.clear()
            total, again = A + A.T, (A * 2) + (A * 2).T  # new values on the pattern that was transposed
            assert labels.count("compressed columns") == 2 and "B[i,j] = A[i,j]" not in labels
            torch.testing.assert_close(total.to_dense(), dense + dense.T)
            torch.testing.assert_close(again.to_dense(), 2 * (dense + dense.T))
            check_storage(total.storage)


def test_a_kernel_that_nobody_runs_is_not_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    A = scorch.from_torch(drawn(2, 0.4, torch.float64), format="csr")
    monkeypatch.setattr(pipeline.Planned, "kernel", lambda self: pytest.fail("a kernel is lowered"))
    with scorch.settings(backend="emulated"):
        for statement in ("C[i,j] = A[i,j] + B[i,j]", "C[i,k] = sum(j, A[i,j] * B[j,k])"):
            assert scorch.explain(statement, A=A, B=A, format="csr").steps[0].source


def test_kernels_of_a_pattern_that_is_known_are_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """``S * S`` has the pattern of S, so that nothing is counted; that of ``S + B`` may differ."""
    begun: list[str] = []
    kernel = grid_emulator.EmulatedKernel
    monkeypatch.setattr(kernel, "begin", lambda self: begun.extend(self.first))
    clear_plans()
    S, B = (scorch.from_torch(drawn(2, 0.4, torch.float32), format="csr") for _ in range(2))
    with scorch.settings(backend="emulated"):
        torch.testing.assert_close((S * S).to_dense(), S.to_dense() ** 2)
        assert not begun
        torch.testing.assert_close((S + B).to_dense(), S.to_dense() + B.to_dense())
    assert {"scorch_count_0", "scorch_fill_1", "scorch_rows"} <= {*begun}

"""Bad input is refused with a message that names operand, index and cure, and nothing is lost by it.

What constructors and conversions refuse is tested in ``tests/tensor``, the compiler and the cache in
``tests/backends/cpu``.
"""

from __future__ import annotations

import functools
import math
import re
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import scorch
from scorch import Format, SparseTensor
from scorch._src.backends.routines import Routines
from scorch._src.devices import META
from scorch._src.engine.execute import from_dense
from scorch._src.storage import budget
from scorch._src.tensor.create import random_factories
from scorch._src.tensor.create.build import from_coordinates
from scorch.errors import (
    ArgumentError,
    DensityError,
    DtypeError,
    FormatError,
    NotationError,
    OperandError,
    ScorchError,
    ShapeError,
    UnsupportedError,
    kind_of,
)

EYE = torch.eye(3)
A = SparseTensor(from_dense(EYE, Format("csr")))
x = torch.arange(3.0)


@pytest.fixture(autouse=True)
def next_call_works() -> Iterator[None]:
    """Nothing is lost by a call that failed: the same one with good input works."""
    yield
    assert torch.equal(scorch.einsum("ij,j->i", A, x), x)
    assert torch.equal(scorch.evaluate("y[i] = A[i,j] * x[j]", A=A, x=x), x)
    assert torch.equal(A.to_dense(), EYE)


def refused(
    kind: type[ScorchError], message: str, call: Callable[..., Any], *args: Any, **named: Any
) -> None:
    """The call fails twice in the same way, with all of ``message`` (parts split by ...) in its words."""
    pattern = ".*".join(re.escape(part.strip()) for part in message.split("..."))
    for _ in range(2):
        with pytest.raises(kind, match=f"(?s){pattern}") as caught:
            call(*args, **named)
        assert isinstance(caught.value, ScorchError)


# shapes ----------------------------------------------------------------------------------------------


def test_shape_mismatch_in_einsum() -> None:
    message = "index 'j' is 3 in operand 0 ('ij', shape (3, 3)) but 4 in operand 1 ('jk', shape (4, 2))"
    refused(ShapeError, message, scorch.einsum, "ij,jk->ik", A, torch.ones(4, 2))
    assert issubclass(ShapeError, ValueError)


def test_shape_mismatch_in_evaluate() -> None:
    message = "index 'j' is 3 in 'A[i,j]' (shape (3, 3)) but 4 in 'x[j]' (shape (4,))"
    refused(ShapeError, message, scorch.evaluate, "y[i] = A[i,j] * x[j]", A=A, x=torch.ones(4))


def test_size_1_is_not_broadcast_in_evaluate() -> None:
    message = "sizes of 1 are not broadcast here: squeeze the dimension and drop the index"
    refused(ShapeError, message, scorch.evaluate, "y[i] = A[i,j] * x[j]", A=A, x=torch.ones(1))


def test_wrong_number_of_indices() -> None:
    refused(
        ShapeError,
        "operand 0 has 2 dimensions (shape (3, 3)) but its subscript 'ijk' names 3",
        scorch.einsum,
        "ijk->i",
        A,
    )
    message = "'A' has 2 dimensions (shape (3, 3)) but 'A[i]' names 1 index"
    refused(ShapeError, message, scorch.evaluate, "y[i] = A[i]", A=A)


def test_diagonal_of_unequal_sizes() -> None:
    B = SparseTensor(from_dense(torch.ones(2, 3), Format("csr")))
    refused(ShapeError, "'i'", scorch.einsum, "ii->i", B)
    refused(ShapeError, "index 'i' is both 2 and 3 in 'B[i,i]'", scorch.evaluate, "y[i] = B[i,i]", B=B)


def test_largest_of_nothing() -> None:
    empty = SparseTensor(from_dense(torch.ones(3, 0), Format("csr")))
    for tensor in (empty, torch.ones(3, 0)):
        refused(
            ShapeError,
            "max over index 'j' of size 0 has no identity",
            scorch.evaluate,
            "y[i] = max(j, A[i,j])",
            A=tensor,
        )
        refused(
            ShapeError, "min over index 'j' of size 0", scorch.evaluate, "y[i] = min(j, A[i,j])", A=tensor
        )


# indices and strings ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("equation", "operands", "message"),
    [
        (
            "ij,jk->il",
            2,
            "index 'l' of the output ... does not occur in any operand ... name it in an operand or drop it",
        ),
        ("ij,jk->iki", 2, "index 'i' appears more than once in the output"),
        ("ij->->i", 1, "more than one '->'"),
        ("ij,1j->i", 2, "operand 1 ('1j') ... contains '1'; an index is one letter"),
        ("i.j->i", 1, "'.'"),
        ("ij->i>", 1, "'>'"),
        ("ij,jk", 1, "names 2 operands, but 1 was passed"),
        ("ij->ij", 2, "names 1 operand, but 2 were passed"),
        ("", 0, "no operands; pass one tensor per term"),
    ],
)
def test_malformed_equation(equation: str, operands: int, message: str) -> None:
    refused(NotationError, message, scorch.einsum, equation, *[A] * operands)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        (
            "y[k] = A[i,j] * x[j]",
            "index 'k' of the result does not occur on the right-hand side ... use it there or drop it",
        ),
        ("y[i] = A[i,j * x[j]", "expected ',' or ']' after the indices of 'A' but found '*'"),
        ("y[i] = A[i,j] * (x[j]", "expected ')'"),
        ("y[i] = rel(A[i,j] * x[j])", "unknown function 'rel'; did you mean 'relu'?"),
        ("y[i] = A[i,j] @ x[j]", "'@' is not supported; a matrix product names its indices"),
        ("y[i] = A[i,j] ** x[j]", "use square(x) for x ** 2"),
        ("y[i] = A[i,0] * x[i]", "an index must be a name, not a number"),
        ("y[i,i] = A[i,j] * x[j]", "index 'i' appears twice in the result"),
        ("y[i] = A[i,x] * x[i]", "'x' is a tensor in one place and an index in another; rename one"),
        ("y[i] = max(A[i,j], x[i])", "use maximum(x, y) for the max of two values"),
        ("y[i]", "expected '=' or '+=' after the result 'y' but found the end"),
        ("y[i] =", "the right-hand side is empty"),
        ("", "the expression is empty; write for example 'y[i] = A[i,j] * x[j]'"),
    ],
)
def test_malformed_expression(expression: str, message: str) -> None:
    refused(NotationError, message, scorch.evaluate, expression, A=A, x=x)


def test_malformed_expression_points_at_the_place() -> None:
    with pytest.raises(NotationError) as caught:
        scorch.evaluate("y[i] = A[i,j] @ x[j]", A=A, x=x)
    _, text, pointer = str(caught.value).splitlines()
    assert text[pointer.index("^")] == "@"


def test_what_is_no_string() -> None:
    refused(
        NotationError,
        "an index expression must be a string such as 'y[i] = A[i,j] * x[j]', but got an int",
        scorch.evaluate,
        7,
        A=A,
    )
    refused(NotationError, "follow operand 0 with its subscripts", scorch.einsum, 3)
    refused(NotationError, "pass one tensor per term", scorch.einsum)


# operands --------------------------------------------------------------------------------------------


def test_missing_and_unused_tensors() -> None:
    refused(NotationError, "missing tensor for 'x'; pass x=x", scorch.evaluate, "y[i] = A[i,j] * x[j]", A=A)
    message = "'z' is passed but not used in"
    refused(NotationError, message, scorch.evaluate, "y[i] = A[i,j] * x[j]", A=A, x=x, z=x)
    message = "'y' is the result, not an operand; do not pass it, or write '+=' to add to it"
    refused(NotationError, message, scorch.evaluate, "y[i] = A[i,j] * x[j]", A=A, x=x, y=x)
    message = "missing tensor for 'y' ... '+=' adds to 'y', so it is an operand too"
    refused(NotationError, message, scorch.evaluate, "y[i] += A[i,j] * x[j]", A=A, x=x)


@pytest.mark.parametrize(
    "value", [[1.0, 2.0, 3.0], None, "x", {"a": 1}, object()], ids=lambda v: type(v).__name__
)
def test_operand_that_is_no_tensor(value: Any) -> None:
    kind = kind_of(value)
    refused(
        OperandError,
        f"operand 1 must be a tensor, but got {kind}; create one with",
        scorch.einsum,
        "ij,j->i",
        A,
        value,
    )
    message = f"tensor 'x' must be a tensor, but got {kind}; create one with"
    refused(OperandError, message, scorch.evaluate, "y[i] = A[i,j] * x[j]", A=A, x=value)
    assert issubclass(OperandError, TypeError)


ARRAY = np.ones((3, 3), np.float32)
NO_TENSORS = [(ARRAY, "torch.from_numpy"), ([[1.0]], "torch.tensor"), (None, "torch.tensor or")]


@pytest.mark.parametrize(("value", "advice"), NO_TENSORS, ids=lambda value: type(value).__name__)
def test_what_is_no_tensor_is_told_how_to_become_one(value: Any, advice: str) -> None:
    kind, edges = kind_of(value), torch.tensor([[0, 1], [1, 0]])
    message = f"must be a tensor, but got {kind}; create one with {advice}"
    refused(OperandError, f"operand 1 {message}", scorch.einsum, "ij,jk->ik", A, value)
    refused(OperandError, f"h {message}", scorch.topk_sparse, value, 1)
    refused(OperandError, f"the input {message}", scorch.nn.SparseLinear(3, 2), value)
    refused(OperandError, f"the input {message}", scorch.nn.Linear(3, 2, sparse_grad=True), value)
    refused(OperandError, f"input {message}", scorch.nn.TopKAutoencoder(3, 4, 2), value)
    refused(OperandError, f"input {message}", scorch.nn.SparseEmbeddingBag(3, 2), value)
    message = f"x must be a tensor of node features, but got {kind}; create one with {advice}"
    refused(OperandError, message, scorch.nn.GCNConv(3, 2), value, edges)
    message = f"the right-hand side to be a tensor, but got {kind}; create one with {advice}"
    refused(OperandError, message, scorch.linalg.cg, scorch.eye(3, format="csr"), value)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensor_is_told_to_be_padded() -> None:
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)])
    calls: list[Callable[[], Any]] = [
        lambda: scorch.from_torch(nested, format="csr"),
        lambda: scorch.einsum("ij,kij->kij", A, nested),
        lambda: A + nested,
        lambda: nested @ A,
        lambda: torch.cat([A, nested]),
        lambda: scorch.topk_sparse(nested, 2),
    ]
    for call in calls:
        refused(UnsupportedError, "is a nested tensor; pad it with torch.nested.to_padded_tensor", call)


@pytest.mark.parametrize("draw", [scorch.rand, scorch.randn])
def test_too_many_random_elements_are_counted(draw: Callable[..., Any], monkeypatch: Any) -> None:
    def no_memory(*args: Any, **options: Any) -> Any:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes.")

    monkeypatch.setattr(random_factories, "_draw_places", no_memory)
    message = "of shape (1000, 1000) with density 0.1 stores 100,000 elements ... pass a lower density"
    refused(DensityError, message, draw, 1000, 1000, density=0.1)


def test_only_floating_point_layers_are_suggested() -> None:
    with pytest.raises(RuntimeError, match=r"use x\.to\(torch\.float32\)$"):
        scorch.nn.GCNConv(3, 2)(torch.ones(2, 3, dtype=torch.int32), torch.tensor([[0, 1], [1, 0]]))


def test_tolerances_are_checked() -> None:
    matrix = scorch.eye(3, format="csr")
    for solve in (scorch.linalg.cg, scorch.linalg.gmres):
        for tol in (-1, "1e-5", math.nan):
            message = f"tol must be a non-negative number, but got {tol!r}"
            refused(ArgumentError, message, solve, matrix, torch.ones(3), tol=tol)


def test_mixed_devices() -> None:
    elsewhere = torch.ones(3, device="meta")
    refused(
        OperandError,
        "operand 1 is on device meta ... create it on cpu",
        scorch.einsum,
        "ab,b->a",
        A,
        elsewhere,
    )
    message = "tensor 'x' is on device meta ... create it on cpu"
    refused(OperandError, message, scorch.evaluate, "y[a] = A[a,b] * x[b]", A=A, x=elsewhere)


def test_mixed_devices_after_a_call_that_worked() -> None:
    scorch.einsum("ij,j->i", A, x)
    message = "operand 1 is on device meta ... create it on cpu"
    refused(OperandError, message, scorch.einsum, "ij,j->i", A, x.to("meta"))


def test_sparse_layout_after_a_call_with_a_dense_operand() -> None:
    scorch.einsum("ij,j->i", A, x)
    assert torch.equal(scorch.einsum("ij,j->i", A, x.to_sparse()), x)


def test_negative_view_after_a_call_with_a_plain_operand() -> None:
    scorch.einsum("ij,j->i", A, x)
    assert torch.equal(scorch.einsum("ij,j->i", A, torch._neg_view(x)), -x)


def test_default_dtype_that_changes_between_calls() -> None:
    N = SparseTensor(from_dense(EYE.long(), Format("csr")))
    text = "y[i] = N[i,j] / 2 * x[j]"
    assert scorch.evaluate(text, N=N, x=x.long()).dtype == torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert scorch.evaluate(text, N=N, x=x.long()).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.uint16], ids=str)
def test_unsupported_dtype(dtype: torch.dtype) -> None:
    strange = torch.ones(3).to(dtype)
    message = f"dtype {dtype} is not supported; ... convert with .to(torch.float32) ... in operand 1"
    refused(DtypeError, message, scorch.einsum, "ij,j->i", A, strange)
    message = f"dtype {dtype} is not supported; ... in tensor 'x'"
    refused(DtypeError, message, scorch.evaluate, "y[i] = A[i,j] * x[j]", A=A, x=strange)


def test_operation_without_meaning_for_a_dtype() -> None:
    z = SparseTensor(from_dense(EYE.to(torch.complex64), Format("csr")))
    message = "relu() is not defined for complex64; complex numbers are not ordered"
    refused(DtypeError, message, scorch.evaluate, "y[i,j] = relu(z[i,j])", z=z)
    refused(DtypeError, "max() is not defined for complex64", scorch.evaluate, "y[i] = max(j, z[i,j])", z=z)


# formats ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ("cxr", "unknown format 'cxr'; did you mean 'csr'? choose from the names dense, csr, csc"),
        ("bsr", "format 'bsr' needs a block size, as in 'bsr(4,4)'"),
        ("bsr(0,2)", "must have a positive size"),
        ("dense,compresed", "unknown level 'compresed'"),
        ("csf,", "unknown level"),
        ("", "unknown format ''"),
        ("dsx", "unknown format 'dsx'"),
        ("ddd", "stores 3-D tensors, but this one is 2-D"),
        (Format("csf", dims=3), "2"),
        (3, "a format is a name such as 'csr', letters such as 'ds' or a Format, not 3"),
    ],
    ids=str,
)
def test_unknown_format(form: Any, message: str) -> None:
    if isinstance(form, Format):  # a named one fits any number of dimensions
        assert scorch.einsum("ij,jk->ik", A, A, format=form).format == Format("csf", dims=2)
        return
    refused(FormatError, message, scorch.einsum, "ij,jk->ik", A, A, format=form)
    refused(FormatError, message, scorch.evaluate, "y[i,k] = A[i,j] * A[j,k]", A=A, format=form)


def test_format_for_matrices_only() -> None:
    refused(
        FormatError,
        "format 'csc' stores matrices, but the tensor is 1-D",
        scorch.einsum,
        "ij,j->i",
        A,
        x,
        format="csc",
    )


# too dense -------------------------------------------------------------------------------------------


@pytest.fixture
def large() -> SparseTensor:
    """A matrix of 10^6 x 10^6 with two entries: four terabytes if it were dense."""
    found = from_coordinates(torch.tensor([[0, 5], [1, 7]]), torch.ones(2), (10**6, 10**6), "csr")
    assert isinstance(found, SparseTensor)
    return found


@pytest.mark.parametrize("expression", ["A[i,j] + 1", "exp(A[i,j])", "A[i,j] == 0", "A[i,j] / A[i,j]"])
def test_result_that_fills_up(large: SparseTensor, expression: str) -> None:
    message = (
        f"y[i,j] = {expression} in format dense needs ... bytes of dense memory, more than the budget of"
    )
    refused(DensityError, message, scorch.evaluate, f"y[i,j] = {expression}", A=large)
    message = "use a sparser format such as 'coo' or 'dcsr', or increase scorch.settings(dense_budget="
    refused(DensityError, message, scorch.evaluate, f"y[i,j] = {expression}", A=large)
    assert issubclass(DensityError, MemoryError)


def test_dense_result_asked_for(large: SparseTensor) -> None:
    refused(DensityError, "needs 4,000,000,000,000 bytes", scorch.einsum, "ij->ij", large, format="dense")
    message = "a tensor of shape (1000000, 1000000) in format dense needs 4,000,000,000,000 bytes"
    refused(DensityError, message, large.to_dense)
    refused(
        DensityError,
        "needs 4,000,000,000,000 bytes",
        scorch.einsum,
        "ij,jk->ik",
        large,
        large,
        format="dense",
    )


def test_blocks_that_are_too_large(large: SparseTensor) -> None:
    """Known only once the entries are: nothing of what the kernel collected is lost or kept."""
    refused(DensityError, "needs 4,000,000,000,000 bytes", large.to_format, "bsr(1000000,1000000)")
    refused(DensityError, "a sparser format", scorch.einsum, "ij->ji", large, format="bsr(1000000,1000000)")


def test_pointers_of_dense_rows_that_are_too_many() -> None:
    huge = from_coordinates(torch.tensor([[0, 5], [1, 7]]), torch.ones(2), (2**40, 2**20), "coo")
    refused(DensityError, "in format csr needs", huge.to_format, "csr")
    assert huge.to_format("dcsr").nnz == 2


def test_dense_operands_only() -> None:
    """Torch would try to allocate it, and the system may end the process for that."""
    v = torch.ones(10**6)
    refused(
        DensityError,
        "over dense operands only, needs 4,000,000,000,000 bytes",
        scorch.einsum,
        "i,j->ij",
        v,
        v,
    )
    refused(
        DensityError, "store an operand sparse", scorch.evaluate, "y[i] = sum(j, exp(u[i] * v[j]))", u=v, v=v
    )


def test_a_dense_sum_that_is_needed_at_few_elements_says_how_to_mask_it() -> None:
    S, Q = scorch.rand(10**6, 10**6, density=1e-10, format="csr"), torch.randn(10**6, 2)
    text = "R[i,j] = S[i,j] * exp(-sum(k, square(Q[i,k] - K[j,k])))"
    cure = r"multiply inside the sum by M[i,j], where M = S.with_values(1)"
    refused(DensityError, cure, scorch.evaluate, text, S=S, Q=Q, K=Q)
    refused(DensityError, cure, lambda: str(scorch.explain(text, S=S, Q=Q, K=Q)))
    text = text.replace("square", "M[i,j] * square")
    masked = scorch.evaluate(text, S=S, M=S.with_values(1), Q=Q, K=Q)
    rows, columns = S.to_format("coo").indices()
    expected = S.values() * torch.exp(-(Q[rows] - Q[columns]).square().sum(1))
    torch.testing.assert_close(masked.values(), expected)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("function", "words"),
    {
        torch.linalg.eigh: "linalg.eigh of (1000, 1000) ... use scorch.linalg.eigsh(S, k)",
        torch.linalg.svdvals: "linalg.svd of (1000, 1000) ... use torch.svd_lowrank(S, k)",
        functools.partial(torch.softmax, dim=1): "; use torch.sparse.softmax(S, dim) for",
        torch.linalg.cholesky: "linalg.cholesky of (1000, 1000) ... use torch.linalg.solve(S, b)",
        torch.fft.fft: "fft has no sparse implementation ... computation; increase scorch.settings(",
        lambda S: torch.cdist(S, S): "cdist of (1000, 1000) and (1000, 1000) ... for some rows at a time",
        lambda S: S == 0: "count zeros with S.numel() - S.count_nonzero(), or increase scorch.settings(",
        lambda S: S.sort(): "use torch.msort(S), which sorts columns without indices",
    }.items(),
)
def test_what_is_too_dense_names_a_public_function_and_an_alternative(function: Any, words: str) -> None:
    S = scorch.eye(1000, format="csr")
    with scorch.settings(dense_budget=1000):
        refused(DensityError, words, function, S)


def test_budget_can_be_set() -> None:
    rows = SparseTensor(from_dense(torch.eye(5000), Format("csr")))
    with scorch.settings(dense_budget=10_000_000):
        refused(DensityError, "budget of 10,000,000", rows.to_dense)
        assert rows.to_format("coo").nnz == 5000
    assert rows.to_dense().shape == (5000, 5000)


def test_budget_is_that_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[torch.device] = []

    def free_memory(device: torch.device) -> int:
        asked.append(device)
        return 396_000_000

    rows = SparseTensor(from_dense(torch.eye(5000), Format("csr")))
    device = rows.storage.device
    monkeypatch.setattr(budget, "_free_memory", free_memory)
    monkeypatch.setattr(budget, "_unused_memory", lambda: 0)
    calls = (rows.to_dense, rows.exp, lambda: rows @ torch.ones(5000, 5000), lambda: rows + torch.ones(5000))
    for call in calls:
        asked.clear()
        refused(DensityError, "100,000,000 bytes of dense memory, more than the budget of 99,000,000", call)
        assert set(asked) == {device}


class _Memory(Routines):
    def free_memory(self, device: torch.device) -> int | None:
        return 4 * 10**9 if device.type == "cuda" else None


def test_free_memory_of_a_device_is_asked_of_its_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = types.SimpleNamespace(routines=_Memory())
    monkeypatch.setattr(budget, "backend_for", lambda device: backend)
    gpu = torch.device("cuda", 1)
    assert budget.is_within_budget(10**9, gpu) and not budget.is_within_budget(10**9 + 1, gpu)
    refused(DensityError, "the budget of 1,000,000,000;", budget.check_budget, 10**10, gpu, "x", "y")
    host = budget._free_memory(torch.device("cpu"))
    assert host > 10**8 and budget._free_memory(META) > 10**8  # without memory of its own: the host's


# settings --------------------------------------------------------------------------------------------


def test_settings() -> None:
    refused(ScorchError, "unknown setting 'thread'; did you mean 'threads'?", scorch.settings, thread=2)
    refused(ScorchError, "threads must be a positive integer or None, but got 0", scorch.settings, threads=0)
    refused(ScorchError, "threads must be a positive integer", scorch.settings, threads=True)
    refused(ScorchError, "dense_budget must be ... or None, but got -1", scorch.settings, dense_budget=-1)
    refused(
        ScorchError,
        "cache_bytes must be a non-negative integer, but got 'x'",
        scorch.settings,
        cache_bytes="x",
    )
    message = "dense_budget must be ... but got '1GB'; it counts bytes"
    refused(ScorchError, message, scorch.settings, dense_budget="1GB")
    message = "backend must be one of ... but got 'cuda'; with None, kernels run on the device"
    refused(ScorchError, message, scorch.settings, backend="cuda")

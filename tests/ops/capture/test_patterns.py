"""What depends on the sparsity pattern, in graphs that are called with another one: right, or refused."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import scorch
from scorch import SparseTensor
from scorch._src.hint_tables import TENSOR_HINTS
from scorch.errors import UnsupportedError
from torch_has import needs_export_of_sparse_arguments

Read = Callable[[Any], Any]

NUMBERS: dict[str, Read] = {
    "nnz": lambda A: A.nnz,
    "density": lambda A: A.density,
    "_nnz": lambda A: A._nnz(),
    "values": lambda A: A.values().shape[0],
    "_values": lambda A: A._values().numel(),
    "_indices": lambda A: A._indices().shape[1],
    "indices": lambda A: A.to_sparse_coo().indices().shape[1],
    "crow_indices": lambda A: A.to_sparse_csr().crow_indices()[3],
    "col_indices": lambda A: A.to_sparse_csr().col_indices().shape[0],
    "ccol_indices": lambda A: A.to_sparse_csc().ccol_indices()[3],
    "row_indices": lambda A: A.to_sparse_csc().row_indices().numel(),
    "coo": lambda A: A.coo()[0].shape[0],
    "csr": lambda A: A.csr()[1].shape[0],
    "csc": lambda A: A.csc()[1].shape[0],
    "to_edge_index": lambda A: A.to_edge_index()[0].shape[1],
    "sparse_dim": lambda A: A.sparse_dim(),
    "_dimI": lambda A: A._dimI(),
    "dense_dim": lambda A: A.dense_dim(),
    "_dimV": lambda A: A._dimV(),
    "is_coalesced": lambda A: 1 if A.is_coalesced() else 2,
    "sparse_size": lambda A: A.sparse_size(0),
    "sparse_sizes": lambda A: A.sparse_sizes()[1],
    "format": lambda A: 1 if A.format.name == "dcsr" else 2,
    "eliminate_zeros": lambda A: A.eliminate_zeros()._nnz(),
    "setdiag": lambda A: A.setdiag([3.0, 4.0])._nnz(),
    "with_values": lambda A: A.with_values(A.values() + 1).values().shape[0] + A.with_values(1)._nnz(),
    "of a product": lambda A: (A @ A.T)._nnz(),
    "values of a product": lambda A: (A @ A.T).values().shape[0],
    "of a transposed": lambda A: A.T.nnz,
}
SHORT = ("nnz", "density", "_nnz", "values", "_values", "dense_dim", "is_coalesced", "sparse_size", "format")
CONVERSIONS: dict[str, Read] = {
    "coalesce": lambda A: A.coalesce(),
    "sparse_mask": lambda A: (A * 2).sparse_mask(A),
    "to": lambda A: A.to(torch.float64),
    "to_dense": lambda A: A.to_dense(),
    "to_format": lambda A: A.to_format("dcsr"),
    "to_sparse": lambda A: A.to_sparse(1),
    "to_sparse_coo": lambda A: A.to_sparse_coo(),
    "to_sparse_csr": lambda A: A.to_sparse_csr(),
    "to_sparse_csc": lambda A: A.to_sparse_csc(),
    "to_sparse_bsr": lambda A: A.to_sparse_bsr((2, 2)),
    "to_sparse_bsc": lambda A: A.to_sparse_bsc((2, 2)),
    "torch.sparse.addmm": lambda A: torch.sparse.addmm(A.to_dense(), A, A.to_dense(), beta=0.5),
    "torch.sparse.mm": lambda A: torch.sparse.mm(A, A),
    "torch.sparse.mm mean": lambda A: torch.sparse.mm(A, A.to_dense(), "mean"),
    "torch.sparse.sum": lambda A: torch.sparse.sum(A),
    "torch.sparse.sum rows": lambda A: torch.sparse.sum(A, dim=1),
    "torch.sparse.softmax": lambda A: torch.sparse.softmax(A, 1),
    "torch.sparse.log_softmax": lambda A: torch.sparse.log_softmax(A, 1),
    "torch.sparse.sampled_addmm": lambda A: torch.sparse.sampled_addmm(A, A.to_dense(), A.to_dense()),
}
# reductions with ``masked=``, and views: their results are tested by name elsewhere, and are tensors
TENSORS_OF_VALUES = {
    "amax", "amin", "argmax", "argmin", "cumprod", "cumsum", "imag", "log_softmax", "logsumexp", "max",
    "mean", "median", "min", "norm", "prod", "real", "rearrange", "softmax", "std", "sum", "untyped_storage",
    "data_ptr", "var",
}  # fmt: skip
REFUSED: dict[str, Read] = {  # by torch.compile and torch.export
    "to_torch": lambda A: A.to_torch().to_dense(),
    "to_scipy": lambda A: A.to_scipy().nnz,
    "to_networkx": lambda A: len(A.to_networkx()),
    "nonzero": lambda A: A.nonzero().shape[0],
    "unique": lambda A: A.unique().shape[0],
    "a mask": lambda A: A[torch.arange(8) > 3].shape[0],
}
CONSTANTS: dict[str, Read] = {  # as attributes refused where they would become constants
    "nnz": lambda A: (A @ A).nnz,
    "density": lambda A: (A @ A).density,
    "levels": lambda A: (A @ A).levels[1]["crd"].shape[0],
}
NO_GRAPH = {  # of torch.sparse, in graphs: classes, contexts, and what PyTorch itself does not trace
    "SparseSemiStructuredTensor", "SparseSemiStructuredTensorCUSPARSELT", "SparseSemiStructuredTensorCUTLASS",
    "as_sparse_gradcheck", "check_sparse_tensor_invariants", "solve", "to_sparse_semi_structured",
}  # fmt: skip


class Reads(nn.Module):
    """All results of a table, or those of one function."""

    def __init__(self, *reads: Read) -> None:
        super().__init__()
        self.reads = reads

    def forward(self, A: torch.Tensor, x: torch.Tensor) -> Any:
        results = [read(A) for read in self.reads]
        return [each if isinstance(each, torch.Tensor) else x * each for each in results]


def drawn(size: int, density: float, format: str = "csr") -> Any:
    torch.manual_seed(size)
    return scorch.rand(size, size, density=density, format=format, dtype=torch.float64)


X = torch.ones(2, dtype=torch.float64)


def check_same(got: Any, wanted: Any) -> None:
    for one, other in zip(got, wanted, strict=True):
        assert type(one) is type(other)
        assert getattr(one, "format", None) == getattr(other, "format", None)
        torch.testing.assert_close(one.to_dense(), other.to_dense())


def reloaded(program: Any) -> Any:
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file).module()


@pytest.fixture(autouse=True)
def forget_graphs() -> None:
    torch.compiler.reset()


def test_every_attribute_is_in_a_table() -> None:
    own = {name for name in dir(SparseTensor) if not hasattr(torch.Tensor, name) and name[0] != "_"}
    own |= {name for name in vars(SparseTensor) if hasattr(torch.Tensor, name) and name[:2] != "__"}
    fields = set(SparseTensor.__annotations__) | TENSORS_OF_VALUES | set(TENSOR_HINTS)
    assert own - fields == (NUMBERS | CONVERSIONS | REFUSED | CONSTANTS).keys() & own
    functions = {f"torch.sparse.{name}" for name in torch.sparse.__all__ if name not in NO_GRAPH}
    assert functions <= CONVERSIONS.keys()


@pytest.mark.parametrize(
    "names", [SHORT, pytest.param(NUMBERS, marks=pytest.mark.long)], ids=["short", "all"]
)
def test_numbers_in_a_compiled_graph_are_those_of_the_pattern(names: Iterable[str]) -> None:
    model = Reads(*(NUMBERS[name] for name in names))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for A in (drawn(8, 0.3), drawn(8, 0.6)):
        check_same(compiled(A, X), model(A, X))


@needs_export_of_sparse_arguments
@pytest.mark.parametrize("format", ["coo", pytest.param("csr", marks=pytest.mark.long)])
def test_numbers_in_an_exported_program_are_those_of_the_pattern(format: str) -> None:
    model = Reads(*NUMBERS.values())
    program = reloaded(torch.export.export(model, (drawn(8, 0.3, format), X)))
    for A in (drawn(8, 0.6, format), drawn(8, 0.0, format), drawn(8, 1 / 64, format)):
        check_same(program(A, X), model(A, X))


@needs_export_of_sparse_arguments
def test_strict_export_traces_arrays_and_refuses_attributes() -> None:
    kept = Reads(*(read for name, read in NUMBERS.items() if name[0] == "_" and "dim" not in name))
    program = torch.export.export(kept, (drawn(8, 0.3), X), strict=True)
    check_same(program.module()(drawn(8, 0.6), X), kept(drawn(8, 0.6), X))
    for name in CONSTANTS:
        with pytest.raises(Exception, match=rf"S\.{name} depends on the sparsity pattern.*use S\."):
            torch.export.export(Reads(lambda A, name=name: getattr(A, name)), (drawn(8, 0.3), X), strict=True)  # type: ignore[misc]


@pytest.mark.parametrize("name", CONSTANTS)
def test_an_attribute_of_a_result_is_no_constant(name: str) -> None:
    compiled = torch.compile(Reads(CONSTANTS[name]), fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match=rf"S\.{name} depends on the sparsity pattern.*use S\."):
        compiled(drawn(8, 0.3), X)


@needs_export_of_sparse_arguments
@pytest.mark.parametrize("name", REFUSED)
def test_what_no_graph_can_hold_says_what_to_do(name: str) -> None:
    model = Reads(REFUSED[name])
    for capture in (
        lambda: torch.export.export(model, (drawn(8, 0.3), X)),
        lambda: torch.compile(model, fullgraph=True, backend="aot_eager")(drawn(8, 0.3), X),
    ):
        with pytest.raises(Exception, match="call it outside"):
            capture()


@needs_export_of_sparse_arguments
def test_conversions_are_exported_for_any_size() -> None:
    model, size = Reads(*CONVERSIONS.values()), Dim("size", min=4, max=1000)
    dynamic_shapes = {"A": {0: size, 1: size}, "x": None}
    program = reloaded(torch.export.export(model, (drawn(8, 0.3), X), dynamic_shapes=dynamic_shapes))
    for A in (drawn(8, 0.5), drawn(14, 0.4)):
        check_same(program(A, X), model(A, X))


def test_conversions_are_compiled_for_any_size() -> None:
    model = Reads(*CONVERSIONS.values())
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=True)
    for A in (drawn(8, 0.3), drawn(14, 0.4)):
        check_same(compiled(A, X), model(A, X))


@needs_export_of_sparse_arguments
def test_a_graph_layer_is_exported_for_graphs_of_any_size() -> None:
    layer, auto = scorch.nn.GCNConv(3, 2).double(), {0: Dim.AUTO, 1: Dim.AUTO}
    x, y = torch.randn(8, 3, dtype=torch.float64), torch.randn(11, 3, dtype=torch.float64)
    program = torch.export.export(layer, (x, drawn(8, 0.3)), dynamic_shapes=({0: Dim.AUTO}, auto))
    torch.testing.assert_close(program.module()(y, drawn(11, 0.4)), layer(y, drawn(11, 0.4)))


@needs_export_of_sparse_arguments
@pytest.mark.parametrize("count", [0, 1])
def test_examples_that_would_become_constants_are_refused(count: int) -> None:
    A = drawn(8, count / 64)
    assert A.nnz == count
    with pytest.raises(UnsupportedError, match="at least two stored elements"):
        torch.export.export(Reads(NUMBERS["nnz"]), (A, X))


def test_another_number_is_not_taken_for_the_old_one() -> None:
    compiled = torch.compile(lambda A, number: A * number, fullgraph=True, backend="aot_eager", dynamic=True)
    for number in (2.5, 3.5):
        check_same([compiled(drawn(8, 0.3), number)], [drawn(8, 0.3) * number])


class Constructions(nn.Module):
    """Sparse tensors from dense ones, statements, and a function that needs regular matrices."""

    def forward(self, x: Any, crow: Any, col: Any, values: Any) -> Any:
        S = scorch.from_torch(x.relu(), format="csr")
        T = scorch.sparse_csr_tensor(crow, col, values, (8, 8))
        product = scorch.einsum("ij,jk->ik", S, T)
        scaled = scorch.evaluate("y[i,j] = 2 * S[i,j] * x[i,j]", S=S, x=x)
        return [T, product, scaled, torch.linalg.solve(scorch.from_torch(x, format="csr"), x)]


def test_sparse_tensors_are_constructed_in_an_exported_program() -> None:
    model, A = Constructions(), drawn(8, 0.3)
    args = drawn(8, 1.0).to_dense() + torch.eye(8), A.crow_indices(), A.col_indices(), A.values()
    program = torch.export.export(model, args).module()
    check_same(program(args[0].flip(0, 1), *args[1:]), model(args[0].flip(0, 1), *args[1:]))

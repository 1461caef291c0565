"""What the scheduler chooses: orders of loops, transpositions, workspaces, formats and shared patterns."""

from __future__ import annotations

import itertools

import pytest
import torch

import scorch
from scorch import Format, SparseTensor
from scorch._src.compiler.pipeline import Planned
from scorch._src.compiler.plan import Operand, Splits, Step
from scorch._src.compiler.schedule import order_loops
from scorch._src.compiler.schedule.cost import Problem, cost
from scorch._src.compiler.schedule.infer_format import infer_format
from scorch._src.compiler.schedule.order_loops import algorithm_1, is_inner_product
from scorch._src.compiler.steps import split
from scorch._src.engine.execute import Task, operand_of, prepare
from scorch._src.loops.types import FLOAT32, INT32
from scorch._src.notation.indexing import parse
from scorch._src.notation.verify import shapes_of
from scorch._src.storage.storage import Storage
from scorch._src.tensor.create.build import from_coordinates

Stored = Storage | torch.Tensor
MATRICES = ["csr", "csc", "coo", "dcsr", "dcsc", "bsr(2,2)"]


def sparse(*shape: int, form: str, entries: int, seed: int = 0) -> Storage:
    """About ``entries`` ones at random places."""
    generator = torch.Generator().manual_seed(seed)
    coordinates = torch.stack([torch.randint(size, (entries,), generator=generator) for size in shape])
    found = from_coordinates(coordinates, torch.ones(entries), shape, Format(form, dims=len(shape)))
    assert isinstance(found, SparseTensor)
    return found.storage


def step_of(expression: str, **tensors: Stored) -> tuple[Step, dict[str, int]]:
    """The last step of ``expression``, in which earlier results may be given as tensors T1, T2."""
    statement = parse(expression)
    shapes = {n: t.pattern.shape if isinstance(t, Storage) else tuple(t.shape) for n, t in tensors.items()}
    return split(statement.assign)[-1], shapes_of(statement, shapes)


def planned(expression: str, format: str | None = None, **tensors: Stored) -> Planned:
    step, sizes = step_of(expression, **tensors)
    requested = None if format is None else Format(format, dims=len(step.target.indices))
    return prepare(Task(step, tensors, sizes, requested)).planned


def problem(expression: str, result: str, **tensors: Stored) -> Problem:
    step, sizes = step_of(expression, **tensors)
    operands = {access: operand_of(access.tensor, tensors[access.tensor]) for access in step.accesses}
    return Problem(step, operands, Format(result, dims=len(step.target.indices)), Splits(()), sizes)


# the order of loops ----------------------------------------------------------------------------------

SPGEMM = "C[i,k] = A[i,j] * B[j,k]"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("left", MATRICES)
@pytest.mark.parametrize("right", MATRICES)
def test_inner_product_is_never_chosen_for_two_sparse_matrices(left: str, right: str) -> None:
    for size, entries in [(3, 3), (10, 50), (10, 400), (100, 200), (100, 20_000), (3000, 3000)]:
        A = sparse(size, size, form=left, entries=entries)
        B = sparse(size, size, form=right, entries=entries, seed=1)
        for requested in (None, "csr", "csc", "coo", "dense"):
            found = planned(SPGEMM, requested, A=A, B=B)
            order = [loop for loop in found.plan.order if not loop.endswith("_in")]
            last = order[-1].removesuffix("_out")
            assert last != "j", f"{left} x {right} of size {size} -> {requested} runs {found.plan.order}"


def test_inner_product_is_seen_for_what_it_is() -> None:
    tensors = {name: sparse(50, 50, form="csr", entries=200) for name in "ABS"}
    product = problem(SPGEMM, "csr", A=tensors["A"], B=tensors["B"])
    inner = {order for order in itertools.permutations("ijk") if is_inner_product(product, order)}
    assert inner == {("i", "k", "j"), ("k", "i", "j")}
    # Where a sparse matrix connects i and k, their loops visit only what it stores.
    sampled = problem("C[i,k] = S[i,k] * A[i,j] * B[j,k]", "csr", **tensors)
    assert not any(is_inner_product(sampled, order) for order in itertools.permutations("ijk"))
    # Nor is a product with a dense matrix an intersection.
    dense = problem(SPGEMM, "dense", A=tensors["A"], B=torch.ones(50, 50))
    assert not any(is_inner_product(dense, order) for order in itertools.permutations("ijk"))


def test_algorithm_1_takes_spgemm_from_j_i_k_to_i_j_k() -> None:
    """Section 4.1 of the paper: the filter j is pushed below i, and no further."""
    A, B = sparse(1000, 1000, form="csr", entries=5000), sparse(1000, 1000, form="csr", entries=5000, seed=1)
    spgemm = problem(SPGEMM, "csr", A=A, B=B)
    assert order_loops._sort_by_sparsity(spgemm) == ["j", "i", "k"]
    assert cost(spgemm, "ijk").total < cost(spgemm, "jik").total
    assert algorithm_1(spgemm) == ("i", "j", "k")
    assert planned(SPGEMM, A=A, B=B).plan.order == ("i", "j", "k")


def test_algorithm_1_takes_spmm_to_i_j_k() -> None:
    A = sparse(1000, 1000, form="csr", entries=5000)
    spmm = problem(SPGEMM, "dense", A=A, B=torch.ones(1000, 64))
    assert algorithm_1(spmm) == ("i", "j", "k")
    assert planned(SPGEMM, A=A, B=torch.ones(1000, 64)).plan.order == ("i", "j", "k")


def test_algorithm_1_keeps_stored_orders_where_it_can() -> None:
    """Lines 11 to 18: with CSC operands and a CSC result all edges point the other way."""
    A, B = sparse(1000, 1000, form="csc", entries=5000), sparse(1000, 1000, form="csc", entries=5000, seed=1)
    spgemm = problem(SPGEMM, "csc", A=A, B=B)
    assert algorithm_1(spgemm) == ("k", "j", "i")
    assert cost(spgemm, algorithm_1(spgemm)).transposed == ()


def test_cheapest_edge_of_a_cycle_is_removed() -> None:
    edges = {("i", "j"): 5.0, ("j", "k"): 1.0, ("k", "i"): 7.0, ("i", "k"): 2.0}
    cycle = order_loops._find_cycle(edges)
    assert cycle is not None and all(edge in edges for edge in cycle)
    assert order_loops._find_cycle({("i", "j"): 1.0, ("j", "k"): 1.0, ("i", "k"): 1.0}) is None
    assert order_loops._topological("kji", {("i", "j"): 1.0, ("j", "k"): 1.0}) == ["i", "j", "k"]


@pytest.mark.parametrize(
    ("left", "right", "result"), list(itertools.product(["csr", "csc", "coo"], repeat=3))
)
def test_choice_is_never_dearer_than_the_paper(left: str, right: str, result: str) -> None:
    A, B = sparse(200, 300, form=left, entries=900), sparse(300, 100, form=right, entries=900, seed=1)
    choice = planned(SPGEMM, result, A=A, B=B).choice
    assert choice.chosen.total <= choice.paper.total
    assert choice.chosen.order not in [rejected.order for rejected in choice.rejected]


def test_sddmm_runs_over_the_sparse_matrix() -> None:
    S = sparse(1000, 1000, form="csr", entries=5000)
    X, Y = torch.ones(1000, 64), torch.ones(1000, 64)
    assert planned("D[i,j] = S[i,j] * X[i,k] * Y[j,k]", S=S, X=X, Y=Y).plan.order == ("i", "j", "k")


def test_shapes_and_entries_decide() -> None:
    """A model that never sees a shape could not tell these apart."""
    small, large = (
        sparse(10, 100_000, form="csc", entries=20),
        sparse(100_000, 10, form="csr", entries=50_000),
    )
    found = planned(SPGEMM, "csr", A=small, B=large)
    assert [c.tensor for c in found.conversions] in (["A"], []), "the large operand is left as it is"


# transposition ---------------------------------------------------------------------------------------


def test_operand_against_the_loops_is_transposed() -> None:
    A, B = sparse(1000, 1000, form="csr", entries=5000), sparse(1000, 1000, form="csc", entries=5000, seed=1)
    found = planned("C[i,j] = A[i,j] + B[i,j]", "csr", A=A, B=B)
    (conversion,) = found.conversions
    assert conversion.tensor == "B" and conversion.format.order == (0, 1)
    assert found.plan.order == ("i", "j")


def test_smaller_operand_is_transposed() -> None:
    small, large = sparse(1000, 1000, form="csr", entries=100), sparse(1000, 1000, form="csc", entries=50_000)
    found = planned("y[] = A[i,j] * B[i,j]", A=small, B=large)
    assert [conversion.tensor for conversion in found.conversions] in (["A"], [])


def test_lone_operand_is_sorted_not_transposed() -> None:
    found = planned("B[j,i] = A[i,j]", "csr", A=sparse(1000, 900, form="csr", entries=5000))
    assert found.conversions == () and found.plan.order == ("i", "j")


def test_same_tensor_in_two_orders_is_converted_for_one_access() -> None:
    found = planned("B[i,j] = A[i,j] + A[j,i]", "csr", A=sparse(1000, 1000, form="csr", entries=5000))
    (conversion,) = found.conversions
    assert conversion.tensor == "A" and conversion.format == Format("csc")
    assert [operand.name for operand in found.plan.operands] == ["A", conversion.name]


def test_transposed_pattern_is_kept_with_the_operand() -> None:
    A = SparseTensor(sparse(100, 100, form="csr", entries=300))
    B = SparseTensor(sparse(100, 100, form="csc", entries=300))
    for _ in range(2):
        scorch.evaluate("C[i,j] = A[i,j] + B[i,j]", A=A, B=B, format="csr")
    kept = len(A.storage.pattern.converted) + len(B.storage.pattern.converted)
    assert kept == 1


# workspaces ------------------------------------------------------------------------------------------

WORKSPACES = [
    # expression, formats, requested, workspace, levels outside of it
    ("C[i,k] = A[i,j] * B[j,k]", "csr csr", "csr", "dense", 1),
    ("C[i,k] = A[i,j] * B[j,k]", "csc csc", "csc", "dense", 1),
    ("C[i,k] = A[i,j] * B[j,k]", "dcsr csr", "dcsr", "dense", 1),
    ("C[i,k] = A[i,j] * B[j,k]", "csr dense", "dense", None, 0),
    ("C[i,j] = A[i,j] + B[i,j]", "csr csr", "csr", None, 2),
    ("C[i,j] = A[i,j] * B[i,j]", "csr dcsr", "coo", None, 2),
    ("C[i,j] = A[i,j] + B[i,j]", "csc csc", "csc", None, 2),
    ("c[i] = A[i,j] * B[i,j]", "csr csr", "s", None, 1),
]


@pytest.mark.parametrize(("expression", "forms", "requested", "workspace", "outside"), WORKSPACES)
def test_workspace_only_where_a_reduction_lies_outside(
    expression: str, forms: str, requested: str, workspace: str | None, outside: int
) -> None:
    tensors: dict[str, Stored] = {}
    for name, form in zip("AB", forms.split(), strict=True):
        given = sparse(300, 300, form=form, entries=900) if form != "dense" else torch.ones(300, 300)
        tensors[name] = given
    plan = planned(expression, requested, **tensors).plan
    assert plan.workspace == workspace, plan.header
    if requested != "dense":
        assert plan.prefix_levels == outside
        loops = [index for index in plan.order[: plan.prefix] if index in plan.step.reduced]
        assert loops == [], "no reduction outside of the levels that are appended in order"


def test_workspace_of_two_dimensions() -> None:
    """The reduction k is stored above i and j, so both come in any order."""
    A, B = sparse(6, 50, 40, form="sss", entries=300), sparse(6, 50, 30, form="sss", entries=300, seed=1)
    plan = planned("C[l,i,j] = A[l,k,i] * B[l,k,j]", "sss", A=A, B=B).plan
    assert plan.order[:2] == ("l", "k")
    assert plan.workspace == "dense" and plan.prefix_levels == 1
    assert len(plan.result) - plan.prefix_levels == 2


def test_workspace_beyond_the_cache_keeps_entries_only() -> None:
    """A row of 2^26 places is not made for 2000 entries."""
    A = sparse(1000, 1000, form="csr", entries=2000)
    B = sparse(1000, 2**26, form="csr", entries=2000, seed=1)
    plan = planned(SPGEMM, "csr", A=A, B=B).plan
    assert plan.workspace == "list" or (plan.workspace is None and plan.assembly == "list")


# formats of results ----------------------------------------------------------------------------------

FORMATS = [
    # rule 1: products are sparse where a factor is, sums where all terms are
    ("C[i,k] = A[i,j] * B[j,k]", "csr csr", "csr"),
    ("C[i,k] = A[i,j] * B[j,k]", "csc csc", "csc"),
    ("C[i,k] = A[i,j] * B[j,k]", "csr csc", "csr"),  # small: a dense result would be much larger
    ("C[i,k] = A[i,j] * B[j,k]", "coo coo", "coo"),
    ("C[i,k] = A[i,j] * B[j,k]", "dcsr csr", "csr"),  # few rows are empty
    ("C[i,k] = A[j,i] * B[j,k]", "csr csr", "csr"),
    ("C[i,k] = A[j,i] * B[k,j]", "csr csc", "csr"),
    ("C[i,j] = A[i,j] * B[i,j]", "csr csr", "csr"),
    ("C[i,j] = A[i,j] * B[i,j]", "csr dense", "csr"),
    ("C[i,j] = A[i,j] + B[i,j]", "csr csr", "csr"),
    ("C[i,j] = A[i,j] + B[i,j]", "dcsr dcsr", "dcsr"),
    ("C[i,j] = A[i,j] + B[i,j]", "csr dcsr", "csr"),
    ("C[i,j] = A[i,j] + B[i,j]", "coo coo", "coo"),
    ("C[i,j] = A[i,j] + B[i,j]", "csr dense", "dense"),
    ("C[i,j] = A[i,j] * 2", "csr", "csr"),
    ("C[i,j] = A[i,j] + 2", "csr", "dense"),
    ("C[i,j] = maximum(A[i,j], B[i,j])", "csr csr", "csr"),
    ("C[i,j] = where(A[i,j] > 0, B[i,j], 0)", "csr dense", "csr"),
    # rule 2: f(0) = 0 keeps the pattern, f(0) != 0 fills
    ("C[i,j] = relu(A[i,j])", "csr", "csr"),
    ("C[i,j] = tanh(A[i,j])", "dcsc", "dcsc"),
    ("C[i,j] = sqrt(A[i,j])", "bsr(2,2)", "bsr(2,2)"),
    ("C[j,i] = abs(A[i,j])", "csr", "csc"),
    ("C[i,j] = exp(A[i,j])", "csr", "dense"),
    ("C[i,j] = A[i,j] == 0", "csr", "dense"),
    ("C[i,j] = A[i,j] > 0", "csr", "csr"),
    # rule 4: all levels dense
    ("C[i,k] = A[i,j] * B[j,k]", "csr dense", "dense"),
    ("y[i] = A[i,j] * x[j]", "csr v", "dense"),
    ("y[] = A[i,j]", "csr", "dense"),
]


@pytest.mark.parametrize(("expression", "forms", "result"), FORMATS)
def test_format_of_a_result(expression: str, forms: str, result: str) -> None:
    step, tensors = parse(expression).assign, {}
    names = [name for name in ("A", "B", "x") if f"{name}[" in expression.split("=", 1)[1]]
    for name, form in zip(names, forms.split(), strict=True):
        dense = torch.ones(300, 300) if form == "dense" else torch.ones(300)
        tensors[name] = dense if form in ("dense", "v") else sparse(300, 300, form=form, entries=900)
    assert planned(expression, **tensors).plan.result == Format(result, dims=len(step.target.indices))


@pytest.mark.parametrize(
    ("expression", "shape", "entries", "result"),
    [
        ("C[i,k] = A[j,i] * B[j,k]", (1000, 1000), (512, 1023), "ds"),
        ("C[i,k] = A[j,i] * B[j,k]", (1000, 1000), (256, 511), "ss"),
        ("C[i,k] = A[j,i] * B[j,k]", (8, 100_000), (512, 1023), "ds"),
        ("C[i,k,l] = A[j,i] * B[j,k,l]", (100, 100, 1000), (1024, 2047), "dds"),
        ("C[i,k,l] = A[j,i] * B[j,k,l]", (100, 100, 1000), (128, 255), "dss"),
    ],
)
def test_outer_levels_are_dense_unless_most_coordinates_are_empty(
    expression: str, shape: tuple[int, ...], entries: tuple[int, int], result: str
) -> None:
    """Up to 4 coordinates for each expected entry; like plans, formats depend on the magnitudes of counts."""
    step, sizes = step_of(expression, A=torch.empty(shape[:2]), B=torch.empty(shape))
    for count in entries:
        operands = {}
        for access in step.accesses:
            dims = len(access.indices)
            form, counts = "d" + "s" * (dims - 1), [count] * (dims - 1)
            operands[access] = operand(access.tensor, form, shape[:dims], shape[0], *counts)
        assert infer_format(step, operands, sizes).format == Format(result)


def test_sums_keep_the_outer_levels_of_the_only_sparse_operand() -> None:
    T = sparse(50, 50, 50, form="csf", entries=2000)
    plan = planned("C[i,j] = T[i,j,k] * x[k]", T=T, x=torch.ones(50)).plan
    assert plan.result == Format("dcsr") and plan.assembly == "shared"


def operand(name: str, form: str, shape: tuple[int, ...], *counts: int) -> Operand:
    return Operand(name, Format(form, dims=len(shape)), FLOAT32, INT32, shape, counts)


@pytest.mark.parametrize(
    ("entries", "result"),
    [(10, Format("sd")), (249, Format("sd")), (250, Format("dd")), (1000, Format("dd"))],
)
def test_sparse_above_dense_becomes_dense_at_a_quarter(entries: int, result: Format) -> None:
    """Rule 3: COO times dense, when the dense result is at most 4 times the bound of the sparse one."""
    step, sizes = step_of(SPGEMM, A=torch.empty(1000, 1000), B=torch.empty(1000, 8))
    A, B = step.accesses
    operands = {
        A: operand("A", "coo", (1000, 1000), entries, entries),
        B: operand("B", "dense", (1000, 8), 1000, 8000),
    }
    assert infer_format(step, operands, sizes).format == result


def test_requested_format_overrides_all() -> None:
    A = sparse(30, 30, form="csr", entries=90)
    for requested in ("dense", "csr", "csc", "coo", "dcsr", "bsr(4,4)", "sd"):
        assert planned("C[i,j] = exp(A[i,j])", requested, A=A).plan.result == Format(requested)


def test_every_result_has_reasons() -> None:
    for expression, forms, _ in FORMATS[:8]:
        names = ["A", "B"][: len(forms.split())]
        tensors: dict[str, Stored] = {
            name: torch.ones(300, 300) if form == "dense" else sparse(300, 300, form=form, entries=900)
            for name, form in zip(names, forms.split(), strict=True)
        }
        assert all(planned(expression, **tensors).inferred.reasons)


# shared patterns -------------------------------------------------------------------------------------

SHARED = [
    "D[i,j] = S[i,j] * X[i,k] * Y[k,j]",
    "D[i,j] = 2 * S[i,j]",
    "D[i,j] = S[i,j] * a[i]",
    "D[i,j] = S[i,j] / b[j]",
    "D[i,j] = relu(-S[i,j])",
    "D[i,j] = S[i,j] * S[i,j] + S[i,j]",
    "D[j,i] = S[i,j]",
]


@pytest.mark.parametrize("expression", SHARED)
@pytest.mark.parametrize("form", MATRICES)
def test_pattern_is_shared_and_values_are_not(expression: str, form: str) -> None:
    S = SparseTensor(sparse(30, 40, form=form, entries=90))
    dense = {"X": torch.ones(30, 5), "Y": torch.ones(5, 40), "a": torch.ones(30), "b": torch.ones(40)}
    used = {name: tensor for name, tensor in dense.items() if f"{name}[" in expression}
    result = scorch.evaluate(expression, S=S, **used)
    assert isinstance(result, SparseTensor)
    pairs = zip(result.storage.pattern.arrays, S.storage.pattern.arrays, strict=True)
    assert all(mine is theirs for mine, theirs in pairs), "the very same index arrays"
    assert result.storage.values.data_ptr() != S.storage.values.data_ptr()
    step, sizes = step_of(expression, S=S.storage, **used)
    task = Task(step, {"S": S.storage, **used}, sizes)
    assert prepare(task).planned.plan.assembly == "shared"

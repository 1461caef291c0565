"""Which loops run in vector registers, and which factors are taken out of sums."""

import dataclasses

import pytest
import torch

import scorch
from scorch._src.compiler.plan import Plan
from scorch._src.compiler.steps import split
from scorch._src.compiler.target import Target
from scorch._src.engine import schedules
from scorch._src.engine.execute import Task, prepare
from scorch._src.notation.parse_einsum import parse_einsum

NEON = Target("", 16, 32, 2, 1 << 20, 32 << 20)
AVX512 = Target("", 64, 32, 4, 1 << 20, 32 << 20)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch):
    def use(target: Target) -> None:
        for module in ("compiler.vector.vectorize", "engine.schedules"):
            monkeypatch.setattr(f"scorch._src.{module}.target", lambda: target)
        schedules.forget()

    use(NEON)
    yield use
    schedules.forget()


def plan_of(equation: str, *operands: torch.Tensor) -> Plan:
    parsed = parse_einsum(equation, [tuple(operand.shape) for operand in operands])
    (step,) = split(parsed.statement)
    names = [operand.access.tensor for operand in parsed.operands]
    given = {
        n: o.storage if isinstance(o, scorch.SparseTensor) else o
        for n, o in zip(names, operands, strict=True)
    }
    return prepare(Task(step, given, parsed.sizes)).planned.plan


def sparse(*shape: int, format: str = "csr", dtype: torch.dtype = torch.float32) -> scorch.SparseTensor:
    generator = torch.Generator().manual_seed(1)
    dense = torch.rand(*shape, generator=generator)
    return scorch.from_torch(torch.where(dense < 0.9, 0.0, dense).to(dtype), format=format)


@pytest.mark.parametrize(
    ("columns", "width", "lanes", "whole"),
    [
        (1, 1, 1, True),
        (3, 3, 2, True),
        (7, 7, 4, True),
        (64, 64, 4, True),
        (100, 50, 4, False),
        (256, 64, 4, False),
    ],
)
def test_a_stretch_of_the_result_stays_in_registers(machine, columns, width, lanes, whole):
    found = plan_of("ij,jk->ik", sparse(40, 30), torch.rand(30, columns)).vectors
    assert found is not None and found.kind == "rows" and found.depth == 1
    assert (found.width, found.lanes, found.whole) == (width, lanes, whole)


def test_wider_registers_hold_wider_stretches(machine):
    machine(AVX512)
    found = plan_of("ij,jk->ik", sparse(40, 30), torch.rand(30, 256)).vectors
    assert (found.width, found.lanes, found.whole) == (256, 16, True)


@pytest.mark.parametrize(("size", "width", "rest"), [(64, 64, 0), (100, 20, 0), (67, 64, 3), (8, 8, 0)])
def test_sampled_products_are_summed_in_parts(machine, size, width, rest):
    plan = plan_of("ij,ik,jk->ij", sparse(40, 30), torch.rand(40, size), torch.rand(30, size))
    assert plan.order == ("i", "j", "k")
    found = plan.vectors
    assert found is not None and found.kind == "sums"
    assert (found.width, found.rest) == (width, rest)
    assert found.width % (found.sums * found.lanes) == 0 and 1 < found.sums <= 5


def test_the_mask_is_multiplied_once(machine):
    plan = plan_of("ij,ik,jk->ij", sparse(40, 30), torch.rand(40, 64), torch.rand(30, 64))
    assert [(access.tensor, depth) for access, depth in plan.factors] == [("A", 2)]


def test_partial_products_are_kept(machine):
    T = sparse(20, 15, 10, format="csf")
    plan = plan_of("ijk,jr,kr->ir", T, torch.rand(15, 32), torch.rand(10, 32))
    assert plan.order == ("i", "j", "k", "r")
    assert [(access.tensor, depth) for access, depth in plan.factors] == [("B", 2)]
    with scorch.settings(disable="contract"):
        assert plan_of("ijk,jr,kr->ir", T, torch.rand(15, 32), torch.rand(10, 32)).factors == ()


@pytest.mark.parametrize("dtype", [torch.float16, torch.complex64, torch.int8, torch.bool])
def test_types_without_vectors_have_plain_loops(machine, dtype):
    A = sparse(40, 30, dtype=dtype)
    assert plan_of("ij,jk->ik", A, torch.ones(30, 8, dtype=dtype)).vectors is None


def test_mixed_types_have_plain_loops(machine):
    assert plan_of("ij,jk->ik", sparse(40, 30), torch.rand(30, 8, dtype=torch.float64)).vectors is None


def test_large_operands_are_fetched_ahead(machine):
    small = plan_of("ij,jk->ik", sparse(400, 300), torch.rand(300, 64))
    large = plan_of("ij,jk->ik", sparse(400, 3000), torch.rand(3000, 64))
    assert small.prefetched == () and [access.tensor for access, *_ in large.prefetched] == ["B"]


def test_what_is_fetched_where_the_core_looks_ahead(machine):
    def fetched(equation: str, *operands: torch.Tensor, columns: int = 3000) -> list[tuple[str, int, int]]:
        found = plan_of(equation, sparse(400, columns), *operands).prefetched
        return [(access.tensor, count, step) for access, count, step in found]

    machine(dataclasses.replace(AVX512, cache_bytes=1 << 19, looks_ahead=256))
    assert fetched("ij,jk->ik", torch.rand(3000, 64)) == []  # short rows
    assert fetched("ij,jk->ik", torch.rand(3000, 80)) == [("B", 80, 64)]
    sampled = "ij,ik,jk->ij", torch.rand(400, 64), torch.rand(3000, 64)
    assert fetched(*sampled) == [("C", 64, 0)]
    machine(dataclasses.replace(AVX512, cache_bytes=1 << 17, shared_cache_bytes=1 << 20, looks_ahead=256))
    assert fetched("ij,jk->ik", torch.rand(3000, 80)) == [("B", 80, 0)]  # from memory, every line
    machine(dataclasses.replace(AVX512, cache_bytes=1 << 12, looks_ahead=256))
    assert fetched("ij,jk->ik", torch.rand(140, 80), columns=140) == [("B", 80, 64)]  # 14 entries in a row
    assert fetched("ij,jk->ik", torch.rand(60, 80), columns=60) == [("B", 80, 0)]  # 6: those of the next
    machine(dataclasses.replace(AVX512, cache_bytes=1 << 21, looks_ahead=256))
    assert fetched("ij,jk->ik", torch.rand(3000, 80)) == fetched(*sampled) == []


def test_lines_that_are_fetched_are_as_far_apart_as_the_core_looks_ahead(machine):
    machine(dataclasses.replace(AVX512, cache_bytes=1 << 19, looks_ahead=256))
    A, B = sparse(20, 3000), torch.rand(3000, 128)
    source = scorch.explain("ij,jk->ik", A, B).source
    assert "__builtin_prefetch(B_vals_ahead + 64);" in source and source.count("__builtin_prefetch(") == 2
    torch.testing.assert_close(scorch.einsum("ij,jk->ik", A, B), A.to_dense() @ B)


def test_stretches_are_outermost_only_where_that_fits_the_cache(machine):
    def opens() -> int:
        found = plan_of("ij,jk->ik", sparse(400, 600), torch.rand(600, 512)).vectors
        return found.opens

    assert opens() == 1
    machine(Target("", 16, 32, 2, 1 << 19, 1 << 20))
    assert opens() == 0
    with scorch.settings(disable="tiles"):
        assert opens() == 1


@pytest.mark.sampled(3)
@pytest.mark.parametrize("columns", [1, 5, 512])
def test_stretches_outermost_are_right(machine, columns):
    machine(Target("", 16, 32, 2, 1 << 19, 1 << 12))
    A, B = sparse(60, 70), torch.rand(70, columns)
    plan_of("ij,jk->ik", A, B)
    with scorch.settings(debug=True):
        torch.testing.assert_close(scorch.einsum("ij,jk->ik", A, B), A.to_dense() @ B)


def test_explain_tells_of_registers(machine):
    def inner(equation: str, *operands: torch.Tensor) -> str:
        return scorch.explain(equation, *operands).steps[-1].inner

    found = inner("ij,jk->ik", sparse(400, 3000), torch.rand(3000, 64))
    assert found.startswith(
        "k in vectors of 4, fully unrolled; the results stay in registers during the loop over j"
    )
    assert found.endswith("; rows of B are prefetched")
    found = inner("ij,ik,jk->ij", sparse(40, 30), torch.rand(40, 67), torch.rand(30, 67))
    assert found.startswith("k in vectors of 4, 64 elements at a time, in 2 partial sums, remainder of 3")
    assert found.endswith("; A is multiplied once, after k")


def test_rows_below_a_sparse_level_keep_their_places(machine):
    """The rows that are stored were written to where they would stand in a dense result."""
    dense = torch.zeros(17, 6)
    dense[[3, 4, 11]] = torch.rand(3, 6)
    A, X, Y = scorch.from_torch(dense, format="sd"), torch.rand(17, 16), torch.rand(16, 6)
    plan = plan_of("ij,ir,rj->ij", A, X, Y)
    assert plan.vectors.kind == "rows" and plan.assembly == "shared"
    with scorch.settings(debug=True):
        torch.testing.assert_close(scorch.einsum("ij,ir,rj->ij", A, X, Y).to_dense(), dense * (X @ Y))


def test_the_extent_of_a_short_loop_is_a_number_in_the_kernel(machine):
    short = plan_of("ij,jk->ik", sparse(40, 30), torch.rand(30, 48))
    assert short.splits.extents == (("k", 48),)
    long = plan_of("ij,jk->ik", sparse(40, 30), torch.rand(30, 2000))
    assert long.vectors is not None and long.splits.extents == ()


def test_rows_of_a_block_run_side_by_side(machine):
    blocks = sparse(64, 64, format="bsr(8,8)")
    product = plan_of("ij,jk->ik", blocks, torch.rand(64, 64)).vectors
    assert product is not None and (product.jam, product.width) == (4, 16)  # 16 registers in all
    sampled = plan_of("ij,ik,jk->ij", blocks, torch.rand(64, 32), torch.rand(64, 32)).vectors
    assert sampled is not None and (sampled.kind, sampled.jam, sampled.sums) == ("sums", 4, 1)
    threes = plan_of("ij,jk->ik", sparse(64, 64, format="bsr(3,3)"), torch.rand(64, 64)).vectors
    assert threes is not None and threes.jam == 3
    fives = plan_of("ij,jk->ik", sparse(64, 64, format="bsr(5,5)"), torch.rand(64, 64)).vectors
    assert fives is not None and fives.jam == 1


def test_rows_with_entries_of_their_own_do_not(machine):
    for form in ("csr", "coo", "csc"):
        found = plan_of("ij,jk->ik", sparse(64, 64, format=form), torch.rand(64, 64)).vectors
        assert found is None or found.jam == 1


@pytest.mark.parametrize("form", ["csr", "coo", "csc", "dcsr"])
def test_turns_that_append_entries_do_not_run_side_by_side(machine, form):
    X, Y = torch.zeros(6, 8), torch.ones(5, 8)
    X[2] = 1
    S = scorch.from_torch(X, format="sd")
    found = scorch.einsum("ij,kj->ik", S, Y, format=form)
    assert found.nnz == 5 and torch.equal(found.to_dense(), X @ Y.T)


def test_entries_of_a_row_run_side_by_side(machine):
    rows, far = torch.rand(40, 64), torch.rand(40, 1 << 17)
    near = plan_of("ij,ik,jk->ij", sparse(40, 200), rows, torch.rand(200, 64)).vectors
    assert near is not None and (near.kind, near.jam, near.sums) == ("sums", 4, 1)
    pairs = plan_of("ij,ik,jk->ij", sparse(40, 40_000), rows, torch.rand(40_000, 64)).vectors
    assert pairs is not None and (pairs.jam, pairs.sums) == (2, 2)
    short = plan_of("ij,ik,jk->ij", sparse(40, 8), rows, torch.rand(8, 64)).vectors
    assert short is not None and short.jam == 1
    large = plan_of("ij,ik,jk->ij", sparse(40, 200), far, torch.rand(200, 1 << 17)).vectors
    assert large is not None and large.jam == 1


@pytest.mark.sampled(3)
@pytest.mark.parametrize("columns", [40, 43, 200])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.int64])
def test_sums_of_several_entries_end_in_one_register(machine, columns, dtype):
    dense = torch.randint(-3, 4, (40, columns)) * (torch.rand(40, columns) < 0.3)
    dense, X, Y = (
        t.to(dtype) for t in (dense, torch.randint(-3, 4, (40, 64)), torch.randint(-3, 4, (columns, 64)))
    )
    A = scorch.from_torch(dense, format="csr")
    assert plan_of("ij,ik,jk->ij", A, X, Y).vectors.jam == 4
    product = (X.long() @ Y.long().T) * dense.long()
    with scorch.settings(debug=True):  # through the interpreter
        torch.testing.assert_close(scorch.einsum("ij,ik,jk->ij", A, X, Y).to_dense(), product.to(dtype))
    torch.testing.assert_close(scorch.einsum("ij,ik,jk->ij", A, X, Y).to_dense(), product.to(dtype))
    torch.testing.assert_close(scorch.einsum("ij,ik,jk->i", A, X, Y), product.sum(1).to(dtype))


@pytest.mark.parametrize(("columns", "apart"), [(8, 2), (16, 2), (32, 1), (64, 1)])
def test_entries_of_a_row_are_added_up_in_two_sums_if_these_have_few_registers(machine, columns, apart):
    machine(AVX512)
    A = sparse(40, 100)  # with 10 entries in a row
    found = plan_of("ij,jk->ik", A, torch.rand(100, columns)).vectors
    assert found is not None and (found.jam, found.apart) == (1, apart)
    with scorch.settings(disable=["jam"]):
        alone = plan_of("ij,jk->ik", A, torch.rand(100, columns)).vectors
    assert alone is not None and alone.apart == 1


@pytest.mark.parametrize("columns", [1, 3, 8, 16, 32])
def test_sums_of_an_even_and_an_odd_number_of_entries_are_whole(columns):
    mask = torch.arange(40)[None, :] < torch.arange(41)[:, None]  # rows with 0 to 40 entries
    dense, X = torch.where(mask, torch.rand(41, 40, dtype=torch.float64), 0), torch.rand(40, columns).double()
    torch.testing.assert_close(scorch.from_torch(dense, format="csr") @ X, dense @ X)

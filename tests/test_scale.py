"""Cost follows the entries: large shapes in little memory, hypersparse shapes, and 64-bit positions."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from textwrap import dedent

import pytest
import torch

import scorch
from fork_server import run_python
from properties.drawing import to_dense
from scorch import Format, SparseTensor
from scorch._src.compiler.pipeline import index_type
from scorch._src.compiler.schedule.insert_workspace import key_words
from scorch._src.compiler.steps import split
from scorch._src.engine.execute import Task, convert, from_dense, prepare, run_step, sorted_storage
from scorch._src.loops.analysis import walk
from scorch._src.loops.nodes import Binary, Expr, Load, Store
from scorch._src.loops.types import INT32, INT64
from scorch._src.notation.indexing import parse
from scorch._src.storage.storage import Pattern, Storage
from scorch._src.tensor.create.build import from_coordinates

MEGABYTES = 100  # beyond the inputs, of the whole process

SCRIPT = """
    import resource, sys, time
    import scipy.sparse
    import torch
    import scorch
    from scorch._src.tensor.create.build import from_coordinates

    size, entries = 10**6, 2 * 10**5
    form, work = sys.argv[1:]

    def matrix(seed):
        generator = torch.Generator().manual_seed(seed)
        places = torch.randint(size, (2, entries), generator=generator)
        values = torch.randint(1, 4, (entries,), generator=generator).double()
        return places, values

    def stored(seed):
        places, values = matrix(seed)
        return from_coordinates(places, values, (size, size), form)

    def scipy_of(seed):
        places, values = matrix(seed)
        return scipy.sparse.coo_array((values, tuple(places)), (size, size)).tocsr()

    def megabytes():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    needs_two = work in ("product", "sum")
    A, B = stored(0), stored(1) if needs_two else None
    before, begin = megabytes(), time.perf_counter()
    match work.split():
        case ["product"]:
            found = scorch.einsum("ij,jk->ik", A, B)
        case ["sum"]:
            found = scorch.evaluate("C[i,j] = A[i,j] + 2 * B[i,j]", A=A, B=B)
        case ["symmetric"]:
            found = scorch.evaluate("C[i,j] = A[i,j] + A[j,i]", A=A)
        case ["transpose"]:
            found = scorch.einsum("ij->ji", A, format=form)
        case ["to", other]:
            found = A.to_format(other)
    seconds, used = time.perf_counter() - begin, megabytes() - before
    S, T = scipy_of(0), scipy_of(1) if needs_two else None
    truth = {"product": lambda: S @ T, "sum": lambda: S + 2 * T, "symmetric": lambda: S + S.T,
             "transpose": lambda: S.T.tocsr()}.get(work, lambda: S)().tocoo()
    mine = found.to_format("coo")
    order = torch.from_numpy(truth.row).long() * size + torch.from_numpy(truth.col).long()
    order, place = order.sort()
    keys = mine.indices()[0] * size + mine.indices()[1]
    right = torch.equal(keys, order) and torch.allclose(mine.values(), torch.from_numpy(truth.data)[place])
    print(f"{seconds:.2f} {used:.0f} {right} {mine.nnz}")
"""

WORK = [
    ("csr", "product"),
    ("coo", "product"),
    ("csr", "sum"),
    ("coo", "sum"),
    ("csr", "symmetric"),
    ("csr", "transpose"),
    ("csc", "transpose"),
    ("csr", "to csc"),
    ("coo", "to csr"),
    ("coo", "to dcsr"),
    ("csr", "to dcsc"),
    ("dcsr", "to coo"),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("form", "work"), WORK)
def test_matrices_of_a_million_rows_take_little_memory(form: str, work: str) -> None:
    """Two 10^6 x 10^6 matrices of 200,000 entries; dense, a single row of results would not fit in a page."""
    pytest.importorskip("scipy")
    if not sys.platform.startswith("linux"):
        pytest.skip("ru_maxrss is in kilobytes on Linux only")
    source = Path(scorch.__file__).parents[1]
    done = run_python(["-c", dedent(SCRIPT), form, work], env={**os.environ, "PYTHONPATH": str(source)})
    assert done.returncode == 0, done.stderr
    seconds, used, right, entries = done.stdout.split()
    print(f"{form} {work}: {seconds} s, {used} MB more, {entries} entries")
    assert right == "True"
    assert float(used) < MEGABYTES


# hypersparse -----------------------------------------------------------------------------------------


def places(*shape: int, entries: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randint(size, (entries,), generator=generator) for size in shape])


ROWS, COLUMNS = 2**40, 2**22  # the product of sizes stays below 2^63, which torch asks for


@pytest.mark.parametrize("form", ["coo", "dcsr", "dcsc"])
def test_hypersparse_sums_and_conversions(form: str) -> None:
    where = [places(ROWS, COLUMNS, entries=1000, seed=seed) for seed in (0, 1)]
    A, B = (from_coordinates(crd, torch.ones(1000), (ROWS, COLUMNS), form) for crd in where)
    total = scorch.evaluate("C[i,j] = A[i,j] + B[i,j]", A=A, B=B)
    assert isinstance(total, SparseTensor) and total.format == Format(form)
    assert all(array.dtype == torch.int64 for array in total.storage.pattern.arrays)
    expected = torch.cat(where, 1)
    expected = expected[:, (expected[0] * COLUMNS + expected[1]).argsort()]
    for other in ("coo", "dcsr", "dcsc", "oo"):
        assert torch.equal(total.to_format(other).to_format("coo").indices(), expected)
    turned = scorch.einsum("ij->ji", total, format="coo")
    assert torch.equal(turned.indices().sort().values, expected.flip(0).sort().values)


@pytest.mark.parametrize("form", ["coo", "dcsr"])
def test_hypersparse_product(form: str) -> None:
    """Rows far apart: C[i,k] has one entry for each j that both have."""
    inner = torch.arange(100) * 2**33 + 5
    left, right = torch.arange(100) * 2**13 + 1, torch.arange(100) * 2**14 + 3
    A = from_coordinates(torch.stack([left, inner]), torch.arange(100.0), (2**21, 2**40), form)
    B = from_coordinates(torch.stack([inner, right]), torch.full((100,), 2.0), (2**40, 2**21), form)
    C = scorch.einsum("ij,jk->ik", A, B, format="coo")
    assert torch.equal(C.indices(), torch.stack([left, right]))
    assert torch.equal(C.values(), 2 * torch.arange(100.0))
    dot = scorch.einsum("ij,ij->", A, A)
    assert float(dot) == float((torch.arange(100.0) ** 2).sum())


def storage(crd: torch.Tensor, values: torch.Tensor, shape: tuple[int, ...]) -> Storage:
    """A tensor too large for torch to number its places; statements in several steps may make such."""
    count = crd.shape[1]
    pos = (torch.tensor([0, count]), *(None,) * (len(shape) - 1))
    pattern = Pattern(Format("o" * len(shape)), shape, pos, tuple(crd), (count,) * len(shape))
    return sorted_storage(Storage(pattern, values), Format("o" * len(shape)))


def test_coordinates_that_need_two_keys() -> None:
    """2^40 x 2^40: sums, products and conversions sort by keys of two words."""
    shape = (2**40, 2**40)
    crd = places(*shape, entries=2000)
    A = storage(crd, torch.ones(2000), shape)
    assert torch.equal(A.pattern.crd[0], crd[0].sort().values)
    for form in (Format("ss"), Format("ss", order=(1, 0)), Format("oo", order=(1, 0)), Format("so")):
        there = convert(A, form)
        back = convert(there, Format("oo"))
        assert isinstance(back, Storage)
        assert all(torch.equal(a, b) for a, b in zip(back.pattern.arrays, A.pattern.arrays, strict=True))
    (step,) = split(parse("C[i,j] = A[i,j] + A[j,i]").assign)
    both = run_step(Task(step, {"A": A}, {"i": shape[0], "j": shape[1]}, Format("oo")))
    assert isinstance(both, Storage) and both.pattern.size == 4000
    chain = storage(torch.stack([crd[1], crd[0]]), torch.full((2000,), 3.0), shape)
    (step,) = split(parse("C[i,k] = A[i,j] * B[j,k]").assign)
    sizes = dict.fromkeys("ijk", 2**40)
    product = run_step(Task(step, {"A": A, "B": chain}, sizes, Format("ss")))
    assert isinstance(product, Storage)
    assert torch.equal(product.pattern.crd[0], A.pattern.crd[0]), "A[i,j] * A[i,j] for each entry"
    assert torch.equal(product.values, torch.full((2000,), 3.0))


def test_key_words_hold_what_fits_64_bits() -> None:
    assert key_words(range(3), [2**20, 2**20, 2**20]) == ((0, 1, 2),)
    assert key_words(range(3), [2**40, 2**20, 2**20]) == ((0, 1), (2,))
    assert key_words(range(2), [2**40, 2**40]) == ((0,), (1,))
    assert key_words(range(2), [2**62, 1]) == ((0, 1),)


# 64 bits ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "entries", "expected"),
    [
        ((2**31 - 1, 3), 10, INT32),
        ((2**31, 3), 10, INT64),
        ((3, 2**31), 10, INT64),
        ((10, 10), 2**31 - 1, INT32),
        ((10, 10), 2**31, INT64),
        ((), 1, INT32),
        ((0, 5), 0, INT32),
    ],
)
def test_indices_are_wide_only_where_they_must(
    shape: tuple[int, ...], entries: int, expected: object
) -> None:
    assert index_type(shape, entries) == expected


@pytest.mark.parametrize("size", [2**31 - 1, 2**31, 2**31 + 1, 2**33])
def test_dimensions_around_the_boundary_compute_right(size: int) -> None:
    last = torch.tensor([[0, 1, 1], [size - 1, 0, size - 2]])
    A = from_coordinates(last, torch.tensor([1.0, 2.0, 3.0]), (2, size), "csr")
    wide = torch.int32 if size < 2**31 else torch.int64
    assert all(array.dtype == wide for array in A.storage.pattern.arrays)
    assert scorch.einsum("ij,ij->i", A, A).tolist() == [1.0, 13.0]
    x = from_coordinates(torch.tensor([[size - 2, size - 1]]), torch.tensor([10.0, 100.0]), (size,), "s")
    y = scorch.einsum("ij,j->i", A, x)
    assert to_dense(y).tolist() == [100.0, 30.0]
    for form in ("coo", "dcsr", "dcsc", "csr"):
        assert A.to_format(form).to_format("coo").indices().tolist() == [[0, 1, 1], [size - 1, 0, size - 2]]
    turned = scorch.einsum("ij->ji", A, format="coo")
    assert turned.indices().tolist() == [[0, size - 2, size - 1], [1, 1, 0]]
    total = scorch.evaluate("C[i,j] = A[i,j] + A[i,j] * A[i,j]", A=A)
    assert total.values().tolist() == [2.0, 6.0, 12.0]


def test_narrow_and_wide_operands_meet() -> None:
    narrow = from_coordinates(torch.tensor([[0, 1], [1, 2]]), torch.ones(2), (2, 3), "csr")
    wide = from_coordinates(torch.tensor([[1, 2], [0, 2**31]]), torch.ones(2), (3, 2**31 + 1), "csr")
    found = scorch.einsum("ij,jk->ik", narrow, wide)
    assert isinstance(found, SparseTensor)
    assert found.to_format("coo").indices().tolist() == [[0, 1], [0, 2**31]]
    assert all(array.dtype == torch.int64 for array in found.storage.pattern.arrays)


def test_positions_beyond_32_bits_in_a_dense_operand(tmp_path: Path) -> None:
    """A dense matrix of 3 * 10^9 bytes in a file with holes: position j * 50000 + k passes 2^31."""
    rows, columns = 60_000, 50_000
    file = tmp_path / "matrix"
    try:
        with open(file, "wb") as made:
            made.truncate(rows * columns)
        X = torch.from_file(str(file), shared=True, size=rows * columns, dtype=torch.uint8).view(
            rows, columns
        )
    except (OSError, RuntimeError) as error:
        pytest.skip(f"no files with holes here: {error}")
    X[rows - 1, columns - 1] = 7
    X[43_000, 5] = 9
    A = from_coordinates(
        torch.tensor([[0, 1, 1], [rows - 1, 43_000, 0]]), torch.ones(3, dtype=torch.uint8), (2, rows), "csr"
    )
    found = scorch.einsum("ij,jk->ik", A, X)
    assert found.shape == (2, columns) and found[0, -1] == 7 and found[1, 5] == 9
    assert int(found.sum()) == 16
    picked = from_coordinates(
        torch.tensor([[43_000, rows - 1], [5, columns - 1]]),
        torch.ones(2, dtype=torch.uint8),
        (rows, columns),
        "coo",
    )
    assert scorch.einsum("jk,jk->jk", picked, X).values().tolist() == [9, 7]


KERNELS = [
    ("C[i,k] = A[i,j] * B[j,k]", "csr csr", "csr"),
    ("C[i,k] = A[i,j] * B[j,k]", "coo csc", "coo"),
    ("C[i,k] = A[i,j] * B[j,k]", "csr dense", "dense"),
    ("C[i,k] = A[i,j] * B[j,k]", "bsr(2,2) bsr(2,2)", "bsr(2,2)"),
    ("C[i,j] = A[i,j] + B[i,j]", "csr csr", "sd"),
    ("C[i,j] = A[i,j] * B[i,j]", "dcsr dense", "dcsr"),
]


@pytest.mark.parametrize(("text", "forms", "result"), KERNELS)
def test_positions_are_computed_in_64_bits(text: str, forms: str, result: str) -> None:
    """Whatever the width of stored coordinates: no product or sum inside an index is narrower."""
    tensors = {}
    for name, form in zip("AB", forms.split(), strict=True):
        dense = torch.eye(6)
        tensors[name] = dense if form == "dense" else from_dense(dense, Format(form))
    (step,) = split(parse(text).assign)
    task = Task(step, tensors, dict.fromkeys("ijk", 6), Format(result))
    kernel = prepare(task).planned.kernel()
    seen = 0
    for function in kernel.functions:
        for node in walk(function):
            if isinstance(node, Load | Store):
                for part in walk(node.index):
                    if isinstance(part, Binary):
                        operands: list[Expr] = [part.a, part.b]
                        assert part.type == INT64 or part.type.name == "bool", part
                        assert all(operand.type == INT64 for operand in operands), part
                        seen += 1
    assert seen > 0


@pytest.mark.parametrize("source", ["csr", "dcsr", "dcsc", "coo"])
@pytest.mark.whole
def test_columns_that_are_mostly_empty_take_one_array(source: str) -> None:
    """Where each column begins is written once: no counts of entries, and no int64 copy, beside it."""
    columns = 1 << 24
    places = torch.tensor([[0, 1, 3, 2], [5, columns // 2, columns - 1, columns - 1]])
    A = scorch.sparse_coo_tensor(places, torch.tensor([1.0, 0.0, 3.0, 4.0]), (4, columns)).to_format(source)
    with scorch.settings(dense_budget=5 * columns):
        found = A.to_format("csc")
    begins, rows = found.storage.pattern.pos[1], found.storage.pattern.crd[1]
    assert begins.numel() == columns + 1 and begins[-1] == 4 and rows.tolist() == [0, 1, 2, 3]
    assert [int(begins[column]) for column in (5, 6, columns - 1)] == [0, 1, 2]
    assert found.values().tolist() == [1.0, 0.0, 4.0, 3.0]

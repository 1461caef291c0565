"""Tensors with more than 2**31 nonzeros, and dense operands and results with more elements than that.

    python -m tools.gpu_check.large cuda                        all checks, in about 100 GB of memory
    python -m tools.gpu_check.large cuda "S @ x" "coalescing"   some of them
    python -m tools.gpu_check.large cpu --small                 that it runs: with a few thousand nonzeros

Whatever counts or multiplies in 32 bits gives wrong results there. Each result is compared, in float64, with
what torch computes from the same numbers on rows at both ends and where positions pass 2**31, and sums of all
rows with those of parts. A line for each check: ok, what was wrong, or "out of memory", which is no problem.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

import scorch

LIMIT = 2**31
NEEDED_BYTES = 100 << 30
SMALL_SHARE = 2**20  # by what the sizes are divided in a trial
SAMPLED = 40  # rows, besides those at the limit
PART = 1 << 26  # entries of a part of a sum
OK, NO_ROOM = "ok", "out of memory"

Check = Callable[["Sizes"], None]
CHECKS: dict[str, Check] = {}


def check(name: str) -> Callable[[Check], Check]:
    def register(function: Check) -> Check:
        CHECKS[name] = function
        return function

    return register


@dataclass(frozen=True)
class Sizes:
    device: str
    is_small: bool = False

    def of(self, size: int) -> int:
        """Return a size that is as small as the trial."""
        return max(8, size // SMALL_SHARE) if self.is_small else size

    @property
    def limit(self) -> int:
        return self.of(LIMIT)


class Banded:
    """A matrix whose coordinates and values follow from its rows, so that any of them can be checked alone.

    Row ``i`` has a nonzero in column ``j * step + i % step`` for each ``j``.
    """

    def __init__(self, sizes: Sizes, dtype: torch.dtype = torch.float32) -> None:
        self.device, self.dtype = sizes.device, dtype
        self.each, self.step = (16, 5) if sizes.is_small else (1000, 50)
        self.rows, self.columns = sizes.limit // self.each + 3000 // self.each, self.each * self.step
        self.entries = self.rows * self.each
        assert self.entries > sizes.limit
        crd = torch.empty(self.entries, dtype=torch.int64, device=self.device)
        values = torch.empty(self.entries, dtype=dtype, device=self.device)
        for begin, end in self.parts():
            _, columns, numbers = self.row_parts(torch.arange(begin, end, device=self.device))
            place = slice(begin * self.each, end * self.each)
            crd[place], values[place] = columns.flatten(), numbers.flatten()
        pos = torch.arange(self.rows + 1, device=self.device) * self.each
        self.S = scorch.sparse_csr_tensor(pos, crd, values, (self.rows, self.columns), check_invariants=False)
        shown = [0, 1, sizes.limit // self.each - 1, sizes.limit // self.each, self.rows - 1]
        generator = torch.Generator("cpu").manual_seed(0)
        drawn = torch.randint(self.rows, (SAMPLED,), generator=generator, device="cpu")
        self.sample = torch.cat([torch.tensor(shown, device="cpu"), drawn]).unique().to(self.device)

    def parts(self) -> Iterator[tuple[int, int]]:
        height = max(1, PART // self.each)
        for begin in range(0, self.rows, height):
            yield begin, min(self.rows, begin + height)

    def row_parts(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return rows, columns and values of the nonzeros of some rows, each with a row of its own."""
        j = torch.arange(self.each, device=self.device)
        i = rows[:, None]
        values = ((i * 3 + j * 5) % 7 - 3).to(self.dtype)
        return i.expand(-1, self.each), j * self.step + i % self.step, values

    def dense_rows(self, rows: torch.Tensor | None = None) -> torch.Tensor:
        """Return the sampled rows in float64."""
        _, columns, values = self.row_parts(self.sample if rows is None else rows)
        found = torch.zeros(len(columns), self.columns, dtype=torch.float64, device=self.device)
        return found.scatter_(1, columns, values.double())

    def of_rows(self, found: torch.Tensor) -> torch.Tensor:
        """Return the sampled rows of a sparse result with the same pattern, read from its values."""
        columns = self.row_parts(self.sample)[1]
        places = self.sample[:, None] * self.each + torch.arange(self.each, device=self.device)
        assert found.nnz == self.entries
        assert torch.equal(found.storage.pattern.crd[-1][places].long(), columns)
        rows = torch.zeros(len(columns), self.columns, dtype=torch.float64, device=self.device)
        return rows.scatter_(1, columns, found.values()[places].double())

    def sums_of_columns(self, x: torch.Tensor | None = None) -> torch.Tensor:
        """Return ``S.T @ x`` in float64, part after part."""
        found = torch.zeros(self.columns, dtype=torch.float64, device=self.device)
        for begin, end in self.parts():
            rows, columns, values = self.row_parts(torch.arange(begin, end, device=self.device))
            terms = values.double() if x is None else values.double() * x.double()[rows]
            found.index_add_(0, columns.flatten(), terms.flatten())
        return found


def numbers(*shape: int, device: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return small whole numbers that differ along each dimension; products of them are exact."""
    found = torch.zeros((), dtype=torch.int16, device=device)
    for dim, size in enumerate(shape):
        one = (torch.arange(size, device=device) * (2 * dim + 3) % 11 - 5).to(torch.int16)
        found = found + one.reshape(-1, *[1] * (len(shape) - dim - 1))
    return (found % 4 - 1).to(dtype)


def agree(found: torch.Tensor, wanted: torch.Tensor, tolerance: float = 1e-4) -> None:
    found, wanted = found.detach().double(), wanted.double()
    largest = float(wanted.abs().max()) if wanted.numel() else 0.0
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance * max(1.0, largest))


# more than 2**31 nonzeros ----------------------------------------------------------------------------


@check("S @ x")
def _(sizes: Sizes) -> None:
    A = Banded(sizes)
    x, X = numbers(A.columns, device=A.device), numbers(A.columns, 8, device=A.device)
    agree((A.S @ x)[A.sample], A.dense_rows() @ x.double())
    agree((A.S @ X)[A.sample], A.dense_rows() @ X.double())
    agree(A.S.sum(1)[A.sample], A.dense_rows().sum(1))


@check("S.amax(1)")
def _(sizes: Sizes) -> None:
    A = Banded(sizes)
    agree(A.S.amax(1)[A.sample], A.dense_rows().amax(1))


@check("S.T @ x")
def _(sizes: Sizes) -> None:
    A = Banded(sizes)
    agree(A.S.sum(0), A.sums_of_columns())
    agree(A.S.sum(dtype=torch.float64), A.sums_of_columns().sum())
    x = numbers(A.rows, device=A.device)
    agree(A.S.T @ x, A.sums_of_columns(x))


@check("values")
def _(sizes: Sizes) -> None:
    A = Banded(sizes)
    agree(A.of_rows(A.S * 2), A.dense_rows() * 2)
    agree(A.of_rows(torch.relu(A.S)), A.dense_rows().relu())
    agree(A.of_rows(A.S.to(torch.bfloat16) * 3), A.dense_rows() * 3)


@check("softmax")
def _(sizes: Sizes) -> None:
    A = Banded(sizes)
    rows, columns, values = A.row_parts(A.sample)
    wanted = torch.zeros(len(rows), A.columns, dtype=torch.float64, device=A.device)
    wanted.scatter_(1, columns, values.double().softmax(1))
    agree(A.of_rows(torch.sparse.softmax(A.S, 1)), wanted)


@check("sampled product")
def _(sizes: Sizes) -> None:
    A = Banded(sizes)
    P, Q = numbers(A.rows, 8, device=A.device), numbers(A.columns, 8, device=A.device)
    found = scorch.einsum("ij,ik,jk->ij", A.S, P, Q)
    agree(A.of_rows(found), A.dense_rows() * (P[A.sample].double() @ Q.double().T))


@check("sums of two matrices")
def _(sizes: Sizes) -> None:
    A = Banded(sizes)
    agree(A.of_rows(A.S + A.S * 2), A.dense_rows() * 3)


@check("sums of two patterns")
def _(sizes: Sizes) -> None:
    A = Banded(sizes)
    other = scorch.sparse_csr_tensor(
        torch.arange(A.rows + 1, device=A.device),
        A.row_parts(torch.arange(A.rows, device=A.device)[:1])[1][0, :1].expand(A.rows).contiguous(),
        torch.full((A.rows,), 5.0, device=A.device),
        (A.rows, A.columns),
    )  # a first column of fives
    found = A.S + other
    wanted = A.dense_rows()
    wanted[:, 0] += 5
    agree(found[A.sample].to_dense(), wanted)
    product = A.S * other
    agree(product[A.sample].to_dense()[:, 0], A.dense_rows()[:, 0] * 5)


@check("selected rows")
def _(sizes: Sizes) -> None:
    A = Banded(sizes)
    agree(A.S[A.sample].to_dense(), A.dense_rows())
    last = torch.arange(A.rows - 5, A.rows, device=A.device)
    agree(A.S[A.rows - 5 :].to_dense(), A.dense_rows(last))
    agree(A.S[int(A.sample[-1])].to_dense(), A.dense_rows()[-1])
    agree(A.S[:, : A.step][A.sample].to_dense(), A.dense_rows()[:, : A.step])


@check("gradients")
def _(sizes: Sizes) -> None:
    A = Banded(sizes)
    leaf = A.S.detach().requires_grad_()
    X = numbers(A.columns, 4, device=A.device).requires_grad_()
    G = numbers(A.rows, 4, device=A.device)
    of_S, of_X = torch.autograd.grad(leaf @ X, [leaf, X], G)
    kept = (A.dense_rows() != 0).double()
    sampled = A.of_rows(of_S) * kept
    agree(sampled, kept * (G[A.sample].double() @ X.detach().double().T))
    agree(of_X[:, 0], A.sums_of_columns(G[:, 0]))


@check("conversions")
def _(sizes: Sizes) -> None:
    A = Banded(sizes)
    agree(A.S.to_format("coo")[A.sample].to_dense(), A.dense_rows())
    by_columns = A.S.to_format("csc")
    x = numbers(A.columns, device=A.device)
    agree((by_columns @ x)[A.sample], A.dense_rows() @ x.double())


@check("coalescing")
def _(sizes: Sizes) -> None:
    A = Banded(sizes, torch.float16)
    coo = A.S.to_format("coo")
    rows, columns = coo.indices()
    values = coo.values()
    half = A.entries // 2
    del A.S, coo
    places = torch.stack([torch.cat([rows[half:], rows[:half]]), torch.cat([columns[half:], columns[:half]])])
    turned = torch.cat([values[half:], values[:half]])
    del rows, columns, values
    found = scorch.sparse_coo_tensor(places, turned, (A.rows, A.columns)).coalesce()
    assert found.nnz == A.entries
    agree(found[A.sample].to_dense(), A.dense_rows())


# dense operands and results with more than 2**31 elements --------------------------------------------


def thin(rows: int, columns: int, device: str, each: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a matrix with a few nonzeros in each row, spread over all columns, and their columns."""
    i, j = torch.arange(rows, device=device)[:, None], torch.arange(each, device=device)
    width = columns // each
    crd = j * width + (i * 7919 + j * 104729) % width
    pos = torch.arange(rows + 1, device=device) * each
    values = ((i + j) % 3 + 1).float().flatten()
    return scorch.sparse_csr_tensor(pos, crd.flatten(), values, (rows, columns)), crd


def ends(size: int, device: str, limit: int) -> torch.Tensor:
    """Return numbers of rows at both ends, and where positions pass the limit."""
    shown = [0, 1, size // 2, size - 2, size - 1, *(row for row in (limit - 1, limit) if row < size)]
    return torch.tensor(sorted(set(shown)), device=device)


def thin_square(sizes: Sizes, width: int) -> tuple[int, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a size that is too large times ``width``, a thin matrix, its columns, and rows to look at."""
    size = sizes.limit // width + 100
    S, crd = thin(size, size, sizes.device)
    return size, S, crd, ends(size, sizes.device, sizes.limit // width)


def rows_of(S: torch.Tensor, crd: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return the values of rows of a thin matrix in float64."""
    each = crd.shape[1]
    values: torch.Tensor = S.values().reshape(-1, each)[rows].double()
    return values


@check("results of products")
def _(sizes: Sizes) -> None:
    """``S @ X`` with more elements in ``X``, and in the result, than 32 bits can count."""
    device, width = sizes.device, 128
    size, S, crd, rows = thin_square(sizes, width)
    for dtype in (torch.float16, torch.float32):
        X = numbers(size, width, device=device, dtype=dtype)
        wanted = (rows_of(S, crd, rows)[:, :, None] * X[crd[rows]].double()).sum(1)
        agree((S.to(dtype) @ X)[rows], wanted, 1e-2)
        if dtype == torch.float16:
            found = S.to(dtype).T @ X
            agree(found.sum(dtype=torch.float64), S.sum(1).double() @ X.sum(1, dtype=torch.float64), 1e-2)
            if sizes.is_small:
                part = S.T.to_format("csr")[rows].to_dense().double()
                agree(found[rows], part @ X.double(), 1e-2)


@check("wide results of products")
def _(sizes: Sizes) -> None:
    device, height = sizes.device, 100
    width = sizes.limit // height + 100
    S, _ = thin(height, height, device)
    X = numbers(height, width, device=device, dtype=torch.float16)
    columns = ends(width, device, sizes.limit // height)
    wanted = S.to_dense().double() @ X[:, columns].double()
    agree((S.half() @ X)[:, columns], wanted, 1e-2)


@check("factors of sampled products")
def _(sizes: Sizes) -> None:
    device, width = sizes.device, 256
    size, S, crd, rows = thin_square(sizes, width)
    P = numbers(size, width, device=device, dtype=torch.float16)
    found = scorch.einsum("ij,ik,jk->ij", S.half(), P, P)
    wanted = rows_of(S, crd, rows) * (P[rows].double()[:, None] * P[crd[rows]].double()).sum(2)
    agree(rows_of(found, crd, rows), wanted, 1e-2)


@check("dense matrices")
def _(sizes: Sizes) -> None:
    device = sizes.device
    size = int(sizes.limit**0.5) + 50
    S, crd = thin(size, size, device)
    rows = ends(size, device, sizes.limit // size)
    D = S.to_dense()
    wanted = torch.zeros(len(rows), size, dtype=torch.float64, device=device)
    wanted.scatter_(1, crd[rows], rows_of(S, crd, rows))
    agree(D[rows], wanted)
    again = scorch.from_torch(D, format="csr")
    assert again.nnz == S.nnz and torch.equal(again.values(), S.values())
    agree((S + D)[rows], wanted * 2)
    agree(rows_of(S * D, crd, rows), rows_of(S, crd, rows) ** 2)
    places = torch.stack([rows, crd[rows][:, 0]])
    agree(scorch.from_torch(D, format="coo")[places[0], places[1]].to_dense(), D[places[0], places[1]])


@check("tensor products")
def _(sizes: Sizes) -> None:
    """MTTKRP with a factor that has more than 2**31 elements."""
    device, width = sizes.device, 64
    size = sizes.limit // width + 100
    j = ends(size, device, sizes.limit // width)
    i, k = torch.arange(len(j), device=device) % 5, torch.arange(len(j), device=device) % 7
    values = torch.arange(1, len(j) + 1, device=device).float()
    T = scorch.sparse_coo_tensor(torch.stack([i, j, k]), values, (5, size, 7)).to_format("csf")
    B, C = numbers(size, width, device=device), numbers(7, width, device=device)
    wanted = torch.zeros(5, width, dtype=torch.float64, device=device)
    wanted.index_add_(0, i, values.double()[:, None] * B[j].double() * C[k].double())
    agree(scorch.einsum("ijk,jr,kr->ir", T, B, C), wanted)


@check("attention")
def _(sizes: Sizes) -> None:
    device, heads, width = sizes.device, 8, 64
    tokens = sizes.limit // (heads * width) + 100
    _, crd = thin(tokens, tokens, device, each=4)
    q, k, v = (numbers(1, heads, tokens, width, device=device, dtype=torch.float16) for _ in range(3))
    mask = scorch.sparse_csr_tensor(
        torch.arange(tokens + 1, device=device) * 4,
        crd.flatten(),
        torch.ones(crd.numel(), dtype=torch.bool, device=device),
        (tokens, tokens),
    )
    found = F.scaled_dot_product_attention(q, k, v, mask)
    rows = ends(tokens, device, sizes.limit // (heads * width))
    keys, ours = k[0][:, crd[rows]].double(), v[0][:, crd[rows]].double()
    scores = (q[0][:, rows].double()[:, :, None] * keys).sum(3) / width**0.5
    agree(found[0][:, rows], (scores.softmax(2)[..., None] * ours).sum(2), 1e-2)


@check("graph layers")
def _(sizes: Sizes) -> None:
    device, width = sizes.device, 128
    size, S, crd, rows = thin_square(sizes, width)
    X = numbers(size, width, device=device, dtype=torch.float16)
    neighbours = rows_of(S, crd, rows)[:, :, None] * X[crd[rows]].double()
    agree(torch.sparse.mm(S.half(), X, "amax")[rows], neighbours.amax(1), 1e-2)
    agree(torch.sparse.mm(S.half(), X, "mean")[rows], neighbours.mean(1), 1e-2)


def is_fine(outcome: str) -> bool:
    """Check whether nothing is wrong, as far as there was memory to see it."""
    return outcome.startswith((OK, NO_ROOM))


# all of them -----------------------------------------------------------------------------------------


def run(name: str, sizes: Sizes) -> str:
    """Return what came out of a check."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            CHECKS[name](sizes)
            if sizes.device != "cpu":
                torch.cuda.synchronize()
    except (torch.OutOfMemoryError, MemoryError):
        return NO_ROOM
    except Exception as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "scorch" in frame.filename]
        place = f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}: " if frames else ""
        return place + " ".join(f"{type(error).__name__}: {error}".split())[:400]
    return OK


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.gpu_check.large", description=__doc__)
    parser.add_argument("device")
    parser.add_argument("names", nargs="*", default=[])
    parser.add_argument("--small", action="store_true")
    given = parser.parse_args(arguments)
    is_wrong = False
    for name in given.names or CHECKS:
        start = time.monotonic()
        found = run(name, Sizes(given.device, given.small))
        gc.collect()
        if given.device != "cpu":
            torch.cuda.empty_cache()
        is_wrong |= not is_fine(found)
        print(f"{name}: {found} ({time.monotonic() - start:.1f} s)", flush=True)
    return 1 if is_wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

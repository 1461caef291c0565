"""Kernels on tensors of order 3 and 4, beside what torch can spell with gathers and sparse matrices.

torch is given all that follows from the pattern: entries sorted, fibers found, unfoldings made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cached_property

import numpy as np
import torch

import scorch
from benchmarks.kernels.cases import OURS, Case, Kernel, Prepare
from benchmarks.kernels.check import Coordinates, Entries
from benchmarks.kernels.data import Tensor, generator_for
from benchmarks.kernels.layouts import DENSE_BYTES, Skip, needed
from benchmarks.kernels.timing import Call

RANK = 32
UNFOLDED_BYTES = 1 << 30  # of a Khatri-Rao product


class Operands:
    """A tensor in CSF for Scorch; its entries and fibers for torch. A fibre runs along the last dimension."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.name = tensor.name
        self.shape = tensor.shape
        self.indices = "ijkl"[: len(tensor.shape)]
        self.values = torch.from_numpy(tensor.data)
        self.coordinates = torch.from_numpy(tensor.coordinates)

    def random(self, what: str, *shape: int) -> torch.Tensor:
        return torch.from_numpy(generator_for(self.name + what).standard_normal(shape).astype(np.float32))

    @cached_property
    def scorch(self) -> scorch.SparseTensor:
        found = scorch.sparse_coo_tensor(self.coordinates, self.values, self.shape, format="csf")
        assert isinstance(found, scorch.SparseTensor)
        return found

    @cached_property
    def slices(self) -> torch.Tensor:
        """Where the entries of each coordinate of the first dimension begin."""
        return pointers(self.coordinates[0], self.shape[0])

    @cached_property
    def fibers(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The coordinates of each fibre that has entries, and where these begin."""
        lead = self.coordinates[:-1]
        starts = torch.ones(lead.shape[1], dtype=torch.bool)
        starts[1:] = (lead[:, 1:] != lead[:, :-1]).any(0)
        number = starts.long().cumsum(0) - 1
        return lead[:, starts].contiguous(), pointers(number, int(starts.sum()))

    def fibre_matrix(self, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        """Fibres by the last dimension, in CSR."""
        found, begin = self.fibers
        return torch.sparse_csr_tensor(
            begin.to(dtype), self.coordinates[-1].to(dtype), self.values, (found.shape[1], self.shape[-1])
        )


def pointers(sorted_numbers: torch.Tensor, size: int) -> torch.Tensor:
    found = torch.zeros(size + 1, dtype=torch.int64)
    torch.cumsum(torch.bincount(sorted_numbers, minlength=size), 0, out=found[1:])
    return found


def sums_of_rows(begin: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """A CSR matrix whose product with X adds up weighted rows of X, those from one pointer to the next."""
    count = len(weights)
    return torch.sparse_csr_tensor(
        begin.int(), torch.arange(count, dtype=torch.int32), weights, (len(begin) - 1, count)
    )


Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
# torch has two products of CSR and dense; which is the faster depends on how it was built.
PRODUCTS: dict[str, Product] = {
    "": torch.matmul,
    ", reduce": lambda matrix, X: torch.sparse.mm(matrix, X, "sum"),
}


# times one matrix for each dimension but the first ---------------------------------------------------


def mttkrp(o: Operands) -> Iterator[Case]:
    """out[i,r] = T[i,j,k] * B[j,r] * C[k,r]"""
    factors = [o.random(f"factor{mode}", size, RANK) for mode, size in enumerate(o.shape[1:], 1)]
    places = list(o.coordinates)
    rest = o.indices[1:]
    equation = f"{o.indices},{','.join(index + 'r' for index in rest)}->ir"

    def rows(dtype: torch.dtype = torch.float32) -> torch.Tensor:
        found = factors[0].to(dtype)[places[1]]
        for factor, place in zip(factors[1:], places[2:], strict=True):
            found = found * factor.to(dtype)[place]
        return found

    def reference() -> np.ndarray:
        weighed = rows(torch.float64) * o.values.double()[:, None]
        return torch.zeros(o.shape[0], RANK, dtype=torch.float64).index_add_(0, places[0], weighed).numpy()

    def with_index_add() -> Call:
        values = o.values[:, None]
        return lambda: torch.zeros(o.shape[0], RANK).index_add_(0, places[0], rows() * values)

    def with_segments() -> Call:
        values, begin = o.values[:, None], o.slices
        return lambda: torch.segment_reduce(rows() * values, "sum", offsets=begin, axis=0, initial=0)

    def with_csr_sums(product: Product) -> Call:
        total = sums_of_rows(o.slices, o.values)
        return lambda: product(total, rows())

    def by_fibers(product: Product) -> Call:
        found, _ = o.fibers
        matrix, lead = o.fibre_matrix(), list(found)
        total = sums_of_rows(pointers(lead[0], o.shape[0]), torch.ones(found.shape[1]))

        def run() -> torch.Tensor:
            products = product(matrix, factors[-1])
            for factor, place in zip(factors[:-1], lead[1:], strict=True):
                products = products * factor[place]
            return product(total, products)

        return run

    def unfolded(product: Product) -> Call:
        width = math.prod(o.shape[1:])
        if 4 * width * RANK > UNFOLDED_BYTES:
            raise Skip(f"the Khatri-Rao product has more than {UNFOLDED_BYTES >> 30} GB")
        columns = torch.zeros_like(places[0])
        for place, size in zip(places[1:], o.shape[1:], strict=True):
            columns = columns * size + place
        matrix = torch.sparse_csr_tensor(o.slices.int(), columns.int(), o.values, (o.shape[0], width))

        def run() -> torch.Tensor:
            khatri_rao = factors[0]
            for factor in factors[1:]:
                khatri_rao = (khatri_rao[:, None, :] * factor[None]).reshape(-1, RANK)
            return product(matrix, khatri_rao)

        return run

    def with_numba() -> Call:
        loops = needed("benchmarks.kernels.numba_loops", "numba")
        loop = loops.mttkrp3 if len(o.shape) == 3 else loops.mttkrp4
        call = loops.choose(loop, o.tensor.nnz * RANK * len(factors))
        arrays = [
            o.slices.numpy(),
            *(place.numpy() for place in places[1:]),
            o.tensor.data,
            *(factor.numpy() for factor in factors),
        ]
        return lambda: call(*arrays, np.empty((o.shape[0], RANK), np.float32))

    contestants: dict[str, Prepare] = {
        OURS: lambda: lambda: scorch.einsum(equation, o.scorch, *factors),
        "torch gather, index_add": with_index_add,
        "torch gather, segment_reduce": with_segments,
        "numba": with_numba,
    }
    for ending, product in PRODUCTS.items():
        contestants["torch gather, CSR sums" + ending] = lambda p=product: with_csr_sums(p)
        contestants["torch CSR of fibers" + ending] = lambda p=product: by_fibers(p)
        contestants["torch CSR unfolded, Khatri-Rao" + ending] = lambda p=product: unfolded(p)
    yield Case("mttkrp", "MTTKRP r=32", reference, contestants)


# times one vector or matrix in the last dimension ----------------------------------------------------


def ttv(o: Operands) -> Iterator[Case]:
    """out[i,j] = T[i,j,k] * v[k]"""
    v = o.random("v", o.shape[-1])
    equation = f"{o.indices},{o.indices[-1]}->{o.indices[:-1]}"
    yield _last_dimension(o, "ttv", "TTV", equation, v)


def ttm(o: Operands) -> Iterator[Case]:
    """out[i,j,r] = T[i,j,k] * M[k,r]"""
    M = o.random("M", o.shape[-1], RANK)
    equation = f"{o.indices},{o.indices[-1]}r->{o.indices[:-1]}r"
    yield _last_dimension(o, "ttm", "TTM r=32", equation, M)


def _last_dimension(o: Operands, kernel: str, label: str, equation: str, operand: torch.Tensor) -> Case:
    lead = o.shape[:-1]
    dense = operand.shape[1:]

    def weighed(dtype: torch.dtype = torch.float32) -> torch.Tensor:
        values = o.values.to(dtype).reshape(-1, *[1] * len(dense))
        return operand.to(dtype)[o.coordinates[-1]] * values

    def reference() -> Entries:
        found, begin = o.fibers
        fibre = torch.repeat_interleave(torch.arange(found.shape[1]), begin.diff())
        sums = torch.zeros(found.shape[1], *dense, dtype=torch.float64)
        sums.index_add_(0, fibre, weighed(torch.float64))
        keys = torch.zeros(found.shape[1], dtype=torch.int64)
        for row, size in zip(found, lead, strict=True):
            keys = keys * size + row
        if dense:
            keys = (keys[:, None] * dense[0] + torch.arange(dense[0])).reshape(-1)
        return Entries(keys.numpy(), sums.reshape(-1).numpy())

    def by_fibers(dtype: torch.dtype, product: Product = torch.matmul) -> Call:
        found, matrix = o.fibers[0], o.fibre_matrix(dtype)
        return lambda: Coordinates(found, product(matrix, operand), (*lead, *dense))

    def coalesced() -> Call:
        def run() -> torch.Tensor:
            return torch.sparse_coo_tensor(o.coordinates[:-1], weighed(), (*lead, *dense)).coalesce()

        return run

    def unfolded() -> Call:
        height = math.prod(lead)
        if 4 * height * math.prod(dense) > DENSE_BYTES:
            raise Skip(f"the dense result has more than {DENSE_BYTES >> 20} MB")
        number = torch.zeros_like(o.coordinates[0])
        for place, size in zip(o.coordinates[:-1], lead, strict=True):
            number = number * size + place
        begin = pointers(number, height).int()
        matrix = torch.sparse_csr_tensor(begin, o.coordinates[-1].int(), o.values, (height, o.shape[-1]))
        return lambda: (matrix @ operand).reshape(*lead, *dense)

    contestants: dict[str, Prepare] = {
        OURS: lambda: lambda: scorch.einsum(equation, o.scorch, operand),
        "torch CSR int32 of fibers": lambda: by_fibers(torch.int32),
        "torch CSR int64 of fibers": lambda: by_fibers(torch.int64),
        "torch COO, coalesced": coalesced,
        "torch CSR unfolded": unfolded,
    }
    if dense:
        reduce = PRODUCTS[", reduce"]
        contestants["torch CSR int32 of fibers, reduce"] = lambda: by_fibers(torch.int32, reduce)
    return Case(kernel, label, reference, contestants)


KERNELS = [
    Kernel("mttkrp", "tensor", ("MTTKRP r=32",), mttkrp),
    Kernel("ttv", "tensor", ("TTV",), ttv),
    Kernel("ttm", "tensor", ("TTM r=32",), ttm),
]

"""Products of tensors of three and four dimensions with matrices along their modes.

torch has none for them: rows of the matrices are gathered for every entry and multiplied, and what belongs to
one slice or fiber is added by ``index_add_``, by ``segment_reduce``, or by a product with a sparse matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import scorch
from benchmarks.gpu.cases import OURS, Case, Prepare
from benchmarks.gpu.check import CHUNK
from benchmarks.gpu.matrices import generator_for
from benchmarks.gpu.timing import Call

COLUMNS = 32
LEAST_ENTRIES = 50_000
LETTERS = "ijkl"


class Tensor:
    """A float32 tensor by its entries, which are sorted and each there once."""

    def __init__(self, name: str, places: torch.Tensor, shape: tuple[int, ...]) -> None:
        self.name, self.shape, self.device = name, shape, str(places.device)
        self.places = places.unique(dim=1)
        self.values = self.random("values", self.places.shape[1])

    @property
    def nnz(self) -> int:
        return len(self.values)

    def random(self, what: str, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator_for(self.name + what, self.device), device=self.device)

    def scorch(self, form: str) -> scorch.SparseTensor:
        """Make a tensor with a pattern of its own, of which nothing is remembered."""
        entries = self.places.clone(), self.values.clone()
        found = scorch.sparse_coo_tensor(*entries, self.shape, is_coalesced=True).to_format(form)
        assert isinstance(found, scorch.SparseTensor)
        return found


# tensors ---------------------------------------------------------------------------------------------


def made_up(name: str, device: str, shape: tuple[int, ...], entries: int, power: float) -> Tensor:
    """Draw entries; few slices of each mode have most of them, the fewer the higher ``power`` is."""
    draw = generator_for(name, device)
    uniform = torch.rand(len(shape), entries, generator=draw, device=device, dtype=torch.float64)
    sizes = torch.tensor(shape, device=device)[:, None]
    return Tensor(name, torch.minimum((sizes * uniform**power).long(), sizes - 1), shape)


def read(path: Path, device: str) -> Tensor:
    """Read the places of a tensor; values are drawn, as those of other benchmarks are."""
    found = scorch.load(path)
    assert isinstance(found, scorch.SparseTensor)
    name = path.name.partition(".")[0]
    return Tensor(name, found.to_format("coo").indices().long().to(device), tuple(found.shape))


def tensors(device: str, directory: Path | None, tiny: bool) -> Iterator[Tensor]:
    """The tensors of a directory, and made up ones."""
    if tiny:
        yield made_up("tiny 3 modes", device, (9, 8, 7), 100, 2.0)
        yield made_up("tiny 4 modes", device, (5, 4, 6, 7), 100, 2.0)
        return
    for path in sorted((directory / "tensors").glob("*.tns*")) if directory is not None else ():
        found = read(path, device)
        if found.nnz >= LEAST_ENTRIES:
            yield found
    yield made_up("even 3 modes", device, (200_000, 100_000, 50_000), 4_000_000, 1.0)
    yield made_up("skewed 3 modes", device, (200_000, 100_000, 50_000), 4_000_000, 4.0)
    yield made_up("few slices, 4 modes", device, (183, 24, 1140, 1717), 3_000_000, 1.5)


# products --------------------------------------------------------------------------------------------


def _gathered(T: Tensor, modes: tuple[int, ...], factors: list[torch.Tensor]) -> torch.Tensor:
    """Return for each entry its value times the rows of the factors."""
    products = T.values[:, None]
    for mode, factor in zip(modes, factors, strict=True):
        products = products * factor[T.places[mode]]
    return products


def _by_torch(
    T: Tensor, modes: tuple[int, ...], factors: list[torch.Tensor], group: torch.Tensor, count: int
) -> dict[str, Prepare]:
    """The ways in which torch adds up what entries have in one of ``count`` groups."""

    def added() -> Call:
        def run() -> torch.Tensor:
            out = torch.zeros(count, COLUMNS, device=T.device)
            return out.index_add_(0, group, _gathered(T, modes, factors))

        return Call(run)

    def reduced() -> Call:
        order = torch.argsort(group, stable=True)
        other = Tensor.__new__(Tensor)
        other.places, other.values = T.places[:, order], T.values[order]
        lengths = torch.bincount(group, minlength=count)
        return Call(
            lambda: torch.segment_reduce(_gathered(other, modes, factors), "sum", lengths=lengths, axis=0)
        )

    def multiplied() -> Call:
        """Multiply a sparse matrix with a column for each entry, or with the only factor itself."""
        last = T.places[modes[0]] if len(modes) == 1 else torch.arange(T.nnz, device=T.device)
        size = T.shape[modes[0]] if len(modes) == 1 else T.nnz
        order = torch.argsort(group, stable=True)
        pos = torch.zeros(count + 1, dtype=torch.int32, device=T.device)
        pos[1:] = torch.bincount(group, minlength=count).cumsum(0)
        arrays = pos, last[order].int(), T.values[order]
        S = torch.sparse_csr_tensor(*arrays, (count, size))
        if len(modes) == 1:
            return Call(lambda: S @ factors[0])

        def run() -> torch.Tensor:
            products = factors[0][T.places[modes[0]]]
            for mode, factor in zip(modes[1:], factors[1:], strict=True):
                products = products * factor[T.places[mode]]
            return S @ products

        return Call(run)

    return {"torch index_add": added, "torch segment_reduce": reduced, "torch CSR": multiplied}


def _reference(
    T: Tensor, modes: tuple[int, ...], factors: list[torch.Tensor], group: torch.Tensor, count: int
) -> Callable[[], torch.Tensor]:
    def reference() -> torch.Tensor:
        out = torch.zeros(count, COLUMNS, dtype=torch.float64, device=T.device)
        step = CHUNK // COLUMNS
        for at in range(0, T.nnz, step):
            part = slice(at, at + step)
            products = T.values[part, None].double()
            for mode, factor in zip(modes, factors, strict=True):
                products = products * factor[T.places[mode, part]].double()
            out.index_add_(0, group[part], products)
        return out

    return reference


def _ours(T: Tensor, form: str, equation: str, factors: list[torch.Tensor], result: str) -> Prepare:
    def prepare() -> Call:
        S = T.scorch(form)

        def run() -> Any:
            found = scorch.einsum(equation, S, *factors, format=result)
            return found.values() if isinstance(found, scorch.SparseTensor) else found

        return Call(run)

    return prepare


def _unordered(prepare: Prepare) -> Prepare:
    """The same, with threads that add to one place."""

    def prepared() -> Call:
        call = prepare()

        def run() -> Any:
            with scorch.settings(deterministic=False):
                return call.run()

        return Call(run)

    return prepared


def mttkrp(device: str, directory: Path | None, tiny: bool) -> Iterator[Case]:
    """Every mode but one times a matrix each: the first mode, as the tensor is stored, and the last."""
    for T in tensors(device, directory, tiny):
        indices = LETTERS[: len(T.shape)]
        for kept in (0, len(T.shape) - 1):
            modes = tuple(mode for mode in range(len(T.shape)) if mode != kept)
            factors = [T.random(f"factor {mode}", T.shape[mode], COLUMNS) for mode in modes]
            terms = ",".join(f"{indices[mode]}r" for mode in modes)
            equation = f"{indices},{terms}->{indices[kept]}r"
            ways = {OURS: _ours(T, "csf", equation, factors, "dense")}
            ways["scorch, coo"] = _ours(T, "coo", equation, factors, "dense")
            if kept:
                ways["scorch, atomics"] = _unordered(ways[OURS])
            ways |= _by_torch(T, modes, factors, T.places[kept], T.shape[kept])
            reference = _reference(T, modes, factors, T.places[kept], T.shape[kept])
            moved = 4 * T.nnz * (1 + len(T.shape)) + 4 * COLUMNS * sum(T.shape)
            label = f"MTTKRP, {'first' if kept == 0 else 'last'} mode"
            yield Case("mttkrp", label, T.name, ways, reference, bytes=moved)


def ttm(device: str, directory: Path | None, tiny: bool) -> Iterator[Case]:
    """The last mode times a matrix: a row for each fiber that has entries."""
    for T in tensors(device, directory, tiny):
        indices, last = LETTERS[: len(T.shape)], len(T.shape) - 1
        fibers, group = T.places[:-1].unique(dim=1, return_inverse=True)
        factor = T.random("factor", T.shape[last], COLUMNS)
        equation = f"{indices},{indices[-1]}r->{indices[:-1]}r"
        result = "s" * last + "d"
        count = fibers.shape[1]
        ways = {name: _ours(T, form, equation, [factor], result) for name, form in _FORMS}
        ways |= _by_torch(T, (last,), [factor], group, count)
        reference = _reference(T, (last,), [factor], group, count)
        moved = 8 * T.nnz + 4 * count * COLUMNS + 4 * math.prod(factor.shape)
        yield Case("ttm", "TTM, last mode", T.name, ways, reference, bytes=moved)


_FORMS = ((OURS, "csf"), ("scorch, coo", "coo"))

SECTIONS: dict[str, Callable[[str, Path | None, bool], Iterator[Case]]] = {"mttkrp": mttkrp, "ttm": ttm}

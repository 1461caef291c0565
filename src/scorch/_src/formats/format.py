"""A format: one level per dimension, outermost first, and the order in which dimensions are stored.

A block splits a dimension in two: the dimension then appears twice in ``order``, first as the number of
the block, then as the place inside it. ``bsr(2, 3)`` is ``Format("dsdd", order=(0, 1, 0, 1),
blocks={0: 2, 1: 3})``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, NoReturn, TypeAlias

from scorch._src.dataclass import dataclass
from scorch._src.formats.banded import Banded
from scorch._src.formats.bitmap import Bitmap
from scorch._src.formats.compressed import Compressed
from scorch._src.formats.coordinate import Coordinate
from scorch._src.formats.dense import Dense
from scorch._src.formats.level import Level
from scorch.errors import FormatError, UnsupportedError, nearest

Levels: TypeAlias = tuple[Level, ...]
Order: TypeAlias = tuple[int, ...]
Blocks: TypeAlias = tuple[tuple[int, int], ...]

LEVELS: Levels = (Dense(), Compressed(), Coordinate(), Bitmap(), Banded())
_BY_LETTER = {level.letter: level for level in LEVELS}
_BY_WORD = {level.name: level for level in LEVELS} | {"sparse": _BY_LETTER["s"]}
_LAST = {level.name: level.letter for level in LEVELS[3:]}  # names of levels that are names of formats too

NAMES = ("dense", "csr", "csc", "coo", "dcsr", "dcsc", "csf", *_LAST, "bsr", "bsc")
_BLOCKED = re.compile(r"(bsr|bsc)\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)")


def register_level(level: Level) -> Level:
    """Register a level written outside Scorch, so that formats can use its letter and its name.

    Its name is also that of a format: dense levels, with the last dimension stored in ``level``. Files and
    compiled graphs know levels by their letters, so register a level before they are read.

    Args:
        level: an instance of a subclass of ``Level``.

    Returns:
        The level.

    Raises:
        FormatError: it is not a level, or its letter or name is taken.

    Example::

        class OneBased(Level):
            letter, name = "f", "onebased"
            ...  # how kernels read it

        register_level(OneBased())
        scorch.tensor(data, format="onebased")
    """
    if not isinstance(level, Level):
        raise FormatError(f"a level must be an instance of a subclass of Level, not {level!r}")
    letter, name = level.letter, level.name
    if not re.fullmatch("[a-z]", letter) or not re.fullmatch("[a-z_]{2,}", name):
        raise FormatError(f"a level needs one letter and a lower-case name, not {letter!r} and {name!r}")
    known = (_BY_LETTER.get(letter), _BY_WORD.get(name))
    if known != (level, level):
        if known != (None, None) or name in NAMES:
            taken = f"letter {letter!r}" if known[0] else f"name {name!r}"
            raise FormatError(f"the {taken} is already used by another level or format")
        _BY_LETTER[letter] = _BY_WORD[name] = level
        _LAST[name] = letter
    return level


@dataclass(frozen=True, init=False, repr=False)
class Format:
    """How a tensor is stored: one level per dimension, in the order of storage, and block sizes.

    Args:
        spec: a name such as ``"csr"`` or ``"bsr(2,2)"``, one letter per level such as ``"ds"``, names of
            levels such as ``"dense,compressed"``, levels, or another format.
        order: the dimension that each level stores.
        blocks: the block size of each blocked dimension.
        dims: the number of dimensions, for names that fit any.

    Raises:
        FormatError: there is no such format, or its parts do not match.

    Example:

        >>> from scorch import Format
        >>> Format("csr") == Format("ds")
        True
        >>> Format("dense,compressed", order=(1, 0))
        Format('csc')
        >>> Format("bsr(2,2)").letters
        'dsdd'
    """

    levels: Levels
    order: Order
    blocks: Blocks
    family: str | None = field(compare=False)

    def __init__(
        self,
        spec: str | Sequence[Level] | Format,
        order: Iterable[int] | None = None,
        blocks: Mapping[int, int] | Iterable[tuple[int, int]] | None = None,
        *,
        dims: int | None = None,
    ) -> None:
        if isinstance(spec, Format):
            levels, own_order, own_blocks, family = spec.levels, spec.order, spec.blocks, spec.family
            if dims is not None and dims != spec.dims and family is not None:
                levels, own_order, own_blocks = _named(family, dims)
        elif isinstance(spec, str):
            levels, own_order, own_blocks, family = _parse(spec, dims)
        elif isinstance(spec, tuple | list) and all(isinstance(level, Level) for level in spec):
            levels, own_order, own_blocks, family = tuple(spec), tuple(range(len(spec))), (), None
        else:
            raise FormatError(
                f"a format is a name such as 'csr', letters such as 'ds' or a Format, not {spec!r}"
            )
        object.__setattr__(self, "levels", levels)
        object.__setattr__(self, "order", own_order if order is None else _checked_order(order))
        object.__setattr__(self, "blocks", own_blocks if blocks is None else _checked_blocks(blocks))
        object.__setattr__(self, "family", family if order is None and blocks is None else None)
        _check(self, spec)
        _ = self.letters  # known from the start, as torch.compile cannot follow what is computed later

    def __getstate__(self) -> dict[str, object]:
        """Without what is cached: hashes of strings differ between processes."""
        return {name: self.__dict__[name] for name in ("levels", "order", "blocks", "family")}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        _ = self.letters

    # facts -------------------------------------------------------------------------------------------

    @functools.cached_property
    def _hash(self) -> int:
        return hash((self.letters, self.order, self.blocks))

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def dims(self) -> int:
        """The number of dimensions of the tensors it stores."""
        return len(set(self.order))

    def __call__(self, *_: Any) -> NoReturn:
        raise FormatError("a format is not a function; use S.to_format('csc') to convert a tensor")

    @functools.cached_property
    def letters(self) -> str:
        return "".join(level.letter for level in self.levels)

    @functools.cached_property
    def is_dense(self) -> bool:
        return all(level.is_full for level in self.levels)

    @functools.cached_property
    def is_finished(self) -> bool:
        """Whether kernels read a level from an array that ``Level.finish`` makes of its coordinates."""
        return any(not level.is_full and not level.has_coordinates for level in self.levels)

    def compute_facts(self) -> None:
        """Compute all cached properties, which ``torch.compile`` can read but not compute."""
        if "has_facts" in self.__dict__:
            return
        for name, value in vars(Format).items():
            if isinstance(value, functools.cached_property) and name not in ("inner", "row"):
                getattr(self, name)
        self.__dict__["has_facts"] = True

    @property
    def spelling(self) -> str:
        """The letters of the levels, which files and graphs store."""
        if any(_BY_LETTER.get(level.letter) != level for level in self.levels):
            raise UnsupportedError(
                f"files and graphs identify levels by their letters, but format {self} has a level that is "
                "not registered; call scorch.formats.register_level, or use S.to_format('csr')"
            )
        return self.letters

    @functools.cached_property
    def is_padded(self) -> bool:
        """Whether explicit zeros may be stored in addition to the entries of a tensor."""
        return self.dense_tail > 0 or any(level.is_padded for level in self.levels)

    @functools.cached_property
    def dense_levels(self) -> int:
        """How many levels are full before the first that is not."""
        return next((n for n, level in enumerate(self.levels) if not level.is_full), len(self.levels))

    @functools.cached_property
    def dense_tail(self) -> int:
        """How many levels are full behind the last that is not."""
        below = enumerate(reversed(self.levels))
        return next((n for n, level in below if not level.is_full), len(self.levels))

    @functools.cached_property
    def is_list(self) -> bool:
        """Whether all levels are one run: a list of entries with all of their coordinates."""
        return bool(self.levels) and all(level.continues_run for level in self.levels)

    @functools.cached_property
    def is_coo(self) -> bool:
        """Whether it is a list of entries by dimension, each with dense dimensions below or none."""
        listed = self.levels[: len(self.levels) - self.dense_tail]
        is_plain = self.order == tuple(range(len(self.levels)))
        return is_plain and bool(listed) and all(level.continues_run for level in listed)

    @functools.cached_property
    def is_compressed_matrix(self) -> bool:
        """Whether a matrix has its entries listed below each row, or each column."""
        kinds = self.levels if len(self.levels) == 2 and not self.blocks else (None, None)
        outer, inner = kinds
        is_listed = inner is not None and inner.has_coordinates and not inner.continues_run
        return outer is not None and outer.is_full and is_listed

    @functools.cached_property
    def has_row_pointers(self) -> bool:
        """Whether the second level of a matrix has ``pos``, with the entries of each row."""
        is_matrix = self.order == (0, 1) and self.levels[0].is_full
        return is_matrix and self.starts_run(1)

    @property
    def is_blocked(self) -> bool:
        return bool(self.blocks)

    def block(self, dim: int) -> int | None:
        """The block size of ``dim``, or None if it is not split."""
        return dict(self.blocks).get(dim)

    @functools.cached_property
    def inner(self) -> Format:
        """The format without its outermost level: that of a slice at one coordinate there."""
        order = [dim - (dim > self.order[0]) for dim in self.order[1:]]
        return Format(self.levels[1:], order=order, dims=len(order))

    @functools.cached_property
    def row(self) -> Format | None:
        """The format of ``S[i]`` if that is sparse, and its arrays are slices of those of ``S``."""
        is_outermost = len(self) > 1 and not self.is_blocked and self.order[0] == 0
        return self.inner if is_outermost and not self.inner.is_dense else None

    def part(self, level: int) -> str:
        """What a level stores of its dimension: ``whole``, or of one with blocks ``outer`` or ``inner``."""
        dim = self.order[level]
        if self.block(dim) is None:
            return "whole"
        return "outer" if dim not in self.order[:level] else "inner"

    def level_size(self, level: int, shape: Sequence[int]) -> int:
        """The number of coordinates of a level: the size of its dimension, of its blocks or in a block."""
        size, block = shape[self.order[level]], self.block(self.order[level])
        if block is None:
            return size
        return -(-size // block) if self.part(level) == "outer" else block

    def starts_run(self, level: int) -> bool:
        """Whether the level has entries of its own (and so keeps ``pos``), not those of the level above."""
        return not self.levels[level].is_full and (level == 0 or self.is_unique(level - 1))

    def is_unique(self, level: int) -> bool:
        """Whether a coordinate occurs once below each position: all levels but those inside a run."""
        if level + 1 == len(self.levels):
            return True
        return not (self.levels[level].continues_run and self.levels[level + 1].continues_run)

    def run_from(self, level: int) -> int:
        """The level behind the run that begins with ``level``; the next one, if that is no run."""
        while not self.is_unique(level):
            level += 1
        return level + 1

    # names -------------------------------------------------------------------------------------------

    @functools.cached_property
    def name(self) -> str:
        """The usual name, or letters with the order where it is not the plain one."""
        names = (*NAMES[:-2], *_LAST) if self.dims > 1 else ("dense",)  # a vector is s, not csr
        for name in names:
            try:
                if Format(name, dims=self.dims) == self:
                    return name
            except FormatError:
                continue
        sizes = [size for _, size in self.blocks]
        if len(sizes) == 2:
            for name in ("bsr", "bsc"):
                written = f"{name}({sizes[0]},{sizes[1]})"
                if Format(written, dims=self.dims) == self:
                    return written
        return self.letters

    def __repr__(self) -> str:
        if self.name != self.letters or (self.order == tuple(range(len(self.levels))) and not self.blocks):
            return f"Format({self.name!r})"
        blocks = f", blocks={dict(self.blocks)}" if self.blocks else ""
        return f"Format({self.letters!r}, order={self.order}{blocks})"

    def __str__(self) -> str:
        if self.name != self.letters or self.order == tuple(range(len(self.levels))):
            return self.name
        blocks = "".join(f", {dim} by {size}" for dim, size in self.blocks)
        return f"{self.letters}(order {','.join(map(str, self.order))}{blocks})"

    def __len__(self) -> int:
        return len(self.levels)


def as_format(spec: str | Format, dims: int) -> Format:
    """Return a format for tensors with a number of dimensions.

    Args:
        spec: a name or a format; names fit any number of dimensions.
        dims: the number of dimensions.

    Returns:
        The format.

    Raises:
        FormatError: there is no such format, or it stores another number of dimensions.

    Example:

        >>> from scorch.formats import as_format
        >>> as_format("csr", 3).letters
        'dds'
    """
    if not isinstance(spec, str | Format):
        layout = str(spec).removeprefix("torch.").removeprefix("sparse_")  # of torch
        hint = f"; use {layout!r}" if layout in NAMES else ""
        raise FormatError(
            f"a format is a name such as 'csr', letters such as 'ds' or a Format, not {spec!r}{hint}"
        )
    return _named_format(spec, dims) if isinstance(spec, str) else _format_for(spec, dims)


def _format_for(spec: str | Format, dims: int) -> Format:
    form = Format(spec, dims=dims)
    if form.dims != dims:
        raise FormatError(
            f"format {str(spec)!r} stores {form.dims}-D tensors, but this one is {dims}-D; name a level for "
            f"each dimension, such as {'s' * dims!r}, or a format for any number of dimensions, such as 'coo'"
        )
    return form


_named_format = functools.lru_cache(maxsize=256)(_format_for)


@functools.lru_cache(maxsize=256)
def dense_format(dims: int, order: tuple[int, ...] | None = None) -> Format:
    """Return the format that stores every element.

    Args:
        dims: the number of dimensions.
        order: the order in which they are stored.

    Returns:
        The format.

    Raises:
        FormatError: ``order`` is not an order of the dimensions.

    Example:

        >>> from scorch.formats import dense_format
        >>> dense_format(2)
        Format('dense')
    """
    return Format("d" * dims if dims else "dense", order=order, dims=dims)


def _parse(spec: str, dims: int | None) -> tuple[Levels, Order, Blocks, str | None]:
    text = spec.strip().lower()
    if text in NAMES[:-2] or text in _LAST or _BLOCKED.fullmatch(text):
        return (*_named(text, dims), text)
    if text and text not in NAMES and set(text) <= set(_BY_LETTER):
        levels = _letters(text)
    elif "," in text or text in _BY_WORD:
        words = [word.strip() for word in text.split(",")]
        unknown = [word for word in words if word not in _BY_WORD]
        if unknown:
            raise FormatError(f"format {spec!r} has the unknown level {unknown[0]!r}; {_known()}")
        levels = tuple(_BY_WORD[word] for word in words)
    else:
        if text in ("bsr", "bsc"):
            raise FormatError(f"format {spec!r} needs a block size, as in '{text}(4,4)'")
        question = nearest(text, NAMES, cutoff=0.6)
        raise FormatError(f"unknown format {spec!r}; {f'{question} ' if question else ''}{_known()}")
    return levels, tuple(range(len(levels))), (), None


def _known() -> str:
    letters = ", ".join(f"{letter} {level.name}" for letter, level in _BY_LETTER.items())
    return (
        f"choose from the names {', '.join(dict.fromkeys((*NAMES, *_LAST)))}, letters such as 'ds' "
        f"({letters}) and words such as 'dense,compressed'"
    )


def _named(name: str, dims: int | None) -> tuple[Levels, Order, Blocks]:
    """The levels, order and blocks of a name for tensors of ``dims`` dimensions (2 unless said)."""
    n = 2 if dims is None else dims
    plain = tuple(range(n))
    swapped = (*plain[:-2], n - 1, n - 2) if n >= 2 else plain
    blocked = _BLOCKED.fullmatch(name)
    if n < 2 and (blocked or name in ("csc", "dcsr", "dcsc")):
        raise FormatError(f"format {name!r} stores matrices, but the tensor is {n}-D")
    if blocked:
        rows, columns = int(blocked[2]), int(blocked[3] or blocked[2])
        outer = plain if blocked[1] == "bsr" else swapped
        sizes = ((n - 2, rows), (n - 1, columns))
        return _letters("d" * (n - 1) + "sdd"), (*outer, n - 2, n - 1), sizes
    if name in _LAST:
        return _letters("d" * (n - 1) + _LAST[name] * (n > 0)), plain, ()
    letters, order = {
        "dense": ("d" * n, plain),
        "csr": ("d" * (n - 1) + "s" * (n > 0), plain),
        "csc": ("d" * (n - 1) + "s" * (n > 0), swapped),
        "coo": ("o" * n, plain),
        "csf": ("s" * n, plain),
        "dcsr": ("d" * (n - 2) + "ss", plain),
        "dcsc": ("d" * (n - 2) + "ss", swapped),
    }[name]
    return _letters(letters), order, ()


def _letters(text: str) -> Levels:
    return tuple(_BY_LETTER[letter] for letter in text)


def _checked_order(order: Iterable[int]) -> Order:
    try:
        return tuple(int(dim) for dim in order)
    except (TypeError, ValueError):
        raise FormatError(
            f"the order of a format must list dimensions, such as (1, 0), but got {order!r}"
        ) from None


def _checked_blocks(blocks: Mapping[int, int] | Iterable[tuple[int, int]]) -> Blocks:
    try:
        return tuple(sorted((int(dim), int(size)) for dim, size in dict(blocks).items()))
    except (TypeError, ValueError):
        raise FormatError(
            f"the blocks of a format must map dimensions to sizes, such as {{0: 4, 1: 4}}, but got {blocks!r}"
        ) from None


def _check(form: Format, spec: object) -> None:
    if len(form.order) != len(form.levels):
        raise FormatError(
            f"format {spec!r} has {len(form.levels)} levels, but its order {form.order} names "
            f"{len(form.order)} dimensions"
        )
    if sorted(set(form.order)) != list(range(form.dims)):
        raise FormatError(f"order {form.order} must name the dimensions 0 to {form.dims - 1}")
    for dim, size in form.blocks:
        if form.order.count(dim) != 2:
            raise FormatError(f"dimension {dim} has blocks, so it must appear twice in order {form.order}")
        if size < 1:
            raise FormatError(f"blocks of dimension {dim} must have a positive size, but got {size}")
    for dim in range(form.dims):
        if form.order.count(dim) > 1 and form.block(dim) is None:
            raise FormatError(f"dimension {dim} appears twice in order {form.order} but has no block size")

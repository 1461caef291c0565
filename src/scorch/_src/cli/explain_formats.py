"""Explain an expression over random tensors in formats that are named, for ``python -m scorch explain``."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import torch

from scorch._src.explain.explain_statement import explain
from scorch._src.explain.report import Explanation
from scorch._src.formats import as_format
from scorch._src.notation.indexing import parse
from scorch._src.notation.trees import accesses
from scorch._src.tensor.create.build import from_coordinates
from scorch.errors import ArgumentError, FormatError, NotationError, ShapeError, add_note, counted

NOMINAL_SIZE = 1000
NOMINAL_ELEMENTS = 10**6  # of a tensor of order 3 or more
MAX_ENTRIES = 50_000_000


def explain_formats(
    text: str,
    formats: Sequence[str],
    sizes: Mapping[str, int],
    density: float,
    result: str | None,
    measure: bool = False,
) -> Explanation:
    """Explain an expression over random tensors in these formats."""
    if not 0 <= density <= 1:
        raise ArgumentError(f"--density must be between 0 and 1, but got {density}")
    torch.manual_seed(0)
    if "=" in text or "[" in text:
        statement = parse(text)
        indices = {access.tensor: access.indices for access in accesses(statement.assign.value)}
        formats_by_name = _parse_formats(indices, formats)
        size = _sizes([*indices.values(), statement.assign.target.indices], sizes)
        tensors = {
            name: _random_tensor(name, indices[name], form, size, density)
            for name, form in formats_by_name.items()
        }
        return explain(text, format=result, measure=measure, **tensors)
    terms, _, output = text.partition("->")
    labels = [tuple(re.findall(r"[A-Za-z]", term)) for term in terms.split(",")]
    if len(formats) != len(labels):
        raise NotationError(
            f"{text!r} has {counted(len(labels), 'operand')}, but {counted(len(formats), 'format')} "
            f"{'is' if len(formats) == 1 else 'are'} given; name one for each, such as csr or dense"
        )
    size = _sizes([*labels, tuple(re.findall(r"[A-Za-z]", output))], sizes)
    operands = [
        _random_tensor(f"operand {number}", letters, form, size, density)
        for number, (letters, form) in enumerate(zip(labels, formats, strict=True))
    ]
    return explain(text, *operands, format=result, measure=measure)


def _parse_formats(indices: Mapping[str, tuple[str, ...]], formats: Sequence[str]) -> dict[str, str]:
    formats_by_name: dict[str, str] = {}
    for argument in formats:
        name, equals, form = argument.partition("=")
        if not equals or not form:
            raise FormatError(
                f"name the tensor of format {argument!r}, as in {next(iter(indices))}={argument}"
            )
        if name not in indices:
            raise NotationError(f"{name!r} is given but not used; the operands are {', '.join(indices)}")
        formats_by_name[name] = form
    missing = [name for name in indices if name not in formats_by_name]
    if missing:
        example = " ".join(f"{name}=csr" for name in missing)
        raise NotationError(f"no format is given for {', '.join(missing)}; add for example {example}")
    return formats_by_name


def parse_sizes(text: str) -> dict[str, int]:
    """Read sizes written as ``i=100,j=200``."""
    sizes = {}
    for item in filter(None, text.split(",")):
        name, _, value = item.partition("=")
        try:
            number = float(value)
            sizes[name.strip()] = int(number)
            if number != int(number) or number < 0:
                raise ValueError
        except (ValueError, OverflowError):
            raise ArgumentError(f"--sizes must have the form i=100,j=200, but got {item!r}") from None
    return sizes


def _sizes(tensors: Sequence[tuple[str, ...]], passed: Mapping[str, int]) -> dict[str, int]:
    """Return a size for each index: as passed, else nominal, smaller where tensors have many dimensions."""
    indices = dict.fromkeys(index for tensor in tensors for index in tensor)
    unknown = [index for index in passed if index not in indices]
    if unknown:
        raise ArgumentError(f"--sizes names {unknown[0]!r}, but the indices are {', '.join(indices)}")
    order = max(map(len, tensors), default=0)
    nominal = NOMINAL_SIZE if order < 3 else max(2, round(NOMINAL_ELEMENTS ** (1 / order)))
    return {index: passed.get(index, nominal) for index in indices}


def _random_tensor(
    name: str, indices: tuple[str, ...], format: str, sizes: Mapping[str, int], density: float
) -> torch.Tensor:
    """Draw a random tensor in ``format``; repeated coordinates are one entry."""
    shape = tuple(sizes[index] for index in indices)
    try:
        form = as_format(format, len(shape))
    except FormatError as error:
        add_note(error, f"in the format of {name}")
        raise
    elements = math.prod(shape)
    entries = elements if form.is_dense else round(elements * density)
    if entries > MAX_ENTRIES:
        raise ShapeError(
            f"{name} would have {entries:,} entries, more than {MAX_ENTRIES:,}; "
            "give smaller --sizes or a smaller --density"
        )
    if form.is_dense:
        return torch.rand(shape)
    coordinates = [torch.randint(max(size, 1), (entries,)) for size in shape]
    return from_coordinates(coordinates, torch.rand(entries), shape, form)

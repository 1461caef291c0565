"""Tensors in any format built by plain Python, so that tests neither wait for kernels nor trust them."""

from __future__ import annotations

import torch

from scorch import Format
from scorch._src.storage.complete_levels import assembled
from scorch._src.storage.storage import Storage


def pack(dense: torch.Tensor, form: Format, stored: torch.Tensor | None = None) -> Storage:
    """``dense`` as ``form``; ``stored`` says which places are stored (the nonzero ones unless given)."""
    shape = tuple(dense.shape)
    mask = dense != 0 if stored is None else stored
    entries = []
    for place in mask.nonzero().tolist():
        key = tuple(_coordinate(form, level, place) for level in range(len(form)))
        entries.append((key, dense[tuple(place)]))
    groups = [sorted(entries, key=lambda entry: entry[0])]
    pos: list[torch.Tensor | None] = []
    crd: list[torch.Tensor | None] = []
    counts = []
    level = 0
    while level < len(form):
        size = form.level_size(level, shape)
        if form.levels[level].is_full:
            groups = [[e for e in group if e[0][level] == c] for group in groups for c in range(size)]
            pos.append(None)
            crd.append(None)
            counts.append(len(groups))
            level += 1
            continue
        last = level + 1
        while last < len(form) and form.levels[last].letter == "o" and not form.starts_run(last):
            last += 1
        starts, columns, below = [0], [], []
        for group in groups:
            keys = list(dict.fromkeys(entry[0][level:last] for entry in group))
            columns += keys
            below += [[e for e in group if e[0][level:last] == key] for key in keys]
            starts.append(len(columns))
        groups = below
        for member in range(level, last):
            pos.append(torch.tensor(starts, dtype=torch.int32) if member == level else None)
            crd.append(torch.tensor([key[member - level] for key in columns], dtype=torch.int32))
            counts.append(len(columns))
        level = last
    values = torch.zeros(len(groups), dtype=dense.dtype)
    for number, group in enumerate(groups):
        if group:
            values[number] = group[0][1]
    return assembled(form, shape, pos, crd, counts, values)


def _coordinate(form: Format, level: int, place: list[int]) -> int:
    index, block = place[form.order[level]], form.block(form.order[level])
    if block is None:
        return index
    return index // block if form.part(level) == "outer" else index % block

"""Weights with N:M sparsity: windows of columns that all store as many values.

Where a value is in its window takes four bits, which replace its column. Where four of eight columns are
stored, as 2:4, 4:8 and 1:2 do, the coordinates of a window are one of 70 choices, so a code of eight bits
replaces all four; a table has the positions that each code stands for. Routines take one or the other, which
is derived from the coordinates when a layer first multiplies a few rows.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from scorch._src.backends.base import routines_for
from scorch._src.grad_state import outside_modes, untracked
from scorch._src.storage.storage import Pattern

WINDOW, STORED = 8, 4  # columns, and how many of them are stored
BYTES = 4  # of a value that is picked


class Groups(NamedTuple):
    """A code for each window, row by row, and for each code where the bytes of its values come from."""

    codes: torch.Tensor
    table: torch.Tensor


def find_positions(input: torch.Tensor, pattern: Pattern) -> torch.Tensor | None:
    """Return the positions in windows of a csr pattern, if routines read them for such an input."""
    (rows, columns), routines = pattern.shape, routines_for(input)
    if not pattern.size:
        return None
    if not routines.reads_positions(input.dtype, input.numel() // columns, pattern.size / (rows * columns)):
        return None
    known = pattern.structures.get("positions", False)
    if known is False:
        pos, crd = pattern.pos[1], pattern.crd[1]
        assert pos is not None and crd is not None
        with untracked():
            known = pattern.structures["positions"] = routines.pack_positions(pos, crd, columns)
    return known  # type: ignore[no-any-return]


def find_groups(pattern: Pattern) -> Groups | None:
    """Return the codes of a csr pattern, if all of its windows have as many entries; None otherwise."""
    rows, columns = pattern.shape
    if columns % WINDOW or pattern.size * WINDOW != rows * columns * STORED or not pattern.size:
        return None
    known = pattern.structures.get("groups", False)
    if known is False:
        known = pattern.structures["groups"] = _encode(pattern)
    return known  # type: ignore[no-any-return]


@outside_modes
def _encode(pattern: Pattern) -> Groups | None:
    (_, columns), pos, crd = pattern.shape, pattern.pos[1], pattern.crd[1]
    assert pos is not None and crd is not None
    counts = pos.diff()
    if not bool((counts == columns // WINDOW * STORED).all()):
        return None
    windows = crd.reshape(pattern.shape[0], -1, STORED)
    expected = torch.arange(columns // WINDOW, dtype=crd.dtype, device=crd.device)[:, None]
    if not bool((windows // WINDOW == expected).all()):
        return None
    digits = WINDOW ** torch.arange(STORED - 1, -1, -1, device=crd.device)
    keys = ((windows % WINDOW) * digits).sum(-1).reshape(-1)
    is_used = torch.zeros(WINDOW**STORED, dtype=torch.bool, device=crd.device)
    is_used[keys] = True
    used = is_used.nonzero().squeeze(1)
    code_of_key = torch.zeros(WINDOW**STORED, dtype=torch.uint8, device=crd.device)
    code_of_key[used] = torch.arange(used.numel(), dtype=torch.uint8, device=crd.device)
    positions = used[:, None] // digits % WINDOW
    table = positions[:, :, None] * BYTES + torch.arange(BYTES, device=crd.device)
    return Groups(code_of_key[keys], table.reshape(-1).to(torch.uint8))

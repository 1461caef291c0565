"""Convert matrices without a kernel: between CSR and COO, CSC and COO by columns, and CSR and CSC.

Between rows and a list the entries stay where they are: the inner coordinates and the values are shared, and
only what says which row an entry lies in is computed. From rows to columns a routine moves them.
"""

from __future__ import annotations

import torch

from scorch._src.backends.base import routines_for
from scorch._src.formats import Format
from scorch._src.storage.budget import UNCHECKED_BYTES, check_budget
from scorch._src.storage.storage import Pattern, Storage

MIN_LINES, LINES_PER_ENTRY = 1 << 20, 16  # from which on most rows or columns are empty


def shares_entries(old: Format, new: Format) -> bool:
    """Check whether both store the same entries in the same order, below rows and in a list."""
    by_rows, listed = (old, new) if new.is_list else (new, old)
    return old.order == new.order and by_rows.is_compressed_matrix and listed.is_list


def swaps_levels(old: Format, new: Format) -> bool:
    """Check whether one lists the entries below rows, the other in the same way below columns."""
    is_plain = old.is_compressed_matrix and not old.is_finished and not old.is_padded
    return is_plain and old.levels == new.levels and old.order != new.order and not new.blocks


def has_mostly_empty_lines(pattern: Pattern, form: Format) -> bool:
    """Check whether ``form`` says of far more rows or columns where they begin than there are entries.

    Kernels count or collect the entries of each, in arrays of as many numbers, which takes several times as
    long as to write where they begin.
    """
    if not form.is_compressed_matrix:
        return False
    is_plain = not any(each.is_finished or each.is_padded or each.blocks for each in (pattern.format, form))
    lines = pattern.shape[form.order[0]]
    return is_plain and lines >= MIN_LINES and lines > LINES_PER_ENTRY * pattern.size


def list_of(form: Format) -> Format:
    """Return the format of a matrix that lists entries in the same order as ``form``."""
    return Format("oo", order=form.order)


def transposed(storage: Storage, form: Format) -> Storage | None:
    """Convert ``storage`` to a format that swaps its levels; None where a kernel does it as well."""
    pattern = storage.pattern
    pos, crd, columns = pattern.pos[1], pattern.crd[1], pattern.shape[form.order[0]]
    assert pos is not None and crd is not None
    found = routines_for(pos).transpose_matrix((pos, crd, storage.values), columns)
    if found is None:
        return None
    new = Pattern(form, pattern.shape, (None, found[0]), (None, found[1]), (columns, pattern.size))
    return Storage(new, found[2])


def transposed_pattern(pattern: Pattern, form: Format) -> tuple[Pattern, torch.Tensor] | None:
    """Swap the levels of ``pattern``; return where values come from, too. None without a routine."""
    pos, crd, columns = pattern.pos[1], pattern.crd[1], pattern.shape[form.order[0]]
    assert pos is not None and crd is not None
    _check_lines(columns, 8, pattern, form)
    found = routines_for(pos).transpose_places(pos, crd, columns)
    if found is None:
        return None
    begins, rows, places = found
    new = Pattern(form, pattern.shape, (None, begins), (None, rows), (columns, pattern.size))
    return new, places.long()


def _check_lines(count: int, bytes_per_line: int, pattern: Pattern, form: Format) -> None:
    """Raise where there is no memory to say where each of ``count`` rows or columns begins."""
    if bytes_per_line * count > UNCHECKED_BYTES:
        what = f"a tensor of shape {pattern.shape} in format {form}"
        check_budget(
            bytes_per_line * count, pattern.device, what, "use a sparser format such as 'coo' or 'dcsr'"
        )


def releveled(storage: Storage, form: Format) -> Storage:
    """Convert ``storage`` to a format that shares its entries."""
    pattern = storage.pattern
    count, inner = pattern.size, pattern.crd[1]
    if form.is_compressed_matrix:
        rows, outer = pattern.crd[0], pattern.shape[form.order[0]]
        assert rows is not None
        _check_lines(outer, rows.element_size(), pattern, form)
        pos = routines_for(rows).row_pointers(rows, outer)
        converted = Pattern(form, pattern.shape, (None, pos), (None, inner), (outer, count))
    else:
        begin = pattern.pos[1]
        assert begin is not None and inner is not None
        ends, rows = routines_for(begin).row_numbers(begin, inner)
        converted = Pattern(form, pattern.shape, (ends, None), (rows, inner), (count, count))
    return Storage(converted, storage.values)

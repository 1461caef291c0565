"""Convert a matrix by its row array alone: CSR and COO, and CSC and COO by columns.

The entries stay where they are: the inner coordinates and the values are shared, and only what says which
row an entry lies in is computed.
"""

from __future__ import annotations

from scorch._src.backends.base import routines_for
from scorch._src.formats import Format
from scorch._src.storage.budget import UNCHECKED_BYTES, check_budget
from scorch._src.storage.storage import Pattern, Storage


def shares_entries(old: Format, new: Format) -> bool:
    """Check whether both store the same entries in the same order, below rows and in a list."""
    by_rows, listed = (old, new) if new.is_list else (new, old)
    return old.order == new.order and by_rows.is_compressed_matrix and listed.is_list


def releveled(storage: Storage, form: Format) -> Storage:
    """Convert ``storage`` to a format that shares its entries."""
    pattern = storage.pattern
    count, inner = pattern.size, pattern.crd[1]
    if form.is_compressed_matrix:
        rows, outer = pattern.crd[0], pattern.shape[form.order[0]]
        assert rows is not None
        if 8 * outer > UNCHECKED_BYTES:
            what = f"a tensor of shape {pattern.shape} in format {form}"
            check_budget(8 * outer, what, "ask for a sparser format such as 'coo' or 'dcsr'")
        pos = routines_for(rows).row_pointers(rows, outer)
        converted = Pattern(form, pattern.shape, (None, pos), (None, inner), (outer, count))
    else:
        begin = pattern.pos[1]
        assert begin is not None and inner is not None
        ends, rows = routines_for(begin).row_numbers(begin, inner)
        converted = Pattern(form, pattern.shape, (ends, None), (rows, inner), (count, count))
    return Storage(converted, storage.values)

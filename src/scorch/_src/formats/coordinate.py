"""The coordinate level: one coordinate per entry.

Coordinate levels come in runs (``oo`` is COO). The first of a run has the entries below each position of
the level above, like a compressed level but with a coordinate repeated for every entry; the others
are in step with it: entry p of the run has the coordinates ``crd1[p], crd2[p], ...``. A position
handed from one level of the run to the next is therefore a *range* of entries.
"""

from __future__ import annotations

from scorch._src.formats.level import Level


class Coordinate(Level):
    letter, name = "o", "coordinate"
    has_coordinates, continues_run = True, True

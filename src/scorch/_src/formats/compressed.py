"""The compressed level: the coordinates below position p are ``crd[pos[p]] .. crd[pos[p + 1] - 1]``."""

from __future__ import annotations

from scorch._src.formats.level import Level


class Compressed(Level):
    letter, name = "s", "compressed"
    is_full, keeps_crd, keeps_pos = False, True, True

    def count(self, parents: int, size: int, entries: int) -> int:
        return entries

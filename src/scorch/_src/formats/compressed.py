"""The compressed level: the coordinates below position p are ``crd[pos[p]] .. crd[pos[p + 1] - 1]``."""

from __future__ import annotations

from scorch._src.formats.level import Level


class Compressed(Level):
    letter, name = "s", "compressed"
    has_coordinates = True

"""Matrices and tensors made up on the spot, for machines without the collections.

Shapes, numbers of entries and the way entries lie follow matrices of the collections; the entries
themselves are random. Names start with ``made-``, so that nobody takes them for the real ones.
"""

from __future__ import annotations

import numpy as np

from benchmarks.kernels.data import (
    Matrix,
    Tensor,
    generator_for,
    matrix_from_coordinates,
    tensor_from_coordinates,
)

# How entries lie: "band" near the diagonal, "uniform" anywhere, "tail" in few columns most of the time,
# as in graphs, "rows" in few rows most of the time, "pruned" as many in each row, as in pruned weights.
MATRICES = [
    ("tiny", 7, 7, 15, "uniform"),
    ("tiny-wide", 6, 15, 30, "uniform"),
    ("circuit-small", 32, 32, 98, "band"),
    ("mesh-tiny", 48, 48, 400, "band"),
    ("kinetics", 183, 183, 998, "rows"),
    ("bus", 494, 494, 1_666, "band"),
    ("control-small", 305, 305, 2_699, "rows"),
    ("banded-small", 1_000, 1_000, 3_996, "band"),
    ("mesh-small", 1_138, 1_138, 7_450, "band"),
    ("hubs-small", 1_813, 1_813, 11_097, "rows"),
    ("banded", 5_005, 5_005, 20_033, "band"),
    ("programme-wide", 6_071, 12_230, 35_632, "tail"),
    ("tall", 10_592, 3_016, 48_472, "uniform"),
    ("votes", 8_297, 8_297, 103_689, "tail"),
    ("peers", 62_586, 62_586, 147_892, "tail"),
    ("stiffness", 4_884, 4_884, 290_378, "band"),
    ("crystal", 39_082, 39_082, 559_722, "band"),
    ("social", 10_312, 10_312, 667_966, "tail"),
    ("mesh", 62_631, 62_631, 733_118, "band"),
    ("web", 325_729, 325_729, 929_849, "tail"),
    ("materials", 48_600, 48_600, 1_181_120, "band"),
    ("attention-0.95", 512, 512, 13_107, "pruned"),
    ("attention-0.7", 512, 512, 78_643, "pruned"),
    ("feedforward-0.98", 2_048, 512, 20_971, "pruned"),
    ("feedforward-0.9", 512, 2_048, 104_857, "pruned"),
    ("feedforward-0.8", 2_048, 512, 209_715, "pruned"),
    ("embedding-0.98", 33_288, 512, 340_867, "pruned"),
    ("citations", 169_343, 169_343, 1_166_243, "tail"),
]
TENSORS = [
    ("relations-tiny", (14, 55, 14), 1_992),
    ("relations-small", (135, 46, 135), 6_529),
    ("relations", (14_541, 237, 14_541), 310_116),
    ("scattered", (2_425, 10_816, 29_567), 100_000),
    ("dated", (10_623, 10, 10_623, 189), 201_089),
]
MATRIX_NAMES = ["made-" + name for name, *_ in MATRICES]
TENSOR_NAMES = ["made-" + name for name, *_ in TENSORS]


def make_matrix(name: str) -> Matrix:
    """The matrix of that name in ``MATRICES``."""
    _, m, n, wanted, kind = next(row for row in MATRICES if "made-" + row[0] == name)
    random = generator_for(name)
    keys = np.empty(0, np.int64)
    while len(keys) < wanted:  # until there are enough different places
        count = 2 * (wanted - len(keys)) + 8
        rows = random.integers(0, m, count)
        if kind == "band":
            reach = max(4, 2 * wanted // m)
            columns = rows * n // m + random.integers(-reach, reach + 1, count)
            inside = (columns >= 0) & (columns < n)
            rows, columns = rows[inside], columns[inside]
        elif kind == "tail":
            columns = (random.random(count) ** 3 * n).astype(np.int64)
        elif kind == "rows":
            rows = (random.random(count) ** 3 * m).astype(np.int64)
            columns = random.integers(0, n, count)
        else:
            columns = random.integers(0, n, count)
        keys = np.union1d(keys, rows * n + columns)
    keys = random.permutation(keys)[:wanted]
    return matrix_from_coordinates(name, "made", (m, n), keys // n, keys % n, None)


def make_tensor(name: str) -> Tensor:
    """The tensor of that name in ``TENSORS``; its coordinates have heavy tails."""
    _, shape, wanted = next(row for row in TENSORS if "made-" + row[0] == name)
    random = generator_for(name)
    coordinates = np.empty((len(shape), 0), np.int64)
    while coordinates.shape[1] < wanted:
        new = [(random.random(wanted) ** 2 * size).astype(np.int64) for size in shape]
        coordinates = np.unique(np.concatenate([coordinates, np.stack(new)], axis=1), axis=1)
    chosen = coordinates[:, random.permutation(coordinates.shape[1])[:wanted]]
    values = random.standard_normal(wanted)
    return tensor_from_coordinates(name, "tensors", shape, chosen, values)

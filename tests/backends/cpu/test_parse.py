"""The routine that reads tables gives what Python's ``float`` and ``int`` give, to the last bit."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest

from scorch._src.backends.cpu.routines.parse_table import parse_table

ODD = [
    "0",
    "-0.0",
    ".5",
    "5.",
    "1e5",
    "-1.E-3",
    "inf",
    "-inf",
    "nan",
    "Infinity",
    "+3",
    "000001.2500",
    "1e400",
]
ODD += ["4.9e-324", "2.2250738585072014e-308", "9007199254740993", "0.1e-320", "0" * 30 + "1.5", "1" * 30]
ODD += ["179769313486231580793728971405301e276", "8.5e-1000000000", "1.00000000000000011102230246251565404"]


def words(count: int) -> list[str]:
    """Decimal numbers of many lengths, among them some that lie halfway between two floats."""
    draw = random.Random(5)
    found = list(ODD)
    for _ in range(count):
        bits = struct.pack("Q", draw.getrandbits(64))
        found += [
            repr(struct.unpack("d", bits)[0]),
            f"{draw.gauss(0, 1):.17g}",
            f"{draw.uniform(-1e3, 1e3):.19e}",
            f"{draw.getrandbits(draw.randrange(1, 80))}e{draw.randrange(-340, 300)}",
            f"{draw.randrange(10**6)}.{draw.randrange(10**9)}",
            str((2 * (draw.getrandbits(53) | 1) + 1) << draw.randrange(8)),
        ]
    return found


def test_numbers_are_rounded_correctly():
    text = words(20_000)
    found = parse_table("\n".join(text).encode(), 0, (), 1, False)
    wanted = np.array([float(word) for word in text])
    values = found[1][:, 0]
    same = (values.view(np.int64) == wanted.view(np.int64)) | (np.isnan(values) & np.isnan(wanted))
    assert [text[n] for n in np.flatnonzero(~same)] == []


def test_lines_blanks_and_columns():
    text = b"head\n\n 1\t2  3.5 \r\n\n2 3 4"
    places, values = parse_table(text, 5, (5, 5), 1, False)
    assert places.tolist() == [[0, 1], [1, 2]] and places.dtype == np.int32
    assert values.tolist() == [[3.5], [4.0]]
    places, values = parse_table(b"7 -3 9223372036854775807\n", 0, (2**40,), 2, True)
    assert places.tolist() == [[6]] and places.dtype == np.int64
    assert values.tolist() == [[-3, 2**63 - 1]]
    places, values = parse_table(b"", 0, (5, 5), 1, False)
    assert places.shape == (2, 0) and values.shape == (0, 1)


def test_long_texts_are_shared_among_threads():
    rows = 60_000
    text = "".join(f"{n + 1} {n * 7 % 1000 + 1} {n}.25\n" + "\n" * (n % 5 == 0) for n in range(rows)).encode()
    places, values = parse_table(text, 0, (rows, 1000), 1, False)
    assert np.array_equal(places[0], np.arange(rows)) and np.array_equal(values[:, 0], np.arange(rows) + 0.25)


BROKEN = ["1 2 x", "1 2", "1 2 3 4", "0 1 1", "1 9 1", "1 2 1e", "1 2 .", "1 2 0x10", "1 2 1.5.3", "1 2 -"]
BROKEN += ["1 2 nanx", "1.0 2 3", "1 2 i", "99999999999999999999 1 1", "1 2 1 # five", "1,2,3"]


@pytest.mark.parametrize("line", BROKEN)
def test_what_is_no_table_is_left(line):
    assert parse_table(f"1 1 1\n{line}\n".encode(), 0, (5, 5), 1, False) is None

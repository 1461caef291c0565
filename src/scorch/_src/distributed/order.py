"""The numbers that rows or columns had before they were partitioned."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from scorch._src.distributed.collectives import Group, gather_numbers

Tensor = torch.Tensor
FACTOR = 0x9E3779B97F4A7C15 - (1 << 64)  # of SplitMix64


@dataclass(frozen=True, eq=False)
class Order:
    """The original numbers of the rows that this process owns, and a checksum of those of all processes."""

    numbers: Tensor
    checksum: int


def order_of(numbers: Tensor, begin: int, group: Group) -> Order | None:
    """Return the order of rows whose original numbers are given, from ``begin`` on; all processes call this.

    None where all rows have their original numbers.
    """
    now = torch.arange(begin, begin + len(numbers), device=numbers.device)
    mixed = (now * FACTOR) ^ (numbers + 1)
    mixed = (mixed ^ ((mixed >> 29) & ((1 << 35) - 1))) * FACTOR
    facts = gather_numbers([int((numbers != now).sum()), int(mixed.sum())], group, numbers)
    moved, checksums = zip(*facts, strict=True)
    return Order(numbers, sum(checksums)) if any(moved) else None

"""Build tensors with compressed rows (csr, with leading dimensions as a batch) from their arrays."""

from __future__ import annotations

import torch
from torch.compiler import is_dynamo_compiling

from scorch._src.formats import Format
from scorch._src.storage.storage import Pattern
from scorch._src.tensor.autograd import sparse_of
from scorch._src.tensor.sparse_tensor import SparseTensor


def rows_pattern(pos: torch.Tensor, crd: torch.Tensor, shape: tuple[int, ...]) -> Pattern:
    """Return the pattern with the rows of all matrices of the batch one after the other."""
    counts: list[int] = []
    for size in shape[:-1]:
        counts.append((counts[-1] if counts else 1) * size)
    absent: tuple[None, ...] = (None,) * len(counts)
    form = Format("d" * len(counts) + "s")
    return Pattern(form, shape, (*absent, pos), (*absent, crd), (*counts, crd.shape[0]))


def rows_tensor(
    pos: torch.Tensor, crd: torch.Tensor, values: torch.Tensor, shape: tuple[int, ...]
) -> SparseTensor:
    """Return the tensor with these rows, connected to ``values``; ``torch.compile`` can trace it."""
    if is_dynamo_compiling():
        order = ",".join([str(dim) for dim in range(len(shape))])
        text = "d" * (len(shape) - 1) + f"s:{order}:"  # as ``flatten.spelled`` writes the format
        return torch.ops.scorch.assemble(text, list(shape), [pos, crd], values)  # type: ignore[no-any-return]
    return sparse_of(rows_pattern(pos, crd, shape), values)

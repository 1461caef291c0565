"""How far a result is from the right one, computed in float64 on the device without any sparse library.

Sparse results are compared by their products with a few random vectors: that takes no order of entries, and
no dense matrix.
"""

from __future__ import annotations

from typing import Any

import torch

import scorch
from benchmarks.gpu.matrices import Matrix, generator_for

VECTORS = 4
CHUNK = 1 << 24  # numbers that are gathered at a time
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 4e-3}


def times(
    rows: torch.Tensor, columns: torch.Tensor, values: torch.Tensor, X: torch.Tensor, m: int
) -> torch.Tensor:
    """Multiply a matrix given by its entries with a dense one, in float64."""
    X = X.double()
    out = torch.zeros(m, X.shape[1], dtype=torch.float64, device=X.device)
    step = max(1, CHUNK // X.shape[1])
    for at in range(0, len(values), step):
        part = slice(at, at + step)
        out.index_add_(0, rows[part], X[columns[part]] * values[part].double()[:, None])
    return out


def probes(columns: int, device: Any) -> torch.Tensor:
    draw = generator_for("probes", str(device))
    return torch.randn(columns, VECTORS, generator=draw, device=device, dtype=torch.float64)


def entries(found: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows, columns and values of a sparse result in any layout."""
    if isinstance(found, scorch.SparseTensor):
        places = found.to_format("coo").indices()
        return places[0].long(), places[1].long(), found.to_format("coo").values()
    if found.layout == torch.sparse_coo:
        return found._indices()[0], found._indices()[1], found._values()
    by_row = found.layout == torch.sparse_csr
    pointers = found.crow_indices() if by_row else found.ccol_indices()
    inner = (found.col_indices() if by_row else found.row_indices()).long()
    outer = torch.repeat_interleave(
        torch.arange(len(pointers) - 1, device=inner.device), pointers.diff().long()
    )
    return (outer, inner, found.values()) if by_row else (inner, outer, found.values())


def sketch(found: Any) -> torch.Tensor:
    """The result times the random vectors."""
    if not isinstance(found, scorch.SparseTensor) and found.layout == torch.strided:
        return found.double() @ probes(found.shape[1], found.device)
    rows, columns, values = entries(found)
    return times(rows, columns, values, probes(found.shape[1], values.device), found.shape[0])


def sketch_of(matrix: Matrix, values: torch.Tensor | None = None) -> torch.Tensor:
    """What the sketch of ``matrix``, perhaps with other values, should be."""
    X = probes(matrix.shape[1], matrix.device)
    kept = matrix.values if values is None else values
    return times(matrix.rows, matrix.indices.long(), kept, X, matrix.shape[0])


def error(found: Any, reference: Any, is_sketch: bool = False) -> float:
    """The norm of the difference over that of the reference; of several tensors, the largest."""
    if isinstance(reference, list):
        return max(error(*pair) for pair in zip(found, reference, strict=True))
    got = sketch(found) if is_sketch else found.detach().double().reshape(reference.shape)
    scale = float(reference.double().norm())
    return float((got - reference).norm()) / (scale or 1.0)

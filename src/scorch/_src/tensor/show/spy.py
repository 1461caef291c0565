"""Draw the pattern of a tensor as a picture: inline in notebooks, or with matplotlib.

Entries are counted in a grid of at most 200 by 200 cells, in time that follows their number. Tensors with
more than two dimensions show the last two, all others on top of one another.
"""

from __future__ import annotations

import html
import math
from typing import Any

import numpy as np
import torch

from scorch._src.devices import HOST
from scorch._src.storage.coordinates import entries
from scorch._src.tensor.interop.optional import optional_module
from scorch._src.tensor.show.text import autograd_facts
from scorch._src.tensor.sparse_tensor import SparseTensor, check_sparse
from scorch._src.units import format_bytes

MAX_CELLS = 200
SHADES = (0.3, 0.42, 0.54, 0.66, 0.78, 0.9)  # from few entries in a cell to many
MAX_SIDE_PIXELS = 240  # pixels
MIN_SIDE_PIXELS = 16

Array = np.ndarray[Any, Any]


def grid(S: SparseTensor, cells: int = MAX_CELLS) -> tuple[Array, tuple[int, int]]:
    """Count the entries in each cell; return the counts and the sizes (rows, columns) that they cover."""
    shape = S.storage.pattern.shape
    rows, columns = (1, 1, *shape)[-2:]
    height, width = min(rows, cells), min(columns, cells)
    if not height or not width:
        return np.zeros((height, width), dtype=np.int64), (rows, columns)
    crd, values = entries(S.storage)
    place = torch.zeros(values.numel(), dtype=torch.int64, device=values.device)
    axes = list(zip((rows, columns), (height, width), strict=True))[-len(crd) :]
    for array, (size, count) in zip(crd[-2:], axes, strict=True):
        place = place * count + (array if size == count else _cell(array, size, count))
    counts = torch.bincount(place, minlength=height * width)
    return counts.reshape(height, width).to(HOST).numpy(), (rows, columns)


def _cell(coordinates: torch.Tensor, size: int, count: int) -> torch.Tensor:
    if size < 2**62 // count:
        return coordinates * count // size
    return (coordinates.to(torch.float64) * (count / size)).to(torch.int64).clamp_(max=count - 1)


# notebooks -------------------------------------------------------------------------------------------


def to_html(S: SparseTensor) -> str:
    """Render a table of a tensor's properties next to its picture."""
    pattern = S.storage.pattern
    places = math.prod(pattern.shape)
    facts = {
        "shape": " × ".join(map(str, pattern.shape)) or "scalar",
        "dtype": str(S.storage.values.dtype).removeprefix("torch."),
        "format": str(pattern.format),
        "levels": ", ".join(level.name for level in pattern.format.levels),
        "stored values": f"{pattern.size:,}",
        "density": f"{pattern.size / places:.3g}" if places else "none",
        "memory": format_bytes(pattern.bytes() + S.storage.values.numel() * S.storage.values.element_size()),
    } | {name: str(fact) for name, fact in autograd_facts(S).items()}
    left = "style='text-align:left'"
    rows = "".join(
        f"<tr><th {left}>{name}</th><td {left}>{html.escape(text)}</td></tr>" for name, text in facts.items()
    )
    return (
        "<div style='display:flex;flex-wrap:wrap;align-items:center;gap:1.5em'>"
        f"<table><caption {left}><b>SparseTensor</b></caption>{rows}</table>"
        f"{to_svg(S)}</div>"
    )


def to_svg(S: SparseTensor, cells: int = MAX_CELLS, side: int = MAX_SIDE_PIXELS) -> str:
    """Render the picture of a tensor, at most ``side`` pixels long; darker cells have more entries."""
    counts, (rows, columns) = grid(S, cells)
    height, width = counts.shape
    scale = side / max(rows, columns, 1)
    size = [max(MIN_SIDE_PIXELS, round(scale * length)) for length in (columns, rows)]
    places = math.ceil(rows / max(height, 1)) * math.ceil(columns / max(width, 1))  # in a cell
    most = float(min(counts.max(initial=0) ** 2, places))  # so that only cells that are full are the darkest
    part = np.log1p(counts) / max(math.log1p(most), 1e-9)  # may round to a little more than 1
    shade = np.ceil(np.minimum(part, 1) * len(SHADES)).astype(np.int64)
    paths = "".join(
        f"<path opacity='{opacity}' d='{_path(shade == number)}'/>"
        for number, opacity in enumerate(SHADES, 1)
        if bool((shade == number).any())
    )
    return (
        f"<svg width='{size[0]}' height='{size[1]}' viewBox='0 -0.5 {max(width, 1)} {max(height, 1)}' "
        "preserveAspectRatio='none' style='border:1px solid gray;flex:none' shape-rendering='crispEdges' "
        f"stroke='currentColor' stroke-width='1'>{paths}</svg>"
    )


def _path(mask: Array) -> str:
    """Render horizontal strokes over the cells of ``mask``, one for each run."""
    edges = np.diff(np.pad(mask, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    row, begin = np.nonzero(edges == 1)
    end = np.nonzero(edges == -1)[1]
    strokes = zip(begin.tolist(), row.tolist(), (end - begin).tolist(), strict=True)
    return "".join(map("M%d %dh%d".__mod__, strokes))


# matplotlib ------------------------------------------------------------------------------------------


def spy(S: SparseTensor, ax: Any = None, *, cells: int = 500, **options: Any) -> Any:
    """Plot the sparsity pattern of a tensor with matplotlib; darker cells have more nonzeros.

    Args:
        S: a sparse tensor.
        ax: the axes to draw on; new ones without it.
        cells: the number of cells along the longer side.
        options: passed to ``ax.imshow``.

    Returns:
        The matplotlib axes.

    Raises:
        OperandError: ``S`` is not a sparse tensor.
        UnsupportedError: matplotlib is not installed.

    Example:

        >>> import matplotlib, scorch
        >>> matplotlib.use("Agg")
        >>> scorch.spy(scorch.eye(100, format="csr")).get_xlabel()
        ''
    """
    check_sparse("spy", S)
    axes = optional_module("matplotlib.pyplot", "matplotlib").subplots()[1] if ax is None else ax
    counts, (rows, columns) = grid(S, cells)
    extent = (-0.5, max(columns, 1) - 0.5, max(rows, 1) - 0.5, -0.5)
    usual = {"cmap": "Greys", "interpolation": "nearest", "vmin": 0, "aspect": "auto"}
    if 0.2 < (rows or 1) / (columns or 1) < 5:
        usual["aspect"] = "equal"
    picture = np.log1p(counts) if counts.size else np.zeros((1, 1))
    axes.imshow(picture, extent=extent, **{**usual, **options})
    axes.set_title(f"{S.format}, {S.nnz:,} stored")
    return axes

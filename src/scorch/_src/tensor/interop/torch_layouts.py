"""To and from other libraries: torch's own sparse layouts and SciPy's sparse arrays.

A format that the other side has too is handed over as it is: values share memory, index arrays are copied, so
that neither side can change the pattern of the other. Every other format goes through coordinates.
"""

from __future__ import annotations

import functools
import math
import sys
import warnings
from typing import TYPE_CHECKING, Any

import torch

from scorch._src.devices import HOST
from scorch._src.formats import Format, as_format
from scorch._src.name_hints import suggests_keywords
from scorch._src.storage.storage import Pattern, Storage
from scorch._src.tensor.create.build import compressed_format, from_compressed, from_coordinates
from scorch._src.tensor.create.check import from_numpy, own, sparse_advice_on
from scorch._src.tensor.entries import stored_as
from scorch._src.tensor.interop.optional import optional_module
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import DtypeError, OperandError, ShapeError, kind_of

if TYPE_CHECKING:
    import scipy.sparse

LAYOUTS = {kind: getattr(torch, f"sparse_{kind}") for kind in ("csr", "csc", "bsr", "bsc")}


# torch -----------------------------------------------------------------------------------------------


def to_torch(S: SparseTensor) -> torch.Tensor:
    """Convert ``S`` to the layout of torch for its format; ``coo`` for formats that torch does not have."""
    silence_beta_warning()
    storage = S.storage
    compressed = _as_compressed(storage)
    if compressed is not None:
        return compressed
    form, shape = storage.pattern.format, storage.pattern.shape
    if not form.is_coo:
        storage = stored_as(storage, as_format("coo", form.dims))
    crd = [array.to(torch.int64) for array in storage.pattern.crd if array is not None]
    values = storage.values.detach().view(crd[0].numel(), *shape[len(crd) :])
    return torch.sparse_coo_tensor(torch.stack(crd), values, shape, is_coalesced=True, check_invariants=False)


def _as_compressed(storage: Storage) -> torch.Tensor | None:
    """Convert ``storage`` to one of torch's compressed layouts, if it is one and obeys torch's rules."""
    pattern, form = storage.pattern, storage.pattern.format
    layout, arrays = compressed_kind(form), compressed_arrays(pattern)
    if layout is None or arrays is None or any(pattern.shape[dim] % block for dim, block in form.blocks):
        return None
    pos, crd = own(arrays[0]), own(arrays[1])
    blocks = [block for _, block in form.blocks]
    values = storage.values.detach().view(*crd.shape, *blocks, *pattern.shape[layout[1] + 2 :])
    tensor: torch.Tensor = torch.sparse_compressed_tensor(
        pos, crd, values, pattern.shape, layout=LAYOUTS[layout[0]], check_invariants=False
    )
    return tensor


@functools.lru_cache(maxsize=256)
def compressed_kind(form: Format) -> tuple[str, int] | None:
    """Return the compressed layout of torch that a format is, and its number of batch dimensions."""
    blocks = tuple(block for _, block in form.blocks)
    batch = form.dense_levels - 1
    if batch < 0 or len(blocks) not in (0, 2):
        return None
    for kind in ("bsr", "bsc") if blocks else ("csr", "csc"):
        if compressed_format(kind, batch, blocks, form.dims - batch - 2) == form:
            return kind, batch
    return None


def compressed_arrays(pattern: Pattern) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return pointers and coordinates by batch, as torch's compressed layouts have them; None for others."""
    layout = compressed_kind(pattern.format)
    if layout is None:
        return None
    pos, crd, batches = pattern.pos[layout[1] + 1], pattern.crd[layout[1] + 1], pattern.shape[: layout[1]]
    assert pos is not None and crd is not None
    pointers = _split_pointers(pos, math.prod(batches), crd.numel()) if batches else pos
    return None if pointers is None else (pointers.view(*batches, -1), crd.view(*batches, -1))


def _split_pointers(pos: torch.Tensor, batches: int, entries: int) -> torch.Tensor | None:
    """Split the pointers by batch; None where numbers of entries differ, which torch refuses."""
    if batches == 0 or entries % batches:
        return None
    rows = (pos.numel() - 1) // batches
    each = entries // batches
    begins = torch.arange(batches + 1, dtype=pos.dtype, device=pos.device) * each
    if rows == 0 or not torch.equal(pos[::rows], begins):
        return None
    split = torch.cat([pos[:-1].view(batches, rows), pos[rows::rows].unsqueeze(1)], 1)
    return split - begins[:-1].unsqueeze(1)


@functools.cache
def silence_beta_warning() -> None:
    """Trigger and hide torch's warning, once a process, that its compressed layouts are in beta."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        empty = torch.zeros(0, device=HOST)
        torch.sparse_csr_tensor(torch.zeros(1, dtype=torch.int64, device=HOST), empty.long(), empty, (0, 0))


# SciPy -----------------------------------------------------------------------------------------------


@suggests_keywords
def from_scipy(m: Any, format: str | Format | None = None) -> SparseTensor | torch.Tensor:
    """Convert a SciPy sparse array or matrix to a sparse tensor.

    Args:
        m: the array, in any SciPy format.
        format: the storage format; without it, CSR, CSC and BSR are kept and others become ``coo``.

    Returns:
        A ``SparseTensor``, which shares memory with ``m`` where the format is kept.

    Raises:
        OperandError: ``m`` is not a SciPy sparse array.
        FormatError: ``format`` does not exist or does not match the shape.

    Example:

        >>> import scipy.sparse, scorch
        >>> scorch.from_scipy(scipy.sparse.eye_array(3, format="csr")).format
        Format('csr')
    """
    if not optional_module("scipy.sparse", "SciPy").issparse(m):
        raise OperandError(
            f"from_scipy expected a SciPy sparse array, but got {kind_of(m)}; {sparse_advice_on(m)}"
        )
    if m.format in LAYOUTS and m.ndim == 2:
        entries = int(m.indptr[-1])  # SciPy lets the arrays be longer than what they hold
        data = from_numpy("the data of the SciPy array", m.data[:entries])
        return from_compressed(m.format, m.indptr, m.indices[:entries], data, m.shape, format)
    if format is None and m.format == "csr":
        format = "csr"  # a vector
    listed = m.tocoo()
    coordinates = listed.coords if hasattr(listed, "coords") else (listed.row, listed.col)
    data = from_numpy("the data of the SciPy array", listed.data)
    rows = [from_numpy("coordinates", array) for array in coordinates]
    return from_coordinates(rows, data, m.shape, format, name="coords")


def to_scipy(S: SparseTensor) -> scipy.sparse.sparray:
    """Convert to a SciPy sparse array, in CSR, CSC or BSR if that is the format, otherwise in COO.

    Index arrays are copied. Values share memory unless there are explicit zeros, since SciPy's
    ``eliminate_zeros`` would move them in place. Arrays with more than two dimensions need SciPy 1.15.

    Returns:
        A SciPy sparse array.

    Raises:
        UnsupportedError: SciPy is not installed.

    Example:

        >>> import torch, scorch
        >>> scorch.eye(3, format="csr").to_scipy().format
        'csr'
    """
    sparse = optional_module("scipy.sparse", "SciPy")
    storage, shape = S.storage, S.storage.pattern.shape
    if not shape:
        raise ShapeError(
            "SciPy sparse arrays have at least one dimension, but this tensor is a scalar; use .item()"
        )
    if storage.values.dtype in (torch.bfloat16, torch.float16):
        name = str(storage.values.dtype).removeprefix("torch.")
        raise DtypeError(f"SciPy sparse arrays do not support {name}; convert with .float() first")
    kind = scipy_kind(storage.pattern)
    if kind is None:
        storage = stored_as(storage, as_format("coo", len(shape)))
        crd = tuple(own(array).numpy() for array in storage.pattern.crd if array is not None)
        try:
            matrix = sparse.coo_array((storage.values.detach().numpy(), crd), shape=shape)
        except (TypeError, ValueError):
            raise ShapeError(
                f"sparse arrays of this SciPy version are 1-D or 2-D, but this tensor has shape {shape}; "
                "use .to_torch() or reduce it first"
            ) from None
        matrix.has_canonical_format = True
        return matrix
    arrays = compressed_arrays(storage.pattern)
    assert arrays is not None
    blocks = [block for _, block in storage.pattern.format.blocks]
    data = _shareable(storage.values.detach(), math.prod(blocks)).numpy().reshape(-1, *blocks)
    make = {"csr": sparse.csr_array, "csc": sparse.csc_array, "bsr": sparse.bsr_array}[kind]
    matrix = make((data, own(arrays[1]).numpy(), own(arrays[0]).numpy()), shape=shape)
    matrix.has_sorted_indices = True
    return matrix


def is_scipy(value: object) -> bool:
    """Whether ``value`` is one of SciPy's sparse arrays or matrices, without importing SciPy."""
    module = sys.modules.get("scipy.sparse")
    return module is not None and bool(module.issparse(value))


def scipy_kind(pattern: Pattern) -> str | None:
    """Return the compressed format of SciPy that a pattern is: csr, csc, bsr or none."""
    layout = compressed_kind(pattern.format)
    if layout is None or layout[0] == "bsc" or len(pattern.shape) != 2:
        return None
    has_full_blocks = not any(pattern.shape[dim] % block for dim, block in pattern.format.blocks)
    return layout[0] if has_full_blocks else None


def _shareable(values: torch.Tensor, block: int) -> torch.Tensor:
    """Copy values that have a block of zeros, since SciPy's ``eliminate_zeros`` would move the others."""
    zeros = values == 0
    has_zeros = bool(zeros.any()) if block == 1 else bool(zeros.view(-1, block).all(1).any())
    return values.clone() if has_zeros else values

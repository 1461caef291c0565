"""Sparse tensors as samples: datasets of their rows, and how data loaders collate them.

A data loader fetches a batch sample by sample and stacks the samples, or fetches all at once
(``__getitems__``). For rows of a sparse matrix the second is one gather, many times faster than the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, default_collate, get_worker_info

from scorch._src.devices import HOST
from scorch._src.formats import as_format
from scorch._src.io.shared_memory import pack_shared
from scorch._src.name_hints import suggests_keywords
from scorch._src.tensor.create.check import advice_on, from_numpy, is_path, sparse_advice_on
from scorch._src.tensor.create.construct import from_torch
from scorch._src.tensor.interop.torch_layouts import from_scipy, is_scipy
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import collate_functions
from scorch.errors import OperandError, ShapeError, kind_of


class Sample(tuple[Any, ...]):
    """One row of each tensor of a dataset."""

    __slots__ = ()


class Batch(Sequence[Any]):
    """Samples that were gathered together, in ``parts``.

    torch's ``default_collate`` takes them as they are; any other function finds a list of samples.
    """

    def __init__(self, parts: Sequence[Any], in_tuples: bool) -> None:
        self.parts = list(parts)
        self.in_tuples = in_tuples

    def __len__(self) -> int:
        return len(self.parts[0])

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} is out of range for a batch of {len(self)} samples")
        return Sample(part[index] for part in self.parts) if self.in_tuples else self.parts[0][index]


class SparseDataset(Dataset[Any]):
    """A dataset of the rows of sparse matrices, with labels and other tensors.

    Like ``torch.utils.data.TensorDataset``, but a ``DataLoader`` fetches each batch with a single gather.
    Matrices are converted to CSR, and batches are CSR. A ``MemmapSparseDataset``, whose matrix stays on
    disk, is used as it is.

    Args:
        tensors: tensors, SciPy sparse arrays or datasets with the same number of rows.

    Raises:
        ShapeError: the numbers of rows differ.

    Example:

        >>> import scorch, torch
        >>> from scorch.utils.data import DataLoader, SparseDataset
        >>> loader = DataLoader(SparseDataset(scorch.eye(6, format="csr"), torch.arange(6)), batch_size=4)
        >>> [(rows.shape[0], rows.nnz, labels.tolist()) for rows, labels in loader]
        [(4, 4, [0, 1, 2, 3]), (2, 2, [4, 5])]
    """

    @suggests_keywords
    def __init__(self, *tensors: Any) -> None:
        self.tensors = tuple(_as_row_tensor(tensor) for tensor in tensors)
        if not self.tensors:
            raise OperandError("a dataset needs a tensor: SparseDataset(S, labels)")
        sizes = [tuple(tensor.shape) for tensor in self.tensors]
        if not all(size and size[0] == sizes[0][0] for size in sizes):
            raise ShapeError(
                "tensors of a dataset must have the same number of rows, but got shapes "
                f"{', '.join(map(str, sizes))}"
            )

    def __len__(self) -> int:
        return int(self.tensors[0].shape[0])

    def __getitem__(self, index: Any) -> Sample:
        """One sample for a number; for a slice or a list the rows of each tensor."""
        return Sample(tensor[index] for tensor in self.tensors)

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """A batch for a data loader: one gather from each tensor."""
        rows = torch.tensor(list(indices), dtype=torch.int64, device=HOST)
        return Batch([tensor[rows] for tensor in self.tensors], in_tuples=True)


def _as_row_tensor(tensor: Any) -> Any:
    """Convert a tensor so that its rows are found without a search."""
    if is_scipy(tensor):
        tensor = from_scipy(tensor)
    elif isinstance(tensor, np.ndarray):
        tensor = from_numpy("a tensor of a dataset", tensor)
    elif isinstance(tensor, torch.Tensor) and tensor.layout != torch.strided:
        tensor = from_torch(tensor)
    if isinstance(tensor, SparseTensor):
        has_row_index = tensor.dim() != 2 or tensor.format == as_format("csr", 2)
        return tensor if has_row_index else tensor.to_format("csr")
    if isinstance(tensor, torch.Tensor) or (hasattr(tensor, "shape") and hasattr(tensor, "__getitems__")):
        return tensor
    advice = sparse_advice_on(tensor) if is_path(tensor) else advice_on(tensor)
    raise OperandError(
        f"SparseDataset expected tensors or MemmapSparseDatasets, but got {kind_of(tensor)}; {advice}"
    )


# batches ---------------------------------------------------------------------------------------------


def _collate_tensors(samples: Sequence[torch.Tensor], **_: Any) -> Any:
    """Collate sparse samples, in the process of a worker too."""
    return _share_from_worker(samples.parts[0] if isinstance(samples, Batch) else torch.stack(list(samples)))


def _collate_samples(samples: Sequence[Sample], **_: Any) -> list[Any]:
    """Collate tuples, unless the rows are gathered already."""
    if isinstance(samples, Batch):
        return [_share_from_worker(part) for part in samples.parts]
    return [default_collate(list(parts)) for parts in zip(*samples, strict=True)]


def _share_from_worker(batch: Any) -> Any:
    """Move a batch of a worker to shared memory, which the process of the loader gets as it is."""
    is_packed = get_worker_info() is not None and isinstance(batch, SparseTensor)
    return pack_shared(batch) if is_packed else batch


collate_functions[SparseTensor] = _collate_tensors
collate_functions[Sample] = _collate_samples


SparseRows = SparseDataset  # as files name it that version 0.1 pickled

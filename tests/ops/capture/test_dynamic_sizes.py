"""Sizes that are computed of symbolic ones, and numbers of entries that change, in captured graphs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import scorch

CALLS: dict[str, Callable[..., torch.Tensor]] = {
    "reshape": lambda A: A.reshape(-1),
    "square": lambda A: (A @ A.T).flatten() * 2,
    "rows": lambda A: A.unsqueeze(0).flatten(0, 1),
    "twice": lambda A: torch.cat([A.flatten(), A.flatten()]),
    "sum": lambda A: A.reshape(-1).sum(),
}


@pytest.mark.whole
@pytest.mark.parametrize("name", CALLS)
def test_graphs_compute_sizes_of_symbolic_ones(name: str) -> None:
    """Products of sizes, such as that of ``reshape(-1)``, which PyTorch does not find out by itself."""
    call = CALLS[name]
    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows, columns, entries in ((7, 5, 9), (9, 9, 30), (6, 11, 12)):
        places = torch.stack([torch.randint(rows, (entries,)), torch.randint(columns, (entries,))])
        A = scorch.sparse_coo_tensor(places, torch.rand(entries), (rows, columns)).to_format("csr")
        found, wanted = compiled(A), call(A.to_dense())
        found = found.to_dense() if isinstance(found, scorch.SparseTensor) else found
        torch.testing.assert_close(found, wanted)

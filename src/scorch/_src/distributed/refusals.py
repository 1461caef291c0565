"""What to do instead of calls that have no rule for sharded tensors, by their names."""

from __future__ import annotations

import torch

from scorch.errors import MissingAttributeError, UnsupportedError

_ROWS = "A.local has the entries of this process (own rows and columns first, then the ghosts)"
_GATHER = "A.gather() brings the whole tensor to every process"
_MOVE = "move the tensor before it is sharded: shard(S.to(device)), or load_rows(..., device=...)"
_ENTRIES = (
    "A.entries() has the coordinates over all processes and the values of this process's entries, "
    "A.local.values() the values alone"
)
_COUNT = "A.local.nnz counts the entries of this process; A.count_entries() asks all processes, which call it"
_LEAF = "A.local is the leaf of autograd: call it there"

HINTS = {
    **dict.fromkeys(
        ("to_dense", "numpy", "numpy.asarray(A)", "tolist", "item", "to_torch", "to_scipy", "to_networkx"),
        _GATHER,
    ),
    **dict.fromkeys(("values", "indices", "crow_indices", "col_indices", "coo", "csr", "csc"), _ENTRIES),
    **dict.fromkeys(("to(device)", "pin_memory"), _MOVE),
    **dict.fromkeys(("nnz", "density", "nbytes", "_nnz"), _COUNT),
    **dict.fromkeys(("register_hook", "retain_grad", "data"), _LEAF),
    "backward": "backward is for numbers, such as scorch.distributed.mean(loss_of_rows)",
    "A[...]": (
        f"rows may be with other processes. {_ROWS}; scorch.distributed.repartition moves rows; {_GATHER}"
    ),
    "A[...] = x": "sharded tensors are not written to; build another with A.with_local(...)",
    "iteration": f"{_ROWS}; {_GATHER}",
    "cumsum": f"sums that go on from row to row cross processes; {_GATHER}",
    "reshape": "rows stay rows: write the statement with scorch.distributed.evaluate",
    "permute": "A.T is the transposed matrix: write others with scorch.distributed.evaluate",
}


def refusal(name: str) -> UnsupportedError:
    """Return the error of a function or method that has no rule, with what to do instead."""
    return UnsupportedError(f"{name} has no rule for sharded tensors. {_advice(name)}")


def missing_attribute(name: str) -> MissingAttributeError:
    """Return the error of an attribute that sharded tensors do not have, with what to do instead."""
    return MissingAttributeError(f"sharded tensors have no attribute {name!r}. {_advice(name)}")


def _advice(name: str) -> str:
    advice = _MOVE if _is_device(name) else HINTS.get(name)
    if advice is None and name.endswith("_") and not name.endswith("__"):
        known = hasattr(torch.Tensor, name[:-1])
        advice = "sharded tensors are not written to" + (f": A = A.{name[:-1]}(...)" if known else "")
    if advice is None:
        advice = f"Apply it to the rows of this process (A.local), or gather the tensor first: {_GATHER}"
    return advice if advice.startswith("A.") else advice[0].upper() + advice[1:]


def _is_device(name: str) -> bool:
    """Check whether a method is named as a kind of device is, and moves tensors there."""
    try:
        return torch.device(name).type == name
    except RuntimeError:
        return False


def dense_result(name: str, why: str) -> UnsupportedError:
    """Return the error of a call whose result differs from zero where the tensor has no entries."""
    return UnsupportedError(f"{name}: {why}, so that the result would be dense; sharded tensors stay sparse")

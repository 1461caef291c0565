"""Users may call indices and tensors what they like, also what generated code calls its own variables."""

from __future__ import annotations

import pytest
import torch

import scorch
from scorch import Format, SparseTensor
from scorch._src.compiler.names import safe_index, safe_tensor
from scorch._src.engine.execute import from_dense

DENSE = torch.tensor([[1.0, 0.0, 2.0], [0.0, 0.0, -1.0], [3.0, 0.0, 0.0]])
# An accumulator called acc and a workspace called w were once taken for the user's.
INDICES = [
    "acc",
    "found",
    "chunk",
    "span",
    "threads",
    "at1",
    "w_key",
    "i_size",
    "pA1",
    "yc1",
    "int",
    "e",
    "r",
]
TENSORS = ["w", "entry", "chunk", "part", "sorted", "order", "A_2_", "T1", "A_t", "y_stored"]


def stored(form: str) -> SparseTensor:
    return SparseTensor(from_dense(DENSE, Format(form)))


def dense(result: torch.Tensor) -> torch.Tensor:
    return result.to_dense() if isinstance(result, SparseTensor) else result


@pytest.mark.sampled(3)
@pytest.mark.parametrize("form", ["csr", "coo", "bsr(2,2)"])
@pytest.mark.parametrize("result", ["csr", "coo", "dense"])
@pytest.mark.parametrize("name", INDICES)
def test_index_with_a_name_of_the_kernel(name: str, form: str, result: str) -> None:
    A, B = stored(form), stored("csr")
    for text in (f"y[i,j] = A[i,{name}] * B[{name},j]", f"y[i,{name}] = A[i,j] * B[j,{name}]"):
        assert torch.equal(dense(scorch.evaluate(text, A=A, B=B, format=result)), DENSE @ DENSE), text
    assert torch.equal(dense(scorch.evaluate(f"y[i] = A[i,{name}]", A=A)), DENSE.sum(1))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("result", ["csr", "coo", "dcsr"])
@pytest.mark.parametrize("name", TENSORS)
def test_tensor_with_a_name_of_the_kernel(name: str, result: str) -> None:
    product = scorch.evaluate(
        f"y[i,j] = {name}[i,k] * A[k,j]", format=result, **{name: stored("csr"), "A": stored("csr")}
    )
    assert torch.equal(dense(product), DENSE @ DENSE)
    product = scorch.evaluate(
        f"{name}[i,j] = B[i,k] * A[k,j]", format=result, B=stored("csr"), A=stored("csr")
    )
    assert torch.equal(dense(product), DENSE @ DENSE)
    text = f"y[i,j] = A[i,j] + {name}[i,j] + A[j,i]"
    total = scorch.evaluate(text, format=result, **{name: stored("csc"), "A": stored("csr")})
    assert torch.equal(dense(total), 2 * DENSE + DENSE.T)


def test_temporaries_of_a_reduction_do_not_hide_operands() -> None:
    tensors = {"y_stored": stored("csr"), "y_number": stored("csc")}
    found = scorch.evaluate("y[i] = max(j, y_stored[i,j] + y_number[i,j])", **tensors)
    assert torch.equal(dense(found), (2 * DENSE).amax(1))


def test_names_stay_different_and_mostly_the_same() -> None:
    for safe, names in (
        (safe_index, [*INDICES, "i", "k_1", "acc_", "row"]),
        (safe_tensor, [*TENSORS, "A", "w_"]),
    ):
        assert len({safe(name) for name in names}) == len(names)
    assert [safe_index(name) for name in ("i", "row", "k_1")] == ["i", "row", "k_1"]
    assert [safe_tensor(name) for name in ("A", "weight", "A1")] == ["A", "weight", "A1"]


def test_indices_called_like_the_loops_of_a_split() -> None:
    dense = torch.arange(12.0).reshape(3, 4)
    other = torch.arange(8.0).reshape(4, 2)
    A = scorch.from_torch(dense, format="bsr(2,2)")
    for name in ("i_out", "i_in"):
        found = scorch.evaluate(f"y[i,j] = A[i,{name}] * B[{name},j]", A=A, B=other)
        torch.testing.assert_close(found, dense @ other)

"""Reductions that do not go through torch's dispatcher are those of dense tensors, and import nothing."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import scorch
from fork_server import run_python

DENSE = torch.tensor([[1.0, 0.0, -2.0], [0.0, 0.0, 0.0], [4.0, -5.0, 3.0]], dtype=torch.float64)
CALLS = {
    "sum": lambda t: t.sum(),
    "sum by name": lambda t: torch.sum(t, dim=1),
    "mean": lambda t: t.mean(),
    "mean of rows": lambda t: t.mean(1, keepdim=True),
    "mean of two": lambda t: torch.mean(t, (0, 1)),
    "axis": lambda t: torch.mean(t, axis=0),
    "mean in another dtype": lambda t: t.mean(0, dtype=torch.float32),
    "amax": lambda t: t.amax(),
    "amax of columns": lambda t: torch.amax(t, 0, True),
    "amin": lambda t: t.amin((0, 1)),
    "max": lambda t: t.max(),
    "max of rows": lambda t: t.max(1).values,
    "places of max": lambda t: torch.max(t, dim=1, keepdim=True).indices,
    "max of two": lambda t: torch.max(t, torch.ones(3, 3, dtype=torch.float64)),
    "min": lambda t: t.min(0)[0],
    "std": lambda t: t.std(),
    "std of rows": lambda t: t.std(1),
    "biased": lambda t: t.std(1, False),
    "biased as a whole": lambda t: t.std(False),
    "corrected": lambda t: t.var(1, correction=0, keepdim=True),
    "var": lambda t: torch.var(t, dim=0),
    "norm": lambda t: t.norm(),
    "norm of rows": lambda t: t.norm(dim=1),
    "1-norm": lambda t: torch.norm(t, 1, 0, True),
    "infinite norm": lambda t: t.norm(float("inf")),
    "norm of all": lambda t: t.norm(dim=(0, 1)),
    "nuclear": lambda t: t.norm("nuc"),
    "argmax": lambda t: t.argmax(),
    "argmax of rows": lambda t: torch.argmax(t, dim=1, keepdim=True),
    "argmin": lambda t: t.argmin(-1),
    "cumsum": lambda t: t.cumsum(1),
    "cumsum by name": lambda t: torch.cumsum(t, dim=0),
    "softmax": lambda t: t.softmax(1),
    "function softmax": lambda t: torch.nn.functional.softmax(t, dim=0),
    "log_softmax": lambda t: torch.log_softmax(t, -1),
    "softmax in another dtype": lambda t: t.softmax(1, dtype=torch.float32),
    "any": lambda t: t.any(),
    "any of rows": lambda t: t.any(1, True),
    "all": lambda t: torch.all(t),
    "all of two": lambda t: t.all((0, 1)),
    "any of nothing": lambda t: t.any(()),
    "all of nothing, kept": lambda t: torch.all(t, (), True),
    "var_mean": lambda t: torch.stack(torch.var_mean(t, 1)),
    "std_mean of all": lambda t: torch.stack(torch.std_mean(t, False)),
    "logsumexp": lambda t: t.logsumexp(1),
    "product as whole numbers": lambda t: (t / 2).prod(1, dtype=torch.int32),
    "largest beside no number": lambda t: torch.where(t == 3, torch.nan, t.double()).argmax(1),
}
WRONG = [
    lambda t: t.mean(5),
    lambda t: t.amax((0, 0)),
    lambda t: t.argmax((0, 1)),
    lambda t: t.cumsum(),
    lambda t: t.cumsum(3),
    lambda t: t.softmax(2),
    lambda t: t.any("x"),
    lambda t: t.std(1, 2, 3, 4),
    lambda t: t.mean(nonsense=1),
    lambda t: t.mean(0, dim=0),
    lambda t: t.long().mean(),
]


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr(2,2)"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64])
@pytest.mark.parametrize("name", CALLS)
def test_a_reduction_is_that_of_dense_tensors(name, dtype, form):
    dense = DENSE.to(dtype)
    S = scorch.from_torch(dense, format=form)
    try:
        wanted = CALLS[name](dense)
    except RuntimeError as refused:
        with pytest.raises(type(refused)):
            CALLS[name](S)
        return
    found = CALLS[name](S)
    assert found.dtype == wanted.dtype and found.shape == wanted.shape
    torch.testing.assert_close(found.to_dense() if found.is_sparse else found, wanted, equal_nan=True)


@pytest.mark.parametrize("call", WRONG)
def test_wrong_calls_raise_what_dense_tensors_raise(call):
    with pytest.raises((RuntimeError, TypeError, IndexError, ValueError)) as dense:
        call(DENSE)
    with pytest.raises(dense.type):
        call(scorch.from_torch(DENSE, format="csr"))


def test_usual_reductions_do_not_import_torchs_compilers():
    lines = ["import sys, torch, scorch", "S = scorch.from_torch(torch.eye(4), format='csr')"]
    lines += ["S.sum(), S.sum(1), S.mean(), S.mean(1), S.amax(1), S.amin(), S.std(), S.var(1), S.norm()"]
    lines += ["S.argmax(1), S.cumsum(1), S.softmax(1), S.any(), S.all(1), S.max(1), S.min(), S @ S, S + S"]
    lines += ["sys.exit('sympy' in sys.modules)"]
    done = run_python(["-c", "\n".join(lines)], has="torch")
    assert done.returncode == 0, done.stderr


def test_sums_are_not_cast():
    S = scorch.from_torch(DENSE.float(), format="csr")
    with torch.autocast(torch.get_default_device().type, dtype=torch.bfloat16):
        assert S.sum(1).dtype == S.mean(1).dtype == torch.float32


def test_a_call_that_was_made_before_looks_at_its_numbers_again():
    S, other = scorch.from_torch(DENSE, format="csr"), torch.ones(3, 3, dtype=torch.float64)
    for number in (1.0, 2.0, torch.inf, torch.nan, 3.0):
        other[1, 1] = number
        found = S * other
        torch.testing.assert_close(found.to_dense(), DENSE * other, equal_nan=True)
        changed = S * 2 if number == 2 else S
        torch.testing.assert_close(changed.sum(1), changed.to_dense().sum(1))
    torch.testing.assert_close((S * other[:1]).to_dense(), DENSE * other[:1])


@pytest.mark.parametrize("form", ["csr", "coo"])
def test_methods_whose_operators_take_their_arguments_in_another_order(form):
    S, other = scorch.from_torch(DENSE, format=form), torch.full((3, 3), 7.0, dtype=torch.float64)
    condition = DENSE > 0
    for call in (
        lambda t: t.where(condition, other),
        lambda t: t.where(condition, 2.0),
        lambda t: t.abs().polygamma(1),
        lambda t: t.repeat_interleave(2),
        lambda t: t.repeat_interleave(torch.tensor([1, 2, 0]), 0),
    ):
        found, wanted = call(S), call(DENSE)
        torch.testing.assert_close(found.to_dense(), wanted)


@pytest.mark.skipif(not hasattr(torch.Tensor, "hash_tensor"), reason="this torch has no hash_tensor")
def test_a_method_whose_list_of_dimensions_is_left_out():
    assert scorch.from_torch(DENSE, format="csr").hash_tensor() == DENSE.hash_tensor()


class _Seen(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_modes_of_torch_see_functions_of_few_values() -> None:
    S = scorch.from_torch(torch.tensor([[0.0, -2.0], [3.0, 0.0]]), format="csr")
    torch.relu(S)
    with _Seen() as seen:
        torch.relu(S)
    assert "relu" in seen.names


def test_arrays_of_a_small_result_outlive_one_another() -> None:
    S = scorch.from_torch(DENSE, format="csr")
    kept = []
    for _ in range(50):
        total = S + S
        pos, crd = total.crow_indices(), total.col_indices()
        kept.append((pos, crd, total.values())[len(kept) % 3])
        del total, pos, crd
    for place, wanted in enumerate((S.crow_indices(), S.col_indices(), 2 * S.values())):
        assert all(torch.equal(array, wanted) for array in kept[place::3])

"""Calls that dense torch refuses: sparse tensors refuse them with an error of the same type, in our words."""

from __future__ import annotations

import re
import resource

import pytest
import torch
import torch.nn.functional as F

import scorch
from ops.calls_of_torch import Call
from ops.wrong_calls import FAMILIES, IN_PLACE
from scorch.errors import DeviceError, ScorchError

pytestmark = pytest.mark.filterwarnings("ignore:Using a target size:UserWarning")
FORMATS = ["csr", "csc", "coo", "bsr(2,2)", "sd"]
INSIDE = r"aten|\bmeta\b(?!,)|\bcrd\b|__torch|Traceback|FakeTensor|sparse_coo\)|Facebook"
CALLS = [(family, name) for family, calls in FAMILIES.items() for name in calls]


def matrix() -> torch.Tensor:
    dense = torch.zeros(4, 6)
    dense[0, 1], dense[2, 3], dense[3, 5] = 1.0, -2.0, 3.0
    return dense


def refused(call: Call, S: torch.Tensor, wanted: type[Exception]) -> str:
    """The words in which ``call`` is refused."""
    with pytest.raises(wanted) as caught:
        call(S)
    assert isinstance(caught.value, ScorchError), f"{type(caught.value)}: {caught.value}"
    message = str(caught.value)
    assert not re.search(INSIDE, message), message
    assert "\n" not in message
    return message


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(("family", "name"), CALLS)
def test_wrong_calls(family, name, form):
    call, dense = FAMILIES[family][name], matrix()
    S = scorch.from_torch(dense, format=form)
    with pytest.raises(Exception) as wanted:
        call(dense.clone())
    refused(call, S, type(wanted.value))
    assert torch.equal(S.to_dense(), dense), "what fails changes nothing"


@pytest.mark.parametrize("name", IN_PLACE)
def test_a_view_is_unchanged_too(name):
    dense = matrix()
    S = scorch.from_torch(torch.cat([dense, dense]), format="csr")
    part = S[4:]
    with pytest.raises(ScorchError):
        IN_PLACE[name](part)
    assert torch.equal(part.to_dense(), dense)
    assert torch.equal(S.to_dense(), torch.cat([dense, dense]))


SAID = [
    (lambda x: x + torch.ones(5), "add: ... (6) ... (5) ... csr (4, 6) float32, dense (5,) float32"),
    (lambda x: x.sum(2), "sum: ... [-2, 1] ... got 2 ... csr (4, 6)"),
    (lambda x: torch.stack([x, x.T]), "stack: ... [4, 6] ... [6, 4]"),
    (lambda x: x @ torch.ones(5, 2), "matmul: ... (4x6 and 5x2) ... csr (4, 6) ... dense (5, 2)"),
    (lambda x: x[4], "S[...]: index 4 is out of bounds for dimension 0 with size 4"),
    (lambda x: x.__setitem__(0, torch.ones(5)), "S[...] = value: ... 5 ... csr (4, 6)"),
    (lambda x: F.cross_entropy(x, torch.tensor([0])), "cross_entropy: ... (4) ... (1) ... csr (4, 6)"),
    (lambda x: x.long().mean(), "mean: ... dtype ... Long"),
    (lambda x: x.rot90(1, [0, 0]), "rot90: expected ... csr (4, 6)"),  # not of the overload rot90.default
    (lambda x: F.scaled_dot_product_attention(x, x.double(), x), "float instead; convert ... csr (4, 6)"),
]


@pytest.mark.parametrize(("call", "words"), SAID)
def test_words(call, words):
    message = refused(call, scorch.from_torch(matrix(), format="csr"), Exception)
    place = 0
    for part in re.split(r" \.\.\. ", words):
        found = message.find(part, place)
        assert found >= 0, f"{part!r} is not in {message!r}"
        place = found + len(part)


ELSEWHERE = {
    "sum": lambda x, other: x + other,
    "sum with the other first": lambda x, other: other + x,
    "product": lambda x, other: x * other,
    "quotient": lambda x, other: x / other,
    "matmul": lambda x, other: x @ other.T,
    "matmul with the other first": lambda x, other: other.T @ x,
    "atan2": torch.atan2,
    "cat": lambda x, other: torch.cat([x, other]),
    "where": lambda x, other: torch.where(x > 0, x, other),
    "index": lambda x, other: x[other[0].long()],
    "index_select": lambda x, other: x.index_select(0, other[0].long()),
    "linear": F.linear,
    "mse_loss": F.mse_loss,
    "add_": lambda x, other: x.add_(other),
    "copy_": lambda x, other: x.copy_(other),
    "a row set": lambda x, other: x.__setitem__(0, other[0]),
    "einsum": lambda x, other: torch.einsum("ij,ij->i", x, other),
    "out": lambda x, other: torch.add(x, x, out=other),
}


@pytest.mark.parametrize("form", ["csr", "coo"])
@pytest.mark.parametrize("name", ELSEWHERE)
def test_tensors_on_another_device(name, form):
    dense = matrix()
    S = scorch.from_torch(dense, format=form)
    cure = r"on cpu and another on meta; create the other on cpu"
    with pytest.raises(DeviceError, match=cure):
        ELSEWHERE[name](S, torch.ones(4, 6, device="meta"))
    assert torch.equal(S.to_dense(), dense)


# before anything is allocated ------------------------------------------------------------------------

N = 200_000
HUGE: dict[str, Call] = {
    "sum": lambda x: x + torch.ones(5),
    "sum of two": lambda x: x + x[:7],
    "product": lambda x: x * torch.ones(5),
    "exp of a wrong sum": lambda x: torch.atan2(x, torch.ones(5)),
    "sum over nothing": lambda x: x.sum(2),
    "softmax over nothing": lambda x: torch.softmax(x, 2),
    "sort over nothing": lambda x: x.sort(3),
    "median over nothing": lambda x: x.median(4),
    "reshape": lambda x: x.reshape(7, 7),
    "cat": lambda x: torch.cat([x, x[:, :5]]),
    "stack": lambda x: torch.stack([x, x[:5]]),
    "a row": lambda x: x[N],
    "rows": lambda x: x[[0, N]],
    "a mask": lambda x: x[torch.ones(3, dtype=torch.bool)],
    "pairs": lambda x: x[torch.tensor([0, 1]), torch.tensor([0, 1, 2])],
    "gather": lambda x: x.gather(1, torch.tensor([[N]])),
    "matmul": lambda x: x @ torch.ones(5),
    "matmul of other dtypes": lambda x: x @ torch.ones(N, 1, dtype=torch.float64),
    "linear": lambda x: F.linear(x, torch.ones(3, 5)),
    "mse_loss": lambda x: F.mse_loss(x, torch.ones(3, 6)),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.tensor([0, 1, 2])),
    "inverse": lambda x: torch.linalg.inv(x[:5]),
    "add_": lambda x: x.add_(torch.ones(5)),
    "a row set": lambda x: x.__setitem__(0, torch.ones(5)),
    "clamp": lambda x: x.clamp(),
}


@pytest.mark.parametrize("name", HUGE)
def test_wrong_calls_are_refused_before_anything_is_allocated(name):
    crd = torch.arange(0, N, 100).repeat(2, 1)
    S = scorch.sparse_coo_tensor(crd, torch.ones(crd.shape[1]), (N, N), format="csr")
    with open("/proc/self/statm") as facts:
        now = int(facts.read().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + 10**9, before[1]))
    try:
        message = refused(HUGE[name], S, (RuntimeError, IndexError, ValueError))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert "budget" not in message, "the call is wrong, whatever its size"

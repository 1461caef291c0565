"""Sparse tensors as samples: what data loaders give is what they give of the dense tensors."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    default_collate,
    random_split,
)

import scorch
from on_device import is_on_device
from properties.drawing import DTYPES, random_dense
from scorch import Format, SparseTensor
from scorch._src.io.shared_memory import find_pieces
from scorch.errors import IndexRangeError, OperandError, ShapeError
from scorch.utils.data import SparseDataset
from torch_has import needs_builtins
from validity import check_storage

DENSE = random_dense((11, 7), torch.float64, 0.3, 3)
DENSE[4] = 0
LABELS = torch.arange(11)
NAMES = ["csr", "csc", "coo", "dcsr", "bsr(2,3)"]


def plain(found: object) -> object:
    """Batches with dense tensors in place of sparse ones."""
    if isinstance(found, SparseTensor):
        check_storage(found)
        return found.to_dense()
    if isinstance(found, dict):
        return {name: plain(value) for name, value in found.items()}
    return [plain(value) for value in found] if isinstance(found, list | tuple) else found


def alike(found: object, wanted: object) -> bool:
    if isinstance(wanted, torch.Tensor):
        return found.dtype == wanted.dtype and torch.equal(found, wanted)
    if isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(alike(found[name], wanted[name]) for name in wanted)
    return len(found) == len(wanted) and all(alike(a, b) for a, b in zip(found, wanted, strict=True))


def batches(data: Dataset, **options: object) -> list[object]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "'pin_memory' argument is set")
        torch.manual_seed(5)
        return list(DataLoader(data, **options))


# collating -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_rows_become_a_matrix(name):
    S = scorch.from_torch(DENSE, name)
    picked = [3, 4, 0, 3]
    found = default_collate([S[row] for row in picked])
    check_storage(found)
    assert type(found) is SparseTensor and torch.equal(found.to_dense(), DENSE[picked])
    if name == "csr":
        assert found.format == Format("csr")


@given(st.data())
def test_stacks_of_rows_are_stacks_of_dense_rows(data):
    dtype = data.draw(st.sampled_from(DTYPES))
    size = data.draw(st.sampled_from([0, 1, 5]))
    count = data.draw(st.integers(1, 6))
    dense = [random_dense((size,), dtype, 0.4, seed) for seed in range(count)]
    form = data.draw(st.sampled_from(["s", "o"]))
    found = torch.stack([scorch.from_torch(row, form) for row in dense])
    check_storage(found)
    assert found.dtype == dtype and torch.equal(found.to_dense(), torch.stack(dense))


def test_stacks_of_unlike_rows():
    short, long = scorch.from_torch(DENSE[0], "s"), scorch.from_torch(DENSE[:, 0], "s")
    with pytest.raises(RuntimeError, match="equal size"):
        torch.stack([short, long])
    mixed = torch.stack([short, short.float(), DENSE[1]])
    assert torch.equal(plain(mixed), torch.stack([DENSE[0], DENSE[0].float().double(), DENSE[1]]))
    assert torch.equal(torch.stack([short, short], 1).to_dense(), torch.stack([DENSE[0], DENSE[0]], 1))


def test_samples_may_be_nested():
    S = scorch.from_torch(DENSE, "csr")
    made = [{"x": S[row], "pair": (row, [S[row, 1:4], DENSE[row]])} for row in (2, 4, 9)]
    wanted = [{"x": DENSE[row], "pair": (row, [DENSE[row, 1:4], DENSE[row]])} for row in (2, 4, 9)]
    assert alike(plain(default_collate(made)), default_collate(wanted))


# rows ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", [TensorDataset, SparseDataset])
def test_batches_are_those_of_dense_tensors(name, kind):
    data = kind(scorch.from_torch(DENSE, name), LABELS)
    wanted = TensorDataset(DENSE, LABELS)
    assert len(data) == len(wanted)
    drawn = [  # by torch on the host, which a default device does not take
        {"batch_size": 4, "shuffle": True, "drop_last": True},
        {"batch_size": 4, "pin_memory": True},
        {"batch_size": None, "sampler": BatchSampler(RandomSampler(range(11)), 4, False)},
    ]
    for options in (
        {"batch_size": 4},
        {"batch_size": 3, "sampler": SequentialSampler(range(11))},
        *(() if is_on_device() else drawn),
    ):
        found = batches(data, **options)
        assert alike(plain(found), batches(wanted, **options)), options
        assert all(type(batch) is list for batch in found)


@pytest.mark.cpu("workers give what lies in shared memory")
@pytest.mark.parametrize(("method", "workers"), [("fork", 2), ("spawn", 1)])
def test_workers(method, workers):
    data, wanted = SparseDataset(scorch.from_torch(DENSE, "csr"), LABELS), TensorDataset(DENSE, LABELS)
    options = {"batch_size": 4, "shuffle": True, "num_workers": workers, "multiprocessing_context": method}
    found = batches(data, pin_memory=True, **options)
    assert found[0][0].format == Format("csr")
    assert find_pieces(found[0][0].storage) is not None, "one piece of memory came from the worker"
    torch.manual_seed(5)
    assert alike(plain(found), list(DataLoader(wanted, batch_size=4, shuffle=True, num_workers=0)))


@pytest.mark.cpu("processes that fork cannot use a GPU")
def test_persistent_workers():
    loader = DataLoader(
        SparseDataset(scorch.from_torch(DENSE, "csr")),
        batch_size=4,
        num_workers=2,
        persistent_workers=True,
        multiprocessing_context="fork",
    )
    for _ in range(3):
        assert torch.equal(torch.cat([plain(rows) for (rows,) in loader]), DENSE)
    del loader


@needs_builtins
def test_a_batch_is_one_gather(monkeypatch):
    from scorch._src.storage import slices

    asked = []
    for module in ("index", "rows"):
        monkeypatch.setattr(
            f"scorch._src.ops.movement.{module}.select_rows",
            lambda s, rows, *more: asked.append(rows) or slices.select_rows(s, rows, *more),
        )
    data = SparseDataset(scorch.from_torch(DENSE, "csr"))
    batches(data, batch_size=6)
    assert [rows.tolist() for rows in asked] == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10]]


def test_parts_of_a_dataset():
    data, wanted = SparseDataset(scorch.from_torch(DENSE, "csr"), LABELS), TensorDataset(DENSE, LABELS)
    for pick in (
        lambda d: Subset(d, [7, 3, 4]),
        lambda d: Subset(Subset(d, [7, 3, 4, 1]), [0, 2]),
        lambda d: random_split(d, [0.7, 0.3], torch.Generator().manual_seed(1))[1],
        lambda d: ConcatDataset([d, Subset(d, [0, 1])]),
    ):
        assert alike(plain(batches(pick(data), batch_size=2)), batches(pick(wanted), batch_size=2))


def test_functions_that_collate_find_samples():
    data = SparseDataset(scorch.from_torch(DENSE, "csr"), LABELS)

    def collate(samples):
        assert len(samples) == len(list(samples)) == len(samples[:])
        return [(row.to_dense(), int(label)) for row, label in samples]

    found = [sample for batch in batches(data, batch_size=3, collate_fn=collate) for sample in batch]
    assert alike([row for row, _ in found], list(DENSE)) and [label for _, label in found] == LABELS.tolist()
    with pytest.raises(IndexError, match="index 2 is out of range for a batch of 2 samples"):
        data.__getitems__([3, 4])[2]


def test_one_sample_and_several():
    data = SparseDataset(scorch.from_torch(DENSE, "csr"), LABELS)
    row, label = data[-2]
    assert torch.equal(row.to_dense(), DENSE[-2]) and label == LABELS[-2]
    for index in ([1, 4, 2], slice(2, 9, 3), torch.tensor([0, 10])):
        rows, labels = data[index]
        assert torch.equal(rows.to_dense(), DENSE[index]) and torch.equal(labels, LABELS[index])
    with pytest.raises(IndexRangeError):
        data[11]
    with pytest.raises(IndexRangeError):
        data.__getitems__([0, 11])


@pytest.mark.cpu("matrices of SciPy are there")
def test_what_a_dataset_is_made_of():
    scipy = pytest.importorskip("scipy.sparse")
    cube = random_dense((11, 3, 4), torch.float32, 0.3, 2)
    data = SparseDataset(
        scipy.csc_array(DENSE.numpy()), DENSE.to_sparse(), np.arange(11), scorch.from_torch(cube, "csf")
    )
    (found, *_) = batches(data, batch_size=11)
    assert alike(plain(found), [DENSE, DENSE, LABELS, cube])
    assert data.tensors[0].format == data.tensors[1].format == Format("csr")
    with pytest.raises(ShapeError, match=r"the same number of rows, but got shapes \(11, 7\), \(10,\)"):
        SparseDataset(scorch.from_torch(DENSE, "csr"), LABELS[1:])
    with pytest.raises(ShapeError, match="the same number of rows"):
        SparseDataset(torch.tensor(1.0))
    with pytest.raises(OperandError, match="needs a tensor"):
        SparseDataset()
    with pytest.raises(OperandError, match="but got a list"):
        SparseDataset([1, 2])


@pytest.mark.cpu("torch draws batches on the host")
def test_training_on_batches_learns():
    torch.manual_seed(0)
    X = scorch.rand(200, 30, density=0.2, format="csr")
    truth = torch.randn(30, 1)
    model = torch.nn.Linear(30, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(60):
        for rows, target in DataLoader(SparseDataset(X, X @ truth), batch_size=20, shuffle=True):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(rows), target).backward()
            optimizer.step()
    assert torch.allclose(model.weight.T, truth, atol=1e-2)


def test_gradients_go_through_batches():
    S, dense = scorch.from_torch(DENSE, "csr").requires_grad_(), DENSE.clone().requires_grad_()
    weight = torch.arange(7.0, dtype=torch.float64)
    for tensor, kind in ((S, SparseDataset), (S, TensorDataset), (dense, TensorDataset)):
        tensor.grad = None
        for (rows,) in DataLoader(kind(tensor), batch_size=4):
            (rows @ weight).square().sum().backward()
        gradient = tensor.grad.to_dense()
        assert torch.allclose(gradient[DENSE != 0], (2 * torch.outer(DENSE @ weight, weight))[DENSE != 0])

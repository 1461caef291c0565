"""Views show later changes of the tensor, and what is written to them shows in the tensor."""

import gc
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import scorch

FORMATS = ["csr", "csc", "coo", "dcsr", "sd"]
DENSE = torch.tensor([[1.0, 0.0, 2.0], [0.0, 0.0, 3.0], [4.0, 5.0, 0.0]], dtype=torch.float64)
VIEWS = {
    "rows": lambda t: t[0:2],
    "row": lambda t: t[1],
    "columns": lambda t: t[:, 1:],
    "steps": lambda t: t[::2],
    "turned": lambda t: t.T,
    "diagonal": lambda t: t.diagonal(),
    "flat": lambda t: t.view(9),
    "part of a part": lambda t: t[0:2].T[1:],
    "second of a split": lambda t: t.split(2)[1],
    "unbound": lambda t: t.unbind(1)[2],
    "one more dimension": lambda t: t.unsqueeze(0),
    "whole": lambda t: t[:],
    "detached": lambda t: t.T.detach(),
    "wide": lambda t: t[:1].expand(2, 3),
}
CHANGES = {
    "element": lambda t: t.__setitem__((0, 1), 7.0),
    "row": lambda t: t.__setitem__(1, 5.0),
    "scaled": lambda t: t.mul_(2),
    "cleared": lambda t: t.zero_(),
    "through a view": lambda t: t[1:].mul_(3),
    "through the transpose": lambda t: t.T.__setitem__(0, 9.0),
    "copied": lambda t: t.copy_(torch.eye(3, dtype=torch.float64)),
}


def dense_of(t):
    return t.to_dense() if isinstance(t, scorch.SparseTensor) else t


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_shows_later_changes(form, view, change):
    S, D = scorch.from_torch(DENSE, format=form), DENSE.clone()
    V, W = VIEWS[view](S), VIEWS[view](D)
    kind = V.format
    CHANGES[change](S)
    CHANGES[change](D)
    assert torch.equal(V.to_dense(), W) and V.format == kind
    assert torch.equal(S.to_dense(), D)


@pytest.mark.parametrize(
    "read",
    [
        lambda t: t.sum(),
        lambda t: t @ torch.ones(3, dtype=torch.float64),
        lambda t: t + t,
        lambda t: t[0],
        lambda t: t.clone(),
        lambda t: torch.relu(t),
        lambda t: torch.cat([t, t]),
        lambda t: pickle.loads(pickle.dumps(t)),
    ],
)
def test_whatever_reads_a_view_sees_the_change(read):
    S, D = scorch.from_torch(DENSE, format="csr"), DENSE.clone()
    V, W = S[0:2], D[0:2]
    assert torch.equal(dense_of(read(V)), dense_of(read(W)))
    S[0, 1] = D[0, 1] = -7.0
    assert torch.equal(dense_of(read(V)), dense_of(read(W)))


def test_facts_of_a_view_are_those_of_now():
    S = scorch.from_torch(DENSE, format="csr")
    V = S[0:1]
    S[0, 1] = 5
    assert V.nnz == 3 and V.values().tolist() == [1.0, 5.0, 2.0] and V.col_indices().tolist() == [0, 1, 2]
    assert V.to_torch().to_dense().tolist() == V.cpu().to_scipy().toarray().tolist() == [[1.0, 5.0, 2.0]]


def test_results_of_a_view_are_no_views():
    S = scorch.from_torch(DENSE, format="csr")
    kept = [S[0:2].clone(), S[0:2].to_format("csr"), S[0:2] * 1, S[0:2].repeat(1, 1), S.T.to_format("coo")]
    before = [t.to_dense().clone() for t in kept]
    S.zero_()
    for t, was in zip(kept, before, strict=True):
        assert torch.equal(t.to_dense(), was)


def test_what_dense_tensors_copy_stays_a_copy():
    S, D = scorch.from_torch(DENSE, format="csr"), DENSE.clone()
    V, W = S.T.reshape(9), D.T.reshape(9)
    S.mul_(2)
    D.mul_(2)
    assert torch.equal(V.to_dense(), W)


def test_a_tensor_reshaped_in_place_still_shows_in_its_views():
    S, D = scorch.from_torch(DENSE, format="coo"), DENSE.clone()
    V, W = S[0:2], D[0:2]
    S.unsqueeze_(0)
    D.unsqueeze_(0)
    S.mul_(2)
    D.mul_(2)
    assert torch.equal(V.to_dense(), W) and torch.equal(S.to_dense(), D)
    V.zero_()
    W.zero_()
    assert torch.equal(S.to_dense(), D)


def test_views_that_are_gone_are_not_kept():
    S = scorch.from_torch(DENSE, format="csr")
    kept = S[0:2]
    for _ in range(1000):
        S.T  # noqa: B018 - a view that nobody keeps
    gc.collect()
    assert len(S.storage.followers) < 200
    S.mul_(2)
    assert torch.equal(kept.to_dense(), 2 * DENSE[0:2])


@given(
    st.sampled_from(FORMATS), st.lists(st.tuples(st.booleans(), st.sampled_from(sorted(VIEWS)), st.data()))
)
def test_any_order_of_views_and_changes(form, steps):
    S, D = scorch.from_torch(DENSE, format=form), DENSE.clone()
    views = [(S, D)]
    for number, (is_view, name, data) in enumerate(steps[:6]):
        source, dense = data.draw(st.sampled_from(views))
        if is_view and source.shape == (3, 3) and (name != "flat" or dense.is_contiguous()):
            views.append((VIEWS[name](source), VIEWS[name](dense)))
        elif name != "wide" and dense.stride() and 0 not in dense.stride():
            source.mul_(number + 2)
            dense.mul_(number + 2)
            source[0] = float(number)
            dense[0] = float(number)
    for source, dense in views:
        assert torch.equal(source.to_dense(), dense)


def test_results_are_of_the_kinds_that_torch_returns():
    S = scorch.from_torch(torch.tensor([[0.0, 2.0], [3.0, 1.0]]), format="csr")
    assert type(S.unbind()) is tuple
    assert type(S.topk(1)) is torch.return_types.topk and type(S.sort()) is torch.return_types.sort
    with pytest.raises(ValueError):
        S[::0]


@pytest.mark.whole
@pytest.mark.parametrize("format", ["csr", "coo", "dcsr"])
def test_a_row_that_was_not_read_shows_what_was_written_meanwhile(format):
    dense = torch.tensor([[0.0, 2.0, 0.0], [3.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    S = scorch.from_torch(dense, format=format)
    rows, expected = [S[0], S[-2], S[2]], [dense[0], dense[-2], dense[2]]
    for tensor in (S, dense):
        tensor.mul_(2)
        tensor[2, 1] = 7.0
    S[0].add_(1)
    dense[0].add_(1)
    rows[1].neg_()
    expected[1].neg_()
    for row, want in zip(rows, expected, strict=True):
        torch.testing.assert_close(row.to_dense(), want)
    torch.testing.assert_close(S.to_dense(), dense)


def test_a_row_is_first_read_inside_of_transforms_and_modes():
    dense = torch.tensor([[0.0, 2.0, 0.0], [3.0, 0.0, 1.0]])
    S = scorch.from_torch(dense, format="csr")
    rows = [S[1] for _ in range(3)]
    gradient = torch.func.grad(lambda x: (rows[0] * x).sum())(torch.ones(3))
    torch.testing.assert_close(gradient, dense[1])
    with torch._subclasses.FakeTensorMode():
        assert rows[1].nnz == 2
    with torch.inference_mode():
        assert rows[2].sum().item() == 4.0
    for row in rows:
        torch.testing.assert_close(row.to_dense(), dense[1])
        assert row.format == scorch.Format("s") and not row.requires_grad


@pytest.mark.cpu("rows are copied elsewhere")
def test_a_row_is_taken_without_reading_the_arrays(monkeypatch):
    monkeypatch.setattr("scorch._src.ops.movement.rows.LIVE", set())  # traced tensors that a test left
    S = scorch.from_torch(torch.eye(4), format="csr")
    row = S[2]
    assert "values" not in vars(row.storage) and row.shape == (4,) and row.dtype == torch.float32
    assert row.nnz == 1 and "values" in vars(row.storage)
    for wrong in (4, -5):
        with pytest.raises(IndexError, match="out of bounds"):
            S[wrong]


def test_rows_by_their_numbers_are_copies() -> None:
    dense = torch.rand(6, 5) * (torch.rand(6, 5) < 0.5)
    S = scorch.from_torch(dense, format="csr")
    for numbers in ([4, 0, 4, -1], [], [5]):
        picked = torch.tensor(numbers, dtype=torch.int64)
        rows = S[picked]
        assert rows.format == S.format
        assert torch.equal(rows.to_dense(), dense[picked])
        rows.values().fill_(7)
        assert torch.equal(S.to_dense(), dense)
    for number in (6, -7):
        with pytest.raises(IndexError, match="6"):
            S[torch.tensor([0, number])]
    S.requires_grad_()
    S[torch.tensor([2, 2])].to_dense().sum().backward()
    assert torch.equal(S.grad.to_dense(), 2.0 * ((dense != 0) & (torch.arange(6) == 2).unsqueeze(1)))


@pytest.mark.whole
@pytest.mark.parametrize("kind", ["leaf", "computed", "view"])
def test_tensors_that_require_gradients_are_assigned_to_under_no_grad(kind: str) -> None:
    for form in ("csr", "coo", "bsr(2,2)"):
        S = scorch.eye(4, format=form).requires_grad_()
        S = {"leaf": S, "computed": S * 2, "view": S[1:]}[kind]
        dense = S.detach().to_dense()
        with torch.no_grad():
            for each in (S, dense):
                each[0] = 0.0
                each[:, 1] = 3.0
                each[1:][0] = 4.0
                row = each[1]
                each.mul_(2)
                row.add_(1)
                each[each > 6] = 5.0
        assert torch.equal(S.detach().to_dense(), dense)
        (S * 2).sum().backward()

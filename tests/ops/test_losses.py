"""Losses, distances, dropout and embedding bags of sparse tensors are those of the dense ones."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import scorch
from scorch import SparseTensor
from scorch.errors import ArgumentError, CallError, IndexRangeError, ShapeError

FORMATS = ["csr", "csc", "coo", "dcsr", "bsr(2,2)"]
POINTWISE = {
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "smooth l1": lambda x, y, **k: F.smooth_l1_loss(x, y, beta=0.5, **k),
    "huber": lambda x, y, **k: F.huber_loss(x, y, delta=0.7, **k),
    "binary cross entropy": lambda x, y, **k: F.binary_cross_entropy(x.abs().clamp(max=1), y, **k),
    "binary, of logits": F.binary_cross_entropy_with_logits,
    "binary, weighted": lambda x, y, **k: F.binary_cross_entropy_with_logits(
        x, y, pos_weight=torch.tensor(3.0, dtype=x.dtype), **k
    ),
    "kl": lambda x, y, **k: F.kl_div(x, y.abs(), **k),
    "kl of logs": lambda x, y, **k: F.kl_div(x, y, log_target=True, **k),
    "poisson": lambda x, y, **k: F.poisson_nll_loss(x, y.abs(), full=True, **k),
    "gaussian": lambda x, y, **k: F.gaussian_nll_loss(x, y, 0.5, **k),
    "soft margin": lambda x, y, **k: F.soft_margin_loss(x, y.sign(), **k),
    "hinge": lambda x, y, **k: F.hinge_embedding_loss(x, y.sign(), **k),
    "ranking": lambda x, y, **k: F.margin_ranking_loss(x, y, (x * y).sign(), margin=0.3, **k),
}


def drawn(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0, share: float = 0.4) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return torch.where(torch.rand(*shape, generator=generator) < share, values, 0.0).to(dtype)


def same(found: torch.Tensor, wanted: torch.Tensor, **tolerance: float) -> None:
    plain = found.to_dense() if isinstance(found, SparseTensor) else found
    torch.testing.assert_close(plain, wanted, equal_nan=True, check_stride=False, **tolerance)


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides:UserWarning")
@pytest.mark.parametrize("reduction", ["mean", "sum", "none", "batchmean"])
@pytest.mark.parametrize("name", POINTWISE)
def test_losses_of_two_sparse_tensors(name, reduction):
    if reduction == "batchmean" and not name.startswith("kl"):
        return
    call = POINTWISE[name]
    x, y = drawn(6, 8), drawn(6, 8, seed=1).clamp(0, 1)
    wanted = call(x, y, reduction=reduction)
    for form in FORMATS:
        S, T = scorch.from_torch(x, format=form), scorch.from_torch(y, format="csr")
        same(call(S, T, reduction=reduction), wanted)
        same(call(S, y, reduction=reduction), wanted)
        same(call(x, T, reduction=reduction), wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["mse", "smooth l1", "binary, of logits"])
def test_losses_keep_the_dtype(name, dtype):
    x, y = drawn(6, 8, dtype=dtype), drawn(6, 8, dtype=dtype, seed=1).clamp(0, 1)
    found = POINTWISE[name](scorch.from_torch(x, format="csr"), scorch.from_torch(y, format="coo"))
    same(found, POINTWISE[name](x, y), rtol=2e-2, atol=1e-3)


def test_losses_of_tensors_without_entries_or_places():
    for shape in ((3, 4), (0, 4)):
        empty = scorch.zeros(shape, format="csr", dtype=torch.float64)
        dense = empty.to_dense()
        same(F.mse_loss(empty, empty, reduction="sum"), F.mse_loss(dense, dense, reduction="sum"))
        same(F.mse_loss(empty, empty), F.mse_loss(dense, dense))


# classes ---------------------------------------------------------------------------------------------


@given(st.data())
def test_cross_entropy(data):
    rows, classes = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 7))
    x = 3 * drawn(rows, classes, seed=data.draw(st.integers(0, 5)))
    form = data.draw(st.sampled_from(["csr", "csc", "coo"]))
    weight = torch.rand(classes, dtype=torch.float64) if data.draw(st.booleans()) else None
    kind = data.draw(st.sampled_from(["classes", "dense", "sparse"]))
    if kind == "classes":
        target = torch.tensor(data.draw(st.lists(st.integers(0, classes - 1), min_size=rows, max_size=rows)))
        target[0] = data.draw(st.sampled_from([0, -100]))
    else:
        target = drawn(rows, classes, seed=9).abs()
    given = scorch.from_torch(target, format="csr") if kind == "sparse" else target
    options = {
        "weight": weight,
        "reduction": data.draw(st.sampled_from(["none", "sum", "mean"])),
        "label_smoothing": data.draw(st.sampled_from([0.0, 0.2])),
    }
    wanted = F.cross_entropy(x, target, **options)
    same(F.cross_entropy(scorch.from_torch(x, format=form), given, **options), wanted)
    if kind == "classes":
        options.pop("label_smoothing")
        same(
            F.nll_loss(scorch.from_torch(x, format=form), target, **options), F.nll_loss(x, target, **options)
        )


def test_wrong_classes_are_refused():
    S = scorch.from_torch(drawn(3, 5), format="csr")
    with pytest.raises(IndexRangeError, match="target 5 is out of bounds for 5 classes"):
        F.cross_entropy(S, torch.tensor([0, 5, 1]))
    with pytest.raises(ShapeError, match=r"batch_size \(3\)"):
        F.cross_entropy(S, torch.tensor([0, 1]))
    with pytest.raises(ShapeError, match="target"):
        F.cross_entropy(S, torch.rand(3, 4, dtype=torch.float64))
    with pytest.raises(CallError, match=r"between 0\.0 and 1\.0"):
        F.cross_entropy(S, torch.tensor([0, 1, 2]), label_smoothing=2)


# distances -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMATS)
def test_distances(form):
    x, y, z = drawn(6, 8), drawn(6, 8, seed=1), drawn(6, 8, seed=2)
    S, T, U = (scorch.from_torch(t, format=form) for t in (x, y, z))
    for p in (1.0, 2.0, 3.5, math.inf):
        same(F.pairwise_distance(S, T, p, 0.3, keepdim=True), F.pairwise_distance(x, y, p, 0.3, keepdim=True))
        same(torch.dist(S, T, p), torch.dist(x, y, p))
    same(F.pairwise_distance(S, y), F.pairwise_distance(x, y))
    same(F.triplet_margin_loss(S, T, U, swap=True), F.triplet_margin_loss(x, y, z, swap=True))
    same(F.cosine_similarity(S, T, dim=0), F.cosine_similarity(x, y, dim=0))


def test_allclose_of_sparse_tensors():
    x = drawn(6, 8)
    S = scorch.from_torch(x, format="csr")
    assert torch.allclose(S, scorch.from_torch(x + 1e-9 * (x != 0), format="coo"))
    assert not torch.allclose(S, 2 * S) and not torch.allclose(S, torch.zeros_like(S))
    assert torch.allclose(S, x) and torch.allclose(x, S)


# dropout ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_dropout_drops_stored_values(form, dtype):
    x = drawn(40, 40, dtype=dtype)
    S = scorch.from_torch(x, format=form)
    torch.manual_seed(0)
    found = F.dropout(S, 0.25)
    assert isinstance(found, SparseTensor) and found.storage.pattern is S.storage.pattern
    kept = found.to_dense() != 0
    same(found.to_dense()[kept], (x / 0.75)[kept], rtol=1e-2, atol=1e-3)
    assert 0.65 < kept.sum() / (x != 0).sum() < 0.85
    same(F.dropout(S, 0.0), x)
    same(F.dropout(S, 0.5, training=False), x)
    same(F.dropout(S, 1.0), torch.zeros_like(x))
    same(torch.nn.Dropout(0.5).eval()(S), x)
    same(S, x)
    with pytest.raises(ValueError, match="between 0 and 1"):
        F.dropout(S, 1.5)


def test_dropout_in_place():
    S = scorch.from_torch(drawn(10, 10), format="csr")
    assert F.dropout(S, 1.0, inplace=True) is S
    assert not S.values().any()


@pytest.mark.parametrize("shape", [(3, 14, 5), (40, 5)])
def test_dropout_of_channels(shape):
    S = scorch.from_torch(drawn(*shape, share=1.0), format="coo")
    torch.manual_seed(1)
    found = F.dropout1d(S, 0.5).to_dense()
    kept = found != 0
    assert bool((kept.all(-1) | ~kept.any(-1)).all()) and kept.any() and not kept.all()
    same(found[kept], (2 * S.to_dense())[kept])


# bags ------------------------------------------------------------------------------------------------


@given(st.data())
def test_embedding_bags(data):
    table = drawn(7, 5, seed=data.draw(st.integers(0, 3)))
    mode = data.draw(st.sampled_from(["sum", "mean", "max"]))
    rows = torch.tensor(data.draw(st.lists(st.integers(0, 6), min_size=6, max_size=6)))
    begins = sorted(data.draw(st.lists(st.integers(0, 6), max_size=3)))
    options = {"mode": mode, "padding_idx": data.draw(st.sampled_from([None, 2, -1]))}
    if data.draw(st.booleans()):
        rows = rows.reshape(2, 3)
    else:
        options["include_last_offset"] = data.draw(st.booleans())
        options["offsets"] = torch.tensor([0, *begins, 6] if options["include_last_offset"] else [0, *begins])
    weights = drawn(*rows.shape, seed=4) if mode == "sum" and data.draw(st.booleans()) else None
    wanted = F.embedding_bag(rows, table, per_sample_weights=weights, **options)
    form = data.draw(st.sampled_from(["csr", "csc", "coo"]))
    sparse = scorch.from_torch(table, format=form)
    same(F.embedding_bag(rows, sparse, per_sample_weights=weights, **options), wanted)
    if weights is not None:
        few = scorch.from_torch(weights, format="csr" if weights.dim() == 2 else "coo")
        same(F.embedding_bag(rows, table, per_sample_weights=few, **options), wanted)
        same(F.embedding_bag(rows, sparse, per_sample_weights=few, **options), wanted)


@pytest.mark.whole
@pytest.mark.parametrize(("rows", "padding_idx"), [(5, 2), (40, 9), (40, -9)])
def test_any_row_of_the_table_may_be_padding(rows, padding_idx):
    table, bags = drawn(rows, 5), torch.tensor([[2, 1, 1], [0, 2, 4], [padding_idx % rows, 0, 0]])
    wanted = F.embedding_bag(bags, table, padding_idx=padding_idx)
    same(F.embedding_bag(bags, scorch.from_torch(table, format="csr"), padding_idx=padding_idx), wanted)


def test_wrong_bags_are_refused():
    S = scorch.from_torch(drawn(7, 5), format="csr")
    for padding_idx in (7, -8):
        with pytest.raises(RuntimeError, match=f"number of embeddings, -7 through 6, but got {padding_idx}"):
            F.embedding_bag(torch.tensor([[1, 2]]), S, padding_idx=padding_idx)
    with pytest.raises(IndexRangeError, match="index 9 is out of bounds for a table with 7 rows"):
        F.embedding_bag(torch.tensor([[1, 9]]), S)
    with pytest.raises(ShapeError, match="offsets has to be a 1D Tensor"):
        F.embedding_bag(torch.tensor([1, 2]), S)
    with pytest.raises(ArgumentError, match="must not decrease"):
        F.embedding_bag(torch.tensor([1, 2]), S, torch.tensor([0, 2, 1]))
    table = S.to_dense()
    found = F.embedding_bag(torch.tensor([[1, 2]]), S, max_norm=1.0)
    torch.testing.assert_close(found, F.embedding_bag(torch.tensor([[1, 2]]), table, max_norm=1.0))
    torch.testing.assert_close(S.to_dense(), table)  # whose rows were made shorter


# others ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMATS)
def test_glu_keeps_the_entries_of_the_first_half(form):
    x = drawn(6, 8)
    S = scorch.from_torch(x, format=form)
    found = F.glu(S)
    assert isinstance(found, SparseTensor)
    same(found, F.glu(x))
    same(F.glu(S, 0), F.glu(x, 0))
    with pytest.raises(ShapeError, match="even size"):
        F.glu(S[:3], 0)


def test_new_tensors_take_the_dtype():
    S = scorch.from_torch(drawn(3, 4), format="csr")
    assert S.new_zeros(2, 2).equal(torch.zeros(2, 2, dtype=torch.float64))
    assert S.new_full((2,), 3).equal(torch.full((2,), 3.0, dtype=torch.float64))
    assert S.new_ones(2, dtype=torch.int64).dtype == torch.int64 and S.new_empty(5).shape == (5,)


def test_dense_factors_that_were_expanded():
    x = drawn(6, 8)
    S = scorch.from_torch(x, format="csr")
    column = torch.arange(1.0, 7.0, dtype=torch.float64).unsqueeze(1).expand(6, 8)
    same(S * column, x * column)
    same(S / column, x / column)
    same(column / S, column / x)
    same(torch.atan2(S, column), torch.atan2(x, column))
    same(S + column, x + column)

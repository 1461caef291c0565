"""Nothing densifies secretly: a matrix of 200,000 x 200,000 with 2,000 entries, which dense has 160 GB."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import scorch
from ops.calls_of_torch import ELEMENTWISE
from scorch._src.tensor.entries import entries_of, united
from scorch.errors import DensityError

N = 200_000
KEEPING = ["abs", "neg", "relu", "sin", "expm1", "times two", "divided", "squared", "plus itself", "sign"]
KEEPING += ["times itself", "maximum of both signs", "compared", "differs", "where with zero", "clamp"]
KEEPING += ["isnan", "addcmul", "lerp", "in place", "gelu", "silu", "minus itself", "dropout in evaluation"]
DENSE = ["exp", "cos", "sigmoid", "plus one", "one minus", "equals", "compared below"]

pytestmark = pytest.mark.usefixtures("little_memory")


@pytest.mark.parametrize("name", KEEPING)
def test_elementwise(huge, name):
    found = ELEMENTWISE[name](huge)
    stored = ELEMENTWISE[name](entries_of(huge).values)
    assert isinstance(found, scorch.SparseTensor) and tuple(found.shape) == (N, N)
    assert torch.allclose(entries_of(found).values, stored)


@pytest.mark.parametrize("name", DENSE)
def test_what_would_be_dense_is_refused_before(huge, name):
    with pytest.raises(DensityError):
        ELEMENTWISE[name](huge)


CALLS = {
    "sum": lambda x: x.sum(),
    "sum over rows": lambda x: x.sum(0),
    "mean": lambda x: x.mean(1),
    "amax": lambda x: x.amax(1),
    "argmax": lambda x: x.argmax(0),
    "prod": lambda x: x.prod(1),
    "std": lambda x: x.std(1),
    "norm": lambda x: x.norm(dim=1),
    "logsumexp": lambda x: torch.logsumexp(x, 1),
    "any": lambda x: x.any(1),
    "count_nonzero": lambda x: torch.count_nonzero(x),
    "reshape": lambda x: x.reshape(N // 2, 2 * N),
    "flatten": lambda x: x.flatten(),
    "T": lambda x: x.T,
    "unsqueeze": lambda x: x.unsqueeze(1),
    "cat": lambda x: torch.cat([x, x], 1),
    "stack": lambda x: torch.stack([x, x]),
    "rows": lambda x: x[1000:2000, ::3],
    "a row": lambda x: x[5],
    "a list of rows": lambda x: x[[5, 1000, 5]],
    "index_select": lambda x: x.index_select(1, torch.arange(0, N, 7)),
    "pairs": lambda x: x[torch.arange(10), torch.arange(10)],
    "nonzero": lambda x: x.nonzero(),
    "where positive": lambda x: torch.where(x > 0, x, torch.zeros(())),
    "a sparse mask": lambda x: x[x > 0],
    "an element written": lambda x: x.clone().__setitem__((5, 7), 1.0),
    "a row written": lambda x: x.clone()[3].zero_(),
    "flip": lambda x: x.flip(0),
    "roll": lambda x: x.roll(3, 0),
    "tril": torch.tril,
    "diagonal": lambda x: x.diagonal(),
    "split": lambda x: x.split(N // 2)[1],
    "matrix product": lambda x: x @ x,
    "product with few columns": lambda x: x @ torch.ones(N, 4),
    "matrix vector": lambda x: x.mv(torch.ones(N)),
    "times a row": lambda x: x * torch.ones(N),
    "times a column": lambda x: x * torch.ones(N, 1),
    "over a column": lambda x: x / torch.full((N, 1), 2.0),
    "index_add": lambda x: x.index_add(0, torch.tensor([1, 7]), x[:2]),
    "equal": lambda x: torch.equal(x, x.clone()),
    "block_diag": lambda x: torch.block_diag(x, x),
    "pad": lambda x: F.pad(x, (1, 1)),
    "normalize": F.normalize,
    "normalize columns": lambda x: F.normalize(x, p=1, dim=0),
    "rms_norm": lambda x: F.rms_norm(x, (N,)),
    "dropout": F.dropout,
    "dropout of channels": F.dropout1d,
    "glu": F.glu,
    "linear": lambda x: F.linear(x, x),
    "linear with a sparse bias": lambda x: F.linear(x, x, x[0]),
    "linear of few rows": lambda x: F.linear(torch.ones(2, N), x),
    "embedding": lambda x: F.embedding(torch.arange(100), x),
    "embedding_bag": lambda x: F.embedding_bag(torch.arange(100).reshape(10, 10), x),
    "embedding_bag of maxima": lambda x: F.embedding_bag(torch.arange(100).reshape(10, 10), x, mode="max"),
    "cosine_similarity": lambda x: F.cosine_similarity(x, 2 * x),
    "cosine_similarity of columns": lambda x: F.cosine_similarity(x, x.T, dim=0),
    "pairwise_distance": lambda x: F.pairwise_distance(x, x.T),
    "triplet_margin_loss": lambda x: F.triplet_margin_loss(x, x.T, 2 * x),
    "dist": lambda x: torch.dist(x, x.T),
    "allclose": lambda x: torch.allclose(x, x.T),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.arange(N)),
    "cross_entropy of probabilities": lambda x: F.cross_entropy(x, x.abs(), label_smoothing=0.1),
    "nll_loss": lambda x: F.nll_loss(x, torch.arange(N), reduction="none"),
    "sparse softmax": lambda x: torch.sparse.softmax(x, 1),
    "max_pool2d": lambda x: F.max_pool2d(x[None], 2),
    "max_pool1d": lambda x: F.max_pool1d(x, 3, stride=2, padding=1),
    "avg_pool2d": lambda x: F.avg_pool2d(x[None], 3, stride=2),
    "conv2d": lambda x: F.conv2d(x[None, None], torch.ones(2, 1, 3, 3), padding=1),
    "new_zeros": lambda x: x.new_zeros(3),
}
LOSSES = [F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.binary_cross_entropy_with_logits]
LOSSES += [F.poisson_nll_loss, F.soft_margin_loss, F.hinge_embedding_loss, F.kl_div]


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides:UserWarning")
@pytest.mark.parametrize("loss", LOSSES)
def test_losses_count_the_places_that_are_not_stored(huge, loss):
    other = huge.T.abs()
    keys = united([entries_of(huge), entries_of(other)])
    stored = loss(entries_of(huge).at(keys).double(), entries_of(other).at(keys).double(), reduction="sum")
    zero = loss(torch.zeros(1).double(), torch.zeros(1).double(), reduction="sum")
    total = stored + (N * N - keys.numel()) * zero
    assert torch.allclose(loss(huge, other, reduction="sum").double(), total, rtol=1e-5)
    assert torch.allclose(loss(huge, other).double(), total / N**2, rtol=1e-5, atol=0)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CALLS)
def test_other_calls(huge, name):
    CALLS[name](huge)


def test_products_of_all_pairs_of_entries(huge):
    assert torch.kron(scorch.eye(100, format="csr"), huge[:1000, :1000]).shape == (100_000, 100_000)

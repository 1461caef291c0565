"""Operators that give zeros for zeros give sparse tensors, with the values of dense ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import scorch
from on_device import on_host
from ops.test_torch_calls import same
from scorch import SparseTensor

pytestmark = [  # said of dense tensors too
    pytest.mark.filterwarnings("ignore:index_reduce.* is in beta:UserWarning"),
    pytest.mark.filterwarnings("ignore:torch.triangular_solve is deprecated:UserWarning"),
    pytest.mark.filterwarnings("ignore:The reduce argument of torch.scatter:UserWarning"),
]
FORMATS = ["csr", "csc", "coo", "dcsr", "bsr(2,2)", "csf"]
EXACT = {"rtol": 1e-12, "atol": 1e-12}


def thin(*shape: int, seed: int = 0, density: float = 0.4) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    kept = torch.rand(shape, generator=generator) < density
    return torch.randn(shape, generator=generator, dtype=torch.float64) * kept


def check(
    call: Callable[..., Any],
    *dense: torch.Tensor,
    form: str = "csf",
    are_all_sparse: bool = False,
    wanted_on_host: bool = False,
) -> Any:
    """The first result of ``call`` with the first or all tensors sparse, after it was compared."""
    forms = [form if tensor.dim() > 1 else "coo" for tensor in dense]
    sparse = [scorch.from_torch(t, format=f) for t, f in zip(dense, forms, strict=True)]
    given = sparse if are_all_sparse else [sparse[0], *dense[1:]]
    found = call(*given)
    same(found, on_host(call, *dense) if wanted_on_host else call(*dense), EXACT)
    for tensor, before in zip(given, dense, strict=True):
        same(tensor, before, EXACT)
    return found[0] if isinstance(found, tuple | list) else found


ONE: dict[str, Callable[[Any], Any]] = {  # of a tensor of order 4
    "cummax": lambda x: tuple(torch.cummax(x, 1)),
    "cummin": lambda x: tuple(torch.cummin(x, 1)),
    "median": lambda x: tuple(torch.median(x, 3)),
    "renorm": lambda x: torch.renorm(x, 2, 1, 0.5),
    "channel_shuffle": lambda x: F.channel_shuffle(x, 2),
    "max_unpool2d": lambda x: F.max_unpool2d(
        x, (torch.arange(12) * 5 % 47).reshape(3, 4).expand(2, 4, 3, 4), 2
    ),
    "frexp": lambda x: tuple(torch.frexp(x)),
    "isin": lambda x: torch.isin(x.round(), torch.tensor([1.0, -1.0], dtype=torch.float64)),
    "isin a number": lambda x: torch.isin(x.round(), 1.0),
    "permute_copy": lambda x: torch.permute_copy(x, (1, 0, 3, 2)),
    "unfold_copy": lambda x: torch.unfold_copy(x, 3, 2, 1),
    "unsafe_split": lambda x: torch.unsafe_split(x, 3, 1),
    "put": lambda x: x.put(torch.tensor([1, -4]), torch.tensor([3.0, 0.0], dtype=torch.float64)),
    "put added": lambda x: x.put(torch.tensor([1, 1]), torch.ones(2, dtype=torch.float64), accumulate=True),
    "quantile": lambda x: torch.quantile(x, 0.4, dim=2),
    "complex": lambda x: torch.complex(x, x),
    "qr": lambda x: torch.linalg.qr(x.abs())[1],
    "lu": lambda x: torch.linalg.lu_factor_ex(x[:, :, :, :3])[0],
    "grid_sample": lambda x: F.grid_sample(
        x, torch.linspace(-1, 1, 48).double().reshape(2, 4, 3, 2), align_corners=False
    ),
}


@pytest.mark.parametrize("form", ["csr", "coo", "bsr(2,2)", "csf"])
@pytest.mark.parametrize("name", ONE)
def test_of_one_tensor(name, form):
    found = check(ONE[name], thin(2, 4, 3, 4), form=form, wanted_on_host=name == "median")
    assert isinstance(found, SparseTensor)


def test_isin_that_holds_for_zero_is_dense():
    assert not isinstance(check(lambda x: torch.isin(x, 0.0), thin(4, 6), form="csr"), SparseTensor)


@pytest.mark.parametrize("reduce", [torch.amax, torch.sum, torch.count_nonzero])
def test_what_fills_blocks_does_not_make_a_reduction_dense(reduce):
    found = check(lambda x: reduce(x, 1), thin(2, 1, 6, 6, density=0.2), form="bsr(2,2)")
    assert isinstance(found, SparseTensor)


def test_stft():
    check(
        lambda x: torch.stft(x, 4, return_complex=True, window=torch.ones(4)), thin(3, 16).float(), form="csr"
    )


def test_bernoulli():
    """A number is drawn for every entry: a probability of 0 is never met."""
    dense = thin(4, 6).abs().clamp(max=1)
    torch.manual_seed(3)
    found = torch.bernoulli(scorch.from_torch(dense, format="csr"))
    torch.manual_seed(3)
    dense[dense != 0] = torch.bernoulli(dense[dense != 0])
    same(found, dense, EXACT)
    assert isinstance(found, SparseTensor)


def test_bucketize():
    for bounds in ([0.5, 1.0], [-0.5, 0.0, 1.0]):
        edges = torch.tensor(bounds, dtype=torch.float64)
        check(lambda x, edges=edges: torch.bucketize(x, edges, right=True), thin(4, 6), form="csr")


ALL: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "conv1d": (lambda x, w: F.conv1d(x, w, padding=1), (thin(2, 3, 8), thin(4, 3, 3, seed=1))),
    "conv2d with bias": (F.conv2d, (thin(2, 3, 5, 5), thin(4, 3, 2, 2, seed=1), thin(4, seed=2))),
    "conv_transpose2d": (F.conv_transpose2d, (thin(2, 3, 4, 4), thin(3, 2, 2, 2, seed=1))),
    "group_norm": (lambda x, w: F.group_norm(x, 2, w), (thin(2, 4, 5), thin(4, seed=1))),
    "instance_norm": (lambda x, w: F.instance_norm(x, weight=w), (thin(2, 4, 5), thin(4, seed=1))),
    "batch_norm": (
        lambda x, w: F.batch_norm(x, None, None, w, training=True),
        (thin(3, 4, 5), thin(4, seed=1)),
    ),
    "cross": (torch.linalg.cross, (thin(4, 3), thin(4, 3, seed=1))),
    "complex": (torch.complex, (thin(4, 6), thin(4, 6, seed=1))),
    "polar": (torch.polar, (thin(4, 6).abs(), thin(4, 6, seed=1))),
    "triangular_solve": (
        lambda b, a: torch.triangular_solve(b, a + a.T),
        (thin(4, 2), torch.eye(4).double()),
    ),
    "diagonal_scatter": (torch.diagonal_scatter, (thin(4, 6), thin(4, seed=1))),
}


@pytest.mark.parametrize("form", ["csr", "csf"])
@pytest.mark.parametrize("name", ALL)
def test_of_several_tensors(name, form):
    call, tensors = ALL[name]
    assert isinstance(check(call, *tensors, form=form, are_all_sparse=True), SparseTensor)


@pytest.mark.parametrize("name", ["conv1d", "group_norm"])
def test_with_a_dense_weight_the_result_is_dense(name):
    call, tensors = ALL[name]
    assert not isinstance(check(call, *tensors), SparseTensor)


# padding ---------------------------------------------------------------------------------------------


@given(st.sampled_from(["reflect", "replicate", "circular"]), st.data())
def test_padding_by_what_the_tensor_holds(mode, data):
    """Also by negative numbers, which cut."""
    dims = data.draw(st.integers(1, 2))
    pads = data.draw(st.lists(st.integers(-1, 2), min_size=2 * dims, max_size=2 * dims))
    form = data.draw(st.sampled_from(["csr", "coo", "csf"]))
    found = check(lambda x: F.pad(x, pads, mode=mode), thin(*(2, 3, 3, 4)[2 - dims :]), form=form)
    assert isinstance(found, SparseTensor)


def test_padding_that_is_too_wide_is_refused():
    S = scorch.from_torch(thin(2, 3, 4), format="csf")
    for mode in ("reflect", "circular"):
        with pytest.raises(RuntimeError, match=r"[Pp]adding"):
            F.pad(S, (9, 9), mode=mode)


# writing where several meet --------------------------------------------------------------------------


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("form", FORMATS)
def test_scatter_reduce(form, reduce, include_self):
    index = torch.tensor([[0, 3, 3, 1], [2, 2, 2, 0]])
    for dim, picked in ((0, index), (1, index)):
        for are_all_sparse in (False, True):
            found = check(
                lambda x, s, d=dim, i=picked: torch.scatter_reduce(
                    x, d, i, s, reduce, include_self=include_self
                ),
                thin(4, 6),
                thin(4, 6, seed=1),
                form=form,
                are_all_sparse=are_all_sparse,
            )
            assert isinstance(found, SparseTensor)


@pytest.mark.parametrize("reduce", ["add", "multiply"])
def test_scatter_with_a_reduction(reduce):
    index = torch.tensor([[0, 3, 3, 1], [2, 2, 2, 0]])
    check(lambda x, s: torch.scatter(x, 1, index, s, reduce=reduce), thin(4, 6), thin(4, 6, seed=1))
    assert isinstance(
        check(lambda x: torch.scatter(x, 0, index, 2.5, reduce=reduce), thin(4, 6)), SparseTensor
    )


@pytest.mark.parametrize("reduce", ["prod", "mean", "amax", "amin"])
def test_index_reduce(reduce):
    index = torch.tensor([0, 3, 3])
    found = check(
        lambda x, s: torch.index_reduce(x, -2, index, s, reduce), thin(2, 4, 6), thin(2, 3, 6, seed=1)
    )
    assert isinstance(found, SparseTensor)


def test_places_outside_are_named():
    S = scorch.from_torch(thin(4, 6), format="csr")
    with pytest.raises(IndexError, match="index 9 is out of bounds"):
        torch.scatter_reduce(S, 1, torch.tensor([[9]]), torch.ones(1, 1).double(), "sum")
    with pytest.raises(IndexError, match="index 99 is out of bounds"):
        S.put(torch.tensor([99]), torch.ones(1).double())


# in place --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.squeeze_(0),
        lambda x: x.unsqueeze_(1),
        lambda x: x.transpose_(1, 2),
        lambda x: x.swapaxes_(0, 2),
    ],
)
@pytest.mark.parametrize("form", ["csr", "coo", "csf"])
def test_a_tensor_takes_another_shape_in_place(form, change):
    dense = thin(1, 4, 6)
    S = scorch.from_torch(dense, format=form)
    alias = S.detach()
    assert change(S) is S
    wanted = change(dense.clone())
    assert S.shape == wanted.shape
    same(S, wanted, EXACT)
    same(alias, dense, EXACT)


def test_a_tensor_that_cannot_stay_sparse_is_refused():
    for change in (lambda x: x.squeeze_(), lambda x: x.resize_(2, 3), lambda x: x.as_strided_((1,), (1,))):
        S = scorch.from_torch(torch.ones(1), format="coo")
        with pytest.raises(scorch.errors.ScorchError):
            change(S)
        same(S, torch.ones(1), EXACT)


def test_a_view_that_takes_another_shape_still_writes_through():
    dense = thin(4, 6)
    S = scorch.from_torch(dense.clone(), format="csr")
    for x in (S, dense):
        row = x[1:2]
        row.squeeze_(0)
        row.mul_(2)
    same(S, dense, EXACT)


@pytest.mark.parametrize(
    "copy",
    [
        lambda x: torch.alias_copy(x),
        lambda x: torch.permute_copy(x, (1, 0)),
        lambda x: torch.view_copy(x, (4, 6)),
        lambda x: F.pad(x, (0, 0), mode="circular"),
        lambda x: torch.scatter_reduce(x, 0, torch.zeros(0, 0).long(), x, "sum"),
    ],
)
def test_writing_to_a_copy_leaves_the_tensor_alone(copy):
    S = scorch.from_torch(thin(4, 6), format="csr")
    copied = copy(S)
    copied.mul_(2)
    same(S, thin(4, 6), EXACT)
    same(copied, 2 * copy(thin(4, 6)), EXACT)


def test_running_statistics_that_are_sparse_change():
    x, mean, variance = thin(8, 3), thin(3), thin(3).abs()
    kept = [scorch.from_torch(mean, format="coo"), scorch.from_torch(variance, format="coo")]
    found = F.batch_norm(scorch.from_torch(x, format="csr"), *kept, training=True)
    same(found, F.batch_norm(x, mean, variance, training=True), EXACT)
    same(kept[0], mean, EXACT)
    same(kept[1], variance, EXACT)


def test_normal_in_place():
    """Random numbers stand where the tensor has entries, as on torch's CSR tensors."""
    S, dense = scorch.from_torch(thin(4, 6), format="csr"), thin(4, 6)
    torch.manual_seed(3)
    S.normal_(1.0, 2.0)
    torch.manual_seed(3)
    dense[dense != 0] = torch.zeros(S.nnz, dtype=torch.float64).normal_(1.0, 2.0)
    same(S, dense, EXACT)


def test_rrelu():
    found = F.rrelu(scorch.from_torch(thin(4, 6), format="csr"))
    same(found, F.rrelu(thin(4, 6)), EXACT)
    assert isinstance(found, SparseTensor)


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("learns", [False, True])
def test_rrelu_draws_a_slope_for_each_negative_entry(inplace, learns):
    dense = torch.randn(300, 40, dtype=torch.float64) * (torch.rand(300, 40) < 0.3)
    S = scorch.from_torch(dense, format="csr")
    leaf = S.clone().requires_grad_(learns)
    torch.manual_seed(3)
    found = F.rrelu(leaf * 1.0, 0.2, 0.3, training=True, inplace=inplace)
    slopes = found.detach().values() / S.values()
    below = S.values() < 0
    assert bool((slopes[~below] == 1).all()) and len(slopes[below].unique()) > 1000
    assert bool(((slopes[below] >= 0.2) & (slopes[below] <= 0.3)).all())
    if learns:
        found.sum().backward()
        torch.testing.assert_close(leaf.grad.values(), slopes)


def test_rrelu_of_a_huge_tensor_draws_for_its_entries_only():
    S = -scorch.rand(10**6, 10**6, density=1e-10, format="coo").requires_grad_()
    assert F.rrelu(S, training=True).nnz == 100


# numbers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("form", ["csr", "bsr(2,2)"])
def test_infinity_times_what_is_not_stored_is_not_a_number(form, value):
    a, b = thin(4, 6), thin(4, 6, seed=1)
    a[0, 0], b[0, 0] = value, 0
    assert isinstance(check(torch.mul, a, b, form=form, are_all_sparse=True), SparseTensor)
    check(torch.mul, b, a, form=form)
    check(lambda x: torch.prod(x, 1), a, form=form)
    check(lambda x: torch.prod(x), a, form=form)
    check(lambda x: torch.cumprod(x, 1), a, form=form)


def test_factors_of_whole_numbers_are_whole():
    a, v = thin(4, 4).mul(3).long(), torch.tensor([1, 2, 3, 4])
    batch = torch.stack([a, a])
    on_rows, on_batches = ({"form": form, "wanted_on_host": True} for form in ("csr", "csf"))
    check(lambda x, v: torch.addmv(v, x, v, beta=1.7, alpha=2.9), a, v, **on_rows)
    check(lambda x, a: torch.addmm(a, x, a, beta=0.5, alpha=2.9), a, a, **on_rows)
    check(lambda x, a, y: torch.addbmm(a, x, y, beta=1.7, alpha=2.9), batch, a, batch, **on_batches)
    check(lambda x, y: torch.baddbmm(y, x, y, beta=1.7, alpha=2.9), batch, batch, **on_batches)


def test_numbers_are_written_with_all_their_digits():
    index = torch.tensor([[0, 3, 1]])
    check(lambda x: torch.scatter(x, 1, index, 0.1), thin(4, 6), form="csr")
    check(lambda x: torch.index_fill(x, 0, index[0], 0.1), thin(4, 6), form="csr")
    check(lambda x: x.masked_fill(torch.ones(6).bool(), 0.1), thin(4, 6), form="csr")
    check(lambda x: 0.1 / (x + 1), thin(4, 6), form="csr")
    assert (0.1 / scorch.from_torch(torch.rand(4, 6) + 1, format="csr")).dtype == torch.float32
    check(lambda x: 0.1 / x, torch.rand(4, 6, dtype=torch.float64) + 1, form="csr")
    whole = torch.zeros(4, 6, dtype=torch.int64)
    check(lambda x: torch.index_fill(x, 0, index[0], 2**53 + 1), whole, form="csr")
    check(lambda x: torch.scatter(x, 1, index, 2**53 + 1), whole, form="csr")


def test_embedding_bags():
    index = torch.tensor([[0, 2], [3, 3], [1, 0]])
    for mode in ("sum", "mean", "max"):
        found = check(lambda w, m=mode: F.embedding_bag(index, w, mode=m), thin(4, 5), form="csr")
        assert isinstance(found, SparseTensor)


def test_attention_of_sparse_tensors_with_sparse_weights():
    query, projection, out = thin(3, 2, 4), thin(12, 4, seed=1), thin(4, 4, seed=2)
    biases = thin(12, seed=3), thin(4, seed=4)

    def attend(q: Any, p: Any, pb: Any, o: Any, ob: Any) -> Any:
        return F.multi_head_attention_forward(q, q, q, 4, 2, p, pb, None, None, False, 0.0, o, ob)

    found = check(attend, query, projection, biases[0], out, biases[1], are_all_sparse=True)
    assert isinstance(found, SparseTensor)

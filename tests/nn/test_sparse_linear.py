"""``SparseLinear``: a linear layer whose weight is stored, learned and saved at its entries only."""

from __future__ import annotations

import copy
import io
import math
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import scorch
from scorch._src.nn.pattern import compute_fingerprint, count_rows, is_same_pattern
from scorch._src.nn.weights.saved_pattern import pattern_from_words, pattern_to_words
from scorch._src.storage.storage import Pattern
from scorch.errors import ArgumentError, CallError, FormatError, OperandError, ShapeError
from scorch.nn import SparseLinear

FORMATS = ["csr", "csc", "coo", "dcsr", "bsr(2,3)", "bsr(4,4)", "bsc(2,2)"]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(3)


def dense_of(layer: SparseLinear, x: torch.Tensor) -> torch.Tensor:
    return F.linear(x, layer.weight.detach().to_dense(), layer.bias)


def layer_in(format: str, bias: bool = True) -> SparseLinear:
    dense = torch.nn.Linear(9, 7, bias=bias).double()
    return SparseLinear.from_dense(dense, sparsity=0.6, format=format)


# made ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sparsity", [0.0, 0.3, 0.5, 0.9, 0.99, 1.0])
def test_the_number_of_entries_is_exact_and_rows_are_balanced(sparsity: float) -> None:
    layer = SparseLinear(50, 40, sparsity)
    assert layer.nnz == round((1 - sparsity) * 2000)
    _, counts = count_rows(layer.pattern)
    assert int(counts.max() - counts.min()) <= 1


def test_every_place_is_drawn_about_as_often_as_any_other() -> None:
    total = sum(
        (SparseLinear(8, 6, density=0.25).weight.detach().to_dense() != 0).double() for _ in range(400)
    )
    assert (total - 100).abs().max() < 40


def test_values_begin_scaled_to_the_entries_of_their_row() -> None:
    layer = SparseLinear(400, 300, density=0.1, dtype=torch.float64)
    bound = 1 / math.sqrt(40)
    assert layer.values.abs().max() <= bound
    assert abs(layer.values.std() - bound / math.sqrt(3)) < 0.05 * bound
    assert layer.bias is not None and layer.bias.abs().max() <= bound
    before = layer.values.detach().clone()
    layer.reset_parameters()
    assert not torch.equal(before, layer.values)


def test_blocks_are_drawn_whole_and_their_padding_is_zero() -> None:
    layer = SparseLinear(10, 7, density=0.5, blocks=4, dtype=torch.float64)
    assert str(layer.format) == "bsr(4,4)" and layer.nnz == 3 * 16
    row, _ = count_rows(layer.pattern)
    assert not layer.values[row < 0].any()


def test_the_largest_values_are_kept() -> None:
    dense = torch.nn.Linear(20, 10).double()
    layer = SparseLinear.from_dense(dense, sparsity=0.7)
    kept = layer.weight.detach().to_dense()
    assert layer.nnz == 60
    assert torch.equal(kept[kept != 0], dense.weight[kept != 0])
    assert kept[kept != 0].abs().min() >= dense.weight[kept == 0].abs().max()
    assert torch.equal(layer.bias, dense.bias) and layer.bias is not dense.bias  # type: ignore[arg-type]


def test_the_blocks_with_the_largest_norms_are_kept() -> None:
    weight = torch.full((6, 8), 0.1)
    weight[2:4, 4:8] = 1.0
    weight[0, 0] = 1.5  # the largest value, in a block of small ones
    layer = SparseLinear.from_dense(weight, density=1 / 6, blocks=(2, 4))
    assert layer.bias is None
    assert torch.equal(layer.weight.detach().to_dense() != 0, weight == 1.0)


def test_without_a_share_all_nonzeros_of_a_dense_layer_are_kept() -> None:
    weight = torch.eye(4)
    assert SparseLinear.from_dense(weight).nnz == 4


@pytest.mark.parametrize("make", [lambda mask: mask, lambda mask: scorch.from_torch(mask, "coo")])
def test_a_mask_keeps_places_where_the_weight_is_zero(make: Any) -> None:
    weight = torch.randn(5, 6)
    mask = torch.rand(5, 6) < 0.5
    weight[mask.nonzero()[0][0], mask.nonzero()[0][1]] = 0
    layer = SparseLinear.from_mask(weight, make(mask))
    assert layer.nnz == int(mask.sum())
    assert torch.equal(layer.weight.detach().to_dense(), weight * mask)


def test_the_description_names_the_density() -> None:
    assert "nnz=40, density=10.00%" in repr(SparseLinear(20, 20, 0.9, bias=False))


# used ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("lead", [(), (4,), (2, 3), (1,), (0,), (2, 1, 3)])
def test_the_result_is_that_of_the_dense_layer(format: str, lead: tuple[int, ...]) -> None:
    layer, x = layer_in(format), torch.randn(*lead, 9, dtype=torch.float64)
    found = layer(x)
    assert found.is_contiguous()
    torch.testing.assert_close(found, dense_of(layer, x))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("bias", [True, False])
def test_gradients_are_those_of_the_dense_layer_at_the_entries(format: str, bias: bool) -> None:
    layer, x = layer_in(format, bias), torch.randn(2, 3, 9, dtype=torch.float64, requires_grad=True)
    dense = layer.to_dense()
    y = x.detach().clone().requires_grad_()
    layer(x).square().sum().backward()
    dense(y).square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    assert layer.values.grad is not None and dense.weight.grad is not None
    mask = layer.weight.detach().to_dense() != 0
    gradient = scorch.SparseTensor(scorch._src.storage.storage.Storage(layer.pattern, layer.values.grad))
    torch.testing.assert_close(gradient.to_dense(), dense.weight.grad * mask)
    row, _ = count_rows(layer.pattern)
    assert not layer.values.grad[row < 0].any()
    if bias:
        torch.testing.assert_close(layer.bias.grad, dense.bias.grad)  # type: ignore[union-attr]


@pytest.mark.parametrize("format", ["csr", "csc", "bsr(2,3)"])
def test_gradcheck(format: str) -> None:
    layer = layer_in(format)
    row, _ = count_rows(layer.pattern)
    inside = row >= 0

    def run(values: torch.Tensor, bias: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        all_values = torch.zeros(inside.shape, dtype=values.dtype).masked_scatter(inside, values)
        found: torch.Tensor = torch.func.functional_call(layer, {"values": all_values, "bias": bias}, (x,))
        return found

    assert layer.bias is not None
    given = (layer.values.detach()[inside], layer.bias.detach(), torch.randn(3, 9, dtype=torch.float64))
    inputs = tuple(tensor.clone().requires_grad_() for tensor in given)
    assert torch.autograd.gradcheck(run, inputs)
    assert torch.autograd.gradgradcheck(run, inputs)


def test_sparse_inputs() -> None:
    layer = layer_in("csr")
    x = scorch.rand(5, 9, density=0.3, format="csr", dtype=torch.float64).requires_grad_()
    found = layer(x)
    dense = x.detach().to_dense().requires_grad_()
    expected = dense_of(layer, dense)
    torch.testing.assert_close(found, expected)
    found.square().sum().backward()
    values = layer.values.grad.clone()  # type: ignore[union-attr]
    expected.square().sum().backward()
    assert x.grad is not None and dense.grad is not None
    torch.testing.assert_close(x.grad.to_dense(), dense.grad * (x.detach().to_dense() != 0))
    layer.values.grad = None
    layer(x.detach().to_dense()).square().sum().backward()
    torch.testing.assert_close(values, layer.values.grad)


def test_wrong_inputs_are_named() -> None:
    layer = SparseLinear(9, 7)
    with pytest.raises(ShapeError, match="expects 9 features"):
        layer(torch.ones(3, 8))
    with pytest.raises(ArgumentError, match="not both"):
        SparseLinear(9, 7, 0.5, density=0.5)
    with pytest.raises(ArgumentError, match="sparsity must be between 0 and 1"):
        SparseLinear(9, 7, 90)
    with pytest.raises(FormatError, match="format of a sparse weight must be sparse"):
        SparseLinear(9, 7, 0.5, format="dense")
    with pytest.raises(FormatError, match="does not store blocks"):
        SparseLinear(9, 7, 0.5, blocks=2, format="csr")
    with pytest.raises(ShapeError, match="mask has shape"):
        SparseLinear.from_mask(torch.ones(3, 4), torch.ones(4, 3))
    with pytest.raises(OperandError, match=r"torch\.nn\.Linear or its weight"):
        SparseLinear.from_dense("weight")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="in_features"):
        SparseLinear(-1, 7)
    layer.values = torch.nn.Parameter(torch.ones(3))
    with pytest.raises(ShapeError, match="change both with rewire"):
        layer(torch.ones(3, 9))


# saved -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("assign", [False, True])
def test_a_state_dict_keeps_format_places_and_values(format: str, assign: bool) -> None:
    layer, x = layer_in(format), torch.randn(4, 9, dtype=torch.float64)
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other = SparseLinear(9, 7, 0.1, dtype=torch.float64)
    kept = other.values
    other.load_state_dict(torch.load(file, weights_only=True), assign=assign)
    assert other.format == layer.format
    assert torch.equal(other(x), layer(x))
    assert assign or other.values is kept
    other.values.data.zero_()
    assert layer.values.any()


def test_weights_handed_out_do_not_change_when_another_state_is_loaded() -> None:
    layer, other = SparseLinear(9, 7, 0.5), SparseLinear(9, 7, 0.5)
    places = layer.weight.detach().to_dense() != 0
    held = scorch.SparseTensor(scorch._src.storage.storage.Storage(layer.pattern, torch.ones(layer.nnz)))
    layer.load_state_dict(other.state_dict())
    assert torch.equal(held.to_dense() != 0, places)


def test_a_dense_or_sparse_weight_can_be_loaded() -> None:
    dense = torch.nn.Linear(9, 7)
    layer = SparseLinear(9, 7, 0.5)
    mask = layer.weight.detach().to_dense() != 0
    layer.load_state_dict(dense.state_dict())
    assert torch.equal(layer.weight.detach().to_dense(), dense.weight * mask)
    sparse = scorch.rand(7, 9, density=0.2)
    layer.load_state_dict({"weight": sparse, "bias": dense.bias})
    assert str(layer.format) == "csr" and torch.equal(layer.weight.detach().to_dense(), sparse.to_dense())


def older_state(layer: SparseLinear) -> dict[str, torch.Tensor]:
    """The state of a layer in csr as it was saved with a tensor for each array."""
    pos, crd = layer.pattern.pos[1], layer.pattern.crd[1]
    assert pos is not None and crd is not None
    arrays = {"format": torch.tensor([2, *map(ord, layer.format.spelling), 0, 1]), "pos1": pos, "crd1": crd}
    state = {name: value for name, value in layer.state_dict().items() if name != "pattern"}
    return state | {f"pattern.{name}": array for name, array in arrays.items()}


def test_states_that_do_not_fit_are_refused() -> None:
    layer = SparseLinear(9, 7, 0.5)
    state, older = layer.state_dict(), older_state(layer)
    SparseLinear(9, 7, 0.5).load_state_dict(older)
    for before, change, words in [
        (older, {"pattern.crd1": older["pattern.crd1"] + 9}, "coordinates must be from 0 to 8"),
        (older, {"pattern.pos1": older["pattern.pos1"].flip(0)}, "the first pointer must be 0"),
        (older, {"pattern.crd1": older["pattern.crd1"] * 0}, "not sorted"),
        (older, {"pattern.format": torch.tensor([1, 2])}, "not describe a format"),
        (state, {"pattern": state["pattern"][:-1]}, "truncated"),
        (state, {"pattern": state["pattern"][:7]}, "truncated"),
        (state, {"pattern": state["pattern"].long()}, "32-bit integers"),
        (state, {"pattern": state["pattern"][:0]}, "begin with its format"),
        (state, {"pattern": state["pattern"].clone().index_fill_(0, torch.tensor([0]), -5)}, "begin with"),
        (
            state,
            {"pattern": state["pattern"].clone().index_fill_(0, torch.tensor([-5]), -1)},
            "be from 0 to 8",
        ),
        (state, {"pattern": state["pattern"].clone().index_fill_(0, torch.tensor([-1]), -1)}, "of shape"),
        (state, {"values": torch.ones(3)}, "one per nonzero"),
    ]:
        with torch.device("meta"):
            empty = torch.nn.Linear(9, 7)
        with pytest.raises(RuntimeError, match=words):
            SparseLinear(9, 7, 0.5).load_state_dict({**before, **change})
        for dense in (torch.nn.Linear(9, 7), empty):
            with pytest.raises(RuntimeError, match=words):
                scorch.nn.load_sparse(dense, {**before, **change})
    with pytest.raises(RuntimeError, match=r"Missing.*pattern"):
        layer.load_state_dict({"values": state["values"], "bias": state["bias"]})
    with pytest.raises(RuntimeError, match=r"it is of a weight of shape \(7, 9\)"):
        SparseLinear(8, 5, 0.5).load_state_dict(state)
    with pytest.raises(RuntimeError, match="5 positions above need 6"):
        SparseLinear(8, 5, 0.5).load_state_dict({**state, "pattern": state["pattern"][:-4]})


@pytest.mark.whole
@pytest.mark.parametrize("columns", [40, 40_000, 1 << 16, (1 << 16) + 1])
def test_patterns_are_saved_in_as_few_bytes_as_columns_take(columns: int) -> None:
    layer = SparseLinear(columns, 3, density=30 / columns)
    loaded = SparseLinear(columns, 3, density=0.0)
    loaded.load_state_dict(layer.state_dict())
    assert torch.equal(loaded.weight.detach().to_dense(), layer.weight.detach().to_dense())
    size = 2 if columns <= 1 << 16 else 4
    words = layer.state_dict()["pattern"].numel()
    assert words == 1 + 5 + 3 + 4 + 3 + -(-size * layer.nnz // 4) + 4


def test_copies_have_values_of_their_own_and_dtypes_change() -> None:
    layer, x = SparseLinear(9, 7), torch.randn(3, 9)
    other = copy.deepcopy(layer)
    assert other.pattern is layer.pattern
    with torch.no_grad():
        other.values.zero_()
    assert layer.values.any()
    assert layer.double()(x.double()).dtype == torch.float64
    assert layer.to(torch.bfloat16)(x.bfloat16()).dtype == torch.bfloat16


# learned ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("foreach", [True, False])
def test_adamw_lowers_the_loss_like_a_masked_dense_layer(foreach: bool) -> None:
    layer = SparseLinear(30, 20, 0.8, dtype=torch.float64)
    dense = layer.to_dense()
    mask = layer.weight.detach().to_dense() != 0
    x, y = torch.randn(64, 30, dtype=torch.float64), torch.randn(64, 20, dtype=torch.float64)
    ours, theirs = (
        torch.optim.AdamW(part.parameters(), lr=0.02, weight_decay=0.1, foreach=foreach)
        for part in (layer, dense)
    )
    losses = []
    for _ in range(40):
        ours.zero_grad()
        theirs.zero_grad()
        loss = F.mse_loss(layer(x), y)
        other = F.mse_loss(F.linear(x, dense.weight * mask, dense.bias), y)
        loss.backward()
        other.backward()
        torch.testing.assert_close(loss, other)
        ours.step()
        theirs.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]
    torch.testing.assert_close(layer.weight.detach().to_dense(), dense.weight.detach() * mask)
    assert all(
        state.numel() in (1, layer.nnz)
        for state in ours.state[layer.values].values()
        if isinstance(state, torch.Tensor)
    )


def test_a_network_of_sparse_layers_learns_a_rule() -> None:
    net = torch.nn.Sequential(SparseLinear(16, 64, 0.5), torch.nn.ReLU(), SparseLinear(64, 1, 0.5))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    x = torch.randn(512, 16)
    y = (x[:, :1] * x[:, 1:2] > 0).float()
    for _ in range(200):
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(net(x), y)
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.35


# rewired ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["csr", "csc", "bsr(2,3)"])
@pytest.mark.parametrize("density", [0.4, 0.2, 0.7])
def test_values_gradients_and_optimizer_states_stay_with_their_places(format: str, density: float) -> None:
    layer, x = layer_in(format), torch.randn(4, 9, dtype=torch.float64)
    optimizer = torch.optim.Adam(layer.parameters())
    layer(x).square().sum().backward()
    optimizer.step()

    def spread(values: torch.Tensor) -> torch.Tensor:
        return scorch.SparseTensor(
            scorch._src.storage.storage.Storage(layer.pattern, values.detach())
        ).to_dense()

    def facts() -> list[torch.Tensor]:
        state = optimizer.state[layer.values]
        return [spread(array) for array in (layer.values, layer.values.grad, state["exp_avg"])]  # type: ignore[arg-type]

    before, places = facts(), spread(torch.ones(layer.nnz)) != 0
    kept = layer.values
    mask = scorch.rand(7, 9, density=density, format="csr") != 0
    found = layer.rewire(mask, new=0.0, optimizer=optimizer)
    stored = spread(torch.ones(layer.nnz)) != 0
    assert layer.values is kept and found.shape == (layer.nnz,)
    for old, now in zip(before, facts(), strict=True):
        torch.testing.assert_close(now, old * stored)
    assert torch.equal(spread((found >= 0).double()) != 0, stored & places)
    optimizer.zero_grad()
    layer(x).square().sum().backward()
    optimizer.step()
    torch.testing.assert_close(layer(x), dense_of(layer, x))


def test_a_rewired_layer_takes_the_values_that_are_given() -> None:
    layer = SparseLinear(9, 7, 0.5)
    weight = scorch.rand(7, 9, density=0.3, format="coo")
    layer.rewire(weight)
    assert str(layer.format) == "csr" and torch.equal(layer.weight.detach().to_dense(), weight.to_dense())
    with pytest.raises(ArgumentError, match="as in new=0"):
        layer.rewire(weight != 0)
    with pytest.raises(ShapeError, match="weight must have shape"):
        layer.rewire(scorch.rand(9, 7, density=0.3))


def test_layers_of_other_kinds_are_refused_by_name() -> None:
    message = r"that of a Conv2d has shape \(8, 3, 3, 3\); use scorch.sparsify for other layers"
    with pytest.raises(ShapeError, match=message):
        SparseLinear.from_dense(torch.nn.Conv2d(3, 8, 3), sparsity=0.5)


def test_other_places_in_another_process_are_noticed() -> None:
    layer, other = SparseLinear(9, 7, 0.5), SparseLinear(9, 7, 0.5)
    layer.seal.copy_(layer.seal.clone())
    layer(torch.ones(2, 9))
    layer.seal.copy_(other.seal)  # as DistributedDataParallel does
    with pytest.raises(CallError, match="the sparsity pattern differs from rank 0"):
        layer(torch.ones(2, 9))


def test_inference_follows_every_change_of_the_layer() -> None:
    torch.manual_seed(0)
    layer, x = SparseLinear(12, 7, sparsity=0.5), torch.rand(3, 12)

    def check() -> None:
        expected = torch.nn.functional.linear(
            x.to(layer.values.dtype), layer.weight.detach().to_dense(), layer.bias
        )
        with torch.no_grad():
            torch.testing.assert_close(layer(x.to(layer.values.dtype)), expected)

    check()
    with torch.no_grad():
        layer.values.mul_(3)
    check()
    layer.values.data = torch.rand_like(layer.values)
    check()
    copied = copy.deepcopy(layer)
    with torch.no_grad():
        copied.values.zero_()
        assert torch.equal(copied(x), copied.bias.expand(3, 7))
    check()
    layer.load_state_dict(SparseLinear(12, 7, sparsity=0.5).state_dict())
    check()
    layer.rewire(torch.rand(7, 12) < 0.3, new=0.5)
    check()
    layer.double()
    check()
    assert "_inference_cache" in vars(layer) and b"_inference_cache" not in pickle.dumps(layer)
    again = pickle.loads(pickle.dumps(layer))
    with torch.no_grad():
        assert torch.equal(again(x.double()), layer(x.double()))


def test_inference_is_seen_by_modes_of_torch() -> None:
    seen = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    layer = SparseLinear(12, 7, sparsity=0.5)
    with torch.no_grad(), Mode():
        layer(torch.rand(3, 12))
    assert torch.nn.functional.linear in seen


# repeated calls with gradients -----------------------------------------------------------------------


def gradients_of(output: torch.Tensor, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """First and second derivatives, all of them nonzero."""
    first = torch.autograd.grad(output.pow(3).sum(), tensors, create_graph=True)
    loss = torch.stack([gradient.square().sum() for gradient in first]).sum()
    return [*first, *torch.autograd.grad(loss, tensors)]


@pytest.mark.parametrize("format", ["csr", "bsr(2,3)"])
@pytest.mark.parametrize("bias", [True, False])
def test_a_repeated_call_has_the_gradients_of_the_dense_layer(format: str, bias: bool) -> None:
    layer = layer_in(format, bias)
    for _ in range(3):
        x = torch.randn(5, 9, dtype=torch.float64, requires_grad=True)
        learned = [x, *layer.parameters()]
        expected = gradients_of(F.linear(x, layer.weight.to_dense(), layer.bias), learned)
        torch.testing.assert_close(gradients_of(layer(x), learned), expected)


def test_a_write_to_values_between_forward_and_backward_is_refused() -> None:
    layer = layer_in("csr")
    for _ in range(2):
        x = torch.randn(5, 9, dtype=torch.float64, requires_grad=True)
        output = layer(x)
    with torch.no_grad():
        layer.values.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


def test_a_layer_in_another_dtype_forgets_what_it_cached() -> None:
    layer, x = layer_in("csr"), torch.randn(5, 9)
    layer(x.double()), layer(x.double())
    layer.float()
    assert layer(x).dtype == torch.float32
    torch.testing.assert_close(layer(x), dense_of(layer, x))


def test_modes_of_torch_see_the_call_of_a_layer() -> None:
    seen: list[Any] = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    layer, x = layer_in("csr"), torch.randn(5, 9, dtype=torch.float64)
    layer(x)
    with Mode():
        layer(x)
    assert F.linear in seen


@pytest.mark.whole
@pytest.mark.parametrize(
    ("columns", "format"), [(40, "csr"), (40, "bsr(4,4)"), (40, "coo"), (70_000, "csr"), (40_000, "csr")]
)
def test_a_pattern_from_a_file_has_the_fingerprint_of_the_one_that_was_saved(
    columns: int, format: str
) -> None:
    pattern = scorch.nn.SparseLinear(columns, 8, sparsity=0.9, format=format).pattern
    loaded = pattern_from_words(pattern_to_words(pattern), pattern.shape, pattern.device)
    assert is_same_pattern(pattern, loaded)
    assert compute_fingerprint(loaded) == compute_fingerprint(pattern)


def test_a_pattern_of_64_bit_integers_can_be_saved() -> None:
    own = SparseLinear(40, 8, sparsity=0.5).pattern
    pos, crd = (tuple(None if a is None else a.long() for a in arrays) for arrays in (own.pos, own.crd))
    wide = Pattern(own.format, own.shape, pos, crd, own.counts)  # as one with more than 2**31 entries
    assert compute_fingerprint(wide) == compute_fingerprint(own)
    assert is_same_pattern(pattern_from_words(pattern_to_words(wide), own.shape, own.device), own)


def test_a_file_of_a_weight_with_fewer_columns_is_refused() -> None:
    """Each of its entries has a place in a wider weight, too."""
    state = SparseLinear(48, 32).state_dict()
    wider = SparseLinear(64, 32)
    message = r"which has shape \(32, 64\) in the model: it is of a weight of shape \(32, 48\)"
    with pytest.raises(RuntimeError, match=message):
        wider.load_state_dict(state)
    with pytest.raises(RuntimeError, match=message):
        scorch.nn.load_sparse(torch.nn.Linear(64, 32), state)
    older = {**state, "pattern": state["pattern"][:-4]}
    same = SparseLinear(48, 32)
    same.load_state_dict(older)
    found = scorch.nn.load_sparse(torch.nn.Linear(48, 32), state)
    assert torch.equal(same(torch.ones(2, 48)), found(torch.ones(2, 48)))

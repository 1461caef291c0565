"""Writes to the weight of a sparse layer reach the layer, or raise an error: none is lost silently."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import scorch
from scorch.errors import InPlaceError, UnsupportedError

ASSIGNMENTS = ("__iadd__", "__imul__", "__isub__", "__itruediv__", "__ipow__", "__imod__", "__ifloordiv__")
METHODS = sorted(
    name
    for name in dir(torch.Tensor)
    if (name.endswith("_") and not name.startswith("_")) or name in (*ASSIGNMENTS, "__setitem__")
)
SHAPE = (4, 6)


def ones(*shape: int) -> torch.Tensor:
    return torch.full(shape, 0.5, dtype=torch.float64)


SAME = object()  # stands for a tensor with the shape of the weight
ROWS = torch.tensor([2, 0])
PLACES = torch.tensor([[0, 1, 2, 3, 0, 1], [3, 2, 1, 0, 3, 2]])
MASK = torch.arange(24).reshape(SHAPE) % 3 == 0
ARGUMENTS: list[tuple[Any, ...]] = [
    (),
    (0.5,),
    (2,),
    (0.1, 0.7),
    (SAME,),
    (SAME, SAME),
    (SAME, 0.5),
    (0, 1),
    (0, ROWS, 0.0),
    (0, ROWS, 2.0),
    (0, ROWS, ones(2, 6)),
    (0, ROWS, ones(2, 6), "amax"),
    (0, PLACES, ones(2, 6)),
    (0, PLACES, ones(2, 6), "amin"),
    (0, PLACES, 0.0),
    (MASK, 0.0),
    (MASK, 3.0),
    (MASK, ones(24)),
    ((ROWS, ROWS), ones(2)),
    ((ROWS, ROWS), ones(2) * 0),
    (torch.tensor([0, 7]), ones(2)),
    (ones(4, 3), ones(3, 6)),
    (ones(4), ones(6)),
    (2, 0, 1.0),
    (lambda element: element + 1,),
    ((1, 2), 5.0),
    (0, 5.0),
    ((slice(None), 3), ones(4)),
    (MASK, 0.25),
    (ROWS, 0.0),
    ((0, slice(1, 3)), 0.0),
]
LAYERS: dict[str, Callable[[], tuple[Any, str]]] = {
    "csr": lambda: (scorch.nn.SparseLinear(6, 4, sparsity=0.6, dtype=torch.float64), "weight"),
    "bsr": lambda: (scorch.nn.SparseLinear(6, 4, sparsity=0.6, blocks=2, dtype=torch.float64), "weight"),
    "csc": lambda: (scorch.nn.SparseLinear(6, 4, sparsity=0.6, format="csc", dtype=torch.float64), "weight"),
    "convolution": lambda: (pruned(nn.Conv2d(4, 8, 3)), "weight"),
    "embedding": lambda: (pruned(nn.Embedding(9, 7)), "weight"),
    "LSTM": lambda: (pruned(nn.LSTM(5, 3)), "weight_hh_l0"),
    "attention": lambda: (pruned(nn.MultiheadAttention(8, 2)), "in_proj_weight"),
}


def pruned(layer: nn.Module) -> Any:
    return scorch.sparsify(layer.double(), sparsity=0.6, prefer="size")


def make(kind: str = "csr") -> tuple[Any, str]:
    torch.manual_seed(0)
    return LAYERS[kind]()


def dense_parts(layer: Any, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The weight as a dense tensor, and where it is stored."""
    weight = getattr(layer, name).detach()
    return weight.to_dense(), scorch.SparseTensor(weight.storage).with_values(1).to_dense() != 0


SOME = ("__setitem__", "clamp_", "copy_", "fill_", "masked_fill_", "mul_", "normal_")
CALLS = [
    *((method, "weight", "csr") for method in METHODS),
    *((method, of, "csr") for of in ("weight.data", "weight.T", "weight.detach()[1:]") for method in SOME),
    *(
        (method, "weight", kind)
        for kind in LAYERS
        if kind != "csr"
        for method in ("mul_", "copy_", "normal_")
    ),
]
MOST_CALLS = 2  # of a method


def call(weight: torch.Tensor, of: str, method: str, arguments: tuple[Any, ...], seed: int = 0) -> None:
    torch.manual_seed(seed)
    arguments = tuple(ones(*weight.shape) if each is SAME else each for each in arguments)
    if getattr(eval(of, {"weight": weight}), method)(*arguments) is NotImplemented:
        raise TypeError(method)


@pytest.mark.whole
@pytest.mark.parametrize(("method", "of", "kind"), CALLS)
def test_in_place_functions_change_the_layer_or_raise(method: str, of: str, kind: str) -> None:
    tried = 0
    layer, name = make(kind)
    before, is_stored = dense_parts(layer, name)
    values = [parameter.detach().clone() for parameter in layer.parameters()]
    for arguments in ARGUMENTS:
        weight, again = before.clone(), before.clone()
        try:
            call(weight, of, method, arguments)
            call(again, of, method, arguments, seed=1)
        except Exception:
            continue
        if weight.shape != before.shape or torch.equal(weight, before):
            continue
        tried += 1
        with torch.no_grad():
            for parameter, old in zip(layer.parameters(), values, strict=True):
                parameter.copy_(old)
            try:
                call(getattr(layer, name), of, method, arguments)
            except (RuntimeError, TypeError, ValueError):
                assert torch.equal(dense_parts(layer, name)[0], before)
                continue
        after, _ = dense_parts(layer, name)
        if torch.equal(weight, again):
            torch.testing.assert_close(after, torch.where(is_stored, weight, 0), equal_nan=True)
        else:  # random numbers
            assert not torch.equal(after, before), arguments
        if tried == MOST_CALLS:
            break
    assert tried or of != "weight" or method not in SOME


@pytest.mark.whole
@pytest.mark.parametrize("method", [name for name in METHODS if name in SOME or name.startswith("__i")])
def test_with_gradients_the_weight_is_a_leaf(method: str) -> None:
    layer, _ = make()
    before = layer.values.detach().clone()
    dense = nn.Parameter(layer.weight.detach().to_dense())
    for arguments in ARGUMENTS:
        try:
            call(dense.detach().clone(), "weight", method, arguments)
        except Exception:
            continue
        with pytest.raises(RuntimeError, match="leaf"):
            call(dense, "weight", method, arguments)
        with pytest.raises(InPlaceError, match="leaf"):
            call(layer.weight, "weight", method, arguments)
        break
    assert torch.equal(layer.values, before)


@pytest.mark.whole
@pytest.mark.parametrize("kind", LAYERS)
def test_writes_to_values_and_initializers_reach_the_layer(kind: str) -> None:
    layer, name = make(kind)
    writes: list[Callable[[Any], Any]] = [
        nn.init.xavier_uniform_,
        lambda weight: weight.data.clamp_(-0.01, 0.01),
        lambda weight: weight.data.values().mul_(2),
        lambda weight: nn.init.normal_(weight, std=0.02),
        lambda weight: setattr(weight, "data", weight.detach() * 3),
    ]
    for write in writes:
        before = [parameter.detach().clone() for parameter in layer.parameters()]
        nn.Sequential(layer).apply(
            lambda module, write=write: write(getattr(module, name)) if module is layer else None
        )
        assert any(not torch.equal(a, b) for a, b in zip(before, layer.parameters(), strict=True))
    layer.train()
    getattr(layer, name).square().sum().backward()  # the graph and the seal are intact
    assert copy.deepcopy(layer)(*example_of(layer)) is not None


def example_of(layer: Any) -> tuple[Any, ...]:
    kind = type(layer).__name__
    size = {"SparseConv2d": (1, 4, 5, 5), "SparseLSTM": (2, 1, 5), "SparseMultiheadAttention": (2, 1, 8)}
    if kind == "SparseEmbedding":
        return (torch.tensor([1, 2]),)
    x = torch.rand(size.get(kind, (2, 6)), dtype=torch.float64)
    return (x, x, x) if "Attention" in kind else (x,)


def test_single_elements_outside_the_pattern_are_refused() -> None:
    layer, _ = make()
    _, is_stored = dense_parts(layer, "weight")
    row, column = map(int, (~is_stored).nonzero()[0])
    with torch.no_grad():
        layer.weight[row, column] = 0.0
        with pytest.raises(InPlaceError, match=r"outside the sparsity pattern.*layer.values.*layer.rewire"):
            layer.weight[row, column] = 5.0
        with pytest.raises(InPlaceError, match=r"outside the sparsity pattern"):
            layer.weight[row : row + 1, column : column + 1] = 5.0
        with pytest.raises(UnsupportedError, match=r"computed from layer.values"):
            layer.weight.t_()


def test_writes_that_cannot_reach_the_layer_raise() -> None:
    layer, _ = make()
    weight = layer.weight.detach()
    layer.float()
    with torch.no_grad(), pytest.raises(UnsupportedError, match=r"replaced since.*layer.rewire"):
        weight.mul_(2)
    layer.double()
    small = scorch.sparsify(nn.Linear(8, 8), sparsity=0.5, prefer="size", weight_dtype=torch.int8)
    with torch.no_grad(), pytest.raises(UnsupportedError, match=r"computed from layer.values"):
        small.weight.mul_(2)
    with pytest.raises(UnsupportedError, match=r"computed from layer.values"):
        layer.weight.data = torch.ones(2, 2)
    for attribute in ("weight", "weight_orig"):
        with pytest.raises(UnsupportedError):
            setattr(layer, attribute, nn.Parameter(torch.ones(SHAPE)))


@pytest.mark.whole
@pytest.mark.parametrize("kind", ["csr", "bsr", "convolution"])
@pytest.mark.parametrize("change", ["as many", "more", "load"])
def test_a_weight_that_was_kept_follows_the_pattern_of_the_layer(kind: str, change: str) -> None:
    layer, name = make(kind)
    (matrix,) = layer.matrices().values()
    kept, tracked = layer.weight.detach(), layer.weight
    part, earlier, size, (_, was_stored) = kept[1], 2 * tracked, matrix.nnz, dense_parts(layer, name)
    other = torch.rand(matrix.pattern.shape, dtype=torch.float64)
    if change == "load":
        source = scorch.nn.SparseLinear.from_dense(other, density=0.7, format=str(matrix.format))
        matrix.load_state_dict(source.state_dict(), strict=False)
    else:
        count = matrix.nnz if change == "as many" and kind != "bsr" else matrix.nnz + 3
        mask = torch.zeros(other.numel()).index_fill_(0, torch.randperm(other.numel())[:count], 1.0)
        matrix.rewire(mask.reshape(other.shape), new=0.5)
    expected, is_stored = dense_parts(layer, name)
    assert torch.equal(kept.to_dense(), expected) and torch.equal(tracked.detach().to_dense(), expected)
    assert torch.equal(part.to_dense(), expected[1])
    factors = torch.rand(expected.shape, dtype=torch.float64)
    if matrix.nnz == size:
        (gradient,) = torch.autograd.grad((tracked * factors).sum(), matrix.values)
        (again,) = torch.autograd.grad((layer.weight * factors).sum(), matrix.values)
        torch.testing.assert_close(gradient, again)
        (gradient,) = torch.autograd.grad(earlier.sum(), matrix.values)
        assert torch.equal(kept.with_values(gradient).to_dense(), 2.0 * (is_stored & was_stored))
    else:
        with pytest.raises(InPlaceError, match=r"read layer.weight, again"):
            (tracked * factors).sum().backward()
    with torch.no_grad():
        kept.mul_(2)
    assert torch.equal(dense_parts(layer, name)[0], 2 * expected)
    assert "_kept_weights" not in pickle.loads(pickle.dumps(layer)).__dict__


@pytest.mark.whole
@pytest.mark.parametrize("kind", LAYERS)
def test_a_weight_that_requires_gradients_is_written_to_several_times(kind: str) -> None:
    layer, name = make(kind)
    weight = getattr(layer, name)
    expected, is_stored = dense_parts(layer, name)
    with torch.no_grad():
        for each in (weight, expected):
            each.mul_(2)
            each[0] = 0.0
            each[:, 1] = 0.0
            each.add_(0.25)
            each[1] *= 3.0
    torch.testing.assert_close(dense_parts(layer, name)[0], torch.where(is_stored, expected, 0))
    if weight.dim() == 2:
        nn.init.sparse_(weight, 0.5)
    weight.sum().backward()


def test_copies_of_a_weight_are_tensors_of_their_own() -> None:
    layer, _ = make()
    before = layer.values.detach().clone()
    file = io.BytesIO()
    torch.save(layer.weight.detach(), file)
    file.seek(0)
    weight = layer.weight.detach()
    copies = [weight.clone(), copy.deepcopy(weight), pickle.loads(pickle.dumps(weight)), torch.load(file)]
    for each in copies:
        each.zero_()
        each[0, 0] = 1.0
        assert each.to_dense().sum() == 1
    assert torch.equal(layer.values, before)


def test_a_hook_of_the_weight_is_called_and_changes_the_gradient() -> None:
    layer, _ = make()
    seen: list[Any] = []

    def hook(gradient: Any) -> Any:
        seen.append(gradient)
        return gradient * 2

    x = torch.rand(3, 6, dtype=torch.float64)
    layer(x).sum().backward()
    expected, layer.values.grad = layer.values.grad, None
    handle = layer.weight.register_hook(hook)
    layer(x).sum().backward()
    assert len(seen) == 1 and isinstance(seen[0], scorch.SparseTensor) and seen[0].shape == (4, 6)
    torch.testing.assert_close(layer.values.grad, 2 * expected)
    handle.remove()
    layer(x).sum().backward()
    assert len(seen) == 1


def test_weights_and_their_hooks_do_not_keep_a_layer_alive() -> None:
    layer, _ = make()
    layer.weight.register_hook(lambda gradient: gradient)
    layer.weight.register_post_accumulate_grad_hook(lambda weight: None)
    layer.weight.sum().backward()
    for _ in range(1000):
        layer.weight.detach()
    assert len(layer.__dict__["_kept_weights"]) < 500
    found = weakref.ref(layer)
    del layer
    gc.collect()
    assert found() is None


def test_a_weight_is_frozen_and_gets_a_gradient_like_a_dense_one() -> None:
    layer, _ = make()
    layer.weight.requires_grad_(False)
    assert not layer.values.requires_grad and not layer.weight.requires_grad
    layer.weight.requires_grad = True
    assert layer.values.requires_grad
    layer.weight.grad = torch.ones(SHAPE, dtype=torch.float64)
    assert torch.equal(layer.values.grad, torch.ones_like(layer.values))
    with pytest.raises(UnsupportedError, match="detach_"):
        layer.weight.detach_()


@pytest.mark.whole
@pytest.mark.parametrize("kind", ["csr", "bsr", "convolution"])
def test_the_gradient_of_a_weight_is_that_of_the_values(kind: str) -> None:
    layer, _ = make(kind)
    seen: list[Any] = []
    weight = layer.weight
    handle = weight.register_post_accumulate_grad_hook(lambda each: seen.append(each.grad))
    layer(*example_of(layer)).square().sum().backward()
    gradient = layer.values.grad
    handle.remove()
    expected = gradient.clone()
    for found in (weight.grad, layer.weight.grad, *seen):
        assert found.shape == weight.shape and torch.equal(found.values().flatten(), expected)
    assert len(seen) == 1
    nn.utils.clip_grad_norm_([layer.weight], 0.5)
    torch.testing.assert_close(gradient.norm().item(), 0.5)
    layer.weight.grad[0] = 0.0
    layer.weight.grad *= 2
    assert layer.values.grad is gradient and not layer.weight.grad[0].to_dense().any() and gradient.any()
    layer.weight.grad.zero_()
    assert not gradient.any()
    layer.weight.grad = None
    assert layer.values.grad is None and layer.weight.grad is None
    loss = layer(*example_of(layer)).square().sum() + weight.sum()
    expected = torch.autograd.grad(loss, layer.values, retain_graph=True)
    for each in (weight, layer.weight):
        found, none = torch.autograd.grad(loss, (each, layer.bias), retain_graph=True)
        assert found.shape == weight.shape and torch.equal(found.values().flatten(), *expected)
        assert none is not None
    (first,) = torch.autograd.grad(layer.weight.square().sum(), layer.values, create_graph=True)
    first.square().sum().backward()
    torch.testing.assert_close(layer.weight.grad.values().flatten(), 8 * layer.values.detach())


def test_all_sparse_layers_have_the_same_properties_and_hints() -> None:
    for kind in LAYERS:
        layer, name = make(kind)
        weights = [matrix.weight for matrix in layer.matrices().values()]
        assert layer.nnz == sum(weight.nnz for weight in weights) and 0 < layer.density < 1
        assert layer.nnz == sum(p.numel() for n, p in layer.named_parameters() if n.endswith("values"))
        assert getattr(layer, name).dim() in (2, 4)
        for missing, words in (
            ("sparsity", "1 - layer.density"), ("mask", "layer.weight != 0"), ("prune", "scorch.sparsify"),
            ("nnzz", "did you mean 'nnz'"),
        ):  # fmt: skip
            assert not hasattr(layer, missing)
            with pytest.raises(AttributeError, match=words):
                getattr(layer, missing)
        with pytest.raises(AttributeError, match="use from_dense"):
            _ = type(layer).from_linear
        if len(weights) == 1:
            assert layer.values.numel() == layer.nnz and layer.format == weights[0].format
        else:
            with pytest.raises(AttributeError, match=r"use layer\.(ih_l0|in_proj)\.values"):
                _ = layer.values


def test_torch_prune_is_refused_with_what_to_use() -> None:
    for kind in ("csr", "convolution", "embedding"):
        layer, name = make(kind)
        with pytest.raises(UnsupportedError, match=r"masks dense weights.*scorch.sparsify"):
            nn.utils.prune.l1_unstructured(layer, name, 0.5)


def test_misuse_says_what_to_do() -> None:
    layer, _ = make()
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    with pytest.raises(TypeError, match=r"shapes of matrices.*distribution='erk'"):
        scorch.nn.erdos_renyi_densities(nn.Sequential(nn.Linear(20, 20)), 0.9)
    with pytest.raises(ValueError, match="stop_step is required"):
        scorch.nn.RigL(layer, optimizer, update_every=10)
    with pytest.raises(TypeError, match=r"RigL expected a model and its optimizer.*stop_step"):
        scorch.nn.RigL(layer)
    with pytest.raises(ValueError, match=r"dense tensor as a mask.*new=0.0.*from_torch"):
        layer.rewire(torch.ones(SHAPE))
    with pytest.raises(TypeError, match=r"use new="):
        layer.rewire(torch.ones(SHAPE), fill=0.0)
    attention, x = scorch.nn.MultiheadAttention(8, 2), torch.rand(2, 16, 8)
    with pytest.raises(ValueError, match=r"\(tokens, batch, features\): batch_first=True\?"):
        attention(x, x, x, pairs=scorch.nn.masks.window(16, 2))

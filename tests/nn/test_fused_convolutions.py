"""Sparse convolutions with the batch norm, the residual and the activation that follow them."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import scorch
from scorch._src.backends.cpu import parallel
from scorch._src.backends.cpu.routines import by_rows, convolve
from scorch._src.backends.routines import Routines
from scorch._src.compiler.target import host_target, using_target
from scorch._src.nn.pruned.fused_modules import FusedSequential
from scorch._src.ops.products import convolution

OPTIONS: tuple[dict[str, Any], ...] = (
    {"kernel_size": 1},
    {"kernel_size": 1, "stride": 2},
    {"kernel_size": 3, "padding": 1},
    {"kernel_size": 3, "stride": 2, "groups": 2, "bias": False},
    {"kernel_size": 3, "padding": 1, "padding_mode": "reflect"},
)
IMAGES = ((1, 6, 5, 40), (3, 6, 16, 8), (2, 6, 7, 7))
TOLERANCES = {torch.float32: 2e-5, torch.float64: 1e-12}


@pytest.fixture(autouse=True)
def other_cpus() -> Iterator[None]:
    by_rows.text_of.cache_clear()
    yield
    by_rows.text_of.cache_clear()


def fill(norm: Any) -> Any:
    """Draw the statistics and parameters of a batch norm."""
    with torch.no_grad():
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
        if norm.affine:
            norm.weight.normal_()
            norm.bias.normal_()
    return norm


def sparse_layer(dtype: torch.dtype = torch.float32, **options: Any) -> Any:
    conv = nn.Conv2d(6, 10, **options, dtype=dtype)
    return scorch.sparsify(conv, 0.75, prefer="size").eval()


def check(layer: Any, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Compare all that may follow with PyTorch's operations in float64."""
    x, dense = torch.randn(shape, dtype=dtype), layer.to_dense().double()
    plain = dense(x.double())
    added = torch.randn_like(plain).to(dtype)
    norms = (
        None,
        fill(nn.BatchNorm2d(10, dtype=dtype)).eval(),
        fill(nn.BatchNorm2d(10, eps=0.1, affine=False, dtype=dtype)).eval(),
    )
    for norm, residual, name in itertools.product(norms, (None, added), (None, "relu", "silu")):
        wanted = plain if norm is None else copy.deepcopy(norm).double()(plain)
        wanted = wanted if residual is None else wanted + residual
        wanted = {None: lambda y: y, "relu": F.relu, "silu": F.silu}[name](wanted)
        found = layer.fused(x, name, residual, norm)
        assert found.dtype == dtype
        torch.testing.assert_close(
            found.double(), wanted, rtol=TOLERANCES[dtype], atol=10 * TOLERANCES[dtype]
        )


@pytest.mark.whole
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("is_torch", [False, True], ids=["routine", "torch"])
@torch.no_grad()
def test_what_follows_is_what_pytorch_computes(
    dtype: torch.dtype, is_torch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    if is_torch:
        monkeypatch.setattr(convolution, "routines_for", lambda tensor: Routines())
    for options, shape in itertools.product(OPTIONS, IMAGES):
        check(sparse_layer(dtype, **options), shape, dtype)


@pytest.mark.whole
@pytest.mark.cpu("routines in C")
@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
@torch.no_grad()
def test_what_follows_in_vectors_of_any_width(vector_bytes: int) -> None:
    torch.manual_seed(0)
    with using_target(dataclasses.replace(host_target(), vector_bytes=vector_bytes)):
        for options in OPTIONS[:3]:
            check(sparse_layer(**options), (2, 6, 7, 9), torch.float32)


@pytest.mark.whole
@pytest.mark.cpu("routines in C")
@pytest.mark.parametrize("least", [0, 1 << 40])
@torch.no_grad()
def test_what_follows_on_several_threads(least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(convolve, "MIN_READ_OF_COPY", least)
    monkeypatch.setattr(by_rows, "MIN_ELEMENTS_PER_THREAD", 1)
    monkeypatch.setattr(parallel, "threads_for", lambda work, least: 3)
    for options, shape in itertools.product(OPTIONS[:3], IMAGES):
        check(sparse_layer(**options), shape, torch.float32)


def sequence(dims: int = 2) -> tuple[Any, Any]:
    """A sparse network of a convolution, a batch norm and ReLU, and the same with a dense weight."""
    torch.manual_seed(0)
    conv, norm = ((nn.Conv1d, nn.BatchNorm1d), (nn.Conv2d, nn.BatchNorm2d))[dims - 1]
    model = nn.Sequential(conv(6, 10, 3), fill(norm(10)), nn.ReLU(True), conv(10, 4, 3), nn.GELU())
    sparse = scorch.sparsify(model, 0.75, prefer="size").eval()
    dense = copy.deepcopy(sparse)
    dense[0], dense[3] = dense[0].to_dense(), dense[3].to_dense()
    dense.__class__ = nn.Sequential
    return sparse, dense.eval()


@pytest.mark.whole
@pytest.mark.parametrize("dims", [1, 2])
def test_a_sequence_gives_what_its_modules_give(dims: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sparse, dense = sequence(dims)
    assert type(sparse) is FusedSequential
    for x in (torch.randn(2, 6, *(9,) * dims), torch.randn(6, *(9,) * dims)):
        if dims == 2 or x.dim() == dims + 2:  # PyTorch's batch norms take batches only, but for 1d
            x = x if x.dim() == dims + 2 else x[None]
            with torch.no_grad():
                torch.testing.assert_close(sparse(x), dense(x), rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(sparse(x), dense(x), rtol=1e-4, atol=1e-5)  # with gradients
    calls: list[Any] = []
    monkeypatch.setattr(
        nn.BatchNorm1d if dims == 1 else nn.BatchNorm2d, "forward", lambda *args: calls.append(args)
    )
    with torch.no_grad():
        sparse(torch.randn(2, 6, *(9,) * dims))
    assert not calls  # it is fused


def test_statistics_and_weights_that_change_are_read() -> None:
    sparse, dense = sequence()
    x = torch.randn(2, 6, 9, 9)
    with torch.no_grad():
        sparse(x)
        for model in (sparse, dense):
            model[1].running_mean.add_(1)
            model[1].weight.mul_(3)
            model[1].eps = 0.5
        sparse[0].kernels.values.mul_(2)
        dense[0].weight.mul_(2)
        torch.testing.assert_close(sparse(x), dense(x), rtol=1e-4, atol=1e-5)
        sparse.load_state_dict(sequence()[0].state_dict())
        sparse[1].eps = 1e-5
        torch.testing.assert_close(sparse(x), sequence()[1](x), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(copy.deepcopy(sparse)(x), sequence()[1](x), rtol=1e-4, atol=1e-5)


def test_training_updates_statistics_and_learns() -> None:
    sparse, dense = sequence()
    x, before = torch.randn(4, 6, 9, 9), sparse[1].running_mean.clone()
    for part in (sparse, dense):
        part.train()
    with torch.no_grad():
        torch.testing.assert_close(sparse(x), dense(x), rtol=1e-4, atol=1e-4)
    assert not torch.equal(sparse[1].running_mean, before)
    torch.testing.assert_close(sparse[1].running_mean, dense[1].running_mean, rtol=1e-4, atol=1e-5)
    wanted = torch.autograd.grad(dense(x).square().sum(), [dense[1].weight, dense[3].bias])
    found = torch.autograd.grad(sparse(x).square().sum(), [sparse[1].weight, sparse[3].kernels.bias])
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)
    sparse.eval()
    sparse[0].kernels.requires_grad_(False)
    loss = sparse(x).sum()  # the batch norm alone learns
    assert torch.autograd.grad(loss, sparse[1].weight)[0].abs().sum() > 0


def test_hooks_and_autocast_keep_modules_apart() -> None:
    sparse, dense = sequence()
    x, seen = torch.randn(2, 6, 9, 9), []
    handle = sparse[0].register_forward_hook(lambda module, args, output: seen.append(output.clone()))
    sparse[1].register_forward_hook(lambda module, args, output: seen.append(output.clone()))
    with torch.no_grad():
        torch.testing.assert_close(sparse(x), dense(x), rtol=1e-4, atol=1e-5)
        handle.remove()
        torch.testing.assert_close(sparse(x), dense(x), rtol=1e-4, atol=1e-5)
        with torch.autocast("cpu", torch.bfloat16):
            found, wanted = sparse(x), dense(x)
    assert len(seen) == 4 and bool((seen[1] < 0).any())
    torch.testing.assert_close(found, wanted, rtol=0.1, atol=0.1)


@torch.no_grad()
def test_a_sign_that_torch_keeps_in_a_flag_is_read() -> None:
    torch.manual_seed(0)
    layer, x = sparse_layer(kernel_size=1), torch.randn(2, 6, 4, 4)
    lazy = torch._neg_view
    wanted = F.relu(layer(-x) - layer(x))
    torch.testing.assert_close(layer.fused(lazy(x), "relu", lazy(layer(x))), wanted)
    torch.testing.assert_close(layer(lazy(x)), layer(-x))


class Residual(nn.Module):
    """A block as torchvision writes it, in place."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(8, 8, 3, padding=1, bias=False), fill(nn.BatchNorm2d(8))
        self.conv2, self.norm2 = nn.Conv2d(8, 8, 1), fill(nn.BatchNorm2d(8))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.conv1(x)
        out = self.norm1(out)
        out = self.relu(out)
        out = self.norm2(self.conv2(out))
        out += x
        return self.relu(out)  # type: ignore[no-any-return]


def blocks() -> tuple[Any, Any]:
    torch.manual_seed(0)
    sparse = scorch.sparsify(nn.Sequential(Residual(), Residual()), 0.75, prefer="size").eval()
    dense = copy.deepcopy(sparse)
    for block in dense:
        block.conv1, block.conv2 = block.conv1.to_dense(), block.conv2.to_dense()
    return sparse, dense


def test_compiled_blocks_are_fused_though_they_work_in_place() -> None:
    sparse, dense = blocks()
    compiled, x = scorch.compile(sparse), torch.randn(2, 8, 5, 5)
    kept = x.clone()
    with torch.no_grad():
        wanted = dense(x.clone())
        for _ in range(3):
            torch.testing.assert_close(compiled(x), wanted, rtol=1e-4, atol=1e-5)
        report = str(scorch.explain(compiled, x))
    assert torch.equal(x, kept)
    assert report.count("convolution, batch_norm, relu") == 2
    assert report.count("convolution, batch_norm, add, relu") == 2
    assert "relu(((sum(c, i, j, W[o,c,i,j] * x[n,c,y+i,x+j])) - mean[o])" in report
    torch.testing.assert_close(compiled(x), dense(x.clone()), rtol=1e-4, atol=1e-5)  # with gradients
    sparse.train(), dense.train()
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), dense(x.clone()), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(sparse[0].norm1.running_var, dense[0].norm1.running_var, rtol=1e-3, atol=1e-4)


@torch.no_grad()
def test_values_that_are_read_before_a_change_in_place_stay() -> None:
    torch.manual_seed(0)
    layer, x = sparse_layer(kernel_size=1), torch.randn(2, 6, 4, 4)

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        out = layer(x)
        total = out + 1  # reads it before
        same = out
        out.relu_()
        F.relu(out, inplace=True)
        other = layer(x)
        other += out
        return out, total, same, other

    for found, wanted in zip(scorch.compile(program)(x), program(x), strict=True):
        torch.testing.assert_close(found, wanted)


@torch.no_grad()
def test_compiled_convolutions_that_no_rule_records() -> None:
    torch.manual_seed(0)
    one = scorch.sparsify(nn.Conv1d(6, 4, 3, padding=1, padding_mode="circular"), 0.75, prefer="size").eval()
    two, x = sparse_layer(kernel_size=3), torch.randn(6, 9)
    torch.testing.assert_close(scorch.compile(lambda x: F.relu(one(x)))(x), F.relu(one(x)))
    images = torch.randn(6, 5, 5)
    torch.testing.assert_close(scorch.compile(lambda x: F.relu(two(x)))(images), F.relu(two(images)))


@pytest.mark.whole
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_convolution_is_one_operator_of_a_graph(backend: str) -> None:
    sparse, dense = sequence()
    graphs: list[Any] = []

    def watch(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return torch._dynamo.lookup_backend(backend)(graph, inputs)

    torch.compiler.reset()
    compiled, x = torch.compile(sparse, backend=watch, fullgraph=True), torch.randn(2, 6, 9, 9)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), dense(x), rtol=1e-4, atol=1e-5)
    targets = [str(node.target) for node in graphs[0].graph.nodes]
    assert targets.count("scorch.convolution.default") + targets.count("scorch.convolution") == 2
    wanted = torch.autograd.grad(dense(x).square().sum(), dense[1].weight)
    found = torch.autograd.grad(compiled(x).square().sum(), sparse[1].weight)
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.whole
@pytest.mark.parametrize("dims", [1, 2])
def test_a_batch_norm_without_a_batch_is_pytorch_s(dims: int) -> None:
    sparse, dense = sequence(dims)
    with torch.no_grad():
        for length in (9, 12):  # 12: as many windows as channels, which PyTorch takes them for
            image = torch.randn(6, *(length,) * dims)
            results = []
            for model in (sparse[:3], dense[:3]):
                try:
                    results.append(model(image))
                except (RuntimeError, ValueError) as error:
                    results.append(str(error))
            if isinstance(results[1], str):
                assert results[0] == results[1]
            else:
                torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


@pytest.mark.whole
@pytest.mark.parametrize("size", [(0, 6, 9, 9), (2, 6, 2, 9), (2, 6, 0, 9), (6, 0, 9)])
@pytest.mark.parametrize("is_dynamic", [False, True])
def test_images_without_pixels_or_windows(size: tuple[int, ...], is_dynamic: bool) -> None:
    layer = sparse_layer(kernel_size=3, padding=(0, 1) if 0 in size[1:] else 0)
    torch.compiler.reset()
    compiled = torch.compile(layer, backend="eager", dynamic=is_dynamic)
    x = torch.randn(size)
    for call in (layer, scorch.compile(layer), compiled):
        with torch.no_grad():
            if size[0]:
                with pytest.raises(RuntimeError):
                    layer.to_dense()(x)
                with pytest.raises(RuntimeError):
                    call(x)
            else:
                assert call(x).shape == (0, 10, 7, 7)


def test_a_graph_of_any_number_of_images_takes_none() -> None:
    layer = sparse_layer(kernel_size=3)
    with torch.no_grad():
        images = torch.export.Dim("images", min=0)
        example = (torch.randn(2, 6, 9, 9),)
        program = torch.export.export(layer.requires_grad_(False), example, dynamic_shapes=({0: images},))
        assert program.module()(torch.randn(0, 6, 9, 9)).shape == (0, 10, 7, 7)
        x = torch.randn(3, 6, 9, 9)
        torch.testing.assert_close(program.module()(x), layer(x))


def test_a_convolution_is_exported() -> None:
    sparse, dense = sequence()
    x = torch.randn(2, 6, 9, 9)
    with torch.no_grad():
        program = torch.export.export(sparse.requires_grad_(False), (x,))
        torch.testing.assert_close(program.module()(x), dense(x), rtol=1e-4, atol=1e-5)

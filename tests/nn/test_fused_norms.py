"""Norms of models with sparse layers, which are computed in one pass over memory."""

from __future__ import annotations

import copy
import io
import itertools
from typing import Any

import pytest
import torch
from torch import nn

import scorch
from scorch._src.backends.cpu import parallel
from scorch._src.backends.cpu.routines import few_values
from scorch._src.nn.pruned.fused_modules import fuse_modules
from scorch._src.nn.pruned.fused_norms import FusedLayerNorm, FusedRMSNorm

SHAPES = (((3, 5, 67), (67,)), ((1, 1, 256), (256,)), ((2, 3, 7), (3, 7)), ((4, 1), (1,)))
TOLERANCES = {torch.float32: 2e-6, torch.float64: 1e-13, torch.bfloat16: 1e-2}


class Block(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm, self.linear = norm, nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.norm(x))  # type: ignore[no-any-return]


def sparse_block(norm: nn.Module) -> Any:
    torch.manual_seed(0)
    return scorch.sparsify(Block(norm), 0.5, prefer="size").eval()


def filled(norm: nn.Module) -> nn.Module:
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.normal_()
    return norm


@pytest.mark.whole
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_norms_are_as_exact_as_pytorch_s(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    options: tuple[dict[str, Any], ...] = ({}, {"elementwise_affine": False}, {"eps": 0.1})
    kinds = ((nn.LayerNorm, FusedLayerNorm), (nn.RMSNorm, FusedRMSNorm))
    for (shape, sizes), (plain, fused), option in itertools.product(SHAPES, kinds, options):
        norm = filled(plain(sizes, dtype=dtype, **option))  # type: ignore[operator]
        made = fused(sizes, dtype=dtype, **option)
        made.load_state_dict(norm.state_dict())
        for size, offset in ((1, 0), (1, 3), (1e-4, 0), (0, 0)):
            x = (torch.randn(shape) * size + offset).to(dtype)
            with torch.no_grad():
                found = made(x)
            assert found.dtype == dtype and "_last_norm" in vars(made)
            double = copy.deepcopy(norm).double()
            if double.eps is None:
                double.eps = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
            error = (found.double() - double(x.double())).abs().max().item()
            assert error <= TOLERANCES[dtype] * max(1, double(x.double()).abs().max().item()) * (1 + offset)


@pytest.mark.cpu("routines in C")
def test_threads_share_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(few_values, "MIN_NORMED_PER_THREAD", 1)
    monkeypatch.setattr(parallel, "threads_for", lambda work, least: 3)
    norm, x = FusedLayerNorm(33), torch.randn(2, 4, 33)
    with torch.no_grad():
        torch.testing.assert_close(norm(x), nn.LayerNorm(33)(x))


def test_norms_of_sparse_models_are_fused_and_those_of_dense_ones_plain() -> None:
    model = sparse_block(nn.RMSNorm(32))
    assert type(model.norm) is FusedRMSNorm and "RMSNorm((32,)" in str(model)
    model.linear = model.linear.to_dense()
    assert type(fuse_modules(model).norm) is nn.RMSNorm
    dense = scorch.sparsify(Block(nn.LayerNorm(32)), 0.5, skip=["linear"])
    assert type(dense.norm) is nn.LayerNorm


@pytest.mark.parametrize("norm", [nn.LayerNorm(32), nn.RMSNorm(32, eps=1e-3)], ids=["layer", "rms"])
def test_gradients_autocast_and_changes_are_those_of_pytorch_s_norm(norm: nn.Module) -> None:
    fused, x = sparse_block(filled(norm)).norm, torch.randn(3, 32, requires_grad=True)
    wanted = torch.autograd.grad(norm(x).square().sum(), [x, *norm.parameters()])
    torch.testing.assert_close(torch.autograd.grad(fused(x).square().sum(), [x, *fused.parameters()]), wanted)
    with torch.no_grad():
        torch.testing.assert_close(fused(x.detach()), norm(x))
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(fused(x.detach()), norm(x))
        for changed in (fused, norm):
            changed.weight.mul_(2)
            changed.eps = 0.5
        torch.testing.assert_close(fused(x.detach()), norm(x))
        torch.testing.assert_close(torch.func.vmap(fused)(x), norm(x))
        for strided in (x.detach().expand(2, 3, 32), torch.randn(32, 3).t(), x.detach()[:0]):
            torch.testing.assert_close(fused(strided), norm(strided))
        half = fused.bfloat16()(x.bfloat16())
        torch.testing.assert_close(half.float(), norm(x), rtol=0.02, atol=0.02)


def test_errors_of_norms_are_pytorch_s() -> None:
    with torch.no_grad(), pytest.raises(RuntimeError, match="normalized_shape"):
        sparse_block(nn.LayerNorm(32)).norm(torch.ones(2, 31))


def test_hooks_copies_and_files_of_fused_norms() -> None:
    model, seen = sparse_block(nn.LayerNorm(32)), []
    x = torch.randn(2, 32)
    model.norm.register_forward_hook(lambda module, args, output: seen.append(output))
    with torch.no_grad():
        wanted = model(x)
        assert torch.equal(copy.deepcopy(model)(x), wanted)
    assert len(seen) == 2
    model.norm._forward_hooks.clear()
    file = io.BytesIO()
    torch.save(model.norm, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    with torch.no_grad():
        assert torch.equal(loaded(x), model.norm(x))
    assert model.state_dict().keys() >= {"norm.weight", "norm.bias"}


class LlamaLikeRMSNorm(nn.Module):
    """As Hugging Face writes it for many models."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.variance_epsilon = 1e-6

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        return self.weight * hidden_states.to(dtype)


class GemmaLikeRMSNorm(LlamaLikeRMSNorm):
    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return super().forward(hidden_states) / self.weight * (1 + self.weight)


class ShiftedRMSNorm(LlamaLikeRMSNorm):
    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return super().forward(hidden_states) + 1e-3


class TwoArgumentsNorm(LlamaLikeRMSNorm):
    def forward(self, hidden_states: torch.Tensor, scale: float = 1.0) -> torch.Tensor:  # type: ignore[override]
        return super().forward(hidden_states) * scale


class SingleNorm(LlamaLikeRMSNorm):
    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        assert hidden_states.dim() == 3
        return super().forward(hidden_states)


def test_norms_of_other_libraries_are_fused_where_they_compute_rms_norm() -> None:
    for kind in (GemmaLikeRMSNorm, ShiftedRMSNorm, TwoArgumentsNorm, SingleNorm):
        assert type(sparse_block(kind(32)).norm) is kind
    model = sparse_block(LlamaLikeRMSNorm(32))
    assert type(model.norm) is not LlamaLikeRMSNorm and isinstance(model.norm, LlamaLikeRMSNorm)
    assert "LlamaLikeRMSNorm()" in str(model) and set(model.norm.state_dict()) == {"weight"}
    with torch.no_grad():
        model(torch.randn(2, 32))
    assert "_last_norm" in vars(model.norm)
    model.linear = model.linear.to_dense()
    assert type(fuse_modules(model).norm) is LlamaLikeRMSNorm
    with torch.device("meta"):
        empty = Block(LlamaLikeRMSNorm(32))
    loaded = scorch.nn.load_sparse(empty, sparse_block(LlamaLikeRMSNorm(32)).state_dict())
    assert type(loaded.norm) is not LlamaLikeRMSNorm and bool((loaded.norm.weight == 1).all())  # type: ignore[union-attr, operator]


def test_fused_norms_of_other_libraries_do_as_before() -> None:
    torch.manual_seed(0)
    norm = filled(LlamaLikeRMSNorm(32))
    model, x = sparse_block(norm), torch.randn(2, 3, 32)
    fused, tracked = model.norm, x.clone().requires_grad_()
    wanted = torch.autograd.grad(norm(tracked).square().sum(), [tracked, *norm.parameters()])
    found = torch.autograd.grad(fused(tracked).square().sum(), [tracked, *fused.parameters()])
    torch.testing.assert_close(found, wanted)
    file = io.BytesIO()
    torch.save(fused, file)
    file.seek(0)
    copies = fused, copy.deepcopy(fused), torch.load(file, weights_only=False)
    with torch.no_grad():
        for made in copies:
            assert type(made) is type(fused)
            torch.testing.assert_close(made(x), norm(x))
            assert torch.equal(made(x.bfloat16()), norm(x.bfloat16()))
            with torch.autocast("cpu", torch.bfloat16):
                assert torch.equal(made(x), norm(x))
        for changed in (*copies, norm):
            changed.weight.mul_(2)
            changed.variance_epsilon = 0.5
        for made in copies:
            torch.testing.assert_close(made(x), norm(x))
        torch.testing.assert_close(torch.func.vmap(fused)(x), norm(x))
        torch.testing.assert_close(torch.export.export(fused, (x,)).module()(x), norm(x))
        seen: list[torch.Tensor] = []
        fused.register_forward_hook(lambda module, args, output: seen.append(output))
        torch.testing.assert_close(fused(x), norm(x))
    assert len(seen) == 1

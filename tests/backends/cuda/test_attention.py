"""Attention on CUDA devices, where there is none: its kernels emulated."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F

import scorch
from grid_emulator import noting
from scorch._src.backends.cuda.routines import attention_blocks
from scorch._src.backends.cuda.routines.attention_plan import Size
from scorch._src.ops.attention.mask_pairs import find_pairs
from scorch._src.ops.attention.sdpa import attend

Tensor = torch.Tensor


def window(queries: int, keys: int) -> Tensor:
    return (torch.arange(queries)[:, None] - torch.arange(keys)).abs() <= 20


def window_and_global(queries: int, keys: int) -> Tensor:
    mask = window(queries, keys)
    mask[:3], mask[:, :3] = True, True
    return mask


def with_empty_rows(queries: int, keys: int) -> Tensor:
    mask = window(queries, keys)
    mask[5:9], mask[:, 11] = False, False
    return mask


MASKS: dict[str, Callable[[int, int], Tensor]] = {
    "window": window,
    "window and global": window_and_global,
    "random": lambda queries, keys: torch.rand(queries, keys) < 0.03,
    "empty rows": with_empty_rows,
    "causal": lambda queries, keys: torch.ones(queries, keys, dtype=torch.bool).tril(),
    "nothing": lambda queries, keys: torch.zeros(queries, keys, dtype=torch.bool),
}


@pytest.fixture(autouse=True)
def emulated() -> Iterator[list[str]]:
    """Run kernels of CUDA devices on the host; return the names of those that were run."""
    noted = noting(lambda source, name: name.removeprefix("scorch_attention_"))
    with noted as names, scorch.settings(backend="emulated"):
        yield names


def operands(shapes: list[tuple[int, ...]], dtype: torch.dtype) -> list[Tensor]:
    return [torch.randn(shape).to(dtype).requires_grad_() for shape in shapes]


def gradients(output: Tensor, inputs: list[Tensor], gradient: Tensor) -> list[Tensor]:
    return [output, *torch.autograd.grad(output, inputs, gradient)]


def check(mask: Tensor, inputs: list[Tensor], scale: float | None = None) -> None:
    """Compare the result and all gradients with those of dense attention in float64."""
    wide = [tensor.detach().double().requires_grad_() for tensor in inputs]
    expected = F.scaled_dot_product_attention(*wide, attn_mask=mask, scale=scale)
    expected = torch.where(mask.any(-1, keepdim=True), expected, 0)
    sparse = scorch.from_torch(mask, format="csr" if mask.dim() == 2 else None)
    output = F.scaled_dot_product_attention(*inputs, attn_mask=sparse, scale=scale)
    gradient = torch.randn(output.shape, dtype=torch.float64).to(output.dtype)
    results = gradients(output, inputs, gradient)
    tolerance = 2e-5 if output.dtype == torch.float32 else 3e-2
    wanted = gradients(expected, wide, gradient.double())
    for result, exact in zip(results, wanted, strict=True):
        assert result.dtype == inputs[0].dtype
        torch.testing.assert_close(result.double(), exact, rtol=tolerance, atol=tolerance)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", MASKS)
def test_results_and_gradients_are_those_of_dense_attention(
    name: str, dtype: torch.dtype, emulated: list[str]
) -> None:
    torch.manual_seed(0)
    queries, keys = 70, 75
    mask = MASKS[name](queries, keys)
    check(mask, operands([(2, queries, 16), (2, keys, 16), (2, keys, 16)], dtype))
    assert {"forward", "delta", "queries", "keys"} <= {*emulated}
    assert "tiles" in emulated


def test_sizes_that_are_no_multiples_of_tiles(emulated: list[str]) -> None:
    torch.manual_seed(1)
    sizes = ((1, 1, 1, 1), (130, 65, 20, 40), (64, 128, 64, 16), (3, 200, 17, 128))
    for queries, keys, depth, width in sizes:
        shapes: list[tuple[int, ...]] = [(queries, depth), (keys, depth), (keys, width)]
        check(torch.rand(queries, keys) < 0.6, operands(shapes, torch.float32))
    assert emulated.count("forward") == 4


def test_heads_with_masks_of_their_own_that_are_views_and_broadcast(emulated: list[str]) -> None:
    torch.manual_seed(2)
    queries, keys, depth = 66, 130, 16
    drawn = torch.rand(queries, keys) < 0.5
    masks = torch.stack([window(queries, keys), drawn, with_empty_rows(queries, keys)])
    Q = torch.randn(2, queries, 3, depth).transpose(1, 2).requires_grad_()  # (batch, heads, queries, depth)
    K, V = operands([(1, 3, keys, depth), (2, 1, keys, depth)], torch.float32)
    check(masks, [Q, K, V], scale=-0.3)
    Q, K, V = operands([(2, 1, 1, 3, queries, depth), (keys, depth), (keys, 8)], torch.float32)
    check(masks, [Q, K, V])
    assert emulated.count("queries_join") == 0
    few = torch.stack([torch.rand(queries, keys) < 0.01, torch.rand(queries, keys) < 0.04])
    check(few, operands([(2, queries, depth), (2, keys, depth), (2, keys, depth)], torch.float32))


@pytest.mark.parametrize("several", [False, True])
def test_blocks_with_many_tiles_are_cut(
    several: bool, emulated: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_blocks, "MIN_CUT", 2)
    monkeypatch.setattr(attention_blocks, "FEW_CUT", 1)
    torch.manual_seed(3)
    size = 300
    mask = window(size, size)
    mask[:2], mask[:, :2], mask[1, 0], mask[5] = True, True, False, False
    masks = torch.stack([mask, mask.roll(150, 1)]) if several else mask
    check(masks, operands([(2, size, 16)] * 3, torch.float32))
    assert {"forward_join", "queries_join", "keys_join"} <= {*emulated}


@pytest.mark.parametrize("share", [0.03, 0.6])
def test_dropout_and_skipped_keys_are_those_of_the_processor(share: float, emulated: list[str]) -> None:
    torch.manual_seed(4)
    queries, keys = 70, 140
    mask = scorch.from_torch(torch.rand(queries, keys) < share, format="csr")
    skipped = torch.rand(2, 1, keys) < 0.3
    skipped[1] = share > 0.5  # nobody sees anything
    inputs = operands([(2, 2, queries, 16), (2, 2, keys, 16), (2, 2, keys, 16)], torch.float32)
    gradient = torch.randn(2, 2, queries, 16)
    results = []
    for backend in ("emulated", "cpu"):
        with scorch.settings(backend=backend):
            pairs = find_pairs(scorch.from_torch(mask.to_dense(), format="csr"))
            torch.manual_seed(5)  # the emulator draws, too
            output = attend(*inputs, pairs, (2, 2), dropout=0.4, skipped=skipped)
            results.append(gradients(output, inputs, gradient))
    for result, exact in zip(*results, strict=True):
        torch.testing.assert_close(result, exact, rtol=2e-5, atol=2e-5)
    assert {"forward", "queries", "keys"} <= {*emulated}


@pytest.mark.parametrize("share", [0.03, 0.6])
def test_results_repeat_and_positions_may_be_wide(share: float) -> None:
    torch.manual_seed(6)
    mask = torch.rand(90, 70) < share
    inputs = operands([(2, 90, 16), (2, 70, 16), (2, 70, 16)], torch.bfloat16)
    results = []
    for dtype in (torch.int32, torch.int64):
        pattern = mask.to_sparse_csr()
        csr = torch.sparse_csr_tensor(
            pattern.crow_indices().to(dtype), pattern.col_indices().to(dtype), pattern.values(), mask.shape
        )
        output = F.scaled_dot_product_attention(*inputs, attn_mask=scorch.from_torch(csr))
        results.append(gradients(output, inputs, torch.ones_like(output)))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_what_has_no_kernel_runs_pair_by_pair(emulated: list[str]) -> None:
    mask = torch.rand(20, 20) < 0.5
    for dtype, depth in ((torch.float64, 8), (torch.float32, 130)):
        inputs = operands([(20, depth)] * 3, dtype)
        sparse = scorch.from_torch(mask, format="csr")
        output = F.scaled_dot_product_attention(*inputs, attn_mask=sparse)
        expected = F.scaled_dot_product_attention(*inputs, attn_mask=mask)
        torch.testing.assert_close(output, expected)
    assert "forward" not in emulated


def test_blocks_fit_into_shared_memory() -> None:
    most = 227 << 10  # of an H200
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        assert Size(128, 128, 2).shared_bytes(dtype, is_forward=False) <= most
    assert 3 * (Size(64, 64, 2).shared_bytes(torch.bfloat16, is_forward=False) + 1024) <= most
    assert 4 * (Size(64, 64, 2).shared_bytes(torch.bfloat16, is_forward=True) + 1024) <= most

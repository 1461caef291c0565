"""The routines of sparse attention, forward and backward, give what masked dense attention gives."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path
from textwrap import dedent

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import scorch
from fork_server import run_python
from on_device import is_on_device
from scorch._src.backends.cpu.routines.attention import fused as routine
from scorch._src.backends.cpu.routines.attention.source import source
from scorch._src.compiler.target import target
from scorch._src.nn import masks
from scorch._src.ops.attention import reference
from scorch._src.ops.attention import sdpa as meaning
from scorch._src.ops.attention.mask_pairs import find_pairs
from scorch._src.ops.attention.sdpa import attend, make_heads

attention = F.scaled_dot_product_attention


@pytest.fixture(autouse=True)
def never_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    """Full masks too go through the routines."""
    monkeypatch.setattr(meaning, "MIN_DENSE_SHARE", 2.0)


def drawn(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def structured(queries: int, keys: int, kind: str, seed: int = 0) -> torch.Tensor:
    """Masks whose blocks of queries share keys, do not, or both."""
    generator = torch.Generator().manual_seed(seed)
    i, j = torch.arange(queries)[:, None], torch.arange(keys)[None]
    scattered = torch.rand(queries, keys, generator=generator) < 0.05
    match kind:
        case "scattered":
            return scattered
        case "window":
            return (i - j).abs() <= 9
        case "blocks":
            chosen = torch.rand(queries // 8 + 1, keys // 8 + 1, generator=generator) < 0.4
            return chosen[i // 8, j // 8]
        case "mixed":  # a window above, scattered pairs below, a key for all, queries without any
            mask = torch.where(i < queries // 2, (i - j).abs() <= 9, scattered) | (j == 3)
            return mask & (i % 11 != 5)
    return torch.ones(queries, keys, dtype=torch.bool)


def compare(q, k, v, mask, dense, **options):
    """Values and gradients, against dense attention in float64."""
    found, wanted = ([t.clone().requires_grad_() for t in (q, k, v)] for _ in range(2))
    out = attention(*found, attn_mask=mask, **options)
    truth = attention(*(tensor.double() for tensor in wanted), attn_mask=dense, **options)
    limits = {"rtol": 1e-7, "atol": 1e-9} if q.dtype == torch.float64 else {"rtol": 1e-4, "atol": 2e-5}
    torch.testing.assert_close(out, truth.to(q.dtype), **limits)
    weights = drawn(*out.shape, seed=9)
    (out * weights).sum().backward()
    (truth * weights).sum().backward()
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.grad, other.grad, **limits)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["scattered", "window", "blocks", "mixed", "full"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("threads", [1, 3])
def test_values_and_gradients(kind, dtype, threads):
    dense = structured(150, 170, kind)
    q, k, v = drawn(2, 3, 150, 20, dtype=dtype), drawn(2, 3, 170, 20, dtype=dtype, seed=1), None
    v = drawn(2, 3, 170, 33, dtype=dtype, seed=2)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        compare(q, k, v, scorch.from_torch(dense, format="csr"), dense)
    finally:
        torch.set_num_threads(before)


@given(st.data())
def test_any_shape_format_and_mask(data):
    batch = data.draw(st.sampled_from([(), (1,), (3,), (2, 2)]))
    own = tuple(
        data.draw(st.sampled_from([1, size])) for size in batch[data.draw(st.integers(0, len(batch))) :]
    )
    queries, keys = data.draw(st.integers(0, 40)), data.draw(st.integers(0, 40))
    depth, width = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 20))
    share = data.draw(st.sampled_from([0.0, 0.1, 0.5, 1.0]))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    dense = torch.rand(*own, queries, keys, generator=generator) < share
    form = data.draw(
        st.sampled_from(["csr", "coo", "csf", "dcsr", "csc", "bsr(3,4)"] if not own else ["csr", "coo"])
    )
    q, k, v = (
        drawn(*batch, queries, depth),
        drawn(*batch, keys, depth, seed=1),
        drawn(*batch, keys, width, seed=2),
    )
    compare(q, k, v, scorch.from_torch(dense, format=form), dense)


@pytest.mark.parametrize("kind", ["scattered", "full"])
def test_gradients_by_differences(kind):
    mask = scorch.from_torch(structured(18, 20, kind), format="csr")
    inputs = [drawn(2, 18, 3), drawn(2, 20, 3, seed=1), drawn(1, 20, 2, seed=2)]
    for tensor in inputs:
        tensor.requires_grad_()

    def call(q, k, v):
        return attention(q, k, v.expand(2, -1, -1), attn_mask=mask, scale=0.6)

    assert torch.autograd.gradcheck(call, inputs)


def test_gradients_of_gradients():
    mask = scorch.from_torch(structured(6, 7, "mixed"), format="csr")
    inputs = [drawn(2, 6, 3), drawn(2, 7, 3, seed=1), drawn(2, 7, 2, seed=2)]
    for tensor in inputs:
        tensor.requires_grad_()
    assert torch.autograd.gradgradcheck(lambda q, k, v: attention(q, k, v, attn_mask=mask), inputs)
    q, k, v = inputs
    (first,) = torch.autograd.grad(attention(q, k, v.detach(), attn_mask=mask).sum(), k, create_graph=True)
    assert first.requires_grad


@pytest.mark.sampled(2)
@pytest.mark.parametrize("registers", [(16, 16), (32, 16), (64, 32)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_registers_of_other_processors(registers, dtype, monkeypatch):
    """Compilers split vectors that are wider than the machine's, so that this runs anywhere."""
    machine = dataclasses.replace(target(), vector_bytes=registers[0], vector_registers=registers[1])
    monkeypatch.setattr("scorch._src.backends.cpu.routines.attention.source.target", lambda: machine)
    source.cache_clear()
    try:
        for kind in ("mixed", "full"):
            dense = structured(70, 90, kind)
            q, k = drawn(3, 70, 18, dtype=dtype), drawn(3, 90, 18, dtype=dtype, seed=1)
            v = drawn(3, 90, 21, dtype=dtype, seed=2)
            compare(q, k, v, scorch.from_torch(dense, format="csr"), dense)
    finally:
        source.cache_clear()


def test_tensors_that_lie_anywhere():
    """Heads taken from one projection, as layers do, transposed and repeated tensors."""
    dense = structured(40, 40, "window")
    packed = drawn(2, 40, 3, 4, 8)  # batch, tokens, part, head, features
    q, k, v = (packed[:, :, part].transpose(1, 2) for part in range(3))
    mask = scorch.from_torch(dense, format="csr")
    torch.testing.assert_close(attention(q, k, v, mask), attention(q, k, v, dense))
    turned = drawn(2, 4, 8, 40).transpose(-1, -2)
    torch.testing.assert_close(attention(turned, k, v, mask), attention(turned, k, v, dense))
    one = drawn(1, 1, 40, 8, seed=5).expand(2, 4, 40, 8)
    torch.testing.assert_close(attention(q, one, v, mask), attention(q, one, v, dense))
    compare(q, k, v, mask, dense)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_short_numbers_are_computed_as_float32(dtype):
    dense = structured(64, 64, "window")
    mask = scorch.from_torch(dense, format="csr")
    given = [drawn(2, 64, 16, dtype=dtype, seed=seed).requires_grad_() for seed in range(3)]
    wide = [tensor.detach().float().requires_grad_() for tensor in given]
    found, truth = attention(*given, attn_mask=mask), attention(*wide, attn_mask=mask)
    assert found.dtype == dtype
    if is_on_device():  # tensor cores take weights of the same dtype
        torch.testing.assert_close(found, truth.to(dtype), rtol=1e-2, atol=1e-2)
    else:
        assert torch.equal(found, truth.to(dtype))
    found.sum().backward()
    truth.sum().backward()
    for one, other in zip(given, wide, strict=True):
        assert one.grad.dtype == dtype
        torch.testing.assert_close(one.grad.float(), other.grad, rtol=1e-2, atol=1e-2)


def test_extreme_scores():
    """Maxima that come late, scores far apart, and infinities and NaN where torch has them."""
    dense = structured(40, 200, "full")
    q, k, v = drawn(40, 8), drawn(200, 8, seed=1), drawn(200, 8, seed=2)
    k = k * torch.linspace(0, 60, 200)[:, None]
    compare(q, k, v, scorch.from_torch(dense, format="csr"), dense)
    lone = structured(40, 200, "scattered")
    compare(100 * q, k, v, scorch.from_torch(lone, format="csr"), lone)
    q[3, 0] = torch.nan
    found = attention(q, k, v, scorch.from_torch(dense, format="csr"))
    assert found[3].isnan().all() and not found[2].isnan().any()


def test_threads_agree_and_repeat():
    mask = masks.window(700, 20) | masks.global_tokens(700, 3)
    given = [drawn(1, 3, 700, 16, dtype=torch.float32, seed=seed).requires_grad_() for seed in range(3)]
    results = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 2):
            torch.set_num_threads(threads)
            out = attention(*given, attn_mask=mask)
            results.append([out, *torch.autograd.grad(out.square().sum(), given)])
    finally:
        torch.set_num_threads(before)
    for one, two, again in zip(*results, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)
        assert torch.equal(two, again)


@pytest.mark.cpu("calls its routine")
@pytest.mark.parametrize("kind", ["scattered", "mixed", "full"])
@pytest.mark.parametrize("dropout", [0.3, 1.0])
def test_dropout_is_the_same_backward(kind, dropout):
    """The pairs left out follow from the seed, in the routine as in torch's operations."""
    pairs = find_pairs(scorch.from_torch(structured(40, 50, kind), format="csr"))
    q, k, v = (drawn(3, size, 8, seed=seed).requires_grad_() for seed, size in enumerate((40, 50, 50)))
    heads = make_heads(pairs, (3,), 8, None, dropout)
    found, state = routine.forward(q.detach(), k.detach(), v.detach(), heads)
    wanted = reference.attend(q, k, v, pairs, heads)
    torch.testing.assert_close(found, wanted.detach())
    gradient = drawn(3, 40, 8, seed=5)
    grads = routine.backward(q.detach(), k.detach(), v.detach(), heads, found, state, gradient)
    for one, other in zip(grads, torch.autograd.grad(wanted, (q, k, v), gradient), strict=True):
        torch.testing.assert_close(one, other)
    torch.manual_seed(3)
    first = attend(q, k, v, pairs, (3,), dropout=0.3)
    torch.manual_seed(3)
    assert torch.equal(first, attend(q, k, v, pairs, (3,), dropout=0.3))


def test_pairs_are_found_anew_after_a_change():
    mask = scorch.from_torch(structured(30, 30, "window"), format="csr")
    q, k, v = (drawn(30, 8, seed=seed) for seed in range(3))
    assert find_pairs(mask) is find_pairs(mask)
    attention(q, k, v, mask)
    mask.values()[:40] = False
    torch.testing.assert_close(attention(q, k, v, mask), attention(q, k, v, mask.to_dense()))
    mask[7, 29] = True
    torch.testing.assert_close(attention(q, k, v, mask), attention(q, k, v, mask.to_dense()))
    for causal in (True, False, True):
        dense = mask.to_dense().tril() if causal else mask.to_dense()
        found = attend(q, k, v, find_pairs(mask, causal), ())
        torch.testing.assert_close(found, attention(q, k, v, dense))


def test_without_a_compiler(monkeypatch):
    monkeypatch.setattr(routine, "is_able", lambda dtype: False)
    dense = structured(20, 25, "mixed")
    q, k, v = drawn(2, 20, 4), drawn(2, 25, 4, seed=1), drawn(2, 25, 3, seed=2)
    compare(q, k, v, scorch.from_torch(dense, format="csr"), dense)


SCRIPT = """
    import torch
    import torch.nn.functional as F
    from scorch.nn import masks

    mask = masks.window(16384, 256) | masks.global_tokens(16384, 16)
    q, k, v = (torch.randn(1, 8, 16384, 64, requires_grad=True) for _ in range(3))
    gradient = torch.randn(q.shape)

    def status(name):
        with open("/proc/self/status") as lines:
            return int(next(line for line in lines if line.startswith(name)).split()[1]) / 1024

    small = [t[:, :1, :512].detach().clone().requires_grad_() for t in (q, k, v)]
    F.scaled_dot_product_attention(*small, attn_mask=masks.window(512, 64)).sum().backward()
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak begins anew
    before = status("VmRSS")
    F.scaled_dot_product_attention(q, k, v, attn_mask=mask).backward(gradient)
    print(status("VmHWM") - before)
    row = 9000
    seen = torch.cat([torch.arange(16), torch.arange(row - 256, row + 257)])
    one = F.scaled_dot_product_attention(q[..., row : row + 1, :], k[..., seen, :], v[..., seen, :])
    with torch.no_grad():
        found = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)[..., row : row + 1, :]
    torch.testing.assert_close(found, one.detach(), rtol=1e-4, atol=1e-5)
"""


@pytest.mark.long
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux for the memory of a process")
def test_memory_of_16384_tokens():
    """8 heads of 64: each tensor takes 32 MiB; the scores of all pairs of the mask would take 270."""
    environment = {**os.environ, "PYTHONPATH": str(Path(scorch.__file__).parents[1])}
    done = run_python(["-c", dedent(SCRIPT)], env=environment)
    assert done.returncode == 0, done.stderr
    assert 0 < float(done.stdout) < 200, (
        "MiB for the result, three gradients and what is found out of the mask"
    )

"""Routines over rows: any width of indices and of vectors, any number of threads, hubs and empty rows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import scorch
from backends.cpu.test_other_processors import NAMES, SETS, needs_zig
from scorch._src.backends.cpu import jit
from scorch._src.backends.cpu.routines import (
    by_rows,
    graph_attention,
    neighbour_max,
)


def rows_of(index: torch.dtype, rows: int = 50, columns: int = 40) -> graph_attention.Rows:
    """The first row has every column, every third none."""
    draw = torch.Generator().manual_seed(0)
    A = torch.rand(rows, columns, generator=draw) < 0.2
    A[0], A[2::3] = True, False
    pos = torch.cat([torch.zeros(1), A.sum(1).cumsum(0)]).to(index)
    return graph_attention.Rows(pos, A.nonzero()[:, 1].to(index).contiguous())


def outputs(index: torch.dtype, dtype: torch.dtype, heads: int, width: int) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(40, heads, width, generator=draw, dtype=dtype)
    scores = graph_attention.Scores(
        torch.randn(40, heads, generator=draw, dtype=dtype),
        torch.randn(50, heads, generator=draw, dtype=dtype),
    )
    rows, options = rows_of(index), graph_attention.Options(0.2, 0.3, 7)
    out, kept = graph_attention.attend(rows, x, scores, options, keep=True)
    again, nothing = graph_attention.attend(rows, x, scores, options, keep=False)
    assert kept is not None and nothing is None
    torch.testing.assert_close(out, again, rtol=0, atol=0)
    each, total = graph_attention.scores_backward(rows, x, scores, options, kept, out)
    order = torch.argsort(rows.crd, stable=True)
    targets = torch.arange(50).repeat_interleave(rows.pos.diff())[order].to(index)
    begins = torch.searchsorted(rows.crd[order].contiguous(), torch.arange(41, dtype=index)).to(index)
    columns = graph_attention.Rows(begins, targets, None, order.to(index))
    best, ties = neighbour_max.largest((rows.pos, rows.crd, None), x.flatten(1), with_ties=True)
    assert ties is not None
    back = neighbour_max.largest_backward((begins, targets, None), x.flatten(1), best, ties)
    return [
        out,
        kept,
        each,
        total,
        *graph_attention.features_backward(columns, options, kept, each, out),
        best,
        ties,
        back,
    ]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("heads", "width"), [(1, 1), (1, 33), (3, 8), (8, 16), (2, 5)])
def test_wide_indices_give_the_same(dtype: torch.dtype, heads: int, width: int) -> None:
    narrow = outputs(torch.int32, dtype, heads, width)
    for a, b in zip(narrow, outputs(torch.int64, dtype, heads, width), strict=True):
        torch.testing.assert_close(a, b)  # compilers may join other multiplications and additions


@pytest.mark.parametrize("threads", [2, 5])
def test_threads_give_the_same_bits(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_rows, "MIN_ELEMENTS_PER_THREAD", 1)
    results = []
    for count in (1, threads):
        with scorch.settings(threads=count):
            results.append(outputs(torch.int32, torch.float32, 4, 8))
    for one, many in zip(*results, strict=True):
        torch.testing.assert_close(one, many, rtol=0, atol=0)


@needs_zig
@pytest.mark.parametrize("name", NAMES)
def test_routines_compile_for(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine, triple, cpu = SETS[name]
    texts: list[str] = []

    class Library:
        def address(self, name: str) -> int:
            return 1

    def load(source: str, label: str = "") -> Any:
        texts.append(source)
        return Library()

    for module in ("by_rows", "graph_attention"):
        monkeypatch.setattr(f"scorch._src.backends.cpu.routines.{module}.target", lambda: machine)
    monkeypatch.setattr(jit, "load", load)
    by_rows.text_of.cache_clear()
    jit._function_address.cache_clear()
    x, crd = torch.empty(1, 3, 20, dtype=torch.float64), torch.empty(1, dtype=torch.int32)
    graph_attention._address("attend", x, crd)
    graph_attention._address("attend", x.float(), crd)
    by_rows.address(neighbour_max._SOURCE, "", "largest", torch.float32, torch.int64)
    by_rows.text_of.cache_clear()
    jit._function_address.cache_clear()
    monkeypatch.setenv("ZIG_LOCAL_CACHE_DIR", str(tmp_path / "zig"))
    command = [sys.executable, "-m", "ziglang", "cc", "-target", triple, f"-mcpu={cpu}", "-O1", "-shared"]
    flags = ["-nostdlib", "-fPIC", "-std=gnu11", "-w", "-Werror=implicit-function-declaration"]
    for text in texts:
        (tmp_path / "kernel.c").write_text(text)
        words = [*command, *flags, "-o", "kernel.so", "kernel.c"]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr

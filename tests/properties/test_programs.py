"""Random programs of torch calls (``programs``): sparse tensors are what dense ones are, after every line.

5,000 programs run with ``--long``; a part of them, always the same, otherwise.
"""

from __future__ import annotations

from collections import Counter

import pytest

from properties.programs import Run, Wrong, run_program

PARTS = 8
CI_PROGRAMS = 32
LONG_PROGRAMS = 5_000


@pytest.mark.parametrize("part", range(PARTS))
def test_programs(request: pytest.FixtureRequest, seed: int, part: int) -> None:
    count = LONG_PROGRAMS if request.config.getoption("long") else CI_PROGRAMS
    counts: Counter[str] = Counter()
    for number in range(part, count, PARTS):
        counts += run_program(seed * LONG_PROGRAMS + number).counts
    assert counts["steps"] > 5 * count // PARTS
    assert counts["refused by both"] > count // PARTS // 10


# What such programs have found, by what was wrong.
FOUND = {
    "zeros of a dense tensor that is joined to a sparse one have gradients": [
        't0 = sp(torch.tensor([[0, 3], [2, 0]]), "csr")',
        "t1 = torch.where(torch.tensor([[True, True], [False, True]]), t0, 0.5)",
        "t1.requires_grad_()",
        "t2 = torch.stack([t0, t1], -2)",
        't3 = grad((t2 * torch.arange(8.0).reshape(2, 2, 2)).sum(), t1, "t1")',
    ],
    "results of a transposed tensor lie as it does": [
        't0 = sp(torch.tensor([[0.0, 1.0, 2.0], [2.0, 0.0, 0.0]]), "csr")',
        "t0.t_()",
        "t1 = torch.tanh(t0)",
        "t2 = t1.reshape(-1)",
        "t2.mul_(2)",
        "t3 = t1.view(-1)",
    ],
    "a write that is refused is not done": [
        't1 = sp(torch.tensor([[0.0, 1.0], [2.0, 0.0]]), "csr")',
        "t3 = t1.permute(1, 0)",
        "t3.requires_grad_()",
        "t3.scatter_(0, torch.tensor([[1, 1]]), 2)",
    ],
    "views made before a tensor requires a gradient are connected to it": [
        't1 = sp(torch.tensor([[0.0, 1.0], [2.0, 0.0]]), "csr")',
        "t2 = t1.T",
        "t2[0] = 3.0",
        "t1.requires_grad_()",
        't3 = grad((t2 * torch.tensor([[1.0, 2.0], [3.0, 4.0]])).sum(), t1, "t1")',
    ],
    "views that were reshaped in place": [
        't0 = sp(torch.tensor([[0.0, 1.0], [2.0, 0.0]]), "csr")',
        "t2 = t0.T",
        "t2.unsqueeze_(0)",
        "t0.requires_grad_()",
        't3 = grad((t2 * torch.tensor([[1.0, 2.0], [3.0, 4.0]])).sum(), t0, "t0")',
    ],
    "positive is the tensor itself": [
        't0 = sp(torch.tensor([[0.0, 1.0], [2.0, 0.0]]), "csr")',
        "t1 = torch.positive(t0)",
        "t1.add_(t1)",
    ],
    "tensors and slices in one key, with gradients": [
        't0 = sp(torch.tensor([[0.0, 1.0, 2.0], [2.0, 0.0, 3.0]]), "coo")',
        "t0.requires_grad_()",
        "t1 = t0 * 2",
        "t1[:1, torch.tensor([2, 0])] = 5.0",
        't2 = grad((t1 * t1).sum(), t0, "t0")',
    ],
    "expanded views may be squeezed in place": [
        't0 = sp(torch.tensor([[0.0, 1.0], [2.0, 0.0]]), "csc")',
        "t1 = t0.expand(2, -1, -1)",
        "t1.squeeze_(2)",
    ],
    "expanded views are not assigned to as a whole": [
        't0 = sp(torch.tensor([[0.0, 1.0], [2.0, 0.0]]), "csc")',
        "t1 = t0.expand(2, -1, -1)",
        "t1[...] = -1",
        "t1[0] = -1",
    ],
    "gradients that need what was written to": [
        't0 = sp(torch.tensor([2.0, 0.0, 0.0, 0.0]), "o")',
        "t0.requires_grad_()",
        "t6 = t0 * t0",
        "with torch.no_grad(): t0.masked_fill_(torch.tensor([False, False, True, True]), -1)",
        "t6.sum().backward()",
    ],
    "gradients that do not need what was written to": [
        't0 = sp(torch.tensor([[3.0, 1.0, 0.0, 0.0]]), "csr")',
        "t0.requires_grad_()",
        "t6 = torch.nn.functional.linear(t0, torch.tensor([[0.0, 2.0, -2.0, 3.0]]))",
        "with torch.no_grad(): t0.copy_(torch.tensor([[0.0, -2.0, 2.0, 0.0]]))",
        't1 = grad(t6.sum(), t0, "t0")',
    ],
    "the padding of blocks has no gradient": [
        't0 = sp(torch.tensor([[0.0, 1.0], [1.0, 1.0], [2.0, 0.0]]), "bsr(2,2)")',
        "t0.requires_grad_()",
        "t1 = t0.view_as(t0)",
        "t1.sum().backward()",
    ],
    "whole numbers beside learned ones are no indices": [
        't0 = sp(torch.tensor([[2.0, 0.0], [0.0, 3.0]]), "csr")',
        "t0.requires_grad_()",
        "t1 = torch.stack([torch.erf(t0), torch.tensor([[True, False], [True, True]])], 0)",
        "t2 = torch.cat([torch.tensor([[1, 0]]), t0])",
    ],
    "functions that give the tensor itself, with gradients": [
        't0 = sp(torch.tensor([[2.0, 0.0], [0.0, 3.0]]), "csr")',
        "t0.requires_grad_()",
        "t1 = t0 * 2",
        "t2 = t1.to(torch.float32)",
        "t2.mul_(3)",
        't3 = grad(t1.sum(), t0, "t0")',
    ],
    "what only moves entries to their own places is no view": [
        't0 = sp(torch.tensor([3.0, 0.0, 0.0, 0.0]), "o")',
        "t0.requires_grad_()",
        "t3 = torch.square(t0)",
        "t4 = t0.roll(0, 0)",
        "t4.copy_(torch.maximum(t4, torch.tensor(-1.0)))",
        't5 = grad(t3.sum(), t0, "t0")',
    ],
    "contiguous copies views that do not lie so": [
        't0 = sp(torch.tensor([[2.0, 0.0], [1.0, 3.0]]), "csr")',
        "t1 = t0.T.contiguous()",
        "t1.zero_()",
        "t2 = t0.contiguous()",
        "t2.mul_(3)",
        "t3 = t0[:1].expand(3, 2).contiguous()",
        "t3.mul_(3)",
    ],
    "expand_as and reshape_as are views, with gradients too": [
        't0 = sp(torch.tensor([[2.0, 0.0], [1.0, 3.0]]), "csr")',
        "t0.requires_grad_()",
        "t1 = t0 * 1",
        "t2 = t1.expand_as(torch.ones(2, 2))",
        "t2.mul_(3)",
        "t3 = t1.reshape_as(torch.ones(4))",
        "t3.mul_(2)",
        't4 = grad((t1 * torch.tensor([[1.0, 2.0], [3.0, 4.0]])).sum(), t0, "t0")',
    ],
    "view is refused where memory does not lie so": [
        't0 = sp(torch.tensor([[2.0, 0.0], [1.0, 3.0]]), "csr")',
        "t1 = t0.T.view(-1)",
        "t2 = t0[:, :1].view(-1)",
        "t2 = t0[:1].view(-1)",
    ],
    "powers of one are copies": [
        't0 = sp(torch.tensor([[2.0, 0.0], [1.0, 3.0]]), "csr")',
        "t0.requires_grad_()",
        "t1 = t0 * 1",
        "torch.linalg.matrix_power(t1, 1).zero_()",
    ],
    "dropout of channels in evaluation is the tensor itself": [
        't0 = sp(torch.tensor([[2.0, 0.0], [1.0, 3.0]]), "csr")',
        "torch.nn.functional.dropout1d(t0, 0.5, False).mul_(2)",
    ],
    "assignment by index does not convert": [
        't0 = sp(torch.tensor([[2.0, 0.0], [1.0, 3.0]]), "csr")',
        "t0.requires_grad_()",
        "t1 = t0 * 1",
        "t1[1:, torch.tensor([0])] = torch.ones(1, 1, dtype=torch.float64)",
        "t1[:, torch.tensor([1, 0], dtype=torch.uint8)] = 0.0",
        "t1[torch.tensor(1), :] = torch.ones(2)",
    ],
    "views are not detached in place": [
        't0 = sp(torch.tensor([[2.0, 0.0], [1.0, 3.0]]), "csr")',
        "t0.requires_grad_()",
        "t1 = t0 * 1",
        "t1[0].detach_()",
        "t1.detach_()",
    ],
    "views keep their history when their tensor is frozen": [
        't0 = sp(torch.tensor([[2.0, 0.0], [1.0, 3.0]]), "csr")',
        "t0.requires_grad_()",
        "t1 = t0.T",
        "t0.requires_grad_(False)",
        "t1.sum().backward()",
    ],
    "real and imaginary parts are assigned to": [
        't0 = sp(torch.tensor([[2 + 1j, 0], [1j, 3]]), "csr")',
        "t0.real = torch.tensor([[1.0, 2.0], [0.0, 0.0]])",
        "t0.imag = t0.real * 2",
    ],
    "a piece that is the whole tensor is one of several views": [
        't0 = sp(torch.tensor([[0.5, 1.0], [2.0, 0.0]]), "csr")',
        "t0.requires_grad_()",
        "t5 = t0 * t0",
        "t6 = t5.split(2, 0)[-1]",
        "t6.floor_()",
        "t7 = t5.chunk(1)[0]",
        "t7.mul_(2)",
    ],
    "entries that are overwritten without gradients keep them": [
        't0 = sp(torch.tensor([[3.0, 2.0], [3.0, 0.0]]), "csr")',
        "t0.requires_grad_()",
        "t5 = t0 + t0",
        'with torch.no_grad(): t5.copy_(sp(torch.tensor([[0.0, 2.0], [0.0, 1.0]]), "csr"))',
        "t5.sum().backward(retain_graph=True)",
        'with torch.no_grad(): t5[0].mul_(sp(torch.tensor([1.0, 0.0]), "s"))',
        "t5.sum().backward()",
    ],
    "pieces of integers take numbers that require a gradient": [
        't0 = sp(torch.tensor([[0, 1], [2, 0]]), "csr")',
        "t1 = torch.tensor([1.0, 2.0])",
        "t1.requires_grad_()",
        "t6 = t0.split(2, 0)[-1]",
        "t6.copy_(t6 * t1)",
    ],
    "a tensor is copied to itself": [
        't0 = sp(torch.tensor([[0.0, 1.0], [2.0, 0.0]]), "csr")',
        "t1 = t0.expand(2, 2, 2)",
        "t1.copy_(t1)",
    ],
}


@pytest.mark.parametrize("lines", FOUND.values(), ids=FOUND)
def test_found_programs(lines: list[str]) -> None:
    run = Run()
    for line in lines:
        assert run.step(line), line


def test_wrong_results_are_found() -> None:
    """The comparison itself: one tensor of the sparse side is spoilt."""
    run = Run()
    run.step('t0 = sp(torch.tensor([[1.0, 0.0], [0.0, 2.0]]), "csr")')
    run.sparse["t0"].values()[0] = 5.0
    with pytest.raises(Wrong, match="t0 is wrong"):
        run.step("t1 = t0 + t0")
    run = Run()
    run.step('t0 = sp(torch.tensor([[1.0, 0.0], [0.0, 2.0]]), "csr")')
    run.sparse["lax"], run.dense["lax"] = (lambda: None), (lambda: torch_refuses())
    with pytest.raises(Wrong, match="is accepted, where dense tensors raise"):
        run.step("lax()")


def torch_refuses() -> None:
    raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

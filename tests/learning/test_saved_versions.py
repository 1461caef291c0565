"""Gradients after a write: refused where dense torch refuses them, for whatever operand was written to."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import scorch
from scorch._src.devices import HOST
from scorch._src.tensor.saved_versions import KNOWN, WITH_NUMBER, _saved_on

ONE: dict[str, Callable[..., Any]] = {
    "exp": torch.exp,
    "abs": torch.abs,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "sinc": torch.sinc,
    "pow": lambda x: x**3,
    "clamp": lambda x: x.clamp(0.2, 0.8),
    "softplus": F.softplus,
    "hardsigmoid": F.hardsigmoid,
    "gelu": F.gelu,
    "logsumexp": lambda x: torch.logsumexp(x, 0),
    "norm": torch.norm,
    "prod": lambda x: x.prod(1),
    "var": lambda x: x.var(1),
    "amax": lambda x: x.amax(1),
    "softmax": lambda x: x.softmax(1),
    "cumsum": lambda x: x.cumsum(0),
    "cumprod": lambda x: x.cumprod(0),
    "sort": lambda x: torch.sort(x, 1)[0],
    "transpose": lambda x: x.T.clone(),
    "sum": lambda x: x.sum(1),
    "logit": lambda x: torch.logit(x, 0.1),
    "std_mean": lambda x: torch.std_mean(x, 0)[0],
    "normalize": F.normalize,
    "trace": torch.trace,
    "exp_": lambda x: x.exp_(),
    "sigmoid_": torch.sigmoid_,
    "relu_": lambda x: F.relu(x, inplace=True),
    "square by itself": lambda x: x.mul_(x),
    "pow_": lambda x: x.pow_(2),
}
TWO: dict[str, Callable[..., Any]] = {
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "atan2": torch.atan2,
    "hypot": torch.hypot,
    "mul": torch.mul,
    "div": lambda x, y: x / (y + 1),
    "add": torch.add,
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "where": lambda x, y: torch.where(x > 0, x, y),
    "matmul": torch.matmul,
    "mse": F.mse_loss,
    "smooth_l1": F.smooth_l1_loss,
    "addcmul": lambda x, y: torch.addcmul(x, x, y),
    "dist": torch.dist,
    "cdist": torch.cdist,
    "cat": lambda x, y: torch.cat([x, y]),
    "index_add": lambda x, y: torch.index_add(x, 0, torch.tensor([0, 2, 1]), y),
    "masked_fill": lambda x, y: torch.masked_fill(x, y > 0.5, 2.0),
    "remainder": lambda x, y: torch.remainder(x, y + 1),
    "cosine_similarity": F.cosine_similarity,
}
FUNCTIONS = {
    **{name: (1, call) for name, call in ONE.items()},
    **{name: (2, call) for name, call in TWO.items()},
}


def refuses(call: Callable[..., Any], operands: list[torch.Tensor], place: int) -> bool:
    """Whether there is no gradient after a write to an operand, or to the result."""
    used = [operand * 1 for operand in operands]
    result = call(*used)
    [*used, result][place].mul_(2)
    try:
        result.sum().backward()
    except RuntimeError as error:
        assert "modified by an inplace" in str(error), error
        return True
    return False


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", ["csr", "coo", "dcsr"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_refused_as_for_dense_tensors(name: str, form: str) -> None:
    count, call = FUNCTIONS[name]
    dense = [torch.rand(3, 3) * (torch.rand(3, 3) < 0.7) for _ in range(count)]
    for place, is_sparse in itertools.product(
        range(count + 1), itertools.product((True, False), repeat=count)
    ):
        if not any(is_sparse):
            continue
        wanted = refuses(call, [one.clone().requires_grad_() for one in dense], place)
        for _ in range(3):  # the first call of a kind finds out what the others know
            given = [
                (scorch.from_torch(one, format=form) if sparse else one.clone()).requires_grad_()
                for one, sparse in zip(dense, is_sparse, strict=True)
            ]
            assert refuses(call, given, place) == wanted, f"operand {place} of {is_sparse}"


def test_a_write_to_what_a_view_is_of_counts() -> None:
    S = scorch.from_torch(torch.rand(3, 3), format="csr").requires_grad_()
    base = S * 1
    larger = torch.maximum(base[1], base[0])
    base.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        larger.sum().backward()


def test_a_write_after_backward_is_no_harm() -> None:
    S = scorch.from_torch(torch.rand(40, 40), format="csr").requires_grad_()
    for _ in range(3):
        x = S * 2
        torch.maximum(x, S).sum().backward()
        x.mul_(2)
    assert S.grad is not None
    torch.testing.assert_close(S.grad.to_dense(), torch.full((40, 40), 6.0))


def test_generators_are_left_alone() -> None:
    S = scorch.from_torch(torch.rand(5, 5), format="csr").requires_grad_()
    state = torch.get_rng_state()
    torch.maximum(S, S * 0.5)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.whole
@pytest.mark.parametrize("name", KNOWN)
def test_the_table_has_what_torch_saves(name):
    arguments = [(1,)] if name in WITH_NUMBER else [()]
    arguments += [()] if name == "mean" else []
    for home in (torch, torch.Tensor):
        for more in arguments if hasattr(home, name) else ():
            tensor = torch.rand(3, 3, requires_grad=True)
            assert _saved_on(HOST, getattr(home, name), (tensor, *more), {}) == KNOWN[name]


def test_first_calls_save_what_later_ones_do() -> None:
    """Checkpoints compare them; what checked the call before on stand-ins was counted, too."""
    S = scorch.rand(7, 11, density=0.4, format="csr").requires_grad_()
    x, bias = torch.rand(11, 13, requires_grad=True), torch.rand(7, 13, requires_grad=True)

    def called(S: torch.Tensor, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.addmm(bias, S, x) * (S @ S.mT).sum()

    saved: list[torch.Size] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.shape) or t, lambda t: t):
        called(S, x, bias)
        first, saved = saved, []
        called(S, x, bias)
    assert first == saved

    def product(S: torch.Tensor) -> torch.Tensor:
        return S @ torch.ones(11, 17)

    torch.utils.checkpoint.checkpoint(product, S, use_reentrant=False).sum().backward()
    assert torch.equal(S.grad.values(), torch.full((S.nnz,), 17.0))

"""Every function of torch that writes in place, on a sparse tensor with a history: values and gradients."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import scorch

X = torch.tensor([[1.0, 0, -2, 0], [0, 3, 0, 0], [-4, 0, 0, 5]], dtype=torch.float64)
W = torch.arange(1.0, 13.0, dtype=torch.float64).reshape(3, 4)

# They draw, tell facts or change shapes.
LEFT_OUT = (
    "apply_", "as_strided_", "bernoulli_", "cauchy_", "detach_", "exponential_", "geometric_", "log_normal_",
    "map2_", "map_", "normal_", "random_", "rename_", "requires_grad_", "resize_", "resize_as_",
    "resize_as_sparse_", "set_", "share_memory_", "sparse_resize_", "sparse_resize_and_clear_", "squeeze_",
    "swapaxes_", "swapdims_", "t_", "transpose_", "uniform_", "unsqueeze_",
)  # fmt: skip
METHODS = [
    name
    for name in dir(torch.Tensor)
    if name.endswith("_") and not name.startswith("_") and not name.endswith("__") and name not in LEFT_OUT
]
ARGUMENTS: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "()": lambda y: (),
    "(2)": lambda y: (2,),
    "(dense)": lambda y: (W,),
    "(itself)": lambda y: (y,),
}
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    **{
        name: functools.partial(getattr(F, name), inplace=True)
        for name in ("relu", "elu", "celu", "selu", "leaky_relu", "hardtanh", "relu6", "silu", "mish")
    },
    "hardswish": lambda y: F.hardswish(y, inplace=True),
    "hardsigmoid": lambda y: F.hardsigmoid(y, inplace=True),
    "elu, by place": lambda y: F.elu(y, 1.0, True),
    "threshold": lambda y: F.threshold(y, 0.5, 0.0, inplace=True),
    "rrelu": lambda y: F.rrelu(y, 0.25, 0.25, training=True, inplace=True),
    "dropout": lambda y: F.dropout(y, 0.0, True, True),
    "nn.ELU": torch.nn.ELU(inplace=True),
    "nn.ReLU": torch.nn.ReLU(inplace=True),
}  # fmt: skip


def attempt(x: Any, call: Callable[[Any], Any]) -> tuple[torch.Tensor, torch.Tensor] | Exception:
    x.requires_grad_()
    y = x * 1
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = call(y)
            assert not isinstance(found, torch.Tensor) or found is y
            (y * W).sum().backward()
    except AssertionError:
        raise
    except Exception as error:
        return error
    return y.detach().to_dense(), x.grad.to_dense()


def compare(name: str, call: Callable[[Any], Any]) -> bool:
    """Whether dense tensors take the call; what they give, sparse ones must."""
    wanted = attempt(X.clone(), call)
    if isinstance(wanted, Exception):
        return False
    found = attempt(scorch.from_torch(X, format="csr"), call)
    assert not isinstance(found, Exception), f"{name}: {found!r}"
    torch.testing.assert_close(found[0], wanted[0], msg=f"values of {name}", equal_nan=True)
    zero = torch.zeros((), dtype=X.dtype)
    gradients = [torch.where(X != 0, gradient, zero) for gradient in (found[1], wanted[1])]
    torch.testing.assert_close(*gradients, msg=f"gradients of {name}", equal_nan=True)
    return True


@pytest.mark.parametrize("kind", ARGUMENTS)
def test_methods(kind: str) -> None:
    make = ARGUMENTS[kind]
    taken = [name for name in METHODS if compare(name + kind, lambda y, n=name: getattr(y, n)(*make(y)))]
    assert len(taken) > 8


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    assert compare(name, FUNCTIONS[name])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_leaves_are_refused(name: str) -> None:
    leaf = scorch.from_torch(X, format="csr").requires_grad_()
    if name == "dropout":
        assert FUNCTIONS[name](leaf) is leaf  # nothing is written, as with dense tensors
        return
    with pytest.raises(RuntimeError, match="leaf Variable"):
        FUNCTIONS[name](leaf)
    torch.testing.assert_close(leaf.detach().to_dense(), X)


def test_base_that_was_reshaped_is_named():
    S = scorch.from_torch(torch.tensor([[0.0, 1.0, 2.0], [2.0, 0.0, 0.0]]), format="coo")
    view = S.T
    S.unsqueeze_(-2)
    with pytest.raises(scorch.errors.InPlaceError, match="base of this view was reshaped in place"):
        view.copy_(torch.ones(3, 2, requires_grad=True))


@pytest.mark.parametrize("take", [lambda t: t.split(1, 1)[-1], lambda t: t[:, 2:3], lambda t: t.t()[2:].t()])
def test_views_with_gradients_of_their_own_end_with_a_write_to_the_base(take: Callable[[Any], Any]) -> None:
    dense = torch.tensor([[0.0, 1, 2], [-1, 3, 2]])
    for base in (dense, scorch.from_torch(dense.clone(), format="csr")):
        view = take(base)
        view.requires_grad_()
        with pytest.raises(RuntimeError):
            base.copy_(view.clone())
            base.sum().backward()
        assert not isinstance(view, scorch.SparseTensor) or view.grad is None


@pytest.mark.whole
@pytest.mark.parametrize(
    "part",
    [
        lambda S: S.conj(),
        lambda S: S.real,
        lambda S: S[1:].imag,
        lambda S: S.mH,
        lambda S: S.conj().t(),
        lambda S: S.conj().conj(),
        lambda S: S.conj().detach(),
    ],
)
@pytest.mark.parametrize("is_tracked", [False, True])
def test_copies_in_place_of_views_are_not_read_after_their_base_changed(part: Any, is_tracked: bool) -> None:
    """Those of dense tensors show what was written; these showed what was there before."""
    S = scorch.from_torch(torch.complex(X, 2 * X), format="csr").requires_grad_(is_tracked) * 1
    copy, kept = part(S), part(S).clone()
    expected = kept.to_dense()
    assert torch.equal(copy.to_dense(), expected)
    S[1:].mul_(2)
    with pytest.raises(scorch.errors.InPlaceError, match="has been modified in place; call"):
        copy.to_dense()
    assert torch.equal(kept.to_dense(), expected) and part(S).to_dense().abs().sum() > expected.abs().sum()

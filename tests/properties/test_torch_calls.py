"""Random chains of torch's functions on tensors of any format give what they give on dense tensors."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from hypothesis import given, note, settings
from hypothesis import strategies as st

from properties.drawing import to_dense
from properties.torch_steps import DTYPES, FAMILIES, MOST, Step, product, shapes, tensors
from scorch import SparseTensor
from scorch.errors import ScorchError
from validity import check_storage

TOLERANCE = {
    torch.bfloat16: {"rtol": 4e-2, "atol": 4e-2},
    torch.float32: {"rtol": 1e-4, "atol": 1e-4},
    torch.complex64: {"rtol": 1e-4, "atol": 1e-4},
}


def attempt(step: Step, x: Any, others: list[Any]) -> Any:
    """The result, or the exception."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return step.call(x, *others)
        except Exception as error:
            return error


def same(found: Any, wanted: Any) -> None:
    """Equal values, dtypes and shapes; for calls that dense tensors refuse, an error of the same type."""
    if isinstance(wanted, NotImplementedError) and not isinstance(found, Exception):
        return  # a dtype that only dense tensors lack
    if isinstance(wanted, Exception):
        assert isinstance(found, type(wanted)), f"{found!r} instead of {wanted!r}"
        return
    if isinstance(found, Exception):
        raise found
    if isinstance(wanted, tuple | list):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            same(one, other)
        return
    if not isinstance(wanted, torch.Tensor):
        assert found == wanted
        return
    if isinstance(found, SparseTensor):
        check_storage(found)
    plain = to_dense(found)
    assert plain.dtype == wanted.dtype, f"{plain.dtype} instead of {wanted.dtype}"
    assert plain.shape == wanted.shape, f"{plain.shape} instead of {wanted.shape}"
    tolerance = TOLERANCE.get(wanted.dtype, {})
    torch.testing.assert_close(
        plain, wanted.resolve_conj().resolve_neg(), equal_nan=True, check_stride=False, **tolerance
    )


def run_chain(data: st.DataObject, family: Any) -> None:
    """One to three calls, the first of ``family``; each is given what the one before gave."""
    first = data.draw(tensors(data.draw(shapes()), data.draw(st.sampled_from(DTYPES))))
    dense, x = first.dense, first.given
    for kind in [family, *data.draw(st.lists(st.sampled_from(FAMILIES), max_size=2))]:
        if kind is product and (dense.dtype == torch.bool or not bool(dense.isfinite().all())):
            return  # torch has few products of bools, and a sparse tensor's zeros times NaN are zeros
        step = data.draw(kind(tuple(dense.shape), dense.dtype))
        note(f"{step!r} of {getattr(x, 'format', 'dense')} {tuple(x.shape)} {x.dtype}")
        if not any(isinstance(t, SparseTensor) for t in [x, *(other.given for other in step.others)]):
            return
        before = to_dense(x).clone()
        wanted = attempt(step, dense, [other.dense for other in step.others])
        found = attempt(step, x, [other.given for other in step.others])
        same(found, wanted)
        if isinstance(wanted, Exception):
            assert (
                not isinstance(found, Exception)
                or isinstance(found, ScorchError)
                or str(found) == str(wanted)
            ), f"{found!r}"
            return
        torch.testing.assert_close(to_dense(x), before, equal_nan=True, rtol=0, atol=0)
        x = found[-1] if isinstance(found, tuple | list) and len(found) else found
        if not isinstance(x, torch.Tensor) or x.numel() > MOST or x.dim() > 4:
            return
        dense = to_dense(x)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_chains(family, cases):
    @settings(max_examples=max(1, cases // 8))
    @given(st.data())
    def check(data: st.DataObject) -> None:
        run_chain(data, family)

    check()

"""Operators between sparse tensors and the arrays, numbers and matrices of NumPy and SciPy."""

import operator
from typing import Any, ClassVar

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given
from hypothesis import strategies as st

import scorch
from scorch.errors import DtypeError, InPlaceError, OperandError, ScorchError, UnsupportedError

DENSE = torch.tensor([[1.0, 0.0, 2.0], [0.0, 0.0, 3.0], [4.0, 0.0, 0.0]], dtype=torch.float64)
ARITHMETIC = [operator.add, operator.sub, operator.mul, operator.truediv]
COMPARISONS = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]
FORMATS = ["csr", "csc", "coo", "dcsr"]


@pytest.fixture(params=FORMATS)
def S(request):
    return scorch.from_torch(DENSE, format=request.param)


def check(found, wanted):
    assert isinstance(found, torch.Tensor)
    assert found.dtype == wanted.dtype
    torch.testing.assert_close(found.to_dense() if found.is_sparse else found, wanted, equal_nan=True)


@pytest.mark.cpu("arrays of NumPy are there")
@pytest.mark.parametrize("sign", [*ARITHMETIC, operator.pow, *COMPARISONS])
@pytest.mark.parametrize("shape", [(3, 3), (3,), (3, 1), ()])
def test_arrays_on_either_side(S, sign, shape):
    array = np.arange(1.0, 10.0).reshape(3, 3)[tuple(slice(0, size) for size in shape)].reshape(-1)
    array = array[: int(np.prod(shape))].reshape(shape)
    dense = torch.from_numpy(array)
    check(sign(S, array), sign(DENSE, dense))
    check(sign(array, S), sign(dense, DENSE))


@pytest.mark.cpu("arrays of NumPy are there")
@pytest.mark.parametrize("array", [np.eye(3) * 2, np.ones(3), np.ones((3, 2))])
def test_products_with_arrays(S, array):
    check(S @ array, DENSE @ torch.from_numpy(array))
    check(array.T @ S, torch.from_numpy(array.T.copy()) @ DENSE)


@pytest.mark.cpu("arrays of NumPy are there")
def test_products_with_arrays_of_another_dtype():
    S = scorch.from_torch(DENSE.float(), format="csr")
    check(S @ np.ones((3, 2)), DENSE @ torch.ones(3, 2, dtype=torch.float64))
    check(np.arange(3) @ S, torch.arange(3.0) @ DENSE.float())


@pytest.mark.parametrize("number", [np.float32(2), np.float64(0.5), np.int64(3)])
@pytest.mark.parametrize("sign", [*ARITHMETIC, *COMPARISONS])
def test_numbers_of_numpy_on_either_side(S, sign, number):
    check(sign(S, number), sign(DENSE, number.item()))
    check(sign(number, S), sign(number.item(), DENSE))


@pytest.mark.cpu("arrays of NumPy are there")
def test_zeros_stay_unstored_in_products_with_arrays(S):
    assert (S * np.ones((3, 3))).nnz == (np.ones(3) * S).nnz == (np.float32(2) * S).nnz == 4


@pytest.mark.cpu("matrices of SciPy are there")
@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "dia"])
@pytest.mark.parametrize("sign", [*ARITHMETIC, operator.matmul])
def test_matrices_of_scipy_on_the_right(S, sign, kind):
    matrix = scipy.sparse.csr_array(np.diag([1.0, 2.0, 3.0])).asformat(kind)
    check(sign(S, matrix), sign(DENSE, torch.from_numpy(matrix.toarray())))


@pytest.mark.cpu("matrices of SciPy are there")
@pytest.mark.parametrize("sign", [*ARITHMETIC, operator.matmul, *COMPARISONS])
def test_matrices_of_scipy_on_the_left(S, sign):
    matrix = scipy.sparse.csr_array(np.diag([1.0, 2.0, 3.0]))
    for kind in (scipy.sparse.csr_array, scipy.sparse.csc_matrix, scipy.sparse.lil_array):
        if sign is operator.mul and kind is scipy.sparse.csc_matrix:
            continue  # which means the matrix product
        check(sign(kind(matrix), S), sign(torch.from_numpy(matrix.toarray()), DENSE))
    assert isinstance(matrix @ S, scorch.SparseTensor) and isinstance(matrix * S, scorch.SparseTensor)


def test_the_product_that_scipy_means_otherwise_is_refused(S):
    with pytest.raises(UnsupportedError, match="S @ matrix"):
        S * scipy.sparse.csr_matrix(np.eye(3))
    with pytest.raises(UnsupportedError, match="matrix @ S"):
        scipy.sparse.csr_matrix(np.eye(3)) * S


def test_functions_of_scipy_get_no_array(S):
    with pytest.raises((OperandError, ValueError), match=r"to_scipy|unrecognized csr_array"):
        scipy.sparse.csr_array(S)


@pytest.mark.cpu("matrices of SciPy are there")
def test_products_with_scipy_of_another_dtype():
    S = scorch.from_torch(DENSE.float(), format="csr")
    check(S @ scipy.sparse.eye_array(3), DENSE)
    check(scipy.sparse.eye_array(3) @ S, DENSE)


def test_a_dense_tensor_on_the_left_answers_itself(S):
    check(torch.ones(3, 3) + S, 1 + DENSE)
    check(torch.ones(3, 3) - S, 1 - DENSE)


@pytest.mark.cpu("arrays of NumPy are there")
def test_functions_of_numpy(S):
    assert np.sin(S).nnz == S.nnz
    check(np.sin(S), torch.sin(DENSE))
    check(np.maximum(S, 1), DENSE.clamp(min=1))
    check(np.hypot(np.ones(3), S), torch.hypot(torch.ones(3, dtype=torch.float64), DENSE))
    check(np.negative(S), -DENSE)
    check(np.add([1.0, 2.0, 3.0], S), torch.tensor([1.0, 2.0, 3.0]) + DENSE)
    check(np.power(2, S), 2**DENSE)


@pytest.mark.cpu("arrays of NumPy are there")
def test_an_array_takes_what_is_added_in_place(S):
    array = np.ones((3, 3))
    same = array
    array += S
    assert array is same
    np.testing.assert_array_equal(array, 1 + DENSE.numpy())


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda S: np.add.reduce(S), UnsupportedError, r"numpy\.add\.reduce"),
        (lambda S: np.cbrt(S), UnsupportedError, r"numpy\.cbrt"),
        (lambda S: np.add(S, 1, where=np.ones((3, 3), bool)), UnsupportedError, "where="),
        (lambda S: np.add(S, 1, out=S), UnsupportedError, "expected out to be a NumPy array"),
        (lambda S: np.add(S, 1, out=np.zeros(3)), InPlaceError, "returns shape"),
        pytest.param(
            lambda S: np.add(S, 1, out=np.zeros((3, 3), int)),
            InPlaceError,
            "cannot be cast",
            marks=pytest.mark.cpu("arrays of NumPy are there"),
        ),
        (lambda S: S * np.array([object()] * 3), DtypeError, "dtype object"),
        (lambda S: S @ np.ones((2, 2)), ScorchError, "2"),
        (lambda S: np.asarray(S), OperandError, r"use \.to_scipy\(\)"),
    ],
)
def test_what_does_not_work_says_so(S, call, error, message):
    with pytest.raises(error, match=message):
        call(S)


@pytest.mark.cpu("arrays of NumPy are there")
def test_unusual_arrays():
    S = scorch.from_torch(DENSE, format="csr")
    fixed = np.arange(3.0)
    fixed.flags.writeable = False
    check(S * fixed, DENSE * torch.arange(3.0))
    check(S @ np.arange(3.0)[::-1], DENSE @ torch.tensor([2.0, 1.0, 0.0], dtype=torch.float64))
    check(S @ np.asfortranarray(np.arange(9.0).reshape(3, 3)), DENSE @ torch.arange(9.0).view(3, 3).double())


@pytest.mark.cpu("arrays of NumPy are there")
@given(
    st.sampled_from(FORMATS),
    st.sampled_from([*ARITHMETIC, operator.matmul]),
    st.lists(st.integers(-2, 2), min_size=9, max_size=9),
    st.sampled_from(["float32", "float64", "int64"]),
    st.booleans(),
)
def test_any_array(form, sign, numbers, dtype, is_left):
    S = scorch.from_torch(DENSE, format=form)
    array = np.array(numbers).reshape(3, 3).astype(dtype)
    dense = torch.from_numpy(array)
    dense = dense.double() if sign is operator.matmul else dense
    if is_left:
        check(sign(array, S), sign(dense, DENSE))
    else:
        check(sign(S, array), sign(DENSE, dense))


@pytest.mark.parametrize("name", ["__radd__", "__rsub__", "__rmul__", "__rpow__", "__rdiv__", "__rmod__"])
@pytest.mark.parametrize("other", ["dense", "sparse", "number"])
def test_reflected_methods_called_by_name_are_those_of_dense_tensors(name: str, other: str) -> None:
    dense = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
    operand = {"dense": dense + 1, "sparse": scorch.from_torch(dense + 1), "number": 2.5}[other]
    expected = getattr(dense, name)(dense + 1 if other == "sparse" else operand)
    result = getattr(scorch.from_torch(dense), name)(operand)
    torch.testing.assert_close(result.to_dense(), expected, equal_nan=True)


@pytest.mark.parametrize("sign", [*ARITHMETIC, operator.matmul])
def test_modes_of_torch_see_operators(sign):
    seen = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func.__name__)
            return func(*args, **(kwargs or {}))

    S = scorch.from_torch(DENSE, format="csr")
    sign(S, DENSE)
    with Mode():
        sign(S, DENSE)
    assert any(sign.__name__.removeprefix("true") in name for name in seen)


def test_operators_leave_other_kinds_of_operands_to_those():
    class Other:
        def __radd__(self, tensor):
            return "other"

    S = scorch.from_torch(DENSE, format="csr")
    assert S + Other() == "other"


class Answering(torch.Tensor):
    """A class that computes all itself, None of ``torch.neg`` and a text of others."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return None if func is torch.neg or func is torch.maximum else "other"


class Logging(torch.Tensor):
    """A class that only calls torch's own, as the documentation of torch shows."""

    names: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.names.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


class Duck:
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return "duck"


@pytest.mark.whole
@pytest.mark.parametrize("sign", [operator.matmul, operator.mul, operator.add, torch.mm, torch.add])
def test_calls_with_other_classes_are_theirs_or_ours(sign: Any) -> None:
    S = scorch.from_torch(DENSE, format="csr")
    other = DENSE + 1
    assert sign(S, other.as_subclass(Answering)) == "other"
    assert torch.maximum(S, other.as_subclass(Answering)) is None
    assert sign(S, Duck()) == "duck"
    before = len(Logging.names)
    torch.testing.assert_close(as_plain(sign(S, other.as_subclass(Logging))), as_plain(sign(S, other)))
    torch.testing.assert_close(as_plain(sign(other.as_subclass(Logging), S)), as_plain(sign(other, S)))
    assert len(Logging.names) >= before + 2


def as_plain(tensor: torch.Tensor) -> torch.Tensor:
    dense = tensor.to_dense() if isinstance(tensor, scorch.SparseTensor) else tensor
    return dense.as_subclass(torch.Tensor)


@pytest.mark.filterwarnings("ignore:The PyTorch API of MaskedTensors")
def test_classes_without_memory_are_left_to_themselves() -> None:
    S = scorch.from_torch(DENSE, format="csr")
    masked = torch.masked.masked_tensor(torch.ones_like(DENSE), DENSE != 0)
    with pytest.raises(TypeError):
        S * masked


def test_nothing_is_written_to_torch_s_own_sparse_tensors() -> None:
    S = scorch.from_torch(DENSE, format="csr")
    for write in (
        lambda target: torch.mul(S, S, out=target),
        lambda target: target.mul_(S),
        lambda target: torch._foreach_add_([target], [S]),
        lambda target: torch._foreach_copy_([target], [S]),
    ):
        with pytest.raises((ScorchError, RuntimeError)):
            write(torch.zeros(DENSE.shape, dtype=DENSE.dtype).to_sparse())

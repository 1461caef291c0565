"""Every unary and binary function means the same in C, in the interpreter and in torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from scorch._src.backends.print.c import print_kernel
from scorch._src.loops.nodes import (
    Array,
    Binary,
    Cast,
    Const,
    For,
    Function,
    Kernel,
    Load,
    Store,
    Unary,
    Var,
    block,
)
from scorch._src.loops.operators import IN_LOOPS
from scorch._src.loops.types import (
    BFLOAT16,
    BOOL,
    COMPLEX64,
    COMPLEX128,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    TYPES,
    UINT8,
    Type,
)


def assert_close(found: object, wanted: object, **options: object) -> None:
    """``np.testing.assert_allclose``, which in NumPy 1.26 itself multiplies infinities."""
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(found, wanted, **options)  # type: ignore[arg-type]


COMPUTED = [t for t in TYPES.values() if t.computes_in == t]
INTEGERS = (UINT8, INT8, INT16, INT32, INT64)
TORCH = {
    "-": torch.neg,
    "!": torch.logical_not,
    "relu": lambda x: torch.where(x < 0, torch.zeros_like(x), x),
    "conj": torch.conj_physical,
    "real": lambda x: torch.real(x).clone(),
    "erf": torch.special.erf,
}
OPERATORS = {
    "+": torch.add,
    "-": torch.sub,
    "*": torch.mul,
    "/": torch.div,
    "%": torch.fmod,
    "<": torch.lt,
    "<=": torch.le,
    ">": torch.gt,
    ">=": torch.ge,
    "==": torch.eq,
    "!=": torch.ne,
    "max": torch.maximum,
    "min": torch.minimum,
    "pow": torch.pow,
}


def samples(t: Type, rng: np.random.Generator) -> np.ndarray:
    if t == BOOL:
        return np.array([False, True, True, False])
    if t.is_integer:
        limits = np.iinfo(t.name)
        edge = [0, 1, 2, 3, 7, limits.max, limits.max - 1, limits.min, limits.min + 1]
        return np.array(edge + ([-1, -2, -5] if limits.min else [255, 128]), t.name)
    special = [0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 1e-30, 30.0, -40.0]
    if t.kind == "complex":
        z = np.array(special, t.name)
        parts = rng.standard_normal((2, 40)) * 3
        return np.concatenate([z, 1j * z, parts[0] + 1j * parts[1]]).astype(t.name)
    extra = [np.inf, -np.inf, np.nan, 1e30, -1e-30]
    return np.concatenate([special, extra, rng.standard_normal(40) * 5]).astype(t.name)


def result_type(op: str, t: Type) -> Type:
    if op in ("!", "isnan"):
        return BOOL
    if op in ("abs", "real") and t.kind == "complex":
        return FLOAT32 if t == COMPLEX64 else FLOAT64
    return t


@pytest.mark.parametrize("t", COMPUTED, ids=repr)
def test_unary_functions_agree(t, native) -> None:
    kind = "int" if t.kind == "uint" else t.kind
    ops = [op for op, entry in IN_LOOPS.items() if kind in entry.c]
    x, i, n = Array("X", t), Var("i"), Var("n")
    outs = [Array(f"R{k}", result_type(op, t)) for k, op in enumerate(ops)]
    stores = [Store(out, i, Unary(op, Load(x, i), out.element)) for op, out in zip(ops, outs, strict=True)]
    params = (n, x, *outs)
    kernel = Kernel("", params, (Function("f", params, For(i, Const(0), n, block(*stores)), True),))
    data = samples(t, np.random.default_rng(0))
    slots = [len(data), data, *(np.zeros(len(data), out.element.name) for out in outs)]
    by_c, by_python = native.both(kernel, "f", slots)
    tolerance = 3e-6 if t in (FLOAT32, COMPLEX64) else 1e-12
    for op, c, python in zip(ops, by_c[2:], by_python[2:], strict=True):
        if op in ("sign", "relu") and t == BOOL:
            continue
        assert_close(c, python, rtol=tolerance, atol=tolerance * 1e-2, err_msg=f"{op} {t}")
        function = TORCH.get(op) or getattr(torch, op)
        try:
            want = function(torch.from_numpy(data)).numpy()
        except RuntimeError:
            continue
        if np.dtype(want.dtype) == c.dtype:
            assert_close(c, want, rtol=tolerance, atol=tolerance * 1e-2, err_msg=f"{op} {t}")


@pytest.mark.parametrize("t", COMPUTED, ids=repr)
def test_binary_operators_agree(t, native) -> None:
    ops = ["+", "-", "*", "==", "!="]
    if t.kind != "complex":
        ops += ["<", "<=", ">", ">=", "max", "min"]
    if t.kind in ("float", "complex"):
        ops += ["/"]
    if t.kind in ("int", "uint", "float"):
        ops += ["pow"]
    a, b, i, n = Array("A", t), Array("B", t), Var("i"), Var("n")
    logical = ("==", "!=", "<", "<=", ">", ">=")
    outs = [Array(f"R{k}", BOOL if op in logical else t) for k, op in enumerate(ops)]
    stores = [
        Store(out, i, Binary(op, Load(a, i), Load(b, i), out.element))
        for op, out in zip(ops, outs, strict=True)
    ]
    params = (n, a, b, *outs)
    kernel = Kernel("", params, (Function("f", params, For(i, Const(0), n, block(*stores)), True),))
    data = samples(t, np.random.default_rng(1))
    left, right = (m.ravel() for m in np.meshgrid(data, data))
    left, right = np.ascontiguousarray(left), np.ascontiguousarray(right)
    slots = [len(left), left, right, *(np.zeros(len(left), out.element.name) for out in outs)]
    by_c, by_python = native.both(kernel, "f", slots)
    tolerance = 3e-6 if t in (FLOAT32, COMPLEX64) else 1e-12
    for op, c, python in zip(ops, by_c[3:], by_python[3:], strict=True):
        assert_close(c, python, rtol=tolerance, err_msg=f"{op} {t}")
        if t == BOOL and op not in ("==", "!=", "<", "<=", ">", ">="):
            continue
        if t.kind == "complex" and op == "/":
            keep = right != 0  # what a complex number divided by zero is differs inside torch itself
        elif op == "pow":
            keep = right >= 0
        else:
            keep = np.ones(len(left), bool)
        want = OPERATORS[op](torch.from_numpy(left), torch.from_numpy(right)).numpy()
        assert_close(c[keep], want[keep], rtol=tolerance, err_msg=f"{op} {t}")


@pytest.mark.parametrize("t", INTEGERS, ids=repr)
def test_integer_division_truncates(t, agree) -> None:
    a, b, q, r, i, n = Array("A", t), Array("B", t), Array("Q", t), Array("R", t), Var("i"), Var("n")
    params = (n, a, b, q, r)
    body = block(
        Store(q, i, Binary("/", Load(a, i), Load(b, i), t)),
        Store(r, i, Binary("%", Load(a, i), Load(b, i), t)),
    )
    kernel = Kernel("", params, (Function("f", params, For(i, Const(0), n, body), True),))
    data = samples(t, np.random.default_rng(0))
    left, right = (
        m.ravel()
        for m in np.meshgrid(
            data, data[(data != 0) & (data != data.dtype.type(-1))] if t.kind == "int" else data[data != 0]
        )
    )
    left, right = np.ascontiguousarray(left), np.ascontiguousarray(right)
    slots = agree(kernel, "f", [len(left), left, right, np.zeros_like(left), np.zeros_like(left)])
    want = torch.div(torch.from_numpy(left), torch.from_numpy(right), rounding_mode="trunc").numpy()
    np.testing.assert_array_equal(slots[3], want)
    np.testing.assert_array_equal(
        slots[4], torch.fmod(torch.from_numpy(left), torch.from_numpy(right)).numpy()
    )


@pytest.mark.parametrize("source", COMPUTED, ids=repr)
def test_casts_agree(source, agree) -> None:
    x, i, n = Array("X", source), Var("i"), Var("n")
    targets = [t for t in COMPUTED if source.is_integer or not t.is_integer or t in (BOOL, INT64)]
    outs = [Array(f"R{k}", t) for k, t in enumerate(targets)]
    params = (n, x, *outs)
    stores = [Store(out, i, Cast(Load(x, i), out.element)) for out in outs]
    kernel = Kernel("", params, (Function("f", params, For(i, Const(0), n, block(*stores)), True),))
    data = samples(source, np.random.default_rng(0))
    data = data[np.isfinite(data) & (np.abs(data) < 1e15)] if not source.is_integer else data
    slots = agree(kernel, "f", [len(data), data, *(np.zeros(len(data), t.name) for t in targets)])
    for t, result in zip(targets, slots[2:], strict=True):
        tensor = torch.from_numpy(data)
        if source.kind == "complex" and t.kind != "complex" and t != BOOL:
            tensor = torch.real(tensor)
        np.testing.assert_array_equal(result, tensor.to(getattr(torch, t.name)).numpy())


@pytest.mark.parametrize("t", [FLOAT16, BFLOAT16], ids=repr)
def test_every_half_float_widens_exactly(t, agree) -> None:
    x, out, i, n = Array("X", t), Array("R", FLOAT32), Var("i"), Var("n")
    params = (n, x, out)
    kernel = Kernel(
        "", params, (Function("f", params, For(i, Const(0), n, Store(out, i, Load(x, i))), True),)
    )
    bits = np.arange(2**16, dtype=np.uint16)
    result = agree(kernel, "f", [len(bits), bits, np.zeros(len(bits), np.float32)])[2]
    want = torch.from_numpy(bits.view(np.int16)).view(getattr(torch, t.name)).to(torch.float32).numpy()
    np.testing.assert_array_equal(result, want)


def test_constants_are_exact(agree) -> None:
    values = {
        FLOAT32: [0.1, -0.0, 1e-45, 3.4e38, float("inf"), float("-inf"), float("nan"), 16777217.0, 7],
        FLOAT64: [0.1, -0.0, 5e-324, 1.7e308, float("inf"), float("nan"), 1e22, -3],
        INT64: [-(2**63), 2**63 - 1, -1, 0, 2**31, -(2**31)],
        INT8: [-128, 127],
        UINT8: [255],
        BOOL: [True, False],
        COMPLEX64: [1 + 2j, complex(float("inf"), -0.0), 0.1j],
        COMPLEX128: [1 + 2j, 0.1j],
    }
    outs = [Array(f"R_{t}", t) for t in values]
    stores = [
        Store(out, Const(k), Const(v, out.element)) for out in outs for k, v in enumerate(values[out.element])
    ]
    kernel = Kernel("", tuple(outs), (Function("f", tuple(outs), block(*stores), True),))
    slots = agree(kernel, "f", [np.zeros(len(v), t.name) for t, v in values.items()])
    for (t, v), got in zip(values.items(), slots, strict=True):
        with np.errstate(over="ignore"):
            want = np.array(v, np.complex128 if t.kind == "complex" else None).astype(t.name)
        np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(np.signbit(got.real), np.signbit(want.real))


def test_arithmetic_on_small_constants_is_in_64_bits(agree) -> None:
    out = Array("R", INT64)
    big = Binary("*", Const(2_000_000), Const(2_000_000), INT64)
    shifted = Binary("+", Binary("*", Const(100_000), Const(100_000), INT64), Unary("-", big, INT64), INT64)
    body = block(Store(out, Const(0), big), Store(out, Const(1), shifted))
    kernel = Kernel("", (out,), (Function("f", (out,), body, True),))
    assert agree(kernel, "f", [np.zeros(2, np.int64)])[0].tolist() == [4 * 10**12, 10**10 - 4 * 10**12]


def test_only_needed_helpers_are_printed() -> None:
    out = Array("R", FLOAT32)
    body = Store(out, Const(0), Unary("sigmoid", Load(out, Const(0)), FLOAT32))
    text = print_kernel(Kernel("", (out,), (Function("f", (out,), body, True),)))
    assert "exp_f32(f32 x)" in text and "sigmoid_f32" in text
    assert "malloc" not in text and "make_c64" not in text and "relu" not in text

"""Steps joined into one kernel: what is joined, what is not, and that machine and interpreter agree."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import scorch
from scorch._src.backends.base import backend_named
from scorch._src.compiler.fuse import fuse, join_loops
from scorch._src.compiler.plan import Step
from scorch._src.compiler.target import Target
from scorch._src.engine.fused_executable import FusedKernel, Steps, fused_kernel
from scorch._src.notation.nodes import Access, Expr, Literal, Op
from scorch._src.storage.storage import Pattern, Storage
from scorch._src.tensor.create.construct import from_torch

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "fused_attention.txt"


def at(text: str) -> Access:
    """``at("A[i,j]")``."""
    name, _, indices = text.rstrip("]").partition("[")
    return Access(name, tuple(indices.split(",")))


def op(name: str, *args: Expr) -> Op:
    return Op(name, args)


S, E, R = at("S[i,j]"), at("E[i,j]"), at("R[i,j]")
ATTENTION = (
    Step(S, op("mul", op("mul", at("M[i,j]"), at("Q[i,k]")), at("K[j,k]")), "sum", ("k",)),
    Step(at("m[i]"), S, "max", ("j",)),
    Step(E, op("exp", op("sub", S, at("m[i]"))), "sum", ()),
    Step(at("s[i]"), E, "sum", ("j",)),
    Step(R, op("div", E, at("s[i]")), "sum", ()),
    Step(at("O[i,e]"), op("mul", R, at("V[j,e]")), "sum", ("j",)),
)


def matrix(rows: int, columns: int, density: float, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    kept = torch.rand(rows, columns, generator=generator) < density
    return torch.where(kept, torch.randn(rows, columns, generator=generator), 0.0).double()


def attention(
    mask: torch.Tensor, kept: tuple[str, ...] = ("O",)
) -> tuple[Steps, Storage, dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    rows, columns = mask.shape
    stored = from_torch(mask, format="csr").storage
    sizes = {"i": rows, "j": columns, "k": 5, "e": 7}
    tensors = {
        "M": stored.values,
        **{
            name: torch.randn(size, width, generator=generator, dtype=mask.dtype)
            for name, size, width in (("Q", rows, 5), ("K", columns, 5), ("V", columns, 7))
        },
    }
    return Steps(ATTENTION, kept, ("i", "j"), frozenset("MSER"), tuple(sizes.items())), stored, tensors


def run(
    kernel: FusedKernel, pattern: Pattern | None, tensors: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """The outputs of a kernel by name."""
    arrays = [tensors[name] for name in kernel.inputs]
    count = arrays[0].numel() if pattern is None else pattern.size
    return dict(zip(kernel.outputs, kernel.run(pattern, arrays, count), strict=True))


def interpret(
    kernel: FusedKernel, pattern: Pattern | None, tensors: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """The same through the interpreter, which checks every access, as if on two threads."""
    return run(FusedKernel(kernel.fused, backend_named("interpreter")), pattern, tensors)


def kernel_of(wanted: Steps, stored: Storage, tensors: dict[str, torch.Tensor]) -> FusedKernel:
    found = fused_kernel(wanted, stored.pattern, tensors)
    assert isinstance(found, FusedKernel), found
    return found


@pytest.mark.parametrize(
    "shape, density",
    [((13, 11), 0.4), ((1, 1), 1.0), ((40, 9), 0.05), ((3, 5000), 0.9), ((300, 20), 0.5), ((4, 6), 0.0)],
)
def test_attention_is_one_kernel_that_the_interpreter_agrees_with(
    shape: tuple[int, int], density: float
) -> None:
    mask = matrix(*shape, density)
    wanted, stored, tensors = attention(mask, ("R", "O"))
    kernel = kernel_of(wanted, stored, tensors)
    found = run(kernel, stored.pattern, tensors)
    scores = (mask * (tensors["Q"] @ tensors["K"].T)).masked_fill(mask == 0, float("-inf"))
    truth = scores.softmax(1).nan_to_num(0.0)
    torch.testing.assert_close(found["O"], truth @ tensors["V"])
    torch.testing.assert_close(found["R"], truth[mask != 0])
    if mask.numel() < 1000:
        for name, values in interpret(kernel, stored.pattern, tensors).items():
            torch.testing.assert_close(values, found[name])


def test_results_that_nobody_asks_for_are_kept_for_a_few_rows_only() -> None:
    wanted, stored, tensors = attention(matrix(13, 11, 0.4))
    fused = kernel_of(wanted, stored, tensors).fused
    assert fused.in_strip == {"S", "m", "E", "s", "R"}
    assert [slot.name for slot in fused.kernel.slots if slot.name.endswith("_vals")] == [
        "M_vals",
        "Q_vals",
        "K_vals",
        "V_vals",
        "O_vals",
    ]


def test_strips_end_with_few_entries_or_rows() -> None:
    lengths = [0, join_loops.ENTRIES + 3, 1, 2, *[join_loops.ENTRIES // 4] * 6, *[1] * (3 * join_loops.ROWS)]
    mask = torch.zeros(len(lengths), join_loops.ENTRIES + 3, dtype=torch.float64)
    for row, length in enumerate(lengths):
        mask[row, :length] = 1 + row
    wanted, stored, tensors = attention(mask)
    found = run(kernel_of(wanted, stored, tensors), stored.pattern, tensors)["O"]
    scores = (mask * (tensors["Q"] @ tensors["K"].T)).masked_fill(mask == 0, float("-inf"))
    torch.testing.assert_close(found, scores.softmax(1).nan_to_num(0.0) @ tensors["V"])


def test_elementwise_steps_become_part_of_the_one_that_reads_them() -> None:
    first = Step(at("T[i,j]"), op("mul", at("A[i,j]"), at("d[i]")), "sum", ())
    second = Step(at("R[i,j]"), op("relu", at("T[i,j]")), "sum", ())
    [found] = fuse.inline([first, second], ["R"])
    assert found == replace(second, body=op("relu", first.body))
    assert fuse.inline([first, second], ["T", "R"]) == (first, second)
    twice = replace(second, body=op("mul", first.target, first.target))
    assert fuse.inline([first, twice], ["R"]) == (first, twice)


def test_several_tensors_on_one_pattern_are_walked_together() -> None:
    stored = from_torch(matrix(9, 8, 0.5), format="csr").storage
    B = torch.rand(stored.values.shape, dtype=torch.float64)
    steps = (Step(at("y[i]"), op("mul", op("add", at("A[i,j]"), at("B[i,j]")), at("x[j]")), "sum", ("j",)),)
    wanted = Steps(steps, ("y",), ("i", "j"), frozenset("AB"), (("i", 9), ("j", 8)))
    tensors = {"A": stored.values, "B": B, "x": torch.rand(8, dtype=torch.float64)}
    kernel = kernel_of(wanted, stored, tensors)
    sums = Storage(stored.pattern, stored.values + B)
    truth = scorch.SparseTensor(sums).to_dense() @ tensors["x"]
    torch.testing.assert_close(run(kernel, stored.pattern, tensors)["y"], truth)
    torch.testing.assert_close(interpret(kernel, stored.pattern, tensors)["y"], truth)
    assert "A2_crd" not in kernel.source and "B2_crd" not in kernel.source


def test_rows_of_other_turns_are_not_read() -> None:
    stored = from_torch(matrix(9, 9, 0.5), format="csr").storage
    steps = (
        Step(at("y[i]"), op("mul", at("A[i,j]"), at("x[j]")), "sum", ("j",)),
        Step(at("z[i]"), op("mul", at("A[i,j]"), at("y[j]")), "sum", ("j",)),
    )
    wanted = Steps(steps, ("z",), ("i", "j"), frozenset("A"), (("i", 9), ("j", 9)))
    tensors = {"A": stored.values, "x": torch.rand(9, dtype=torch.float64)}
    assert fused_kernel(wanted, stored.pattern, tensors) == (
        "y[j] reads other rows of y than the one that is being computed"
    )


def test_several_dtypes_are_not_joined() -> None:
    wanted, stored, tensors = attention(matrix(9, 8, 0.5))
    tensors["V"] = tensors["V"].float()
    found = fused_kernel(wanted, stored.pattern, tensors)
    assert found == "tensors of several dtypes: torch.float32, torch.float64"


def test_debug_mode_runs_the_interpreter_too() -> None:
    wanted, stored, tensors = attention(matrix(9, 8, 0.5))
    kernel = kernel_of(wanted, stored, tensors)
    with scorch.settings(debug=True):
        found = run(kernel, stored.pattern, tensors)["O"]
    torch.testing.assert_close(found, run(kernel, stored.pattern, tensors)["O"])


@pytest.mark.parametrize("function", ["exp", "expm1", "tanh", "sigmoid"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_exponentials_in_vectors_are_as_exact_as_torchs(function: str, dtype: torch.dtype) -> None:
    big = 100.0 if dtype == torch.float32 else 740.0
    x = torch.cat([torch.linspace(-big, big, 4001), torch.linspace(-2, 2, 4001), torch.logspace(-30, 0, 300)])
    special = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-40, -1e-40])
    x = torch.cat([x, special]).to(dtype)
    wanted = Steps(
        (Step(at("y[p]"), op(function, at("x[p]")), "sum", ()),),
        ("y",),
        ("p",),
        frozenset(),
        (("p", len(x)),),
    )
    kernel = fused_kernel(wanted, None, {"x": x})
    assert isinstance(kernel, FusedKernel)
    truth = getattr(torch, function)(x.double())
    digits = torch.finfo(dtype)
    torch.testing.assert_close(
        run(kernel, None, {"x": x})["y"].double(),
        truth.to(dtype).double(),
        rtol=4 * digits.eps,
        atol=digits.tiny,
        equal_nan=True,
    )


def test_generated_text_is_the_golden_one(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Target("", 16, 32, 2, 1 << 20, 32 << 20)
    monkeypatch.setattr("scorch._src.compiler.vector.vectorize.target", lambda: machine)
    wanted, stored, tensors = attention(matrix(13, 11, 0.4))
    scaled = Step(at("T[i,e]"), op("mul", at("O[i,e]"), Literal(0.5)), "sum", ())
    wanted = replace(wanted, steps=(*ATTENTION, scaled), outputs=("T",))
    source = kernel_of(wanted, stored, tensors).source
    head, _, rest = source.partition("typedef")
    match = re.search(r"static __attribute__\(\(noinline\)\) void work_1.*?\n}\n", rest, re.DOTALL)
    assert match is not None
    text = head + match[0]
    if os.environ.get("SCORCH_UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


# a layer: scaled entries, a product, and what is applied to its rows ---------------------------------

SCALED = Step(S, op("mul", at("A[i,j]"), at("d[j]")), "sum", ())
PRODUCT = Step(at("O[i,e]"), op("mul", S, at("X[j,e]")), "sum", ("j",))


def layer(
    function: Expr, rows: int = 9, columns: int = 8, width: int = 7, dtype: torch.dtype = torch.float64
) -> tuple[Steps, Storage, dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(3)
    stored = from_torch(matrix(rows, columns, 0.4).to(dtype), format="csr").storage
    shapes = {"d": (columns,), "X": (columns, width), "b": (width,), "r": (rows,)}
    tensors = {
        name: torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)
        for name, shape in shapes.items()
    }
    steps = (SCALED, PRODUCT, Step(at("T[i,e]"), function, "sum", ()))
    sizes = (("i", rows), ("j", columns), ("e", width))
    return Steps(steps, ("T",), ("i", "j"), frozenset("AS"), sizes), stored, {"A": stored.values, **tensors}


def agree(
    wanted: Steps, stored: Storage, tensors: dict[str, torch.Tensor], truth: torch.Tensor
) -> FusedKernel:
    used = {access.tensor for step in wanted.steps for access in step.accesses}
    tensors = {name: tensor for name, tensor in tensors.items() if name in used}
    kernel = kernel_of(wanted, stored, tensors)
    torch.testing.assert_close(run(kernel, stored.pattern, tensors)["T"], truth)
    torch.testing.assert_close(interpret(kernel, stored.pattern, tensors)["T"], truth)
    return kernel


O, ZERO = at("O[i,e]"), Literal(0.0)
SHIFTED = op("add", O, at("b[e]"))
APPLIED: list[tuple[Expr, object]] = [
    (op("relu", SHIFTED), lambda x, t: torch.relu(x + t["b"])),
    (op("div", op("neg", O), at("r[i]")), lambda x, t: -x / t["r"][:, None]),
    (
        op("where", op("gt", SHIFTED, ZERO), SHIFTED, op("mul", Literal(0.1), SHIFTED)),
        lambda x, t: torch.nn.functional.leaky_relu(x + t["b"], 0.1),
    ),
    (op("where", op("lt", O, at("b[e]")), ZERO, O), lambda x, t: torch.where(x < t["b"], 0, x)),
]


@pytest.mark.parametrize("place", range(len(APPLIED)))
@pytest.mark.parametrize("width", [1, 3, 7, 130])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_functions_of_sums_are_applied_where_the_sums_are(place: int, width: int, dtype: torch.dtype) -> None:
    function, expected = APPLIED[place]
    wanted, stored, tensors = layer(function, width=width, dtype=dtype)
    product = scorch.SparseTensor(stored).to_dense() * tensors["d"] @ tensors["X"]
    kernel = agree(wanted, stored, tensors, expected(product, tensors))  # type: ignore[operator]
    assert [step.target.tensor for step in kernel.fused.group.steps] == ["S", "T"]
    assert "O_vals" not in kernel.source


def test_functions_without_vectors_are_applied_to_rows_in_the_cache() -> None:
    wanted, stored, tensors = layer(op("tanh", SHIFTED))
    product = scorch.SparseTensor(stored).to_dense() * tensors["d"] @ tensors["X"]
    kernel = agree(wanted, stored, tensors, torch.tanh(product + tensors["b"]))
    assert kernel.fused.in_strip == {"S", "O"}


def test_sums_that_are_asked_for_or_read_twice_are_stored() -> None:
    wanted, stored, tensors = layer(op("relu", O))
    again = Step(at("U[i,e]"), op("mul", O, at("T[i,e]")), "sum", ())
    wanted = replace(wanted, steps=(*wanted.steps, again), outputs=("T", "U"))
    used = {name: tensors[name] for name in "AdX"}
    kernel = kernel_of(wanted, stored, used)
    product = scorch.SparseTensor(stored).to_dense() * tensors["d"] @ tensors["X"]
    torch.testing.assert_close(run(kernel, stored.pattern, used)["U"], product * product.relu())
    assert kernel.fused.in_strip == {"S", "O"}


def test_long_vectors_are_read_before_rows_of_large_tensors_come_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = Target("", 16, 32, 2, 128, 1 << 20)  # a cache of 128 bytes
    monkeypatch.setattr("scorch._src.compiler.vector.vectorize.target", lambda: small)
    monkeypatch.setattr("scorch._src.compiler.fuse.join_loops.target", lambda: small)
    wanted, stored, tensors = layer(op("relu", SHIFTED), rows=11, columns=10)
    product = scorch.SparseTensor(stored).to_dense() * tensors["d"] @ tensors["X"]
    kernel = agree(wanted, stored, tensors, torch.relu(product + tensors["b"]))
    assert "a parallel loop over i for S, then one for the others" in kernel.header
    assert not kernel.fused.in_strip and kernel.source.count("void work_") == 2

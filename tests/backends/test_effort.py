"""Compilers spend their time on the loops of a kernel, and less on what surrounds them."""

from __future__ import annotations

import re

import pytest
import torch

import scorch
from scorch._src.backends.cpu import launch, parallel
from scorch._src.backends.print.effort import at_most

_BEGIN, _END = r'#pragma GCC push_options\n#pragma GCC optimize\("(\w+)"\)\n', "#pragma GCC pop_options"
_SECTIONS = re.compile(f"{_BEGIN}(.*?){_END}", re.DOTALL)
_DEFINED = re.compile(r"^(?:static|long long) .*?\b(?!__attribute__)(\w+)\(", re.MULTILINE)


def efforts(statement: str, form: str = "csr") -> dict[str, str]:
    """The functions of the kernel of a statement that are compiled with less effort than its loops."""
    A = scorch.from_torch(torch.eye(9), format="csr")
    (step,) = scorch.explain(statement, A=A, B=A, format=form).steps
    return {name: level for level, text in _SECTIONS.findall(step.source) for name in _DEFINED.findall(text)}


@pytest.mark.parametrize("statement", ["C[i,j] = A[i,j] + B[i,j]", "C[i,j] = A[i,j] * B[i,j]"])
def test_what_joins_the_parts_of_a_result_is_compiled_with_less_effort(statement):
    found = efforts(statement)
    assert found["take_turn"] == found["balance_i32"] == found["allocate"] == "O0"
    assert found["work_2"] == "O1"  # copies parts and shifts positions
    assert found["worker_1"] == found["scorch_compute"] == found["scorch_finish"] == "O0"  # once a chunk
    assert "work_1" not in found


def test_products_of_sparse_matrices_allocate_out_of_line():
    found = efforts("C[i,k] = A[i,j] * B[j,k]")
    assert found["allocate"] == found["resize"] == found["scorch_finish"] == "O0"
    assert "work_1" not in found


def test_a_kernel_with_one_parallel_loop_is_compiled_as_a_whole():
    assert efforts("C[i] = A[i,j] * B[i,j]", "dense") == {}


def test_loops_of_several_statements_are_vectorized_with_less_effort_and_without_asking_for_overlaps():
    A = scorch.from_torch(torch.rand(9, 9), format="csr")
    with scorch.settings(threads=1):
        found = scorch.explain(torch.sparse.softmax)(A, 1)
    texts = [kernel.source for kernel in found.kernels if kernel.source and "work_1" in kernel.source]
    assert texts
    for text in texts:
        assert '#pragma GCC optimize("O2", "tree-vectorize", "vect-cost-model=dynamic")' in text
        loops = re.findall(r"#pragma GCC ivdep\n *for .*\n.*\n *(\w+)\[", text)
        assert loops == ["E_vals", "R_vals"]  # which read workspaces, and not those that search or add


def test_what_calls_kernels_is_compiled_with_less_effort_but_for_loops_over_values():
    (builtins,), (pool,) = launch.SOURCES, parallel.SOURCES
    assert at_most("O1") == '#ifdef __OPTIMIZE__\n#pragma GCC optimize("O1")\n#endif\n'
    loops, _, rest = builtins.partition(at_most("O1"))
    assert set(re.findall(r"\b(?:MAP|ADD|COMBINE|FINITE)\((?!name|T\))", loops)) and "scorch_finite" in rest
    assert "out[i]" in loops and "out[i]" not in rest
    assert pool.startswith(at_most("O1"))

"""Random functions that are called again (``repeated_calls``) give what they give for dense tensors.

3,000 functions run with ``--long``; a part of them, always the same, otherwise.
"""

from __future__ import annotations

from collections import Counter

import pytest
import torch

import scorch
from properties.repeated_calls import Wrong, run_function
from scorch._src.engine import execute

PARTS = 6
CI_FUNCTIONS = 18
LONG_FUNCTIONS = 3_000


@pytest.mark.cpu("grad modes and threads of the host")
@pytest.mark.parametrize("part", range(PARTS))
def test_functions_that_are_called_again(request: pytest.FixtureRequest, seed: int, part: int) -> None:
    count = LONG_FUNCTIONS if request.config.getoption("long") else CI_FUNCTIONS
    counts: Counter[str] = Counter()
    for number in range(part, count, PARTS):
        counts += run_function(seed * LONG_FUNCTIONS + number)
    assert counts["gradients"] > count // PARTS and counts["results"] > count // PARTS


def test_what_is_cached_for_another_pattern_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Conversions by shape and number of entries alone, as a wrong cache would have them."""
    known: dict[object, object] = {}  # of one function
    convert = execute.converted_pattern

    def convert_wrongly(pattern, form):
        key = pattern.format, pattern.shape, pattern.size, form
        return known.setdefault(key, convert(pattern, form))

    for seed in range(20):
        known.clear()
        monkeypatch.setattr(execute, "converted_pattern", convert_wrongly)
        try:
            run_function(seed)
        except (Wrong, AssertionError, RuntimeError, IndexError):
            break
        finally:
            monkeypatch.undo()
    else:
        pytest.fail("no function was wrong")


def test_results_of_fused_calls_require_gradients_if_their_operands_do() -> None:
    A = scorch.rand(9, 4, density=0.5, format="csr")
    row, v = torch.rand(4), torch.rand(4, requires_grad=True)

    @scorch.compile
    def products(A, row, v):
        return (A * 2) * row, (A * 3) * v

    for _ in range(3):
        constant, learned = products(A, row, v)
        assert learned.requires_grad and not constant.requires_grad
        (gradient,) = torch.autograd.grad(learned.sum(), v)
        torch.testing.assert_close(gradient, 3 * A.to_dense().sum(0))

"""Random einsums, expressions and gradients on a device: a process that draws them and says how each ended.

    python -m tools.gpu_check.drawn einsum cuda 0 500      (kind, device, seed, number of cases)

Cases are those of ``tests/properties``: they are drawn, and computed in float64 by dense torch, on the
processor; operands are moved to the device, and what comes back is compared. A line of JSON goes out before
each case and one after it, so that whoever reads them knows which case a process died of.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import scorch
from scorch.errors import ScorchError
from tools.what_works.workers import BROKEN, is_broken

TESTS = Path(__file__).resolve().parents[2] / "tests"
SOURCE = str(Path(scorch.__file__).resolve().parent)
OUTCOMES = ("passed", "wrong", "refused", "raised", "crashed")


def must_be_on(result: torch.Tensor, device: str) -> None:
    wanted = torch.device(device).type
    assert result.device.type == wanted, f"the result is on {result.device}, not on {wanted}"


def run_einsum(case: Any, device: str) -> None:
    """As ``test_einsum_equals_dense``: three times, the later ones by what was cached."""
    from properties.test_einsum import check

    operands = [drawn.given.to(device) for drawn in case.operands]
    for _ in range(3):
        result = scorch.einsum(case.equation, *operands, format=case.requested)
        must_be_on(result, device)
        check(case, result.cpu())
    must_be_unchanged(operands, [drawn.dense for drawn in case.operands])


def run_evaluate(case: Any, device: str) -> None:
    """As ``test_expression_equals_dense``: three times, as above."""
    from properties.test_evaluate import check

    operands = {name: drawn.given.to(device) for name, drawn in case.drawn.items()}
    for _ in range(3):
        result = scorch.evaluate(case.text, format=case.requested, **operands)
        must_be_on(result, device)
        check(case, result.cpu())
    must_be_unchanged(list(operands.values()), [drawn.dense for drawn in case.drawn.values()])


def must_be_unchanged(operands: list[torch.Tensor], dense: list[torch.Tensor]) -> None:
    from properties.drawing import to_dense

    for operand, copy in zip(operands, dense, strict=True):
        assert torch.equal(to_dense(operand.cpu()), copy), "an operand was changed"


def run_gradients_of_einsum(case: Any, device: str) -> None:
    """As ``test_gradients_of_einsum``, all of it on the device."""
    from properties.test_gradients import test_gradients_of_einsum

    moved = [
        replace(drawn, dense=drawn.dense.to(device), given=drawn.given.to(device)) for drawn in case.operands
    ]
    with torch.device(device):
        test_gradients_of_einsum.hypothesis.inner_test(replace(case, operands=moved))


def run_gradients(case: Any, device: str) -> None:
    """As ``test_gradients_of_expressions``, all of it on the device."""
    from properties.test_gradients import test_gradients_of_expressions

    text, tensors, seed = case
    moved = {name: tensor.to(device) for name, tensor in tensors.items()}
    with torch.device(device):
        test_gradients_of_expressions.hypothesis.inner_test((text, moved, seed))


def strategy(kind: str) -> tuple[Any, Callable[[Any, str], None]]:
    """What draws the cases of ``kind``, and what runs one of them."""
    from properties import test_einsum, test_evaluate, test_gradients

    return {
        "einsum": (test_einsum.cases(), run_einsum),
        "evaluate": (test_evaluate.cases(), run_evaluate),
        "gradients": (test_gradients.expressions(), run_gradients),
        "einsum gradients": (test_gradients.cases(), run_gradients_of_einsum),
    }[kind]


KINDS = ("einsum", "evaluate", "gradients", "einsum gradients")


def outcome(run: Callable[[Any, str], None], case: Any, device: str) -> tuple[str, str]:
    """How a case ended, in one of the words of ``OUTCOMES``, and what was said."""
    try:
        run(case, device)
        if device.startswith("cuda"):
            torch.cuda.synchronize()
    except ScorchError as problem:
        return "refused", _told(problem)
    except AssertionError as problem:
        frame = traceback.extract_tb(problem.__traceback__)[-1]
        return ("raised" if frame.filename.startswith(SOURCE) else "wrong"), _told(problem)
    except Exception as problem:
        return "raised", _told(problem)
    return "passed", ""


def _told(problem: BaseException) -> str:
    return f"{type(problem).__name__}: {' '.join(str(problem).split())[:300]}"


def draw(kind: str, device: str, number: int, count: int) -> None:
    """Draw ``count`` cases and print what became of each."""
    sys.path[:0] = [str(TESTS)]
    from hypothesis import HealthCheck, Phase, given, seed, settings

    from on_device import use_device

    use_device("cpu")  # so that torch.Generator follows the device that tests are on
    cases, run = strategy(kind)

    @seed(number)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases)
    def each(case: Any) -> None:
        say(begin=f"{case!r}"[:1500])
        kind, message = outcome(run, case, device)
        if is_broken(device):
            say(end="crashed", message=message)
            os._exit(BROKEN)
        say(end=kind, message=message)

    each()
    say(done=True)


def say(**words: Any) -> None:
    print(json.dumps(words), flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    draw(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))

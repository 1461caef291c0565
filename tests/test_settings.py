"""Settings: what may be set, and the switches of optimisations."""

import os
import threading

import pytest
import torch

import scorch
from fork_server import run_python
from scorch.errors import ScorchError
from scorch.settings import OPTIMIZATIONS, current, enabled


def test_one_optimisation_is_switched_off_inside_a_block():
    with scorch.settings(disable="order"):
        assert not enabled("order") and enabled("balance")
    assert enabled("order")


def test_all_and_several_may_be_named():
    with scorch.settings(disable="all"):
        assert current().disable == frozenset(OPTIMIZATIONS)
    with scorch.settings(disable=("order", "balance")):
        assert current().disable == {"order", "balance"}


def test_an_unknown_optimisation_is_named_with_those_that_exist():
    with pytest.raises(ScorchError, match="unknown optimization 'speed'; choose from order, "):
        scorch.settings(disable="speed")
    with pytest.raises(ScorchError, match="disable names the unknown optimization 'speed'"):
        scorch.settings(disable=["all", "speed"])
    with pytest.raises(ScorchError, match="did you mean 'all'"):
        scorch.settings(disable="ALL")


USE = "scorch.eye(3, format='csr') @ torch.ones(3)"


@pytest.mark.whole
@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        (
            "SCORCH_DISABLE",
            "regsters",
            "names the unknown optimization 'regsters'; did you mean 'registers'?",
        ),
        ("SCORCH_DISABLE", "all,speed", "names the unknown optimization 'speed'; choose from order,"),
        ("SCORCH_DEBUG", "false", "must be one of 0, 1, but got 'false'"),
        ("SCORCH_BACKEND", "gpu", "must be one of cpu, interpreter, but got 'gpu'"),
        ("SCORCH_OPTIMIZE", "fast", "must be one of 0, 1, 2, 3, but got 'fast'"),
        ("SCORCH_TARGET", "x86", "must be one of x86-64-v2, x86-64-v3, x86-64-v4, aarch64, but got 'x86'"),
        (
            "SCORCH_CACHE_DIR",
            "~no-such-user/x",
            "is '~no-such-user/x', but this home directory does not exist",
        ),
    ],
)
def test_bad_values_of_environment_variables_are_refused_by_name(name: str, value: str, reason: str) -> None:
    """Not accepted silently, and not called by the name of a setting that nobody has passed."""
    program = f"import torch, scorch; {USE}"
    done = run_python(["-c", program], env={**os.environ, name: value}, has="torch")
    assert f"ArgumentError: the environment variable {name} {reason}" in done.stderr.splitlines()[-1]


def test_space_around_the_values_of_environment_variables_is_ignored() -> None:
    changed = {"SCORCH_DEBUG": " 1 ", "SCORCH_BACKEND": " interpreter", "SCORCH_DISABLE": "registers, jam "}
    program = (
        f"import torch, scorch; {USE}; print(scorch.settings, sorted(current().disable), current().debug)"
    )
    setup = "from scorch.settings import current"
    done = run_python(["-c", f"{setup}; {program}"], env={**os.environ, **changed}, has="torch", check=True)
    assert done.stdout.strip().endswith("['jam', 'registers'] True")


@pytest.mark.parametrize("place", ["", "a\0b", b"a", "~no-such-user/kernels"])
def test_what_names_no_folder_is_no_cache_directory(place: object) -> None:
    with pytest.raises(ScorchError, match=r"^cache_directory "):
        scorch.settings(cache_directory=place)


@pytest.mark.parametrize("name", [*OPTIMIZATIONS, "all"])
def test_results_do_not_depend_on_the_switches(name):
    generator = torch.Generator().manual_seed(1)
    dense = torch.rand(40, 30, generator=generator)
    dense[dense < 0.7] = 0
    A, B = scorch.from_torch(dense.to_sparse_csr()), torch.rand(30, 20, generator=generator)
    wanted = dense @ B
    torch.testing.assert_close(scorch.einsum("ij,jk->ik", A, B), wanted)
    with scorch.settings(disable=name):
        torch.testing.assert_close(scorch.einsum("ij,jk->ik", A, B), wanted)
        total = scorch.evaluate("C[i,k] = A[i,j] * B[k,j]", A=A, B=A)
        torch.testing.assert_close(total.to_dense(), dense @ dense.T)


def test_applied_settings_hold_in_all_threads():
    found = []
    before = current().cache_bytes
    scorch.settings(cache_bytes=12345).apply()
    try:
        thread = threading.Thread(target=lambda: found.append(current().cache_bytes))
        thread.start()
        thread.join()
        with scorch.settings(threads=1):
            found.append(current().cache_bytes)
    finally:
        scorch.settings(cache_bytes=before).apply()
    assert found == [12345, 12345] and current().cache_bytes == before


@pytest.mark.parametrize(
    "changes", [{"disable": None}, {"disable": 5}, {"disable": [1]}, {"cache_directory": 3}, {"debug": "no"}]
)
def test_settings_of_a_wrong_type_are_refused(changes):
    with pytest.raises(ScorchError, match=next(iter(changes))):
        scorch.settings(**changes)


def test_several_optimisations_may_be_one_text():
    with scorch.settings(disable="registers, prefetch"):
        assert current().disable == {"registers", "prefetch"}


def test_repr_shows_the_changes() -> None:
    assert (
        repr(scorch.settings(threads=2, disable="registers")) == "settings(threads=2, disable=['registers'])"
    )

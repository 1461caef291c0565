"""Names that tensors and modules do not have are answered with what to use instead."""

from __future__ import annotations

import pickle

import pytest
import scipy.sparse
import torch

import scorch
import scorch.compat.torch_sparse
from scorch._src.name_hints import MASK_HINTS, MODULE_HINTS, NN_HINTS, TENSOR_HINTS
from scorch.errors import UnknownNameError

S = scorch.tensor([[4.0, 2.0, 0.0], [2.0, 4.0, 0.0], [0.0, 0.0, 3.0]], format="csr")
NAMES = {
    "scorch": scorch,
    "torch": torch,
    "S": S,
    "i": 0,
    "j": 1,
    "n": 2,
    "m": 3,
    "b": torch.ones(3),
    "B": torch.ones(3, 2),
    "dense": torch.eye(3),
    "tensor": torch.eye(3),
    "other": S,
    "matrix": scipy.sparse.eye_array(3),
    "value": 1.0,
    "values": torch.ones(3),
    "new_values": torch.ones(5),
    "data": [[0.0, 1.0], [1.0, 0.0]],
    "array": torch.eye(2).numpy(),
    "indices": [[0, 1, 2], [0, 1, 2]],
    "crow_indices": [0, 1, 2, 3],
    "col_indices": [0, 1, 2],
    "size": (3, 3),
    "edge_index": torch.tensor([[0, 1], [1, 0]]),
    "before": 2,
    "radius": 1,
    "mask_mod": lambda b, h, q_idx, kv_idx: q_idx >= kv_idx,
    "masks": scorch.nn.masks,
    "x": torch.ones(3, 2),
    "M": S,
}
NOT_RUN = {"scorch.save", "scorch.load", "scorch.spy", "scorch.sparsify", "isinstance"}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tocsr", r"use S\.to_format\('csr'\)"),
        ("toarray", r"use S\.to_dense\(\)"),
        ("set_value", r"scorch\.sparse_csr_tensor"),
        ("with_values", r"scorch\.sparse_csr_tensor"),
        ("fit", "not an estimator"),
    ],
)
def test_a_tensor_says_what_to_use(name: str, words: str) -> None:
    with pytest.raises(AttributeError, match=f"no attribute '{name}'; .*{words}") as caught:
        getattr(S, name)
    assert isinstance(caught.value, UnknownNameError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert not hasattr(S, name) and getattr(S, name, None) is None


@pytest.mark.parametrize("name", ["to_desne", "vlaues"])
def test_python_suggests_the_nearest_name(name: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(S, name)
    assert caught.value.name == name and caught.value.obj is S  # from which Python finds the suggestion


def test_names_of_others_are_not_listed() -> None:
    assert not {"tocsr", "toarray", "fit"} & set(dir(S)) and {"to_dense", "values", "format"} <= set(dir(S))


def test_attributes_are_read_in_graphs() -> None:
    compiled = torch.compile(
        lambda S: S * 2 if S.format.order[-1] == 1 else S, fullgraph=True, backend="eager"
    )
    assert torch.equal(compiled(S).to_dense(), 2 * S.to_dense())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("csr_matrix", r"scorch\.from_scipy\(matrix\)"),
        ("from_dense", r"scorch\.from_torch\(dense, format='csr'\)"),
        ("einsun", "did you mean 'einsum'"),
        ("GCNConv", r"it is scorch\.nn\.GCNConv"),
    ],
)
def test_the_module_says_what_to_use(name: str, words: str) -> None:
    with pytest.raises(AttributeError, match=f"no attribute '{name}'; .*{words}"):
        getattr(scorch, name)
    assert not hasattr(scorch, name)


def test_submodules_suggest_their_own_names() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'MessagePassing'; .*adj @ x"):
        _ = scorch.nn.MessagePassing
    with pytest.raises(
        AttributeError, match=r"'scorch.nn.masks' has no attribute 'sliding_window'; use masks"
    ):
        _ = scorch.nn.masks.sliding_window
    with pytest.raises(AttributeError, match="did you mean 'bigbird'"):
        _ = scorch.nn.masks.big_bird
    with pytest.raises(AttributeError, match="did you mean 'SparseLinear'"):
        _ = scorch.nn.SparseLinaer


def test_names_unlike_any_other_get_no_suggestion() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'quixotic_zebra'$"):
        _ = S.quixotic_zebra
    with pytest.raises(AttributeError, match=r"no attribute '_private'$"):
        _ = S._private


def test_hints_are_for_names_that_are_missing_and_what_they_say_works() -> None:
    tried = 0
    owners = ((S, TENSOR_HINTS), (scorch, MODULE_HINTS), (scorch.nn, NN_HINTS), (scorch.nn.masks, MASK_HINTS))
    for owner, hints in owners:
        for name, hint in hints.items():
            assert not hasattr(owner, name), name
            for text in hint.removeprefix("use ").split(", or "):
                code = text.partition(" for an")[0].partition(", which")[0].partition(" to read")[0]
                if hint.startswith("use ") and code.split("(")[0] not in NOT_RUN:
                    eval(code.partition(" or scorch.sparse_")[0], dict(NAMES))
                    tried += 1
    assert tried > 50


def test_a_property_that_fails_keeps_its_own_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: torch.Tensor) -> None:
        raise AttributeError("the reason")

    monkeypatch.setattr(scorch.SparseTensor, "failing", property(fail), raising=False)
    with pytest.raises(AttributeError, match="the reason"):
        _ = S.failing

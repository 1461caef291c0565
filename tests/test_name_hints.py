"""Names that tensors and modules do not have are answered with what to use instead."""

from __future__ import annotations

import functools
import inspect
import pickle
import re
import traceback
import types
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch

import scorch
import scorch._src.tensor.create.factories as factories
import scorch.compat.torch_sparse
import scorch.distributed
import scorch.utils.data
from scorch._src.hint_tables import (
    CALL_HINTS,
    KEYWORD_HINTS,
    LINALG_HINTS,
    MASK_HINTS,
    MODULE_HINTS,
    NN_HINTS,
    SPARSE_HINTS,
    TENSOR_HINTS,
)
from scorch._src.name_hints import keywords_of
from scorch._src.nn.layer import Layer
from scorch.errors import (
    ArgumentError,
    AssignmentError,
    FormatError,
    KeywordError,
    NotationError,
    OperandError,
    ScorchError,
    ShapeError,
    UnknownNameError,
    UnsupportedError,
    nearest,
)

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
    "Q": torch.ones(3, 2),
    "K": torch.ones(3, 2),
    "T": torch.ones(3, 3, 3),
}
NOT_RUN = {"scorch.save", "scorch.load", "scorch.spy", "scorch.sparsify", "isinstance"}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tocsr", r"use S\.to_format\('csr'\)"),
        ("toarray", r"use S\.to_dense\(\)"),
        ("set_value", r"S\.with_values\(new_values\)"),
        ("spones", r"S\.with_values\(1\)"),
        ("fit", "not an estimator"),
    ],
)
def test_a_tensor_says_what_to_use(name: str, words: str) -> None:
    with pytest.raises(AttributeError, match=f"no attribute '{name}'; .*{words}") as caught:
        getattr(S, name)
    assert isinstance(caught.value, UnknownNameError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert not hasattr(S, name) and getattr(S, name, None) is None


@pytest.mark.parametrize(
    ("name", "nearest"), [("to_dens", "to_dense"), ("vlaues", "values"), ("shapes", "shape")]
)
def test_the_nearest_name_is_suggested_once(name: str, nearest: str) -> None:
    with pytest.raises(
        UnknownNameError, match=rf"no attribute '{name}'; did you mean '{nearest}'\?$"
    ) as caught:
        getattr(S, name)
    report = "".join(traceback.format_exception(caught.value))
    assert (
        len(re.findall("did you mean", report, re.IGNORECASE)) == 1
    )  # Python 3.12 adds suggestions of its own
    assert caught.value.name == name and not hasattr(S, name)


def test_private_names_are_missing_without_a_suggestion() -> None:
    with pytest.raises(AttributeError, match=r"no attribute '_valuess'$") as caught:
        _ = S._valuess
    assert not isinstance(caught.value, UnknownNameError) and caught.value.obj is S


def test_a_property_raises_its_own_attribute_error(monkeypatch: pytest.MonkeyPatch) -> None:
    fails = property(lambda tensor: tensor.storage.no_such_array)
    monkeypatch.setattr(scorch.SparseTensor, "fails", fails, raising=False)
    with pytest.raises(AttributeError, match="no_such_array"):
        _ = S.fails


def test_names_of_others_are_not_listed() -> None:
    assert not {"tocsr", "toarray", "fit"} & set(dir(S)) and {"to_dense", "values", "format"} <= set(dir(S))


def test_only_public_names_are_listed() -> None:
    own = set(dir(S)) - set(dir(torch.Tensor))
    assert {"format", "nnz", "levels", "to_scipy", "setdiag"} <= own
    assert not {"copied_by", "view_of", "viewed_by", "parameter", "source_values"} & own
    assert {name for name in own if name.startswith("_")} == {
        "__array_ufunc__", "__getattr__", "__tensor_flatten__", "__tensor_unflatten__", "_repr_html_",
        "_stable_hash_for_caching",
    }  # fmt: skip


def test_attributes_are_read_in_graphs() -> None:
    compiled = torch.compile(
        lambda S: S * 2 if S.format.order[-1] == 1 else S, fullgraph=True, backend="eager"
    )
    assert torch.equal(compiled(S).to_dense(), 2 * S.to_dense())


def test_missing_names_are_asked_for_in_graphs() -> None:
    compiled = torch.compile(
        lambda S: (S * 3 if hasattr(S, "to_dens") else S * 2) * getattr(S, "no_such_name", 5.0),
        fullgraph=True,
        backend="eager",
    )
    assert torch.equal(compiled(S).to_dense(), 10 * S.to_dense())


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
    with pytest.raises(AttributeError, match=r"'scorch.linalg' has no attribute 'bicgstab'; use .*gmres"):
        _ = scorch.linalg.bicgstab
    with pytest.raises(AttributeError, match=r"no attribute 'splu'; .*factorizes on each call"):
        _ = scorch.linalg.splu
    for module, name in ((scorch.nn, "NeighborLoader"), (scorch, "neighbor_sample")):
        with pytest.raises(AttributeError, match=r"torch_geometric.loader.*torch_sparse.install"):
            getattr(module, name)
    with pytest.raises(
        AttributeError, match=r"'scorch.nn.masks' has no attribute 'sliding_window'; use masks"
    ):
        _ = scorch.nn.masks.sliding_window
    with pytest.raises(AttributeError, match="did you mean 'bigbird'"):
        _ = scorch.nn.masks.big_bird
    with pytest.raises(AttributeError, match="did you mean 'SparseLinear'"):
        _ = scorch.nn.SparseLinaer


def test_masks_list_public_names_only() -> None:
    assert dir(scorch.nn.masks) == scorch.nn.masks.__all__


def test_names_of_other_libraries_are_known_where_they_are_tried() -> None:
    for module, name, words in (
        (scorch, "spgemm", r"; use S @ other$"),
        (scorch, "sddmm", r"; use scorch\.einsum\('ij,ik,jk->ij', S, Q, K\)$"),
        (scorch, "densify", r"; it is a method: S\.to_dense\(\)$"),
        (scorch.sparse, "csr_matrix", r"scorch\.from_scipy\(matrix\)"),
        (scorch.sparse, "random", r"; use scorch\.rand\(m, n, density=0\.01, format='csr'\)$"),
        (scorch.sparse, "vstack", r"; use torch\.cat\(\[S, S\]\)$"),
        (scorch.sparse, "linalg", r"; it is scorch\.linalg$"),
        (scorch.nn, "GraphConv", r"only PyG has this layer: torch_geometric\.nn\.GraphConv accepts sparse"),
    ):
        with pytest.raises(UnknownNameError, match=words):
            getattr(module, name)


def test_names_that_are_elsewhere_are_found() -> None:
    for owner, name, words in (
        (scorch, "linear", r"; it is scorch\.nn\.functional\.linear$"),
        (scorch, "Linear", r"; it is scorch\.nn\.Linear$"),
        (scorch, "eigsh", r"; it is scorch\.linalg\.eigsh$"),
        (scorch, "sampled_addmm", r"; it is scorch\.sparse\.sampled_addmm$"),
        (scorch, "SparseDataset", r"; it is scorch\.utils\.data\.SparseDataset$"),
        (scorch, "coalesce", r"; it is a method: S\.coalesce\(\)$"),
        (scorch, "density", r"; it is an attribute of tensors: S\.density$"),
        (scorch, "SparseStorage", r"; it is scorch\.compat\.torch_sparse\.SparseStorage$"),
        (scorch.nn, "sparsify", r"; it is scorch\.sparsify$"),
        (scorch.sparse, "einsum", r"; it is scorch\.einsum$"),
        (S, "einsum", r"; it is scorch\.einsum$"),
        (S, "cg", r"; it is scorch\.linalg\.cg$"),
    ):
        with pytest.raises(UnknownNameError, match=words):
            getattr(owner, name)


def test_modules_know_the_hints_of_one_another() -> None:
    for owner, name, words in (
        (scorch, "lsqr", r"; use torch\.linalg\.lstsq\(S, b\)$"),
        (scorch, "to_csr", r"; use S\.to_format\('csr'\)$"),
        (scorch, "RGCNConv", "only PyG has this layer"),
        (scorch.linalg, "csr_matrix", r"scorch\.from_scipy\(matrix\)"),
        (scorch.sparse, "from_dense", r"scorch\.from_torch\(dense, format='csr'\)$"),
        (S, "degree", r"; use S\.sum\(1\)$"),
    ):
        with pytest.raises(UnknownNameError, match=words):
            getattr(owner, name)


def test_modules_that_are_called_say_what_is_meant() -> None:
    with pytest.raises(OperandError, match=r"^scorch\.random is a module, as in PyTorch; use scorch\.rand\("):
        scorch.random((3, 3), density=0.1)
    with pytest.raises(OperandError, match=r"^scorch\.sparse is a module.*; use scorch\.from_torch\("):
        scorch.sparse(torch.eye(2))
    scorch.random.manual_seed(0)
    first = torch.rand(3)
    torch.random.manual_seed(0)
    assert torch.equal(first, torch.rand(3)) and set(torch.random.__all__) <= set(dir(scorch.random))
    for hint in CALL_HINTS.values():
        eval(hint.removeprefix("use "), dict(NAMES))


def test_names_unlike_any_other_get_no_suggestion() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'quixotic_zebra'$"):
        _ = S.quixotic_zebra
    with pytest.raises(AttributeError, match=r"no attribute '_private'$"):
        _ = S._private


def test_hints_are_for_names_that_are_missing_and_what_they_say_works() -> None:
    tried = 0
    owners = (
        (S, TENSOR_HINTS),
        (scorch, MODULE_HINTS),
        (scorch.nn, NN_HINTS),
        (scorch.linalg, LINALG_HINTS),
        (scorch.nn.masks, MASK_HINTS),
        (scorch.sparse, SPARSE_HINTS),
    )
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


EDGES = torch.tensor([[0, 1], [1, 0]])
KEYWORDS: dict[str, Callable[[], object]] = {
    "from_edge_index() got an unexpected keyword argument 'num_nodes'; use size=": lambda: (
        scorch.from_edge_index(EDGES, num_nodes=2)
    ),
    "from_torch() got an unexpected keyword argument 'fromat'; did you mean 'format'?": lambda: (
        scorch.from_torch(torch.eye(2), fromat="csr")
    ),
    "from_torch() got an unexpected keyword argument 'dtype'; apply it to the result, as in "
    "from_torch(...).to(torch.float16)": lambda: scorch.from_torch(torch.eye(2), dtype=torch.float16),
    "einsum() got an unexpected keyword argument 'sparse_grads'; did you mean 'sparse_grad'?": lambda: (
        scorch.einsum("ij,jk->ik", S, S, sparse_grads=True)
    ),
    "sparse_csr_tensor() got an unexpected keyword argument 'shape'; use size=": lambda: (
        scorch.sparse_csr_tensor([0, 1], [0], [1.0], shape=(1, 1))
    ),
    "rand() got an unexpected keyword argument 'sparsity'; use density=1 - sparsity": lambda: scorch.rand(
        2, 2, sparsity=0.5
    ),
    "zeros() got an unexpected keyword argument 'formt'; did you mean 'format'?": lambda: scorch.zeros(
        2, 2, formt="csr"
    ),
    "rand() got an unexpected keyword argument 'low'; its keyword arguments are density, format, size, "
    "generator, out, dtype, layout, device, requires_grad, pin_memory": lambda: scorch.rand(
        3, 3, density=0.5, low=0
    ),
    "eye() got an unexpected keyword argument 'generator'; its keyword arguments are n, m, format, out, "
    "dtype, layout, device, requires_grad": lambda: scorch.eye(3, format="csr", generator=None),
    "rand() got an unexpected keyword argument 'seed'; pass generator=torch.Generator().manual_seed(0), or "
    "call torch.manual_seed(0) before": lambda: scorch.rand(3, 3, seed=0),
    "to_format() got an unexpected keyword argument 'copy'; apply it to the result, as in "
    "to_format(...).clone()": lambda: S.to_format("csc", copy=True),
    "to_dense() got an unexpected keyword argument 'dtyp'; did you mean 'dtype'?": lambda: S.to_dense(dtyp=1),
    "to_scipy() got an unexpected keyword argument 'format'; convert first, as in "
    "S.to_format('csr').to_scipy()": lambda: S.to_scipy(format="csr"),
    "setdiag() got an unexpected keyword argument 'offset'; use k=": lambda: S.setdiag(1, offset=1),
    "with_values() got an unexpected keyword argument 'value'; use values=": lambda: S.with_values(value=1),
    "SparseDataset() got an unexpected keyword argument 'labels'; it takes arguments by position "
    "only": lambda: scorch.utils.data.SparseDataset(S, labels=torch.ones(3)),
    "as_tensor() got an unexpected keyword argument 'fmt'; use format=": lambda: scorch.as_tensor(
        [1.0], fmt="csr"
    ),
    "sparsify() got an unexpected keyword argument 'amount'; use sparsity=": lambda: scorch.sparsify(
        torch.nn.Linear(2, 2), amount=0.5
    ),
    "SparseLinear() got an unexpected keyword argument 'amount'; use sparsity=": lambda: (
        scorch.nn.SparseLinear(2, 2, amount=0.5)
    ),
    "GATConv() got an unexpected keyword argument 'num_heads'; use heads=": lambda: scorch.nn.GATConv(
        2, 2, num_heads=2
    ),
    "SGConv() got an unexpected keyword argument 'quixotic'; its keyword arguments are in_channels, "
    "out_channels, K, cached, add_self_loops, bias": lambda: scorch.nn.SGConv(2, 2, quixotic=2),
    "compile() got an unexpected keyword argument 'fulgraph'; did you mean 'fullgraph'?": lambda: (
        scorch.compile(torch.relu, fulgraph=True)
    ),
    "window() got an unexpected keyword argument 'causal'; pass the radius as a pair (before, 0)": lambda: (
        scorch.nn.masks.window(8, 2, causal=True)
    ),
    "explain() got an unexpected keyword argument 'html'; to_html() of the result returns a page, as in "
    "pathlib.Path('page.html').write_text(plan.to_html())": lambda: scorch.explain("ij->i", S, html=True),
    "SparseLSTM replaces a dense layer: use scorch.sparsify(torch.nn.LSTM(...), sparsity=0.9, "
    "prefer='size'); without prefer, it is sparse only where that is faster": lambda: scorch.nn.SparseLSTM(
        input_size=4, hidden_size=2
    ),
    "SparseEmbedding replaces a dense layer: use scorch.sparsify(torch.nn.Embedding(...), sparsity=0.9, "
    "prefer='size'); without prefer, it is sparse only where that is faster": lambda: (
        scorch.nn.SparseEmbedding(30, 8)
    ),
}


@pytest.mark.parametrize("message", KEYWORDS)
@pytest.mark.whole
def test_unknown_keywords_are_answered_with_what_to_use(message: str) -> None:
    with pytest.raises(OperandError) as caught:  # a TypeError, as Python raises
        KEYWORDS[message]()
    assert str(caught.value) == message


def public_functions() -> dict[str, Callable[..., object]]:
    """Scorch's own functions, except those that take names of the user's or further options of torch."""
    modules = (
        scorch, scorch.nn, scorch.nn.masks, scorch.linalg, scorch.sparse, scorch.utils.data,
        scorch.distributed,
    )  # fmt: skip
    functions = {}
    for module in modules:
        for name in getattr(module, "__all__", None) or dir(module):
            function = getattr(module, name)
            if not inspect.isfunction(function) or name.startswith("_"):
                continue
            is_reduction = function.__module__.endswith(".maskable")  # torch's, which has its own errors
            if not function.__module__.startswith("scorch.") or is_reduction:
                continue
            parameters = inspect.signature(function).parameters.values()
            if parameters and all(each.kind != inspect.Parameter.VAR_KEYWORD for each in parameters):
                functions[f"{module.__name__}.{name}"] = function
    return functions


def test_every_public_function_suggests_the_keyword_that_is_meant() -> None:
    functions = public_functions()
    assert len(functions) > 50
    assert {"scorch.einsum", "scorch.draw", "scorch.distributed.shard"} <= set(functions)
    for name, function in functions.items():
        if name == "scorch.sparse_compressed_tensor":
            function = functools.partial(function, layout=torch.sparse_csr)
        optional = inspect.signature(function).parameters.values()
        keyword = max(
            [each.name for each in optional if each.default is not each.empty] or keywords_of(function),
            key=len,
        )
        wrong = f"{keyword[:-1]}qq" if len(keyword) > 8 else f"{keyword}q"
        arguments = [torch.ones(1)] * sum(
            each.default is each.empty and each.kind == each.POSITIONAL_OR_KEYWORD
            for each in inspect.signature(function).parameters.values()
        )
        with pytest.raises(KeywordError, match=f"unexpected keyword argument '{wrong}'") as caught:
            function(*arguments, **{wrong: 1})
        if len(keyword) > 2:
            assert f"did you mean {keyword!r}" in str(caught.value), name


FACTORIES: dict[str, tuple[object, ...]] = {
    **dict.fromkeys(("zeros", "ones", "empty", "eye", "arange", "rand", "randn", "randperm"), (3,)),
    **dict.fromkeys(("zeros_like", "rand_like", "diag"), (torch.ones(3),)),
    **dict.fromkeys(("linspace", "logspace"), (0, 1, 3)),
    "full": ((3,), 1.0),
    "randint": (3, (3,)),
    "as_tensor": ([1.0],),
    "asarray": ([1.0],),
}


@pytest.mark.whole
@pytest.mark.parametrize("name", FACTORIES)
def test_factories_suggest_only_keywords_that_they_have(name: str) -> None:
    known, make = factories.keywords_of_factory(name), getattr(scorch, name)
    assert "format" in known and len(known) > 3
    for other in {"start", "step", "low", "high", "generator", "copy", "steps", "fill_value"} - known.keys():
        for options in ({}, {"format": "dense" if name == "diag" else "s" if name != "eye" else "csr"}):
            with pytest.raises(TypeError) as caught:
                make(*FACTORIES[name], **options, **{other: 1})
            assert not re.search(f"did you mean '{other}'|arguments are .*{other}", str(caught.value))


def test_what_a_keyword_hint_names_is_a_keyword() -> None:
    functions = [scorch.from_edge_index, scorch.from_coordinates, scorch.rand, scorch.sparsify, scorch.doctor]
    functions += [getattr(scorch.nn, name) for name in scorch.nn.__all__ if name[0].isupper()]
    functions += [getattr(scorch.nn.masks, name) for name in scorch.nn.masks.__all__]
    functions += [make().forward for make in LAYERS.values()]
    functions += [scorch.linalg.cg, scorch.linalg.eigsh, scorch.zeros]
    functions += [scorch.nn.SparseLinear.rewire]
    known = {"size"}.union(*(inspect.signature(function).parameters for function in functions))
    assert {name for names in KEYWORD_HINTS.values() for name in names} <= known


def _sparse(layer: torch.nn.Module) -> Callable[[], torch.nn.Module]:
    return lambda: scorch.sparsify(layer, 0.9, prefer="size")


BY_SIZES = (
    "GCNConv", "SAGEConv", "GATConv", "GATv2Conv", "TransformerConv", "SGConv", "Linear",
    "SparseEmbeddingBag",
)  # fmt: skip
LAYERS: dict[str, Callable[[], torch.nn.Module]] = {
    **{name: functools.partial(getattr(scorch.nn, name), 2, 2) for name in BY_SIZES},
    "GINConv": lambda: scorch.nn.GINConv(torch.nn.Linear(2, 2)),
    "APPNP": lambda: scorch.nn.APPNP(2, 0.1),
    "MultiheadAttention": lambda: scorch.nn.MultiheadAttention(2, 1),
    "SparseLinear": lambda: scorch.nn.SparseLinear(2, 2, density=1.0),
    "SparseConv1d": _sparse(torch.nn.Conv1d(16, 16, 3)),
    "SparseLSTM": _sparse(torch.nn.LSTM(16, 16)),
    "SparseEmbedding": _sparse(torch.nn.Embedding(16, 16)),
    "SparseMultiheadAttention": _sparse(torch.nn.MultiheadAttention(16, 1)),
    "TopKAutoencoder": lambda: scorch.nn.TopKAutoencoder(2, 4, k=1),
    "TopKGate": lambda: scorch.nn.TopKGate(2, 2, 1),
}


@pytest.mark.parametrize("name", LAYERS)
def test_calls_of_layers_suggest_the_keyword_that_is_meant(name: str) -> None:
    layer, x = LAYERS[name](), torch.ones(2, 2)
    assert type(layer).__name__ == name
    keyword = max(keywords_of(layer.forward), key=len)
    wrong = f"{keyword}s" if len(keyword) > 3 else "inputs"
    for options in ({}, {keyword: x}):
        with pytest.raises(KeywordError) as caught:
            layer(x, **options, **{wrong: x})
        message = f"{name}.forward() got an unexpected keyword argument {wrong!r}; did you mean {keyword!r}?"
        assert str(caught.value).replace(f"use {keyword}=", f"did you mean {keyword!r}?") == message
    with pytest.raises(
        KeywordError, match=r"unexpected keyword argument 'quixotic'; its (only )?keyword arg"
    ):
        layer(x, quixotic=1)


@pytest.mark.parametrize(
    ("name", "keyword", "hint"),
    [
        ("GCNConv", "edge_weigth", "did you mean 'edge_weight'?"),
        ("GCNConv", "edge_attr", "use edge_weight="),
        ("GATConv", "edge_weight", "use edge_attr="),
        ("SAGEConv", "adj_t", "use edge_index="),
        ("SGConv", "features", "use x="),
        ("MultiheadAttention", "mask", "use attn_mask="),
        ("SparseMultiheadAttention", "src_key_padding_mask", "use key_padding_mask="),
        ("SparseLSTM", "h_0", "use hx="),
        ("SparseLinear", "x", "use input="),
        ("SparseLinear", "edge_index", "its only keyword argument is input"),
    ],
)
def test_calls_of_layers_know_the_names_of_other_libraries(name: str, keyword: str, hint: str) -> None:
    with pytest.raises(KeywordError) as caught:
        LAYERS[name]()(torch.ones(2, 2), **{keyword: torch.ones(2, 2)})
    assert str(caught.value).endswith(f"unexpected keyword argument {keyword!r}; {hint}")


def test_all_modules_of_scorch_explain_their_keywords() -> None:
    public = [getattr(scorch.nn, name) for name in scorch.nn.__all__]
    modules = [each for each in public if inspect.isclass(each) and issubclass(each, torch.nn.Module)]
    assert len(modules) > 15 and all(issubclass(each, Layer) for each in modules)


def test_other_errors_of_layers_stay_what_they_are() -> None:
    layer, x = scorch.nn.GCNConv(2, 2), torch.ones(2, 2)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'edge_index'"):
        layer(x)
    layer.register_forward_hook(lambda *args: len(5))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"object of type 'int' has no len"):
        layer(x, EDGES, edge_weight=torch.ones(2))
    with pytest.raises(KeywordError, match="'edges'; use edge_index="):
        layer(x, edges=EDGES)


def test_layers_are_called_as_torch_calls_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x, seen = scorch.nn.GCNConv(2, 2), torch.ones(2, 2), []
    with monkeypatch.context() as patch:  # as torch.fx does while it traces
        patch.setattr(torch.nn.Module, "__call__", lambda module, *args: seen.append(module))
        layer(x, EDGES)
    assert seen == [layer]
    expected = layer(x, EDGES)
    layer.compile(backend="aot_eager")
    torch.testing.assert_close(layer(x, EDGES), expected)
    with pytest.raises(TypeError, match="unexpected keyword argument 'edges'"):
        layer(x, edges=EDGES)


def test_exchanged_letters_are_suggested_first() -> None:
    assert nearest("cfs", ("csr", "csc", "csf")) == "did you mean 'csf'?"
    with pytest.raises(scorch.errors.FormatError, match=r"did you mean 'csf'\?"):
        scorch.eye(3, format="cfs")


def test_torch_says_what_is_wrong_with_known_keywords() -> None:
    with pytest.raises(TypeError, match="must be tuple of ints"):
        scorch.zeros(size="csr")


def test_functions_with_hints_are_captured() -> None:
    compiled = torch.compile(
        lambda x: scorch.from_torch(x, format="csr") @ x, fullgraph=True, backend="eager"
    )
    assert torch.equal(compiled(torch.eye(3)), torch.eye(3))


# values of arguments ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "words"),
    [
        ("float32", "must be a torch.dtype, but got 'float32'; use torch.float32"),
        (np.float64, r"but got numpy.float64; use torch.float64"),
        (np.dtype("int64"), r"dtype\('int64'\); use torch.int64"),
        ("floot32", r"did you mean 'float32'\?"),
        (3.5, "but got 3.5, such as torch.float32"),
    ],
)
def test_what_is_no_dtype_says_which_is_meant(dtype: object, words: str) -> None:
    for call in (
        lambda: scorch.rand(3, 3, density=0.5, format="csr", dtype=dtype),
        lambda: scorch.tensor([[1.0]], format="csr", dtype=dtype),
        lambda: scorch.sparse_coo_tensor([[0]], [1.0], (2,), dtype=dtype),
        lambda: scorch.nn.SparseLinear(8, 4, dtype=dtype),
        lambda: S.to(dtype=dtype),
        lambda: S.sum(dtype=dtype),
    ):
        with pytest.raises(TypeError, match=words) as caught:
            call()
        assert isinstance(caught.value, OperandError)


@pytest.mark.whole
@pytest.mark.parametrize("kind", [bool, int, float, complex])
def test_types_of_python_are_dtypes(kind: type) -> None:
    assert scorch.zeros(2, 2, format="csr", dtype=kind).dtype == torch.zeros(2, dtype=kind).dtype
    assert S.to(kind).dtype == S.to(dtype=kind).dtype == torch.eye(3).to(kind).dtype


@pytest.mark.whole
@pytest.mark.parametrize("word", ["csc", torch.sparse_csc])
def test_to_with_a_format_says_what_converts_formats(word: object) -> None:
    for options in ({"format": word}, {"layout": word}):
        with pytest.raises(OperandError, match=r"use S\.to_format\('csc'\)"):
            S.to(**options)
    with pytest.raises(OperandError, match=r"use S\.to_format\('csc'\)"):
        S.to(word)
    with pytest.raises(FormatError, match=r"S\.to_format\('csc'\)"):
        S.format("csc")


def test_to_still_converts() -> None:
    assert S.to(torch.float64).dtype == S.to(S.double()).dtype == S.to(dtype=torch.float64).dtype
    assert S.to("cpu").format == S.format
    assert S.to(torch.float64, copy=True).to_dense().equal(S.to_dense().double())
    with pytest.raises(TypeError):
        S.to(unknown=1)


def test_an_unknown_device_names_those_that_are_there() -> None:
    for call in (
        lambda: S.to("gpu"),
        lambda: S.to(device="gpu"),
        lambda: scorch.eye(3, format="csr", device="gpu"),
        lambda: scorch.nn.SparseLinear(8, 4, device="gpu"),
    ):
        with pytest.raises(RuntimeError, match="no device 'gpu'; Scorch supports the devices cpu and"):
            call()


def test_tensors_of_an_expression_by_position() -> None:
    text = "C[i,j] = S[i,k] * B[k,j]"
    for call in (scorch.evaluate, scorch.explain):
        with pytest.raises(NotationError, match="by name, not by position: S=S, B=B"):
            call(text, S, torch.ones(3, 2))
        with pytest.raises(NotationError, match=r"as in \*\*tensors"):
            call(text, {"S": S, "B": torch.ones(3, 2)})
    assert "unnamed" not in str(inspect.signature(scorch.evaluate))
    with pytest.raises(NotationError, match="the result is missing; begin with it"):
        scorch.evaluate("S[i,k] * B[k,j]", S=S, B=torch.ones(3, 2))


def test_too_many_arguments_by_position_list_the_names() -> None:
    with pytest.raises(TypeError, match=r"takes 1 positional argument, but got 2; .*format= by name"):
        scorch.tensor([[1.0]], "csr")
    with pytest.raises(TypeError, match=r"SparseLinear\(\) takes 4 positional arguments, but got 5"):
        scorch.nn.SparseLinear(8, 4, 0.5, True, 0.5)
    with pytest.raises(ValueError, match=r"pass a density by name, density=0\.5"):
        scorch.rand(3, 3, 0.5, format="csr")


@pytest.mark.whole
@pytest.mark.parametrize(
    "layer",
    [
        scorch.nn.SparseLinear(4, 4),
        scorch.nn.SparseEmbedding.from_weight(S),
        scorch.sparsify(torch.nn.Conv2d(3, 8, 3), sparsity=0.5, prefer="size"),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_the_weight_of_a_sparse_layer_cannot_be_replaced(layer: torch.nn.Module) -> None:
    before = layer.weight.to_dense()
    for weight in (torch.ones(3, 3), torch.nn.Parameter(torch.ones(3, 3)), S):
        with pytest.raises(UnsupportedError, match=rf"{type(layer).__name__}\.from_weight\(weight\)"):
            layer.weight = weight
    assert torch.equal(layer.weight.to_dense(), before)
    layer.register_parameter("extra", None)
    assert layer.extra is None


def test_a_layer_in_place_of_a_size() -> None:
    with pytest.raises(OperandError, match=r"but got a Linear; .*use SparseLinear\.from_dense\(layer"):
        scorch.nn.SparseLinear(torch.nn.Linear(8, 4), sparsity=0.5)
    with pytest.raises(OperandError, match="convs must be a dictionary"):
        scorch.nn.HeteroConv([scorch.nn.GCNConv(8, 4)])


def test_data_of_pyg_in_place_of_a_tensor() -> None:
    data = types.SimpleNamespace(x=torch.ones(3, 8), edge_index=torch.tensor([[0, 1], [1, 2]]))
    with pytest.raises(OperandError, match=r"edge_index must be a tensor, .*; pass its edge_index"):
        scorch.from_edge_index(data)
    with pytest.raises(OperandError, match="pass its edge_index"):
        scorch.nn.GCNConv(8, 4)(data.x, data)
    with pytest.raises(OperandError, match="pass its x"):
        scorch.nn.GCNConv(8, 4)(data, data.edge_index)
    with pytest.raises(OperandError, match="pass one of its tensors, such as its x"):
        scorch.nn.SparseLinear(8, 4)(data)
    with pytest.raises(ShapeError, match=r"pass torch\.stack\(\[sources, targets\]\)"):
        scorch.from_edge_index(data.edge_index[0], data.edge_index[1])


def test_what_is_no_sparse_tensor_says_how_to_make_one() -> None:
    matrix = scipy.sparse.eye_array(3)
    for call in (scorch.spy, scorch.to_networkx, scorch.distributed.shard):
        with pytest.raises(OperandError, match=r"SciPy dia_array; create one with scorch\.from_scipy"):
            call(matrix)
        with pytest.raises(OperandError, match=r"create one with scorch\.from_torch\(tensor, format='csr'\)"):
            call(torch.eye(3))
        with pytest.raises(OperandError, match=r"a NumPy array; create one with scorch\.tensor\(data"):
            call(np.eye(3))


def test_a_shape_is_no_example() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 4))
    for call in (scorch.doctor, lambda model, example: scorch.sparsify(model, 0.9, example=example)):
        with pytest.raises(OperandError, match=r"got the shape \(1, 8\); pass torch\.randn\(1, 8\)"):
            call(model, (1, 8))


def test_settings_are_not_attributes() -> None:
    with pytest.raises(ArgumentError, match=r"with scorch\.settings\(threads=3\): \.\.\., or .*\.apply\(\)"):
        scorch.settings.threads = 3
    assert not hasattr(scorch.settings, "threads")


def test_errors_of_torch_end_in_words() -> None:
    with pytest.raises(OperandError, match=r"^mean: it cannot take these arguments: dim=str \(given csr"):
        S.mean(dim="rows")
    with pytest.raises(ScorchError, match=r"^linalg\.inv: A must be batches"):
        torch.linalg.inv(S[:2])


def test_block_sizes_may_be_one_number() -> None:
    blocked = scorch.eye(4, format="csr").to_sparse_bsr(2)
    assert str(blocked.format) == "bsr(2,2)"
    assert torch.equal(blocked.to_dense(), torch.eye(4))


def test_load_of_what_is_no_path() -> None:
    with pytest.raises(OperandError, match="load expected a path or an open file, but got an int"):
        scorch.load(3)


def test_methods_and_read_only_attributes_are_not_assigned_to() -> None:
    T = scorch.tensor([[1.0, 0.0], [0.0, 2.0]], format="csr")
    refused = 0
    for name in dir(T):
        static = inspect.getattr_static(scorch.SparseTensor, name)
        is_read_only = isinstance(static, property) and static.fset is None
        if not name.startswith("_") and (is_read_only or inspect.isroutine(static)):
            with pytest.raises(AttributeError, match=rf"cannot assign to S\.{name}, a ") as caught:
                setattr(T, name, 1)
            assert isinstance(caught.value, AssignmentError)
            refused += 1
    assert refused > 500 and torch.equal(T.values(), torch.tensor([1.0, 2.0]))
    for name, words in {
        "values": r"S\.with_values\(.*S\.values\(\)\.copy_\(",
        "format": r"to_format",
    }.items():
        with pytest.raises(AssignmentError, match=words):
            setattr(T, name, 1)


class Named(scorch.SparseTensor):
    """A subclass with names of its own, one of which is a method of sparse tensors."""

    values = None  # type: ignore[assignment]

    def describe(self) -> str:
        return "of the class"


def test_names_that_a_subclass_defines_are_assigned_to() -> None:
    named, call = Named(scorch.eye(2, format="csr").storage), lambda: "of the tensor"
    named.describe, named.values = call, 3  # type: ignore[method-assign, assignment]
    assert named.describe() == "of the tensor" and named.values == 3
    with pytest.raises(AssignmentError, match="a method of sparse tensors"):
        named.sum = call


def test_signatures_have_no_arguments_for_mistakes() -> None:
    for name, function in inspect.getmembers(scorch.SparseTensor, inspect.isfunction):
        if not name.startswith("_"):
            assert "_unknown" not in inspect.signature(function).parameters, name


def test_attributes_are_assigned_to_in_compiled_functions() -> None:
    def mark(S: Any, x: torch.Tensor) -> torch.Tensor:
        S.foo = 3
        return S @ x

    torch._dynamo.reset()
    S = scorch.eye(3, format="csr")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch's compiler warns of functions that keep their results
        found = torch.compile(mark, backend="eager")(S, torch.ones(3, 1))
    assert S.foo == 3 and found.sum() == 3


@pytest.mark.whole
@pytest.mark.parametrize("name", ["foo", "_private", "names", "row", "requires_grad", "grad", "data", "real"])
def test_other_attributes_are_assigned_to_as_those_of_dense_tensors(name: str) -> None:
    new = {"requires_grad": True, "grad": torch.eye(2), "data": 2 * torch.eye(2), "real": 3 * torch.eye(2)}
    results = []
    for T in (torch.eye(2), scorch.eye(2, format="csr")):
        value = new.get(name, 7)
        if isinstance(value, torch.Tensor) and isinstance(T, scorch.SparseTensor):
            value = scorch.from_torch(value, format="csr")
        setattr(T, name, value)
        got = getattr(T, name)
        results.append(got.to_dense() if isinstance(got, torch.Tensor) else got)
    if isinstance(results[0], torch.Tensor):
        assert torch.equal(*results)
    else:
        assert results[0] == results[1]


def test_attributes_are_those_of_dense_tensors() -> None:
    for name, static in vars(torch._C.TensorBase).items():
        if inspect.isgetsetdescriptor(static) and name not in ("_cdata", "volatile"):
            assert _kind_of_attribute(S, name) == _kind_of_attribute(torch.eye(3), name), name


def _kind_of_attribute(tensor: torch.Tensor, name: str) -> str:
    try:
        value = getattr(tensor, name)
    except (AttributeError, RuntimeError, TypeError) as error:  # the last is torch 2.15's for a real ``imag``
        kinds = (AttributeError, RuntimeError, TypeError)
        return next(kind.__name__ for kind in kinds if isinstance(error, kind))
    return "a tensor" if isinstance(value, torch.Tensor) else type(value).__name__


def test_errors_inside_of_layers_are_not_about_keywords() -> None:
    """Keywords that a hook has taken are not those of ``forward``."""
    layer = scorch.nn.SparseLinear(8, 4, density=0.5)

    def take(module: Any, args: Any, kwargs: Any) -> Any:
        return args, {name: value for name, value in kwargs.items() if name != "scale"}

    def fail(module: Any, args: Any, out: Any) -> Any:
        return out + None

    layer.register_forward_pre_hook(take, with_kwargs=True)
    assert layer(torch.ones(2, 8), scale=2).shape == (2, 4)
    layer.register_forward_hook(fail)
    with pytest.raises(TypeError, match="unsupported operand"):
        layer(torch.ones(2, 8), scale=2)


def test_keywords_of_a_builtin_in_the_place_of_forward() -> None:
    layer = scorch.nn.SparseLinear(8, 4, density=0.5)
    layer.forward = torch.relu
    with pytest.raises(TypeError, match="foo"):
        layer(torch.ones(2, 8), foo=1)

"""Hints for names that a tensor, module or function does not have: of other libraries, and misspellings.

The tables say what to use instead of the names that users of SciPy, torch_sparse, scikit-learn and NumPy try.
Other names are compared with what is there, but only if somebody reads the message: ``hasattr`` does not.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

import torch
from torch.compiler import is_dynamo_compiling

from scorch.errors import KeywordError, OperandError, UnknownNameError, counted, kind_of, nearest

Function = TypeVar("Function", bound=Callable[..., Any])


def _to_format(name: str) -> str:
    return f"S.to_format({name!r})"


_AS_DENSE = "S.to_dense(), or S.to_dense().numpy() for an array"
_ESTIMATOR = "a sparse tensor is data, not an estimator: pass S.to_scipy() to scikit-learn"
_TORCH_SPARSE = "scorch.compat.torch_sparse.SparseTensor.from_scorch(S), which has torch_sparse's methods"
_VALUES = "S.values() to read them, or S.with_values(new_values)"

TENSOR_HINTS: dict[str, str] = {
    # SciPy and NumPy
    **{f"to{name}": f"use {_to_format(name)}" for name in ("csr", "csc", "coo")},
    "tobsr": f"use {_to_format('bsr(4,4)')}",
    **{f"to{name}": f"use S.to_scipy().to{name}()" for name in ("lil", "dok", "dia")},
    **dict.fromkeys(("toarray", "todense", "A", "as_dense"), f"use {_AS_DENSE}"),
    "asformat": f"use {_to_format('csr')}",
    "astype": "use S.to(torch.float32)",
    "copy": "use S.clone()",
    "getrow": "use S[i]",
    "getcol": "use S[:, j]",
    "getnnz": "use S.nnz",
    "count_nnz": "use S.nnz",
    **dict.fromkeys(("indptr", "rowptr"), "use S.crow_indices()"),
    "row": "use S.to_format('coo').indices()[0]",
    "col": "use S.to_format('coo').indices()[1]",
    "coords": "use S.to_format('coo').indices()",
    "sum_duplicates": "repeated entries are summed when a tensor is created",
    "sort_indices": "entries are always sorted",
    "has_canonical_format": "entries are always sorted and unique",
    "power": "use S ** n",
    "asfptype": "use S.to(torch.float64)",
    "hadamard": "use S * other",
    "spones": "use S.with_values(1)",
    "pattern": "use S.to_format('coo').indices(), or S.crow_indices()",
    # constructors that are called on a tensor
    "from_dense": "use scorch.from_torch(dense, format='csr')",
    "from_scipy": "use scorch.from_scipy(matrix)",
    "from_torch": "use scorch.from_torch(tensor)",
    "to_csr": f"use {_to_format('csr')}",
    "to_csc": f"use {_to_format('csc')}",
    "to_coo": f"use {_to_format('coo')}",
    # torch_sparse
    **dict.fromkeys(
        ("set_value", "set_value_", "fill_value", "fill_value_", "has_value"),
        f"use {_VALUES}",
    ),
    "set_diag": "use S.setdiag(values)",
    "fill_diag": "use S.setdiag(value)",
    "get_diag": "use S.diagonal()",
    "remove_diag": "use S.setdiag(0).eliminate_zeros()",
    "sizes": "use S.shape",
    "num_nodes": "use S.shape[0]",
    "sparsity": "use 1 - S.density",
    "to_torch_sparse_coo_tensor": "use S.to_format('coo').to_torch()",
    "to_torch_sparse_csr_tensor": "use S.to_format('csr').to_torch()",
    "to_torch_sparse_csc_tensor": "use S.to_format('csc').to_torch()",
    "spmm": "use S @ dense",
    "spspmm": "use S @ other",
    **dict.fromkeys(
        (
            "add_nnz", "mul_nnz", "bandwidth", "is_symmetric", "masked_select_nnz", "index_select_nnz",
            "random_walk", "sample", "sample_adj", "saint_subgraph", "partition", "sparse_reshape",
            "to_symmetric",
        ),
        f"use {_TORCH_SPARSE}",
    ),
    # scikit-learn
    **dict.fromkeys(("fit", "transform", "fit_transform", "predict", "score"), _ESTIMATOR),
    # what is elsewhere in Scorch
    "explain": "use scorch.explain('ij,jk->ik', S, B)",
    "plot": "use scorch.spy(S)",
    "save": "use scorch.save('S.safetensors', S)",
    "spy": "use scorch.spy(S)",
}  # fmt: skip


ASSIGNMENT_HINTS: dict[str, str] = {  # instead of assigning to a name of a tensor
    "values": "use S.with_values(new_values) for a new tensor, or S.values().copy_(new_values) to change "
    "this one in place",
    "format": "use S.to_format('csc') for a new tensor",
    **dict.fromkeys(
        ("indices", "crow_indices", "col_indices", "ccol_indices", "row_indices", "nnz", "density", "levels"),
        "the pattern of a tensor never changes; create a new one, as in scorch.sparse_coo_tensor(indices, "
        "values, size)",
    ),
}

_SAMPLING = (
    "sampling is PyG's: Scorch's layers accept the batches of torch_geometric.loader.NeighborLoader, which "
    "needs scorch.compat.torch_sparse.install()"
)


def _from_arrays(kind: str) -> str:
    form = "bsr(2,2)" if kind == "bsr" else kind
    return (
        f"use scorch.tensor(data, format={form!r}), scorch.from_scipy(matrix) or scorch.sparse_{kind}_tensor"
    )


MODULE_HINTS: dict[str, str] = {
    **{
        f"{kind}_{suffix}": _from_arrays(kind)
        for kind in ("csr", "csc", "coo", "bsr")
        for suffix in ("matrix", "array", "tensor")
    },
    **dict.fromkeys(
        ("from_dense", "to_sparse", "from_tensor", "sparsify_tensor"),
        "use scorch.from_torch(dense, format='csr')",
    ),
    **dict.fromkeys(("to_dense", "toarray", "todense", "densify"), "it is a method: S.to_dense()"),
    **dict.fromkeys(("spgemm", "spspmm"), "use S @ other"),
    "sddmm": "use scorch.einsum('ij,ik,jk->ij', S, Q, K)",
    **dict.fromkeys(("to_scipy", "to_torch", "to_format"), "it is a method of sparse tensors"),
    **dict.fromkeys(("from_coo", "from_coords"), "use scorch.sparse_coo_tensor(indices, values, size)"),
    **dict.fromkeys(("from_pyg", "from_data"), "use scorch.from_edge_index(edge_index, size=n)"),
    "from_csr": "use scorch.sparse_csr_tensor(crow_indices, col_indices, values, size)",
    "from_numpy_array": "use scorch.tensor(array, format='csr')",
    "sparse_tensor": "use scorch.sparse_coo_tensor(indices, values), or scorch.tensor(data, format='csr')",
    **dict.fromkeys(("load_npz", "mmread", "read_mtx"), "use scorch.load(path), which goes by the suffix"),
    **dict.fromkeys(("save_npz", "mmwrite"), "use scorch.save(path, S), which goes by the suffix"),
    **dict.fromkeys(("diags", "spdiags"), "use scorch.diag(values, format='csr')"),
    **dict.fromkeys(("identity", "speye", "eye_array"), "use scorch.eye(n, format='csr')"),
    **dict.fromkeys(("issparse", "is_sparse"), "use isinstance(x, scorch.SparseTensor)"),
    **dict.fromkeys(("spsolve", "splu", "spilu"), "use torch.linalg.solve(S, b), or scorch.linalg.cg(S, b)"),
    **{name: f"it is scorch.linalg.{name}" for name in ("cg", "eigsh", "gmres")},
    **dict.fromkeys(("neighbor_sample", "NeighborLoader"), _SAMPLING),
    "sample_adj": "it is scorch.compat.torch_sparse.sample_adj",
    "random_walk": "it is scorch.compat.torch_sparse.random_walk",
    "sprand": "use scorch.rand(m, n, density=0.01, format='csr')",
    "prune": "use scorch.sparsify(model, sparsity=0.9)",
    **{
        name: f"it is scorch.nn.{name}"
        for name in (
            "APPNP", "GATConv", "GATv2Conv", "GCNConv", "GINConv", "HeteroConv", "MoE", "RigL", "SAGEConv",
            "SET", "SGConv", "SparseLinear", "TopKAutoencoder", "TransformerConv", "load_sparse", "masks",
        )
    },
}  # fmt: skip


def _of_pyg(name: str, kind: str) -> str:
    return (
        f"only PyG has this {kind}: torch_geometric.nn.{name} accepts sparse matrices after "
        "scorch.compat.pyg.install()"
    )


_POOLING = "use torch.sparse.mm(M, x, 'mean'), which needs a row of M for each graph, with ones at its nodes"

NN_HINTS: dict[str, str] = {
    "MessagePassing": "sum messages by a product, adj @ x, or by torch.sparse.mm(adj, x, 'mean') or 'amax'",
    **{
        name: _of_pyg(name, "layer")
        for name in (
            "ARMAConv", "ChebConv", "EdgeConv", "GatedGraphConv", "GCN2Conv", "GENConv", "GINEConv",
            "GraphConv", "PNAConv", "RGCNConv", "TAGConv",
        )
    },
    **{name: _of_pyg(name, "model") for name in ("GAT", "GCN", "GIN", "GraphSAGE")},
    **dict.fromkeys(("NeighborLoader", "NeighborSampler", "neighbor_sample"), _SAMPLING),
    **dict.fromkeys(("global_add_pool", "global_max_pool", "global_mean_pool"), _POOLING),
}  # fmt: skip

_KRYLOV = "use scorch.linalg.gmres(S, b), or scorch.linalg.cg(S, b), which needs a positive definite matrix"

LINALG_HINTS: dict[str, str] = {
    **dict.fromkeys(("bicg", "bicgstab", "cgs", "qmr", "tfqmr", "minres", "lgmres", "gcrotmk"), _KRYLOV),
    "spsolve": "use torch.linalg.solve(S, b)",
    **dict.fromkeys(
        ("splu", "spilu", "factorized"),
        "torch.linalg.solve(S, b) factorizes on each call; use scipy.sparse.linalg with S.to_scipy() to "
        "keep the factors",
    ),
    "spsolve_triangular": "use torch.linalg.solve_triangular(torch.tril(S), B, upper=False)",
    **dict.fromkeys(("lsqr", "lsmr"), "use torch.linalg.lstsq(S, b)"),
    "eigs": "use scorch.linalg.eigsh(S, k=2), which needs a symmetric matrix, or S.to_scipy()",
    "svds": "use torch.svd_lowrank(S, 2), or torch.linalg.svd(S), which falls back to dense",
    "expm": "use torch.linalg.matrix_exp(S), which falls back to dense",
    "LinearOperator": "scorch.linalg.cg and gmres take a function of a tensor",
}

SPARSE_HINTS: dict[str, str] = {  # names of scipy.sparse
    **{
        name: hint
        for name, hint in MODULE_HINTS.items()
        if name.startswith(("csr_", "csc_", "coo_", "bsr_", "eye_", "is"))
        or name in ("diags", "identity", "load_npz", "save_npz")
    },
    "diags_array": "use scorch.diag(values, format='csr')",
    "eye": "use scorch.eye(n, format='csr')",
    **dict.fromkeys(("random", "rand", "random_array"), "use scorch.rand(m, n, density=0.01, format='csr')"),
    "vstack": "use torch.cat([S, S])",
    "hstack": "use torch.cat([S, S], dim=1)",
    **{name: f"use torch.{name}(S, S)" for name in ("kron", "block_diag")},
    **{name: f"use torch.{name}(S)" for name in ("tril", "triu")},
    "find": "use S.coo()",
    "linalg": "it is scorch.linalg",
    "csgraph": "its functions take S.to_scipy()",
}

MASK_HINTS: dict[str, str] = {
    **dict.fromkeys(
        ("sliding_window", "sliding", "local", "local_window", "band"), "use masks.window(n, radius)"
    ),
    "causal_window": "use masks.window(n, (before, 0))",
    **dict.fromkeys(
        ("from_mask_mod", "create_mask", "block_diagonal", "document"), "use masks.from_function(mask_mod, n)"
    ),
    **dict.fromkeys(
        ("dilated", "dilated_window", "strided"),
        "use masks.from_function(lambda b, h, q_idx, kv_idx: (q_idx - kv_idx) % 2 == 0, n)",
    ),
}

LAYER_HINTS: dict[str, str] = {  # of names that sparse layers do not have
    "sparsity": "use 1 - layer.density",
    **dict.fromkeys(("mask", "weight_mask"), "use layer.weight != 0, or layer.pattern for the index arrays"),
    "weight_orig": "use layer.values, the trained parameter",
    **dict.fromkeys(
        ("prune", "prune_", "sparsify", "prune_further"), "use scorch.sparsify(layer, sparsity=0.95)"
    ),
    **dict.fromkeys(("from_linear", "from_torch", "from_module"), "use from_dense(linear, sparsity=0.9)"),
    "from_pretrained": "use scorch.sparsify(layer, sparsity=0.9) of the dense layer",
    **dict.fromkeys(("dense", "densify", "todense"), "use layer.to_dense()"),
    **dict.fromkeys(("indices", "crow_indices", "col_indices"), "use layer.weight, a SparseTensor"),
    "all_weights": "use layer.named_parameters()",
}

HINTS: dict[str, Mapping[str, str]] = {
    "scorch": MODULE_HINTS,
    "scorch.nn": NN_HINTS,
    "scorch.linalg": LINALG_HINTS,
    "scorch.sparse": SPARSE_HINTS,
}  # by module

KEYWORD_HINTS: dict[
    str, tuple[str, ...]
] = {  # what a keyword is called here: the first that the function has
    **dict.fromkeys(("num_nodes", "num_rows", "n_nodes", "sparse_sizes", "shape"), ("size", "shape")),
    "size": ("shape",),
    **dict.fromkeys(("amount", "pruning_ratio", "ratio", "prune_ratio", "sparsity_level"), ("sparsity",)),
    **dict.fromkeys(("layout", "fmt", "sparse_format", "storage_format"), ("format",)),
    **dict.fromkeys(("edge_attr", "edge_weights", "weights"), ("edge_weight", "values")),
    **dict.fromkeys(("data", "value"), ("values",)),
    **dict.fromkeys(("indices", "index"), ("edge_index", "coordinates")),
    **dict.fromkeys(("block_size", "blocksize", "block_shape"), ("blocks", "block")),
    **dict.fromkeys(
        ("in_dim", "in_feats", "in_size", "input_dim", "input_size", "in_features", "in_channels", "d_in"),
        ("in_features", "in_channels", "features"),
    ),
    **dict.fromkeys(
        ("out_dim", "out_feats", "out_size", "output_dim", "hidden_size", "out_features", "out_channels"),
        ("out_features", "out_channels", "features"),
    ),
    **dict.fromkeys(("hidden_dim", "hidden_features", "d_ff"), ("hidden",)),
    **dict.fromkeys(("num_experts", "n_experts"), ("experts",)),
    **dict.fromkeys(("top_k", "topk", "num_eigenvalues"), ("k",)),
    **dict.fromkeys(("num_heads", "n_heads", "nhead"), ("heads",)),
    **dict.fromkeys(("reduce", "aggregator", "aggregator_type", "aggregation"), ("aggr",)),
    **dict.fromkeys(("feat_drop", "attn_drop", "dropout_p", "p"), ("dropout",)),
    **dict.fromkeys(("num_layers", "num_hops", "k"), ("K",)),
    **dict.fromkeys(("exclude", "ignore", "skip_modules"), ("skip",)),
    **dict.fromkeys(("example_inputs", "example_input", "inputs", "input"), ("example",)),
    **dict.fromkeys(("offset", "diagonal"), ("k",)),
    "batch_size": ("batch",),
    **dict.fromkeys(("fill", "fill_value", "init", "new_value"), ("new",)),
    **dict.fromkeys(("window", "window_size"), ("radius",)),
    **dict.fromkeys(("seq_len", "length", "num_queries"), ("n",)),
    **dict.fromkeys(("rtol", "atol", "eps"), ("tol",)),
    **dict.fromkeys(("max_iter", "max_iterations", "niter"), ("maxiter",)),
    **dict.fromkeys(("preconditioner", "precond"), ("M",)),
}
_OPPOSITES = {"sparsity": "density", "density": "sparsity"}
_SEEDS = frozenset({"seed", "random_state", "rng"})
_OF_RESULT = {
    "dtype": ".to({value})",
    "device": ".to(device)",
    "requires_grad": ".requires_grad_()",
    "pin_memory": ".pin_memory()",
    "copy": ".clone()",
}
MAX_LISTED_KEYWORDS = 12
DTYPES = ("dtype", "weight_dtype")  # keyword arguments


def unknown_name(
    message: str, name: str, hints: Mapping[str, str], known: Callable[[], Iterable[str]]
) -> UnknownNameError:
    """Return the error for a name that is not there: with its hint, or the nearest of the ``known`` names."""
    hint = hints.get(name)
    error = UnknownNameError(message if hint is None else f"{message}; {hint}")
    error.name = name  # but not error.obj, in which Python 3.12 would look for a suggestion of its own
    if hint is None:
        error.suggest = lambda: nearest(name, known())
    return error


def unknown_keyword(function: str, keyword: str, known: Collection[str], value: Any = None) -> KeywordError:
    """Return the error for a keyword argument that is not among the ``known`` ones, with its hint.

    ``value`` is what was passed, which a hint may repeat.
    """
    message = f"{function}() got an unexpected keyword argument {keyword!r}"
    return KeywordError(f"{message}; {_hint_for_keyword(function, keyword, known, value)}")


def _hint_for_keyword(function: str, keyword: str, known: Collection[str], value: Any) -> str:
    other = next((name for name in KEYWORD_HINTS.get(keyword, ()) if name in known), None)
    if other is not None:
        return f"use {other}="
    if _OPPOSITES.get(keyword) in known:
        return f"use {_OPPOSITES[keyword]}=1 - {keyword}"
    question = nearest(keyword, known)
    if question:
        return question
    if keyword in _OF_RESULT:
        value = as_dtype(keyword, value) if keyword == "dtype" else value
        return f"apply it to the result, as in {function}(...){_OF_RESULT[keyword].format(value=value)}"
    if keyword in _SEEDS:
        passed = "pass generator=torch.Generator().manual_seed(0), or " if "generator" in known else ""
        return f"{passed}call torch.manual_seed(0) before"
    names = [name for name in known if not name.startswith("_")]
    if not names and keyword == "format":
        return f"convert first, as in S.to_format({value!r}).{function}()"
    if not names:
        return "it takes arguments by position only"
    more = ", ..." if len(names) > MAX_LISTED_KEYWORDS else ""
    return f"its keyword arguments are {', '.join(names[:MAX_LISTED_KEYWORDS])}{more}"


def check_keywords(function: str, given: Mapping[str, Any], known: Collection[str]) -> None:
    """Refuse a keyword argument that is not among the ``known`` ones."""
    for keyword, value in given.items():
        if keyword not in known:
            raise unknown_keyword(function, keyword, known, value)


def hides_unknown(function: Function) -> Function:
    """Leave ``**_unknown``, which ``check_keywords`` refuses, out of the signature that people see."""
    signature = inspect.signature(function)
    shown = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    function.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    return function


def suggests_keywords(function: Function) -> Function:
    """Let a function or constructor say what to use instead of a keyword argument that it does not have.

    It also refuses what is no dtype, arguments by position that the function takes by name only, and a dense
    layer in place of the sizes of a sparse one. In graphs of ``torch.compile``, Python's own error is raised.
    Not for ``forward``: torch would not compile a layer by itself whose ``forward`` is wrapped by a function
    that wraps others, too.
    """
    known, most = keywords_of(function), _most_by_position(function)
    is_constructor = function.__name__ == "__init__"

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if not is_dynamo_compiling():
            name = type(args[0]).__name__ if is_constructor else function.__name__
            if is_constructor and len(args) > 1 and hasattr(args[1], "parameters"):
                _refuse_layer(args[0], args[1])
            if len(args) > most:
                raise _too_many(name, len(args) - is_constructor, most - is_constructor, known)
            check_keywords(name, kwargs, known)
            for keyword in DTYPES:
                as_dtype(keyword, kwargs.get(keyword))
        return function(*args, **kwargs)

    return checked  # type: ignore[return-value]


def _most_by_position(function: Callable[..., Any]) -> float:
    """Return how many arguments a function takes by position."""
    parameters = inspect.signature(function).parameters.values()
    if any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in parameters):
        return math.inf
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(each.kind in by_position for each in parameters)


def _too_many(name: str, given: int, most: float, known: Collection[str]) -> KeywordError:
    """Return the error for too many arguments by position, which lists those that have names only."""
    rest = list(known)[int(most) :]
    takes = f"{name}() takes {counted(int(most), 'positional argument')}, but got {given}"
    if list(known)[int(most) - 1 : int(most)] == ["example"]:
        return KeywordError(f"{takes}; pass several inputs of the model as one tuple")
    if not rest:
        return KeywordError(takes)
    more = ", ..." if len(rest) > MAX_LISTED_KEYWORDS else ""
    return KeywordError(
        f"{takes}; pass {', '.join(f'{each}=' for each in rest[:MAX_LISTED_KEYWORDS])}{more} by name"
    )


def _refuse_layer(layer: Any, given: Any) -> None:
    """Refuse a dense layer in place of the sizes of a sparse one, which another constructor takes."""
    if hasattr(layer, "from_dense"):
        name = type(layer).__name__
        raise OperandError(
            f"{name} expected the size of an input, but got {kind_of(given)}; to prune a layer, use "
            f"{name}.from_dense(layer, sparsity=0.9)"
        )


DTYPES_OF_TYPES = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}


def as_dtype(name: str, value: Any) -> torch.dtype | None:
    """Return a dtype, or that of a Python type, as torch does; the error for others says which is meant."""
    if value is None or isinstance(value, torch.dtype):
        return value
    if value in DTYPES_OF_TYPES:
        return DTYPES_OF_TYPES[value]
    word = value.__name__ if isinstance(value, type) else str(value).removeprefix("torch.")
    meant = getattr(torch, word, None)
    if isinstance(meant, torch.dtype):
        hint = f"; use {meant}"
    else:
        question = nearest(word, [key for key, each in vars(torch).items() if isinstance(each, torch.dtype)])
        hint = f"; {question}" if question else ", such as torch.float32"
    got = f"{value.__module__}.{word}" if isinstance(value, type) else repr(value)
    raise OperandError(f"{name} must be a torch.dtype, but got {got}{hint}")


def created_by_sparsify(constructor: Function) -> Function:
    """Let the constructor of a sparse layer, called with sizes like a dense one, say how to create it."""
    first = next(iter(keywords_of(constructor)))

    @functools.wraps(constructor)
    def checked(layer: Any, *args: Any, **kwargs: Any) -> Any:
        given = args[0] if args else kwargs.get(first)
        if given is None or isinstance(given, int):
            name = type(layer).__name__
            dense = f"torch.nn.{name.removeprefix('Sparse')}(...)"
            raise OperandError(f"{name} replaces a dense layer: use scorch.sparsify({dense}, sparsity=0.9)")
        return constructor(layer, *args, **kwargs)

    return checked  # type: ignore[return-value]


def keywords_of(function: Callable[..., Any]) -> dict[str, None]:
    """Return the names that a function takes as keyword arguments, in order."""
    by_keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(function).parameters.values()
    return {each.name: None for each in parameters if each.kind in by_keyword and each.name != "self"}

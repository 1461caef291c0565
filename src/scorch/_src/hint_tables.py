"""Tables of what to use instead of names of SciPy, torch_sparse, scikit-learn, PyG and NumPy.

There is one for each place where people try them; ``name_hints`` looks them up.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping


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
    **dict.fromkeys(("asformat", "convert", "as_format"), f"use {_to_format('csr')}"),
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
    **dict.fromkeys(("sort_indices", "sorted_indices", "has_sorted_indices"), "entries are always sorted"),
    "check_format": "a tensor is checked when it is created",
    "prune": "use S.eliminate_zeros()",
    "getH": "use S.mH",
    "rint": "use torch.round(S)",
    "set_shape": "use S.reshape(1, -1)",
    **dict.fromkeys(("loc", "iloc"), "use S[:2, :2]"),
    "append": "use torch.cat([S, S])",
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


_FROM_INDICES = "scorch.sparse_coo_tensor(indices, values, size)"
_RANDOM = "use scorch.rand(m, n, density=0.01, format='csr')"


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
    **{
        f"{kind}_{suffix}": f"use scorch.from_scipy(matrix), or {_FROM_INDICES}"
        for kind in ("dok", "lil", "dia")
        for suffix in ("matrix", "array")
    },
    **{
        name: f"it is a format, as in scorch.tensor(data, format={name.lower()!r})"
        for name in ("csr", "csc", "coo", "csf", "dcsr", "CSR", "CSC", "COO", "CSF", "DCSR")
    },
    **dict.fromkeys(("bsr", "BSR"), "it is a format, as in scorch.tensor(data, format='bsr(2,2)')"),
    **dict.fromkeys(
        ("from_dense", "to_sparse", "from_tensor", "sparsify_tensor"),
        "use scorch.from_torch(dense, format='csr')",
    ),
    **dict.fromkeys(("to_dense", "toarray", "todense", "densify"), "it is a method: S.to_dense()"),
    **dict.fromkeys(("spgemm", "spspmm"), "use S @ other"),
    "sddmm": "use scorch.einsum('ij,ik,jk->ij', S, Q, K)",
    "mttkrp": "use scorch.einsum('ijk,jr,kr->ir', T, Q, K)",
    "khatri_rao": "use scorch.einsum('ir,jr->ijr', Q, K)",
    "io": "use scorch.load(path) and scorch.save(path, S), which go by the suffix",
    **dict.fromkeys(("from_coo", "from_coords"), f"use {_FROM_INDICES}"),
    **dict.fromkeys(("from_pyg", "from_data"), "use scorch.from_edge_index(edge_index, size=n)"),
    "from_csr": "use scorch.sparse_csr_tensor(crow_indices, col_indices, values, size)",
    "from_numpy_array": "use scorch.tensor(array, format='csr')",
    "sparse_tensor": "use scorch.sparse_coo_tensor(indices, values), or scorch.tensor(data, format='csr')",
    **dict.fromkeys(
        ("load_npz", "load_mtx", "mmread", "read_mtx"), "use scorch.load(path), which goes by the suffix"
    ),
    **dict.fromkeys(
        ("save_npz", "save_mtx", "mmwrite", "write_mtx"), "use scorch.save(path, S), which goes by the suffix"
    ),
    **dict.fromkeys(("diags", "spdiags", "diags_array"), "use scorch.diag(values, format='csr')"),
    **dict.fromkeys(("identity", "speye", "eye_array"), "use scorch.eye(n, format='csr')"),
    **dict.fromkeys(
        ("issparse", "is_sparse", "isspmatrix", "isspmatrix_csr", "isspmatrix_csc", "isspmatrix_coo"),
        "use isinstance(x, scorch.SparseTensor)",
    ),
    **dict.fromkeys(
        ("block_array", "bmat"),
        "join each row of blocks by torch.cat(blocks, dim=1), and the rows by torch.cat(rows)"
    ),
    **dict.fromkeys(
        ("from_csr_matrix", "from_csc_matrix", "from_coo_matrix", "from_scipy_sparse_matrix"),
        "use scorch.from_scipy(matrix)",
    ),
    "load_svmlight_file": "scikit-learn's function returns a SciPy matrix, which scorch.from_scipy takes",
    **dict.fromkeys(
        ("from_cupy", "from_cupyx", "from_jax", "from_tensorflow"),
        "pass its arrays to scorch.sparse_csr_tensor, each as torch.from_dlpack(array)",
    ),
    **dict.fromkeys(
        ("from_dgl", "from_edge_list", "from_edgelist", "from_edges", "from_adjacency"),
        "use scorch.from_edge_index(edge_index, size=n)",
    ),
    **dict.fromkeys(("from_pandas", "from_triplets", "from_arrays", "from_indices"), f"use {_FROM_INDICES}"),
    **dict.fromkeys(("spsolve", "splu", "spilu"), "use torch.linalg.solve(S, b), or scorch.linalg.cg(S, b)"),
    **dict.fromkeys(("neighbor_sample", "NeighborLoader"), _SAMPLING),
    "sample_adj": "it is scorch.compat.torch_sparse.sample_adj",
    "random_walk": "it is scorch.compat.torch_sparse.random_walk",
    **dict.fromkeys(
        ("sprand", "rand_sparse", "random_array", "random_sparse", "sparse_rand", "sparse_random"), _RANDOM
    ),
    **dict.fromkeys(
        ("sprandn", "randn_sparse", "sparse_randn"), "use scorch.randn(m, n, density=0.01, format='csr')"
    ),
    **dict.fromkeys(
        ("prune", "magnitude_prune", "prune_model"), "use scorch.sparsify(model, sparsity=0.9)"
    ),
    **dict.fromkeys(("plot", "visualize", "plot_sparsity"), "use scorch.spy(S)"),
    "masks": "it is scorch.nn.masks",
    "clear_cache": "run python -m scorch cache --clear",
    **dict.fromkeys(("warm", "warmup", "warm_up", "precompile"), "run python -m scorch cache --warm"),
    **dict.fromkeys(
        ("env", "collect_env", "show_versions", "show_config", "print_versions"), "run python -m scorch env"
    ),
    # functions of torch_geometric.utils
    "add_self_loops": "use S.setdiag(1)",
    "remove_self_loops": "use S.setdiag(0).eliminate_zeros()",
    "degree": "use S.sum(1)",
    "gcn_norm": "use scorch.nn.GCNConv(16, 8), which normalizes the weights",
    "get_laplacian": "use scorch.diag(S.sum(1), format='csr') - S",
    "laplacian": "use scorch.diag(S.sum(1), format='csr') - S",
    "to_dense_adj": "use S.to_dense()",
    "to_undirected": "use torch.maximum(S, S.T)",
    "sparse_softmax": "use torch.sparse.softmax(S, 1)",
    **dict.fromkeys(("segment_csr", "gather_csr"), "use torch.sparse.mm(M, x, 'mean')"),
}  # fmt: skip


def _of_pyg(name: str, kind: str) -> str:
    return f"only PyG has this {kind}: torch_geometric.nn.{name} accepts sparse matrices of Scorch"


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
    **dict.fromkeys(("TopK", "KSparse"), "use scorch.topk_sparse(x, 2)"),
    **dict.fromkeys(("global_add_pool", "global_max_pool", "global_mean_pool"), _POOLING),
}  # fmt: skip

_DIAGONAL = "pass M=scorch.diag(1 / S.diagonal(), format='csr') to scorch.linalg.cg or gmres"
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
    **dict.fromkeys(("jacobi", "preconditioner", "diagonal_preconditioner"), _DIAGONAL),
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
    **dict.fromkeys(("random", "rand", "random_array"), _RANDOM),
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
        ("block", "blocks", "block_sparse", "from_blocks"),
        "use torch.kron(S.bool(), torch.ones(2, 2, dtype=torch.bool)), which makes a block of each entry",
    ),
    **dict.fromkeys(
        ("dilated", "dilated_window", "strided"),
        "use masks.from_function(lambda b, h, q_idx, kv_idx: (q_idx - kv_idx) % 2 == 0, n)",
    ),
}

LAYER_HINTS: dict[str, str] = {  # of names that sparse layers do not have
    "sparsity": "use 1 - layer.density",
    **dict.fromkeys(("shape", "size"), "use layer.weight.shape"),
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

_TABLES = (MODULE_HINTS, SPARSE_HINTS, LINALG_HINTS, NN_HINTS, TENSOR_HINTS)
HINTS: dict[str, Mapping[str, str]] = {  # by module: its own, and then those of others
    "scorch": ChainMap(*_TABLES),
    "scorch.nn": ChainMap(NN_HINTS, *_TABLES),
    "scorch.linalg": ChainMap(LINALG_HINTS, *_TABLES),
    "scorch.sparse": ChainMap(SPARSE_HINTS, *_TABLES),
    "scorch.nn.functional": NN_HINTS,
}

CALL_HINTS: dict[str, str] = {  # of modules that are functions in other libraries
    "scorch.random": _RANDOM,
    "scorch.sparse": "use scorch.from_torch(dense, format='csr')",
}

SEARCHED = (  # for names that are missing elsewhere
    "scorch",
    "scorch.nn",
    "scorch.nn.functional",
    "scorch.linalg",
    "scorch.sparse",
    "scorch.autograd",
    "scorch.utils.data",
    "scorch.optim",
    "scorch.nn.masks",
)

OWN_KEYWORD_HINTS: dict[tuple[str, str], str] = {  # what to do instead of a keyword argument of one function
    **dict.fromkeys(
        (("explain", "html"), ("doctor", "html")),
        "to_html() of the result returns a page, as in pathlib.Path('page.html').write_text(plan.to_html())",
    ),
    **dict.fromkeys((("window", "causal"), ("window", "is_causal")), "pass the radius as a pair (before, 0)"),
    ("topk_sparse", "largest"): "for the smallest elements, use -scorch.topk_sparse(-h, k)",
}

KEYWORD_HINTS: dict[
    str, tuple[str, ...]
] = {  # what a keyword is called here: the first that the function has
    **dict.fromkeys(("num_nodes", "num_rows", "n_nodes", "sparse_sizes", "shape"), ("size", "shape")),
    "size": ("shape",),
    **dict.fromkeys(("amount", "pruning_ratio", "ratio", "prune_ratio", "sparsity_level"), ("sparsity",)),
    **dict.fromkeys(("layout", "fmt", "sparse_format", "storage_format"), ("format",)),
    **dict.fromkeys(
        ("edge_attr", "edge_weight", "edge_weights", "edge_features", "weights"),
        ("edge_weight", "edge_attr", "values", "per_sample_weights"),
    ),
    **dict.fromkeys(("adj", "adj_t", "adjacency", "A", "graph", "edges", "edge_list"), ("edge_index",)),
    **dict.fromkeys(("data", "value"), ("values",)),
    **dict.fromkeys(("indices", "index"), ("edge_index", "coordinates", "input")),
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
    **dict.fromkeys(("num_layers", "num_hops", "k"), ("K", "key")),
    **dict.fromkeys(("exclude", "ignore", "skip_modules"), ("skip",)),
    **dict.fromkeys(
        ("example_inputs", "example_input", "inputs", "input", "x", "X", "src", "features", "h"),
        ("example", "x", "input", "tokens", "query"),
    ),
    **dict.fromkeys(("tokens", "hidden_states"), ("input", "query")),
    **dict.fromkeys(("mask", "attention_mask", "attn_bias", "src_mask"), ("attn_mask",)),
    **dict.fromkeys(("padding_mask", "key_mask", "src_key_padding_mask"), ("key_padding_mask",)),
    **dict.fromkeys(
        ("return_attention", "return_weights", "need_weights", "output_attentions"),
        ("return_attention_weights", "need_weights"),
    ),
    **dict.fromkeys(("hidden", "hidden_state", "h_0", "h0", "state"), ("hx",)),
    "q": ("query",),
    "v": ("value",),
    **dict.fromkeys(("offset", "diagonal"), ("k",)),
    "batch_size": ("batch",),
    **dict.fromkeys(("fill", "fill_value", "init", "new_value"), ("new",)),
    **dict.fromkeys(("window", "window_size"), ("radius",)),
    **dict.fromkeys(("seq_len", "length", "num_queries"), ("n",)),
    **dict.fromkeys(("rtol", "atol", "eps"), ("tol",)),
    **dict.fromkeys(("max_iter", "max_iterations", "niter"), ("maxiter",)),
    **dict.fromkeys(("preconditioner", "precond"), ("M",)),
}

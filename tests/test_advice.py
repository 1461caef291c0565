"""Messages say what is wrong, of what the user passed, and what to do; following the advice works."""

from __future__ import annotations

import inspect
import pickle
import re
import traceback
from collections.abc import Callable
from pathlib import Path

import networkx
import pytest
import torch
from tests.fork_server import run_python
from tests.test_name_hints import public_functions

import scorch
from scorch.errors import (
    ArgumentError,
    CallError,
    DensityError,
    DtypeError,
    FileError,
    FormatError,
    KeywordError,
    MissingDeviceError,
    NotationError,
    OperandError,
    ScorchError,
    ShapeError,
    UnsupportedError,
)
from scorch.utils.data import SparseDataset

EDGE_INDEX = torch.tensor([[0, 1, 2], [1, 2, 0]])
SQUARE = scorch.eye(3, format="csr")
MISTAKES: dict[str, tuple[type[ScorchError], Callable[[], object]]] = {
    "diagonals must be a tensor, but got a list; create one with torch.tensor": (
        OperandError,
        lambda: scorch.sparse.spdiags([1, 2, 3], 0, (3, 3)),
    ),
    "to_sparse: sparse_dim must be an integer, but got 'csc'; use S.to_format('csc')": (
        OperandError,
        lambda: SQUARE.to_sparse("csc"),
    ),
    "to_sparse_csr: dense_dim must be an integer, but got 'csc'; use": (
        OperandError,
        lambda: SQUARE.to_sparse_csr("csc"),
    ),
    "but got a tuple; create one with torch.stack([row, column])": (
        OperandError,
        lambda: scorch.nn.GCNConv(2, 2)(torch.ones(3, 2), tuple(EDGE_INDEX)),
    ),
    "edge_index must be a tensor, but got a tuple; create one with torch.stack([row, column])": (
        OperandError,
        lambda: scorch.from_edge_index(tuple(EDGE_INDEX), size=3),
    ),
    "edge_index must be a tensor, but got a tuple; pass edges and weights as two arguments": (
        OperandError,
        lambda: scorch.from_edge_index(SQUARE.to_edge_index(), size=3),
    ),
    "but got a tuple; pass edges and weights as two arguments: *pair unpacks": (
        OperandError,
        lambda: scorch.nn.GCNConv(2, 2)(torch.ones(3, 2), SQUARE.to_edge_index()),
    ),
    "contains '['; an index is one letter, a to z or A to Z; pass expressions to scorch.evaluate": (
        NotationError,
        lambda: scorch.einsum("y[i] = S[i,j] * x[j]", SQUARE, torch.ones(3)),
    ),
    "this is an einsum equation; pass it to scorch.einsum": (
        NotationError,
        lambda: scorch.evaluate("ij,j->i", SQUARE, torch.ones(3)),
    ),
    "to explain a call, pass its function and arguments, as in scorch.explain(torch.matmul, A, x)": (
        NotationError,
        lambda: scorch.explain(SQUARE @ torch.ones(3)),
    ),
    "doctor() takes 2 positional arguments, but got 3; pass several inputs of the model as one tuple": (
        KeywordError,
        lambda: scorch.doctor(torch.nn.Bilinear(2, 2, 2), torch.ones(2), torch.ones(2)),
    ),
    "so N must be at most M, but got 4:2; did you mean '2:4'?": (
        ArgumentError,
        lambda: scorch.sparsify(torch.nn.Linear(4, 4), pattern="4:2"),
    ),
    "window() got an unexpected keyword argument 'window'; use radius=": (
        KeywordError,
        lambda: scorch.nn.masks.window(16, window=2),
    ),
    "expected tensors to save, but got a Linear; save its state_dict(), or the module as .pt": (
        OperandError,
        lambda: scorch.save("layer.safetensors", torch.nn.Linear(2, 2)),
    ),
    "edge_index has 3 edges: pass the number of nodes by name, size=3": (
        ShapeError,
        lambda: scorch.from_edge_index(EDGE_INDEX, 3),
    ),
    "but got a str; load a file with scorch.load(path)": (OperandError, lambda: scorch.from_scipy("m.npz")),
    "format 'dss' stores 3-D tensors, but this one is 2-D; name a level for each dimension, such as 'ss'": (
        FormatError,
        lambda: scorch.from_torch(torch.eye(3), format="dss"),
    ),
    "but got float32; indices and values seem to be swapped: indices come first": (
        DtypeError,
        lambda: scorch.sparse_coo_tensor(torch.ones(3), EDGE_INDEX, (3, 3)),
    ),
    "one column for each entry: pass torch.stack([rows, columns])": (
        ShapeError,
        lambda: scorch.sparse_coo_tensor(*EDGE_INDEX, torch.ones(3)),
    ),
    "'b' has 1 dimension (shape (3,)) but 'b' names 0 indices; write b[i]": (
        ShapeError,
        lambda: scorch.evaluate("R[i,j] = S[i,j] + b", S=SQUARE, b=torch.ones(3)),
    ),
    "k must be an integer between 0 and 3, the size of dimension -1, but got 0.5": (
        ArgumentError,
        lambda: scorch.topk_sparse(torch.eye(3), 0.5),
    ),
    "rand does not support layout= with a format or a density; use format='csr'": (
        OperandError,
        lambda: scorch.rand(3, 3, density=0.5, layout=torch.sparse_csr),
    ),
    "sum() got an unexpected keyword argument 'masks'; did you mean 'masked'?": (
        KeywordError,
        lambda: SQUARE.sum(axis=1, masks=True),
    ),
    "amax() got an unexpected keyword argument 'keep'; did you mean 'keepdim'?": (
        KeywordError,
        lambda: scorch.amax(SQUARE, 1, masked=True, keep=True),
    ),
    "mask_mod is called with four arguments, (b, h, q_idx, kv_idx)": (
        OperandError,
        lambda: scorch.nn.masks.from_function(lambda i, j: i == j, 16),
    ),
    "pass torch.stack([rows, columns]), or torch.stack([indices]) for a vector": (
        ShapeError,
        lambda: scorch.sparse_coo_tensor(torch.tensor([0, 2]), torch.ones(2), (3,)),
    ),
    "MemmapSparseDatasets, but got a list; create one with torch.tensor": (
        OperandError,
        lambda: SparseDataset(SQUARE, [0, 1, 2]),
    ),
    "MemmapSparseDatasets, but got a str; load a file with scorch.load(path)": (
        OperandError,
        lambda: SparseDataset("rows.npz"),
    ),
    "values must be a tensor, but got a function; pass function(S.values())": (
        OperandError,
        lambda: SQUARE.with_values(torch.relu),
    ),
    "a mask of 500,000,500,000 pairs needs 8,500,008,500,000 bytes of dense memory": (
        DensityError,
        lambda: scorch.nn.masks.causal(1_000_000),
    ),
    "keep fewer pairs, or pass is_causal=True for causal attention without a mask": (
        DensityError,
        lambda: scorch.nn.masks.window(1_000_000, 500_000),
    ),
    "x must have shape (nodes, 2), but got (3, 3); pass the features first, then the graph": (
        ShapeError,
        lambda: scorch.nn.GCNConv(2, 2)(SQUARE, torch.ones(3, 2)),
    ),
    "x must have shape (nodes, 2), but got (2, 3); pass the features first, then the graph": (
        ShapeError,
        lambda: scorch.nn.GATConv(2, 2)(EDGE_INDEX, torch.ones(3, 2)),
    ),
    "a Graph; create one with scorch.from_networkx": (
        OperandError,
        lambda: scorch.nn.GCNConv(2, 2)(torch.ones(3, 2), networkx.Graph()),
    ),
    "got a tensor of shape (3,); for a diagonal matrix, pass scorch.diag(values, format='csr')": (
        ShapeError,
        lambda: scorch.linalg.cg(SQUARE, torch.ones(3), M=torch.ones(3)),
    ),
    "convert one, as in S.to(x.dtype)": (  # a matrix of SciPy's float64 for a layer
        CallError,
        lambda: torch.nn.Linear(3, 2)(SQUARE.double()),
    ),
    "got: long int != float; convert one, as in S.to(x.dtype)": (
        CallError,
        lambda: SQUARE.long() @ torch.ones(3, 2),
    ),
    "got: float != double; convert one, as in x.to(S.dtype)": (
        CallError,
        lambda: SQUARE @ torch.ones(3, 2, dtype=torch.float64),
    ),
    "got: float != Half; convert one, as in x.to(S.dtype)": (  # a sparse weight
        CallError,
        lambda: torch.nn.functional.linear(torch.ones(2, 3), SQUARE.half()),
    ),
}


@pytest.mark.whole
@pytest.mark.parametrize("message", MISTAKES)
def test_a_mistake_says_what_to_do(message: str) -> None:
    kind, call = MISTAKES[message]
    with pytest.raises(kind, match=re.escape(message)):
        call()


def test_advice_that_is_given_works() -> None:
    edges = torch.stack(tuple(EDGE_INDEX))
    assert scorch.from_edge_index(edges, size=3).shape == (3, 3)
    assert scorch.nn.GCNConv(2, 2)(torch.ones(3, 2), edges).shape == (3, 2)
    assert scorch.sparse_coo_tensor(torch.stack(tuple(EDGE_INDEX)), torch.ones(3)).nnz == 3
    assert scorch.sparse_coo_tensor(torch.stack([EDGE_INDEX[0]]), torch.ones(3), (3,)).shape == (3,)
    assert torch.equal(scorch.from_edge_index(*SQUARE.to_edge_index()).to_dense(), torch.eye(3))
    assert "matmul" in str(scorch.explain(torch.matmul, SQUARE, torch.ones(3)))
    b = torch.ones(3)
    assert scorch.evaluate("R[i,j] = S[i,j] + b[i]", S=SQUARE, b=b).shape == (3, 3)
    assert torch.nn.Linear(3, 2)(SQUARE.double().to(torch.float32)).shape == (3, 2)
    M = scorch.diag(1 / SQUARE.diagonal(), format="csr")
    assert torch.equal(scorch.linalg.cg(SQUARE, b, M=M), b)
    assert scorch.sum(SQUARE, axis=1, keepdims=True).shape == (3, 1)
    assert SQUARE.sum(axis=1, masked=True, keepdims=True).shape == (3, 1)


def pruned(layer: torch.nn.Module) -> torch.nn.Module:
    return scorch.sparsify(layer, sparsity=0.9, prefer="size").eval()


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize(
    ("layer", "inputs"),
    [
        (pruned(torch.nn.Linear(8, 8)), (torch.ones(2, 8),)),
        (pruned(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())), (torch.ones(2, 8),)),
        (pruned(torch.nn.Conv2d(2, 2, 3, padding=1)), (torch.ones(1, 2, 8, 8),)),
        (pruned(torch.nn.LSTM(8, 8)), (torch.ones(3, 1, 8),)),
        (pruned(torch.nn.TransformerEncoderLayer(8, 2, 16)), (torch.ones(3, 1, 8),)),
        (scorch.nn.TopKAutoencoder(8, 16, 2), (torch.ones(2, 8),)),
        (scorch.nn.GCNConv(2, 2), (torch.ones(3, 2), EDGE_INDEX)),
        (scorch.nn.GATConv(2, 2), (torch.ones(3, 2), EDGE_INDEX)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_trace_would_have_results_as_constants(
    layer: torch.nn.Module, inputs: tuple[torch.Tensor, ...]
) -> None:
    message = "torch.jit.trace and torch.jit.script do not support sparse tensors; use torch.export.export"
    with pytest.raises(UnsupportedError, match=message):
        torch.jit.script(torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Sequential(layer)))
    for mode in (torch.no_grad, torch.enable_grad):
        with mode(), pytest.raises(UnsupportedError, match=message):
            layer(*inputs)
            torch.jit.trace(layer, inputs, check_trace=False)
    with torch.no_grad():
        layer(*inputs)  # afterwards as before


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_functions_and_torch_fx_do_not_trace() -> None:
    with pytest.raises(UnsupportedError, match=r"@: torch.jit.trace and torch.jit.script do not support"):
        torch.jit.trace(lambda S, x: S @ x, (SQUARE, torch.ones(3, 5)))
    with pytest.raises(
        OperandError, match=r"a Proxy; torch.fx does not trace into layers of Scorch; use torch.export"
    ):
        torch.fx.symbolic_trace(torch.nn.Sequential(pruned(torch.nn.Linear(16, 16))))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_cached_calls_do_not_become_constants_of_a_trace() -> None:
    x = torch.rand(3, 3)
    functions = [
        lambda x: (SQUARE * x).sum(),
        lambda x: torch.sparse.sampled_addmm(SQUARE, x, x).values(),
        lambda x: scorch.einsum("ij,jk->ik", SQUARE, x),
        lambda x: scorch.evaluate("y[i] = S[i,j] * x[j,i]", S=SQUARE, x=x),
        lambda x: SQUARE.with_values(x.flatten()[: SQUARE.nnz]).sum() + SQUARE[0].to_dense(),
        lambda x: scorch.from_torch(x, format="csr").values(),
        lambda x: scorch.sparse_coo_tensor(torch.arange(3)[None], x[0], (3,)).values(),
        scorch.compile(lambda x: torch.relu(SQUARE * x).sum()),
    ]
    for function in functions:
        for _ in range(3):
            function(x)
        with pytest.raises(UnsupportedError, match=r"torch.jit.trace and torch.jit.script do not support"):
            torch.jit.trace(function, x, check_trace=False)
    for method in ("sum", "values", "to_dense", "crow_indices"):
        with pytest.raises(UnsupportedError, match=r"torch\.jit\.trace"):
            torch.jit.trace(lambda S, method=method: getattr(S, method)(), SQUARE, check_trace=False)
    assert torch.equal((SQUARE * x).to_dense(), SQUARE.to_dense() * x)  # afterwards as before


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_scripts_take_sparse_tensors_as_arguments() -> None:
    with pytest.raises(UnsupportedError, match=r"sparsify: torch.jit.trace and torch.jit.script do not"):
        scorch.sparsify(torch.jit.script(torch.nn.Sequential(torch.nn.Linear(8, 8))))
    relu = torch.jit.script(torch.nn.Sequential(torch.nn.ReLU()))
    assert torch.equal(relu(-SQUARE).to_dense(), torch.relu(-SQUARE.to_dense()))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_norms_of_models_with_sparse_layers_are_traced_as_those_of_torch() -> None:
    model = pruned(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)))
    assert type(model[1]) is not torch.nn.LayerNorm
    first, second = torch.rand(2, 8), torch.rand(2, 8)
    with torch.no_grad():
        model[1](first)
        traced = torch.jit.trace(model[1], first)
        torch.testing.assert_close(traced(second), model[1](second))


def test_a_file_of_a_layer_of_another_size_names_the_layer() -> None:
    state = scorch.sparsify(torch.nn.Linear(64, 32), sparsity=0.5, prefer="size").state_dict()
    message = r"invalid sparsity pattern of weight, which has shape \(32, 16\) in the model"
    with pytest.raises(RuntimeError, match=message):
        scorch.nn.load_sparse(torch.nn.Linear(16, 32), state)


def test_a_file_that_cannot_be_loaded_leaves_the_layers_of_a_model() -> None:
    def build(size: int) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(size, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))

    dense, pruned = build(64), scorch.sparsify(build(64), sparsity=0.9, prefer="size")
    for model, state in (
        (dense, scorch.sparsify(build(48), sparsity=0.9, prefer="size").state_dict()),
        (pruned, build(48).state_dict()),
    ):
        before, weights = str(model), [parameter.clone() for parameter in model[0].parameters()]
        with pytest.raises(RuntimeError, match=r"0\.weight"):
            scorch.nn.load_sparse(model, state)
        assert str(model) == before and all(map(torch.equal, model[0].parameters(), weights))


def test_padding_of_blocks_is_shown() -> None:
    blocks = scorch.from_torch(torch.ones(6, 5), format="bsr(4,4)")
    assert "nnz=64, density=213.33% with padding)" in repr(blocks)
    assert "padding" not in repr(scorch.from_torch(torch.ones(8, 4), format="bsr(4,4)"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_is_named_with_what_it_needs() -> None:
    for call, words in (
        (lambda: scorch.ones(3, 3, device="cuda", format="csr"), "^ones: device cuda is not available"),
        (lambda: scorch.nn.masks.window(16, 2, device="cuda"), "^window: device cuda is not available"),
        (lambda: SQUARE.to(0), "^to: "),
        (lambda: SQUARE.to("cuda"), "^to: "),
    ):
        with pytest.raises(MissingDeviceError, match=f"{words}.*A GPU needs a CUDA build of PyTorch"):
            call()


def test_what_is_no_tensor_is_never_an_internal_error() -> None:
    tried = 0
    for name, function in public_functions().items():
        if name.startswith("scorch.distributed") or name in ("scorch.spy", "scorch.save", "scorch.load"):
            continue
        parameters = inspect.signature(function).parameters.values()
        count = sum(each.default is each.empty and each.kind == 1 for each in parameters)
        for value in ("abc", [1, 2, 3], None, 2.5):
            if name.startswith("scorch.nn.") and not name.startswith("scorch.nn.masks"):
                continue  # layers
            try:
                function(*[value] * count)
            except (TypeError, ValueError, RuntimeError, NotImplementedError, IndexError):
                tried += 1
    assert tried > 100


def test_submodules_of_compat_say_how_to_import_them() -> None:
    code = "import scorch.compat as c; assert not hasattr(c, 'other'); c.pyg"
    done = run_python(["-c", code])
    assert "no attribute 'pyg'; import scorch.compat.pyg first" in done.stderr


def test_a_file_with_other_objects_names_their_class(tmp_path: Path) -> None:
    path = tmp_path / "layer.pt"
    torch.save({"layer": torch.nn.Linear(2, 2)}, path)
    with pytest.raises(
        FileError, match=r"contains a torch\.nn\.modules\.linear\.Linear, and loading"
    ) as caught:
        scorch.load(path)
    assert "weights_only=False" in str(caught.value) and len(str(caught.value)) < 300 + len(str(path))


def test_a_damaged_file_does_not_repeat_what_torch_says_of_others(tmp_path: Path) -> None:
    path = tmp_path / "S.pt"
    path.write_bytes(pickle.dumps({"a": "b"}, protocol=2)[:-3])
    with pytest.raises(FileError, match="is not a complete") as caught:
        scorch.load(path)
    scorch.save(path, SQUARE)
    whole = path.read_bytes()
    messages = [str(caught.value)]
    for cut in (len(whole) // 2, len(whole) - 30):
        path.write_bytes(whole[:cut])
        with pytest.raises(FileError) as caught:
            scorch.load(path)
        messages.append(str(caught.value))
    broken = bytearray(whole)
    begin = whole.index(b"data.pkl") + 60
    broken[begin : begin + 30] = bytes(30)
    path.write_bytes(broken)
    with pytest.raises(FileError) as caught:
        scorch.load(path)
    messages.append(str(caught.value))
    for message in messages:
        assert "weights_only" not in message and len(message) < 250 + len(str(path)), message


def test_the_backend_of_compile_is_checked_at_once() -> None:
    for compile in (torch.compile, scorch.compile):
        with pytest.raises(RuntimeError, match="Invalid backend: 'no_such_backend'"):
            compile(torch.relu, backend="no_such_backend")
    assert scorch.compile(torch.relu, backend="eager")(torch.ones(2)).tolist() == [1.0, 1.0]


def test_cg_says_which_preconditioners_it_needs() -> None:
    A = scorch.from_torch(torch.diag(torch.arange(1.0, 31)).double(), format="csr")
    M = torch.triu(torch.ones(30, 30)).double()  # not symmetric
    with pytest.raises(
        scorch.errors.ConvergenceError, match="gmres if it is not positive definite"
    ) as caught:
        scorch.linalg.cg(A, torch.ones(30).double(), M=M)
    assert "SciPy installed" not in str(caught.value)
    solution = scorch.linalg.gmres(A, torch.ones(30).double(), M=M)
    torch.testing.assert_close(A @ solution, torch.ones(30).double())


def test_a_density_is_a_number_and_passed_by_name() -> None:
    for density in ("0.1", True, b"0.1"):
        with pytest.raises(OperandError, match="density must be a number between 0 and 1, but got"):
            scorch.rand(10, 10, density=density)
    with pytest.raises(TypeError, match="must be tuple of ints") as caught:
        scorch.rand(10, 10, 0.1)
    assert "pass a density by name, density=0.1" in "".join(traceback.format_exception(caught.value))
    with pytest.raises(TypeError, match=r"^eye\(\) takes from 1 to 2 positional arguments"):
        scorch.eye(3, 4, 5)

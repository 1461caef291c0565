"""Nothing above the backends names a device, an address or a thread; what does has a reason here."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
import torch

import scorch
from scorch._src.devices import HOST, shares_memory
from scorch._src.tensor.create.check import device_for
from scorch.errors import OperandError
from source_trees import SOURCE, nodes_of, tree_of

FILES = sorted(
    path.relative_to(SOURCE).as_posix()
    for path in SOURCE.rglob("*.py")
    if SOURCE / "_src" / "backends" not in path.parents
)

DEVICES = ("cpu", "cuda")
NAMES = (
    *("is_cpu", "is_cuda", "data_ptr", "ctypes"),
    *("get_num_threads", "set_num_threads", "cpu_count", "sched_getaffinity"),
)
FREED = "a tensor whose memory was taken away is known by its address"
METHOD = "a method of tensors has this name"

# By file: what it may name, and why.
EXCEPTIONS: dict[str, dict[str, str]] = {
    "_src/devices.py": {
        "cpu": "here it is called HOST",
        "data_ptr": "here two tensors are compared",
    },
    "_src/compile/capture/trace.py": {"cpu": METHOD},
    "_src/compile/recorder.py": {
        "is_cpu": "the fastest question for the usual device; the others are in the key"
    },
    "_src/explain/doctor.py": {"cpu_count": "how busy the machine is that was measured on"},
    "_src/io/safetensors.py": {"data_ptr": "the library wants arrays apart that are at one address"},
    "_src/io/safetensors_header.py": {
        "data_ptr": "arrays in a mapped file may lie between two places for them"
    },
    "_src/statements/call_cache.py": {
        "is_cpu": "the fastest question, in the shortest way to a kernel",
        "data_ptr": FREED,
    },
    "_src/statements/operands.py": {"data_ptr": FREED},
    "_src/tensor/create/check.py": {"data_ptr": FREED},
    "_src/tensor/map_values.py": {"is_cpu": "the fastest question, before the shortest routine"},
    "_src/tensor/sparse_tensor.py": {
        "is_cpu": "the fastest question, for every result",
        "data_ptr": f"{METHOD}, and is refused",
    },
    "_src/tensor/metadata.py": {"data_ptr": f"{METHOD}, and is refused"},
    "compat/torch_sparse/memory.py": {"cuda": METHOD},
    "compat/torch_sparse/script.py": {"is_cuda": METHOD},
    "compat/torch_sparse/tensor.py": {"is_cuda": METHOD},
}

# Functions of torch that make a tensor on the default device, unless they are told another.
MAKERS = {
    *(
        "arange",
        "as_tensor",
        "empty",
        "empty_strided",
        "eye",
        "full",
        "linspace",
        "logspace",
        "normal",
        "ones",
    ),
    *("rand", "randint", "randn", "randperm", "scalar_tensor", "tensor", "zeros"),
}
DEFAULT_DEVICE = {
    "_src/tensor/create/check.py": "asks torch for the default device",
    "_src/cli/demo_cases.py": "a user's program",
    "_src/cli/explain_formats.py": "a user's program",
    "_src/nn/graph/graph_layers.py": "parameters start on the default device, like PyTorch's",
    "_src/nn/graph/graph_attention_layer.py": "parameters start on the default device, like PyTorch's",
    "_src/nn/graph/edge_attention_layers.py": "parameters start on the default device, like PyTorch's",
}


def named(path: str) -> Iterator[tuple[str, int]]:
    """Devices, addresses and threads that a file names, and where; not in words for people."""
    for node in nodes_of(tree_of(SOURCE / path)):
        match node:
            case ast.Constant(value=str(text)) if text.split(":")[0] in DEVICES:
                yield text.split(":")[0], node.lineno
            case ast.Call(func=ast.Attribute(attr=name)) if name in DEVICES:
                yield name, node.lineno
            case ast.Attribute(attr=name) | ast.Name(id=name) if name in NAMES:
                yield name, node.lineno
            case ast.Import(names=names):
                yield from ((name.name, node.lineno) for name in names if name.name in NAMES)


def undirected(path: str) -> Iterator[int]:
    """Lines in which torch makes a tensor and is not told where."""
    for node in nodes_of(tree_of(SOURCE / path)):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr=name), keywords=keywords):
                if name in MAKERS and not {keyword.arg for keyword in keywords} & {"device", None}:
                    yield node.lineno


def test_nothing_above_the_backends_names_a_device() -> None:
    found = [(path, *use) for path in FILES for use in named(path) if use[0] not in EXCEPTIONS.get(path, {})]
    assert [f"{path}:{line} names {name}" for path, name, line in found] == []


def test_new_tensors_are_told_where_to_be() -> None:
    paths = [path for path in FILES if path not in DEFAULT_DEVICE]
    assert [f"{path}:{line} has no device=" for path in paths for line in undirected(path)] == []


def test_exceptions_are_needed() -> None:
    for path, reasons in EXCEPTIONS.items():
        assert set(reasons) == {name for name, _ in named(path)}, path
    assert all(list(undirected(path)) for path in DEFAULT_DEVICE)


# what a device decides -------------------------------------------------------------------------------


def test_factories_take_the_default_device() -> None:
    assert device_for("zeros") == HOST
    assert device_for("zeros", "cpu") == HOST
    with torch.device("meta"):
        with pytest.raises(OperandError, match=r"meta, but Scorch supports only the devices cpu"):
            scorch.zeros(3, 3, format="csr")
        assert scorch.zeros(3, 3, format="csr", device="cpu").values().device == HOST


@pytest.mark.parametrize("format", ["csr", "coo", "dcsc", "bsr(2,2)"])
def test_default_device_does_not_reach_what_is_computed(format: str) -> None:
    torch.manual_seed(0)
    dense = torch.randn(6, 4) * (torch.rand(6, 4) < 0.5)
    S, x = scorch.from_torch(dense, format=format), torch.randn(4, 3)
    with torch.device("meta"):
        found = {
            "product": S @ x,
            "sum": torch.sum(S, 0),
            "maximum": torch.amax(S, 1),
            "sorted": torch.sort(S, 1).values,
            "scaled": S * 2.0,
            "joined": torch.cat([S, S], 1),
            "picked": S[torch.arange(2, device=HOST)],
            "softmax": torch.sparse.softmax(scorch.from_torch(dense, format="coo"), 1),
            "cumulative": torch.cumsum(S, 1),
            "padded": torch.nn.functional.pad(S, (1, 1)),
        }
    wanted = {
        "product": dense @ x,
        "sum": dense.sum(0),
        "maximum": dense.amax(1),
        "sorted": dense.sort(1).values,
        "scaled": dense * 2.0,
        "joined": torch.cat([dense, dense], 1),
        "picked": dense[:2],
        "softmax": torch.sparse.softmax(dense.to_sparse(), 1).to_dense(),
        "cumulative": dense.cumsum(1),
        "padded": torch.nn.functional.pad(dense, (1, 1)),
    }
    for name, tensor in found.items():
        plain = tensor.to_dense() if isinstance(tensor, scorch.SparseTensor) else tensor
        torch.testing.assert_close(plain, wanted[name], msg=lambda text, name=name: f"{name}: {text}")


def test_patterns_know_their_device() -> None:
    for format in ("csr", "coo", "csc", "bsr(2,2)"):
        S = scorch.eye(4, format=format)
        assert S.storage.device == S.storage.pattern.device == HOST


def test_memory_that_is_shared() -> None:
    x = torch.zeros(4)
    assert shares_memory(x, x[2:])
    assert not shares_memory(x, x.clone())

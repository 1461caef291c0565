"""Every private name of torch that Scorch uses, and what replaces it in other versions.

torch may rename or remove a name that begins with an underscore in any release. They are all looked up here,
once, when Scorch is imported. To support a new torch, run ``tests/_src/test_torch_internals.py`` on it and
add the new place of a name in front of the old one. A name that is nowhere stops the import with an error
that lists everything that is missing, instead of failing in the middle of somebody's program.

    name = _find("torch.new.place", "torch.old.place")      the first one that this torch has

``LAZY`` lists names whose modules are slow to import: ``from scorch._src.torch_internals import name`` inside
of a function; ``OPTIONAL`` those that only some versions have. ``ATTRIBUTES`` and ``OPERATORS`` list what
other modules may use by its own name, since it belongs to an object: ``module._buffers``, ``aten._to_copy``.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from scorch.errors import TorchVersionError

OLDEST, NEWEST = (2, 8), (2, 15)  # the versions of torch that are supported, as pyproject.toml says

_ABSENT: Any = object()
_places: dict[str, tuple[str, ...]] = {}  # all places of a name, by the first
_missing: list[str] = []


def look_up(path: str) -> Any:
    """Return the object at a path such as ``torch._C._functorch.get_unwrapped``; LookupError if none is."""
    names = path.split(".")
    value: Any = importlib.import_module(names[0])
    for end, name in enumerate(names[1:], 2):
        following = getattr(value, name, _ABSENT)
        if following is _ABSENT:  # a module that nobody has imported yet
            try:
                following = importlib.import_module(".".join(names[:end]))
            except ImportError:
                raise LookupError(path) from None
        value = following
    return value


def first_of(*places: str) -> Any:
    """Return the object at the first of ``places`` that this torch has."""
    for place in places:
        try:
            return look_up(place)
        except LookupError:
            continue
    raise TorchVersionError(_explain([places[0]]))


def _find(*places: str) -> Any:
    """Do the same, but collect missing names: the end of this file raises one error for all of them."""
    _places[places[0]] = places
    try:
        return first_of(*places)
    except TorchVersionError:
        _missing.append(places[0])
        return None


def _explain(missing: list[str]) -> str:
    oldest, newest = (".".join(map(str, version)) for version in (OLDEST, NEWEST))
    below = f"{NEWEST[0]}.{NEWEST[1] + 1}"
    return (
        f"torch {torch.__version__} does not have {', '.join(missing)}, which Scorch needs; this version of "
        f"Scorch works with torch {oldest} to {newest}. Install one of them with pip install "
        f"'torch>={oldest},<{below}', or a newer Scorch with pip install --upgrade scorch-sparse"
    )


# how calls reach a tensor subclass -------------------------------------------------------------------

Guard = Callable[..., AbstractContextManager[Any]]
Test = Callable[..., bool]

DisableTorchFunctionSubclass: Guard = _find("torch._C.DisableTorchFunctionSubclass")
DISABLED_TORCH_FUNCTION: Any = _find("torch._C._disabled_torch_function_impl")
EnableTorchFunction: Guard = _find("torch._C._EnableTorchFunction")
DisableTorchDispatch: Guard = _find("torch._C._DisableTorchDispatch")
AutoDispatchBelowAutograd: Guard = _find("torch._C._AutoDispatchBelowAutograd")
ForceDispatchKeyGuard: Guard = _find("torch._C._ForceDispatchKeyGuard")
DispatchKey: Any = _find("torch._C.DispatchKey")
current_graph_task_id: Callable[[], int] = _find("torch._C._current_graph_task_id")
included_dispatch_keys: Callable[[], Any] = _find("torch._C._dispatch_tls_local_include_set")
excluded_dispatch_keys: Callable[[], Any] = _find("torch._C._dispatch_tls_local_exclude_set")
is_dispatch_key_excluded: Test = _find("torch._C._dispatch_tls_is_dispatch_key_excluded")
has_kernel_for_dispatch_key: Test = _find("torch._C._dispatch_has_kernel_for_dispatch_key")
all_operator_names: Callable[[], list[str]] = _find("torch._C._dispatch_get_all_op_names")
format_tensor: Callable[[torch.Tensor, int], str] = _find("torch._tensor_str._tensor_str")
get_printoptions: Callable[[], dict[str, Any]] = _find("torch._tensor_str.get_printoptions")
OpOverload: Any = _find("torch._ops.OpOverload")
OpOverloadPacket: Any = _find("torch._ops.OpOverloadPacket")
resolve_overload: Callable[..., str] = _find("torch._C._jit_resolve_packet")
# of subclasses with ``__torch_dispatch__``: before that of autograd
SUBCLASS_KEY: Any = _find("torch._C.DispatchKey.PythonTLSSnapshot")
_make_wrapper_subclass: Callable[..., Any] = _find("torch.Tensor._make_wrapper_subclass")
_set_throw_on_mutable_data_ptr: Callable[[torch.Tensor], None]
_set_throw_on_mutable_data_ptr = _find("torch._C._set_throw_on_mutable_data_ptr")
has_compatible_shallow_copy_type: Test = _find("torch._has_compatible_shallow_copy_type")

# modes of torch that are at work ---------------------------------------------------------------------

len_torch_dispatch_stack: Callable[[], int] = _find("torch._C._len_torch_dispatch_stack")
len_torch_function_stack: Callable[[], int] = _find("torch._C._len_torch_function_stack")
is_torch_function_enabled: Test = _find("torch._C._is_torch_function_enabled")
get_dispatch_mode: Callable[[Any], Any] = _find("torch._C._get_dispatch_mode")
FAKE_MODE: Any = _find("torch._C._TorchDispatchModeKey.FAKE")
PROXY_MODE: Any = _find("torch._C._TorchDispatchModeKey.PROXY")
pop_mode_temporarily: Guard = _find("torch.overrides._pop_mode_temporarily")
disable_current_modes: Guard = _find("torch.utils._python_dispatch._disable_current_modes")
detect_fake_mode: Callable[..., Any] = _find("torch._guards.detect_fake_mode")
is_jit_tracing: Test = _find("torch._C._is_tracing")
is_any_autocast_enabled: Test = _find("torch._C._is_any_autocast_enabled")
UnsupportedFakeTensorException: type[Exception]
UnsupportedFakeTensorException = _find("torch._subclasses.fake_tensor.UnsupportedFakeTensorException")

# autograd and torch.func -----------------------------------------------------------------------------

any_requires_grad: Test = _find("torch._C._any_requires_grad")
FunctionBase: Any = _find("torch._C._FunctionBase")
execution_engine: Any = _find("torch.autograd.Variable._execution_engine")
engine_run_backward: Callable[..., tuple[Any, ...]] = _find("torch.autograd.graph._engine_run_backward")
make_grads: Callable[..., tuple[torch.Tensor | None, ...]] = _find("torch.autograd._make_grads")
current_autograd_node: Callable[[], Any] = _find("torch._C._current_autograd_node")
make_dual: Callable[..., torch.Tensor] = _find("torch._VF._make_dual")
unpack_dual: Callable[..., Any] = _find("torch._VF._unpack_dual")
peek_interpreter_stack: Callable[[], Any] = _find("torch._C._functorch.peek_interpreter_stack")
is_functorch_wrapped_tensor: Test = _find("torch._C._functorch.is_functorch_wrapped_tensor")
is_functional_tensor: Test = _find("torch._is_functional_tensor")
is_batchedtensor: Test = _find("torch._C._functorch.is_batchedtensor")
is_legacy_batchedtensor: Test = _find("torch._C._functorch.is_legacy_batchedtensor")
get_unwrapped: Callable[[Any], Any] = _find("torch._C._functorch.get_unwrapped")
swap_tensor_impl: Callable[..., None] = _find("torch._C._swap_tensor_impl")
maybe_get_level: Callable[[Any], int] = _find("torch._C._functorch.maybe_get_level")
maybe_get_bdim: Callable[[Any], int] = _find("torch._C._functorch.maybe_get_bdim")
add_batch_dim: Callable[..., torch.Tensor] = _find("torch._add_batch_dim")
remove_batch_dim: Callable[..., torch.Tensor] = _find("torch._remove_batch_dim")

# torch.compile: frames that it leaves alone ----------------------------------------------------------

FrameExecStrategy: Any = _find("torch._C._dynamo.eval_frame._FrameExecStrategy")
FrameAction: Any = _find("torch._C._dynamo.eval_frame._FrameAction")
set_code_exec_strategy: Callable[..., None] = _find("torch._C._dynamo.eval_frame.set_code_exec_strategy")
_disable_dynamo: Callable[[Any], Any] = _find("torch._compile._disable_dynamo")


def outside_graphs(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, which graphs of ``torch.compile`` do not contain: they end before it is called."""
    untraced = _disable_dynamo(function)

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        # Without torch.compile, which takes long to import, nothing is traced.
        return (untraced if "torch._dynamo" in sys.modules else function)(*args)

    return call


# helpers of torch's own Python code ------------------------------------------------------------------

TreeSpec: Any = _find("torch.utils._pytree.TreeSpec")
tree_flatten: Callable[..., Any] = _find("torch.utils._pytree.tree_flatten")
tree_leaves: Callable[..., list[Any]] = _find("torch.utils._pytree.tree_leaves")
tree_map: Callable[..., Any] = _find("torch.utils._pytree.tree_map")
tree_unflatten: Callable[..., Any] = _find("torch.utils._pytree.tree_unflatten")
parse_to: Callable[..., Any] = _find("torch._C._nn._parse_to")
legacy_reduction: Callable[..., str] = _find("torch.nn._reduction.legacy_get_string")
ConvNd: Any = _find("torch.nn.modules.conv._ConvNd")
has_global_hooks: Test = _find("torch.nn.modules.module._has_any_global_hook")
collate_functions: dict[Any, Any] = _find("torch.utils.data._utils.collate.default_collate_fn_map")
legacy_load: Any = _find("torch.serialization._legacy_load")
new_shared_storage: Callable[..., Any] = _find("torch.UntypedStorage._new_shared")
row_pointers_of: Callable[..., torch.Tensor] = _find("torch._convert_indices_from_coo_to_csr")
torch_sparse_sum: Callable[..., Any] = _find("torch._sparse_sum")

# Names whose modules take long to import: looked up on first use.
LAZY: dict[str, tuple[str, ...]] = {
    "allocate_size": ("torch._library.fake_impl.allocate_size",),
    "decomposition_table": ("torch._decomp.decomposition_table",),
    "disable_proxy_modes_tracing": ("torch.fx.experimental.proxy_tensor.disable_proxy_modes_tracing",),
    "GraphBreak": ("torch._dynamo.exc.Unsupported",),
    "lookup_backend": ("torch._dynamo.lookup_backend",),
    "maybe_mark_dynamic": ("torch._dynamo.maybe_mark_dynamic",),
    "SymNode": ("torch.fx.experimental.sym_node.SymNode",),
    "TracingContext": ("torch._guards.TracingContext",),
    "DeviceMesh": ("torch.distributed.device_mesh.DeviceMesh",),
    "DTensor": ("torch.distributed.tensor.DTensor",),
    "Shard": ("torch.distributed.tensor.Shard",),
    "find_tensors": ("torch.nn.parallel.distributed._find_tensors",),
    "without_interpreters": ("torch._functorch.pyfunctorch.temporarily_clear_interpreter_stack",),
}

# The same, but None where this torch does not have it: callers do without.
OPTIONAL: dict[str, tuple[str, ...]] = {
    # computes a size in a graph from others; without it only sizes of arguments are known there
    "build_proxy_for_size": ("torch.fx.experimental.proxy_tensor._build_proxy_for_sym_expr",),
    # of torch with CUDA: the public functions take microseconds
    "cuda_stream_of": ("torch._C._cuda_getCurrentRawStream",),
    "cuda_device": ("torch._C._cuda_getDevice",),
}

# Modules that are recognised where they call a method of a tensor.
FAKE_TENSOR_MAKER = "torch._subclasses.meta_utils"
TENSOR_METHODS = "torch._tensor"  # where methods take the memory of a tensor
INPUT_COPIER = "torch._dynamo.utils"  # where torch 2.8 takes the address of what export(strict=True) copies
GRAPH_MAKER = "torch._functorch._aot_autograd"
ATTRIBUTE_READER = "torch._dynamo.variables.tensor"  # where torch.compile reads attributes as constants
EXPORT_INPUTS = "torch._export.non_strict_utils"  # where torch.export chooses sizes that are symbolic
COMPILE_INPUTS = "torch._dynamo.variables.builder"  # where torch.compile does, and export(strict=True)
DTENSOR = "torch.distributed.tensor"
WEIGHT_NORM = "torch.nn.utils.weight_norm"  # where it replaces a parameter
DEFAULT_DEVICE_MODE = "torch.utils._device"  # what torch.set_default_device sets, between callers and tensors
MODULES = (
    *(FAKE_TENSOR_MAKER, GRAPH_MAKER, ATTRIBUTE_READER, EXPORT_INPUTS, COMPILE_INPUTS),
    *(DEFAULT_DEVICE_MODE, INPUT_COPIER, TENSOR_METHODS, WEIGHT_NORM),
)

# Attributes that are used by their own names.
ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "torch.Tensor": (
        *("_is_zerotensor", "_nnz", "_is_view", "_typed_storage", "_version", "_base"),
        *("_indices", "_values", "_dimI", "_dimV"),
    ),
    "torch.UntypedStorage": ("_cdata",),
    "torch.ops.aten.add.Tensor": ("_schema", "_overloadname", "_op_dk"),
    "torch.ops.aten.add": ("_qualified_op_name",),
    "torch.nn.Module": (
        *("_call_impl", "_compiled_call_impl", "_load_from_state_dict", "_save_to_state_dict"),
        *("_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks"),
        *("_backward_hooks", "_backward_pre_hooks", "_load_state_dict_pre_hooks"),
        *("_load_state_dict_post_hooks", "_non_persistent_buffers_set", "_get_name"),
    ),
    "torch.nn.TransformerDecoderLayer": ("_ff_block",),
    "torch.nn.LazyLinear": ("_infer_parameters",),
    "torch.library.Library": ("_destroy",),
    "torch.autograd.forward_ad": ("_current_level",),  # a number that changes: read it there each time
    "torch.compile": ("_torchdynamo_orig_callable",),  # of what it returns
    "torch._library.fake_impl.FakeImplCtx": ("_shape_env",),
    "torch.nn.parallel.DistributedDataParallel": (
        "_build_params_for_reducer",
        "_build_debug_param_to_name_mapping",
    ),
}

# Operators: PyTorch functions arrive under these names after torch has taken them apart.
OPERATORS = (
    *("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "_embedding_bag", "_embedding_bag_forward_only"),
    *("_conj", "_pin_memory", "_prelu_kernel", "_reshape_alias", "_sparse_addmm", "_sparse_log_softmax"),
    "_has_compatible_shallow_copy_type",
    *("_sparse_softmax", "_sparse_sum", "_to_copy", "_unique2", "_unsafe_view", "_upsample_bicubic2d_aa"),
    *("_upsample_bilinear2d_aa", "_upsample_nearest_exact1d", "_upsample_nearest_exact2d"),
    "_upsample_nearest_exact3d",
)
_missing += [f"torch.ops.aten.{name}" for name in OPERATORS if not hasattr(torch.ops.aten, name)]


def __getattr__(name: str) -> Any:
    """Import a name of ``LAZY`` or ``OPTIONAL`` on first use."""
    if name not in LAZY and name not in OPTIONAL:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = first_of(*(LAZY.get(name) or OPTIONAL[name]))
    except TorchVersionError:
        if name in LAZY:
            raise
        value = None
    globals()[name] = value
    return value


def all_places() -> list[tuple[str, ...]]:
    """List all modules and attributes where a private name is looked up here."""
    return [*_places.values(), *LAZY.values()]


if _missing:
    raise TorchVersionError(_explain(_missing))


def make_wrapper_subclass(
    kind: type,
    shape: Any,
    strides: Any = None,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    requires_grad: bool = False,
) -> Any:
    """Return a tensor without memory of a subclass; what asks for the address of its memory gets an error.

    By position, the arguments take torch less time than by name.
    """
    tensor = _make_wrapper_subclass(
        kind, shape, strides, None, None, dtype, torch.strided, device, False, requires_grad
    )
    _set_throw_on_mutable_data_ptr(tensor)
    return tensor

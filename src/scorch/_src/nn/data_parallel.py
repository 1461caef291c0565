"""``DistributedDataParallel`` for modules with sparse parameters: ranks exchange values only.

PyTorch sends dense tensors, and allocates gradients of the full shape. A sparse parameter has the same
sparsity pattern in every process, so that only values have to be sent: once from rank 0 to all others when
the module is wrapped, and after each backward pass those of the gradients, which are averaged over all
ranks. PyTorch does the same for all dense parameters of the module.

The class of a ``DistributedDataParallel`` is replaced by one that is defined here before it has looked at the
sparse tensors of the module.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel.distributed import DistributedDataParallel

from scorch._src.devices import HOST
from scorch._src.nn.module_mixin import WrapperMixin
from scorch._src.nn.pattern import compute_fingerprint
from scorch._src.storage.storage import Pattern
from scorch._src.tensor.autograd import values_at
from scorch._src.tensor.sparse_tensor import SparseTensor, with_values
from scorch._src.torch_internals import execution_engine, find_tensors
from scorch.errors import CallError, UnsupportedError

SAME_PATTERN_HINT = (
    "give sparse tensors the same sparsity pattern on all ranks, with the same seed (torch.manual_seed) or "
    "by "
    "loading the same state_dict"
)

_fingerprints: weakref.WeakKeyDictionary[Pattern, int] = weakref.WeakKeyDictionary()


def fingerprint_of(pattern: Pattern) -> int:
    """Return the fingerprint of a sparsity pattern, by which ranks detect that theirs differ."""
    value = _fingerprints.get(pattern)
    if value is None:
        value = _fingerprints[pattern] = compute_fingerprint(pattern)
    return value


def _restore(kind: type) -> Any:
    """Return a module without attributes; pickles name this function for subclasses of PyTorch's class."""
    return DataParallelMixin.new(kind)


class DataParallelMixin(WrapperMixin):
    """What a ``DistributedDataParallel`` does in addition if the module has sparse parameters or buffers."""

    restore, wrapper = staticmethod(_restore), DistributedDataParallel
    module: torch.nn.Module
    parameters_to_ignore: set[str]
    process_group: Any
    require_backward_grad_sync: bool
    require_forward_param_sync: bool
    broadcast_buffers: bool
    find_unused_parameters: bool
    static_graph: bool
    _learned: dict[str, SparseTensor]  # sparse parameters that require gradients; pickles have these names
    _kept: dict[str, Any]  # by name, sparse buffers and their versions when last broadcast
    _arrived: set[str]  # parameters whose gradients are complete
    _is_expecting: bool  # whether to average gradients after the next backward pass
    _is_queued: bool  # whether that is queued for the end of this one

    # when the module is wrapped ----------------------------------------------------------------------

    @staticmethod
    def is_needed(wrapper: Any, module: torch.nn.Module) -> bool:
        """Whether a module has sparse tensors that are not ignored."""
        return bool(_sparse_tensors(module, wrapper.parameters_to_ignore))

    def prepare(self, module: torch.nn.Module) -> None:
        """Let PyTorch ignore the sparse tensors, and synchronize them."""
        ignored = self.parameters_to_ignore
        sparse = _sparse_tensors(module, ignored)
        # torch puts a dot before names of the outermost module
        ignored.update(sparse, (f".{name}" for name in sparse))
        unique: dict[int, tuple[str, SparseTensor]] = {}
        for path, tensor in sparse.items():
            unique.setdefault(id(tensor), (path, tensor))
        self._synchronize(dict(unique.values()))

    def _synchronize(self, sparse: dict[str, SparseTensor]) -> None:
        """Broadcast the tensors of rank 0 to all others."""
        group = self.process_group
        own = [
            (name, str(S.format), tuple(S.shape), S.nnz, str(S.dtype), fingerprint_of(S.storage.pattern))
            for name, S in sparse.items()
        ]
        gathered: list[Any] = [None] * group.size()
        dist.all_gather_object(gathered, own, group=group)
        for rank, descriptions_of_rank in enumerate(gathered):
            _check_same(gathered[0], descriptions_of_rank, rank)
        for tensor in sparse.values():
            _broadcast(tensor, group)
        parameters = [name for name, S in sparse.items() if isinstance(S, torch.nn.Parameter)]
        self._learned = {name: sparse[name] for name in parameters if sparse[name].requires_grad}
        self._kept = {name: _version(S) for name, S in sparse.items() if name not in parameters}
        self._register_hooks()

    def _register_hooks(self) -> None:
        """Observe when each gradient is complete."""
        self._arrived, self._is_expecting, self._is_queued = set(), False, False
        for name, parameter in self._learned.items():
            parameter.register_post_accumulate_grad_hook(_make_hook(weakref.ref(self), name))

    def _build_params_for_reducer(self) -> Any:
        """Return the parameters that PyTorch reduces: a dummy if all are sparse, since it needs one."""
        parameters, expected = super()._build_params_for_reducer()  # type: ignore[misc]
        if parameters:
            return parameters, expected
        device = next((S.storage.device for S in self._learned.values()), HOST)
        return [torch.zeros(1, requires_grad=True, device=device)], [False]

    def _build_debug_param_to_name_mapping(self, parameters: list[torch.Tensor]) -> Any:
        if not any(parameter is parameters[0] for parameter in self.module.parameters()):
            return {0: "none"}
        return super()._build_debug_param_to_name_mapping(parameters)  # type: ignore[misc]

    # forward and backward ----------------------------------------------------------------------------

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        if self._kept and self.require_forward_param_sync and self.broadcast_buffers:
            self._broadcast_buffers()
        output = super().forward(*inputs, **kwargs)
        if self._learned and torch.is_grad_enabled() and self.require_backward_grad_sync:
            self._arrived.clear()
            self._is_expecting, self._is_queued = True, False
            for tensor in find_tensors(output):
                if tensor.grad_fn is not None:  # at the end of the outermost pass, if passes are nested
                    tensor.register_hook(_make_hook(weakref.ref(self)))
        return output

    def _broadcast_buffers(self) -> None:
        """Broadcast the buffers of rank 0, if any rank has changed one."""
        buffers = dict(self.module.named_buffers())
        current = {name: S for name in self._kept if isinstance(S := buffers.get(name), SparseTensor)}
        is_changed = any(not _is_same_version(_version(S), self._kept[name]) for name, S in current.items())
        gathered = _all_max(
            [int(is_changed), *_fingerprint_bounds(current.values())], current.values(), self.process_group
        )
        _check_fingerprints(current, gathered[1:])
        if not gathered[0]:
            return
        for name, tensor in current.items():
            _broadcast(tensor, self.process_group)
            self._kept[name] = _version(tensor)

    def _queue(self) -> None:
        if not self._is_queued:
            self._is_queued = True
            execution_engine.queue_callback(self._average_gradients)

    def _average_gradients(self) -> None:
        """Average the gradients over all ranks, after a backward pass.

        A parameter unused on some rank has a gradient of zeros there; one unused on all ranks keeps its
        gradient.
        """
        self._is_queued = False
        if not self._arrived and not (self.find_unused_parameters or self.static_graph):
            return  # the backward pass was of something else
        is_ready, trainable = [int(name in self._arrived) for name in self._learned], self._learned.values()
        gathered = _all_max([*is_ready, *_fingerprint_bounds(trainable)], trainable, self.process_group)
        _check_fingerprints(self._learned, gathered[len(is_ready) :])
        used = [S for S, is_used in zip(self._learned.values(), gathered, strict=False) if is_used]
        if not used:
            return
        self._is_expecting = False
        self._arrived.clear()
        for dtype in dict.fromkeys(S.dtype for S in used):
            _average([S for S in used if S.dtype == dtype], self.process_group)

    # not supported, and Python -----------------------------------------------------------------------

    def join_hook(self, **kwargs: Any) -> Any:
        raise UnsupportedError(
            "join() for uneven inputs is not supported with sparse parameters; give every rank the same "
            "number of "
            "batches, as torch.utils.data.DistributedSampler does"
        )

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._register_hooks()


class SparseDataParallel(DataParallelMixin, DistributedDataParallel):
    """A ``DistributedDataParallel`` of a module with sparse parameters or buffers."""


def _sparse_tensors(module: torch.nn.Module, ignored: set[str]) -> dict[str, SparseTensor]:
    """Return the sparse parameters and buffers of a module, by all of their names."""
    tensors = [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]
    return {n: S for n, S in tensors if isinstance(S, SparseTensor) and n not in ignored}


# between processes -----------------------------------------------------------------------------------


def _make_hook(module_ref: weakref.ref[Any], name: str | None = None) -> Callable[[torch.Tensor], None]:
    """Return a hook that queues the average; that of a parameter marks its gradient as complete."""

    def hook(_: torch.Tensor) -> None:
        module = module_ref()
        if module is not None and module._is_expecting:
            if name is not None:
                module._arrived.add(name)
            module._queue()

    return hook


def _check_same(first: list[Any], other_rank: list[Any], rank: int) -> None:
    """Raise an error that names the first difference between two ranks."""
    properties = ("name", "format", "shape", "nnz", "dtype", "sparsity pattern")
    for expected, actual in itertools.zip_longest(first, other_rank, fillvalue=""):
        if expected != actual:
            compared = zip(properties, expected, actual, strict=False)
            difference = next((name for name, a, b in compared if a != b), "number of sparse tensors")
            raise CallError(
                f"{(expected or actual)[0]!r} has a different {difference} on rank 0 and on rank {rank}; "
                f"{SAME_PATTERN_HINT}"
            )


def _fingerprint_bounds(tensors: Iterable[SparseTensor]) -> list[int]:
    """Return numbers whose maxima over all ranks are the largest and smallest fingerprints."""
    fingerprints = [fingerprint_of(S.storage.pattern) for S in tensors]
    return [number for fingerprint in fingerprints for number in (fingerprint, -fingerprint)]


def _check_fingerprints(tensors: dict[str, SparseTensor], gathered: list[int]) -> None:
    for name, largest, smallest in zip(tensors, gathered[::2], gathered[1::2], strict=True):
        if largest != -smallest:
            raise CallError(
                f"{name!r} now has different sparsity patterns on different ranks; {SAME_PATTERN_HINT}"
            )


def _all_max(numbers: list[int], tensors: Iterable[SparseTensor], group: Any) -> list[int]:
    """Return the maximum of each number over all ranks."""
    device = next((S.storage.device for S in tensors), HOST)
    maxima = torch.tensor(numbers, dtype=torch.int64, device=device)
    dist.all_reduce(maxima, dist.ReduceOp.MAX, group=group)
    result: list[int] = maxima.tolist()
    return result


def _as_real(values: torch.Tensor) -> torch.Tensor:
    """View values as real numbers, as collectives need them."""
    return torch.view_as_real(values) if values.is_complex() else values


def _broadcast(tensor: SparseTensor, group: Any) -> None:
    """Broadcast the values of rank 0 to all others, in place."""
    values = tensor.storage.values.detach()
    if values.numel():
        dist.broadcast(_as_real(values), dist.get_global_rank(group, 0), group=group)
        tensor.storage.drop_copies()
        torch.autograd.graph.increment_version(tensor)


def _average(parameters: list[SparseTensor], group: Any) -> None:
    """Average the gradients of parameters of one dtype over all ranks, in one message."""
    local_values = [
        parameter.storage.values.new_zeros(parameter.storage.pattern.size)
        if parameter.grad is None
        else values_at(parameter.grad.detach(), parameter.storage.pattern).detach()
        for parameter in parameters
    ]
    message = local_values[0] if len(local_values) == 1 else torch.cat(local_values)
    if message.numel():
        message.div_(group.size())
        dist.all_reduce(_as_real(message), group=group)
    for parameter, values in zip(
        parameters, message.split([len(part) for part in local_values]), strict=True
    ):
        _write_gradient(parameter, values)


def _write_gradient(parameter: SparseTensor, values: torch.Tensor) -> None:
    """Write ``values`` to the gradient, in place where it has the pattern of the parameter."""
    gradient, pattern = parameter.grad, parameter.storage.pattern
    if isinstance(gradient, SparseTensor) and gradient.storage.pattern is pattern:
        gradient.storage.values.detach().copy_(values)
        gradient.storage.drop_copies()
        torch.autograd.graph.increment_version(gradient)
    else:
        parameter.grad = with_values(parameter, values.clone())


def _version(tensor: SparseTensor) -> tuple[torch.Tensor, int]:
    values = tensor.storage.values
    return values, values._version


def _is_same_version(current: tuple[torch.Tensor, int], previous: tuple[torch.Tensor, int]) -> bool:
    return current[0] is previous[0] and current[1] == previous[1]

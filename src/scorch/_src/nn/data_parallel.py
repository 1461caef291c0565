"""``DistributedDataParallel`` of modules with sparse parameters: processes exchange values.

torch sends dense tensors, and keeps room for gradients of the whole shape. A sparse parameter has the same
places in every process, so that only values have to be sent: once from the first process to all others, when
the module is wrapped, and after each backward pass those of the gradients, of which all processes get the
mean. torch does the same for all dense parameters of the module, as ever.

torch calls a function of ours whenever a module becomes part of another. If the other one is a
``DistributedDataParallel``, and there are sparse tensors in what it is given, it becomes one that is defined
here before it has looked at them.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.modules.module import register_module_module_registration_hook
from torch.nn.parallel.distributed import DistributedDataParallel

from scorch._src.devices import HOST
from scorch._src.nn.pattern import fingerprint
from scorch._src.storage.storage import Pattern
from scorch._src.tensor.autograd import values_at
from scorch._src.tensor.sparse_tensor import SparseTensor, with_values
from scorch._src.torch_internals import execution_engine, find_tensors
from scorch.errors import CallError, UnsupportedError

SAME_PLACES = (
    "make sparse tensors of the same places in all processes, by the same seed (torch.manual_seed) or by "
    "loading one state_dict in all of them"
)

_seals: weakref.WeakKeyDictionary[Pattern, int] = weakref.WeakKeyDictionary()


def seal_of(pattern: Pattern) -> int:
    """The fingerprint of a pattern, by which processes notice that theirs differ."""
    found = _seals.get(pattern)
    if found is None:
        found = _seals[pattern] = fingerprint(pattern)
    return found


class _WithSparse:
    """What a ``DistributedDataParallel`` does besides if the module has sparse parameters or buffers."""

    module: torch.nn.Module
    process_group: Any
    require_backward_grad_sync: bool
    require_forward_param_sync: bool
    broadcast_buffers: bool
    find_unused_parameters: bool
    static_graph: bool
    _learned: dict[str, SparseTensor]  # the sparse parameters that learn
    _kept: dict[str, Any]  # by name, values of sparse buffers and their version when they were last sent
    _arrived: set[str]  # parameters whose gradients are complete in this process
    _is_expecting: bool  # whether the next backward pass is one to exchange gradients after
    _is_queued: bool  # whether they will be, when this one ends

    # when the module is wrapped ----------------------------------------------------------------------

    def _begin(self, sparse: dict[str, SparseTensor]) -> None:
        """Give all processes what the first one has."""
        group = self.process_group
        facts = [(name, str(S.format), tuple(S.shape), S.nnz, str(S.dtype)) for name, S in sparse.items()]
        mine = [(*fact, seal_of(S.storage.pattern)) for fact, S in zip(facts, sparse.values(), strict=True)]
        told: list[Any] = [None] * group.size()
        dist.all_gather_object(told, mine, group=group)
        for rank, theirs in enumerate(told):
            _check_same(told[0], theirs, rank)
        for tensor in sparse.values():
            _send(tensor, group)
        parameters = [name for name, S in sparse.items() if isinstance(S, torch.nn.Parameter)]
        self._learned = {name: sparse[name] for name in parameters if sparse[name].requires_grad}
        self._kept = {name: _version(S) for name, S in sparse.items() if name not in parameters}
        self._listen()

    def _listen(self) -> None:
        """Hear of each gradient that is complete."""
        self._arrived, self._is_expecting, self._is_queued = set(), False, False
        for name, parameter in self._learned.items():
            parameter.register_post_accumulate_grad_hook(_listener(weakref.ref(self), name))

    def _build_params_for_reducer(self) -> Any:
        """Parameters that torch reduces: if all are sparse, one that is never learned, since it needs one."""
        parameters, expected = super()._build_params_for_reducer()  # type: ignore[misc]
        device = next((S.storage.device for S in self._learned.values()), HOST)
        return (
            (parameters, expected)
            if parameters
            else ([torch.zeros(1, requires_grad=True, device=device)], [False])
        )

    def _build_debug_param_to_name_mapping(self, parameters: list[torch.Tensor]) -> Any:
        if not any(parameter is parameters[0] for parameter in self.module.parameters()):
            return {0: "none"}
        return super()._build_debug_param_to_name_mapping(parameters)  # type: ignore[misc]

    # forward and back --------------------------------------------------------------------------------

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        if self._kept and self.require_forward_param_sync and self.broadcast_buffers:
            self._send_buffers()
        output = super().forward(*inputs, **kwargs)  # type: ignore[misc]
        if self._learned and torch.is_grad_enabled() and self.require_backward_grad_sync:
            self._arrived.clear()
            self._is_expecting, self._is_queued = True, False
            for tensor in find_tensors(output):
                if tensor.grad_fn is not None:  # the end of the outermost pass, if there are some within
                    tensor.register_hook(_queuer(weakref.ref(self)))
        return output

    def _send_buffers(self) -> None:
        """Give all processes the buffers of the first one, if any process has changed one of its own."""
        buffers = dict(self.module.named_buffers())
        found = {name: S for name in self._kept if isinstance(S := buffers.get(name), SparseTensor)}
        changed = any(not _is_same(_version(S), self._kept[name]) for name, S in found.items())
        told = _all_max([int(changed), *_seals_of(found.values())], found.values(), self.process_group)
        _check_seals(found, told[1:])
        if not told[0]:
            return
        for name, tensor in found.items():
            _send(tensor, self.process_group)
            self._kept[name] = _version(tensor)

    def _queue(self) -> None:
        if self._is_expecting and not self._is_queued:
            self._is_queued = True
            execution_engine.queue_callback(self._exchange)

    def _exchange(self) -> None:
        """After a backward pass: the mean of the gradients of all processes.

        A parameter that was not used in some process has a gradient of zeros there; one that was used in none
        keeps the gradient that it has.
        """
        self._is_queued = False
        if not self._arrived and not (self.find_unused_parameters or self.static_graph):
            return  # gradients of something else were asked for
        numbers, learned = [int(name in self._arrived) for name in self._learned], self._learned.values()
        told = _all_max([*numbers, *_seals_of(learned)], learned, self.process_group)
        _check_seals(self._learned, told[len(numbers) :])
        used = [S for S, is_used in zip(self._learned.values(), told, strict=False) if is_used]
        if not used:
            return
        self._is_expecting = False
        self._arrived.clear()
        for dtype in dict.fromkeys(S.dtype for S in used):
            _average([S for S in used if S.dtype == dtype], self.process_group)

    # the rest ----------------------------------------------------------------------------------------

    def join_hook(self, **kwargs: Any) -> Any:
        raise UnsupportedError(
            "join() lets some processes have fewer batches than others, which sparse parameters do not know; "
            "give all the same number of batches, as torch.utils.data.DistributedSampler does"
        )

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[misc]
        self._listen()

    def _get_name(self) -> str:
        return "DistributedDataParallel"


class SparseDataParallel(_WithSparse, DistributedDataParallel):
    """A ``DistributedDataParallel`` of a module with sparse parameters or buffers."""


@functools.cache
def _kind(kind: type) -> type:
    """The same class, for sparse tensors too."""
    if kind is DistributedDataParallel:
        return SparseDataParallel
    return type(kind.__name__, (_WithSparse, kind), {})


def _on_registration(parent: torch.nn.Module, name: str, module: torch.nn.Module | None) -> None:
    """Called by torch when ``module`` becomes a part of ``parent``."""
    if not isinstance(parent, DistributedDataParallel) or name != "module" or module is None:
        return
    ignored = parent.parameters_to_ignore
    tensors = [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]
    sparse = {n: S for n, S in tensors if isinstance(S, SparseTensor) and n not in ignored}
    if not sparse or isinstance(parent, _WithSparse):
        return
    ignored.update(sparse, (f".{name}" for name in sparse))  # torch has a dot before those of the outermost
    once: dict[int, tuple[str, SparseTensor]] = {}
    for path, tensor in sparse.items():
        once.setdefault(id(tensor), (path, tensor))
    parent.__class__ = _kind(type(parent))
    parent._begin(dict(once.values()))  # type: ignore[operator]


def install() -> None:
    """Serve all modules that are wrapped from now on."""
    register_module_module_registration_hook(_on_registration)


# between processes -----------------------------------------------------------------------------------


def _listener(whole: weakref.ref[Any], name: str) -> Callable[[torch.Tensor], None]:
    def arrived(parameter: torch.Tensor) -> None:
        found = whole()
        if found is not None and found._is_expecting:
            found._arrived.add(name)
            found._queue()

    return arrived


def _queuer(whole: weakref.ref[Any]) -> Callable[[torch.Tensor], None]:
    def begins(gradient: torch.Tensor) -> None:
        found = whole()
        if found is not None:
            found._queue()

    return begins


def _check_same(first: list[Any], theirs: list[Any], rank: int) -> None:
    """Refuse what differs between two processes, with the name of it."""
    if first == theirs:
        return
    for one, other in zip(first, theirs, strict=False):
        if one != other:
            facts = ("name", "format", "shape", "number of entries", "dtype", "places")
            what = next(fact for fact, a, b in zip(facts, one, other, strict=True) if a != b)
            break
    else:
        one, what = max(first, theirs, key=len)[min(len(first), len(theirs))], "number of sparse tensors"
    raise CallError(f"{one[0]!r} has another {what} in process 0 than in process {rank}; {SAME_PLACES}")


def _seals_of(tensors: Iterable[SparseTensor]) -> list[int]:
    """Numbers whose maxima over all processes are the largest and the smallest seal of each tensor."""
    return [number for S in tensors for number in (seal_of(S.storage.pattern), -seal_of(S.storage.pattern))]


def _check_seals(tensors: dict[str, SparseTensor], told: list[int]) -> None:
    for name, largest, smallest in zip(tensors, told[::2], told[1::2], strict=True):
        if largest != -smallest:
            raise CallError(f"{name!r} has come to have other places in some processes; {SAME_PLACES}")


def _all_max(numbers: list[int], tensors: Iterable[SparseTensor], group: Any) -> list[int]:
    """The largest of each number over all processes, sent from where the tensors are."""
    device = next((S.storage.device for S in tensors), HOST)
    found = torch.tensor(numbers, dtype=torch.int64, device=device)
    dist.all_reduce(found, dist.ReduceOp.MAX, group=group)
    told: list[int] = found.tolist()
    return told


def _real(values: torch.Tensor) -> torch.Tensor:
    """Values as collectives take them, in the same memory."""
    return torch.view_as_real(values) if values.is_complex() else values


def _send(tensor: SparseTensor, group: Any) -> None:
    """Give all processes the values of the first one, in place."""
    values = tensor.storage.values.detach()
    if values.numel():
        dist.broadcast(_real(values), dist.get_global_rank(group, 0), group=group)
        torch.autograd.graph.increment_version(tensor)


def _average(parameters: list[SparseTensor], group: Any) -> None:
    """Write the mean over all processes to the gradients of parameters of one dtype, in one message."""
    own = []
    for parameter in parameters:
        gradient, pattern = parameter.grad, parameter.storage.pattern
        if gradient is None:
            own.append(parameter.storage.values.new_zeros(pattern.size))
        else:
            own.append(values_at(gradient.detach(), pattern).detach())
    message = own[0] if len(own) == 1 else torch.cat(own)
    if message.numel():
        message.div_(group.size())
        dist.all_reduce(_real(message), group=group)
    for parameter, values in zip(parameters, message.split([len(one) for one in own]), strict=True):
        _write(parameter, values)


def _write(parameter: SparseTensor, values: torch.Tensor) -> None:
    """Make ``values`` those of the gradient, in place where it has one at the places of the parameter."""
    gradient, pattern = parameter.grad, parameter.storage.pattern
    if isinstance(gradient, SparseTensor) and gradient.storage.pattern is pattern:
        gradient.storage.values.detach().copy_(values)
        torch.autograd.graph.increment_version(gradient)
    else:
        parameter.grad = with_values(parameter, values.clone())


def _version(tensor: SparseTensor) -> tuple[torch.Tensor, int]:
    values = tensor.storage.values
    return values, values._version


def _is_same(now: tuple[torch.Tensor, int], before: tuple[torch.Tensor, int]) -> bool:
    return now[0] is before[0] and now[1] == before[1]

"""Training on sharded rows: means over all ranks, dropout by global rows, and replicated weights."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from scorch._src.devices import HOST
from scorch._src.distributed.build import group_of
from scorch._src.distributed.communication.agreement import compare
from scorch._src.distributed.communication.collectives import Group, gather_numbers, size_of
from scorch._src.distributed.communication.replicate import sum_over
from scorch._src.distributed.sums import sum_processes
from scorch._src.name_hints import suggests_keywords
from scorch._src.tensor.create.check import check_tensor
from scorch.errors import OperandError, add_note

Tensor = torch.Tensor
TIMEOUT = datetime.timedelta(minutes=5)


@suggests_keywords
def init(device_type: str | None = None, timeout: datetime.timedelta = TIMEOUT) -> Any:
    """Initialize the process group of ``torchrun`` and return the mesh of all ranks.

    Args:
        device_type: ``"cpu"`` or ``"cuda"``; by default, the accelerator of this machine unless the backend
            is gloo.
        timeout: how long an exchange waits for a late rank before all ranks raise ``CommunicationError``.

    Returns:
        A 1-D ``DeviceMesh``.

    Raises:
        ValueError: the process was not started by ``torchrun``.

    Example::

        mesh = sd.init()  # in a script started by torchrun
        A = sd.shard(S, mesh)
    """
    if not dist.is_initialized():
        _init_process_group(timeout)
    if device_type is None:
        accelerator = (
            torch.accelerator.current_accelerator(check_available=True)
            if dist.get_backend() != dist.Backend.GLOO
            else None
        )
        device_type = (accelerator or HOST).type
    return dist.init_device_mesh(device_type, (dist.get_world_size(),))


def _init_process_group(timeout: datetime.timedelta) -> None:
    try:
        dist.init_process_group(timeout=timeout)
    except ValueError as error:
        if "RANK" not in os.environ:
            add_note(
                error,
                "Start the script with torchrun, which sets these variables, for example "
                "torchrun --nproc-per-node 2 job.py. A single process needs no init().",
            )
        raise


@suggests_keywords
def mean(rows: Tensor, mesh: Any = None) -> Tensor:
    """Return the mean over the rows of all ranks, such as a loss per row, on every rank.

    Each rank calls ``backward`` on it; the gradient is that of the mean over all rows.

    Args:
        rows: this rank's rows.
        mesh: the mesh or process group; all ranks by default.

    Returns:
        The mean, a scalar.

    Raises:
        CommunicationError: a rank is lost.

    Example:

        >>> import torch, scorch.distributed as sd
        >>> sd.mean(torch.tensor([1.0, 3.0]))  # one process
        tensor(2.)
    """
    check_tensor("rows", rows)
    group = group_of(mesh)
    count = sum(count for (count,) in gather_numbers([rows.numel()], group, rows))
    return sum_processes(rows.sum(), group) / count


# weights ---------------------------------------------------------------------------------------------


def replicate(module: torch.nn.Module, mesh: Any = None, **options: Any) -> DistributedDataParallel:
    """Wrap a module whose weights are replicated in ``DistributedDataParallel``, summing gradients.

    Each rank computes the part of a gradient that comes from its rows; the gradient is the sum of these, not
    the mean that ``DistributedDataParallel`` computes.

    Args:
        module: the module.
        mesh: the mesh or process group; all ranks by default.
        options: more arguments of ``DistributedDataParallel``.

    Returns:
        The ``DistributedDataParallel`` module.

    Raises:
        ValueError: there is no process group; call ``init`` first.

    Example::

        model = sd.replicate(torch.nn.Linear(16, 4))  # in a script started by torchrun
    """
    group = group_of(mesh)
    wrapped = DistributedDataParallel(module, process_group=group, **options)
    wrapped.register_comm_hook(group, lambda state, bucket: _sum_bucket(state, bucket))
    return wrapped


def _sum_bucket(group: Group, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    work = dist.all_reduce(bucket.buffer(), group=group, async_op=True)
    assert work is not None
    future: torch.futures.Future[Tensor] = work.get_future().then(lambda done: done.value()[0])
    return future


@suggests_keywords
def sum_gradients(parameters: Iterable[Tensor], mesh: Any = None) -> None:
    """Sum the gradients of replicated weights over all ranks, after ``backward``, in one exchange.

    A weight that has a gradient on some ranks only gets the sum of these on all of them.

    Args:
        parameters: the weights.
        mesh: the mesh or process group; all ranks by default.

    Raises:
        CommunicationError: a rank is lost.

    Example::

        loss.backward()
        sd.sum_gradients(model.parameters())
        optimizer.step()
    """
    if isinstance(parameters, torch.nn.Module):
        raise OperandError("sum_gradients expected the weights, but got a module; pass module.parameters()")
    group, weights = group_of(mesh), list(parameters)
    _add_missing_gradients(weights, group)
    found = [weight.grad for weight in weights if weight.grad is not None]
    for dtype in dict.fromkeys(grad.dtype for grad in found):
        same = [grad for grad in found if grad.dtype == dtype]
        total = sum_over(torch.cat([grad.reshape(-1) for grad in same]), group)
        for grad, part in zip(same, total.split([grad.numel() for grad in same]), strict=True):
            grad.copy_(part.reshape(grad.shape))


def _add_missing_gradients(weights: list[Tensor], group: Group) -> None:
    """Set the gradients to zero that only other ranks have."""
    if not weights or size_of(group) == 1:
        return
    device = weights[0].device
    kinds = [(tuple(weight.shape), weight.dtype) for weight in weights]
    compare(group, "sum_gradients", kinds, device, lambda found: f"weights of {found}")
    facts = gather_numbers([weight.grad is not None for weight in weights], group, weights[0])
    for weight, has_gradient in zip(weights, zip(*facts, strict=True), strict=True):
        if weight.grad is None and any(has_gradient):
            weight.grad = torch.zeros_like(weight)

"""Training on sharded rows: means over all processes, dropout by global rows, and weights that all have."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from scorch._src.devices import HOST
from scorch._src.distributed.build import group_of
from scorch._src.distributed.collectives import Group, gather_numbers, sum_over
from scorch._src.distributed.row_sharded import RowSharded
from scorch._src.distributed.sums import sum_processes
from scorch.errors import ArgumentError

Tensor = torch.Tensor
TIMEOUT = datetime.timedelta(minutes=5)


def init(device_type: str | None = None, timeout: datetime.timedelta = TIMEOUT) -> Any:
    """Join the processes that ``torchrun`` has started, and return the mesh of all of them.

    A process that is later than ``timeout`` at an exchange makes all others raise a ``CommunicationError``.
    """
    if not dist.is_initialized():
        dist.init_process_group(timeout=timeout)
    if device_type is None:
        accelerator = (
            torch.accelerator.current_accelerator() if dist.get_backend() != dist.Backend.GLOO else None
        )
        device_type = (accelerator or HOST).type
    return dist.init_device_mesh(device_type, (dist.get_world_size(),))


def mean(rows: Tensor, mesh: Any = None) -> Tensor:
    """Return the mean over the rows of all processes, such as a loss of each row, in every process.

    Its gradient is that of the mean over all rows: each process calls ``backward`` on it.
    """
    group = group_of(mesh)
    count = sum(count for (count,) in gather_numbers([rows.numel()], group, rows))
    return sum_processes(rows.sum(), group) / count


def dropout(x: Tensor, p: float, like: RowSharded, seed: int, training: bool = True) -> Tensor:
    """Drop features of this process's rows: the same ones for any number of processes.

    Which are dropped depends on ``seed``, on the row over all processes and on the column alone.
    """
    if not 0 <= p <= 1:
        raise ArgumentError(f"p must be a probability between 0 and 1, not {p}")
    if not training or not p:
        return x
    like.rows.check("x", x)
    rows = torch.arange(like.rows.begin, like.rows.end, device=x.device) if like.order is None else like.order
    width = x[:1].numel() if len(x) else 1
    places = rows.to(x.device)[:, None] * width + torch.arange(width, device=x.device)
    kept = (_uniform(places, seed) >= p).reshape(x.shape)
    return torch.where(kept, x / (1 - p) if p < 1 else x, 0.0)


def _uniform(places: Tensor, seed: int) -> Tensor:
    """Return a number between 0 and 1 for each place, by the mixing function of SplitMix64."""
    z = places * -7046029254386353131 + (seed * 6364136223846793005 + 1442695040888963407) % (1 << 63)
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        z = (z ^ _shift_right(z, shift)) * factor
    return _shift_right(z ^ _shift_right(z, 31), 11).to(torch.float64) * 2.0**-53


def _shift_right(z: Tensor, bits: int) -> Tensor:
    """Shift as if integers had no sign."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


# weights ---------------------------------------------------------------------------------------------


def replicate(module: torch.nn.Module, mesh: Any = None, **options: Any) -> DistributedDataParallel:
    """Wrap a module whose weights all processes have in ``DistributedDataParallel``, with sums of gradients.

    Each process finds the part of a gradient that its rows have; the gradient is the sum of these, not the
    mean that ``DistributedDataParallel`` takes of losses of several batches.
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


def sum_gradients(parameters: Iterable[Tensor], mesh: Any = None) -> None:
    """Add up the gradients of weights that all processes have, after ``backward``, in one exchange."""
    group = group_of(mesh)
    found = [parameter.grad for parameter in parameters if parameter.grad is not None]
    for dtype in dict.fromkeys(grad.dtype for grad in found):
        same = [grad for grad in found if grad.dtype == dtype]
        total = sum_over(torch.cat([grad.reshape(-1) for grad in same]), group)
        for grad, part in zip(same, total.split([grad.numel() for grad in same]), strict=True):
            grad.copy_(part.reshape(grad.shape))

"""Made by tests/make_stubs.py for torch 2.13.0; do not edit."""

from torch.nn.parallel import (
    DataParallel as DataParallel,
    DistributedDataParallel as DistributedDataParallel,
    DistributedDataParallelCPU as DistributedDataParallelCPU,
    comm as comm,
    data_parallel as data_parallel,
    distributed as distributed,
    gather as gather,
    parallel_apply as parallel_apply,
    replicate as replicate,
    scatter as scatter,
    scatter_gather as scatter_gather,
)

"""``scorch.distributed``: all of ``torch.distributed``, and sparse tensors that are sharded over ranks.

>>> import torch, scorch, scorch.distributed as sd
>>> S = scorch.from_torch(torch.tensor([[0., 2.], [3., 0.]]), format="csr")
>>> A = sd.shard(S)  # over all ranks of the process group, here only this one
>>> A @ A.columns_of(torch.ones(2, 1))
tensor([[2.],
        [3.]])
"""

from scorch._src.distributed.algorithms.choose import with_algorithm
from scorch._src.distributed.arithmetic import RowSharded
from scorch._src.distributed.build import shard, shard_rows
from scorch._src.distributed.checkpoint.load import load
from scorch._src.distributed.checkpoint.save import dense_rows, optimizer_state, save
from scorch._src.distributed.communication.collectives import Traffic, count_bytes
from scorch._src.distributed.cost_model.plan import Plan
from scorch._src.distributed.cuts import cuts
from scorch._src.distributed.dropout import dropout
from scorch._src.distributed.dtensor import from_dtensor, to_dtensor
from scorch._src.distributed.load_rows import load_rows
from scorch._src.distributed.neighbours import add_loops, normalize
from scorch._src.distributed.partition.partition import partition
from scorch._src.distributed.products import matmul
from scorch._src.distributed.reductions import softmax
from scorch._src.distributed.repartition import repartition
from scorch._src.distributed.statements import einsum, evaluate
from scorch._src.distributed.sums import spread, sum_processes
from scorch._src.distributed.training import init, mean, replicate, sum_gradients
from scorch.errors import CommunicationError

__all__ = [
    "CommunicationError",
    "Plan",
    "RowSharded",
    "Traffic",
    "add_loops",
    "count_bytes",
    "cuts",
    "dense_rows",
    "dropout",
    "einsum",
    "evaluate",
    "from_dtensor",
    "init",
    "load",
    "load_rows",
    "matmul",
    "mean",
    "normalize",
    "optimizer_state",
    "partition",
    "repartition",
    "replicate",
    "save",
    "shard",
    "shard_rows",
    "softmax",
    "spread",
    "sum_gradients",
    "sum_processes",
    "to_dtensor",
    "with_algorithm",
]

"""Made by tests/make_stubs.py for torch 2.13.0; do not edit."""

from torch.distributed import (
    AllToAllOptions as AllToAllOptions,
    AllreduceCoalescedOptions as AllreduceCoalescedOptions,
    AllreduceOptions as AllreduceOptions,
    Backend as Backend,
    BackendConfig as BackendConfig,
    BarrierOptions as BarrierOptions,
    BroadcastOptions as BroadcastOptions,
    BuiltinCommHookType as BuiltinCommHookType,
    DebugLevel as DebugLevel,
    DeviceMesh as DeviceMesh,
    DistBackendError as DistBackendError,
    DistError as DistError,
    DistNetworkError as DistNetworkError,
    DistStoreError as DistStoreError,
    FileStore as FileStore,
    GatherOptions as GatherOptions,
    GradBucket as GradBucket,
    GroupMember as GroupMember,
    GroupName as GroupName,
    HashStore as HashStore,
    Logger as Logger,
    P2POp as P2POp,
    PrefixStore as PrefixStore,
    ProcessGroup as ProcessGroup,
    ProcessGroupGloo as ProcessGroupGloo,
    QueueEmptyError as QueueEmptyError,
    ReduceOp as ReduceOp,
    ReduceOptions as ReduceOptions,
    ReduceScatterOptions as ReduceScatterOptions,
    Reducer as Reducer,
    ScatterOptions as ScatterOptions,
    Store as Store,
    TCPStore as TCPStore,
    Work as Work,
    algorithms as algorithms,
    all_gather as all_gather,
    all_gather_coalesced as all_gather_coalesced,
    all_gather_into_tensor as all_gather_into_tensor,
    all_gather_object as all_gather_object,
    all_gather_single as all_gather_single,
    all_reduce as all_reduce,
    all_reduce_coalesced as all_reduce_coalesced,
    all_to_all as all_to_all,
    all_to_all_single as all_to_all_single,
    autograd as autograd,
    barrier as barrier,
    batch_isend_irecv as batch_isend_irecv,
    breakpoint as breakpoint,
    broadcast as broadcast,
    broadcast_object_list as broadcast_object_list,
    c10d_logger as c10d_logger,
    config as config,
    constants as constants,
    default_pg_timeout as default_pg_timeout,
    destroy_process_group as destroy_process_group,
    device_mesh as device_mesh,
    distributed_c10d as distributed_c10d,
    gather as gather,
    gather_object as gather_object,
    get_backend as get_backend,
    get_backend_config as get_backend_config,
    get_debug_level as get_debug_level,
    get_default_backend_for_device as get_default_backend_for_device,
    get_global_rank as get_global_rank,
    get_group_rank as get_group_rank,
    get_node_local_rank as get_node_local_rank,
    get_pg_count as get_pg_count,
    get_process_group_ranks as get_process_group_ranks,
    get_rank as get_rank,
    get_world_size as get_world_size,
    group as group,
    init_device_mesh as init_device_mesh,
    init_process_group as init_process_group,
    irecv as irecv,
    is_available as is_available,
    is_backend_available as is_backend_available,
    is_gloo_available as is_gloo_available,
    is_initialized as is_initialized,
    is_mpi_available as is_mpi_available,
    is_nccl_available as is_nccl_available,
    is_torchelastic_launched as is_torchelastic_launched,
    is_ucc_available as is_ucc_available,
    is_xccl_available as is_xccl_available,
    isend as isend,
    logging_handlers as logging_handlers,
    monitored_barrier as monitored_barrier,
    new_group as new_group,
    new_subgroups as new_subgroups,
    new_subgroups_by_enumeration as new_subgroups_by_enumeration,
    record_comm as record_comm,
    recv as recv,
    recv_object_list as recv_object_list,
    reduce as reduce,
    reduce_scatter as reduce_scatter,
    reduce_scatter_single as reduce_scatter_single,
    reduce_scatter_tensor as reduce_scatter_tensor,
    register_rendezvous_handler as register_rendezvous_handler,
    remote_device as remote_device,
    rendezvous as rendezvous,
    rpc as rpc,
    scatter as scatter,
    scatter_object_list as scatter_object_list,
    send as send,
    send_object_list as send_object_list,
    set_debug_level as set_debug_level,
    set_debug_level_from_env as set_debug_level_from_env,
    shrink_group as shrink_group,
    split_group as split_group,
    supports_complex as supports_complex,
    torch as torch,
    utils as utils,
)
from scorch.errors import CommunicationError as CommunicationError
from scorch._src.distributed.cost_model.plan import Plan as Plan
from scorch._src.distributed.row_sharded import RowSharded as RowSharded
from scorch._src.distributed.communication.collectives import Traffic as Traffic
from scorch._src.distributed.neighbours import add_loops as add_loops
from scorch._src.distributed.communication.collectives import count_bytes as count_bytes
from scorch._src.distributed.cuts import cuts as cuts
from scorch._src.distributed.checkpoint.save import dense_rows as dense_rows
from scorch._src.distributed.dropout import dropout as dropout
from scorch._src.distributed.statements import einsum as einsum
from scorch._src.distributed.statements import evaluate as evaluate
from scorch._src.distributed.dtensor import from_dtensor as from_dtensor
from scorch._src.distributed.training import init as init
from scorch._src.distributed.checkpoint.load import load as load
from scorch._src.distributed.load_rows import load_rows as load_rows
from scorch._src.distributed.products import matmul as matmul
from scorch._src.distributed.training import mean as mean
from scorch._src.distributed.neighbours import normalize as normalize
from scorch._src.distributed.checkpoint.save import optimizer_state as optimizer_state
from scorch._src.distributed.partition.partition import partition as partition
from scorch._src.distributed.repartition import repartition as repartition
from scorch._src.distributed.training import replicate as replicate
from scorch._src.distributed.checkpoint.save import save as save
from scorch._src.distributed.build import shard as shard
from scorch._src.distributed.build import shard_rows as shard_rows
from scorch._src.distributed.reductions import softmax as softmax
from scorch._src.distributed.sums import spread as spread
from scorch._src.distributed.training import sum_gradients as sum_gradients
from scorch._src.distributed.sums import sum_processes as sum_processes
from scorch._src.distributed.dtensor import to_dtensor as to_dtensor
from scorch._src.distributed.algorithms.choose import with_algorithm as with_algorithm

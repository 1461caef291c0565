"""Made by tests/make_stubs.py for torch 2.13.0; do not edit."""

from torch.multiprocessing import (
    ENV_VAR_PARALLEL_START as ENV_VAR_PARALLEL_START,
    ProcessContext as ProcessContext,
    ProcessExitedException as ProcessExitedException,
    ProcessRaisedException as ProcessRaisedException,
    SpawnContext as SpawnContext,
    get_all_sharing_strategies as get_all_sharing_strategies,
    get_sharing_strategy as get_sharing_strategy,
    init_reductions as init_reductions,
    reductions as reductions,
    set_sharing_strategy as set_sharing_strategy,
    spawn as spawn,
    start_processes as start_processes,
    torch as torch,
)

"""Made by tests/make_stubs.py for torch 2.13.0; do not edit."""

from typing import Any

from torch.utils.checkpoint import (
    CheckpointError as CheckpointError,
    CheckpointFunction as CheckpointFunction,
    CheckpointPolicy as CheckpointPolicy,
    DefaultDeviceType as DefaultDeviceType,
    GraphExecGroup as GraphExecGroup,
    LoggingTensorMode as LoggingTensorMode,
    SAC_IGNORED_OPS as SAC_IGNORED_OPS,
    SavedTensor as SavedTensor,
    SelectiveCheckpointContext as SelectiveCheckpointContext,
    TorchDispatchMode as TorchDispatchMode,
    capture_logs as capture_logs,
    check_backward_validity as check_backward_validity,
    checkpoint as checkpoint,
    checkpoint_sequential as checkpoint_sequential,
    create_selective_checkpoint_contexts as create_selective_checkpoint_contexts,
    detach_variable as detach_variable,
    fx_traceback as fx_traceback,
    get_device_states as get_device_states,
    noop_context_fn as noop_context_fn,
    set_checkpoint_debug_enabled as set_checkpoint_debug_enabled,
    set_checkpoint_early_stop as set_checkpoint_early_stop,
    set_device_states as set_device_states,
    torch as torch,
    tree_map as tree_map,
)

Text: Any

"""Made by tests/make_stubs.py for torch 2.13.0; do not edit."""

from torch.profiler import (
    DeviceType as DeviceType,
    ExecutionTraceObserver as ExecutionTraceObserver,
    KinetoStepTracker as KinetoStepTracker,
    Optimizer as Optimizer,
    ProfilerAction as ProfilerAction,
    ProfilerActivity as ProfilerActivity,
    RecordScope as RecordScope,
    is_fbcode as is_fbcode,
    itt as itt,
    kineto_available as kineto_available,
    profile as profile,
    profiler as profiler,
    record_function as record_function,
    register_optimizer_step_post_hook as register_optimizer_step_post_hook,
    schedule as schedule,
    supported_activities as supported_activities,
    tensorboard_trace_handler as tensorboard_trace_handler,
)

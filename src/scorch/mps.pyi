"""Made by tests/make_stubs.py for torch 2.13.0; do not edit."""

from torch.mps import (
    Event as Event,
    Tensor as Tensor,
    compile_shader as compile_shader,
    current_allocated_memory as current_allocated_memory,
    device_count as device_count,
    driver_allocated_memory as driver_allocated_memory,
    empty_cache as empty_cache,
    event as event,
    get_rng_state as get_rng_state,
    is_available as is_available,
    load_metallib as load_metallib,
    manual_seed as manual_seed,
    profiler as profiler,
    recommended_max_memory as recommended_max_memory,
    seed as seed,
    set_per_process_memory_fraction as set_per_process_memory_fraction,
    set_rng_state as set_rng_state,
    synchronize as synchronize,
    torch as torch,
)

"""Made by tests/make_stubs.py for torch 2.13.0; do not edit."""

from torch.utils import (
    ThroughputBenchmark as ThroughputBenchmark,
    backcompat as backcompat,
    backend_registration as backend_registration,
    cmake_prefix_path as cmake_prefix_path,
    collect_env as collect_env,
    cpp_backtrace as cpp_backtrace,
    deterministic as deterministic,
    generate_methods_for_privateuse1_backend as generate_methods_for_privateuse1_backend,
    get_cpp_backtrace as get_cpp_backtrace,
    hooks as hooks,
    rename_privateuse1_backend as rename_privateuse1_backend,
    set_module as set_module,
    swap_tensors as swap_tensors,
    throughput_benchmark as throughput_benchmark,
    torch as torch,
    weak as weak,
)
from scorch.utils import benchmark as benchmark
from scorch.utils import checkpoint as checkpoint
from scorch.utils import data as data
from scorch.utils import dlpack as dlpack

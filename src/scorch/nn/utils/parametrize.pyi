"""Made by tests/make_stubs.py for torch 2.13.0; do not edit."""

from torch.nn.utils.parametrize import (
    Module as Module,
    ModuleDict as ModuleDict,
    ModuleList as ModuleList,
    OpaqueBase as OpaqueBase,
    Parameter as Parameter,
    ParametrizationList as ParametrizationList,
    Tensor as Tensor,
    cached as cached,
    get_swap_module_params_on_conversion as get_swap_module_params_on_conversion,
    is_opaque_reference_type as is_opaque_reference_type,
    is_parametrized as is_parametrized,
    is_traceable_wrapper_subclass as is_traceable_wrapper_subclass,
    register_parametrization as register_parametrization,
    remove_parametrizations as remove_parametrizations,
    torch as torch,
    transfer_parametrizations_and_params as transfer_parametrizations_and_params,
    type_before_parametrizations as type_before_parametrizations,
)

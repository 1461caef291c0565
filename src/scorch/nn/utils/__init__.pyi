"""Made by tests/make_stubs.py for torch 2.13.0; do not edit."""

from torch.nn.utils import (
    clip_grad as clip_grad,
    clip_grad_norm as clip_grad_norm,
    clip_grad_norm_ as clip_grad_norm_,
    clip_grad_value_ as clip_grad_value_,
    clip_grads_with_norm_ as clip_grads_with_norm_,
    convert_conv2d_weight_memory_format as convert_conv2d_weight_memory_format,
    convert_conv3d_weight_memory_format as convert_conv3d_weight_memory_format,
    convert_parameters as convert_parameters,
    fuse_conv_bn_eval as fuse_conv_bn_eval,
    fuse_conv_bn_weights as fuse_conv_bn_weights,
    fuse_linear_bn_eval as fuse_linear_bn_eval,
    fuse_linear_bn_weights as fuse_linear_bn_weights,
    fusion as fusion,
    get_total_norm as get_total_norm,
    init as init,
    memory_format as memory_format,
    parameters_to_vector as parameters_to_vector,
    remove_spectral_norm as remove_spectral_norm,
    remove_weight_norm as remove_weight_norm,
    skip_init as skip_init,
    spectral_norm as spectral_norm,
    stateless as stateless,
    vector_to_parameters as vector_to_parameters,
    weight_norm as weight_norm,
)
from scorch.nn.utils import parametrizations as parametrizations
from scorch.nn.utils import parametrize as parametrize
from scorch.nn.utils import prune as prune
from scorch.nn.utils import rnn as rnn

"""Made by tests/make_stubs.py for torch 2.13.0; do not edit."""

from torch.optim.swa_utils import (
    AveragedModel as AveragedModel,
    LRScheduler as LRScheduler,
    Module as Module,
    SWALR as SWALR,
    Tensor as Tensor,
    get_ema_avg_fn as get_ema_avg_fn,
    get_ema_multi_avg_fn as get_ema_multi_avg_fn,
    get_swa_avg_fn as get_swa_avg_fn,
    get_swa_multi_avg_fn as get_swa_multi_avg_fn,
    torch as torch,
    update_bn as update_bn,
)

"""Made by tests/make_stubs.py for torch 2.13.0; do not edit."""

from torch.optim import (
    ASGD as ASGD,
    Adadelta as Adadelta,
    Adafactor as Adafactor,
    Adagrad as Adagrad,
    Adam as Adam,
    AdamW as AdamW,
    Adamax as Adamax,
    LBFGS as LBFGS,
    Muon as Muon,
    NAdam as NAdam,
    Optimizer as Optimizer,
    RAdam as RAdam,
    RMSprop as RMSprop,
    Rprop as Rprop,
    SGD as SGD,
    SparseAdam as SparseAdam,
    swap_in_optimizer_params_and_state as swap_in_optimizer_params_and_state,
)
from scorch.optim import lr_scheduler as lr_scheduler
from scorch.optim import swa_utils as swa_utils

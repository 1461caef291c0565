"""Made by tests/make_stubs.py for torch 2.13.0; do not edit."""

from torch.optim.lr_scheduler import (
    ChainedScheduler as ChainedScheduler,
    ConstantLR as ConstantLR,
    CosineAnnealingLR as CosineAnnealingLR,
    CosineAnnealingWarmRestarts as CosineAnnealingWarmRestarts,
    CyclicLR as CyclicLR,
    EPOCH_DEPRECATION_WARNING as EPOCH_DEPRECATION_WARNING,
    ExponentialLR as ExponentialLR,
    LRScheduler as LRScheduler,
    LambdaLR as LambdaLR,
    LinearLR as LinearLR,
    MultiStepLR as MultiStepLR,
    MultiplicativeLR as MultiplicativeLR,
    OneCycleLR as OneCycleLR,
    Optimizer as Optimizer,
    PolynomialLR as PolynomialLR,
    ReduceLROnPlateau as ReduceLROnPlateau,
    SequentialLR as SequentialLR,
    StepLR as StepLR,
    Tensor as Tensor,
    inf as inf,
)

"""Made by tests/make_stubs.py for torch 2.13.0; do not edit."""

from torch.amp import (
    GradScaler as GradScaler,
    autocast as autocast,
    autocast_mode as autocast_mode,
    custom_bwd as custom_bwd,
    custom_fwd as custom_fwd,
    grad_scaler as grad_scaler,
    is_autocast_available as is_autocast_available,
)

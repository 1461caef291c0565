"""``scorch.autograd``: all of ``torch.autograd``, with checks of gradients that take sparse tensors."""

from scorch.autograd.check import gradcheck, gradgradcheck

__all__ = ["gradcheck", "gradgradcheck"]

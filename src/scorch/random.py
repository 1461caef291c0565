"""``scorch.random``: all of ``torch.random``, which is about seeds; ``scorch.rand`` makes random tensors."""

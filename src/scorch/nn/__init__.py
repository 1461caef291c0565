"""``scorch.nn``: all of ``torch.nn``, and layers that have sparse weights or work on sparse tensors."""

__all__: list[str] = []

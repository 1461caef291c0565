"""``scorch.utils``: all of ``torch.utils``, and datasets of sparse rows in ``scorch.utils.data``."""

__all__: list[str] = []

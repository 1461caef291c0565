"""``python -m tools.what_works``: run the PyTorch operators on sparse tensors in every format and dtype."""

"""PyTorch functions on sparse tensors."""

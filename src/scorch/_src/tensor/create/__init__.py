"""Make sparse tensors."""

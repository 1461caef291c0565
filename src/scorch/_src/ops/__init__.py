"""torch's functions on sparse tensors."""

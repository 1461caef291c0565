"""Print and draw sparse tensors."""

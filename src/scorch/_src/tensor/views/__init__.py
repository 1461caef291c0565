"""Views of sparse tensors: what they are linked to, and writes to them."""

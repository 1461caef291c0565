"""``SparseTensor``: what users hold, and how PyTorch functions and autograd reach it."""

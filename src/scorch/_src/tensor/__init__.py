"""``SparseTensor``: what users hold, and how torch's functions and autograd reach it."""

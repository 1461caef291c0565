"""The predicted communication, memory and time of products, from a sparsity pattern or from degrees."""

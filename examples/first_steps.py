"""
First steps
===========

Create sparse tensors, call PyTorch functions on them, multiply them with einsum, and compute a gradient.
Ends with a table of results, checked against dense PyTorch.

Run it with ``python examples/first_steps.py``.
"""

import argparse

import torch

import scorch

parser = argparse.ArgumentParser(description="First steps with sparse tensors")
parser.add_argument("--quick", action="store_true", help="a smaller matrix")
options = parser.parse_args()
torch.manual_seed(0)

# %%
# Create a sparse tensor
# ----------------------
# From a dense tensor, from coordinates, or at random. A sparse tensor stores only its nonzeros; the format
# determines how. ``csr`` stores them row by row.

ratings = torch.tensor([[5.0, 0.0, 0.0, 1.0], [0.0, 3.0, 0.0, 0.0], [4.0, 0.0, 0.0, 2.0]])
S = scorch.from_torch(ratings, format="csr")
print(scorch.draw(S))

n = 500 if options.quick else 4000
A = scorch.rand(n, n, density=0.01, format="csr")  # without building a dense tensor
B = scorch.sparse_coo_tensor(
    torch.randint(n, (2, 5 * n)), torch.rand(5 * n), (n, n)
)  # row and column indices
x = torch.rand(n, 16)

# %%
# Call PyTorch functions
# ----------------------
# A ``SparseTensor`` is a ``torch.Tensor``. Zero-preserving functions keep it sparse, sparse times dense is
# dense, sparse times sparse is sparse. You can mix formats freely: ``A`` is csr, ``B`` is coo.

full_a, full_b = A.to_dense(), B.to_dense()
results = {
    "torch.sqrt(A)": (torch.sqrt(A), torch.sqrt(full_a)),
    "A * B": (A * B, full_a * full_b),
    "A + B": (A + B, full_a + full_b),
    "A.sum(1)": (A.sum(1), full_a.sum(1)),
    "A[:100, ::2]": (A[:100, ::2], full_a[:100, ::2]),
    "A @ x": (A @ x, full_a @ x),
    "A @ B": (A @ B, full_a @ full_b),
}

# %%
# Einsum
# ------
# Any sum of products over indices in one call, here "for each row of A, its weighted overlap with the same
# row of B". Scorch generates a kernel that visits only the nonzeros.

weights = torch.rand(n)
expression = "ij,ij,j->i"
results[f'einsum("{expression}")'] = (
    scorch.einsum(expression, A, B, weights),
    torch.einsum(expression, full_a, full_b, weights),
)

# %%
# A gradient
# ----------
# The gradient of a sparse tensor has the same sparsity pattern: it is as small as the tensor, and PyTorch's
# optimizers can use it. Here we fit the values of ``W`` so that ``W @ x`` equals ``A @ x``.

W = (0 * A).requires_grad_()  # the sparsity pattern of A, all values zero
target = A @ x
loss = ((W @ x - target) ** 2).mean()
loss.backward()
everywhere = (-2 / target.numel()) * (target @ x.T)  # what dense PyTorch computes: n x n numbers
results["W.grad"] = (W.grad, everywhere * (full_a != 0))

# %%
# Results
# -------
# ``stored`` is the number of stored elements of the result.

print(f"\n{'call':24} {'result':>8} {'stored':>12} {'of':>12}   same as dense")
for call, (result, wanted) in results.items():
    is_sparse = isinstance(result, scorch.SparseTensor)
    values = result.to_dense() if is_sparse else result
    torch.testing.assert_close(values, wanted, rtol=1e-4, atol=1e-5)
    kind, stored = (str(result.format), result.nnz) if is_sparse else ("dense", result.numel())
    print(f"{call:24} {kind:>8} {stored:>12,} {wanted.numel():>12,}   yes")

"""Made by tests/make_stubs.py for torch 2.13.0; do not edit."""

from typing import Any

from torch.sparse import (
    DType as DType,
    SparseSemiStructuredTensor as SparseSemiStructuredTensor,
    SparseSemiStructuredTensorCUSPARSELT as SparseSemiStructuredTensorCUSPARSELT,
    SparseSemiStructuredTensorCUTLASS as SparseSemiStructuredTensorCUTLASS,
    Tensor as Tensor,
    addmm as addmm,
    as_sparse_gradcheck as as_sparse_gradcheck,
    check_sparse_tensor_invariants as check_sparse_tensor_invariants,
    log_softmax as log_softmax,
    mm as mm,
    sampled_addmm as sampled_addmm,
    semi_structured as semi_structured,
    softmax as softmax,
    spsolve as spsolve,
    sum as sum,
    to_sparse_semi_structured as to_sparse_semi_structured,
    torch as torch,
)

BFloat16Tensor: Any
ByteTensor: Any
CharTensor: Any
DoubleTensor: Any
FloatTensor: Any
HalfTensor: Any
IntTensor: Any
LongTensor: Any
ShortTensor: Any
from scorch._src.ops.torch_sparse import spdiags as spdiags

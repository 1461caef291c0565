"""Made by tests/make_stubs.py for torch 2.13.0; do not edit."""

from collections.abc import Iterable
from typing import Any, overload

import torch
from torch import Tensor as Tensor

__version__: str

from scorch._src.explain.report import Explanation as Explanation
from scorch._src.formats.format import Format as Format
from scorch._src.explain.model_report import ModelReport as ModelReport
from scorch._src.tensor.sparse_tensor import SparseTensor as SparseTensor
@overload
def arange(*bounds: Any, format: None = None, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> Tensor: ...
@overload
def arange(*bounds: Any, format: str | Format, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> SparseTensor: ...
@overload
def as_tensor(data: Any, *, format: None = None, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> Tensor: ...
@overload
def as_tensor(data: Any, *, format: str | Format, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> SparseTensor: ...
@overload
def asarray(obj: Any, *, format: None = None, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> Tensor: ...
@overload
def asarray(obj: Any, *, format: str | Format, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> SparseTensor: ...
@overload
def bernoulli(input: Tensor, *args: Any, format: None = None, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> Tensor: ...
@overload
def bernoulli(input: Tensor, *args: Any, format: str | Format, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> SparseTensor: ...
from scorch._src.bounded import clear_plans as clear_plans
from scorch._src.compile.api import compile as compile
@overload
def diag(input: Tensor, diagonal: builtins.int = 0, *, format: None = None, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> Tensor: ...
@overload
def diag(input: Tensor, diagonal: builtins.int = 0, *, format: str | Format, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> SparseTensor: ...
@overload
def diag_embed(input: Tensor, offset: builtins.int = 0, dim1: builtins.int = -2, dim2: builtins.int = -1, *, format: None = None, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> Tensor: ...
@overload
def diag_embed(input: Tensor, offset: builtins.int = 0, dim1: builtins.int = -2, dim2: builtins.int = -1, *, format: str | Format, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> SparseTensor: ...
@overload
def diagflat(input: Tensor, offset: builtins.int = 0, *, format: None = None, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> Tensor: ...
@overload
def diagflat(input: Tensor, offset: builtins.int = 0, *, format: str | Format, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> SparseTensor: ...
from scorch._src.explain.doctor import doctor as doctor
from scorch._src.tensor.show.draw import draw as draw
from scorch._src.statements.einsum import einsum as einsum
@overload
def empty(*size: Any, format: None = None, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> Tensor: ...
@overload
def empty(*size: Any, format: str | Format, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> SparseTensor: ...
@overload
def empty_like(input: Tensor, *, format: None = None, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> Tensor: ...
@overload
def empty_like(input: Tensor, *, format: str | Format, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> SparseTensor: ...
from scorch import errors as errors
from scorch._src.statements.evaluate import evaluate as evaluate
from scorch._src.explain.explain_statement import explain as explain
@overload
def eye(n: builtins.int, m: builtins.int | None = None, *, format: None = None, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> Tensor: ...
@overload
def eye(n: builtins.int, m: builtins.int | None = None, *, format: str | Format, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> SparseTensor: ...
def from_coordinates(coordinates: Any, values: Any, shape: Any = None, format: str | Format | None = None, name: str = 'indices') -> SparseTensor: ...
def from_edge_index(edge_index: Any, edge_weight: Any = None, size: Any = None, format: str | Format = 'coo') -> SparseTensor: ...
def from_networkx(graph: Any, weight: str | None = 'weight', format: str | Format = 'csr', nodes: Iterable[Any] | None = None, dtype: torch.dtype | None = None) -> SparseTensor: ...
@overload
def from_numpy(array: Any, *, format: None = None, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> Tensor: ...
@overload
def from_numpy(array: Any, *, format: str | Format, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> SparseTensor: ...
def from_scipy(m: Any, format: str | Format | None = None) -> SparseTensor: ...
def from_torch(t: torch.Tensor, format: str | Format | None = None) -> SparseTensor: ...
@overload
def full(size: Any, fill_value: Any, *, format: None = None, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> Tensor: ...
@overload
def full(size: Any, fill_value: Any, *, format: str | Format, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> SparseTensor: ...
@overload
def full_like(input: Tensor, fill_value: Any, *, format: None = None, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> Tensor: ...
@overload
def full_like(input: Tensor, fill_value: Any, *, format: str | Format, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> SparseTensor: ...
from scorch._src.nn.grad_topk import grad_topk as grad_topk
@overload
def linspace(start: Any, end: Any, steps: builtins.int, *, format: None = None, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> Tensor: ...
@overload
def linspace(start: Any, end: Any, steps: builtins.int, *, format: str | Format, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> SparseTensor: ...
from scorch._src.io.files import load as load
@overload
def logspace(start: Any, end: Any, steps: builtins.int, base: builtins.float = 10.0, *, format: None = None, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> Tensor: ...
@overload
def logspace(start: Any, end: Any, steps: builtins.int, base: builtins.float = 10.0, *, format: str | Format, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> SparseTensor: ...
@overload
def normal(mean: Any, std: Any = 1.0, size: Any = None, *, density: None = None, format: None = None, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> Tensor: ...
@overload
def normal(mean: Any, std: Any = 1.0, size: Any = None, *, density: builtins.float, format: str | Format | None = None, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> SparseTensor: ...
@overload
def normal(mean: Any, std: Any = 1.0, size: Any = None, *, density: None = None, format: str | Format, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> SparseTensor: ...
@overload
def ones(*size: Any, format: None = None, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> Tensor: ...
@overload
def ones(*size: Any, format: str | Format, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> SparseTensor: ...
@overload
def ones_like(input: Tensor, *, format: None = None, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> Tensor: ...
@overload
def ones_like(input: Tensor, *, format: str | Format, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> SparseTensor: ...
from scorch._src.bounded import plan_statistics as plan_statistics
@overload
def rand(*size: Any, density: None = None, format: None = None, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> Tensor: ...
@overload
def rand(*size: Any, density: builtins.float, format: str | Format | None = None, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> SparseTensor: ...
@overload
def rand(*size: Any, density: None = None, format: str | Format, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> SparseTensor: ...
@overload
def rand_like(input: Tensor, *, density: None = None, format: None = None, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> Tensor: ...
@overload
def rand_like(input: Tensor, *, density: builtins.float, format: str | Format | None = None, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> SparseTensor: ...
@overload
def rand_like(input: Tensor, *, density: None = None, format: str | Format, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> SparseTensor: ...
@overload
def randint(*bounds_and_size: Any, density: None = None, format: None = None, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> Tensor: ...
@overload
def randint(*bounds_and_size: Any, density: builtins.float, format: str | Format | None = None, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> SparseTensor: ...
@overload
def randint(*bounds_and_size: Any, density: None = None, format: str | Format, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> SparseTensor: ...
@overload
def randint_like(input: Tensor, *bounds: builtins.int, density: None = None, format: None = None, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> Tensor: ...
@overload
def randint_like(input: Tensor, *bounds: builtins.int, density: builtins.float, format: str | Format | None = None, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> SparseTensor: ...
@overload
def randint_like(input: Tensor, *bounds: builtins.int, density: None = None, format: str | Format, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> SparseTensor: ...
@overload
def randn(*size: Any, density: None = None, format: None = None, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> Tensor: ...
@overload
def randn(*size: Any, density: builtins.float, format: str | Format | None = None, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> SparseTensor: ...
@overload
def randn(*size: Any, density: None = None, format: str | Format, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> SparseTensor: ...
@overload
def randn_like(input: Tensor, *, density: None = None, format: None = None, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> Tensor: ...
@overload
def randn_like(input: Tensor, *, density: builtins.float, format: str | Format | None = None, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> SparseTensor: ...
@overload
def randn_like(input: Tensor, *, density: None = None, format: str | Format, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> SparseTensor: ...
@overload
def randperm(n: builtins.int, *, format: None = None, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> Tensor: ...
@overload
def randperm(n: builtins.int, *, format: str | Format, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> SparseTensor: ...
from scorch._src.ops.movement.rearrange import rearrange as rearrange
from scorch._src.backends.cpu.launch import release_memory as release_memory
from scorch._src.explain.model_report import report as report
from scorch._src.io.files import save as save
from scorch.settings import settings as settings
def sparse_bsc_tensor(ccol_indices: Any, row_indices: Any, values: Any, size: Any = None, *, dtype: torch.dtype | None = None, device: Any = None, pin_memory: builtins.bool = False, requires_grad: builtins.bool = False, check_invariants: builtins.bool | None = None, format: str | Format | None = None) -> SparseTensor: ...
def sparse_bsr_tensor(crow_indices: Any, col_indices: Any, values: Any, size: Any = None, *, dtype: torch.dtype | None = None, device: Any = None, pin_memory: builtins.bool = False, requires_grad: builtins.bool = False, check_invariants: builtins.bool | None = None, format: str | Format | None = None) -> SparseTensor: ...
def sparse_compressed_tensor(compressed_indices: Any, plain_indices: Any, values: Any, size: Any = None, *, layout: torch.layout | None = None, dtype: torch.dtype | None = None, device: Any = None, pin_memory: builtins.bool = False, requires_grad: builtins.bool = False, check_invariants: builtins.bool | None = None, format: str | Format | None = None) -> SparseTensor: ...
def sparse_coo_tensor(indices: Any = None, values: Any = None, size: Any = None, *, dtype: torch.dtype | None = None, device: Any = None, pin_memory: builtins.bool = False, requires_grad: builtins.bool = False, check_invariants: builtins.bool | None = None, is_coalesced: builtins.bool | None = None, format: str | Format | None = None) -> SparseTensor: ...
def sparse_csc_tensor(ccol_indices: Any, row_indices: Any, values: Any, size: Any = None, *, dtype: torch.dtype | None = None, device: Any = None, pin_memory: builtins.bool = False, requires_grad: builtins.bool = False, check_invariants: builtins.bool | None = None, format: str | Format | None = None) -> SparseTensor: ...
def sparse_csr_tensor(crow_indices: Any, col_indices: Any, values: Any, size: Any = None, *, dtype: torch.dtype | None = None, device: Any = None, pin_memory: builtins.bool = False, requires_grad: builtins.bool = False, check_invariants: builtins.bool | None = None, format: str | Format | None = None) -> SparseTensor: ...
from scorch._src.nn.sparsify import sparsify as sparsify
from scorch._src.tensor.show.spy import spy as spy
@overload
def tensor(data: Any, *, format: None = None, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> Tensor: ...
@overload
def tensor(data: Any, *, format: str | Format, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> SparseTensor: ...
from scorch._src.tensor.metadata import to_dlpack as to_dlpack
from scorch._src.tensor.interop.graphs import to_networkx as to_networkx
from scorch._src.ops.sorting.topk import topk_sparse as topk_sparse
@overload
def zeros(*size: Any, format: None = None, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> Tensor: ...
@overload
def zeros(*size: Any, format: str | Format, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> SparseTensor: ...
@overload
def zeros_like(input: Tensor, *, format: None = None, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> Tensor: ...
@overload
def zeros_like(input: Tensor, *, format: str | Format, dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, requires_grad: builtins.bool = False, pin_memory: builtins.bool = False, out: Tensor | None = None, generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None) -> SparseTensor: ...
def amax(input: Tensor, *args: Any, masked: builtins.bool = False, **kwargs: Any) -> Tensor: ...
def amin(input: Tensor, *args: Any, masked: builtins.bool = False, **kwargs: Any) -> Tensor: ...
def argmax(input: Tensor, *args: Any, masked: builtins.bool = False, **kwargs: Any) -> Tensor: ...
def argmin(input: Tensor, *args: Any, masked: builtins.bool = False, **kwargs: Any) -> Tensor: ...
def cumprod(input: Tensor, *args: Any, masked: builtins.bool = False, **kwargs: Any) -> Tensor: ...
def cumsum(input: Tensor, *args: Any, masked: builtins.bool = False, **kwargs: Any) -> Tensor: ...
def log_softmax(input: Tensor, *args: Any, masked: builtins.bool = False, **kwargs: Any) -> Tensor: ...
def logsumexp(input: Tensor, *args: Any, masked: builtins.bool = False, **kwargs: Any) -> Tensor: ...
def max(input: Tensor, *args: Any, masked: builtins.bool = False, **kwargs: Any) -> Any: ...
def mean(input: Tensor, *args: Any, masked: builtins.bool = False, **kwargs: Any) -> Tensor: ...
def median(input: Tensor, *args: Any, masked: builtins.bool = False, **kwargs: Any) -> Any: ...
def min(input: Tensor, *args: Any, masked: builtins.bool = False, **kwargs: Any) -> Any: ...
def norm(input: Tensor, *args: Any, masked: builtins.bool = False, **kwargs: Any) -> Tensor: ...
def prod(input: Tensor, *args: Any, masked: builtins.bool = False, **kwargs: Any) -> Tensor: ...
def softmax(input: Tensor, *args: Any, masked: builtins.bool = False, **kwargs: Any) -> Tensor: ...
def std(input: Tensor, *args: Any, masked: builtins.bool = False, **kwargs: Any) -> Tensor: ...
def sum(input: Tensor, *args: Any, masked: builtins.bool = False, **kwargs: Any) -> Tensor: ...
def var(input: Tensor, *args: Any, masked: builtins.bool = False, **kwargs: Any) -> Tensor: ...
from scorch import formats as formats
from scorch import autograd as autograd
from scorch import distributed as distributed
from scorch import linalg as linalg
from scorch import nn as nn
from scorch import sparse as sparse

from typing import Any

from torch import (
    AcceleratorError as AcceleratorError,
    AggregationType as AggregationType,
    AliasDb as AliasDb,
    AnyType as AnyType,
    Argument as Argument,
    AwaitType as AwaitType,
    BFloat16Storage as BFloat16Storage,
    BFloat16Tensor as BFloat16Tensor,
    BenchmarkConfig as BenchmarkConfig,
    BenchmarkExecutionStats as BenchmarkExecutionStats,
    Block as Block,
    BoolStorage as BoolStorage,
    BoolTensor as BoolTensor,
    BoolType as BoolType,
    BufferDict as BufferDict,
    ByteStorage as ByteStorage,
    ByteTensor as ByteTensor,
    CallStack as CallStack,
    CharStorage as CharStorage,
    CharTensor as CharTensor,
    ClassType as ClassType,
    CompilationUnit as CompilationUnit,
    ComplexDoubleStorage as ComplexDoubleStorage,
    ComplexFloatStorage as ComplexFloatStorage,
    ComplexType as ComplexType,
    ConcreteModuleType as ConcreteModuleType,
    ConcreteModuleTypeBuilder as ConcreteModuleTypeBuilder,
    DeserializationStorageContext as DeserializationStorageContext,
    DeviceObjType as DeviceObjType,
    DictType as DictType,
    DisableTorchFunction as DisableTorchFunction,
    DisableTorchFunctionSubclass as DisableTorchFunctionSubclass,
    DispatchKey as DispatchKey,
    DispatchKeySet as DispatchKeySet,
    DoubleStorage as DoubleStorage,
    DoubleTensor as DoubleTensor,
    EnumType as EnumType,
    ErrorReport as ErrorReport,
    Event as Event,
    FileCheck as FileCheck,
    FloatStorage as FloatStorage,
    FloatTensor as FloatTensor,
    FloatType as FloatType,
    FunctionSchema as FunctionSchema,
    Future as Future,
    FutureType as FutureType,
    Generator as Generator,
    GradScaler as GradScaler,
    Graph as Graph,
    GraphExecutorState as GraphExecutorState,
    HalfStorage as HalfStorage,
    HalfTensor as HalfTensor,
    IODescriptor as IODescriptor,
    InferredType as InferredType,
    IntStorage as IntStorage,
    IntTensor as IntTensor,
    IntType as IntType,
    InterfaceType as InterfaceType,
    JITException as JITException,
    ListType as ListType,
    LiteScriptModule as LiteScriptModule,
    LockingLogger as LockingLogger,
    LoggerBase as LoggerBase,
    LongStorage as LongStorage,
    LongTensor as LongTensor,
    ModuleDict as ModuleDict,
    Node as Node,
    NoneType as NoneType,
    NoopLogger as NoopLogger,
    NumberType as NumberType,
    OptionalType as OptionalType,
    OutOfMemoryError as OutOfMemoryError,
    PRIVATE_OPS as PRIVATE_OPS,
    ParameterDict as ParameterDict,
    PyTorchFileReader as PyTorchFileReader,
    PyTorchFileWriter as PyTorchFileWriter,
    QInt32Storage as QInt32Storage,
    QInt8Storage as QInt8Storage,
    QUInt2x4Storage as QUInt2x4Storage,
    QUInt4x2Storage as QUInt4x2Storage,
    QUInt8Storage as QUInt8Storage,
    RRefType as RRefType,
    ScriptDict as ScriptDict,
    ScriptFunction as ScriptFunction,
    ScriptList as ScriptList,
    ScriptMethod as ScriptMethod,
    ScriptModule as ScriptModule,
    ScriptModuleSerializer as ScriptModuleSerializer,
    ScriptObject as ScriptObject,
    SerializationStorageContext as SerializationStorageContext,
    ShortStorage as ShortStorage,
    ShortTensor as ShortTensor,
    Size as Size,
    StorageBase as StorageBase,
    Stream as Stream,
    StreamObjType as StreamObjType,
    StringType as StringType,
    SymBool as SymBool,
    SymBoolType as SymBoolType,
    SymFloat as SymFloat,
    SymInt as SymInt,
    SymIntType as SymIntType,
    Tag as Tag,
    TensorType as TensorType,
    ThroughputBenchmark as ThroughputBenchmark,
    TracingState as TracingState,
    TupleType as TupleType,
    Type as Type,
    TypedStorage as TypedStorage,
    USE_GLOBAL_DEPS as USE_GLOBAL_DEPS,
    USE_RTLD_GLOBAL_WITH_LIBTORCH as USE_RTLD_GLOBAL_WITH_LIBTORCH,
    UnionType as UnionType,
    UntypedStorage as UntypedStorage,
    Use as Use,
    Value as Value,
    abs as abs,
    abs_ as abs_,
    absolute as absolute,
    accelerator as accelerator,
    acos as acos,
    acos_ as acos_,
    acosh as acosh,
    acosh_ as acosh_,
    adaptive_avg_pool1d as adaptive_avg_pool1d,
    adaptive_max_pool1d as adaptive_max_pool1d,
    add as add,
    addbmm as addbmm,
    addcdiv as addcdiv,
    addcmul as addcmul,
    addmm as addmm,
    addmv as addmv,
    addmv_ as addmv_,
    addr as addr,
    adjoint as adjoint,
    affine_grid_generator as affine_grid_generator,
    alias_copy as alias_copy,
    all as all,
    allclose as allclose,
    alpha_dropout as alpha_dropout,
    alpha_dropout_ as alpha_dropout_,
    aminmax as aminmax,
    amp as amp,
    angle as angle,
    any as any,
    ao as ao,
    arccos as arccos,
    arccos_ as arccos_,
    arccosh as arccosh,
    arccosh_ as arccosh_,
    arcsin as arcsin,
    arcsin_ as arcsin_,
    arcsinh as arcsinh,
    arcsinh_ as arcsinh_,
    arctan as arctan,
    arctan2 as arctan2,
    arctan_ as arctan_,
    arctanh as arctanh,
    arctanh_ as arctanh_,
    are_deterministic_algorithms_enabled as are_deterministic_algorithms_enabled,
    argsort as argsort,
    argwhere as argwhere,
    as_strided as as_strided,
    as_strided_ as as_strided_,
    as_strided_copy as as_strided_copy,
    as_strided_scatter as as_strided_scatter,
    asin as asin,
    asin_ as asin_,
    asinh as asinh,
    asinh_ as asinh_,
    atan as atan,
    atan2 as atan2,
    atan_ as atan_,
    atanh as atanh,
    atanh_ as atanh_,
    atleast_1d as atleast_1d,
    atleast_2d as atleast_2d,
    atleast_3d as atleast_3d,
    autocast as autocast,
    autocast_decrement_nesting as autocast_decrement_nesting,
    autocast_increment_nesting as autocast_increment_nesting,
    avg_pool1d as avg_pool1d,
    backends as backends,
    baddbmm as baddbmm,
    bartlett_window as bartlett_window,
    batch_norm as batch_norm,
    batch_norm_backward_elemt as batch_norm_backward_elemt,
    batch_norm_backward_reduce as batch_norm_backward_reduce,
    batch_norm_elemt as batch_norm_elemt,
    batch_norm_gather_stats as batch_norm_gather_stats,
    batch_norm_gather_stats_with_counts as batch_norm_gather_stats_with_counts,
    batch_norm_stats as batch_norm_stats,
    batch_norm_update_stats as batch_norm_update_stats,
    bfloat16 as bfloat16,
    bilinear as bilinear,
    binary_cross_entropy_with_logits as binary_cross_entropy_with_logits,
    bincount as bincount,
    binomial as binomial,
    bits16 as bits16,
    bits1x8 as bits1x8,
    bits2x4 as bits2x4,
    bits4x2 as bits4x2,
    bits8 as bits8,
    bitwise_and as bitwise_and,
    bitwise_left_shift as bitwise_left_shift,
    bitwise_not as bitwise_not,
    bitwise_or as bitwise_or,
    bitwise_right_shift as bitwise_right_shift,
    bitwise_xor as bitwise_xor,
    blackman_window as blackman_window,
    block_diag as block_diag,
    bmm as bmm,
    bool as bool,
    broadcast_shapes as broadcast_shapes,
    broadcast_tensors as broadcast_tensors,
    broadcast_to as broadcast_to,
    bucketize as bucketize,
    builtins as builtins,
    can_cast as can_cast,
    cartesian_prod as cartesian_prod,
    cat as cat,
    ccol_indices_copy as ccol_indices_copy,
    cdist as cdist,
    cdouble as cdouble,
    ceil as ceil,
    ceil_ as ceil_,
    celu as celu,
    celu_ as celu_,
    cfloat as cfloat,
    chain_matmul as chain_matmul,
    chalf as chalf,
    channel_shuffle as channel_shuffle,
    channels_last as channels_last,
    channels_last_3d as channels_last_3d,
    cholesky as cholesky,
    cholesky_inverse as cholesky_inverse,
    cholesky_solve as cholesky_solve,
    choose_qparams_optimized as choose_qparams_optimized,
    chunk as chunk,
    clamp as clamp,
    clamp_ as clamp_,
    clamp_max as clamp_max,
    clamp_max_ as clamp_max_,
    clamp_min as clamp_min,
    clamp_min_ as clamp_min_,
    classes as classes,
    classproperty as classproperty,
    clear_autocast_cache as clear_autocast_cache,
    clip as clip,
    clip_ as clip_,
    clone as clone,
    col_indices_copy as col_indices_copy,
    column_stack as column_stack,
    combinations as combinations,
    compiled_with_cxx11_abi as compiled_with_cxx11_abi,
    compiler as compiler,
    complex as complex,
    complex128 as complex128,
    complex32 as complex32,
    complex64 as complex64,
    concat as concat,
    concatenate as concatenate,
    cond as cond,
    conj as conj,
    conj_physical as conj_physical,
    conj_physical_ as conj_physical_,
    constant_pad_nd as constant_pad_nd,
    contiguous_format as contiguous_format,
    conv1d as conv1d,
    conv2d as conv2d,
    conv3d as conv3d,
    conv_tbc as conv_tbc,
    conv_transpose1d as conv_transpose1d,
    conv_transpose2d as conv_transpose2d,
    conv_transpose3d as conv_transpose3d,
    convolution as convolution,
    copysign as copysign,
    corrcoef as corrcoef,
    cos as cos,
    cos_ as cos_,
    cosh as cosh,
    cosh_ as cosh_,
    cosine_embedding_loss as cosine_embedding_loss,
    cosine_similarity as cosine_similarity,
    count_nonzero as count_nonzero,
    cov as cov,
    cpu as cpu,
    cross as cross,
    crow_indices_copy as crow_indices_copy,
    ctc_loss as ctc_loss,
    cuda as cuda,
    cudnn_affine_grid_generator as cudnn_affine_grid_generator,
    cudnn_batch_norm as cudnn_batch_norm,
    cudnn_convolution as cudnn_convolution,
    cudnn_convolution_add_relu as cudnn_convolution_add_relu,
    cudnn_convolution_relu as cudnn_convolution_relu,
    cudnn_convolution_transpose as cudnn_convolution_transpose,
    cudnn_grid_sampler as cudnn_grid_sampler,
    cudnn_is_acceptable as cudnn_is_acceptable,
    cummax as cummax,
    cummin as cummin,
    cumulative_trapezoid as cumulative_trapezoid,
    default_generator as default_generator,
    deg2rad as deg2rad,
    deg2rad_ as deg2rad_,
    dequantize as dequantize,
    det as det,
    detach as detach,
    detach_ as detach_,
    detach_copy as detach_copy,
    device as device,
    diagonal as diagonal,
    diagonal_copy as diagonal_copy,
    diagonal_scatter as diagonal_scatter,
    diff as diff,
    digamma as digamma,
    dist as dist,
    distributions as distributions,
    div as div,
    divide as divide,
    dot as dot,
    double as double,
    dropout as dropout,
    dropout_ as dropout_,
    dsmm as dsmm,
    dsplit as dsplit,
    dstack as dstack,
    dtype as dtype,
    e as e,
    eig as eig,
    embedding as embedding,
    embedding_bag as embedding_bag,
    embedding_renorm_ as embedding_renorm_,
    empty_permuted as empty_permuted,
    empty_quantized as empty_quantized,
    empty_strided as empty_strided,
    enable_grad as enable_grad,
    eq as eq,
    equal as equal,
    erf as erf,
    erf_ as erf_,
    erfc as erfc,
    erfc_ as erfc_,
    erfinv as erfinv,
    exp as exp,
    exp2 as exp2,
    exp2_ as exp2_,
    exp_ as exp_,
    expand_copy as expand_copy,
    expm1 as expm1,
    expm1_ as expm1_,
    export as export,
    fake_quantize_per_channel_affine as fake_quantize_per_channel_affine,
    fake_quantize_per_tensor_affine as fake_quantize_per_tensor_affine,
    fbgemm_linear_fp16_weight as fbgemm_linear_fp16_weight,
    fbgemm_linear_fp16_weight_fp32_activation as fbgemm_linear_fp16_weight_fp32_activation,
    fbgemm_linear_int8_weight as fbgemm_linear_int8_weight,
    fbgemm_linear_int8_weight_fp32_activation as fbgemm_linear_int8_weight_fp32_activation,
    fbgemm_linear_quantize_weight as fbgemm_linear_quantize_weight,
    fbgemm_pack_gemm_matrix_fp16 as fbgemm_pack_gemm_matrix_fp16,
    fbgemm_pack_quantized_matrix as fbgemm_pack_quantized_matrix,
    feature_alpha_dropout as feature_alpha_dropout,
    feature_alpha_dropout_ as feature_alpha_dropout_,
    feature_dropout as feature_dropout,
    feature_dropout_ as feature_dropout_,
    fft as fft,
    fill as fill,
    fill_ as fill_,
    finfo as finfo,
    fix as fix,
    fix_ as fix_,
    flatten as flatten,
    flip as flip,
    fliplr as fliplr,
    flipud as flipud,
    float as float,
    float16 as float16,
    float32 as float32,
    float4_e2m1fn_x2 as float4_e2m1fn_x2,
    float64 as float64,
    float8_e4m3fn as float8_e4m3fn,
    float8_e4m3fnuz as float8_e4m3fnuz,
    float8_e5m2 as float8_e5m2,
    float8_e5m2fnuz as float8_e5m2fnuz,
    float8_e8m0fnu as float8_e8m0fnu,
    float_power as float_power,
    floor as floor,
    floor_ as floor_,
    floor_divide as floor_divide,
    fmax as fmax,
    fmin as fmin,
    fmod as fmod,
    fork as fork,
    frac as frac,
    frac_ as frac_,
    frexp as frexp,
    frobenius_norm as frobenius_norm,
    from_dlpack as from_dlpack,
    from_file as from_file,
    frombuffer as frombuffer,
    func as func,
    functional as functional,
    fused_moving_avg_obs_fake_quant as fused_moving_avg_obs_fake_quant,
    futures as futures,
    fx as fx,
    gather as gather,
    gcd as gcd,
    gcd_ as gcd_,
    ge as ge,
    geqrf as geqrf,
    ger as ger,
    get_autocast_cpu_dtype as get_autocast_cpu_dtype,
    get_autocast_dtype as get_autocast_dtype,
    get_autocast_gpu_dtype as get_autocast_gpu_dtype,
    get_default_device as get_default_device,
    get_default_dtype as get_default_dtype,
    get_deterministic_debug_mode as get_deterministic_debug_mode,
    get_device as get_device,
    get_device_module as get_device_module,
    get_file_path as get_file_path,
    get_float32_matmul_precision as get_float32_matmul_precision,
    get_num_interop_threads as get_num_interop_threads,
    get_num_threads as get_num_threads,
    get_rng_state as get_rng_state,
    gradient as gradient,
    greater as greater,
    greater_equal as greater_equal,
    grid_sampler as grid_sampler,
    grid_sampler_2d as grid_sampler_2d,
    grid_sampler_3d as grid_sampler_3d,
    group_norm as group_norm,
    gru as gru,
    gru_cell as gru_cell,
    gt as gt,
    half as half,
    hamming_window as hamming_window,
    hann_window as hann_window,
    hardshrink as hardshrink,
    has_lapack as has_lapack,
    has_mkl as has_mkl,
    has_openmp as has_openmp,
    has_spectral as has_spectral,
    hash_tensor as hash_tensor,
    heaviside as heaviside,
    hinge_embedding_loss as hinge_embedding_loss,
    histc as histc,
    histogram as histogram,
    histogramdd as histogramdd,
    hsmm as hsmm,
    hsplit as hsplit,
    hspmm as hspmm,
    hstack as hstack,
    hub as hub,
    hypot as hypot,
    i0 as i0,
    i0_ as i0_,
    igamma as igamma,
    igammac as igammac,
    iinfo as iinfo,
    imag as imag,
    import_ir_module as import_ir_module,
    import_ir_module_from_buffer as import_ir_module_from_buffer,
    index_add as index_add,
    index_copy as index_copy,
    index_fill as index_fill,
    index_put as index_put,
    index_put_ as index_put_,
    index_reduce as index_reduce,
    index_select as index_select,
    indices_copy as indices_copy,
    inf as inf,
    inference_mode as inference_mode,
    init_num_threads as init_num_threads,
    initial_seed as initial_seed,
    inner as inner,
    instance_norm as instance_norm,
    int as int,
    int16 as int16,
    int32 as int32,
    int64 as int64,
    int8 as int8,
    int_repr as int_repr,
    inverse as inverse,
    is_anomaly_check_nan_enabled as is_anomaly_check_nan_enabled,
    is_anomaly_enabled as is_anomaly_enabled,
    is_autocast_cache_enabled as is_autocast_cache_enabled,
    is_autocast_cpu_enabled as is_autocast_cpu_enabled,
    is_autocast_enabled as is_autocast_enabled,
    is_complex as is_complex,
    is_conj as is_conj,
    is_deterministic_algorithms_warn_only_enabled as is_deterministic_algorithms_warn_only_enabled,
    is_distributed as is_distributed,
    is_floating_point as is_floating_point,
    is_grad_enabled as is_grad_enabled,
    is_inference as is_inference,
    is_inference_mode_enabled as is_inference_mode_enabled,
    is_neg as is_neg,
    is_nonzero as is_nonzero,
    is_same_size as is_same_size,
    is_signed as is_signed,
    is_storage as is_storage,
    is_tensor as is_tensor,
    is_vulkan_available as is_vulkan_available,
    is_warn_always_enabled as is_warn_always_enabled,
    isclose as isclose,
    isfinite as isfinite,
    isin as isin,
    isinf as isinf,
    isnan as isnan,
    isneginf as isneginf,
    isposinf as isposinf,
    isreal as isreal,
    istft as istft,
    jagged as jagged,
    jit as jit,
    kaiser_window as kaiser_window,
    kl_div as kl_div,
    kron as kron,
    kthvalue as kthvalue,
    layer_norm as layer_norm,
    layout as layout,
    lcm as lcm,
    lcm_ as lcm_,
    ldexp as ldexp,
    ldexp_ as ldexp_,
    le as le,
    legacy_contiguous_format as legacy_contiguous_format,
    lerp as lerp,
    less as less,
    less_equal as less_equal,
    lgamma as lgamma,
    library as library,
    lobpcg as lobpcg,
    log as log,
    log10 as log10,
    log10_ as log10_,
    log1p as log1p,
    log1p_ as log1p_,
    log2 as log2,
    log2_ as log2_,
    log_ as log_,
    logaddexp as logaddexp,
    logaddexp2 as logaddexp2,
    logcumsumexp as logcumsumexp,
    logdet as logdet,
    logical_and as logical_and,
    logical_not as logical_not,
    logical_or as logical_or,
    logical_xor as logical_xor,
    logit as logit,
    logit_ as logit_,
    long as long,
    lstm as lstm,
    lstm_cell as lstm_cell,
    lstsq as lstsq,
    lt as lt,
    lu as lu,
    lu_solve as lu_solve,
    lu_unpack as lu_unpack,
    manual_seed as manual_seed,
    margin_ranking_loss as margin_ranking_loss,
    masked as masked,
    masked_fill as masked_fill,
    masked_scatter as masked_scatter,
    masked_select as masked_select,
    matmul as matmul,
    matrix_exp as matrix_exp,
    matrix_power as matrix_power,
    matrix_rank as matrix_rank,
    max_pool1d as max_pool1d,
    max_pool1d_with_indices as max_pool1d_with_indices,
    max_pool2d as max_pool2d,
    max_pool3d as max_pool3d,
    maximum as maximum,
    memory_format as memory_format,
    merge_type_from_type_comment as merge_type_from_type_comment,
    meshgrid as meshgrid,
    minimum as minimum,
    miopen_batch_norm as miopen_batch_norm,
    miopen_convolution as miopen_convolution,
    miopen_convolution_add_relu as miopen_convolution_add_relu,
    miopen_convolution_relu as miopen_convolution_relu,
    miopen_convolution_transpose as miopen_convolution_transpose,
    miopen_ctc_loss as miopen_ctc_loss,
    miopen_depthwise_convolution as miopen_depthwise_convolution,
    miopen_rnn as miopen_rnn,
    mkldnn_adaptive_avg_pool2d as mkldnn_adaptive_avg_pool2d,
    mkldnn_convolution as mkldnn_convolution,
    mkldnn_linear_backward_weights as mkldnn_linear_backward_weights,
    mkldnn_max_pool2d as mkldnn_max_pool2d,
    mkldnn_max_pool3d as mkldnn_max_pool3d,
    mkldnn_rnn_layer as mkldnn_rnn_layer,
    mm as mm,
    mode as mode,
    monitor as monitor,
    moveaxis as moveaxis,
    movedim as movedim,
    mps as mps,
    msort as msort,
    mtia as mtia,
    mul as mul,
    multinomial as multinomial,
    multiply as multiply,
    multiprocessing as multiprocessing,
    mv as mv,
    mvlgamma as mvlgamma,
    nan as nan,
    nan_to_num as nan_to_num,
    nan_to_num_ as nan_to_num_,
    nanmean as nanmean,
    nanmedian as nanmedian,
    nanquantile as nanquantile,
    nansum as nansum,
    narrow as narrow,
    narrow_copy as narrow_copy,
    native_batch_norm as native_batch_norm,
    native_channel_shuffle as native_channel_shuffle,
    native_dropout as native_dropout,
    native_group_norm as native_group_norm,
    native_layer_norm as native_layer_norm,
    native_norm as native_norm,
    ne as ne,
    neg as neg,
    neg_ as neg_,
    negative as negative,
    negative_ as negative_,
    nested as nested,
    newaxis as newaxis,
    nextafter as nextafter,
    no_grad as no_grad,
    nonzero as nonzero,
    nonzero_static as nonzero_static,
    norm_except_dim as norm_except_dim,
    not_equal as not_equal,
    nuclear_norm as nuclear_norm,
    numel as numel,
    ops as ops,
    optim as optim,
    orgqr as orgqr,
    ormqr as ormqr,
    outer as outer,
    overrides as overrides,
    package as package,
    pairwise_distance as pairwise_distance,
    parse_ir as parse_ir,
    parse_schema as parse_schema,
    parse_type_comment as parse_type_comment,
    pca_lowrank as pca_lowrank,
    pdist as pdist,
    per_channel_affine as per_channel_affine,
    per_channel_affine_float_qparams as per_channel_affine_float_qparams,
    per_channel_symmetric as per_channel_symmetric,
    per_tensor_affine as per_tensor_affine,
    per_tensor_symmetric as per_tensor_symmetric,
    permute as permute,
    permute_copy as permute_copy,
    pi as pi,
    pinverse as pinverse,
    pixel_shuffle as pixel_shuffle,
    pixel_unshuffle as pixel_unshuffle,
    poisson as poisson,
    poisson_nll_loss as poisson_nll_loss,
    polar as polar,
    polygamma as polygamma,
    positive as positive,
    pow as pow,
    prelu as prelu,
    prepare_multiprocessing_environment as prepare_multiprocessing_environment,
    preserve_format as preserve_format,
    profiler as profiler,
    profiler_allow_cudagraph_cupti_lazy_reinit_cuda12 as profiler_allow_cudagraph_cupti_lazy_reinit_cuda12,
    promote_types as promote_types,
    put as put,
    q_per_channel_axis as q_per_channel_axis,
    q_per_channel_scales as q_per_channel_scales,
    q_per_channel_zero_points as q_per_channel_zero_points,
    q_scale as q_scale,
    q_zero_point as q_zero_point,
    qint32 as qint32,
    qint8 as qint8,
    qr as qr,
    qscheme as qscheme,
    quantile as quantile,
    quantization as quantization,
    quantize_per_channel as quantize_per_channel,
    quantize_per_tensor as quantize_per_tensor,
    quantize_per_tensor_dynamic as quantize_per_tensor_dynamic,
    quantized_batch_norm as quantized_batch_norm,
    quantized_gru as quantized_gru,
    quantized_gru_cell as quantized_gru_cell,
    quantized_lstm as quantized_lstm,
    quantized_lstm_cell as quantized_lstm_cell,
    quantized_max_pool1d as quantized_max_pool1d,
    quantized_max_pool2d as quantized_max_pool2d,
    quantized_max_pool3d as quantized_max_pool3d,
    quantized_rnn_relu_cell as quantized_rnn_relu_cell,
    quantized_rnn_tanh_cell as quantized_rnn_tanh_cell,
    quasirandom as quasirandom,
    quint2x4 as quint2x4,
    quint4x2 as quint4x2,
    quint8 as quint8,
    rad2deg as rad2deg,
    rad2deg_ as rad2deg_,
    random as random,
    range as range,
    ravel as ravel,
    real as real,
    reciprocal as reciprocal,
    reciprocal_ as reciprocal_,
    relu as relu,
    relu_ as relu_,
    remainder as remainder,
    renorm as renorm,
    repeat_interleave as repeat_interleave,
    reshape as reshape,
    resize_as_ as resize_as_,
    resize_as_sparse_ as resize_as_sparse_,
    resolve_conj as resolve_conj,
    resolve_neg as resolve_neg,
    result_type as result_type,
    return_types as return_types,
    rms_norm as rms_norm,
    rnn_relu as rnn_relu,
    rnn_relu_cell as rnn_relu_cell,
    rnn_tanh as rnn_tanh,
    rnn_tanh_cell as rnn_tanh_cell,
    roll as roll,
    rot90 as rot90,
    round as round,
    round_ as round_,
    row_indices_copy as row_indices_copy,
    row_stack as row_stack,
    rrelu as rrelu,
    rrelu_ as rrelu_,
    rsqrt as rsqrt,
    rsqrt_ as rsqrt_,
    rsub as rsub,
    saddmm as saddmm,
    scalar_tensor as scalar_tensor,
    scatter as scatter,
    scatter_add as scatter_add,
    scatter_reduce as scatter_reduce,
    searchsorted as searchsorted,
    seed as seed,
    segment_reduce as segment_reduce,
    select as select,
    select_copy as select_copy,
    select_scatter as select_scatter,
    selu as selu,
    selu_ as selu_,
    serialization as serialization,
    set_anomaly_enabled as set_anomaly_enabled,
    set_autocast_cache_enabled as set_autocast_cache_enabled,
    set_autocast_cpu_dtype as set_autocast_cpu_dtype,
    set_autocast_cpu_enabled as set_autocast_cpu_enabled,
    set_autocast_dtype as set_autocast_dtype,
    set_autocast_enabled as set_autocast_enabled,
    set_autocast_gpu_dtype as set_autocast_gpu_dtype,
    set_default_device as set_default_device,
    set_default_dtype as set_default_dtype,
    set_default_tensor_type as set_default_tensor_type,
    set_deterministic_debug_mode as set_deterministic_debug_mode,
    set_float32_matmul_precision as set_float32_matmul_precision,
    set_flush_denormal as set_flush_denormal,
    set_grad_enabled as set_grad_enabled,
    set_num_interop_threads as set_num_interop_threads,
    set_num_threads as set_num_threads,
    set_printoptions as set_printoptions,
    set_rng_state as set_rng_state,
    set_warn_always as set_warn_always,
    sgn as sgn,
    short as short,
    sigmoid as sigmoid,
    sigmoid_ as sigmoid_,
    sign as sign,
    signal as signal,
    signbit as signbit,
    sin as sin,
    sin_ as sin_,
    sinc as sinc,
    sinc_ as sinc_,
    sinh as sinh,
    sinh_ as sinh_,
    slice_copy as slice_copy,
    slice_inverse as slice_inverse,
    slice_scatter as slice_scatter,
    slogdet as slogdet,
    smm as smm,
    solve as solve,
    sort as sort,
    sparse_bsc as sparse_bsc,
    sparse_bsr as sparse_bsr,
    sparse_coo as sparse_coo,
    sparse_csc as sparse_csc,
    sparse_csr as sparse_csr,
    special as special,
    split as split,
    split_copy as split_copy,
    split_with_sizes as split_with_sizes,
    split_with_sizes_copy as split_with_sizes_copy,
    spmm as spmm,
    sqrt as sqrt,
    sqrt_ as sqrt_,
    square as square,
    square_ as square_,
    squeeze as squeeze,
    squeeze_copy as squeeze_copy,
    sspaddmm as sspaddmm,
    stack as stack,
    std_mean as std_mean,
    stft as stft,
    storage as storage,
    strided as strided,
    sub as sub,
    subtract as subtract,
    svd as svd,
    svd_lowrank as svd_lowrank,
    swapaxes as swapaxes,
    swapdims as swapdims,
    sym_constrain_range as sym_constrain_range,
    sym_constrain_range_for_size as sym_constrain_range_for_size,
    sym_float as sym_float,
    sym_fresh_size as sym_fresh_size,
    sym_int as sym_int,
    sym_ite as sym_ite,
    sym_max as sym_max,
    sym_min as sym_min,
    sym_not as sym_not,
    sym_sqrt as sym_sqrt,
    sym_sum as sym_sum,
    symeig as symeig,
    t as t,
    t_copy as t_copy,
    take as take,
    take_along_dim as take_along_dim,
    tan as tan,
    tan_ as tan_,
    tanh as tanh,
    tanh_ as tanh_,
    tensor_split as tensor_split,
    tensordot as tensordot,
    testing as testing,
    thread_safe_generator as thread_safe_generator,
    threshold as threshold,
    threshold_ as threshold_,
    tile as tile,
    topk as topk,
    torch_version as torch_version,
    trace as trace,
    transpose as transpose,
    transpose_copy as transpose_copy,
    trapezoid as trapezoid,
    trapz as trapz,
    triangular_solve as triangular_solve,
    tril as tril,
    tril_indices as tril_indices,
    triplet_margin_loss as triplet_margin_loss,
    triu as triu,
    triu_indices as triu_indices,
    true_divide as true_divide,
    trunc as trunc,
    trunc_ as trunc_,
    typename as typename,
    types as types,
    uint16 as uint16,
    uint32 as uint32,
    uint64 as uint64,
    uint8 as uint8,
    unbind as unbind,
    unbind_copy as unbind_copy,
    unflatten as unflatten,
    unfold_copy as unfold_copy,
    unify_type_list as unify_type_list,
    unique as unique,
    unique_consecutive as unique_consecutive,
    unravel_index as unravel_index,
    unsafe_chunk as unsafe_chunk,
    unsafe_split as unsafe_split,
    unsafe_split_with_sizes as unsafe_split_with_sizes,
    unsqueeze as unsqueeze,
    unsqueeze_copy as unsqueeze_copy,
    use_deterministic_algorithms as use_deterministic_algorithms,
    utils as utils,
    values_copy as values_copy,
    vander as vander,
    var_mean as var_mean,
    vdot as vdot,
    version as version,
    view_as_complex as view_as_complex,
    view_as_complex_copy as view_as_complex_copy,
    view_as_real as view_as_real,
    view_as_real_copy as view_as_real_copy,
    view_copy as view_copy,
    vmap as vmap,
    vsplit as vsplit,
    vstack as vstack,
    wait as wait,
    where as where,
    while_loop as while_loop,
    windows as windows,
    xlogy as xlogy,
    xlogy_ as xlogy_,
    xpu as xpu,
    zero_ as zero_,
)

AVG: Any
ArgumentSpec: Any
Capsule: Any
Code: Any
CompleteArgumentSpec: Any
DeepCopyMemoTable: Any
ExcludeDispatchKeyGuard: Any
ExecutionPlan: Any
FatalError: Any
Gradient: Any
OperatorInfo: Any
PyObjectType: Any
SUM: Any
ScriptClass: Any
ScriptClassFunction: Any
ScriptDictIterator: Any
ScriptDictKeyIterator: Any
ScriptListIterator: Any
ScriptObjectProperty: Any
StaticModule: Any
bit: Any
cpp: Any
get_autocast_ipu_dtype: Any
get_autocast_xla_dtype: Any
int1: Any
int2: Any
int3: Any
int4: Any
int5: Any
int6: Any
int7: Any
is_autocast_ipu_enabled: Any
is_autocast_xla_enabled: Any
set_autocast_ipu_dtype: Any
set_autocast_ipu_enabled: Any
set_autocast_xla_dtype: Any
set_autocast_xla_enabled: Any
uint1: Any
uint2: Any
uint3: Any
uint4: Any
uint5: Any
uint6: Any
uint7: Any

"""Scorch: PyTorch operations on sparse tensors with any number of dimensions, in any storage format.

>>> import torch, scorch
>>> S = scorch.from_torch(torch.tensor([[0.0, 2.0], [0.0, 1.0]]), format="csr")
>>> S @ torch.ones(2)
tensor([2., 1.])

Creating sparse tensors: ``from_torch``, ``from_scipy``, ``from_edge_index``, ``sparse_coo_tensor``, ``load``,
and PyTorch's factory functions with ``format=``, such as ``rand(1000, 1000, density=0.01, format="csr")``.
Converting: ``S.to_format("csc")``, ``S.to_dense()``, ``S.to_torch()``, ``S.to_scipy()``, ``save``.
Computing: PyTorch's operators and functions; ``einsum`` and ``evaluate``, which turn an expression into one
generated kernel; ``compile``, which fuses the calls of a function; ``scorch.linalg``.
Networks: ``scorch.nn`` has layers with sparse weights, graph layers and sparse attention; ``sparsify`` prunes
a trained model, ``scorch.nn.load_sparse`` loads it.
Why is it slow: ``explain(function)(*arguments)``, ``doctor(model, example)``, ``report(model)``.

Every name of torch is here too, so that a program may say ``import scorch as torch``. ``help`` of one name
describes it: ``help(scorch.einsum)``, ``help(scorch.SparseTensor)``, ``help(scorch.nn.SparseLinear)``.
"""

# ruff: noqa: F401

from scorch._src.collection import paused_collection as _paused_collection

with _paused_collection():
    from scorch import errors, formats
    from scorch._src import (
        __version__,
        namespace,
        register,  # and with it almost everything
        when_imported,
    )
    from scorch._src.backends.cpu.launch import release_memory
    from scorch._src.bounded import clear_plans, plan_statistics
    from scorch._src.compile.api import compile
    from scorch._src.explain.doctor import doctor
    from scorch._src.explain.explain_statement import explain
    from scorch._src.explain.model_report import ModelReport, report
    from scorch._src.explain.report import Explanation
    from scorch._src.formats import Format
    from scorch._src.io.files import load, save
    from scorch._src.nn.grad_topk import grad_topk
    from scorch._src.nn.sparsify import sparsify
    from scorch._src.ops.movement.rearrange import rearrange
    from scorch._src.ops.reduction import maskable
    from scorch._src.ops.sorting.topk import topk_sparse
    from scorch._src.statements.einsum import einsum
    from scorch._src.statements.evaluate import evaluate
    from scorch._src.tensor import dynamo
    from scorch._src.tensor.create.build import from_coordinates
    from scorch._src.tensor.create.construct import from_edge_index, from_torch, tensor
    from scorch._src.tensor.create.factories import arange, as_tensor, empty, eye, full, ones, zeros
    from scorch._src.tensor.create.like_factories import (
        empty_like,
        full_like,
        ones_like,
        rand_like,
        randint_like,
        randn_like,
        zeros_like,
    )
    from scorch._src.tensor.create.random_factories import rand, randint, randn
    from scorch._src.tensor.create.sequences import (
        asarray,
        bernoulli,
        diag,
        diag_embed,
        diagflat,
        from_numpy,
        linspace,
        logspace,
        normal,
        randperm,
    )
    from scorch._src.tensor.create.torch_constructors import (
        sparse_bsc_tensor,
        sparse_bsr_tensor,
        sparse_compressed_tensor,
        sparse_coo_tensor,
        sparse_csc_tensor,
        sparse_csr_tensor,
    )
    from scorch._src.tensor.interop.graphs import from_networkx, to_networkx
    from scorch._src.tensor.interop.torch_layouts import from_scipy
    from scorch._src.tensor.metadata import to_dlpack
    from scorch._src.tensor.show.draw import draw
    from scorch._src.tensor.show.spy import spy
    from scorch._src.tensor.sparse_tensor import SparseTensor
    from scorch.settings import settings

globals().update(maskable.FUNCTIONS)  # sum, mean, amax ...: torch's, with masked= added

# Everything imported above but modules is public.
__all__ = ["errors"]
__all__ += [name for name in globals() if name[0] != "_" and not isinstance(globals()[name], type(errors))]

with _paused_collection():
    dynamo.skip_tracing_all(globals()[name] for name in __all__)
    namespace.install(__all__)
    when_imported.install_with("torch_geometric", "scorch.compat.pyg")

del dynamo, maskable, namespace, register, when_imported

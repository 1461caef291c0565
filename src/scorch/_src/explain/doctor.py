"""``scorch.doctor``: find the layers of a model that would gain from sparsity, measured on an example.

The model runs on the example, and the input of each layer is recorded. Then every layer that has a sparse
form is timed on that input as it is, and with its smallest weights pruned. The model is not changed.
"""

from __future__ import annotations

import functools
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F

from scorch._src.backends.base import host_threads
from scorch._src.explain.doctor_report import MIN_GAIN, Diagnosis, LayerDiagnosis
from scorch._src.explain.render import print_unless
from scorch._src.name_hints import suggests_keywords
from scorch._src.nn import timing
from scorch._src.nn.pruned.prunable import KINDS
from scorch._src.nn.sparse_linear import SparseLinear
from scorch._src.tensor.create.construct import from_torch
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import ConvNd
from scorch.errors import ArgumentError, OperandError

SPARSITIES = (0.8, 0.9, 0.95, 0.98)
MAX_SPARSE_INPUT_DENSITY = 0.2  # up to which an input is tried as a sparse one
ROUNDS = 5


@suggests_keywords
def doctor(
    model: torch.nn.Module,
    example: Any,
    *,
    sparsities: float | Sequence[float] = SPARSITIES,
    quiet: bool | None = None,
) -> Diagnosis:
    """Measure on an example input which layers of a model would gain from sparsity, and print a table.

    Each Linear layer is timed on its own input as it is, after magnitude pruning to each of ``sparsities``,
    and with its input as a sparse tensor if that is mostly zeros. The model runs in evaluation mode, without
    gradients, and is not changed.

    Args:
        model: the model.
        example: a tensor, a tuple of arguments, or a dictionary of named ones; its batch is what is
            measured.
        sparsities: the fraction or fractions of weights to prune.
        quiet: whether to print nothing. In notebooks, which show what the last line of a cell returns,
            the table is printed only with ``quiet=False``.

    Returns:
        The measurements, which print as the table.

    Raises:
        OperandError: ``model`` is not a module.
        ArgumentError: a sparsity is not between 0 and 1.

    Example:

        >>> import torch, scorch
        >>> model = torch.nn.Sequential(torch.nn.Linear(256, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
        >>> diagnosis = scorch.doctor(model, torch.rand(8, 256), quiet=True)
        >>> [layer.name for layer in diagnosis.layers]
        ['0', '2']
    """
    if not isinstance(model, torch.nn.Module):
        raise OperandError(f"doctor expected a torch.nn.Module, but got a {type(model).__name__}")
    sparsities = (sparsities,) if isinstance(sparsities, int | float) else tuple(sparsities)
    for sparsity in sparsities:
        if isinstance(sparsity, bool) or not isinstance(sparsity, int | float) or not 0 < sparsity < 1:
            raise ArgumentError(
                f"sparsities must be fractions of weights to prune, between 0 and 1, but got {sparsity!r}"
            )
    call = _make_call(model, example)
    state = torch.get_rng_state()
    modes = {module: module.training for module in model.modules()}
    try:
        model.eval()
        with torch.no_grad():
            times, visits = _observe(model, call)
            layers = [_diagnose(visit, sorted(sparsities)) for visit in visits]
    finally:
        for module, mode in modes.items():
            module.training = mode
        torch.set_rng_state(state)
    spread = statistics.median(times) / min(times) if min(times) else 1.0
    name, threads = type(model).__name__, host_threads()
    diagnosis = Diagnosis(name, statistics.median(times), threads, tuple(layers), max(spread, _load()))
    print_unless(quiet, diagnosis)
    return diagnosis


def _load() -> float:
    """Return the number of other processes per core; 0 if the system does not report it."""
    try:
        return max(os.getloadavg()[0] - 1, 0.0) / (os.cpu_count() or 1)
    except (OSError, AttributeError):
        return 0.0


def _make_call(model: torch.nn.Module, example: Any) -> Callable[[], Any]:
    if isinstance(example, dict):
        return functools.partial(model, **example)
    return functools.partial(model, *(example if isinstance(example, tuple | list) else (example,)))


@dataclass
class _Visit:
    """A layer that ran: its first input, how often it was called and for how long."""

    name: str
    module: torch.nn.Module
    input: Any = None
    calls: int = 0
    started: float = 0.0
    seconds_by_round: list[float] = field(default_factory=list)


def _observe(model: torch.nn.Module, call: Callable[[], Any]) -> tuple[list[float], list[_Visit]]:
    """Return the times of the model, and the layers with weights of their own, in the order they ran."""
    order: list[_Visit] = []
    visits = {
        module: _Visit(name, module)
        for name, module in model.named_modules()
        if any(True for _ in module.parameters(recurse=False))
    }

    def before(module: torch.nn.Module, inputs: Any) -> None:
        visit = visits[module]
        if not visit.calls:
            order.append(visit)
            visit.input = inputs[0] if inputs else None
        visit.calls += 1
        visit.started = time.perf_counter()

    def after(module: torch.nn.Module, inputs: Any, output: Any) -> None:
        visit = visits[module]
        visit.seconds_by_round[-1] += time.perf_counter() - visit.started

    call()
    hooks = [module.register_forward_pre_hook(before) for module in visits]
    hooks += [module.register_forward_hook(after) for module in visits]
    times = []
    try:
        for _ in range(ROUNDS):
            for visit in visits.values():
                visit.calls = 0
                visit.seconds_by_round.append(0.0)
            order.clear()
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
    finally:
        for hook in hooks:
            hook.remove()
    return times, order


def _diagnose(visit: _Visit, sparsities: Sequence[float]) -> LayerDiagnosis:
    module, x = visit.module, visit.input
    parameters = list(module.parameters(recurse=False))
    weight = getattr(module, "weight", None)
    weight = weight if isinstance(weight, torch.Tensor) else max(parameters, key=torch.Tensor.numel)
    diagnosis = LayerDiagnosis(
        visit.name,
        type(module).__name__,
        tuple(weight.shape),
        tuple(x.shape) if isinstance(x, torch.Tensor) else (),
        visit.calls,
        statistics.median(visit.seconds_by_round),
        _density(weight),
        _density(x),
    )
    is_dense = isinstance(x, torch.Tensor) and not isinstance(x, SparseTensor) and x.numel() > 0
    is_timed = is_dense and weight.numel() > 0 and type(module) in KINDS
    if isinstance(module, torch.nn.Linear) and is_timed:
        return _diagnose_linear(diagnosis, module, x, sparsities)
    return replace(diagnosis, advice=_advise_other(module, x))


def _diagnose_linear(
    diagnosis: LayerDiagnosis, layer: torch.nn.Linear, x: torch.Tensor, sparsities: Sequence[float]
) -> LayerDiagnosis:
    """Time the layer as it is, pruned, and on a sparse input."""
    calls: dict[str, Callable[[], object]] = {"dense": functools.partial(layer, x)}
    norms: dict[float, float] = {}
    full_norm = float(layer.weight.norm())
    for sparsity in sparsities:
        pruned = SparseLinear.from_dense(layer, sparsity=sparsity)
        norms[sparsity] = float(pruned.values.norm()) / full_norm if full_norm else 0.0
        calls[f"{sparsity}"] = functools.partial(pruned, x)
    if diagnosis.weight_density < 1 - min(sparsities, default=1.0) / 2:
        calls["stored"] = functools.partial(SparseLinear.from_dense(layer), x)
    if diagnosis.input_density <= MAX_SPARSE_INPUT_DENSITY:
        flat = x.reshape(-1, x.shape[-1])
        calls["input"] = lambda: F.linear(from_torch(flat, format="csr"), layer.weight, layer.bias)
    times = timing.measure_fastest(calls)
    diagnosis = replace(
        diagnosis,
        dense=times["dense"],
        stored=times.get("stored"),
        sparse_input=times.get("input"),
        sparse={sparsity: times[f"{sparsity}"] for sparsity in sparsities},
        norm_kept=norms,
    )
    return replace(diagnosis, advice=_advice(diagnosis))


def _advice(layer: LayerDiagnosis) -> str:
    assert layer.dense is not None
    sentences = []
    if layer.stored is not None and layer.dense / layer.stored >= MIN_GAIN:
        sentences.append(
            f"{1 - layer.weight_density:.0%} of its weights are already zero: stored sparse, it is "
            f"{layer.dense / layer.stored:.1f} x as fast (scorch.nn.SparseLinear.from_dense(layer))"
        )
    if layer.sparse_input is not None and layer.dense / layer.sparse_input >= MIN_GAIN:
        sentences.append(
            f"{1 - layer.input_density:.0%} of its input is zero: passed as csr, it is "
            f"{layer.dense / layer.sparse_input:.1f} x as fast, conversion included"
        )
    smallest, largest = layer.gains_from, max(layer.sparse, default=None)
    if smallest is not None and largest is not None:
        gains = ", ".join(f"{layer.gain(s):.1f} x at {s:.0%}" for s in layer.sparse if s >= smallest)
        norm_text = f"{layer.norm_kept[smallest]:.0%} of the norm remains at {smallest:.0%}"
        sentences.append(f"faster if at least {smallest:.0%} pruned: {gains}; {norm_text}")
    elif largest is not None and not sentences:
        sentences.append(f"not faster up to {largest:.0%} pruned: {_explain_no_gain(layer)}")
    return "; ".join(sentences)


def _explain_no_gain(layer: LayerDiagnosis) -> str:
    assert layer.dense is not None
    if layer.dense < 2e-5:
        return "it is so small that call overhead dominates"
    return "PyTorch's dense product is faster on this input; smaller batches favor sparse"


_ADVICE_BY_LAYER = {
    torch.nn.Embedding: "dense lookup is hard to beat; a sparse table only saves memory",
    torch.nn.MultiheadAttention: "if tokens attend to few others, use scorch.nn.MultiheadAttention with a "
    "sparse mask (pairs=, scorch.nn.masks)",
    ConvNd: "scorch.sparsify(model, example=...) times it as a sparse convolution",
    SparseLinear: "already sparse; scorch.report compares it with the dense layer",
    torch.nn.RNNBase: "scorch.sparsify(model, example=...) times it as a sparse recurrent layer",
}


def _advise_other(module: torch.nn.Module, x: Any) -> str:
    """Advise on layers that are not timed sparse."""
    for kind, advice in _ADVICE_BY_LAYER.items():
        if isinstance(module, kind):
            return advice
    if isinstance(x, SparseTensor):
        return "its input is already sparse"
    return "its input is empty: nothing was timed" if isinstance(x, torch.Tensor) and not x.numel() else ""


def _density(tensor: Any) -> float:
    if isinstance(tensor, SparseTensor):
        return tensor.density
    if not isinstance(tensor, torch.Tensor) or not tensor.numel():
        return 1.0
    return int(torch.count_nonzero(tensor)) / tensor.numel()

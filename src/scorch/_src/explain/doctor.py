"""``scorch.doctor``: find the layers of a model that would gain from sparsity, measured on an example.

The model runs on the example, and the input of each layer is recorded. Then every layer that has a sparse
form is timed on that input as it is, and with its smallest weights pruned. The model is not changed.
"""

from __future__ import annotations

import functools
import math
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
from scorch._src.nn import prune, timing
from scorch._src.nn.pattern import weight_format
from scorch._src.nn.pruned.choose_storage import make_sparse, prune_layer
from scorch._src.nn.pruned.prunable import is_sparse_layer, kind_of_layer, parts_of, walk_layers
from scorch._src.nn.sparsification import reason_for
from scorch._src.tensor.create.construct import from_torch
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import ConvNd
from scorch.errors import ArgumentError, OperandError, add_note, kind_of

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

    Each layer that ``scorch.sparsify`` can store sparse, except embeddings, is timed on its own input as it
    is and after magnitude pruning to each of ``sparsities``; a Linear layer also with its input as a sparse
    tensor if that is mostly zeros. The model runs in evaluation mode, without gradients, and is not changed.

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
        raise OperandError(f"doctor expected a torch.nn.Module, but got {kind_of(model)}")
    sparsities = (sparsities,) if isinstance(sparsities, int | float) else tuple(sparsities)
    for sparsity in sparsities:
        if isinstance(sparsity, bool) or not isinstance(sparsity, int | float) or not 0 < sparsity < 1:
            raise ArgumentError(
                f"sparsities must be fractions of weights to prune, between 0 and 1, but got {sparsity!r}"
            )
    arguments, options = timing.bind_example(example)
    call = functools.partial(model, *arguments, **options)
    state = torch.get_rng_state()
    modes = {module: module.training for module in model.modules()}
    try:
        model.eval()
        with torch.no_grad():
            try:
                times, visits = _observe(model, call)
            except Exception as error:
                add_note(error, timing.RUNNING_EXAMPLE)
                raise
            layers = [_diagnose(visit, sorted(sparsities)) for visit in visits]
    finally:
        for module, mode in modes.items():
            module.training = mode
        torch.set_rng_state(state)
    spread = statistics.median(times) / min(times) if min(times) else 1.0
    name, threads = model._get_name(), host_threads()
    diagnosis = Diagnosis(name, statistics.median(times), threads, tuple(layers), max(spread, _load()))
    print_unless(quiet, diagnosis)
    return diagnosis


def _load() -> float:
    """Return the number of other processes per core; 0 if the system does not report it."""
    try:
        return max(os.getloadavg()[0] - 1, 0.0) / (os.cpu_count() or 1)
    except (OSError, AttributeError):
        return 0.0


@dataclass
class _Visit:
    """A layer that ran: the arguments of its first call, how often it was called and for how long."""

    name: str
    module: torch.nn.Module
    first_call: timing.Call = ((), {})
    calls: int = 0
    started: float = 0.0
    seconds_by_round: list[float] = field(default_factory=list)


def _observe(model: torch.nn.Module, call: Callable[[], Any]) -> tuple[list[float], list[_Visit]]:
    """Return the times of the model, and the layers with weights of their own, in the order they ran."""
    order: list[_Visit] = []
    visits = {module: _Visit(name, module) for name, module in _layers_of(model).items()}

    def before(module: torch.nn.Module, arguments: Any, options: Any) -> None:
        visit = visits[module]
        if not visit.calls:
            order.append(visit)
            visit.first_call = tuple(arguments), dict(options)
        visit.calls += 1
        visit.started = time.perf_counter()

    def after(module: torch.nn.Module, inputs: Any, output: Any) -> None:
        visit = visits[module]
        visit.seconds_by_round[-1] += time.perf_counter() - visit.started

    call()
    hooks = [module.register_forward_pre_hook(before, with_kwargs=True) for module in visits]
    hooks += [module.register_forward_hook(after) for module in visits]
    times = []
    try:
        with timing.calling_parts():
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


def _layers_of(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Return the layers with weights, by name, without the modules that they consist of."""
    return {
        name: module
        for name, module, is_layer in walk_layers(model)
        if is_layer or any(True for _ in module.parameters(recurse=False))
    }


def _diagnose(visit: _Visit, sparsities: Sequence[float]) -> LayerDiagnosis:
    module, (arguments, options) = visit.module, visit.first_call
    x = next(iter((*arguments, *options.values())), None)
    weight = getattr(module, "weight", None)
    weight = weight if isinstance(weight, torch.Tensor) else max(module.parameters(), key=torch.Tensor.numel)
    diagnosis = LayerDiagnosis(
        visit.name,
        module._get_name(),
        tuple(weight.shape),
        tuple(x.shape) if isinstance(x, torch.Tensor) else (),
        visit.calls,
        statistics.median(visit.seconds_by_round),
        _density(weight),
        _density(x),
    )
    is_dense = isinstance(x, torch.Tensor) and not isinstance(x, SparseTensor) and x.numel() > 0
    is_timed = kind_of_layer(module) is not None and not isinstance(module, torch.nn.Embedding)
    if is_timed and is_dense and weight.numel() > 0:
        diagnosis = _measure(diagnosis, module, visit.first_call, sparsities)
        advice = [_advice(diagnosis), _advise_other(module, x)]
        return replace(diagnosis, advice="; ".join(filter(None, advice)))
    return replace(diagnosis, advice=_advise_other(module, x) or _explain_no_timing(module, x))


def _measure(
    diagnosis: LayerDiagnosis, layer: torch.nn.Module, call: timing.Call, sparsities: Sequence[float]
) -> LayerDiagnosis:
    """Time a layer as it is, pruned, and on a sparse input if it is linear."""
    arguments, options = call
    calls: dict[str, Callable[[], object]] = {"dense": functools.partial(layer, *arguments, **options)}
    norms: dict[float, float] = {}
    for sparsity in sparsities:
        pruned, norms[sparsity] = _prune(layer, sparsity)
        calls[f"{sparsity}"] = functools.partial(pruned, *arguments, **options)
    if diagnosis.weight_density < 1 - min(sparsities, default=1.0) / 2:
        stored, _ = _prune(layer, None)
        calls["stored"] = functools.partial(stored, *arguments, **options)
    if isinstance(layer, torch.nn.Linear) and diagnosis.input_density <= MAX_SPARSE_INPUT_DENSITY:
        flat = arguments[0].reshape(-1, layer.in_features)
        calls["input"] = lambda: F.linear(from_torch(flat, format="csr"), layer.weight, layer.bias)
    times = timing.measure_fastest(calls)
    return replace(
        diagnosis,
        dense=times["dense"],
        stored=times.get("stored"),
        sparse_input=times.get("input"),
        sparse={sparsity: times[f"{sparsity}"] for sparsity in sparsities},
        norm_kept=norms,
    )


def _prune(layer: torch.nn.Module, sparsity: float | None) -> tuple[torch.nn.Module, float]:
    """Return a pruned sparse layer, and the fraction of the norm that it keeps; None prunes its zeros."""
    weights = {part.table: part.matrix for part in parts_of(layer)}
    masks = {
        table: weight != 0 if sparsity is None else prune.magnitude_mask(weight, 1 - sparsity)
        for table, weight in weights.items()
    }
    full = math.hypot(*(float(weight.norm()) for weight in weights.values()))
    kept = math.hypot(*(float((weight * masks[table]).norm()) for table, weight in weights.items()))
    pruned = make_sparse(prune_layer(layer, masks), masks, weight_format("csr"))
    return pruned.eval(), kept / full if full else 0.0


def _advice(layer: LayerDiagnosis) -> str:
    assert layer.dense is not None
    sentences = []
    if layer.stored is not None and layer.dense / layer.stored >= MIN_GAIN:
        sentences.append(
            f"{1 - layer.weight_density:.0%} of its weights are already zero: stored sparse, it is "
            f"{layer.dense / layer.stored:.1f} x as fast ({_how_to_store(layer)})"
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


def _how_to_store(layer: LayerDiagnosis) -> str:
    if layer.kind == "Linear":
        return "scorch.nn.SparseLinear.from_dense(layer)"
    return f"scorch.sparsify(model, sparsity={1 - layer.weight_density:.2f})"


def _explain_no_gain(layer: LayerDiagnosis) -> str:
    assert layer.dense is not None
    if layer.dense < 2e-5:
        return "it is so small that call overhead dominates"
    return "PyTorch's dense product is faster on this input; smaller batches favor sparse"


_ADVICE_BY_LAYER = {
    torch.nn.Embedding: "dense lookup is hard to beat; a sparse table only saves memory",
    torch.nn.MultiheadAttention: "if tokens attend to few others, use scorch.nn.MultiheadAttention with a "
    "sparse mask (pairs=, scorch.nn.masks)",
}


def _advise_other(module: torch.nn.Module, x: Any) -> str:
    """Advise on alternatives to pruning."""
    if is_sparse_layer(module):
        return "already sparse; scorch.report compares it with the dense layer"
    return next((advice for kind, advice in _ADVICE_BY_LAYER.items() if isinstance(module, kind)), "")


def _explain_no_timing(module: torch.nn.Module, x: Any) -> str:
    """Explain why a layer was not timed sparse; "" for layers without matrices."""
    if isinstance(x, SparseTensor):
        return "its input is already sparse"
    if isinstance(x, torch.Tensor) and not x.numel():
        return "its input is empty: nothing was timed"
    has_matrices = isinstance(module, (torch.nn.Linear, torch.nn.RNNBase, ConvNd))
    return f"not timed sparse: {reason_for(module)}" if has_matrices else ""


def _density(tensor: Any) -> float:
    if isinstance(tensor, SparseTensor):
        return tensor.density
    if not isinstance(tensor, torch.Tensor) or not tensor.numel():
        return 1.0
    return int(torch.count_nonzero(tensor)) / tensor.numel()

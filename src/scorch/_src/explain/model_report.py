"""``scorch.report``: the layers of a model, their storage, and their time."""

from __future__ import annotations

import math

import torch

from scorch._src.backends.base import host_threads
from scorch._src.dataclass import dataclass
from scorch._src.explain.render import print_unless
from scorch._src.html import page
from scorch._src.name_hints import suggests_keywords
from scorch._src.nn import timing
from scorch._src.nn.pruned.prunable import (
    dense_weights,
    example_call,
    is_sparse_layer,
    kind_of_layer,
    kind_of_sparse_layer,
    tables_of,
    walk_layers,
)
from scorch._src.nn.sparsification import Sparsification, sparsification_of
from scorch._src.storage.budget import is_within_budget
from scorch._src.units import format_seconds, format_table, group_layers
from scorch.errors import ArgumentError, OperandError, counted, is_integer, kind_of

MAX_SHAPES = 3


@dataclass(frozen=True)
class LayerReport:
    """One layer: its weights as they are stored, and times in seconds; None where nothing was measured."""

    name: str
    kind: str
    shapes: tuple[tuple[int, ...], ...]
    format: str
    density: float
    bytes: int
    dense_bytes: int
    expected: float | None
    measured: float | None
    dense_measured: float | None
    reason: str

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the weight; the number of elements if there are several weights."""
        return self.shapes[0] if len(self.shapes) == 1 else (sum(map(math.prod, self.shapes)),)

    def format_shapes(self) -> str:
        """Return the shapes as text, the first few if there are many."""
        shown = [" x ".join(map(str, shape)) for shape in self.shapes[:MAX_SHAPES]]
        return ", ".join([*shown, "..."] if len(self.shapes) > MAX_SHAPES else shown)


@dataclass(frozen=True)
class ModelReport:
    """All layers with weights, in order; as a string, a table.

    Attributes:
        layers: density, bytes and times of each layer.
        batch: the number of inputs that were measured.
        inputs: what these are, for each kind of layer.
        threads: the number of threads.
        sparsification: what ``scorch.sparsify`` did to the model.

    Example:

        >>> import torch, scorch
        >>> scorch.report(torch.nn.Linear(10, 10), measure=False, quiet=True).bytes
        400
    """

    layers: tuple[LayerReport, ...]
    batch: int
    threads: int
    inputs: tuple[str, ...]
    sparsification: Sparsification  # of weights, parameters with two dimensions or more

    @property
    def bytes(self) -> int:
        """The bytes of the weights and index arrays."""
        return sum(layer.bytes for layer in self.layers)

    @property
    def dense_bytes(self) -> int:
        """The bytes that all weights would take if they were dense."""
        return sum(layer.dense_bytes for layer in self.layers)

    def _rows(self) -> list[list[str]]:
        head = ["layer", "kind", "shape", "format", "density", "bytes", "of dense"]
        rows = [[*head, "expected", "measured", "dense"]]
        for layer in self.layers:
            name, density = layer.name or "(model)", f"{layer.density:.1%}"
            names = [name, layer.kind, layer.format_shapes(), layer.format, density]
            rows.append([*names, *_format_bytes_and_times(layer, layer)])
        rows.append(["all", "", "", "", "", *_format_bytes_and_times(self, *self.layers)])
        return rows

    def _notes(self) -> list[str]:
        threads = counted(self.threads, "thread")
        inputs = ", ".join(self.inputs) or "rows"
        times = (
            f"times for a batch of {self.batch}: {inputs}; {threads}; the minimum of several calls; "
            "dense: the layer with a dense weight"
        )
        found = [
            (layer.name, layer.reason)
            for layer in self.layers
            if layer.reason and layer.reason != _speedup(layer.measured, layer.dense_measured, self.batch)
        ]
        reasons = [
            f"{names} {'is' if count == 1 else 'are'} {reason}"
            for names, reason, count in group_layers(found)
        ]
        return [times, *reasons, *str(self.sparsification).splitlines()]

    def __str__(self) -> str:
        return "\n".join([*format_table(self._rows()), *self._notes()])

    def _repr_html_(self) -> str:
        head, *rows = self._rows()
        cells = [[page.unbroken(cell) for cell in row] for row in rows]
        return page.page(page.table(head, cells, range(4, len(head))), page.listing("Notes", self._notes()))

    def __repr__(self) -> str:
        return f"<report of {len(self.layers)} layers, {self.bytes:,} bytes, {self.dense_bytes:,} if dense>"


def _format_bytes_and_times(sizes: LayerReport | ModelReport, *layers: LayerReport) -> list[str]:
    times = []
    for name in ("expected", "measured", "dense_measured"):
        known = [seconds for layer in layers if (seconds := getattr(layer, name)) is not None]
        times.append(format_seconds(sum(known) if known else None))
    return [f"{sizes.bytes:,}", f"{sizes.bytes / max(sizes.dense_bytes, 1):.2f}", *times]


@suggests_keywords
def report(
    model: torch.nn.Module, *, batch: int = 32, measure: bool = True, quiet: bool | None = None
) -> ModelReport:
    """Print the layers of a model that have weights: density, size, expected and measured time.

    Times are those of each layer on its own, the minimum of several calls, next to those of the same layer
    with a dense weight. The expected time is that of reading the weight, or multiplying by it, at the speed
    of this machine. The sparsity over all weights and the layers that ``scorch.sparsify`` left dense follow.

    Args:
        model: the model.
        batch: the number of inputs, which are random; an ``example`` of ``scorch.sparsify`` is not kept.
        measure: whether to run the layers; without it, only the expected times are shown.
        quiet: whether to print nothing. In notebooks, which show what the last line of a cell returns,
            the table is printed only with ``quiet=False``.

    Returns:
        The numbers, which print as the table.

    Raises:
        OperandError: ``model`` is not a module.
        ArgumentError: ``batch`` is not a positive integer.

    Example:

        >>> import torch, scorch
        >>> layer = scorch.nn.SparseLinear(100, 50, sparsity=0.9)
        >>> scorch.report(layer, measure=False, quiet=True).layers[0].density
        0.1
    """
    if not isinstance(model, torch.nn.Module):
        raise OperandError(f"report expected a torch.nn.Module, but got {kind_of(model)}")
    if not is_integer(batch, 1):
        raise ArgumentError(f"batch must be a positive integer, but got {batch!r}")
    layers: list[LayerReport] = []
    inputs: dict[str, None] = {}
    for name, module, is_layer in walk_layers(model):
        layer = _layer(name, module, batch, measure)
        if layer is not None:
            layers.append(layer)
        if is_layer:
            inputs[(kind_of_layer(module) or kind_of_sparse_layer(module)).inputs] = None
    sparsification = getattr(model, "sparsification", None)
    names = {name for name, _ in model.named_modules()}
    dense_layers = () if sparsification is None else sparsification.skipped
    skipped = {layer.name: layer.reason for layer in dense_layers if layer.name in names}
    current = sparsification_of(model, None if sparsification is None else sparsification.asked, skipped)
    result = ModelReport(tuple(layers), batch, host_threads(), tuple(inputs), current)
    print_unless(quiet, result)
    return result


def _layer(name: str, module: torch.nn.Module, batch: int, measure: bool) -> LayerReport | None:
    is_sparse = is_sparse_layer(module)
    is_timed = is_sparse or kind_of_layer(module) is not None
    if is_sparse:
        tables = list(tables_of(module).values())
        shapes: tuple[tuple[int, ...], ...] = tuple((t.out_features, t.in_features) for t in tables)
        element, nonzero = tables[0].values.element_size(), sum(table.nnz for table in tables)
        count, form = sum(map(math.prod, shapes)), str(tables[0].format)
        size = nonzero * element + sum(table.pattern.bytes() for table in tables)
        dense_size = count * element
    else:
        weights = list(dense_weights(module) if is_timed else module.parameters(recurse=False))
        if not weights:
            return None
        count = sum(weight.numel() for weight in weights)
        size = dense_size = sum(weight.numel() * weight.element_size() for weight in weights)
        nonzero, form = sum(map(_count_nonzeros, weights)), "dense"
        shapes = tuple(tuple(weight.shape) for weight in weights)
    expected = timing.estimate_seconds(module, batch) if is_timed and measure else None
    times = _times(module, batch, dense_size) if is_timed and measure else {}
    reason = _reason(module, batch, times) if is_timed else ""
    measured = (expected, times.get("own"), times.get("dense"))
    density = nonzero / max(count, 1)
    kind = module._get_name()
    return LayerReport(name, kind, shapes, form, density, size, dense_size, *measured, reason)


def _reason(module: torch.nn.Module, batch: int, times: dict[str, float]) -> str:
    """Explain why a layer is stored as it is, with the times of this report where it has them."""
    decision = getattr(module, "sparsified", None)
    if decision is None:
        return ""
    if not decision.is_sparse:
        return f"dense: {decision.reason}"
    speedup = _speedup(times.get("own"), times.get("dense"), batch) if decision.seconds else ""
    return speedup or f"sparse: {decision.reason}"


def _speedup(own: float | None, dense: float | None, batch: int) -> str:
    """Return the reason for a sparse layer that its times give, which the table has too."""
    return "" if own is None or dense is None else f"sparse: {dense / own:.1f} x as fast at batch {batch}"


def _count_nonzeros(weight: torch.Tensor) -> int:
    """Count the nonzeros of a weight, or all elements of a vector, such as a bias, which is never pruned."""
    return int(torch.count_nonzero(weight.detach())) if weight.dim() > 1 else weight.numel()


def _times(module: torch.nn.Module, batch: int, dense_bytes: int) -> dict[str, float]:
    calls = {"own": example_call(module, batch)}
    with timing.evaluating(module):
        if is_sparse_layer(module):
            if is_within_budget(dense_bytes, next(module.parameters()).device):
                calls["dense"] = example_call(module.to_dense().eval(), batch)  # type: ignore[operator]
            return timing.measure_fastest(calls)
        seconds = timing.measure_fastest(calls)
        return {**seconds, "dense": seconds["own"]}

"""The diagnosis of ``scorch.doctor``, and the table that ``print`` shows of it."""

from __future__ import annotations

from dataclasses import asdict, field
from typing import Any

from scorch._src.dataclass import dataclass
from scorch._src.html import page
from scorch._src.units import format_seconds, format_table, group_layers
from scorch.errors import counted

MAX_STEADY_VARIATION = 1.3
MIN_GAIN = 1.05  # speedup from which on it is called a gain


@dataclass(frozen=True)
class LayerDiagnosis:
    """One layer on its input in the example; times in seconds.

    ``seconds``
        inside the model, all of its calls together
    ``weight_density``, ``input_density``
        the fractions of nonzeros
    ``dense``
        of the layer on its own
    ``stored``
        stored sparse, with those weights that are not zero
    ``sparse_input``
        with its input made sparse first
    ``sparse``
        after magnitude pruning, by sparsity
    ``norm_kept``
        the fraction of the weight's norm that remains then
    ``advice``
        a suggestion, in a sentence
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    input_shape: tuple[int, ...]
    calls: int
    seconds: float
    weight_density: float
    input_density: float
    dense: float | None = None
    stored: float | None = None
    sparse_input: float | None = None
    sparse: dict[float, float] = field(default_factory=dict)
    norm_kept: dict[float, float] = field(default_factory=dict)
    advice: str = ""

    def gain(self, sparsity: float) -> float | None:
        """Return the speedup of the layer with that fraction of its weights pruned."""
        seconds = self.sparse.get(sparsity)
        return None if seconds is None or self.dense is None else self.dense / seconds

    @property
    def gains_from(self) -> float | None:
        """The smallest tested sparsity above which the layer is always faster sparse."""
        smallest = None
        for sparsity in sorted(self.sparse, reverse=True):
            if (self.gain(sparsity) or 0.0) < MIN_GAIN:
                break
            smallest = sparsity
        return smallest


@dataclass(frozen=True)
class Diagnosis:
    """All layers with weights, in the order in which they ran; as a string, a table with suggestions."""

    model: str
    seconds: float
    threads: int
    layers: tuple[LayerDiagnosis, ...]
    unrest: float = 1.0  # how much times vary, or how many other processes each core has

    def seconds_at(self, sparsity: float) -> float:
        """Estimate the time of the model if the layers that gain are pruned to that sparsity."""
        saved = remaining = 0.0
        for layer in self.layers:
            gain = layer.gain(sparsity)
            if gain is not None and gain >= MIN_GAIN:
                saved += layer.seconds * (1 - 1 / gain)
                remaining += layer.seconds / gain
        return max(self.seconds - saved, remaining)

    @property
    def advice(self) -> tuple[str, ...]:
        """Suggestions, one for each layer that has any."""
        return tuple(f"{layer.name or '(model)'}: {layer.advice}" for layer in self.layers if layer.advice)

    def _suggestions(self) -> list[str]:
        """Return the suggestions, each once for all layers that have it."""
        found = [(layer.name, layer.advice) for layer in self.layers if layer.advice]
        return [f"{names}: {advice}" for names, advice, _ in group_layers(found)]

    def to_dict(self) -> dict[str, Any]:
        """Convert everything to dictionaries, lists, numbers and strings, for JSON."""
        return {**asdict(self), "advice": list(self.advice)}

    @property
    def _tried(self) -> list[float]:
        return sorted({sparsity for layer in self.layers for sparsity in layer.sparse})

    def _rows(self) -> tuple[list[str], list[list[str]]]:
        tried = self._tried
        head = ["layer", "kind", "weight", "input", "nonzero", "time", "share", "layer only"]
        head += [f"{sparsity:.0%} pruned" for sparsity in tried]
        rows = []
        for layer in self.layers:
            sizes = [" x ".join(map(str, shape)) for shape in (layer.shape, layer.input_shape)]
            nonzero = f"{layer.weight_density:.0%} / {layer.input_density:.0%}"
            share = f"{layer.seconds / self.seconds:.0%}" if self.seconds else "-"
            times = [format_seconds(layer.seconds), share, format_seconds(layer.dense)]
            gains = [layer.gain(sparsity) for sparsity in tried]
            times += ["-" if gain is None else f"{gain:.2f} x" for gain in gains]
            rows.append([layer.name or "(model)", layer.kind, *sizes, nonzero, *times])
        return head, rows

    def _summary(self) -> list[str]:
        lines = [f"{self.model}: {format_seconds(self.seconds)} with {counted(self.threads, 'thread')}"]
        for sparsity in self._tried:
            model_seconds = self.seconds_at(sparsity)
            if model_seconds < self.seconds / MIN_GAIN:
                gain = f"{self.seconds / max(model_seconds, 1e-12):.2f} x"
                lines.append(
                    f"about {format_seconds(model_seconds)} ({gain}) "
                    f"with {sparsity:.0%} of the weights pruned"
                )
        would_gain = len(lines) > 1
        if self.unrest > MAX_STEADY_VARIATION:
            lines.append("timings are noisy or the machine is busy: repeat on an idle machine")
        if would_gain:
            lines.append(
                "to prune, call scorch.sparsify(model, sparsity=...); check the accuracy, fine-tune if needed"
            )
        return lines

    def __str__(self) -> str:
        head, rows = self._rows()
        legend = (
            "nonzero: of the weight / of the input; layer only: dense, outside the model; "
            "pruned: speedup with that fraction of the weights pruned"
        )
        lines = [*format_table([head, *rows]), legend] if rows else ["no layer with weights was called"]
        return "\n".join([*lines, "", *self._summary(), "", *self._suggestions()]).rstrip()

    def __repr__(self) -> str:
        return f"<diagnosis of {len(self.layers)} layers of {self.model}; print it to read it>"

    def to_html(self) -> str:
        """Return the diagnosis as a page of its own."""
        return page.document(f"scorch.doctor: {self.model}", self._repr_html_())

    def _repr_html_(self) -> str:
        head, rows = self._rows()
        cells = [[page.unbroken(cell) for cell in row] for row in rows]
        return page.page(
            page.table(head, cells, range(4, len(head))),
            page.listing("Summary", self._summary()),
            page.listing("Suggestions", self._suggestions()) if self.advice else "",
        )

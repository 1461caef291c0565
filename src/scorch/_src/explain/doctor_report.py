"""What ``scorch.doctor`` finds out about a model, and the table that ``print`` shows of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from scorch._src.explain import html as page
from scorch._src.explain.function_report import in_seconds

RESTLESS = 1.3
WORTH = 1.05  # times as fast, from where on it is called a gain


@dataclass(frozen=True)
class LayerDiagnosis:
    """One layer on the input that the example gave it; times in seconds.

    ``seconds``
        inside of the model, all of its calls together
    ``weight_density``, ``input_density``
        the shares of nonzeros
    ``dense``
        of the layer alone
    ``stored``
        stored sparse, with those weights that are not zero
    ``sparse_input``
        with its input made sparse first
    ``sparse``
        with so many of its smallest weights taken out, by share
    ``norm_kept``
        the share of the weight's norm that stays then
    ``advice``
        what follows from that, in a sentence
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
        """How many times faster the layer is with that share of its weights taken out."""
        spent = self.sparse.get(sparsity)
        return None if spent is None or self.dense is None else self.dense / spent

    @property
    def gains_from(self) -> float | None:
        """The smallest share that was tried from which on the layer is faster sparse."""
        found = None
        for sparsity in sorted(self.sparse, reverse=True):
            if (self.gain(sparsity) or 0.0) < WORTH:
                break
            found = sparsity
        return found


@dataclass(frozen=True)
class Diagnosis:
    """All layers with weights, in the order in which they ran; as a string it is a table with advice."""

    model: str
    seconds: float
    threads: int
    layers: tuple[LayerDiagnosis, ...]
    unrest: float = 1.0  # how much times vary, or how many other processes each core has

    def seconds_at(self, sparsity: float) -> float:
        """What the model would take with that share taken out of those layers that gain from it."""
        spared = left = 0.0
        for layer in self.layers:
            gain = layer.gain(sparsity)
            if gain is not None and gain >= WORTH:
                spared += layer.seconds * (1 - 1 / gain)
                left += layer.seconds / gain
        return max(self.seconds - spared, left)

    @property
    def advice(self) -> tuple[str, ...]:
        """A sentence for each layer that there is something to say of."""
        return tuple(f"{layer.name or '(model)'}: {layer.advice}" for layer in self.layers if layer.advice)

    def to_dict(self) -> dict[str, Any]:
        """Everything as dictionaries, lists, numbers and texts, for JSON."""
        return {**asdict(self), "advice": list(self.advice)}

    def _rows(self) -> tuple[list[str], list[list[str]]]:
        tried = sorted({sparsity for layer in self.layers for sparsity in layer.sparse})
        head = ["layer", "kind", "weight", "input", "nonzero", "time", "share", "alone"]
        head += [f"{sparsity:.0%} out" for sparsity in tried]
        rows = []
        for layer in self.layers:
            sizes = [" x ".join(map(str, shape)) for shape in (layer.shape, layer.input_shape)]
            share = f"{layer.seconds / self.seconds:.0%}" if self.seconds else "-"
            nonzero = f"{layer.weight_density:.0%} / {layer.input_density:.0%}"
            cells = [layer.name or "(model)", layer.kind, *sizes, nonzero, in_seconds(layer.seconds), share]
            gains = [layer.gain(sparsity) for sparsity in tried]
            cells += [in_seconds(layer.dense), *("-" if gain is None else f"{gain:.2f} x" for gain in gains)]
            rows.append(cells)
        return head, rows

    def _summary(self) -> list[str]:
        tried = sorted({sparsity for layer in self.layers for sparsity in layer.sparse})
        lines = [f"{self.model}: {in_seconds(self.seconds)} with {self.threads} threads"]
        for sparsity in tried:
            whole = self.seconds_at(sparsity)
            if whole < self.seconds / WORTH:
                gain = f"{self.seconds / max(whole, 1e-12):.2f} x"
                lines.append(
                    f"about {in_seconds(whole)} ({gain}) with {sparsity:.0%} of the weights taken out"
                )
        if self.unrest > RESTLESS:
            lines.append("times vary or other work is running: gains on a quiet machine are others")
        if len(lines) > 1 and tried:
            lines.append(
                "scorch.sparsify(model, sparsity=...) does that; accuracy must be tried, or trained back"
            )
        return lines

    def __str__(self) -> str:
        head, rows = self._rows()
        lines = []
        if rows:
            widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
            for row in (head, *rows):
                cells = [
                    cell.ljust(width) if column < 4 else cell.rjust(width)
                    for column, (cell, width) in enumerate(zip(row, widths, strict=True))
                ]
                lines.append("  ".join(cells).rstrip())
            lines.insert(1, "-" * max(map(len, lines)))
            lines.append(
                "nonzero: of the weight / of the input; alone: the layer by itself; "
                "out: times as fast with so many weights taken out"
            )
        else:
            lines.append("no layer with weights was called")
        return "\n".join([*lines, "", *self._summary(), "", *self.advice]).rstrip()

    def __repr__(self) -> str:
        return f"<diagnosis of {len(self.layers)} layers of {self.model}; print it to read it>"

    def _repr_html_(self) -> str:
        head, rows = self._rows()
        cells = [[page.text(cell) for cell in row] for row in rows]
        return page.page(
            page.table(head, cells, range(4, len(head))),
            page.listing("In all", self._summary()),
            page.listing("Layer by layer", self.advice) if self.advice else "",
        )

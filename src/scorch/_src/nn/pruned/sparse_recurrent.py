"""Recurrent layers with sparse matrices: LSTM, GRU and RNN, and their cells.

The inputs of all steps are multiplied at once, the state step by step. Steps work on packed sequences, in
which the rows of a step follow those of the step before; a plain batch has the same number of rows at every
step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import PackedSequence

from scorch._src.name_hints import created_by_sparsify
from scorch._src.nn.sparse_layer import SparseLayer
from scorch._src.nn.sparse_linear import SparseLinear
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import ShapeError, UnsupportedError

State = tuple[torch.Tensor, ...]  # h, and the cell of an LSTM
Step = Callable[[torch.Tensor, torch.Tensor, State], State]  # of what inputs and states are multiplied to
SETTINGS = (
    "mode",
    "input_size",
    "hidden_size",
    "num_layers",
    "bias",
    "batch_first",
    "dropout",
    "bidirectional",
    "proj_size",
)


def _lstm_step(inputs: torch.Tensor, states: torch.Tensor, state: State) -> State:
    i, f, g, o = (inputs + states).chunk(4, -1)
    cell = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(cell), cell


def _gru_step(inputs: torch.Tensor, states: torch.Tensor, state: State) -> State:
    size = state[0].shape[-1]
    both = torch.sigmoid(inputs[..., : 2 * size] + states[..., : 2 * size])
    reset, update = both.chunk(2, -1)
    new = torch.tanh(inputs[..., 2 * size :] + reset * states[..., 2 * size :])
    return (torch.lerp(new, state[0], update),)


STEPS: dict[str, Step] = {
    "LSTM": _lstm_step,
    "GRU": _gru_step,
    "RNN_TANH": lambda inputs, states, state: (torch.tanh(inputs + states),),
    "RNN_RELU": lambda inputs, states, state: (torch.relu(inputs + states),),
}


def matrices_of(layer: torch.nn.Module) -> dict[str, tuple[str, str]]:
    """Return the names of the weight and bias in PyTorch's layer for each matrix, such as ``ih_l0``."""
    names = (name for name, _ in layer.named_parameters() if name.startswith("weight_"))
    tables = [name.removeprefix("weight_").removesuffix("_orig") for name in names]
    return {table: (f"weight_{table}", f"bias_{table}") for table in tables}


class _Matrices(SparseLayer):
    """What layers and cells share: their sparse matrices, and how dense ones are loaded.

    The weights and biases have their names in PyTorch's layer, too: ``weight_ih_l0`` is ``ih_l0.weight``.
    """

    def __getattr__(self, name: str) -> Any:
        kind, _, table = name.partition("_")
        if kind in ("weight", "bias") and table in self.__dict__["_modules"]:
            return getattr(self.__dict__["_modules"][table], kind)
        return super().__getattr__(name)

    def register_parameter(self, name: str, param: torch.nn.Parameter | None) -> None:
        """Refuse a bias by its name in PyTorch's layer, which is that of a matrix."""
        if name.startswith("bias_"):
            raise UnsupportedError(f"set layer.{name.removeprefix('bias_')}.bias instead of {name}")
        super().register_parameter(name, param)

    def _add_matrices(self, weights: dict[str, SparseTensor], layer: torch.nn.Module) -> None:
        for table, (_, bias) in matrices_of(layer).items():
            self.add_module(table, SparseLinear.from_weight(weights[table], getattr(layer, bias, None)))

    def _copy_matrices(self, layer: torch.nn.Module) -> torch.nn.Module:
        """Copy the matrices to PyTorch's layer; return it."""
        with torch.no_grad():
            for table, (weight, bias) in matrices_of(layer).items():
                sparse: SparseLinear = getattr(self, table)
                getattr(layer, weight).copy_(sparse.weight.detach().to_dense())
                if sparse.bias is not None:
                    getattr(layer, bias).copy_(sparse.bias)
        return layer

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        """Accept dense weights, too, of which only the stored elements are loaded."""
        for table in self._modules:
            for kind in ("weight", "bias"):
                value = state_dict.pop(f"{prefix}{kind}_{table}", None)
                if value is not None:
                    state_dict[f"{prefix}{table}.{kind}"] = value
        super()._load_from_state_dict(state_dict, prefix, *args)


class SparseRecurrent(_Matrices):
    """Base class of recurrent layers with sparse matrices ``ih_l0``, ``hh_l0``, ...

    Call it like PyTorch's layer, on packed sequences, too; ``scorch.sparsify`` creates it.
    """

    mode: str
    input_size: int
    hidden_size: int
    num_layers: int
    bias: bool
    batch_first: bool
    dropout: float
    bidirectional: bool
    proj_size: int

    @created_by_sparsify
    def __init__(self, weights: dict[str, SparseTensor], layer: torch.nn.RNNBase) -> None:
        super().__init__()
        for name in SETTINGS:
            setattr(self, name, getattr(layer, name))
        self._add_matrices(weights, layer)

    @classmethod
    def from_weights(cls, weights: dict[str, SparseTensor], layer: torch.nn.RNNBase) -> SparseRecurrent:
        """Return a layer with these matrices by name, and the biases and settings of ``layer``."""
        kind = {"LSTM": SparseLSTM, "GRU": SparseGRU}.get(layer.mode, SparseRNN)
        return kind(weights, layer)

    def flatten_parameters(self) -> None:
        """Do nothing: there is no copy of the matrices to lay out."""

    def forward(self, input: Any, hx: Any = None) -> Any:
        """Return the outputs of the last layer at all steps, and the states of all layers after the last."""
        if isinstance(input, PackedSequence):
            data, sizes, order, back = input
            output, state = self._run(data, sizes.tolist(), self._start(hx, data, int(sizes[0]), order))
            return PackedSequence(output, sizes, order, back), self._give_back(state, back)
        if input.dim() not in (2, 3):
            raise ShapeError(f"the input must be 2-D or 3-D, but got {input.dim()} dimensions")
        is_batched = input.dim() == 3
        x = input if is_batched else input.unsqueeze(1)
        if hx is not None and not is_batched:
            hx = tuple(h.unsqueeze(1) for h in hx) if isinstance(hx, tuple) else hx.unsqueeze(1)
        x = x.transpose(0, 1) if self.batch_first and is_batched else x
        steps, batch = x.shape[:2]
        output, state = self._run(x.flatten(0, 1), [batch] * steps, self._start(hx, x, batch, None))
        output = output.unflatten(0, (steps, batch))
        if not is_batched:
            return output.squeeze(1), self._give_back(tuple(h.squeeze(1) for h in state), None)
        return output.transpose(0, 1) if self.batch_first else output, self._give_back(state, None)

    def _start(self, hx: Any, x: torch.Tensor, batch: int, order: torch.Tensor | None) -> State:
        """Return the states before the first step, (layers and directions, batch, features)."""
        if x.shape[-1] != self.input_size:
            raise ShapeError(f"the input has {x.shape[-1]} features, but the layer expects {self.input_size}")
        count = self.num_layers * (1 + self.bidirectional)
        sizes = [self.proj_size or self.hidden_size, self.hidden_size][: 2 if self.mode == "LSTM" else 1]
        shapes = [(count, batch, size) for size in sizes]
        if hx is None:
            return tuple(x.new_zeros(shape) for shape in shapes)
        states = tuple(hx) if self.mode == "LSTM" else (hx,)
        for state, shape in zip(states, shapes, strict=True):
            if tuple(state.shape) != shape:
                raise ShapeError(f"the hidden state must have shape {shape}, but got {tuple(state.shape)}")
        return states if order is None else tuple(state.index_select(1, order) for state in states)

    def _give_back(self, state: State, order: torch.Tensor | None) -> Any:
        if order is not None:
            state = tuple(h.index_select(1, order) for h in state)
        return state if self.mode == "LSTM" else state[0]

    def _run(self, data: torch.Tensor, sizes: Sequence[int], start: State) -> tuple[torch.Tensor, State]:
        """Run all layers on packed ``data``, ``sizes[t]`` rows at step t."""
        ends: list[State] = []
        directions = ("", "_reverse") if self.bidirectional else ("",)
        for layer in range(self.num_layers):
            outputs = []
            for number, direction in enumerate(directions):
                state = tuple(h[layer * len(directions) + number] for h in start)
                output, state = self._run_layer(f"l{layer}{direction}", data, sizes, state)
                outputs.append(output)
                ends.append(state)
            data = outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)
            if self.dropout and self.training and layer < self.num_layers - 1:
                data = F.dropout(data, self.dropout)
        return data, tuple(torch.stack(states) for states in zip(*ends, strict=True))

    def _run_layer(
        self, name: str, data: torch.Tensor, sizes: Sequence[int], start: State
    ) -> tuple[torch.Tensor, State]:
        """Run one layer in one direction; return its outputs, packed, and its last state."""
        multiply: SparseLinear = getattr(self, f"hh_{name}")
        project: SparseLinear | None = getattr(self, f"hr_{name}", None)
        inputs = getattr(self, f"ih_{name}")(data).split(list(sizes))
        advance, is_reverse = STEPS[self.mode], name.endswith("_reverse")
        outputs: list[torch.Tensor] = []
        ended: list[State] = []
        batch = sizes[-1] if is_reverse else sizes[0]
        state = tuple(h[:batch] for h in start)
        for x in reversed(inputs) if is_reverse else inputs:
            rows = x.shape[0]
            if rows > batch:  # backwards, shorter sequences begin later
                state = tuple(torch.cat([h, s[batch:rows]]) for h, s in zip(state, start, strict=True))
            elif rows < batch:
                ended.append(tuple(h[rows:] for h in state))
                state = tuple(h[:rows] for h in state)
            batch = rows
            state = advance(x, multiply(state[0]), state)
            if project is not None:
                state = (project(state[0]), *state[1:])
            outputs.append(state[0])
        ended.append(state)
        last = tuple(torch.cat(parts) for parts in zip(*reversed(ended), strict=True))
        return torch.cat(outputs[::-1] if is_reverse else outputs), last

    def to_dense(self) -> torch.nn.Module:
        """Return PyTorch's layer with the same matrices."""
        settings: dict[str, Any] = {name: getattr(self, name) for name in SETTINGS}
        mode = settings.pop("mode")
        if mode != "LSTM":
            settings.pop("proj_size")
        kinds = {"LSTM": torch.nn.LSTM, "GRU": torch.nn.GRU}
        if mode.startswith("RNN"):
            settings["nonlinearity"] = mode.removeprefix("RNN_").lower()
        values = next(self.parameters())
        layer = kinds.get(mode, torch.nn.RNN)(**settings, dtype=values.dtype, device=values.device)
        return self._copy_matrices(layer)

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}, num_layers={self.num_layers}"


class SparseLSTM(SparseRecurrent):
    """``torch.nn.LSTM`` with sparse matrices; created by ``scorch.sparsify``.

    Example:

        >>> import torch, scorch
        >>> layer = scorch.sparsify(torch.nn.LSTM(32, 16), sparsity=0.9, prefer="size")
        >>> output, (h, c) = layer(torch.ones(5, 2, 32))
        >>> output.shape
        torch.Size([5, 2, 16])
    """


class SparseGRU(SparseRecurrent):
    """``torch.nn.GRU`` with sparse matrices; created by ``scorch.sparsify``.

    Example:

        >>> import torch, scorch
        >>> layer = scorch.sparsify(torch.nn.GRU(32, 16), sparsity=0.9, prefer="size")
        >>> output, h = layer(torch.ones(5, 2, 32))
        >>> output.shape
        torch.Size([5, 2, 16])
    """


class SparseRNN(SparseRecurrent):
    """``torch.nn.RNN`` with sparse matrices; created by ``scorch.sparsify``.

    Example:

        >>> import torch, scorch
        >>> layer = scorch.sparsify(torch.nn.RNN(32, 16), sparsity=0.9, prefer="size")
        >>> output, h = layer(torch.ones(5, 2, 32))
        >>> output.shape
        torch.Size([5, 2, 16])
    """


class SparseRecurrentCell(_Matrices):
    """``torch.nn.LSTMCell``, ``GRUCell`` or ``RNNCell`` with sparse matrices ``ih`` and ``hh``."""

    ih: SparseLinear
    hh: SparseLinear

    def __init__(self, weights: dict[str, SparseTensor], cell: torch.nn.RNNCellBase) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.bias = cell.input_size, cell.hidden_size, cell.bias
        kind = type(cell).__name__.removesuffix("Cell")
        self.mode = kind if kind != "RNN" else f"RNN_{cell.nonlinearity.upper()}"  # type: ignore[union-attr,operator]
        self._add_matrices(weights, cell)

    def forward(self, input: torch.Tensor, hx: Any = None) -> Any:
        """Return the state after one step."""
        if hx is None:
            zeros = input.new_zeros(*input.shape[:-1], self.hidden_size)
            state: State = (zeros, zeros) if self.mode == "LSTM" else (zeros,)
        else:
            state = tuple(hx) if self.mode == "LSTM" else (hx,)
        found = STEPS[self.mode](self.ih(input), self.hh(state[0]), state)
        return found if self.mode == "LSTM" else found[0]

    def to_dense(self) -> torch.nn.Module:
        """Return PyTorch's cell with the same matrices."""
        values = next(self.parameters())
        options: dict[str, Any] = {"dtype": values.dtype, "device": values.device}
        if self.mode.startswith("RNN"):
            options["nonlinearity"] = self.mode.removeprefix("RNN_").lower()
        kinds = {"LSTM": torch.nn.LSTMCell, "GRU": torch.nn.GRUCell}
        kind = kinds.get(self.mode, torch.nn.RNNCell)
        return self._copy_matrices(kind(self.input_size, self.hidden_size, self.bias, **options))

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}"

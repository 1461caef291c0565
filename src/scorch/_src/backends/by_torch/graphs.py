"""Routines over the neighbors in graphs: the maximum of their features, and attention to them."""

from __future__ import annotations

from typing import NamedTuple

import torch

from scorch._src.backends.by_torch.rows import Tensor, maxima_of_rows, rows_of, sum_rows


class Rows(NamedTuple):
    """Compressed rows: where they begin, their columns, and how often each entry counts unless once.

    ``places`` says of transposed rows where each entry is among the others.
    """

    pos: Tensor
    crd: Tensor
    counts: Tensor | None = None
    places: Tensor | None = None


class Options(NamedTuple):
    """The slope of leaky_relu below zero; the probability of dropout and the number its draws begin with."""

    slope: float
    dropout: float = 0.0
    seed: int = 0

    @property
    def scale(self) -> float:
        """The factor that corrects for dropped entries."""
        return 1.0 / (1.0 - self.dropout) if self.dropout != 1.0 else 0.0

    @property
    def drop_below(self) -> int:
        """What 32 random bits of a dropped entry are below."""
        return int(self.dropout * 2.0**32)


class Scores(NamedTuple):
    """Of sources and of targets, (nodes, heads) each, and of edges, (entries, heads), if those have any."""

    sources: Tensor
    targets: Tensor
    edges: Tensor | None = None

    def of_entries(self, rows: Rows) -> Tensor:
        """Return the sum of the scores of each entry and head."""
        row = rows_of(rows.pos, rows.crd.numel())
        total = self.sources[rows.crd.long()] + self.targets[row]
        return total if self.edges is None else total + self.edges


class GraphRoutines:
    """Aggregate the features of neighbors."""

    def neighbour_max(
        self, rows: tuple[Tensor, Tensor, Tensor | None], x: Tensor, with_ties: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Compute the maximum of the rows of ``x`` that each row picks, and perhaps how many reach it."""
        pos, crd, counts = rows
        count, row, picked = pos.numel() - 1, rows_of(pos, crd.numel()), x[crd.long()]
        out = maxima_of_rows(row, picked, count)
        is_empty = (pos.diff() == 0).unsqueeze(1)
        ties = None
        if with_ties:
            reached = (picked == out[row]).to(x.dtype)
            ties = sum_rows(row, reached if counts is None else reached * counts.unsqueeze(1), count)
            ties = ties.masked_fill_(is_empty, 1)
        return out.masked_fill_(is_empty, 0), ties

    def neighbour_max_backward(
        self, rows: tuple[Tensor, Tensor, Tensor | None], x: Tensor, out: Tensor, shared: Tensor
    ) -> Tensor:
        """Compute the gradient of ``x``; ``rows`` are transposed, ``shared`` is a share for each tie."""
        pos, crd, counts = rows
        row, column = rows_of(pos, crd.numel()), crd.long()
        flow = torch.where(x[row] == out[column], shared[column], x.new_zeros(()))
        return sum_rows(row, flow if counts is None else flow * counts.unsqueeze(1), x.shape[0])

    def graph_attention(
        self, rows: Rows, x: Tensor, scores: Scores, options: Options, keep: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return ``out`` (targets, heads, features), and with ``keep`` the probabilities (entries, heads).

        ``x`` is (sources, heads, features); the probability of a dropped entry is negative.
        """
        count, row, total = rows.pos.numel() - 1, rows_of(rows.pos, rows.crd.numel()), scores.of_entries(rows)
        score = torch.where(total > 0, total, total * options.slope)
        weight = torch.exp(score - maxima_of_rows(row, score, count)[row])
        if rows.counts is not None:
            weight = weight * rows.counts.unsqueeze(1)
        P = weight / sum_rows(row, weight, count)[row]
        if options.drop_below:
            P = torch.where(_random_bits(options.seed, P).view_as(P) < options.drop_below, -P, P)
        return sum_rows(row, _positive(P).unsqueeze(2) * x[rows.crd.long()], count) * options.scale, P

    def graph_attention_scores_backward(
        self, rows: Rows, x: Tensor, scores: Scores, options: Options, probabilities: Tensor, grad: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Compute the gradient of each score, (entries, heads), and its sum for each target."""
        count, row = rows.pos.numel() - 1, rows_of(rows.pos, rows.crd.numel())
        dots = (grad[row] * x[rows.crd.long()]).sum(2)
        flow = torch.where(probabilities.signbit(), x.new_zeros(()), dots * options.scale)
        change = flow - sum_rows(row, probabilities * flow, count)[row]
        slope = torch.where(scores.of_entries(rows) > 0, change, options.slope * change)
        each = slope * probabilities.abs()
        return each, sum_rows(row, each, count)

    def graph_attention_features_backward(
        self, columns: Rows, options: Options, probabilities: Tensor, each: Tensor, grad: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Compute the gradient of ``x``, and the sum of those of scores for each source."""
        assert columns.places is not None
        count, row = columns.pos.numel() - 1, rows_of(columns.pos, columns.crd.numel())
        place = columns.places.long()
        flow = _positive(probabilities)[place].unsqueeze(2) * grad[columns.crd.long()]
        return sum_rows(row, flow, count) * options.scale, sum_rows(row, each[place], count)


def _positive(probabilities: Tensor) -> Tensor:
    return torch.where(probabilities < 0, probabilities.new_zeros(()), probabilities)


def _random_bits(seed: int, like: Tensor) -> Tensor:
    """Draw 32 random bits for each entry by splitmix64, as the routine in C does."""
    z = _signed(seed) + (torch.arange(like.numel(), device=like.device) + 1) * _signed(0x9E3779B97F4A7C15)
    z = (z ^ _right(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _right(z, 27)) * _signed(0x94D049BB133111EB)
    return _right(z ^ _right(z, 31), 32)


def _right(bits: Tensor, by: int) -> Tensor:
    """Shift right as if there were no sign."""
    return (bits >> by) & ((1 << (64 - by)) - 1)


def _signed(bits: int) -> int:
    bits &= 2**64 - 1
    return bits - 2**64 if bits >= 2**63 else bits

"""Warnings name the line of the user's, not one of Scorch or torch."""

from __future__ import annotations

import warnings

import torch

import scorch
from scorch.errors import ScorchWarning, warn


def test_warnings_name_the_line_of_the_call() -> None:
    model = torch.nn.ModuleList([torch.nn.Linear(8, 8), torch.nn.Bilinear(8, 8, 8)])
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        scorch.sparsify(model, 0.9, prefer="size")
    mine = [warning for warning in seen if issubclass(warning.category, ScorchWarning)]
    assert [warning.filename for warning in mine] == [__file__]


def test_warnings_from_what_is_computed_once() -> None:
    """A frame of Python's own library between the user's and Scorch's is not named."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        names = {"__name__": "scorch.inside", "warn": warn}
        exec("import functools\nclass A:\n  @functools.cached_property\n  def b(self): warn('slow')", names)
        _ = names["A"]().b  # type: ignore[operator]
    assert seen[0].filename == __file__


def test_warnings_at_the_outermost_line() -> None:
    """Where everything is Scorch's own, the outermost frame is named, and nothing fails."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        exec("warn('slow')", {"__name__": "scorch.inside", "warn": warn})
    assert seen[0].filename == __file__

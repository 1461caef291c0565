"""What functions of torch do with sharded tensors; those without a rule are refused by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from scorch._src.tensor.registry import look_up
from scorch.errors import UnsupportedError

Rule = Callable[..., Any]
RULES: dict[Any, Rule] = {}


def rule(*functions: Any) -> Callable[[Rule], Rule]:
    """Register what functions of torch, and methods and operators of these names, do with sharded tensors."""

    def register(function: Rule) -> Rule:
        for torch_function in functions:
            name = torch_function.__name__
            forms = [getattr(torch.Tensor, form, None) for form in (name, f"__{name}__")]
            RULES.update(dict.fromkeys([torch_function, *filter(None, forms)], function))
        return function

    return register


def call(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run the rule of a function of torch, or refuse it by name."""
    found = RULES.get(func)
    if found is not None:
        return found(*args, **kwargs)
    if look_up(func).maps_values == 1 and len(args) == 1 and not kwargs:
        return args[0].map_local(func)
    name = getattr(func, "__name__", str(func))
    raise UnsupportedError(
        f"{name} has no rule for sharded tensors. Apply it to the rows of this process (A.local), or gather "
        "the tensor first (A.gather())"
    )

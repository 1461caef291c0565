"""Where arrays are, without a name of a device in the rest of the code.

An array that belongs to an operand, a pattern or a storage is made on its device: ``device=pattern.device``.
What a user makes from nothing is made where he says, or on torch's default device
(``tensor.create.check.device_for``). The rest is here: small tensors that stand for Python's own numbers.
"""

from __future__ import annotations

import torch

# Numbers that Python holds and reads again: lists of sizes, seeds, samples that are only asked for a dtype or
# an error. They are here whatever torch's default device is, and wherever the operands are: an operand on
# another device takes a number without dimensions from here as it is.
HOST = torch.device("cpu")
META = torch.device("meta")  # tensors that have a shape and a dtype, and no numbers


def bring_together(first: str, device: torch.device, second: str, other: torch.device) -> str:
    """Say how two tensors, by their names, come to one device: what is on meta has no numbers to move."""
    if device == META:
        first, device, second, other = second, other, first, device
    return f"create {second} on {device}" if other == META else f"move {second} with .to('{device}')"


def shares_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether writing to ``a`` may change ``b``."""
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def is_in_shared_memory(array: torch.Tensor) -> bool:
    """Whether processes share the memory of an array; torch says so of all arrays on a device."""
    return array.device == HOST and array.is_shared()

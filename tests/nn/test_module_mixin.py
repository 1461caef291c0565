"""Modules whose class was replaced are what they were: in files, copies, text and ``isinstance``."""

from __future__ import annotations

import copy
import pickle
import pickletools
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from scorch._src.nn.averaged_models import AveragedModelMixin
from scorch._src.nn.data_parallel import DataParallelMixin, SparseDataParallel
from scorch._src.nn.module_mixin import original_class
from scorch._src.nn.pruned.fused_norms import FusedRMSNorm, _ForeignNorm
from scorch.nn import SparseLinear


class Average(AveragedModel):
    """A subclass with a state of its own."""

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "was_saved": True}


class Parallel(DistributedDataParallel):
    """A subclass that can be created without a group of processes."""

    def __getstate__(self) -> dict[str, Any]:
        return vars(self)


class Norm(torch.nn.Module):
    """As in another library."""


@pytest.mark.whole
@pytest.mark.parametrize(
    ("mixin", "kind", "restored_by"),
    [
        (AveragedModelMixin, Average, "scorch._src.nn.averaged_models _restore"),
        (DataParallelMixin, Parallel, "scorch._src.nn.data_parallel _restore"),
        (_ForeignNorm, Norm, "scorch._src.nn.pruned.fused_norms _restore"),
    ],
)
def test_a_class_with_a_mixin_looks_like_the_original(mixin: Any, kind: Any, restored_by: str) -> None:
    module = mixin.new(kind)
    torch.nn.Module.__init__(module)
    assert isinstance(module, kind) and isinstance(module, mixin) and mixin.class_for(kind) is type(module)
    assert original_class(module) is kind and module._get_name() == kind.__name__
    assert (type(module).__module__, type(module).__qualname__) == (kind.__module__, kind.__qualname__)
    call, arguments = module.__reduce_ex__(2)[:2]
    found = {text for code, text, _ in pickletools.genops(pickle.dumps(call, 2)) if code.name == "GLOBAL"}
    assert found == {restored_by} and type(call(*arguments)) is type(module)


def test_declared_classes_are_found_and_pickled_by_their_names() -> None:
    assert DataParallelMixin.class_for(DistributedDataParallel) is SparseDataParallel
    norm = FusedRMSNorm(4)
    assert original_class(norm) is torch.nn.RMSNorm and norm._get_name() == "RMSNorm"
    assert b"FusedRMSNorm" in pickle.dumps(norm) and b"_restore" not in pickle.dumps(norm)


def test_copies_of_a_subclass_have_its_state() -> None:
    average = Average(torch.nn.Sequential(SparseLinear(9, 7, 0.5)))
    for one in (copy.deepcopy(average), pickle.loads(pickle.dumps(average))):
        assert type(one) is type(average) and one.was_saved
        assert all(map(torch.equal, one.state_dict().values(), average.state_dict().values()))

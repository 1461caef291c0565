"""``import scorch as torch``: every name and submodule of torch, and nothing in torch is changed."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import inspect
import io
import os
import pickle
import pkgutil
import pydoc
import sys
import types

import pytest
import torch
import torch.utils.data

import scorch
from fork_server import run_python
from scorch._src import namespace

SUBMODULES = [
    "nn.functional",
    "nn.modules.linear",
    "nn.utils.rnn",
    "nn.parallel",
    "optim",
    "optim.lr_scheduler",
    "utils.checkpoint",
    "utils.data.distributed",
    "fft",
    "special",
    "autograd.functional",
    "func",
    "fx",
    "distributions",
    "distributed.rpc",
    "amp",
    "cuda",
    "jit",
    "backends.cudnn",
    "testing",
    "multiprocessing",
    "compiler.config",
    "version",
    "__config__",
]


def run(script: str) -> str:
    """What another process prints that runs ``script``."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = run_python(["-W", "error", "-c", script], env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def run_before(script: str) -> str:
    """What a Python prints that has imported torch and nothing of Scorch before it runs ``script``."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = run_python(["-W", "error", "-c", script], env=environment, has="torch")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# names -----------------------------------------------------------------------------------------------


def test_every_name_of_torch_is_found():
    assert [name for name in dir(torch) if not name.startswith("__") and not hasattr(scorch, name)] == []


def test_names_are_the_same_objects_unless_scorch_has_its_own():
    """In a process of its own: there are libraries that replace functions of torch when they are imported."""
    script = """
import scorch, torch
own, other = vars(scorch)["__namespace__"]
assert other is torch and {"tensor", "einsum", "zeros", "rand", "SparseTensor"} <= own
for name in torch.__all__:
    if name in own:
        assert getattr(scorch, name).__module__.startswith("scorch."), name
    else:
        assert getattr(scorch, name) is getattr(torch, name), name
assert scorch.Tensor is torch.Tensor and scorch.float32 is torch.float32
print("fine")
"""
    assert run(script) == "fine"


def test_own_names_are_as_before():
    assert scorch.__name__ == "scorch" and scorch.__version__ != torch.__version__
    assert scorch.__file__.endswith(os.path.join("scorch", "__init__.py"))
    assert scorch.errors is sys.modules["scorch.errors"]
    assert scorch.explain.__module__.startswith("scorch.")


def test_dir_lists_both():
    assert set(dir(torch)) <= set(dir(scorch)) and {"Format", "explain"} <= set(dir(scorch))


def test_unknown_names_are_unknown():
    with pytest.raises(AttributeError, match="module 'scorch' has no attribute 'nonsense'"):
        scorch.nonsense  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'nonsense' from 'scorch'"):
        from scorch import nonsense  # noqa: F401
    assert not hasattr(scorch, "__wrapped__")


def test_names_that_torch_loads_late_are_found():
    script = "import sys, scorch; assert 'torch.onnx' not in sys.modules; print(scorch.onnx.__name__)"
    assert run_before(script) == "torch.onnx"
    script = "import sys, scorch, torch; torch.later = 5; print(scorch.later)"
    assert run(script) == "5"


def test_star_import():
    script = """
import torch, scorch
from scorch import *
missing = [name for name in (*torch.__all__, "SparseTensor", "evaluate") if name not in globals()]
assert not missing, missing
assert isinstance(tensor([1.0], format="coo"), SparseTensor) and matmul is torch.matmul
print(len(set(scorch.__all__)) == len(scorch.__all__) > 900)
"""
    assert run(script) == "True"


# submodules ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SUBMODULES)
def test_submodules_are_torchs_own(name):
    wanted = importlib.import_module(f"torch.{name}")
    found = importlib.import_module(f"scorch.{name}")
    assert found is wanted and found.__name__ == f"torch.{name}"
    assert found.__spec__ is None or found.__spec__.name == f"torch.{name}"
    value = scorch
    for part in name.split("."):
        value = getattr(value, part)
    assert value is wanted


def test_ways_to_write_an_import():
    script = """
import scorch.nn as nn
import scorch.nn.functional as F
from scorch.nn import functional, Conv2d, Linear, Module
from scorch.utils.data import DataLoader
import scorch.optim.lr_scheduler
from scorch import fft, linalg, sparse, nn as also
import torch
assert nn is also and nn.Module is torch.nn.Module and Conv2d is torch.nn.Conv2d
assert issubclass(Linear, torch.nn.Linear)
assert F is functional is torch.nn.functional
assert scorch.optim.lr_scheduler is torch.optim.lr_scheduler and DataLoader is torch.utils.data.DataLoader
assert fft is torch.fft and linalg.qr is torch.linalg.qr and sparse.mm is torch.sparse.mm
print("fine")
"""
    assert run(script) == "fine"


def test_no_module_of_torch_is_loaded_twice():
    """The finder of files would run ``torch/distributed/tensor`` again under the other name."""
    script = """
import scorch.distributed.tensor, scorch.nn.modules, sys
first = {}
for name, module in list(sys.modules.items()):
    file = getattr(module, "__file__", None) or ""
    if name.startswith(("torch.", "scorch.")) and file.endswith(".py"):
        assert first.setdefault(file, module) is module, name
print(scorch.distributed.tensor.__name__)
"""
    assert run_before(script) == "torch.distributed.tensor"


def test_modules_that_do_not_exist_are_named_as_the_user_wrote_them():
    for name in ("scorch.nonsense", "scorch.nn.nonsense", "scorch.relu"):
        with pytest.raises(ModuleNotFoundError, match=f"No module named '{name}'"):
            importlib.import_module(name)
        assert name not in sys.modules
    with pytest.raises(ModuleNotFoundError, match=r"'scorch\.nn\.nonsense'"):
        importlib.import_module("scorch.nn.nonsense.deeper")
    assert importlib.util.find_spec("scorch.nonsense") is None


def test_finding_a_module_does_not_load_it():
    script = """
import importlib.util, sys, scorch
assert importlib.util.find_spec("scorch.utils.tensorboard") is not None
print("torch.utils.tensorboard" in sys.modules)
"""
    assert run_before(script) == "False"


def test_a_module_of_torch_runs_as_a_program():
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = run_python(["-m", "scorch.distributed.run", "--help"], env=environment, has="torch")
    assert done.returncode == 0 and "--nnodes" in done.stdout, done.stderr


def test_a_folder_without_files_hides_nothing(tmp_path, monkeypatch):
    (tmp_path / "nn" / "__pycache__").mkdir(parents=True)
    found = namespace.AliasFinder().find_spec("scorch.nn", [str(tmp_path)])
    assert found is not None and isinstance(found.loader, namespace.AliasLoader)
    (tmp_path / "nn" / "__init__.py").write_text("")
    importlib.invalidate_caches()
    assert namespace.AliasFinder().find_spec("scorch.nn", [str(tmp_path)]) is None


def test_files_of_scorch_come_first():
    root = os.path.dirname(scorch.__file__)
    for found in pkgutil.iter_modules(scorch.__path__):
        if found.name != "__main__":
            module = importlib.import_module(f"scorch.{found.name}")
            assert module.__name__ == f"scorch.{found.name}" and module.__file__.startswith(root)


# modules that both have ------------------------------------------------------------------------------


def test_a_module_that_both_have_answers_for_both():
    assert scorch.nn.__name__ == "scorch.nn"
    assert scorch.nn.Module is torch.nn.Module and scorch.nn.SparseLinear is not None
    assert "Module" in dir(scorch.nn) and "SparseLinear" in dir(scorch.nn)
    with pytest.raises(AttributeError, match=r"module 'scorch\.nn' has no attribute 'nonsense'"):
        scorch.nn.nonsense  # noqa: B018


@pytest.mark.parametrize("name", ["backends", "compiler", "ops"])
def test_modules_of_torch_are_not_hidden(name):
    """What Scorch is made of lies in ``scorch._src``, so that such names are torch's alone."""
    assert getattr(scorch, name) is getattr(torch, name)
    assert inspect.isfunction(scorch.tensor) and inspect.isfunction(scorch.compile)


@pytest.mark.parametrize("old", namespace.OLD_NAMES)
def test_modules_of_old_names_are_found(old):
    found = importlib.import_module(f"scorch.{old}")
    assert found.__name__ == f"scorch._src.{namespace.OLD_NAMES[old]}"


@pytest.mark.parametrize("name", ["distributed", "linalg", "masked", "sparse"])
def test_modules_that_scorch_adds_to_have_all_of_torchs_names(name):
    own, other = getattr(scorch, name), getattr(torch, name)
    assert own is importlib.import_module(f"scorch.{name}") and own is not other
    for attribute in dir(other):
        if attribute in own.__all__:
            assert getattr(own, attribute).__module__.startswith("scorch."), attribute
        elif not attribute.startswith("__"):
            assert getattr(own, attribute) is getattr(other, attribute), attribute
    assert set(dir(other)) <= set(dir(own)) and [n for n in own.__all__ if not hasattr(own, n)] == []


def test_operators_that_a_user_registers_are_found():
    library = torch.library.Library("scorch_test", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: 2 * x, "CPU")
    assert scorch.ops.scorch_test.twice(torch.ones(2)).tolist() == [2.0, 2.0]


def test_private_variables_are_those_of_torch_at_any_time():
    here, there = types.ModuleType("here"), types.ModuleType("there")
    there._found, there._find, there.known = None, lambda: 1, 2
    namespace.extend(here, there)
    there._found = True  # as torch does once it has looked for something
    assert here._found is True and here._find is there._find and here.known == 2
    here._found = False
    assert there._found is False
    assert {"_found", "_find", "known"} <= set(dir(here)) and {"_find", "known"} <= set(vars(here))


@pytest.fixture
def both(tmp_path):
    """A package ``here`` that answers for a package ``there``, each with its own files and a common one."""
    for package, files in {"here": ["own", "common", "late"], "there": ["other", "common", "late"]}.items():
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(f"name = '{package}'\n")
        for file in files:
            (tmp_path / package / f"{file}.py").write_text(f"where = '{package}'\nin_{package} = 1\n")
    sys.path.insert(0, str(tmp_path))
    here, there = importlib.import_module("here"), importlib.import_module("there")
    for name in ("here.common", "there.other", "there.common", "there.late"):
        importlib.import_module(name)
    namespace.extend(here, there)
    yield here, there
    sys.path.remove(str(tmp_path))
    for name in [name for name in sys.modules if name.split(".")[0] in ("here", "there")]:
        del sys.modules[name]


def test_files_that_both_have_are_extended_when_they_are_loaded(both):
    here, there = both
    assert here.name == "here" and here.other is there.other
    assert here.common.where == "here" and here.common.in_there == 1
    assert here.late.where == "here" and here.late.in_there == 1, "not loaded before, but it is in torch"
    assert not hasattr(here, "own"), "as usual it is there once it is imported"
    importlib.import_module("here.own")
    assert here.own.where == "here" and not hasattr(there, "own")


def test_extending_twice_changes_nothing(both):
    here, there = both
    before = dict(vars(here))
    namespace.extend(here, there)
    assert vars(here) == before


def test_the_function_tensor_is_a_function():
    assert inspect.isfunction(scorch.tensor) and "format" in inspect.signature(scorch.tensor).parameters
    assert scorch.tensor.__name__ == "tensor" and "torch.tensor" in scorch.tensor.__doc__
    assert pickle.loads(pickle.dumps(scorch.tensor)) is scorch.tensor


# assignment ------------------------------------------------------------------------------------------


def test_assigning_to_a_name_of_torch_reaches_torch(monkeypatch):
    mine = object()
    with monkeypatch.context() as patch:
        patch.setattr(scorch, "relu", mine)
        patch.setattr(scorch, "brand_new", mine, raising=False)
        assert scorch.relu is torch.relu is mine and torch.brand_new is mine
    assert scorch.relu is torch.relu is not mine
    assert not hasattr(torch, "brand_new") and not hasattr(scorch, "brand_new")


def test_assigning_to_an_own_name_leaves_torch_alone(monkeypatch):
    before = torch.einsum
    with monkeypatch.context() as patch:
        patch.setattr(scorch, "einsum", len)
        assert scorch.einsum is len and torch.einsum is before


def test_importing_scorch_changes_nothing_in_torch():
    script = """
import torch, torch.compiler, torch.nn.functional as F
watched = [torch, torch.Tensor, torch.nn, F, torch.compiler, torch.sparse, torch.optim, torch.linalg]
before = [dict(vars(item)) for item in watched]
import scorch, scorch.nn.functional, scorch.compiler, scorch.sparse, scorch.optim
import scorch._src.cli.main
for item, old in zip(watched, before):
    new = dict(vars(item))
    changed = [name for name in new if name not in old or new[name] is not old[name]]
    assert not changed and set(old) == set(new), (item, changed)
print("fine")
"""
    assert run_before(script) == "fine"


def test_reloading_keeps_everything():
    script = """
import importlib, sys, scorch, torch
importlib.reload(scorch)
assert scorch.optim is torch.optim and scorch.relu is torch.relu and "relu" in scorch.__all__
assert sum(type(finder).__name__ == "AliasFinder" for finder in sys.meta_path) == 1
scorch.brand_new = 1
print(torch.brand_new)
"""
    assert run(script) == "1"


# as with torch ---------------------------------------------------------------------------------------


def test_isinstance_and_pickles_are_as_with_torch():
    model = scorch.nn.Sequential(scorch.nn.LayerNorm(3), scorch.nn.ReLU())
    assert isinstance(model, torch.nn.Module) and isinstance(scorch.zeros(2), scorch.Tensor)
    assert isinstance(scorch.tensor([1.0], format="s"), scorch.Tensor)
    data = pickle.dumps(model)
    assert b"torch.nn.modules" in data and b"scorch" not in data
    for made in (model.state_dict(), scorch.relu, scorch.float16, scorch.nn.functional.gelu, scorch.randn(2)):
        assert b"scorch" not in pickle.dumps(made)
    file = io.BytesIO()
    scorch.serialization.save(copy.deepcopy(model).state_dict(), file)
    file.seek(0)
    assert torch.equal(torch.load(file)["0.weight"], model[0].weight)


def test_data_loaders():
    from scorch.utils.data import DataLoader, TensorDataset

    data = TensorDataset(scorch.arange(10.0).view(10, 1), scorch.arange(10))
    batches = list(DataLoader(data, batch_size=4))
    assert [len(batch[0]) for batch in batches] == [4, 4, 2] and isinstance(data, torch.utils.data.Dataset)


def test_a_program_that_trains_a_dense_network():
    script = """
import scorch as torch
import scorch.nn as nn
import scorch.nn.functional as F
from scorch import optim
from scorch.utils.data import DataLoader, TensorDataset

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(2, 16), nn.Linear(16, 1)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))

torch.manual_seed(0)
x = torch.rand(256, 2)
y = (x[:, :1] * x[:, 1:]) + torch.zeros(256, 1)
model = Net()
optimizer = optim.Adam(model.parameters(), lr=0.02)
schedule = optim.lr_scheduler.StepLR(optimizer, 10)
losses = []
for epoch in range(20):
    for a, b in DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True):
        optimizer.zero_grad()
        loss = F.mse_loss(model(a), b)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    schedule.step()
with torch.no_grad():
    assert not model(x).requires_grad
assert torch.cuda.is_available() in (True, False) and torch.device("cpu").type == "cpu"
print(losses[-1] < 0.1 * losses[0])
"""
    assert run(script) == "True"


def test_the_same_program_works_with_both():
    program = "torch.manual_seed(4); print((torch.randn(3, 3) @ torch.rand(3, 2)).sum(0).tolist())"
    assert run(f"import scorch as torch; {program}") == run(f"import torch; {program}")


def test_torch_compile_follows_names_of_scorch():
    def function(x):
        return scorch.relu(x) + scorch.nn.functional.gelu(x) * scorch.ones(3)

    x = torch.randn(3)
    assert torch.equal(scorch.compile(function, fullgraph=True, backend="eager")(x), function(x))


def test_python_dash_m_scorch_still_works():
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = run_python(["-m", "scorch", "--help"], env=environment, has="torch")
    assert done.returncode == 0 and "explain" in done.stdout, done.stderr


def test_it_is_a_module():
    assert isinstance(scorch, types.ModuleType) and inspect.ismodule(scorch)
    assert repr(scorch).startswith("<module 'scorch'")


def test_help_says_where_to_start_and_leaves_out_all_of_torch() -> None:
    text = pydoc.render_doc(scorch, renderer=pydoc.plaintext)
    assert text.index("Creating sparse tensors") < 800 and text.count("\n") < 100
    assert {"relu", "SparseTensor"} <= set(scorch.__all__) & set(dir(scorch))
    assert not {"register", "namespace", "dynamo"} & set(dir(scorch))
    scorch.nn.__all__ = before = [*scorch.nn.__all__]
    assert scorch.nn.__all__ is before
    with pytest.raises(AttributeError, match=r"'scorch.random' has no attribute '__all__'"):
        scorch.random.__all__  # noqa: B018

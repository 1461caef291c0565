"""Every cache is bounded: found by reading the source, and by running programs of ever-new shapes."""

from __future__ import annotations

import ast
import gc
import random
import threading
import tracemalloc
from collections.abc import Iterator

import pytest
import torch

import scorch
from scorch._src.bounded import BoundedCache
from source_trees import SOURCE, nodes_of, tree_of

# Tables that grow without a bound of their own, and why that is no leak.
GROWING = {
    "scorch._src.distributed.calls.RULES": "filled by an import",
    "scorch._src.distributed.communication.collectives._counters": "whoever counts bytes leaves again",
    "scorch._src.backends.cuda.routines.rows._facts": "one entry for each array that lives",
    "scorch._src.backends.cuda.device.streams._free": "a few for each device",
    "scorch._src.backends.cuda.device.streams._pinned": "as many as are waited for at once, and each error",
    "scorch._src.backends.cuda.device.nvrtc._at_work": "one entry for each thread that compiles",
    "scorch._src.backends.cuda.device.nvrtc._wanted": "one entry for each thread that waits",
    "scorch._src.backends.base._EXPECTED": "pairs of dtypes",
    "scorch._src.backends.cuda.device.kernel.LAUNCHES": "whoever records launches leaves again",
    "scorch._src.backends.cpu.parallel.restricted_loops": "one entry for each thread, until its loop ends",
    "scorch._src.engine.by_torch.run._warned": "one entry for each backend",
    "scorch._src.backends.base._BACKENDS": "filled by register_backend",
    "scorch._src.backends.base._ROUTINES": "one entry for each device",
    "scorch._src.backends.base._NEEDS": "one entry for each type of device",
    "scorch.compat.pyg._replaced": "what install() replaces, until uninstall()",
    "scorch.compat.torch_sparse.imported_pyg._replaced": "what install() replaces, until uninstall()",
    "scorch.compat.torch_sparse.install._libraries": "what install() registers, until uninstall()",
    "scorch._src.tensor.registry.QUICK": "functions of torch",
    "scorch._src.tensor.dispatch_rules._registered": "names of operators of torch",
    "scorch.settings.BACKENDS": "filled by register_backend",
    "scorch._src.engine.notes.NODES": "filled by an import: the classes of nodes",
    "scorch._src.torch_internals._places": "filled by an import",
    "scorch._src.torch_internals._missing": "filled by an import",
    "scorch._src.backends.cpu.jit._passed_over": "one entry for each compiler that was warned of",
    "scorch._src.backends.cpu.jit._given_up": "one entry for each routine",
    "scorch._src.backends.cpu.toolchain._others": "one entry for each compiler",
    "scorch._src.backends.cpu.toolchain._stuck": "one entry for each compiler",
    "scorch._src.backends.cache._known_bytes": "one number for each cache directory that is used",
    "scorch._src.backends.cache._warned": "one entry for each directory that was warned of",
    "scorch._src.bounded._PLANS": "filled by imports: caches by their names",
    "scorch._src.formats.format._BY_LETTER": "filled by imports, and by register_level",
    "scorch._src.formats.format._LAST": "filled by imports, and by register_level",
    "scorch._src.events.LISTENERS": "whoever listens leaves again",
    "scorch._src.tensor.autograd.WATCHED": "whoever watches a tensor leaves again",
    "scorch._src.tensor.flatten.LIVE": "weak references, dropped with what they refer to",
    "scorch._src.loops.operators.IN_LOOPS": "filled by imports, and by add_operator",
    "scorch._src.loops.operators.OPERATORS": "filled by imports, and by add_operator",
    "scorch._src.tensor.create.factories._own_keywords": "filled by an import: factory functions",
    "scorch._src.tensor.registry.TABLE": "filled by imports: torch's functions",
    "scorch._src.backends.base._DEVICES": "filled by register_backend",
    "scorch.settings.applied": "one entry, which is replaced",
    "scorch._src.compile.capture.trace.FUNCTION_OF_OPERATOR": "filled by imports",
    "scorch._src.compile.capture.program.GRAPH_FUNCTIONS": "filled by imports",
}

# Functions that keep every result, and how many there can be.
REMEMBERED = {
    "scorch._src.backends.cuda.device.driver._device_attribute": "a few for each device",
    "scorch._src.backends.cuda.device.driver._primary_context": "one for each device",
    "scorch._src.backends.cuda.device.builtins._knows_streams": "one for each device",
    "scorch._src.backends.cuda.device.driver._layout": "one for each number of slots",
    "scorch._src.backends.cpu.routines.attention.source.source": "one for each dtype",
    "scorch._src.nn.timing._machine_rates": "one for each number of threads and dtype",
    "scorch._src.explain.speed.measure_speed": "one for each number of threads and dtype",
    "scorch._src.loops.analysis._fields_with_nodes": "one for each kind of node",
    "scorch._src.compiler.typing.dtype_of_type": "one for each dtype",
    "scorch._src.compiler.typing.type_of_dtype": "one for each dtype",
    "scorch._src.tensor.create.factories.keywords_of_factory": "one for each factory function",
    "scorch._src.compiler.typing.promote": "one for each pair of dtypes",
}

WRITING = {"append", "add", "setdefault", "update", "insert", "extend", "__setitem__"}
TABLES = {"dict", "set", "list", "OrderedDict", "defaultdict", "deque", "Counter"}


@pytest.fixture(scope="module")
def parsed() -> dict[str, ast.Module]:
    """Every module of the package, by its name."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        name = ".".join(("scorch", *path.relative_to(SOURCE).with_suffix("").parts))
        found[name.removesuffix(".__init__")] = tree_of(path)
    return found


def is_table(value: ast.expr | None) -> bool:
    """Whether a value is a new dictionary, set or list (weak tables drop what nothing else holds)."""
    if isinstance(value, ast.Dict | ast.Set | ast.List | ast.DictComp | ast.SetComp | ast.ListComp):
        return True
    if not isinstance(value, ast.Call):
        return False
    function = value.func.value if isinstance(value.func, ast.Subscript) else value.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in TABLES


def tables(tree: ast.Module) -> set[str]:
    found = set()
    for node in tree.body:
        if isinstance(node, ast.Assign) and is_table(node.value):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and is_table(node.value) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return found


def imported(tree: ast.Module) -> dict[str, str]:
    """What each imported name stands for."""
    found = {}
    for node in nodes_of(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return found


def dotted(node: ast.expr) -> str:
    """The name that a table is written to by; "" for what has none."""
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value)
        return owner and f"{owner}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def written_in_functions(module: str, tree: ast.Module) -> set[str]:
    """What functions put something into, by its name in the module that it is made in."""
    found, seen = set(), set()
    for function in nodes_of(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or function in seen:
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                seen.add(node)
            elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
                found.add(dotted(node.value))
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if node.func.attr in WRITING:
                    found.add(dotted(node.func.value))
            elif isinstance(node, ast.AugAssign):
                found.add(dotted(node.target))
    names = imported(tree)
    own = {f"{module}.{name}" for name in found}
    return own | {".".join((names.get(first, ""), *rest)) for first, *rest in (n.split(".") for n in found)}


def test_tables_that_are_written_to_are_bounded_or_listed(parsed):
    written = set().union(*(written_in_functions(module, tree) for module, tree in parsed.items()))
    known = {f"{module}.{name}" for module, tree in parsed.items() for name in tables(tree)}
    found = {name for name in known & written if not name.endswith("__all__")}
    assert found - set(GROWING) == set(), "use scorch._src.bounded.BoundedCache, or say why not in GROWING"
    assert set(GROWING) - known == set(), "these are no tables any more"


def decorations(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef, ast.expr]]:
    for node in nodes_of(tree):
        if isinstance(node, ast.FunctionDef):
            for decorator in node.decorator_list:
                called = decorator.func if isinstance(decorator, ast.Call) else decorator
                yield ast.unparse(called).removeprefix("functools."), node, decorator


def test_functions_that_remember_are_bounded_or_listed(parsed):
    found = set()
    for module, tree in parsed.items():
        for name, function, decorator in decorations(tree):
            arguments = function.args
            has_arguments = arguments.args or arguments.kwonlyargs or arguments.vararg or arguments.kwarg
            is_endless = name == "cache"
            if name == "lru_cache" and isinstance(decorator, ast.Call):
                given = [*decorator.args, *(keyword.value for keyword in decorator.keywords)]
                is_endless = any(isinstance(v, ast.Constant) and v.value is None for v in given[:1])
            if is_endless and has_arguments:
                found.add(f"{module}.{function.name}")
    assert found == set(REMEMBERED), "use lru_cache with a maxsize, or say why not in REMEMBERED"


def caches() -> list[BoundedCache]:
    gc.collect()
    gc.unfreeze()  # what conftest keeps out of the collector's sight
    found = [found for found in gc.get_objects() if issubclass(type(found), BoundedCache)]
    gc.freeze()
    return found


@pytest.fixture
def small_caches():
    """All caches hold 16 entries, so that a test passes their bounds."""
    before = [(cache, cache.most) for cache in caches()]
    for cache, most in before:
        cache.clear()
        cache.most = min(most, 16)
    yield
    for cache, most in before:
        cache.most = most


ROUNDS = 25  # more than the caches hold


def one_program(size: int) -> None:
    """A few calls of the kinds that are kept, on tensors of a shape of their own."""
    dense = torch.zeros(size, 7)
    dense[::2, 1] = 1.0
    sparse = scorch.from_torch(dense, format="csr")
    vector = torch.arange(7.0)
    assert torch.equal(sparse @ vector, dense @ vector)
    assert torch.equal((sparse + sparse).to_dense(), dense * 2)
    assert torch.equal(torch.relu(sparse).to_dense(), dense)
    assert torch.equal(sparse.T.to_format("csr").to_dense(), dense.T)
    assert torch.equal(scorch.evaluate("y[i] = 2 * A[i,j] * x[j]", A=sparse, x=vector), 2 * dense @ vector)
    assert torch.equal(torch.sparse.softmax(sparse, 1).to_dense().sum(), torch.tensor(float((size + 1) // 2)))


def test_ever_new_shapes_keep_a_bounded_number_of_entries(small_caches):
    for size in range(20, 42):
        one_program(size)
    assert max(len(cache) for cache in caches()) > 8, "nothing was kept at all"
    for cache in caches():
        assert len(cache) <= cache.most


@pytest.mark.long
def test_ever_new_shapes_keep_a_bounded_amount_of_memory(small_caches):
    """After the caches are full, as many programs again leave next to nothing behind."""

    def run(first: int) -> int:
        for size in range(first, first + ROUNDS):
            one_program(size)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    # Of one magnitude, for which plans are the same; loads kernels, fills what is bounded by more than 16.
    run(520)
    tracemalloc.start()
    try:
        before = run(560)
        after = run(600)
    finally:
        tracemalloc.stop()
    # Notation and schedules are kept by text and magnitude, which are the same; the leak was 1,250 bytes.
    assert after - before < ROUNDS * 600, f"{(after - before) / ROUNDS:.0f} bytes for each new shape"


def test_what_was_dropped_is_found_again(small_caches):
    """Drawn sizes come back after their entries were dropped."""
    draw = random.Random(0)
    sizes = draw.sample(range(20, 200), 18)
    for _ in range(2):
        for size in draw.sample(sizes, len(sizes)):
            one_program(size)


def test_threads_fill_one_cache():
    cache: BoundedCache[int, int] = BoundedCache(8)
    errors: list[Exception] = []

    def fill(first: int) -> None:
        try:
            for number in range(first, first + 3000):
                cache[number] = number
                found = cache.setdefault(number // 2, -number)
                assert found in (number // 2, -number, -number - 1, -number + 1)
                assert cache.get(number, number) == number or cache.get(number) is not None
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=fill, args=(first,)) for first in (0, 1000, 50_000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and len(cache) <= 8


def test_plans_are_counted_and_cleared() -> None:
    S, X = scorch.rand(30, 40, density=0.2, format="csr"), torch.rand(40, 3)
    wanted = S @ X
    for _ in range(3):
        S @ X
    counted = scorch.plan_statistics()
    assert counted["calls"].entries and counted["steps"].entries and counted["schedules"].entries
    assert all(0 <= found.entries <= found.most for found in counted.values())
    scorch.clear_plans()
    assert not any(found.entries for found in scorch.plan_statistics().values())
    torch.testing.assert_close(S @ X, wanted)
    assert scorch.plan_statistics()["calls"].entries

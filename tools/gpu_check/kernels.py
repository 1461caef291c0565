"""Every kernel for CUDA devices on small operands, for compute-sanitizer: a line for each group of calls.

    python -m tools.gpu_check.kernels cuda                    all groups
    python -m tools.gpu_check.kernels cuda coalescing         some of them

Results are compared with those of dense tensors on the CPU. ``tests/test_gpu_check.py`` runs the same calls
in the emulator of grids, and finds kernels of ours that none of them launches.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F

import scorch
from scorch._src.backends import cuda
from scorch._src.backends.cuda.device.cost import recorded
from scorch._src.backends.cuda.executables.product_turns import MIN_COLUMNS
from tools.gpu_check.checks import agree

Group = Callable[[str], None]
GROUPS: dict[str, Group] = {}
HALVES = (torch.float16, torch.bfloat16)
LAUNCHED = "launched: "  # and the names of kernels, in the last line of some groups


def group(function: Group) -> Group:
    GROUPS[function.__name__.replace("_", " ")] = function
    return function


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(*shape, generator=generator, device="cpu").to(dtype)


def sparse(rows: int, columns: int, density: float, seed: int = 0, long: int = 0) -> torch.Tensor:
    """Return a dense tensor that is mostly zero, the first ``long`` numbers of a row aside."""
    generator = torch.Generator("cpu").manual_seed(seed)
    places = torch.rand(rows, columns, generator=generator, device="cpu") < density
    places[rows // 2, :long] = True
    return torch.randn(rows, columns, generator=generator, device="cpu") * places


def stored(tensor: torch.Tensor, device: str, form: str = "csr") -> torch.Tensor:
    return scorch.from_torch(tensor, format=form).to(device)


def tolerance(dtype: torch.dtype) -> float:
    return 0.05 if dtype in HALVES else 1e-3


# products --------------------------------------------------------------------------------------------


@group
def products_with_dense_tensors(device: str) -> None:
    """With even rows, with a long row that is cut, and with few rows that are all long."""
    for A in (sparse(120, 90, 0.1), sparse(120, 2500, 0.003, long=2000), sparse(9, 3000, 0.5)):
        S = stored(A, device)
        for width in ((), (3,), (32,), (128,)):
            X = drawn(A.shape[1], *width, seed=1)
            agree(S @ X.to(device), A @ X, 1e-3)
        for dtype in (torch.float64, *HALVES):
            X = drawn(A.shape[1], 64, seed=1, dtype=dtype)
            wanted = A.to(dtype).double() @ X.double()
            agree(S.to(dtype) @ X.to(device), wanted, tolerance(dtype) * float(wanted.abs().max()))
        G = drawn(A.shape[0], 16, seed=2)
        agree(S.T @ G.to(device), A.T @ G, 1e-3)


@group
def products_by_atomics(device: str) -> None:
    A, X = sparse(80, 60, 0.1, seed=3), drawn(80, 16)
    with scorch.settings(deterministic=False):
        agree(stored(A, device).T @ X.to(device), A.T @ X, 1e-3)
        agree(stored(A, device).sum(0), A.sum(0), 1e-3)


@group
def products_of_sparse_matrices(device: str) -> None:
    """With short rows, rows of many products, few rows that are all long, and all kinds in many columns."""
    for A, B in (
        (sparse(70, 80, 0.03), sparse(80, 60, 0.03, seed=1)),
        (sparse(70, 300, 0.2, long=300), sparse(300, 2500, 0.1, seed=1)),
        (sparse(6, 3000, 0.5), sparse(3000, 6, 0.5, seed=1)),
        (sparse(30, 200, 0.2, long=200), sparse(200, MIN_COLUMNS, 1e-4, seed=1)),
    ):
        agree(stored(A, device) @ stored(B, device), A @ B, 1e-2)


@group
def sampled_products(device: str) -> None:
    for A in (sparse(60, 50, 0.1), sparse(60, 2500, 0.003, long=2000)):
        P, Q = drawn(A.shape[0], 32), drawn(A.shape[1], 32, seed=1)
        S, p, q = stored(A, device), P.to(device), Q.to(device)
        agree(scorch.einsum("ij,ik,jk->ij", S, p, q), A * (P @ Q.T), 1e-3)


@group
def products_of_tensors(device: str) -> None:
    T = drawn(12, 15, 400) * (sparse(12 * 15, 400, 0.05) != 0).reshape(12, 15, 400)
    T[3, 4] = drawn(400)
    B, C, S = drawn(15, 32), drawn(400, 32, seed=1), stored(T, device, "csf")
    wanted = torch.einsum("ijk,jr,kr->ir", T, B, C)
    agree(scorch.einsum("ijk,jr,kr->ir", S, B.to(device), C.to(device)), wanted, 1e-2)
    agree(scorch.einsum("ijk,kr->ijr", S, C.to(device)), torch.einsum("ijk,kr->ijr", T, C), 1e-2)
    sums = scorch.einsum("ijk,kl->ijl", S, stored(C, device), format="csf")  # of terms out of order
    agree(sums, torch.einsum("ijk,kl->ijl", T, C), 1e-2)


# elementwise -----------------------------------------------------------------------------------------


@group
def new_patterns(device: str) -> None:
    """That are counted, then filled in; the second call is one kernel."""
    A, B = sparse(70, 300, 0.1, long=300), sparse(70, 300, 0.1, seed=1)
    S, T = stored(A, device), stored(B, device)
    for _ in range(2):
        agree(S + T, A + B)
        agree(S * T, A * B)
        agree(S - T.to_format("csc"), A - B)
    text = "D[i,j] = A[i,j] * B[i,j] + C[i,j]"
    agree(scorch.evaluate(text, A=S, B=T, C=stored(A.flip(0), device)), A * B + A.flip(0))
    boxes = [each.reshape(70, 20, 15) for each in (A, B)]
    agree(stored(boxes[0], device, "csf") + stored(boxes[1], device, "csf"), boxes[0] + boxes[1])


@group
def values_of_dense_operands(device: str) -> None:
    """Whose numbers decide the format of the result."""
    A, D = sparse(60, 50, 0.1), drawn(60, 50).abs() + 0.5
    S, here = stored(A, device), D.to(device)
    for _ in range(2):
        for found, wanted in ((S * here, A * D), (S / here, A / D), (S + here, A + D), (S - here, A - D)):
            agree(found, wanted)
    D[3, 4] = torch.inf
    assert torch.equal((S * D.to(device)).to_dense().cpu().isnan(), (A * D).isnan())


@group
def rows_and_sums(device: str) -> None:
    for A in (sparse(60, 50, 0.2), sparse(60, 2500, 0.003, long=2000)):
        S, stays = stored(A, device), A != 0
        agree(S.sum(1), A.sum(1), 1e-3)
        agree(S.sum(0), A.sum(0), 1e-3)
        wanted = A.masked_fill(~stays, -torch.inf).softmax(1).nan_to_num(0.0)
        agree(torch.sparse.softmax(S, 1), wanted, 1e-3)
        rows = torch.randint(60, (700,), generator=torch.Generator("cpu").manual_seed(0), device="cpu")
        agree(S[rows.to(device)], A[rows])


# orders of entries -----------------------------------------------------------------------------------


@group
def coalescing(device: str) -> None:
    """By one kernel, by several, and with a sample that is sorted itself; one place has many entries."""
    for count in (300, 6_000, 1_600_000 if device != "cpu" else 8_000):
        generator = torch.Generator("cpu").manual_seed(count)
        size = int(count**0.5) + 2
        places = torch.randint(size, (2, count), generator=generator, device="cpu")
        places[:, : count // 20] = 1
        values = torch.randint(-9, 9, (count,), generator=generator, device="cpu").float()
        wanted = torch.sparse_coo_tensor(places, values, (size, size), check_invariants=False).coalesce()
        for _ in range(2):
            found = scorch.sparse_coo_tensor(places.to(device), values.to(device), (size, size))
            assert torch.equal(found.indices().cpu(), wanted.indices())
            assert torch.equal(found.values().cpu(), wanted.values())
        if count < 10_000:  # rows of values are summed by kernels of their own
            pairs = torch.stack([values, 2 * values], 1)
            found = scorch.sparse_coo_tensor(places.to(device), pairs.to(device), (size, size, 2))
            agree(found.to_dense()[..., 1], 2 * wanted.to_dense())


@group
def conversions(device: str) -> None:
    A = sparse(90, 300, 0.1, long=300)
    S = stored(A, device)
    for form in ("csc", "coo", "dcsr", "bsr(2,2)"):
        agree(S.to_format(form), A)
        agree(S.to_format(form).to_format("csr"), A)


# graphs and attention --------------------------------------------------------------------------------


@group
def graph_attention(device: str) -> None:
    """With a vertex of many neighbors, in each dtype, and both passes."""
    E = (sparse(300, 300, 0.02, long=300) != 0).float()
    edges = stored(E, device)
    for kind in (scorch.nn.GATConv, scorch.nn.GATv2Conv):
        for dtype in (torch.float32, torch.float64, *HALVES):
            torch.manual_seed(0)
            layer, x = kind(16, 8, heads=2), drawn(300, 16)
            wanted = _passes(layer.double(), x.double(), stored(E, "cpu").double())
            found = _passes(layer.to(device, dtype), x.to(device, dtype), edges.to(dtype))
            for one, other in zip(found, wanted, strict=True):
                agree(one.cpu() / other.abs().max(), other / other.abs().max(), tolerance(dtype))


def _passes(layer: torch.nn.Module, x: torch.Tensor, edges: torch.Tensor) -> list[torch.Tensor]:
    x = x.detach().requires_grad_()
    out = layer(x, edges)
    return [out, *torch.autograd.grad(out.square().sum(), [x])]


@group
def largest_of_neighbors(device: str) -> None:
    E = (sparse(300, 300, 0.02, long=300) != 0).float()
    E = E.maximum(E.T)
    for dtype in (torch.float32, *HALVES):
        x = drawn(300, 24).round()  # so that neighbors are equal
        torch.manual_seed(0)
        layer = scorch.nn.SAGEConv(24, 8, aggr="max")
        wanted = _passes(layer.double(), x.double(), stored(E, "cpu").double())
        found = _passes(layer.to(device, dtype), x.to(device, dtype), stored(E, device).to(dtype))
        for one, other in zip(found, wanted, strict=True):
            agree(one.cpu() / other.abs().max(), other / other.abs().max(), tolerance(dtype))


@group
def attention(device: str) -> None:
    """By tiles, some of which are cut, and pair by pair, with dropout and without."""
    n = 2_304 if device != "cpu" else 320
    near = (torch.arange(n)[:, None] - torch.arange(n)).abs() <= 20
    near[:3] = near[:, :3] = True
    far = sparse(n, n, 0.004) != 0
    far.fill_diagonal_(True)
    for seen in (near, far):
        mask = scorch.from_torch(seen.float(), format="csr").to(device).bool()
        for dtype in (torch.float32, *HALVES):
            q, k, v = (drawn(1, 1, n, 64, seed=seed, dtype=dtype) for seed in range(3))
            wanted = _attended(*(each.double() for each in (q, k, v)), seen)
            found = _attended(*(each.to(device) for each in (q, k, v)), mask)
            for one, other in zip(found, wanted, strict=True):
                agree(one, other, 0.05 if dtype in HALVES else 1e-3)
        q, k, v = (drawn(1, 2, n, 32, seed=seed).to(device).requires_grad_() for seed in range(3))
        out = F.scaled_dot_product_attention(q, k, v, mask, dropout_p=0.2)
        assert all(torch.isfinite(grad).all() for grad in torch.autograd.grad(out.sum(), [q, k, v]))


def _attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
    q, k, v = (each.detach().requires_grad_() for each in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, mask)
    return [out, *torch.autograd.grad(out.square().sum(), [q, k, v])]


@group
def fused_calls(device: str) -> None:
    A, X = sparse(80, 80, 0.1), drawn(80, 32) * 0.3

    def function(S: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(S * (x @ x.T), 1) @ x

    S = stored(A, "cpu")
    grads = []
    for place, run in ((device, scorch.compile(function)), ("cpu", function)):
        s, x = S.to(place).requires_grad_(), X.to(place).requires_grad_()
        out = run(s, x)
        grads.append([out, *torch.autograd.grad(out.square().sum(), [s, x])])
    for one, other in zip(*grads, strict=True):
        agree(one, other, 1e-2)


def names_of_kernels() -> set[str]:
    """Return the names of all kernels that are written by hand."""
    texts = [path.read_text(encoding="utf-8") for path in Path(cuda.__file__).parent.glob("c/*.cu")]
    kernel = re.compile(r"^KERNEL void .*?(\w+)\(const struct", re.MULTILINE)
    return {name for text in texts for name in kernel.findall(text)}


def has_waited() -> bool:
    """Wait for threads that compile kernels, which PyTorch's operators stand in for until then."""
    compiling = [thread for thread in threading.enumerate() if thread.name.startswith("compile ")]
    for thread in compiling:
        thread.join()
    return bool(compiling)


def main(device: str, names: Sequence[str] = ()) -> int:
    """Run groups, all unless some are named; 1 if kernels that were to run did not."""
    with warnings.catch_warnings(), recorded() as record:
        warnings.simplefilter("ignore")
        for name in names or GROUPS:
            GROUPS[name](device)
            if has_waited():
                GROUPS[name](device)
            if device != "cpu":
                torch.cuda.synchronize()
            print(f"{name}: ok", flush=True)
    launched = {launch.name for _, launch, _ in record.launched}
    if names:
        print(f"{LAUNCHED}{', '.join(sorted(launched))}")
    missing = names_of_kernels() - launched if launched and not names else set()
    if not names:
        print(f"never launched: {', '.join(sorted(missing))}" if missing else f"{len(launched)} kernels")
    return 1 if missing or (device != "cpu" and not launched) else 0


if __name__ == "__main__":
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // 2))
    sys.exit(main(sys.argv[1], sys.argv[2:]))

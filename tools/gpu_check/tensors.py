"""Checks of tensors on a device: copies, files, construction, streams, errors, explanations."""

from __future__ import annotations

import copy
import io
import pickle
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import scorch
from scorch._src.backends.cuda.device.kernel import LAUNCHES, CudaKernel, Launches
from scorch.errors import ScorchError
from tools.gpu_check.checks import K, N, agree, arrays_of, check, dense, graph, matrix, plain

FEW = 64  # numbers that may be read by the host


def kind_of(device: str) -> str:
    return torch.device(device).type


# copies ----------------------------------------------------------------------------------------------


@check
def copies_and_files(device: str) -> None:
    for form in ("csr", "coo", "csc", "bsr(4,4)"):
        S = matrix(device, form=form).requires_grad_()
        for other in (copy.deepcopy(S), pickle.loads(pickle.dumps(S)), S.clone(), S.to(device), S.cpu()):
            agree(other, S)
        assert copy.deepcopy(S).requires_grad and copy.deepcopy(S).device == S.device
        file = io.BytesIO()
        torch.save({"S": S}, file)
        places: dict[Any, str] = {
            "cpu": "cpu",
            device: kind_of(device),
            torch.device(device): kind_of(device),
        }
        for place, kind in places.items():
            file.seek(0)
            loaded = torch.load(file, map_location=place, weights_only=False)["S"]
            assert loaded.device.type == kind and loaded.format == S.format
            agree(loaded, S)
        file.seek(0)
        moved = torch.load(file, map_location={str(S.device): "cpu"}, weights_only=False)["S"]
        assert moved.device.type == "cpu"


@check
def states_of_layers(device: str) -> None:
    layer = scorch.nn.SparseLinear(N, 64, density=0.1).to(device)
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    for place in ("cpu", device):
        file.seek(0)
        state = torch.load(file, map_location=place, weights_only=False)
        assert {value.device.type for value in state.values()} == {kind_of(place)}
        other = scorch.nn.SparseLinear(N, 64, density=0.1).to(device)
        other.load_state_dict(state)
        agree(other(dense(device, 3, N)), layer(dense(device, 3, N)))
        assert {value.device.type for value in other.state_dict().values()} == {kind_of(device)}


@check
def pinned_memory(device: str) -> None:
    if device == "cpu":
        return
    S = matrix("cpu").pin_memory()
    assert S.is_pinned() and not matrix("cpu").is_pinned()
    with torch.cuda.stream(torch.cuda.Stream()):
        S.to(device, non_blocking=True)  # after which the stream has memory
        torch.cuda.current_stream().synchronize()
        torch.cuda._sleep(50_000_000)
        moved = S.to(device, non_blocking=True)
        assert not torch.cuda.current_stream().query(), "the host waited for a copy"
    torch.cuda.synchronize()
    agree(moved, S)


@check
def default_device(device: str) -> None:
    places, values = torch.tensor([[0, 2], [1, 0]]), torch.tensor([1.0, 2.0])
    torch.set_default_device(device)
    try:
        made = [
            scorch.sparse_coo_tensor(places, values, (3, 3), device=device),
            scorch.sparse_coo_tensor([[0, 2], [1, 0]], [1.0, 2.0], (3, 3)),
            scorch.from_torch(torch.eye(3), format="csr"),
            scorch.nn.masks.window(8, 2),
            scorch.nn.SparseLinear(8, 4, density=0.5).weight,
        ]
        made += [made[1] @ torch.ones(3, 2), made[1] * 2.0, torch.ones(2, 8) @ made[4].T]
    finally:
        torch.set_default_device(None)
    with torch.device(device):
        made.append(scorch.sparse_coo_tensor([[0, 2], [1, 0]], [1.0, 2.0], (3, 3)))
    devices = [tensor.device.type for tensor in made]
    assert set(devices) == {kind_of(device)}, devices


# construction ----------------------------------------------------------------------------------------


class _StaysThere(TorchDispatchMode):
    """Raise where more than a few numbers are copied from a device to the host."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        if func.overloadpacket is torch.ops.aten.copy_:
            self._check(args[1], args[0].device)
        elif func.overloadpacket is torch.ops.aten._to_copy:
            self._check(args[0], named.get("device") or args[0].device)
        return func(*args, **named)

    def _check(self, given: torch.Tensor, target: torch.device) -> None:
        is_read = target.type == "cpu" != given.device.type
        assert not is_read or given.numel() <= FEW, f"{given.numel()} numbers were copied to the host"


@check
def construction_on_the_device(device: str) -> None:
    wanted = plain(matrix("cpu"))
    S = matrix(device)
    edges = S.to_format("coo").indices()
    crd, values = torch.cat([edges, edges], 1), torch.cat([S.values() * 0.25, S.values() * 0.75])
    back = torch.arange(N - 1, -1, -1, device=device)
    library = {form: getattr(wanted.to(device), f"to_sparse_{form}")() for form in ("csr", "csc", "coo")}
    library["bsr"] = wanted.to(device).to_sparse_bsr((4, 4))
    with _StaysThere():
        made: dict[str, torch.Tensor] = {
            "coordinates that repeat": scorch.sparse_coo_tensor(crd, values, (N, N)),
            "edges": scorch.from_edge_index(edges, S.values(), (N, N)),
            "a dense tensor": scorch.from_torch(wanted.to(device), format="csr"),
            "rows in another order": S[back][back],
            "columns in another order": S[:, back][:, back],
            "two transposes": S.T.to_format("csr").T.to_format("csr"),
            "sums of parts": torch.cat([S[:100], S[100:]]),
        }
        made |= {f"torch's {name}": scorch.from_torch(tensor) for name, tensor in library.items()}
        made |= {form: S.to_format(form) for form in ("csc", "coo", "bsr(4,4)", "dcsr", "bitmap", "csr")}
    for name, tensor in made.items():
        assert tensor.device.type == kind_of(device), name
        agree(tensor, wanted, 1e-5)


# several devices -------------------------------------------------------------------------------------


@check
def two_devices_are_refused_by_name(device: str) -> None:
    if device == "cpu":
        return
    S, x, here = matrix(device), dense("cpu", N, K), matrix("cpu")
    there = dense(device, N, K)
    calls: dict[str, Callable[[], Any]] = {
        "S @ x": lambda: S @ x,
        "x.T @ S": lambda: x.T @ S,
        "S + T": lambda: S + here,
        "S * dense": lambda: S * dense("cpu", N, N),
        "einsum": lambda: scorch.einsum("ij,jk->ik", S, x),
        "evaluate": lambda: scorch.evaluate("C[i,k] = A[i,j] * B[j,k]", A=S, B=x),
        "a sparse tensor on the host": lambda: here @ there,
        "cat": lambda: torch.cat([S, here]),
        "solve": lambda: torch.linalg.solve(S, x[:, 0]),
        "GCNConv": lambda: scorch.nn.GCNConv(K, 4).to(device)(x, graph(device)),
        "values": lambda: S.with_values(here.values()),
    }
    for name, call in calls.items():
        try:
            call()
        except RuntimeError as error:
            said = str(error)
            assert "cpu" in said and "cuda" in said, f"{name}: {said}"
            assert name == "GCNConv" or ".to(" in said or ".c" in said, f"{name} names no cure: {said}"
            continue
        raise AssertionError(f"{name} of tensors on two devices was computed")
    agree(S[torch.arange(5)], plain(S)[:5])  # an index may be on the host, as in torch


@check
def several_devices(device: str) -> None:
    """Kernels run where operands are, whichever device is the current one."""
    wanted = matrix("cpu") @ dense("cpu", N, K)
    for number in range(torch.cuda.device_count() if device != "cpu" else 0):
        S, x = matrix(f"cuda:{number}"), dense(f"cuda:{number}", N, K)
        for _ in range(150):
            found = S @ x
        assert found.device.index == number
        agree(found, wanted)
        agree((S @ S) @ x, matrix("cpu") @ wanted)


# streams ---------------------------------------------------------------------------------------------


@check
def streams(device: str) -> None:
    if device == "cpu":
        return
    streams = [torch.cuda.Stream() for _ in range(3)]
    A, B, x = matrix(device), matrix(device, seed=2), dense(device, N, K)
    torch.cuda.synchronize()
    found = []
    for number in range(12):
        with torch.cuda.stream(streams[number % 3]):
            found.append(((A + B) @ x, A.to_format("csc") @ x, (A @ B) @ x))
    torch.cuda.synchronize()
    for several in found:
        for one, first in zip(several, found[0], strict=True):
            agree(one, first)
    agree(found[0][0], plain(A + B) @ x.cpu())


@check
def memory_that_another_stream_reads(device: str) -> None:
    """``record_stream`` keeps all arrays of a tensor until the stream is done with them."""
    if device == "cpu":
        return
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    x, wanted = dense(device, N, K), plain(matrix("cpu")) @ dense("cpu", N, K)
    with torch.cuda.stream(second):
        matrix(device) @ x  # which compiles the kernel
    torch.cuda.synchronize()
    for _ in range(3):
        with torch.cuda.stream(first):
            S = matrix(device)
        first.synchronize()
        sizes = [(array.numel(), array.dtype) for array in arrays_of(S)]
        with torch.cuda.stream(second):
            torch.cuda._sleep(20_000_000)
            found = S @ x
        S.record_stream(second)
        del S
        with torch.cuda.stream(first):  # which would have their memory now
            others = [torch.full((size,), 7, dtype=dtype, device=device) for size, dtype in sizes * 2]
        torch.cuda.synchronize()
        agree(found, wanted)
        del others


@check
def copies_on_several_streams(device: str) -> None:
    """A pattern that one stream still copies is waited for by others."""
    if device == "cpu":
        return
    S, x = matrix("cpu").pin_memory(), dense(device, N, K)
    for _ in range(5):
        twice = S * 2.0
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda._sleep(1_000_000)
            first = S.to(device, non_blocking=True)
        with torch.cuda.stream(torch.cuda.Stream()):
            found = twice.to(device, non_blocking=True) @ x
        torch.cuda.synchronize()
        agree(found, 2 * plain(first) @ x.cpu())


# kernels and joins -----------------------------------------------------------------------------------


@check
def kernels_agree_with_joins(device: str) -> None:
    """Calls have the same results without kernels, by PyTorch's operators alone."""
    for name, call in _calls_of_kernels(device).items():
        try:
            with without_kernels(), recorded() as others:  # first: nothing is known that begins with a kernel
                wanted = call()
            with recorded() as launched:
                found = call()
            assert not others, f"{others[0][0].label} was launched"
            assert launched or device == "cpu", "no kernel was launched"
            agree(found, wanted)
        except Exception as error:
            raise AssertionError(f"{name}: {type(error).__name__}: {error}") from error


@contextmanager
def recorded() -> Iterator[list[Any]]:
    """Collect the kernels that are launched by calls that are planned anew."""
    record = Launches()
    scorch.clear_plans()
    LAUNCHES.append(record)
    try:
        yield record.launched
    finally:
        LAUNCHES.remove(record)
        scorch.clear_plans()


@contextmanager
def without_kernels() -> Iterator[None]:
    """Run as where NVRTC has no code for any kernel."""
    kinds = CudaKernel, *CudaKernel.__subclasses__()
    kept = [kind.is_ready for kind in kinds]
    for kind in kinds:
        kind.is_ready = lambda kernel, *_, **__: False  # type: ignore[method-assign]
    try:
        yield
    finally:
        for kind, is_ready in zip(kinds, kept, strict=True):
            kind.is_ready = is_ready  # type: ignore[method-assign]


def _calls_of_kernels(device: str) -> dict[str, Callable[[], torch.Tensor]]:
    """Return calls on patterns that are new each time, so that none has been converted before."""
    generator = torch.Generator("cpu").manual_seed(5)
    few = torch.rand(9, 8, 7, generator=generator, device="cpu")
    places = torch.randint(N, (2, 6_000), generator=generator, device="cpu").to(device)
    x, X, numbers = dense(device, N), dense(device, N, 32), dense(device, 6_000)
    F, G, rows = dense(device, 8, K), dense(device, 7, K), torch.arange(0, N, 3, device=device)

    def new(seed: int = 0) -> torch.Tensor:
        return matrix(device, seed=seed)

    def tensor() -> torch.Tensor:
        return scorch.from_torch(few * (few < 0.2), format="csf").to(device)

    return {
        "S @ x": lambda: new() @ x,
        "S @ X": lambda: new() @ X,
        "S.T @ X": lambda: new().T @ X,
        "S @ S": lambda: new() @ new(1),
        "sampled product": lambda: scorch.einsum("ij,ik,jk->ij", new(), X, X),
        "S.sum(1)": lambda: new().sum(1),
        "A + B": lambda: new() + new(1),
        "A + A.T": lambda: new() + new().T,
        "A * B + C": lambda: scorch.evaluate(
            "R[i,j] = A[i,j] * B[i,j] + C[i,j]", A=new(), B=new(1), C=new(2), format="csr"
        ),
        "MTTKRP": lambda: scorch.einsum("ijk,jr,kr->ir", tensor(), F, G),
        "T + T": lambda: tensor() + 2 * tensor(),
        "csc": lambda: new().to_format("csc"),
        "coalescing": lambda: scorch.sparse_coo_tensor(places, numbers, (N, N)),
        "S[rows]": lambda: new()[rows],
        "softmax": lambda: torch.softmax(new(), 1),
    }


# explanations ----------------------------------------------------------------------------------------


@check
def explanations(device: str) -> None:
    """``explain`` says which way is taken, and on a GPU its grid, registers, bytes and time."""
    S, B, X = matrix(device), matrix(device, seed=2), dense(device, N, K)
    union = "C[i,j] = A[i,j] + B[i,j]"
    told = {
        "a grid": scorch.explain("ij,jk->ik", S, X),
        "launches that count": scorch.explain(union, A=S, B=B),
        "some launches count": scorch.explain("ij,jk->ik", S, S),
        "joins": scorch.explain(union, format="bsr(4,4)", A=S, B=B),
    }
    for way, explanation in told.items():
        threads = explanation.steps[-1].threads
        assert threads, way
        if device != "cpu":
            assert way in threads, f"{way!r} is not said: {threads}"
    if device != "cpu":
        words = r"blocks x threads [\d,]+ x \d+; \d+ registers and .* memory a thread, [\d,]+ bytes of shared"
        words += r" memory a block; [\d,]+ bytes at least; about [\d.]+ .s: "
        assert re.search(words, told["a grid"].steps[-1].threads), told["a grid"].steps[-1].threads


@contextmanager
def refused(*words: str) -> Iterator[None]:
    """Expect an error of Scorch that has some words."""
    try:
        yield
    except ScorchError as error:
        missing = [word for word in words if word not in str(error)]
        assert not missing, f"{error} does not say {missing}"
        return
    raise AssertionError("it was not refused")

"""A CUDA text, compiled when it is first called, and loaded on each device that it is called on."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from scorch._src.backends import cache
from scorch._src.backends.cores import cores_of_host
from scorch._src.backends.cuda.device import driver, nvrtc
from scorch._src.backends.print.cuda import as_part, part_of
from scorch._src.bounded import BoundedCache
from scorch._src.loops.grid import FUNCTIONS
from scorch.errors import CompilationError, CompilerNotFoundError, warn

MAX_KERNELS = 4096
MAX_TEXTS = 64  # of files
MAX_COMPILERS = 8  # at once: each needs memory
DELAY = 0.05  # seconds before kernels are compiled ahead
PAUSE = 0.01  # seconds between looks whether others are still being compiled
MANY_CORES = 8  # with which nobody waits longer because something is compiled ahead
MAX_AHEAD, CORES_EACH = 4, 4  # threads that compile ahead, and cores for each of them
HEAD_START = 0.01  # seconds for threads that compile: Python runs one at a time, and may switch after 5 ms
PATIENCE = 0.3  # seconds that those wait who need not: torch takes about as long to load its kernels instead


class Launch(NamedTuple):
    """A function with the blocks that it runs with, the threads of each, and its bytes of shared memory."""

    name: str
    blocks: int
    threads: int = driver.THREADS
    shared: int = 0


@dataclass(eq=False)
class Launches:
    """What was launched while somebody recorded it, and on which device; or why there was no kernel."""

    launched: list[tuple[CudaKernel, Launch, int | None]] = field(default_factory=list)
    why_not: str = ""


_KERNELS = re.compile(
    r"^KERNEL void (?:LIMITS\([^\n]*\) )?(\w+)\(const struct.*?^}$", re.MULTILINE | re.DOTALL
)

LAUNCHES: list[Launches] = []  # of those who record
_kernels: BoundedCache[tuple[str, tuple[str, ...]], CudaKernel] = BoundedCache(MAX_KERNELS)


@functools.lru_cache(maxsize=MAX_TEXTS)
def read_text(*names: str) -> str:
    """Return the CUDA C of files, of which each kernel may be compiled by itself."""
    folder = Path(__file__).parents[1] / "c"
    text = "\n\n".join((folder / name).read_text(encoding="utf-8") for name in names)
    return _KERNELS.sub(lambda found: as_part(found[1], found[0]), text)


def refuse(why: str) -> None:
    """Report why there is no kernel to those who record launches."""
    for record in LAUNCHES:
        record.why_not = why


def kernel_of(source: str, label: str, first: Sequence[str] = ()) -> CudaKernel:
    """Return the kernel of a text, which all that have that text share, ``explain`` too."""
    key = source, tuple(first)
    known = _kernels.get(key)
    if known is None:
        known = _kernels[key] = CudaKernel(source, label, first)
    return known


class CudaKernel:
    """The functions of a text. ``label`` says what they compute, for messages.

    ``first``: those that the first call needs, of a text whose kernels may be compiled by themselves. They
    are compiled side by side, the others when they are launched.
    """

    def __init__(self, source: str, label: str, first: Sequence[str] = ()) -> None:
        self.source, self.label, self.first = source, label, first
        self._codes: dict[tuple[tuple[int, int], str], bytes] = {}  # by architecture and part
        self._functions: dict[tuple[str, int], Any] = {}  # by name and device
        self._is_refused = self._was_waited_for = False
        self._compiling: threading.Thread | None = None
        self._has_ended = False
        self._changed = threading.Condition()  # whether it has ended, or what codes there are

    def is_ready(self, may_wait: bool = True, needed: Sequence[str] = ()) -> bool:
        """Check whether there is code for the current device; compile it if need be.

        Unless the caller ``may_wait`` for NVRTC as long as it takes, that happens in a thread, and there is
        none until it ends. ``needed``: the parts to wait for, if the others may be compiled until they are
        launched.
        """
        if not self.source or self._is_refused or not nvrtc.is_there():
            refuse("NVRTC has no code for it")
            return False
        if not may_wait and (self._compiling is not None or not self._codes) and not self._is_compiled():
            refuse("NVRTC compiles it meanwhile")
            return False
        if self._compiling is None and not self._codes:
            self._find_or_compile()
        if self.is_at_work and self._wait_for(needed or self._first_parts, torch.cuda.current_device()):
            return True
        if self._compiling is not None:
            self._compiling.join()
        if not self._codes:
            try:
                self._compile_first(torch.cuda.current_device())
            except (CompilationError, CompilerNotFoundError) as error:
                self._is_refused = True
                warn(f"{error}\nScorch falls back to PyTorch operators, which is slower.")
                return False
        return True

    def begin(self) -> None:
        """Have a thread compile what the first call will need, while others of the same step are compiled."""
        is_able = bool(self.source) and not self._is_refused and torch.cuda.is_initialized()
        if is_able and not self._codes and self._compiling is None and nvrtc.is_there():
            self._find_or_compile()

    @property
    def is_at_work(self) -> bool:
        """Whether a thread compiles."""
        return not self._has_ended and self._compiling is not None and self._compiling.is_alive()

    def _wait_for(self, parts: Sequence[str], device: int) -> bool:
        """Wait until a thread has compiled parts, if one is at work; check whether there is code for all."""
        capability = torch.cuda.get_device_capability(device)

        def are_there() -> bool:
            return all((capability, part) in self._codes for part in parts)

        with self._changed:
            self._changed.wait_for(lambda: are_there() or not self.is_at_work)
            return are_there()

    def _is_compiled(self) -> bool:
        """Check whether code is on disk, or the thread that compiles it is done; begin one otherwise.

        Who asks first waits a while.
        """
        compiling = self._compiling or self._find_or_compile()
        if compiling is not None and not self._was_waited_for:
            self._was_waited_for = True
            compiling.join(PATIENCE)
        return compiling is None or not compiling.is_alive()

    def _find_or_compile(self) -> threading.Thread | None:
        """Have a thread compile code for the current device, unless it is on disk: then keep it."""
        device = torch.cuda.current_device()
        text = self.source, architecture_of(device)
        missing = []
        for part in self._first_parts:
            code = nvrtc.read(*text, part)
            if code is None:
                missing.append(part)
            else:
                self._keep((torch.cuda.get_device_capability(device), part), code)
        if not missing:
            return None
        # Not a daemon: the interpreter waits at its end, and NVRTC is not torn down at work.
        work = functools.partial(contextvars.copy_context().run, self._compile, device)
        thread = threading.Thread(target=work, name=f"compile {self.label}", daemon=False)
        thread.start()
        self._compiling = thread
        nvrtc.wait_for_work(*text, missing, MAX_COMPILERS, HEAD_START)
        return thread

    def _compile(self, device: int) -> None:
        try:
            # The next call raises again what is suppressed.
            with contextlib.suppress(CompilationError, CompilerNotFoundError):
                self._compile_first(device)
        finally:
            with self._changed:
                self._has_ended = True
                self._changed.notify_all()

    @property
    def _first_parts(self) -> Sequence[str]:
        return self.first or (part_of(FUNCTIONS[0]),)

    def _compile_first(self, device: int) -> None:
        self._compile_parts(self._first_parts, device)

    def prepare(self, names: Sequence[str], device: int) -> None:
        """Have functions compiled side by side that are about to be launched, one after another."""
        missing = [name for name in names if (name, device) not in self._functions]
        if self.first and missing:
            self._compile_parts(missing, device)

    def _compile_parts(self, parts: Sequence[str], device: int) -> None:
        """Compile parts, each in a thread."""
        if len(parts) == 1:
            self._code(device, parts[0])
            return
        with ThreadPoolExecutor(min(len(parts), MAX_COMPILERS)) as pool:
            runs = [contextvars.copy_context().run for _ in parts]
            done = [pool.submit(run, self._code, device, part) for run, part in zip(runs, parts, strict=True)]
            for each in done:
                each.result()

    def launch(self, name: str, slots: Sequence[Any], threads: int, device: int) -> None:
        """Run a function with as many threads."""
        if LAUNCHES:
            self.record(Launch(name, driver.blocks_for(threads)), device)
        function = self._functions.get((name, device)) or self.function(name, device)
        driver.launch(function, slots, threads, device)

    def launch_blocks(
        self, name: str, slots: Sequence[Any], blocks: int, threads: int, shared: int, device: int
    ) -> None:
        """Run a function with as many blocks, each with as many bytes of shared memory."""
        if LAUNCHES:
            self.record(Launch(name, blocks, threads, shared), device)
        function = self._functions.get((name, device)) or self.function(name, device)
        driver.launch_blocks(function, slots, blocks, threads, shared, device)

    def record(self, launch: Launch, device: int | None) -> None:
        """Report the launch to those who record launches."""
        for record in LAUNCHES:
            record.launched.append((self, launch, device))

    def function(self, name: str, device: int) -> Any:
        """Return a function as it is loaded on a device whose context is current."""
        function = self._functions.get((name, device))
        if function is None:
            part = name if self.first else part_of(name)
            if part in self._first_parts:
                self._wait_for([part], device)
            function = self._functions[name, device] = driver.load(self._code(device, part), name, device)
        return function

    def _code(self, device: int, part: str) -> bytes:
        key = torch.cuda.get_device_capability(device), part
        code = self._codes.get(key)
        if code is None:
            keep = functools.partial(self._keep, key)
            code = nvrtc.compile_cuda(self.source, architecture_of(device), self.label, part, keep)
            self._keep(key, code)
        return code

    def _keep(self, key: tuple[tuple[int, int], str], code: bytes) -> None:
        """Keep the code of a part, for who waits for it."""
        with self._changed:
            self._codes[key] = code
            self._changed.notify_all()


def architecture_of(device: int) -> str:
    """Return what NVRTC calls the kind of a device."""
    return "sm_{}{}".format(*torch.cuda.get_device_capability(device))


class Text(NamedTuple):
    """A text that is printed when it is compiled, what it computes, and the parts of it that are needed."""

    print_source: Callable[[], str]
    label: str
    parts: Sequence[str]


class Ahead:
    """Threads that print texts and compile parts of them before anybody asks for them; they stay on disk.

    They begin nothing while somebody waits for NVRTC; but where there are many cores, one goes on. ``mark``
    returns, for an architecture, the key of a note on disk that says that all of this was compiled before.
    """

    def __init__(self, texts: Sequence[Text], mark: Callable[[str], str]) -> None:
        self._architecture = architecture_of(torch.cuda.current_device())
        self._parts = (
            (print_source(), label, part) for print_source, label, parts in texts for part in parts
        )
        self._mark, self._lock, self._is_whole = mark, threading.Lock(), True
        self._cores = cores_of_host()
        self.thread = self._begin(self._lead)

    def _begin(self, work: Callable[[], None]) -> threading.Thread:
        # Not a daemon: the interpreter waits at its end for the part that is being compiled.
        run = functools.partial(contextvars.copy_context().run, work)
        thread = threading.Thread(target=run, name="compile kernels ahead", daemon=False)
        thread.start()
        return thread

    def _lead(self) -> None:
        is_patient = self._cores < MANY_CORES
        if is_patient:
            time.sleep(DELAY)
        if not nvrtc.is_there():
            return
        mark = self._mark(self._architecture)
        if cache.read_note(mark) is not None:
            return
        self._compile_next(is_patient)  # alone, so that a call that comes at once has the other cores
        others: list[threading.Thread] = []
        with contextlib.suppress(RuntimeError):  # the interpreter is about to end
            for _ in range(1, min(self._cores // CORES_EACH, MAX_AHEAD)):
                others.append(self._begin(functools.partial(self._compile_parts, is_patient=True)))
        self._compile_parts(is_patient)
        for thread in others:
            thread.join()
        if self._is_whole:
            cache.write_note(mark, b"compiled")

    def _compile_parts(self, is_patient: bool) -> None:
        while self._compile_next(is_patient):
            continue

    def _compile_next(self, is_patient: bool) -> bool:
        """Compile a part; False if none is left, or the program ends."""
        while is_patient and nvrtc.is_busy():
            time.sleep(PAUSE)
        with self._lock:
            source, label, part = next(self._parts, ("", "", ""))
        if source and not threading.main_thread().is_alive():
            self._is_whole = False
        elif source:
            try:
                nvrtc.compile_cuda(source, self._architecture, label, part, is_ahead=True)
            except (CompilationError, CompilerNotFoundError):  # which the first call raises
                self._is_whole = False
            return True
        return False

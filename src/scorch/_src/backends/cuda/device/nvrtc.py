"""NVRTC: compile CUDA C to machine code in this process. It comes with every torch that knows CUDA."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from scorch._src.backends import cache
from scorch._src.backends.compile_lock import one_at_a_time
from scorch.errors import CompilationError, CompilerNotFoundError

# One block of slots is the only argument; functions without a mark are for the device.
OPTIONS = ("-default-device", "--std=c++17")
MINIMAL = "--minimal"  # without textures and functions of the host's libraries, which takes less time
MINIMAL_SINCE = (12, 4)

_at_work: list[str] = []  # keys of what is being compiled
_wanted: list[str] = []  # of what somebody waits for
_changed = threading.Condition()  # which these are


def compile_cuda(
    source: str,
    architecture: str,
    label: str = "",
    part: str = "",
    tell: Callable[[bytes], object] | None = None,
    is_ahead: bool = False,
) -> bytes:
    """Return the machine code of ``source`` for an architecture such as ``sm_90``; it is cached on disk.

    ``part``: which of its functions are compiled (``print.cuda.as_part``), if not all of them. ``tell`` is
    called with what was compiled before that is stored. ``is_ahead``: nobody waits for it yet.
    """
    key = _key(source, architecture, part)
    found = cache.read(key)
    if found is not None:
        return found
    wanted = [] if is_ahead else [key]
    _wanted.extend(wanted)
    try:
        with one_at_a_time(key):  # another thread or process may have compiled it meanwhile
            return cache.read(key) or _compile_and_store(source, architecture, key, label, part, tell)
    finally:
        for each in wanted:
            _wanted.remove(each)


def read(source: str, architecture: str, part: str = "") -> bytes | None:
    """Return the machine code that is cached on disk; None if ``compile_cuda`` would compile it."""
    return cache.read(_key(source, architecture, part))


def _key(source: str, architecture: str, part: str) -> str:
    return cache.make_key(source, "nvrtc", identity(), architecture, part, *OPTIONS)


def is_busy() -> bool:
    """Check whether somebody waits for a kernel."""
    return bool(_wanted)


def wait_for_work(source: str, architecture: str, parts: Sequence[str], most: int, seconds: float) -> None:
    """Wait until parts of a text are being compiled, or the most of them that are so at once."""
    keys = {_key(source, architecture, part) for part in parts}
    with _changed:
        _changed.wait_for(lambda: len(keys.intersection(_at_work)) >= min(len(keys), most), seconds)


def _compile_and_store(
    source: str,
    architecture: str,
    key: str,
    label: str,
    part: str,
    tell: Callable[[bytes], object] | None,
) -> bytes:
    with _changed:
        _at_work.append(key)
        _changed.notify_all()
    try:
        code, said = compile_text(source, architecture, *options_of(part))
    finally:
        _at_work.remove(key)
    if not code:
        path = cache.store_text(key, ".c", source)
        raise CompilationError(
            f"NVRTC could not compile a kernel{f' for {label}' if label else ''}\nsource:  {path}\nerror:  "
            f" {said}"
        )
    if tell is not None:
        tell(code)
    cache.store(key, code, source)
    return code


def options_of(part: str) -> tuple[str, ...]:
    """Return the options that leave all but a part out."""
    return ("-DPART", f"-DPART_{part}") if part else ()


def compile_text(source: str, architecture: str, *options: str) -> tuple[bytes, str]:
    """Compile ``source``; return its machine code, empty where it is refused, and what NVRTC said."""
    library, program = nvrtc(), ctypes.c_void_p()
    _check(library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None))
    try:
        given = (f"--gpu-architecture={architecture}", *OPTIONS, *options)
        words = [option.encode() for option in (*given, *[MINIMAL] * (version() >= MINIMAL_SINCE))]
        status = library.nvrtcCompileProgram(program, len(words), (ctypes.c_char_p * len(words))(*words))
        said = _read(library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog, program)
        code = b"" if status else _read(library.nvrtcGetCUBINSize, library.nvrtcGetCUBIN, program)
        return code, said.rstrip(b"\0").decode(errors="replace")
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _read(size_of: object, read: object, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    _check(size_of(program, ctypes.byref(size)))  # type: ignore[operator]
    buffer = ctypes.create_string_buffer(size.value)
    _check(read(program, buffer))  # type: ignore[operator]
    return buffer.raw


def _check(status: int) -> None:
    if status:
        raise CompilationError(f"NVRTC failed with status {status}")


@functools.cache
def version() -> tuple[int, int]:
    """Return the version of NVRTC."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(nvrtc().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    return major.value, minor.value


@functools.cache
def nvrtc() -> ctypes.CDLL:
    """Load NVRTC from where torch has it."""
    tried = []
    for candidate in _candidates():
        try:
            path = Path(candidate)
            if path.is_absolute():  # then the system does not find by itself what it needs
                for needed in sorted(path.parent.glob("*nvrtc-builtins*")):
                    ctypes.CDLL(str(needed))
            _load_beside_python(candidate)
            return ctypes.CDLL(candidate)
        except OSError:
            tried.append(candidate)
    raise CompilerNotFoundError(
        "Scorch compiles CUDA kernels with NVRTC, which comes with torch, but could not find it; it tried "
        f"{', '.join(dict.fromkeys(tried)) or 'nothing, as torch is built without CUDA'}.\nTo install it: "
        "pip install nvidia-cuda-nvrtc"
    )


def _load_beside_python(library: str) -> None:
    """Load a library while other threads run Python, which they do not while ``ctypes.CDLL`` does.

    That takes milliseconds for a library as large as NVRTC.
    """
    if sys.platform != "win32":
        ctypes.CDLL(None).dlopen(library.encode(), os.RTLD_NOW)


@functools.cache
def identity() -> str:
    """Return what distinguishes this NVRTC from others: name and size of its file, or its version.

    It is loaded only if no file is found: that takes longer than to read a kernel from disk.
    """
    path = next(_files(), None)
    return str(version()) if path is None else f"{path.name}, {path.stat().st_size} bytes"


@functools.cache
def why_missing() -> str | None:
    """Describe what this machine lacks, and how to get it; None if there is an NVRTC."""
    if next(_files(), None) is not None:
        return None
    try:
        nvrtc()
    except CompilerNotFoundError as error:
        return str(error)
    return None


def is_there() -> bool:
    return why_missing() is None


def _candidates() -> Iterator[str]:
    """Yield where NVRTC may be: names that torch has loaded already first, then its packages."""
    if _major() and sys.platform != "win32":
        yield f"libnvrtc.so.{_major()}"
    yield from map(str, _files())


def _files() -> Iterator[Path]:
    """Yield the files of NVRTC, those of torch's version of CUDA first, which few folders are read for."""
    pattern = "nvrtc64_*.dll" if sys.platform == "win32" else "libnvrtc.so*"
    for is_of_version in (True, False):
        for folder in _folders():
            for path in sorted(folder.glob(pattern)):
                if "builtins" not in path.name and (f".so.{_major()}" in path.name) == is_of_version:
                    yield path


def _major() -> str:
    """Return torch's version of CUDA, without what comes behind the first point."""
    return (torch.version.cuda or "").partition(".")[0]


def _folders() -> Iterator[Path]:
    torch_folder = Path(torch.__file__).parent
    yield torch_folder / "lib"
    package = importlib.util.find_spec("nvidia")
    for place in (package.submodule_search_locations if package is not None else None) or ():
        yield from sorted(Path(place).glob("*/lib"))
        yield from sorted(Path(place).glob("*/bin"))
    yield Path("/usr/local/cuda/lib64")

"""Folders and files that nobody else can have written: what is loaded from them runs as us.

A folder is private if only its owner may write to it, and if nobody else can put another one in its place:
every folder on the way to it, and every link followed, belongs to us or to the system. A folder above that
everybody may write to is fine where its sticky bit keeps everybody from moving what belongs to others, as in
``/tmp``. Once that holds, no check can be overtaken by somebody else before what was checked is used.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import platformdirs

MAX_LINKS = 40  # as many as Linux follows
HAS_OWNERS = hasattr(os, "geteuid")  # not on Windows, where the profile of a user is private by itself

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class NotPrivateError(PermissionError):
    """Somebody else could have written here, or could put another folder in its place."""


def resolve_private(path: str | os.PathLike[str]) -> Path:
    """Resolve the links of ``path``; raise if it, or a folder on the way, is not private.

    What does not exist yet cannot be checked: ``make_private`` makes it and checks it.
    """
    return _resolved(Path(path), is_shared_parent=False)


def make_private(path: Path) -> Path:
    """Make a folder that only its owner may enter, and those above it that are missing; return its path.

    A folder of that name that somebody else made in the meantime is refused.
    """
    place = resolve_private(path)
    missing = [folder for folder in (place, *place.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)
    if not place.is_dir():
        raise NotADirectoryError(20, "it is not a directory", str(place))
    return resolve_private(place)


def read_private(path: Path) -> bytes:
    """Read a file in a private folder; raise if others may write it or have written it."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    with open(os.open(path, flags | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise NotPrivateError(f"{path} is not a regular file")
        if HAS_OWNERS:
            reason = _intruder(status)
            if reason:
                raise NotPrivateError(f"{path} {reason}")
        return file.read()


def make_temporary(prefix: str = "scorch-") -> Path:
    """Make a new private folder, in the system's temporary one or else in the user's cache."""
    reasons = []
    for base in (tempfile.gettempdir(), platformdirs.user_cache_dir("scorch")):
        try:
            place = _resolved(Path(base), is_shared_parent=True)
            if not place.is_dir():
                make_private(place)
            return Path(tempfile.mkdtemp(prefix=prefix, dir=place))
        except OSError as error:
            reasons.append(str(error))
    raise NotPrivateError(f"no directory for private files is available: {'; '.join(reasons)}")


@contextlib.contextmanager
def temporary_folder(prefix: str = "scorch-") -> Iterator[str]:
    """Make a new private folder for the time of a ``with`` block."""
    place = make_temporary(prefix)
    try:
        yield str(place)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def is_link_of_others(path: Path) -> bool:
    """Check whether ``path`` is a link that neither we nor the owner of its folder created."""
    try:
        link, folder = os.lstat(path), os.stat(path.parent)
    except OSError:
        return False
    trusted = not HAS_OWNERS or link.st_uid in (*_trusted(), folder.st_uid)
    return stat.S_ISLNK(link.st_mode) and not trusted


def _resolved(path: Path, is_shared_parent: bool) -> Path:
    """Resolve the links of ``path``, checking each folder; ``is_shared_parent``: the last as its parents."""
    if not path.is_absolute():  # the current directory may have been removed
        path = Path(os.getcwd(), path)
    if not HAS_OWNERS:
        return path
    left, at, links = list(reversed(path.parts[1:])), path.anchor, 0
    _check_parent(at, os.lstat(at))
    while left:
        name = left.pop()
        if name == os.pardir:
            at = os.path.dirname(at)
            continue
        here = os.path.join(at, name)
        try:
            status = os.lstat(here)
        except OSError:  # not there, or no folder: making it raises
            return Path(here, *reversed(left))
        if stat.S_ISLNK(status.st_mode):
            links += 1
            if links > MAX_LINKS:
                raise NotPrivateError(f"more than {MAX_LINKS} symbolic links lead to {here}")
            if status.st_uid not in _trusted():
                raise NotPrivateError(f"{here} is a symbolic link owned by {_user(status.st_uid)}")
            target = Path(os.readlink(here))
            at = target.anchor or at
            left += reversed(target.parts[1:] if target.anchor else target.parts)
            continue
        if left or is_shared_parent:
            _check_parent(here, status)
        at = here
    status = os.lstat(at)
    reason = "" if is_shared_parent or not stat.S_ISDIR(status.st_mode) else _intruder(status)
    if reason:
        raise NotPrivateError(f"{at} {reason}")
    return Path(at)


def _check_parent(path: str, status: os.stat_result) -> None:
    """Raise for a folder in which somebody else may replace ours by another one."""
    reason = _intruder(status)
    is_sticky = bool(status.st_mode & stat.S_ISVTX) and status.st_uid in _trusted()
    if reason and stat.S_ISDIR(status.st_mode) and not is_sticky:
        raise NotPrivateError(f"{path} {reason}")


def _intruder(status: os.stat_result) -> str:
    """Describe who else may change a file or folder; "" if nobody."""
    if status.st_uid not in _trusted():
        return f"belongs to {_user(status.st_uid)}"
    others = status.st_mode & _OTHERS_WRITE
    if others == stat.S_IWGRP and _is_own_group(status.st_gid):
        return ""
    return f"can be written by others (mode {stat.S_IMODE(status.st_mode):o})" if others else ""


def _trusted() -> frozenset[int]:
    """Return us and the system, which is root, or who owns ``/`` where a container has renumbered users."""
    return frozenset((os.geteuid(), 0, _owner_of_root()))


@functools.cache
def _owner_of_root() -> int:
    return os.stat(os.sep).st_uid


@functools.lru_cache(maxsize=256)
def _is_own_group(group: int) -> bool:
    """Check whether a group is the one that many systems create for each user, with nobody else in it."""
    import grp
    import pwd

    user = os.geteuid()
    if user == 0:
        return False
    try:
        person, members = pwd.getpwuid(user), grp.getgrgid(group)
    except KeyError:
        return False
    is_first = group == person.pw_gid and members.gr_name == person.pw_name
    return is_first and set(members.gr_mem) <= {person.pw_name}


def _user(number: int) -> str:
    import pwd

    try:
        return f"user {pwd.getpwuid(number).pw_name}"
    except KeyError:
        return f"user {number}"

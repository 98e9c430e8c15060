"""Addresses of the sockets, and the private folder that holds their files.

Each loader has one folder of mode 0700, ``<temporary folder>/crumpets-<uid>``, with a lock file
that its owner keeps locked. The kernel drops the lock however the owner ends, so a folder whose
lock is free was left behind and `sweep` may remove it.
"""

from __future__ import annotations

import atexit
import os
import stat
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache

from .interrupts import interrupts_deferred

__all__ = [
    "PATH_LIMIT",
    "abandoned",
    "check_folders",
    "make_addresses",
    "private_directory",
    "remove_directory",
    "remove_files",
    "remove_ipc_handles",
    "socket_paths",
    "sweep",
]

PATH_LIMIT = 103
"""Longest path of a socket, in bytes: 104 with its end mark on macOS, 108 on Linux."""

_PREFIX = "crumpets-"
_FRESH = f".{_PREFIX}"  # of folders that have no name yet
_LOCK = ".lock"
_NAME_BYTES = 24  # kept free for the names of sockets where the caller names none
_SCHEME = "ipc://"

_locks: dict[str, tuple[int, int]] = {}  # folder -> (descriptor of its lock, pid of the owner)


def make_addresses(
    uid: object,
    pipeline: str,
    numbers: Sequence[tuple[str, int]] = (("work", 1), ("consume", 1)),
) -> list[list[str]]:
    """Return fresh addresses for the sockets of one pipeline.

    Parameters
    ----------
    uid : object
        ``str(uid)`` names the loader, and its folder (see `private_directory`).
    pipeline : str
        Name of the pipeline.
    numbers : sequence of (str, int)
        Kind of socket and how many addresses of that kind.

    Returns
    -------
    list of list of str
        One list per pair of `numbers`, of ``ipc://<folder>/<pipeline>-<kind>-<number>``. The
        folder's name holds the uid, and numbers count from 0. A path has at most 103 bytes.

    Raises
    ------
    ValueError
        If a name is empty or contains ``/``, a count is negative, or the paths would be too long
        in the temporary folder and in ``/tmp``.
    """
    names = [
        [f"{_part('pipeline', pipeline)}-{_part('kind', kind)}-{i}" for i in range(_count(kind, n))]
        for kind, n in numbers
    ]
    longest = max((len(os.fsencode(name)) for group in names for name in group), default=0)
    directory = _open_directory(uid, longest)
    return [[f"{_SCHEME}{os.path.join(directory, name)}" for name in group] for group in names]


def private_directory(uid: object) -> str:
    """Return the private folder of one loader, created and locked if it does not exist.

    It lies in the temporary folder (``tempfile.gettempdir()``), or in ``/tmp`` where the paths of
    sockets would get too long there or where it cannot be created. It is removed by
    `remove_directory`, by the end of this process, or else by the next `sweep`.

    Parameters
    ----------
    uid : object
        ``str(uid)`` names the loader.

    Returns
    -------
    str
        The path. A second call returns the same one.

    Raises
    ------
    ValueError
        If the paths of its sockets would be longer than 103 bytes everywhere.
    PermissionError
        If the folder exists and belongs to somebody else, or others may enter it.
    OSError
        If it cannot be created.
    """
    return _open_directory(uid, _NAME_BYTES)


def remove_directory(uid: object) -> None:
    """Remove the private folder of one loader with its sockets; a missing one is no error."""
    for path in _candidates(uid):
        with suppress(OSError):
            if _is_private(os.lstat(path)):
                _remove(path)
        _close(path)


def sweep() -> None:
    """Remove the folders of this user whose owner is gone, for instance by ``kill -9``.

    A folder that holds anything but sockets and the lock is not ours, and stays.
    """
    for path in _private_folders():
        with suppress(OSError):
            _sweep_one(path)


def abandoned() -> list[str]:
    """Return the folders of this user whose owner is gone, which `sweep` would remove."""
    found = []
    for path in _private_folders():
        with suppress(OSError):
            descriptor = _lock_left(path)
            if descriptor is not None:
                os.close(descriptor)
                found.append(path)
    return found


def socket_paths() -> list[tuple[str, int]]:
    """Return the folders that may hold ours, and the bytes that a socket's path has there.

    The preferred one comes first; where a path has more than `PATH_LIMIT`, the next one serves.
    """
    uid = f"{os.getpid():x}-{0:08x}"  # as long as those of loaders
    return [
        (base, len(os.fsencode(path)) + 1 + _NAME_BYTES)
        for base, path in zip(_bases(), _candidates(uid), strict=True)
    ]


def check_folders() -> None:
    """Check that sockets have a place, before anything is started.

    Raises
    ------
    OSError
        If no folder can hold them: names each, and what is wrong with it.
    """
    problems = []
    for base, length in socket_paths():
        if length > PATH_LIMIT:
            problems.append(f"the path of a socket in {base!r} would have {length} bytes")
        elif not os.path.isdir(base):
            problems.append(f"{base!r} is no folder")
        elif not os.access(base, os.W_OK | os.X_OK):
            problems.append(f"{base!r} is not writable")
        else:
            return
    raise OSError(
        f"There is no place for the loader's sockets: {'; '.join(problems)}. Set TMPDIR to a "
        f"folder that can be written to and whose path is short: the system allows "
        f"{PATH_LIMIT} bytes for that of a socket, which is some 50 bytes longer."
    )


def remove_files(files: Iterable[str | os.PathLike[str]]) -> None:
    """Remove files; missing ones are no error.

    Parameters
    ----------
    files : iterable of str or path
        Paths of the files.

    Raises
    ------
    TypeError
        If `files` is itself a string: its characters would be taken for paths.
    OSError
        If a file exists and cannot be removed.
    """
    if isinstance(files, str | bytes):
        raise TypeError(f"files must be an iterable of paths, got the string {files!r}")
    for path in files:
        with suppress(FileNotFoundError):
            os.unlink(path)


def remove_ipc_handles(handles: Iterable[str]) -> None:
    """Remove the files behind ``ipc://`` addresses; missing ones are no error.

    Parameters
    ----------
    handles : iterable of str
        Addresses. Those of other transports, such as ``tcp://``, have no file and are ignored; a
        plain path is taken as it is.

    Raises
    ------
    TypeError
        If `handles` is itself a string.
    OSError
        If a file exists and cannot be removed.
    """
    if isinstance(handles, str | bytes):
        raise TypeError(f"handles must be an iterable of addresses, got the string {handles!r}")
    paths = (handle.removeprefix(_SCHEME) for handle in handles)
    remove_files(path for path in paths if "://" not in path)


def _part(argument: str, value: object) -> str:
    text = str(value)
    if not text or "/" in text or "\0" in text:
        raise ValueError(f"{argument} must be a name without '/', got {text!r}")
    return text


def _count(kind: str, number: int) -> int:
    if number < 0:
        raise ValueError(f"numbers must not be negative, got {number} for {kind!r}")
    return number


def _bases() -> list[str]:
    """Folders that may hold ours, the preferred one first."""
    folder = "/tmp"
    # The first call writes files to see where it can. If nowhere, `check_folders` says so.
    with interrupts_deferred(), suppress(FileNotFoundError):
        folder = tempfile.gettempdir()
    return list(dict.fromkeys([os.path.abspath(folder), "/tmp"]))


def _candidates(uid: object) -> list[str]:
    return [os.path.join(base, _PREFIX + _part("uid", uid)) for base in _bases()]


def _open_directory(uid: object, name_bytes: int) -> str:
    """Return the folder of `uid`, whose paths leave room for file names of `name_bytes`."""
    paths = _candidates(uid)
    # A folder that is open already stays the one of its uid.
    paths = [path for path in paths if path in _locks] or paths
    lengths = {path: len(os.fsencode(path)) + 1 + name_bytes for path in paths}
    fitting = [path for path in paths if lengths[path] <= PATH_LIMIT]
    if not fitting:
        shortest = min(paths, key=lambda path: lengths[path])
        raise ValueError(
            f"the path of a socket in {shortest!r} would have {lengths[shortest]} bytes, the "
            f"system allows {PATH_LIMIT}: use a shorter uid or pipeline, or set TMPDIR to a folder "
            f"with a shorter path"
        )
    for path in fitting[:-1]:
        with suppress(OSError):
            return _acquire(path)
    return _acquire(fitting[-1])


def _acquire(path: str) -> str:
    """Create and lock the folder `path`, or take over the one that is there."""
    while not (path in _locks and os.path.isdir(path)):
        _close(path)
        descriptor = _create(path)
        if descriptor is None:
            if not os.path.lexists(path):
                continue  # a sweep was quicker
            _check_private(path)
            try:
                descriptor = _lock(path, os.O_CREAT)
            except FileNotFoundError:
                continue  # removed by its owner or by a sweep in the meantime
            if descriptor is None:
                return path  # another process owns it, for instance the one that started us
        _locks[path] = (descriptor, os.getpid())
        _clean_up_at_exit()
    return path


def _create(path: str) -> int | None:
    """Create the folder `path`: return the descriptor of its lock, None if that was in vain.

    It is locked before it gets its name, so that no sweep can see it unlocked. Until it is locked,
    a sweep may take it for one that was left behind.
    """
    fresh = tempfile.mkdtemp(prefix=_FRESH, dir=os.path.dirname(path))
    descriptor = None
    try:
        descriptor = _lock(fresh, os.O_CREAT)
        if descriptor is not None:
            os.rename(fresh, path)
        return descriptor
    except OSError:
        if descriptor is not None:
            os.close(descriptor)
        if os.path.lexists(fresh) and not os.path.lexists(path):
            raise
        return None
    finally:  # if it still has this name (rmtree needs descriptors, which may be what is lacking)
        with suppress(OSError):
            os.unlink(os.path.join(fresh, _LOCK))
        with suppress(OSError):
            os.rmdir(fresh)


def _lock(directory: str, flags: int = 0) -> int | None:
    """Lock a folder: return the descriptor that holds the lock, None if somebody else does."""
    import fcntl  # not on Windows, where the package can still be imported

    path = os.path.join(directory, _LOCK)
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    if not os.fstat(descriptor).st_nlink:  # removed since it was opened: it protects nothing
        os.close(descriptor)
        raise FileNotFoundError(f"{path!r} was removed")
    return descriptor


def _close(path: str) -> None:
    descriptor, _ = _locks.pop(path, (None, None))
    if descriptor is not None:
        os.close(descriptor)


def _is_private(status: os.stat_result) -> bool:
    return (
        stat.S_ISDIR(status.st_mode)
        and status.st_uid == os.getuid()
        and stat.S_IMODE(status.st_mode) == 0o700
    )


def _check_private(path: str) -> None:
    status = os.lstat(path)
    if not _is_private(status):
        raise PermissionError(
            f"{path!r}, the folder for the sockets, belongs to user {status.st_uid} with mode "
            f"{stat.S_IMODE(status.st_mode):04o}, expected user {os.getuid()} and 0700: remove it, "
            f"or set TMPDIR to a folder of your own"
        )


def _private_folders() -> list[str]:
    """Folders of this user that are named as ours are."""
    found = []
    for base in _bases():
        with suppress(OSError), os.scandir(base) as entries:
            for entry in entries:
                if entry.name.startswith((_PREFIX, _FRESH)):
                    with suppress(OSError):
                        if _is_private(entry.stat(follow_symlinks=False)):
                            found.append(entry.path)
    return found


def _lock_left(path: str) -> int | None:
    """Lock a folder that was left behind: return the descriptor, None if its owner lives."""
    # Where it ended before it made its lock.
    unborn = os.path.basename(path).startswith(_FRESH) and not os.listdir(path)
    return _lock(path, os.O_CREAT if unborn else 0)


def _sweep_one(path: str) -> None:
    descriptor = _lock_left(path)
    if descriptor is not None:
        try:
            _remove(path)
        finally:
            os.close(descriptor)


def _remove(path: str) -> None:
    """Remove a folder, its sockets first and its lock last; raise if it holds anything else."""
    with os.scandir(path) as entries:
        others = [entry for entry in entries if entry.name != _LOCK]
    for entry in others:
        if not stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode):
            raise OSError(f"{entry.path!r} is no socket")
    remove_files([*others, os.path.join(path, _LOCK)])
    os.rmdir(path)


@cache
def _clean_up_at_exit() -> None:
    atexit.register(_remove_own)


def _remove_own() -> None:
    """Remove what this process created and nobody removed. Forked children leave it alone."""
    for path, (_, pid) in list(_locks.items()):
        if pid == os.getpid():
            with suppress(OSError):
                _remove(path)

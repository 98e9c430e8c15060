"""Memory without a name: shared segments.

A segment is an anonymous file (``memfd`` on Linux; on macOS a POSIX segment that
is unlinked as soon as it is open). It is passed by descriptor, needs no clean-up
after ``kill -9``, and does not depend on the size of ``/dev/shm``.
"""

from __future__ import annotations

import mmap
import os
import sys

__all__ = ["anonymous_file", "hide_from_dumps"]


def anonymous_file(name: str, size: int) -> int:
    """Create a shared segment of `size` bytes and return its descriptor.

    Raises
    ------
    OSError
        If the segment cannot be that large (``RLIMIT_FSIZE``, for example).
    """
    if sys.platform == "linux":
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    else:
        import _posixshmem

        path = f"/crumpets-{os.urandom(8).hex()}"
        descriptor = _posixshmem.shm_open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, mode=0o600)
        _posixshmem.shm_unlink(path)
    try:
        os.ftruncate(descriptor, size)
    except OSError:
        os.close(descriptor)
        raise
    return int(descriptor)


def hide_from_dumps(mapping: mmap.mmap) -> None:
    """Keep a large sparse mapping out of core dumps, where the system can."""
    if hasattr(mmap, "MADV_DONTDUMP"):
        mapping.madvise(mmap.MADV_DONTDUMP)

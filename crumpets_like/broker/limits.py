"""How much memory there is: of the machine, of the control group, of the process."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

__all__ = [
    "DESCRIPTORS",
    "DESCRIPTORS_PER_WORKER",
    "address_space_left",
    "available_memory",
    "cgroup_headrooms",
    "check_descriptors",
]

_OWN_CGROUPS = Path("/proc/self/cgroup")
_CGROUPS = Path("/sys/fs/cgroup")
DESCRIPTORS = 28  # of a loader in its fullest process
DESCRIPTORS_PER_WORKER = 2  # in the supervisor; one in the training process


def available_memory() -> int:
    """Bytes that can still be used: the machine's, bounded by the control group's."""
    import psutil

    available = int(psutil.virtual_memory().available)
    for limit in cgroup_headrooms():
        available = min(available, limit)
    return max(available, 0)


def cgroup_headrooms() -> list[int]:
    """Bytes left in each control group (v1 and v2) above this process."""
    try:
        lines = _OWN_CGROUPS.read_text().splitlines()
    except OSError:
        return []
    headrooms = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, limit_name, usage_name = _CGROUPS, "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            root, limit_name, usage_name = (
                _CGROUPS / "memory",
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
            )
        else:
            continue
        group = root / path.lstrip("/")
        for folder in (group, *group.parents):
            try:
                limit = (folder / limit_name).read_text().strip()
                usage = (folder / usage_name).read_text().strip()
            except OSError:
                limit = "max"
            if limit != "max":
                headrooms.append(int(limit) - int(usage) + _reclaimable(folder))
            if folder == root:
                break
    return headrooms


def _reclaimable(folder: Path) -> int:
    """Bytes of file cache in a control group: the kernel drops them when memory is needed."""
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    facts = dict(line.split() for line in lines if len(line.split()) == 2)
    return int(facts.get("inactive_file", 0))


def check_descriptors(nworkers: int) -> None:
    """Raise if there are too few file descriptors left to start a loader.

    libzmq aborts the whole process where it cannot open one.

    Raises
    ------
    OSError
        With the numbers and the remedy.
    """
    import resource

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    folder = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"
    used = len(os.listdir(folder))
    needed = DESCRIPTORS + DESCRIPTORS_PER_WORKER * nworkers
    if limit != resource.RLIM_INFINITY and limit - used < needed:
        raise OSError(
            errno.EMFILE,
            f"A loader with {nworkers} workers needs about {needed} file descriptors, but of "
            f"{limit} that this process may have, {used} are open. Raise the limit (ulimit -n), or "
            "stop loaders that are not used any more.",
        )


def address_space_left() -> int:
    """Bytes that one sparse mapping may have under ``RLIMIT_AS`` and ``RLIMIT_FSIZE``.

    A quarter of what ``RLIMIT_AS`` leaves: the workers, under the same limit, load
    libraries of their own.
    """
    import resource

    import psutil

    limit = sys.maxsize
    address_space = resource.getrlimit(resource.RLIMIT_AS)[0]
    if address_space != resource.RLIM_INFINITY:
        used = int(psutil.Process().memory_info().vms)
        limit = max(0, (address_space - used) // 4)
    file_size = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if file_size != resource.RLIM_INFINITY:
        limit = min(limit, file_size)
    return limit

"""What ``crumpets-like doctor`` looks at: checks that are given facts and judge them.

Each check is a function of the facts alone; ``examine`` gathers those of this machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from .broker.limits import DESCRIPTORS, DESCRIPTORS_PER_WORKER

__all__ = [
    "Finding",
    "Level",
    "check_address_space",
    "check_cores",
    "check_descriptors",
    "check_leftovers",
    "check_memory",
    "check_shared_memory",
    "check_sockets",
    "check_start",
    "check_torch",
    "check_versions",
    "summary",
]

Level = Literal["OK", "WARN", "FAIL"]

OLDEST_PYTHON = (3, 11)
MEMORY_NEEDED = 256 << 20
"""Bytes that a loader with two workers takes before it holds any data."""

MEMORY_COMFORTABLE = 1 << 30
DESCRIPTORS_NEEDED = DESCRIPTORS + 10 * DESCRIPTORS_PER_WORKER
"""Descriptors that a loader with ten workers takes in its fullest process."""

DESCRIPTORS_COMFORTABLE = 256
TORCH_SHARED_MEMORY = 1 << 30
SLOW_START = 10.0
"""Seconds until a first batch that are worth a warning."""


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Attributes
    ----------
    level : {"OK", "WARN", "FAIL"}
        WARN: something may fail or be slow; FAIL: something does.
    name : str
        Of the check.
    facts : str
        The numbers.
    problem : str
        What would fail; empty if nothing does.
    remedy : str
        What to do about it.
    """

    level: Level
    name: str
    facts: str
    problem: str = ""
    remedy: str = ""

    def __str__(self) -> str:
        lines = [f"{self.level:<4}  {self.name:<15} {self.facts}"]
        lines += [f"{'':6}{text}" for text in (self.problem, self.remedy and f"-> {self.remedy}")]
        return "\n".join(line for line in lines if line.strip())


def summary(findings: Sequence[Finding]) -> str:
    """Return a line that counts the findings."""
    counts = {level: sum(f.level == level for f in findings) for level in ("OK", "WARN", "FAIL")}
    return ", ".join(f"{number} {level}" for level, number in counts.items())


def check_versions(
    versions: Mapping[str, str | None], python: Sequence[int], platform: str
) -> Finding:
    """Judge the software.

    Parameters
    ----------
    versions : mapping of str to str or None
        Of everything that is needed; None: it is missing.
    python : sequence of int
        ``sys.version_info``.
    platform : str
        ``sys.platform``.
    """
    facts = ", ".join(f"{name} {version or 'MISSING'}" for name, version in versions.items())
    missing = [name for name, version in versions.items() if version is None]
    if platform == "win32":
        return Finding(
            "FAIL",
            "versions",
            facts,
            "Loaders do not start on Windows: it has no Unix sockets for libzmq, and no shared "
            "memory that is passed by descriptor.",
            "Use WSL.",
        )
    if missing:
        return Finding(
            "FAIL",
            "versions",
            facts,
            f"Loaders do not start without {', '.join(missing)}.",
            f"pip install {' '.join(missing)}",
        )
    if tuple(python[:2]) < OLDEST_PYTHON:
        return Finding(
            "FAIL",
            "versions",
            facts,
            f"Python {python[0]}.{python[1]} is too old.",
            "Use Python {}.{} or later.".format(*OLDEST_PYTHON),
        )
    return Finding("OK", "versions", facts)


def check_memory(total: int, available: int, cgroup: int | None) -> Finding:
    """Judge the memory.

    Parameters
    ----------
    total, available : int
        Bytes of the machine.
    cgroup : int or None
        Bytes that the tightest control group leaves; None: there is no limit.
    """
    free = available if cgroup is None else min(available, cgroup)
    limit = "no control group limit" if cgroup is None else f"control group leaves {size(cgroup)}"
    facts = f"{size(available)} of {size(total)} available, {limit}"
    where = "this control group" if free != available else "the machine"
    if free < MEMORY_NEEDED:
        return Finding(
            "FAIL",
            "memory",
            facts,
            f"A loader's processes alone take about {size(MEMORY_NEEDED)}: the kernel would kill "
            "them (WorkerDied with SIGKILL), or start() raises MemoryError.",
            f"End other programs, or give {where} more memory (docker run --memory=...).",
        )
    if free < MEMORY_COMFORTABLE:
        return Finding(
            "WARN",
            "memory",
            facts,
            f"Large mini-batches will not fit: max_buffers is what half of {size(free)} holds.",
            f"Use fewer workers, a smaller batch_size or shared_memory=n, or give {where} more.",
        )
    return Finding("OK", "memory", facts)


def check_address_space(left: int) -> Finding:
    """Judge ``ulimit -v`` and ``ulimit -f``.

    Parameters
    ----------
    left : int
        Bytes that one mapping may have, `sys.maxsize` without a limit.
    """
    if left >= 1 << 62:
        return Finding("OK", "address space", "no limit")
    facts = f"one mapping may have {size(left)}"
    if left < MEMORY_NEEDED:
        return Finding(
            "FAIL",
            "address space",
            facts,
            "Buffers cannot be mapped: start() raises MemoryError.",
            "Raise ulimit -v and ulimit -f.",
        )
    return Finding(
        "WARN",
        "address space",
        facts,
        "Fewer mini-batches can be kept than memory would hold.",
        "Raise ulimit -v and ulimit -f.",
    )


def check_shared_memory(total: int | None, free: int, torch: bool) -> Finding:
    """Judge ``/dev/shm``, which this package does not use.

    Parameters
    ----------
    total : int or None
        Its size in bytes; None: there is none.
    free : int
        Bytes that are free there.
    torch : bool
        Whether torch is installed, whose own DataLoader needs it.
    """
    if total is None:
        facts = "none; crumpets-like does not need it"
    else:
        facts = f"{size(free)} of {size(total)} free; crumpets-like does not need it"
    if torch and free < TORCH_SHARED_MEMORY:
        return Finding(
            "WARN",
            "/dev/shm",
            facts,
            "Workers of torch.utils.data.DataLoader may die there with a bus error. Ours do not.",
            "For torch: docker run --shm-size=8g, or --ipc=host.",
        )
    return Finding("OK", "/dev/shm", facts)


def check_descriptors(soft: float, hard: float, used: int) -> Finding:
    """Judge ``ulimit -n``.

    Parameters
    ----------
    soft, hard : float
        The limits; ``math.inf`` for none.
    used : int
        Descriptors that are open in this process.
    """
    facts = f"{used} open, limit {count(soft)} (ulimit -Hn: {count(hard)})"
    if soft - used >= DESCRIPTORS_COMFORTABLE:
        return Finding("OK", "descriptors", facts)
    needs = f"A loader takes {DESCRIPTORS} descriptors and {DESCRIPTORS_PER_WORKER} per worker"
    remedy = f"ulimit -n {count(min(hard, 4096))}"
    if hard <= soft:
        remedy = "Raise the hard limit (docker run --ulimit nofile=4096, limits.conf)."
    if soft - used < DESCRIPTORS_NEEDED:
        return Finding(
            "FAIL", "descriptors", facts, f"{needs}: start() raises OSError (EMFILE).", remedy
        )
    return Finding(
        "WARN", "descriptors", facts, f"{needs}: a few loaders at once will not start.", remedy
    )


def check_sockets(folders: Sequence[tuple[str, int, bool]], limit: int) -> Finding:
    """Judge the folders for sockets.

    Parameters
    ----------
    folders : sequence of (str, int, bool)
        Folder, bytes of a socket's path in it, and whether it can be written; best one first.
    limit : int
        Most bytes that a path may have.
    """
    temporary, length, writable = folders[0]
    facts = f"{length} of {limit} bytes in {temporary}"
    if length <= limit and writable:
        return Finding("OK", "socket paths", facts)
    why = f"{temporary} cannot be written" if length <= limit else "The path is too long"
    usable = [path for path, bytes_, ok in folders[1:] if bytes_ <= limit and ok]
    remedy = "Set TMPDIR to a folder of your own with a short path."
    if usable:
        return Finding(
            "WARN", "socket paths", facts, f"{why}; sockets lie in {usable[0]} instead.", remedy
        )
    return Finding(
        "FAIL",
        "socket paths",
        facts,
        f"{why}, and /tmp does not serve either: no loader can be made.",
        remedy,
    )


def check_cores(cores: int, usable: int, quota: float | None) -> Finding:
    """Judge the processors.

    Parameters
    ----------
    cores : int
        Of the machine.
    usable : int
        That this process may run on.
    quota : float or None
        Processors' worth of time that the control group grants; None: no limit.
    """
    limit = "no quota" if quota is None else f"control group quota {quota:g}"
    facts = f"{usable} of {cores} usable (affinity), {limit}"
    effective = usable if quota is None else min(usable, quota)
    if effective < 2:
        return Finding(
            "WARN",
            "cores",
            facts,
            "Workers and the training loop take turns on one core: they will not be faster than "
            "nworkers=0 unless samples wait for disks or networks.",
            "Give the job more cores (taskset, docker run --cpus=..., --cpus-per-task=...).",
        )
    if effective < cores:
        return Finding(
            "WARN",
            "cores",
            facts,
            f"More than {math.ceil(effective)} busy workers will not be faster; os.cpu_count() "
            "says more.",
            f"Choose nworkers up to {math.ceil(effective)}, or widen the affinity or quota.",
        )
    return Finding("OK", "cores", facts)


def check_torch(version: str | None, cuda: str | None, error: str) -> Finding:
    """Judge torch, which is optional.

    Parameters
    ----------
    version : str or None
        None: it is not installed.
    cuda : str or None
        The devices in words; None: none can be used.
    error : str
        Why it cannot be imported; empty if it can.
    """
    if error:
        return Finding(
            "WARN",
            "torch",
            f"{version or 'version unknown'}, cannot be imported: {error}",
            "Everything that needs torch fails; loaders without it work.",
            "Install torch again.",
        )
    if version is None:
        return Finding("OK", "torch", "not installed; it is optional")
    return Finding("OK", "torch", f"{version}, {cuda or 'no accelerator'}")


def check_start(method: str, seconds: float | None, error: str) -> Finding:
    """Judge the start of a small loader.

    Parameters
    ----------
    method : str
        Its start method.
    seconds : float or None
        From its construction to the first batch; None: there was none.
    error : str
        What happened instead.
    """
    name = f"start {method}"
    if seconds is None:
        return Finding(
            "FAIL",
            name,
            f"no batch: {error}",
            f'Loaders with start_method="{method}" do not work here.',
            "See the checks above, or choose another start_method.",
        )
    facts = f"first batch after {seconds:.2f} s"
    if seconds > SLOW_START:
        return Finding(
            "WARN",
            name,
            facts,
            "Each start of a loader takes long.",
            "Is the machine busy, or Python on a slow network disk? "
            "Start loaders once and iterate them often.",
        )
    return Finding("OK", name, facts)


def check_leftovers(folders: Sequence[str], processes: Sequence[str]) -> Finding:
    """Judge what loaders left behind whose program is gone.

    Parameters
    ----------
    folders : sequence of str
        Socket folders without an owner.
    processes : sequence of str
        Helper processes without a training process, in words.
    """
    facts = f"{len(folders)} folders, {len(processes)} processes of dead loaders"
    if processes:
        return Finding(
            "WARN",
            "leftovers",
            f"{facts}: {', '.join([*processes, *folders])}",
            "They take memory and cores.",
            "Kill the processes, and please report how it came about.",
        )
    if folders:
        return Finding(
            "WARN",
            "leftovers",
            f"{facts}: {', '.join(folders)}",
            "Nothing fails.",
            "The next start of any loader of yours removes them.",
        )
    return Finding("OK", "leftovers", facts)


def size(bytes_: float) -> str:
    """Say a number of bytes in words."""
    for unit in ("bytes", "KiB", "MiB"):
        if bytes_ < 1024:
            return f"{bytes_:.3g} {unit}" if unit != "bytes" else f"{bytes_:.0f} {unit}"
        bytes_ /= 1024
    return f"{bytes_:,.1f} GiB"


def count(number: float) -> str:
    """Say a limit in words."""
    return "unlimited" if math.isinf(number) else f"{number:.0f}"

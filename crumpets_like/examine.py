"""Gathers the facts of this machine for the checks of ``doctor``."""

from __future__ import annotations

import importlib.util
import math
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from . import __version__, doctor
from .broker.addresses import PATH_LIMIT, abandoned, socket_paths
from .broker.launch import interpreter_command
from .broker.limits import address_space_left, cgroup_headrooms
from .broker.options import START_METHODS
from .broker.worker import Worker

__all__ = ["examine", "orphans", "time_first_batch"]

_NEEDED = ("pyzmq", "numpy", "msgpack", "msgpack-numpy", "cloudpickle", "psutil")
_START_LIMIT = 60.0  # seconds that a small loader may take, then it hangs
_QUOTAS = ("/sys/fs/cgroup/cpu.max", "/sys/fs/cgroup/cpu/cpu.cfs_quota_us")


def examine(methods: tuple[str, ...] | None = None) -> Iterator[doctor.Finding]:
    """Look at this machine, one finding after the other; takes some seconds.

    Parameters
    ----------
    methods : tuple of str, optional
        Start methods to try; default: all.
    """
    yield doctor.check_versions(_versions(), tuple(sys.version_info[:3]), sys.platform)
    if sys.platform == "win32":
        return
    import psutil

    memory = psutil.virtual_memory()
    headroom = min(cgroup_headrooms(), default=None)
    if headroom is not None and headroom > memory.total:  # version 1 says so where there is none
        headroom = None
    yield doctor.check_memory(memory.total, memory.available, headroom)
    yield doctor.check_address_space(address_space_left())
    has_torch = importlib.util.find_spec("torch") is not None
    yield doctor.check_shared_memory(*_shared_memory(), has_torch)
    yield doctor.check_descriptors(*_descriptor_limits(), psutil.Process().num_fds())
    folders = [
        (path, length, os.access(path, os.W_OK | os.X_OK)) for path, length in socket_paths()
    ]
    yield doctor.check_sockets(folders, PATH_LIMIT)
    yield doctor.check_cores(os.cpu_count() or 1, _usable_cores(), _quota())
    yield doctor.check_torch(*_torch(has_torch))
    # Before any start, which removes the folders.
    yield doctor.check_leftovers(abandoned(), orphans())
    for method in START_METHODS if methods is None else methods:
        yield doctor.check_start(method, *time_first_batch(method))


def _versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = {
        "crumpets-like": __version__,
        "Python": platform.python_version(),
        **{name: _version(name) for name in _NEEDED},
    }
    if versions["pyzmq"] is not None:
        import zmq

        versions["libzmq"] = zmq.zmq_version()
    return {**versions, platform.system(): platform.release()}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _shared_memory() -> tuple[int | None, int]:
    try:
        usage = shutil.disk_usage("/dev/shm")
    except OSError:
        return None, 0
    return usage.total, usage.free


def _descriptor_limits() -> tuple[float, float]:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return tuple(  # type: ignore[return-value]
        math.inf if limit == resource.RLIM_INFINITY else limit for limit in (soft, hard)
    )


def _usable_cores() -> int:
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quota() -> float | None:
    """Processors' worth of time that the control group grants."""
    for name in _QUOTAS:
        path = Path(name)
        try:
            fields = path.read_text().split()
            if len(fields) < 2:
                fields.append(path.with_name("cpu.cfs_period_us").read_text())
        except OSError:
            continue
        if fields[0] not in ("max", "-1"):
            return int(fields[0]) / int(fields[1])
    return None


def _torch(installed: bool) -> tuple[str | None, str | None, str]:
    if not installed:
        return None, None, ""
    try:
        torch: Any = importlib.import_module("torch")
        devices = None
        if torch.cuda.is_available():
            names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
            devices = f"CUDA {torch.version.cuda}: {', '.join(names)}"
    except Exception as error:  # noqa: BLE001  a broken installation may raise anything
        return _version("torch"), None, f"{type(error).__name__}: {error}".splitlines()[0]
    return str(torch.__version__), devices, ""


def orphans() -> list[str]:
    """Helper processes of this user that have lost those that they work for."""
    import psutil

    processes = {}
    for process in psutil.process_iter(["name", "ppid", "uids", "status"]):
        processes[process.pid] = process.info
    found = []
    for pid, facts in processes.items():
        name = facts["name"] or ""
        uids = facts["uids"]
        if (
            not name.startswith("crumpets-")
            or name == "crumpets-like"
            or not uids
            or uids.real != os.getuid()
        ):
            continue
        parent = (processes.get(facts["ppid"]) or {}).get("name") or ""
        if name.startswith("crumpets-superv"):
            # Whatever takes over orphans is no Python, unless a container runs nothing else.
            orphan = facts["ppid"] <= 1 and not parent.startswith("python")
        else:
            orphan = not parent.startswith("crumpets-superv")
        if orphan and facts["status"] != psutil.STATUS_ZOMBIE:
            found.append(f"{name} (pid {pid})")
    return found


class Probe(Worker):
    """Does next to nothing."""

    def process(self, sample: Any) -> dict[str, Any]:
        """Return the number."""
        return {"number": int(sample)}


def time_first_batch(method: str, limit: float = _START_LIMIT) -> tuple[float | None, str]:
    """Start a small loader in a process of its own; returns (seconds, "") or (None, why not).

    Parameters
    ----------
    method : str
        Its start method.
    limit : float
        Seconds after which it is given up.
    """
    call = f"from crumpets_like.examine import probe; probe({method!r})"
    process = subprocess.Popen(
        interpreter_command(call),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        output, errors = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        process.kill()  # which ends all that it has started
        process.communicate()
        return None, f"nothing happened within {limit:g} s"
    if process.returncode == 0:
        return float(output), ""
    return None, (errors.strip().splitlines() or [f"exit code {process.returncode}"])[-1]


def probe(method: str) -> None:
    """Write the seconds until the first batch to stdout."""
    from .dataloader import TurboDataLoader

    started = time.perf_counter()
    with TurboDataLoader(range(64), 8, Probe(), 2, start_method=method, timeout=20) as loader:
        numbers: list[int] = []
        for _, (mini_batch,) in loader:
            if not numbers:
                seconds = time.perf_counter() - started
            numbers += mini_batch["number"].tolist()
    if numbers != list(range(64)):
        raise RuntimeError(f"the loader gave {numbers}")
    sys.stdout.write(f"{seconds}\n")

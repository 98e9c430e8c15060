"""Facts about the machine and the software, to go with the numbers."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path

#: Packages whose versions may explain a number.
PACKAGES = ("crumpets-like", "torch", "numpy", "pyzmq", "opencv-python-headless", "simplejpeg")


def usable_cores() -> int:
    """Return how many cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_model() -> str:
    """Return the processor's name, as far as the system tells."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or "unknown"
    names = [line.partition(":")[2] for line in text.splitlines() if line.startswith("model name")]
    return names[0].strip() if names else platform.machine()


def version(package: str) -> str | None:
    """Return the installed version of a distribution, None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def facts() -> dict[str, object]:
    """Return cores, processor, system, Python and package versions.

    Returns
    -------
    dict
        Ready for JSON.
    """
    return {
        "cores": usable_cores(),
        "cpu": cpu_model(),
        "system": platform.platform(),
        "python": platform.python_version(),
        **{package: version(package) for package in PACKAGES},
    }


def summary(known: dict[str, object]) -> str:
    """Say the most important facts in one line."""
    packages = ", ".join(f"{name} {known[name]}" for name in ("torch", "numpy") if known[name])
    return f"{known['cores']} cores, {known['cpu']}, Python {known['python']}, {packages}"

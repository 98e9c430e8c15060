"""Lets tox find the interpreters that pyenv has installed, also those that are not activated."""

import os
import re
from pathlib import Path

from tox.config.sets import ConfigSet
from tox.plugin import impl
from tox.session.state import State

RELEASE = re.compile(r"(\d+)\.(\d+)\.(\d+)")


def pyenv_folders() -> list[str]:
    """The ``bin`` folders of pyenv's CPython releases, the newest first."""
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    found = []
    for folder in root.glob("versions/*/bin"):
        release = RELEASE.fullmatch(folder.parent.name)
        if release is not None:
            found.append((tuple(map(int, release.groups())), str(folder)))
    return [folder for _, folder in sorted(found, reverse=True)]


@impl
def tox_add_core_config(core_conf: ConfigSet, state: State) -> None:
    """Put those folders behind everything else on ``PATH``, where tox looks for interpreters."""
    path = os.environ.get("PATH", os.defpath)
    os.environ["PATH"] = os.pathsep.join([path, *pyenv_folders()])

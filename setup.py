"""Builds and installs crumpets-like.

Two folders of the checkout are installed under other names: ``workers/`` as
``crumpets_like.workers`` and ``benchmarks/`` as ``crumpets_like.benchmarks``.
"""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).resolve().parent
MAPPED = {"crumpets_like.workers": "workers", "crumpets_like.benchmarks": "benchmarks"}

TORCH = ["torch>=2.4"]
IMAGE = ["opencv-python-headless", "simplejpeg", "Pillow"]
DEMO = ["scikit-learn", "tqdm"]


def read_version() -> str:
    """The version, read from the package's text: importing it would need what it depends on."""
    text = (ROOT / "crumpets_like" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__(?:\s*:\s*[\w.]+)? = "([^"]+)"$', text, re.MULTILINE)
    if found is None:
        raise RuntimeError('crumpets_like/__init__.py has no line __version__ = "..."')
    return found.group(1)


def read_packages() -> list[str]:
    """The packages of ``crumpets_like/`` and of the folders that are installed inside it."""
    packages = find_packages(str(ROOT), include=["crumpets_like", "crumpets_like.*"])
    for name, folder in MAPPED.items():
        packages.append(name)
        packages.extend(f"{name}.{inner}" for inner in find_packages(str(ROOT / folder)))
    return packages


setup(
    name="crumpets-like",
    version=read_version(),
    description="A parallel data loader: worker processes write straight into shared mini-batches",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author="crumpets-like contributors",
    license="MIT",
    license_files=["LICENSE"],
    classifiers=[
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: MacOS",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    python_requires=">=3.11",
    packages=read_packages(),
    package_dir=MAPPED,
    package_data={"crumpets_like": ["py.typed"]},
    install_requires=["pyzmq", "numpy", "msgpack", "msgpack-numpy", "cloudpickle", "psutil"],
    extras_require={
        "torch": TORCH,
        "image": IMAGE,
        "demo": DEMO,
        "all": TORCH + IMAGE + DEMO,
    },
    entry_points={"console_scripts": ["crumpets-like=crumpets_like.cli:main"]},
    zip_safe=False,
)

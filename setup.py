"""Builds and installs crumpets-like.

``workers/`` and ``benchmarks/`` are packages inside of ``crumpets_like``, by symbolic links there.
"""

import compileall
import re
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.editable_wheel import editable_wheel

ROOT = Path(__file__).resolve().parent

TORCH = ["torch>=2.4"]
IMAGE = ["opencv-python-headless>=4.12", "simplejpeg", "Pillow"]
KORNIA = ["kornia>=0.8"]
DEMO = ["scikit-learn", "tqdm"]


def read_version() -> str:
    """The version, read from the package's text: importing it would need what it depends on."""
    text = (ROOT / "crumpets_like" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__(?:\s*:\s*[\w.]+)? = "([^"]+)"$', text, re.MULTILINE)
    if found is None:
        raise RuntimeError('crumpets_like/__init__.py has no line __version__ = "..."')
    return found.group(1)


class CompiledEditableWheel(editable_wheel):
    """pip compiles what it installs, but not what stays where it is.

    Where Python may not write byte code (PYTHONDONTWRITEBYTECODE), every process would have to
    compile the package anew at its start.
    """

    def run(self) -> None:
        """Install, and compile."""
        super().run()
        for folder in ("crumpets_like", "workers", "benchmarks"):
            compileall.compile_dir(ROOT / folder, quiet=2)


setup(
    cmdclass={"editable_wheel": CompiledEditableWheel},
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
    packages=find_packages(str(ROOT), include=["crumpets_like", "crumpets_like.*"]),
    package_dir={"": "."},  # an editable install is one folder in the module search path then
    package_data={"crumpets_like": ["py.typed"]},
    install_requires=["pyzmq", "numpy", "msgpack", "msgpack-numpy", "cloudpickle", "psutil"],
    extras_require={
        "torch": TORCH,
        "image": IMAGE,
        "kornia": TORCH + KORNIA,
        "demo": DEMO,
        "all": TORCH + IMAGE + KORNIA + DEMO,
    },
    entry_points={"console_scripts": ["crumpets-like=crumpets_like.cli:main"]},
    zip_safe=False,
)

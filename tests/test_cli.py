"""The commands and what they hand on to."""

import argparse
import signal
import subprocess
import sys
import tempfile
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import crumpets_like
from crumpets_like.cli import main


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"{crumpets_like.__version__}\n"


def test_module_and_console_script_are_the_same() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "crumpets_like", "--version"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (run.returncode, run.stdout) == (0, f"{crumpets_like.__version__}\n")
    (script,) = entry_points(group="console_scripts", name="crumpets-like")
    assert script.load() is main


@pytest.mark.parametrize("arguments", [[], ["train"], ["demo", "--unknown"]])
def test_wrong_commands_end_with_usage(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: crumpets-like" in capsys.readouterr().err


def test_demo_gives_its_exit_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crumpets_like.demo.run", lambda: 1)
    assert main(["demo"]) == 1


def test_bench_gets_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[argparse.Namespace] = []

    def run(args: argparse.Namespace) -> int:
        got.append(args)
        return 3

    monkeypatch.setattr("crumpets_like.benchmarks.cli.run", run)
    assert main(["bench", "--quick", "small"]) == 3
    assert got[0].quick is True
    assert got[0].case == ["small"]


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from crumpets_like.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'cv2', 'sklearn', 'tqdm', 'simplejpeg', 'PIL'}\n"
        "print('heavy:', *heavy & set(sys.modules))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert run.stdout.endswith("heavy:\n")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["soak", "--minutes", "-1"], "--minutes must be at least 0, got -1"),
        (["soak", "--minutes", "nan"], "--minutes must be at least 0, got nan"),
        (["faults", "--output", "/dev/null/table"], "--output cannot be written: "),
    ],
)
def test_wrong_values_are_told_at_once(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert text in capsys.readouterr().err


def test_nobody_reads_what_is_printed() -> None:
    command = f"{sys.executable} -m crumpets_like doctor | true; exit ${{PIPESTATUS[0]}}"
    run = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False
    )
    assert (run.returncode, run.stderr) == (141, "")


def test_sigterm_leaves_what_is_open(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)

    def demo() -> int:
        with tempfile.TemporaryDirectory(dir=tmp_path):
            signal.raise_signal(signal.SIGTERM)
        return 0

    monkeypatch.setattr("crumpets_like.demo.run", demo)
    with pytest.raises(SystemExit) as caught:
        main(["demo"])
    assert caught.value.code == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) is before

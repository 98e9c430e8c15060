"""The checks of `crumpets-like doctor`, fed with good and bad facts, and with this machine."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys

import pytest

from crumpets_like import cli, doctor, examine
from crumpets_like.broker.addresses import (
    PATH_LIMIT,
    abandoned,
    private_directory,
    remove_directory,
    socket_paths,
)
from crumpets_like.doctor import Finding
from tests.support.faults import endless
from tests.support.scenario import Running, run_scenario

GIB = 1 << 30
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="looks at process names")

FINE = {
    "versions": doctor.check_versions({"numpy": "2.4"}, (3, 12, 1), "linux"),
    "memory": doctor.check_memory(8 * GIB, 4 * GIB, None),
    "memory within a limit": doctor.check_memory(8 * GIB, 4 * GIB, 2 * GIB),
    "address space": doctor.check_address_space(sys.maxsize),
    "shared memory": doctor.check_shared_memory(8 * GIB, 8 * GIB, True),
    "no shared memory": doctor.check_shared_memory(None, 0, False),
    "descriptors": doctor.check_descriptors(1024, math.inf, 10),
    "sockets": doctor.check_sockets([("/tmp", 52, True)], 103),
    "cores": doctor.check_cores(8, 8, None),
    "torch": doctor.check_torch("2.13", None, ""),
    "no torch": doctor.check_torch(None, None, ""),
    "start": doctor.check_start("fork", 0.1, ""),
    "leftovers": doctor.check_leftovers([], []),
}
WARNINGS = {
    "memory": (doctor.check_memory(8 * GIB, GIB // 2, None), "512 MiB", "fewer workers"),
    "address space": (doctor.check_address_space(4 * GIB), "4.0 GiB", "ulimit -v"),
    "shared memory": (doctor.check_shared_memory(1 << 26, 1 << 26, True), "64 MiB", "--shm-size"),
    "descriptors": (doctor.check_descriptors(256, 4096, 100), "limit 256", "ulimit -n 4096"),
    "sockets": (
        doctor.check_sockets([("/long", 104, True), ("/tmp", 52, True)], 103),
        "104 of 103 bytes in /long",
        "TMPDIR",
    ),
    "read-only": (
        doctor.check_sockets([("/ro", 50, False), ("/tmp", 52, True)], 103),
        "/ro cannot be written; sockets lie in /tmp instead",
        "TMPDIR",
    ),
    "one core": (doctor.check_cores(8, 1, None), "1 of 8", "taskset"),
    "quota": (doctor.check_cores(8, 8, 2.5), "quota 2.5", "nworkers up to 3"),
    "torch": (doctor.check_torch("2.13", None, "OSError: libc10"), "libc10", "again"),
    "slow start": (doctor.check_start("spawn", 12.0, ""), "12.00 s", "network disk"),
    "folders": (doctor.check_leftovers(["/tmp/crumpets-1"], []), "1 folders", "next start"),
    "processes": (doctor.check_leftovers([], ["w (pid 7)"]), "w (pid 7)", "Kill"),
}
FAILURES = {
    "Windows": (doctor.check_versions({}, (3, 12), "win32"), "Windows", "WSL"),
    "missing": (doctor.check_versions({"pyzmq": None}, (3, 12), "linux"), "MISSING", "pip install"),
    "old Python": (doctor.check_versions({}, (3, 10), "linux"), "3.10 is too old", "3.11"),
    "memory": (doctor.check_memory(8 * GIB, 1 << 27, None), "128 MiB", "give the machine more"),
    "control group": (
        doctor.check_memory(8 * GIB, 4 * GIB, 1 << 27),
        "control group leaves 128 MiB",
        "give this control group more",
    ),
    "address space": (doctor.check_address_space(1 << 20), "1 MiB", "ulimit -v"),
    "descriptors": (doctor.check_descriptors(64, 64, 30), "EMFILE", "hard limit"),
    "sockets": (
        doctor.check_sockets([("/long", 104, True), ("/tmp", 52, False)], 103),
        "The path is too long",
        "TMPDIR",
    ),
    "start": (doctor.check_start("fork", None, "OSError: no"), "OSError: no", "start_method"),
}


@pytest.mark.parametrize("name", FINE)
def test_all_is_well(name: str) -> None:
    finding = FINE[name]
    assert (finding.level, finding.problem, finding.remedy) == ("OK", "", "")
    assert str(finding).count("\n") == 0


@pytest.mark.parametrize(
    ("level", "name"), [("WARN", n) for n in WARNINGS] + [("FAIL", n) for n in FAILURES]
)
def test_bad_facts(level: str, name: str) -> None:
    finding, fact, remedy = (WARNINGS if level == "WARN" else FAILURES)[name]
    assert finding.level == level
    assert fact in str(finding)
    assert remedy in finding.remedy
    assert finding.problem
    assert str(finding).startswith(level)


def test_summary() -> None:
    findings = [Finding("OK", "a", ""), Finding("FAIL", "b", ""), Finding("OK", "c", "")]
    assert doctor.summary(findings) == "2 OK, 0 WARN, 1 FAIL"


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1536, "1.5 KiB"),
        (1 << 20, "1 MiB"),
        (5e12, "4,656.6 GiB"),
    ],
)
def test_sizes_in_words(number: float, text: str) -> None:
    assert doctor.size(number) == text


def test_this_machine() -> None:
    findings = {finding.name: finding for finding in examine.examine(methods=("fork",))}
    for name in ("versions", "descriptors", "socket paths", "start fork"):
        assert findings[name].level == "OK", findings[name]
    assert "libzmq" in findings["versions"].facts
    assert set(findings) > {"memory", "address space", "/dev/shm", "cores", "torch", "leftovers"}


def test_a_loader_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examine, "interpreter_command", lambda call: [sys.executable, "-c", "1/0"])
    seconds, error = examine.time_first_batch("fork")
    assert seconds is None
    assert error == "ZeroDivisionError: division by zero"


def test_a_loader_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(30)"]
    monkeypatch.setattr(examine, "interpreter_command", lambda call: command)
    assert examine.time_first_batch("fork", limit=0.2) == (None, "nothing happened within 0.2 s")


class TestCommand:
    @pytest.fixture
    def findings(self, monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
        findings = [FINE["memory"], WARNINGS["quota"][0]]
        monkeypatch.setattr(examine, "examine", lambda: iter(findings))
        return findings

    def test_text(self, findings: list[Finding], capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["doctor"]) == 0
        text = capsys.readouterr().out
        assert text == "\n".join([*map(str, findings), "1 OK, 1 WARN, 0 FAIL\n"])

    def test_json(self, findings: list[Finding], capsys: pytest.CaptureFixture[str]) -> None:
        findings.append(FAILURES["start"][0])
        assert cli.main(["doctor", "--json"]) == 1
        found = json.loads(capsys.readouterr().out)
        assert [Finding(**facts) for facts in found] == findings


class TestLeftovers:
    def test_a_folder_without_its_owner(self) -> None:
        mine = private_directory("doctor-test")
        code = (
            "import os\nfrom crumpets_like.broker.addresses import private_directory\n"
            "print(private_directory('doctor-gone'), flush=True)\nos._exit(0)\n"
        )
        run = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
        )
        found = abandoned()
        assert run.stdout.strip() in found
        assert mine not in found
        remove_directory("doctor-test")
        remove_directory("doctor-gone")

    def test_lengths_of_socket_paths(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tempfile.tempdir", "/" + 80 * "x")
        (long, long_bytes), (short, short_bytes) = socket_paths()
        assert (long, short) == ("/" + 80 * "x", "/tmp")
        assert long_bytes - short_bytes == 77
        assert short_bytes < PATH_LIMIT < long_bytes

    @LINUX
    def test_helpers_of_a_living_loader_are_no_orphans(self) -> None:
        def interact(running: Running) -> None:
            running.wait_for("running")
            helpers = {process.pid for process in running.descendants()}
            assert len(helpers) >= 6
            assert not [line for line in examine.orphans() if _pid(line) in helpers]
            running.signal(signal.SIGKILL)

        run_scenario(endless, timeout=60, interact=interact)

    @LINUX
    def test_a_worker_without_a_supervisor_is_one(self) -> None:
        code = (
            "import os, time\nfrom crumpets_like.broker.processes import name_process\n"
            "name_process('crumpets-w0')\nprint('ready', flush=True)\ntime.sleep(30)\n"
        )
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        try:
            assert process.stdout is not None
            process.stdout.readline()
            assert f"crumpets-w0 (pid {process.pid})" in examine.orphans()
        finally:
            process.kill()
            process.communicate()


def _pid(line: str) -> int:
    return int(line.rpartition("pid ")[2].rstrip(")"))

"""Signals that wait until the loader may be interrupted."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from crumpets_like.broker.interrupts import interrupts_deferred

NUMBERS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)


class Came(Exception):
    """Raised by a handler."""


@pytest.fixture
def handled():
    """Signals that have reached their handlers, which are as before afterwards."""
    came = []
    before = {number: signal.getsignal(number) for number in (*NUMBERS, signal.SIGINT)}
    for number in NUMBERS:
        signal.signal(number, lambda received, frame: came.append(received))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield came
    for number, handler in before.items():
        signal.signal(number, handler)


def raise_signal(*numbers):
    for number in numbers:
        signal.raise_signal(number)


class TestDeferred:
    def test_several_signals_wait_and_each_is_seen_once(self, handled):
        with interrupts_deferred():
            raise_signal(*NUMBERS, *NUMBERS)
            assert handled == []
        assert sorted(handled) == sorted(NUMBERS)
        raise_signal(signal.SIGUSR1)
        assert handled[3:] == [signal.SIGUSR1], "and the handlers are back"

    def test_ctrl_c_among_others(self, handled):
        with pytest.raises(KeyboardInterrupt), interrupts_deferred():
            raise_signal(signal.SIGUSR1, signal.SIGINT, signal.SIGUSR2)
        assert sorted(handled) == [signal.SIGUSR1, signal.SIGUSR2]

    def test_a_handler_that_raises_keeps_no_other_from_being_called(self, handled):
        def raises(number, frame):
            raise Came

        for number in NUMBERS[:2]:
            signal.signal(number, raises)
        with pytest.raises(Came), interrupts_deferred():
            raise_signal(*NUMBERS)
        assert handled == [signal.SIGALRM]
        assert signal.getsignal(signal.SIGUSR1) is raises

    def test_one_that_comes_while_the_handlers_are_put_back(self, handled, monkeypatch):
        """Its handler raises, so that other handlers are not put back: their signals are seen."""
        plain = signal.signal

        def put_back(number, handler):
            plain(number, handler)
            if number == signal.SIGINT and handler is signal.default_int_handler:
                raise_signal(signal.SIGINT)

        def block():
            with interrupts_deferred():
                raise_signal(signal.SIGALRM)
                monkeypatch.setattr(signal, "signal", put_back)

        with pytest.raises(KeyboardInterrupt):
            block()
        monkeypatch.undo()
        assert handled == [signal.SIGALRM], "what had come before is not lost"
        raise_signal(*NUMBERS)
        assert sorted(handled[1:]) == sorted(NUMBERS)

    def test_inside_each_other(self, handled):
        with interrupts_deferred():
            with interrupts_deferred():
                raise_signal(signal.SIGUSR1)
            assert handled == []
        assert handled == [signal.SIGUSR1]

    def test_an_error_of_the_block_does_not_hide_them(self, handled):
        def block():
            with interrupts_deferred():
                raise_signal(signal.SIGINT)
                raise Came

        with pytest.raises(KeyboardInterrupt):
            block()

    def test_a_second_ctrl_c_while_the_first_one_is_on_its_way(self, handled):
        with pytest.raises(KeyboardInterrupt) as caught:  # noqa: PT012
            try:
                raise KeyboardInterrupt("first")
            finally:
                with interrupts_deferred():
                    raise_signal(signal.SIGINT, signal.SIGUSR1)
        assert caught.value.args == ("first",)
        assert handled == [signal.SIGUSR1]

    def test_ignored_and_default_actions_stay(self, handled):
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        with interrupts_deferred():
            assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGURG) is signal.SIG_DFL
            raise_signal(signal.SIGUSR1)

    def test_other_threads_leave_handlers_alone(self, handled):
        def check():
            with interrupts_deferred():
                seen.append(signal.getsignal(signal.SIGUSR1) is before)

        seen, before = [], signal.getsignal(signal.SIGUSR1)
        thread = threading.Thread(target=check)
        thread.start()
        thread.join()
        assert seen == [True]

    @pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
    def test_a_forked_child_gets_none_of_them(self, handled):
        with interrupts_deferred():
            raise_signal(signal.SIGUSR1)
            pid = os.fork()
        if pid == 0:
            os._exit(len(handled))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert handled == [signal.SIGUSR1]


IN_A_CALLBACK_OF_AN_IMPORT = """
import signal, sys
from crumpets_like import TurboDataLoader
from tests.support.loading import Items

def press(frame, event, argument):
    '''Ctrl-C while Python runs the callback of an import, from which nothing can be raised.'''
    code = frame.f_code
    if (
        event == "call"
        and (code.co_name, code.co_filename) == ("cb", "<frozen importlib._bootstrap>")
        and frame.f_locals["name"] == sys.argv[1]
    ):
        sys.setprofile(None)
        print("pressed")
        signal.raise_signal(signal.SIGINT)

loader = TurboDataLoader(range(8), 4, Items(), 1, start_method="forkserver")
assert "cloudpickle" not in sys.modules
sys.setprofile(press)
try:
    loader.start()
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="looks into its imports")
@pytest.mark.parametrize("module", ["resource", "cloudpickle"])
def test_ctrl_c_in_an_import_of_the_start_is_not_lost(module):
    done = subprocess.run(
        [sys.executable, "-c", IN_A_CALLBACK_OF_AN_IMPORT, module],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("pressed\ninterrupted\n", "")

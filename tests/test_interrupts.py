"""Signals while a command starts, runs and ends, and the time limit of a sweep: none is lost."""

import importlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import cli
from cbs import interrupts
from cbs.interrupts import _core, handlers_kept, signals_as_interrupt, time_limit, uninterrupted
from sweeps.launching import launch
from tests.sweeps.alone import swept
from tests.sweeps.simulation import small_sweep


@pytest.fixture(autouse=True)
def _as_in_a_new_process() -> Iterator[None]:
    """The Ray that tests share has taken the signals of this process as its own."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (*interrupts.NUMBERS, signal.SIGALRM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_what_takes_longer_is_interrupted_once() -> None:
    before = signal.getsignal(signal.SIGALRM)
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt), time_limit(0.05, time.monotonic()):
        time.sleep(30.0)
    assert time.monotonic() - started < 15.0
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0.0
    assert signal.getsignal(signal.SIGALRM) == before


def test_an_end_that_must_not_be_cut_short_is_over_first() -> None:
    ended, waiting = [], threading.Event()
    other = threading.Thread(target=waiting.wait)
    other.start()  # which the alarm may go to
    with pytest.raises(KeyboardInterrupt), time_limit(3600.0, time.monotonic()), uninterrupted():
        ended.append((signal.setitimer(signal.ITIMER_REAL, 0.05), time.sleep(0.3)))
    waiting.set()
    other.join()
    assert len(ended) == 1


@pytest.fixture
def interruptible() -> Iterator[None]:
    """As in a terminal: what a shell starts in the background ignores Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class _Slow:
    """Python drops an exception that is raised while this is deleted."""

    def __init__(self, deleted: Callable[[], object]) -> None:
        self.deleted = deleted

    def __del__(self) -> None:
        self.deleted()


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("limit", [None, 0.1])
def test_an_interrupt_that_python_drops_comes_once_more(limit: float | None) -> None:
    def interrupted() -> None:
        if limit is None:
            signal.raise_signal(signal.SIGINT)  # as of a job scheduler, which sends one
        time.sleep(0.5)

    before, started = sys.unraisablehook, time.monotonic()
    with pytest.raises(KeyboardInterrupt), time_limit(limit, time.monotonic()):
        time.sleep(30.0 * isinstance(_Slow(interrupted), _Slow))
    assert time.monotonic() - started < 15.0
    assert sys.unraisablehook is before


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_that_comes_while_a_dropped_one_is_noted_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    slow, started = signal.setitimer, time.monotonic()

    def slowly(*args: float) -> object:
        busy = sys._getframe(1).f_code.co_name == "_once_more"
        return slow(*args), time.sleep(0.2 * busy)  # as on a machine with other work

    monkeypatch.setattr(signal, "setitimer", slowly)
    with pytest.raises(KeyboardInterrupt), time_limit(None, 0.0):
        time.sleep(30.0 * isinstance(_Slow(lambda: signal.raise_signal(signal.SIGINT)), _Slow))
    assert time.monotonic() - started < 15.0


TRIES = """
import signal, time

try:
    signal.raise_signal(signal.SIGTERM)
    time.sleep(0.2)
except BaseException:  # as libraries that try what there is
    pass
DONE = True
"""


def test_an_interrupt_during_an_import_comes_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "module_that_tries.py").write_text(TRIES)
    monkeypatch.syspath_prepend(tmp_path)
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt), signals_as_interrupt():
        time.sleep(30.0 * importlib.import_module("module_that_tries").DONE)
    assert sys.modules["module_that_tries"].DONE
    assert time.monotonic() - started < 15.0


@pytest.mark.parametrize("says", [None, signal.SIG_IGN], ids=["runs", "ends"])
@pytest.mark.parametrize("taken", [0, 1], ids=["kills", "ignores"])
def test_a_signal_that_c_code_takes_over_is_given_back_at_once(taken: int, says: signal.Handlers | None) -> None:
    """As what the main thread said last, which ignores it while it ends."""
    get, put = _core()
    with signals_as_interrupt():
        ours = get(signal.SIGTERM)
        with handlers_kept():
            if says is not None:
                signal.signal(signal.SIGTERM, says)
            put(signal.SIGTERM, taken)
            started = time.monotonic()
            while get(signal.SIGTERM) != (ours if says is None else 1):
                assert time.monotonic() - started < 15.0
                time.sleep(0.001)
            put(signal.SIGTERM, taken)
        assert get(signal.SIGTERM) == (ours if says is None else 1)


def test_what_is_in_time_is_left_alone() -> None:
    with time_limit(60.0, time.monotonic()):
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0.0
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0.0
    with time_limit(None, 0.0):
        assert signal.getitimer(signal.ITIMER_REAL)[0] == 0.0


def test_a_sweep_that_runs_out_of_time_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sweeps.running.tuning.run_search", lambda *_: signal.raise_signal(signal.SIGALRM))
    with (
        pytest.raises(launch.Interrupted, match="to continue: cbs sweep --stop-after 1h"),
        time_limit(3600.0, time.monotonic()),
    ):
        swept(small_sweep(), tmp_path, command="cbs sweep --stop-after 1h")


def test_what_went_before_counts() -> None:
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt), time_limit(3600.0, started - 3599.95):
        time.sleep(30.0)
    with pytest.raises(KeyboardInterrupt), time_limit(1.0, started - 3600.0):
        time.sleep(30.0)
    assert time.monotonic() - started < 15.0


def test_an_import_that_does_not_end_is_interrupted_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = "import signal, time\nsignal.raise_signal(signal.SIGTERM)\ntime.sleep(30.0)\n"
    (tmp_path / "module_that_hangs.py").write_text(hangs)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(interrupts, "GRACE_SECONDS", 0.1)
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt), signals_as_interrupt():
        importlib.import_module("module_that_hangs")
    assert 0.1 <= time.monotonic() - started < 15.0


def test_a_script_that_is_itself_imported_is_interrupted_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "    signal.raise_signal(signal.SIGTERM)\n    time.sleep(30.0)\n"
    start = "import signal, time\nfrom cbs.interrupts import signals_as_interrupt\n\nwith signals_as_interrupt():\n"
    (tmp_path / "script_that_is_imported.py").write_text(start + lines)
    monkeypatch.syspath_prepend(tmp_path)
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        importlib.import_module("script_that_is_imported")
    assert time.monotonic() - started < 15.0


def test_the_alarm_of_c_code_kills_nobody() -> None:
    get, put = _core()
    with signals_as_interrupt():
        with handlers_kept():
            signal.alarm(100)
            put(signal.SIGALRM, 0)
        assert signal.alarm(0) == 0
        assert get(signal.SIGALRM) == get(signal.SIGTERM)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_other_errors_that_python_drops_are_reported_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[type[BaseException]] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda dropped: told.append(dropped.exc_type))
    with time_limit(None, 0.0):
        _Slow(lambda: 1 / 0)
    assert told == [ZeroDivisionError]


def test_a_signal_during_the_first_imports_is_one_line():
    code = """
import signal, sys
class Meanwhile:
    def find_spec(self, name, *_):
        if name == "typer":
            signal.raise_signal(signal.SIGTERM)
sys.meta_path.insert(0, Meanwhile())
sys.argv = ["cbs", "sweep", "-o", "a b"]
import cli
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(cli.__file__).parent, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (130, "cbs: stopped; to run it again: cbs sweep -o 'a b'\n")


def test_after_a_signal_the_process_leaves_before_python_takes_itself_apart():
    """Threads that are then still in C code would abort it."""
    code = """
import atexit, signal, sys
sys.argv = ["cbs", "sweep"]
import cli

class Module:
    def __del__(self):
        print("taken apart")

cli.kept = Module()
atexit.register(print, "cleaned up")
atexit.register(signal.raise_signal, signal.SIGTERM)  # a second one
cli.outcome = lambda: signal.raise_signal(signal.SIGTERM)
cli.main()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(cli.__file__).parent, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (130, "cleaned up\n")
    assert done.stderr == "cbs: stopped; to run it again: cbs sweep\n"

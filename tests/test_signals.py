"""Signals while a command starts and ends."""

import subprocess
import sys
from pathlib import Path

import cli


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

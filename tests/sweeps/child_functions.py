"""What the tests of children have them do; without torch or pytest, so that a child imports it at once."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from cbs.errors import ConfigError, DamagedError
from sweeps.running.child import Channel


def answer(channel: Channel, what: object) -> object:
    channel.say("on it")
    return what


def refuse(channel: Channel) -> None:
    raise ConfigError("not like this")


def find_damage(channel: Channel) -> None:
    raise DamagedError(Path("x/record.parquet"), ValueError("cut off"))


def divide(channel: Channel) -> float:
    return 1 / 0


def segfault(channel: Channel) -> None:
    ctypes.string_at(0)


def leave(channel: Channel) -> None:
    print("last words", file=sys.stderr, flush=True)
    os._exit(3)


def kill_itself(channel: Channel) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def sleep(channel: Channel, seconds: float) -> None:
    time.sleep(seconds)


def hang_in_c(channel: Channel) -> None:
    """Python cannot interrupt this: the lock of the interpreter is held."""
    ctypes.PyDLL(None).sleep(100)


def stop_itself(channel: Channel) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def start_a_child_that_hangs(channel: Channel) -> int:
    return subprocess.Popen(["sleep", "1000"]).pid


def imported(channel: Channel) -> bool:
    return "wave" in sys.modules


def speak(channel: Channel, times: int, seconds: float) -> str:
    for _ in range(times):
        time.sleep(seconds)
        channel.say("still here")
    return "done"


def forking(channel: Channel) -> int:
    """A copy of the process goes on, says and answers what it likes."""
    if os.fork() == 0:
        channel.say("of the copy")
        return 2
    os.wait()
    return 1


def pause(channel: Channel, seconds: float) -> str:
    channel.say("on it")
    time.sleep(seconds)
    return "done"


def chatter(channel: Channel) -> None:
    for _ in range(60):
        print("x" * 100_000, flush=True)
        channel.say("still here")
    time.sleep(1.0)  # until it was heard
    print("\nthe end", flush=True)
    os._exit(5)

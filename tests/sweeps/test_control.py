"""Ray's control service is gone: noticed, and where a call of Ray does not return, the end is one line."""

import os
import socket
import subprocess
import sys
import time

import pytest
import ray

from sweeps.running import cluster, control
from sweeps.running.cluster import EngineLost, c_without_errors

STUCK = """
import sys, tempfile, time
from sweeps.running import control, scratch
control.STUCK_SECONDS = control.LOOK_SECONDS = 0.05
print(scratch.temporary_folder(), flush=True)
with control.watched(lambda: {gone}, lambda: print("the last words", file=sys.stderr, flush=True)):
    time.sleep({seconds})
"""


def listening() -> tuple[socket.socket, tuple[str, int]]:
    server = socket.create_server(("127.0.0.1", 0))
    return server, server.getsockname()


def test_nobody_who_listens_is_refused_and_one_who_does_not_answer_is_not() -> None:
    server, place = listening()
    assert not control.refused(place)
    assert not control.silent(place)
    server.close()
    assert control.refused(place)
    assert control.silent(place)
    assert not control.refused(None)
    assert not control.silent(None)


def test_a_network_that_fails_is_silent_but_nobody_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: object, timeout: float) -> socket.socket:
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", lost)
    assert control.silent(("10.0.0.1", 1))
    assert not control.refused(("10.0.0.1", 1))


def test_a_control_service_that_is_gone_is_asked_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    server, place = listening()
    server.close()
    monkeypatch.setattr(control, "address", lambda: place)
    monkeypatch.setattr(ray, "nodes", lambda: pytest.fail("it would never return"))
    with pytest.raises(EngineLost, match="control service is gone"):
        cluster.check_home()
    assert not issubclass(EngineLost, Exception)  # Tune would clean up, by calls that do not return


@pytest.mark.parametrize(("gone", "seconds", "code"), [(True, 60, 1), (False, 1, 0)])
def test_a_process_that_waits_in_vain_ends_with_its_last_words_and_no_files(
    gone: bool, seconds: int, code: int
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import ray\n" + STUCK.format(gone=gone, seconds=seconds)],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == code
    assert done.stderr == ("the last words\n" if gone else "")
    folder = done.stdout.strip()
    assert folder
    assert not os.path.isdir(os.path.dirname(folder))


def test_what_c_says_while_ray_starts_is_not_seen_and_what_python_says_is(capfd: pytest.CaptureFixture[str]) -> None:
    with c_without_errors():
        os.write(2, b"of C\n")
    os.write(2, b"later\n")
    captured = capfd.readouterr()
    assert captured.err == "later\n"


def test_a_child_that_is_dead_is_told_from_one_that_runs(tmp_path) -> None:
    link = tmp_path / "gcs_server"
    link.symlink_to("/bin/sleep")
    dead = control.died()
    assert not dead()
    child = subprocess.Popen([str(link), "60"])
    until = time.monotonic() + 30
    assert not dead()
    child.kill()
    while not dead():
        assert time.monotonic() < until
        time.sleep(0.02)
    child.wait()

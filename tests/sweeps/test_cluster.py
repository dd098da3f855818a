"""Where trials fit, and what Ray may not do to the process it runs in."""

import atexit
import contextlib
import errno
import itertools
import json
import math
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
import ray
from ray.core.generated import ray_client_pb2, ray_client_pb2_grpc

from cbs.compute import device
from cbs.errors import ConfigError, ResultsError, Unfinished
from cbs.interrupts import _core, interrupted, rearm, signals_as_interrupt, uninterrupted
from cbs.trial.store import Store
from sweeps.folder.lock import described, lives
from sweeps.running import access, cluster, scratch, tuning
from sweeps.running.child import Child
from sweeps.running.cluster import Engine, EngineLost, PrestartedRay, connected, output_to_error
from sweeps.running.resources import Resources, check_placement
from sweeps.running.run import MAX_LOSSES, Runs, SweepRun
from sweeps.running.tuning import MAX_ENGINES, run_search
from sweeps.search.search import Search
from tests.sweeps.simulation import small_sweep


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"gpus_per_trial": math.nan}, "number of at least 0, got nan"),
        ({"gpus_per_trial": math.inf}, "number of at least 0, got inf"),
        ({"gpus_per_trial": -1.0}, "at least 0"),
        ({"gpus_per_trial": 1.5}, "whole number above 1"),
        ({"gpus_per_trial": 1000.0}, r"1000 GPUs does not fit on this machine, which has \d+"),
        ({"cpus_per_trial": 100_000}, r"100000 cores does not fit on this machine, which has \d+"),
        ({"workers_per_trial": 0}, "workers per trial must be at least 1, got 0"),
        ({"workers_per_trial": 1000, "cpus_per_trial": 7}, r"7000 cores does not fit on this machine, which has \d+"),
        ({"trial_timeout": 0.0}, "above 0 seconds"),
        ({"trial_timeout": math.nan}, "above 0 seconds"),
    ],
)
def test_what_no_machine_can_give_is_refused(asked, words):
    with pytest.raises(ConfigError, match=words):
        Resources(**asked)


def test_a_gpu_is_refused_only_where_there_is_none(monkeypatch):
    monkeypatch.setattr(device, "count", lambda: 1)
    Resources(gpus_per_trial=1.0)
    with pytest.raises(ConfigError, match="2 GPUs does not fit on this machine, which has 1"):
        Resources(gpus_per_trial=2.0)
    Resources(gpus_per_trial=2.0, address="auto")  # the cluster knows


@pytest.mark.parametrize(
    ("asked", "device", "command", "words"),
    [
        ({"gpus_per_trial": 4.0}, "auto", False, "would hold 4 GPUs for a trial that uses 1.*--workers-per-trial 4"),
        ({"shard": True}, "auto", False, "--set shard needs --workers-per-trial"),
        ({"gpus_per_trial": 1.0}, "cpu", False, "--gpus-per-trial does not go with --set device=cpu"),
        ({"gpus_per_trial": 0.5, "workers_per_trial": 2}, "auto", False, "2 GPUs or none, not --gpus-per-trial 0.5"),
        ({"workers_per_trial": 2}, "auto", True, "--command does not go with --workers-per-trial"),
    ],
)
def test_no_trial_holds_what_it_does_not_use(asked, device, command, words):
    with pytest.raises(ConfigError, match=words):
        Resources(address="auto", **asked).check_devices(device, command=command)


@pytest.mark.parametrize(
    ("asked", "command", "gpus"),
    [
        ({}, False, 1.0),
        ({"gpus_per_trial": 0.5}, False, 0.5),
        ({"workers_per_trial": 2}, False, 2.0),
        ({"workers_per_trial": 2, "gpus_per_trial": 0.0}, False, 0.0),
        ({"gpus_per_trial": 8.0}, True, 8.0),
    ],
)
def test_what_it_uses_it_holds(asked, command, gpus, monkeypatch):
    monkeypatch.setattr("sweeps.running.resources._nodes", lambda: [{"CPU": 8.0, "GPU": 2.0}])
    resources = Resources(address="auto", **asked)
    resources.check_devices("auto", command=command)
    assert resources.gpus_of_trial("auto") == gpus
    assert resources.cpus == asked.get("workers_per_trial", 1)


def test_a_trial_fits_whole_on_one_node_or_not_at_all(monkeypatch):
    monkeypatch.setattr("sweeps.running.resources._nodes", lambda: [{"CPU": 4.0}, {"CPU": 8.0, "GPU": 1.0}])
    assert check_placement(Resources(address="auto", cpus_per_trial=8), 1.0) == 1
    assert check_placement(Resources(address="auto", cpus_per_trial=2), 0.0) == 6
    assert check_placement(Resources(address="auto", cpus_per_trial=2, workers=5), 0.0) == 5
    with pytest.raises(ConfigError, match="12 cores and 0 GPUs: the nodes have 4 cores and 0 GPUs, 8 cores and 1 GPUs"):
        check_placement(Resources(address="auto", cpus_per_trial=12), 0.0)
    with pytest.raises(ConfigError, match="2 cores and 2 GPUs"):
        check_placement(Resources(address="auto", workers_per_trial=2), 2.0)


def test_nothing_reaches_standard_output(capfd):
    with output_to_error():
        print("Ray about itself")
        os.write(1, b"of C\n")
        subprocess.run([sys.executable, "-c", "print('of a process')"], check=True)
    print("the answer")
    captured = capfd.readouterr()
    assert captured.out == "the answer\n"
    assert "Ray about itself" not in captured.err
    assert "of C" in captured.err


def test_a_stop_is_an_interrupt_but_not_under_nohup():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals_as_interrupt():
            rearm()  # from what went before
            signal.raise_signal(signal.SIGHUP)
            assert not interrupted()
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGQUIT)  # the first one ends it
            assert interrupted()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        rearm()
        with signals_as_interrupt(), pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_second_interrupt_does_not_cut_the_end_short():
    before = signal.getsignal(signal.SIGINT)
    with uninterrupted():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_ray_that_does_not_start_is_started_again_and_leaves_no_files(monkeypatch, tmp_path):
    started = []

    def too_slow(**options):
        started.append(options["_temp_dir"])
        raise Exception("The current node timed out during startup.\nThis could happen because")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", too_slow)
    notes: list[str] = []
    run = SimpleNamespace(
        over=False,
        search=SimpleNamespace(all_counts=lambda: (0, 0)),
        note=notes.append,
        all_lost=lambda: None,
    )
    with pytest.raises(Unfinished, match=r"^Ray has died \(The current node timed out during startup\.\)$"):
        run_search(SimpleNamespace(run=run), Resources(workers=1))
    assert (len(started), len(notes)) == (1 + MAX_ENGINES, MAX_ENGINES)
    assert not any(Path(folder).exists() for folder in started)


def test_a_cluster_that_does_not_answer_is_given_up_and_so_is_an_end_that_never_comes(monkeypatch):
    never = threading.Event()
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **options: never.wait())
    ended: list[object] = []
    monkeypatch.setattr(ray, "shutdown", never.wait)
    monkeypatch.setattr(atexit, "unregister", ended.append)
    for name in ("MOST_CONNECT_SECONDS", "END_SECONDS", "MOST_END_SECONDS"):
        monkeypatch.setattr(cluster, name, 0.05)
    with pytest.raises(Unfinished, match=r"^Ray at 10\.0\.0\.1:6379 does not answer; is the cluster up"):
        connected(Resources(address="10.0.0.1:6379")).__enter__()
    assert len(ended) == 1
    never.set()


def test_a_ray_that_dies_after_the_last_sweep_is_not_started_again(monkeypatch, capsys):
    run: Any = SimpleNamespace(over=True, note=pytest.fail, last_words=pytest.fail)
    runs, watching = SimpleNamespace(run=run), []

    @contextlib.contextmanager
    def watched(gone: object, last_words: Any):
        watching.append(last_words)
        yield

    def idle(*_: object) -> None:
        runs.run = None
        watching[0]()
        raise EngineLost("its control service is gone")

    monkeypatch.setattr("sweeps.running.tuning.connected", lambda *_: contextlib.nullcontext(True))
    monkeypatch.setattr("sweeps.running.tuning.watched", watched)
    monkeypatch.setattr("sweeps.running.tuning.address", lambda: None)
    monkeypatch.setattr(tuning, "tune_search", idle)
    run_search(runs, Resources(workers=1))
    assert capsys.readouterr().err.startswith("cbs: Ray has died after the last trial; nothing is lost: ")


def test_a_sweep_that_cannot_be_chosen_is_told_though_ray_dies_too(monkeypatch):
    mine = tuning_of(monkeypatch, [running([0])], Resources())
    mine.problem = Told()
    monkeypatch.setattr(tuning, "Tuning", lambda *_: mine)
    monkeypatch.setattr(tuning.tune, "Tuner", lambda *_, **__: SimpleNamespace(fit=lambda: next(iter([]))))
    with pytest.raises(Told):
        tuning.tune_search(mine.runs, Resources())


def test_a_cluster_that_dies_is_not_started_again(monkeypatch):
    @contextlib.contextmanager
    def lost(*_: object):
        raise EngineLost("its control service is gone")
        yield

    monkeypatch.setattr("sweeps.running.tuning.connected", lost)
    run: Any = SimpleNamespace(over=False, note=pytest.fail, search=SimpleNamespace(all_counts=lambda: (0, 0)))
    with pytest.raises(Unfinished, match=r"^Ray has died \(its control service is gone\)$"):
        run_search(SimpleNamespace(run=run), Resources(workers=1, address="10.0.0.1:6379"))


@pytest.mark.parametrize(
    ("address", "insecure", "before", "mode", "own"),
    [
        (None, False, "disabled", "token", True),
        ("host:1", False, None, "token", False),
        ("host:1", False, "disabled", "token", False),
        ("host:1", False, "k8s", "k8s", False),
        ("host:1", True, None, "disabled", False),
        ("host:1", True, "token", "token", False),
    ],
)
def test_ray_has_a_token_and_a_private_one_its_own(monkeypatch, address, insecure, before, mode, own):
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "theirs")
    if before is not None:
        monkeypatch.setenv("RAY_AUTH_MODE", before)
    monkeypatch.setattr(access, "_read_again", lambda: None)
    with access.token_of(address, insecure=insecure):
        assert os.environ["RAY_AUTH_MODE"] == mode
        assert (os.environ["RAY_AUTH_TOKEN"] != "theirs") is own
        assert len(os.environ["RAY_AUTH_TOKEN"]) >= (64 if own else 6)
    assert (os.environ.get("RAY_AUTH_MODE"), os.environ["RAY_AUTH_TOKEN"]) == (before, "theirs")


@pytest.mark.parametrize(
    ("address", "code", "tls", "refused"),
    [
        ("host:1", 0, "0", True),
        ("host:1", 3, "0", False),
        ("host:1", 1, "0", False),  # it did not say
        ("host:1", 0, "1", False),
    ],
)
def test_a_cluster_that_answers_without_a_token_is_refused(monkeypatch, address, code, tls, refused):
    def asked(command, *, env, **_):
        assert (command[-1], env["RAY_AUTH_MODE"]) == (address, "disabled")
        return SimpleNamespace(returncode=code)

    monkeypatch.setenv("RAY_USE_TLS", tls)
    monkeypatch.setattr(access.subprocess, "run", asked)
    one_line = pytest.raises(
        ConfigError, match=r"host:1 obeys everybody who reaches it.*RAY_AUTH_MODE=token.*--insecure"
    )
    with one_line if refused else contextlib.nullcontext():
        access.check_guarded(address)


@pytest.mark.parametrize("guarded", [True, False])
def test_one_behind_ray_client_is_asked_as_ray_client_does(monkeypatch, guarded):
    class Servicer(ray_client_pb2_grpc.RayletDriverServicer):
        def ClusterInfo(self, request, context):
            if guarded:
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "no token")
            return ray_client_pb2.ClusterInfoResponse()

    monkeypatch.delenv("RAY_USE_TLS", raising=False)
    server = grpc.server(ThreadPoolExecutor(1))
    ray_client_pb2_grpc.add_RayletDriverServicer_to_server(Servicer(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with contextlib.nullcontext() if guarded else pytest.raises(ConfigError, match="--insecure"):
        access.check_guarded(f"ray://127.0.0.1:{port}")
    server.stop(None)


def test_an_interrupt_while_ray_starts_waits_for_nothing_and_leaves_no_process(monkeypatch):
    """What Ray has started so far names its folder."""
    starting: list[subprocess.Popen[bytes]] = []

    def slow(**options):
        starting.append(
            subprocess.Popen([sys.executable, "-c", "input()", options["_temp_dir"]], stdin=subprocess.PIPE)
        )
        starting[0].wait()
        raise RuntimeError("it was killed")

    def stopped() -> None:
        while not starting:
            time.sleep(0.01)
        rearm()  # from what went before
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", slow)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    with pytest.raises(KeyboardInterrupt), signals_as_interrupt(), PrestartedRay(Resources(workers=1)):
        stopped()
    assert starting[0].returncode == -signal.SIGKILL
    assert not Path(starting[0].args[-1]).exists()


def test_ray_takes_no_signal_over_as_it_starts_and_as_it_ends(monkeypatch):
    """Its C code would print a stack at SIGTERM, above the one line, and later let it kill the process at once."""
    get, put = _core()
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **_: put(signal.SIGTERM, 1))
    monkeypatch.setattr(ray, "shutdown", lambda: put(signal.SIGTERM, 0))
    with signals_as_interrupt():
        ours = get(signal.SIGTERM)
        engine = Engine(Resources(workers=1))
        engine.start()
        assert get(signal.SIGTERM) == ours
        engine.stop()
        assert get(signal.SIGTERM) == ours


@pytest.fixture
def asked(monkeypatch) -> list[dict[str, object]]:
    """What Ray was asked for, which then fails."""
    found: list[dict[str, object]] = []

    def no_start(**options):
        found.append(options | {"there": Path(options.get("_temp_dir", "/")).exists()})
        raise RuntimeError("not today")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", no_start)
    return found


def test_a_private_ray_is_our_own_whatever_cluster_the_surroundings_name(monkeypatch, asked):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6379")  # as a job of a cluster has it
    with pytest.raises(EngineLost, match="not today"), connected(Resources(workers=1)):
        pytest.fail("nothing was started")
    assert asked[0]["address"] == "local"
    with pytest.raises(ConfigError, match=r"cannot reach Ray at 10\.0\.0\.1:6379"):
        connected(Resources(address="10.0.0.1:6379")).__enter__()
    assert asked[1]["address"] == "10.0.0.1:6379"


def of_a_killed_sweep(parent: Path, **changes: object) -> Path:
    """A folder for temporary files that its owner has left behind."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    folder = parent / f"cbs-ray-{gone.pid}-abcdefgh"
    folder.mkdir()
    (folder / "owner.json").write_text(json.dumps(described() | {"pid": gone.pid} | changes))
    return folder


@pytest.mark.parametrize(
    ("changes", "stays"),
    [
        ({}, False),
        ({"pid": os.getpid(), "born": "1"}, False),  # another process has the number of the dead one
        ({"machine": "another"}, True),  # container or machine, in which the owner may live
        ({"machine": None}, True),
        (None, True),  # it is just being made
    ],
)
def test_a_folder_is_only_removed_where_its_owner_is_dead_for_certain(monkeypatch, tmp_path, changes, stays):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = of_a_killed_sweep(tmp_path, **(changes or {}))
    if changes is None:
        (folder / "owner.json").unlink()
    mine = scratch.temporary_folder()
    scratch.remove_stale_folders()
    assert folder.exists() is stays
    assert mine.exists()
    monkeypatch.setattr(os, "getuid", lambda: -1)  # another user
    again = of_a_killed_sweep(tmp_path)
    scratch.remove_stale_folders()
    assert again.exists()
    scratch.remove_folder(mine)
    assert not mine.parent.exists()


def test_where_the_table_of_processes_is_of_another_namespace_nobody_is_dead_for_certain(monkeypatch):
    dead = {**described(), "born": "1"}
    assert lives(dead) is False
    monkeypatch.setattr(os, "readlink", lambda path: "1234567")
    assert lives(dead) is None
    assert lives(described()) is None


def test_sockets_go_where_their_path_is_short_and_what_is_killed_there_is_removed_too(monkeypatch, asked, tmp_path):
    long = tmp_path / ("long" * 20)
    long.mkdir()
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="s") as name:
        short = Path(name)
        monkeypatch.setattr(scratch, "_SHORT", name)
        monkeypatch.setattr(tempfile, "tempdir", str(long))
        for parent in (long, short):
            of_a_killed_sweep(parent)
        with pytest.raises(EngineLost), connected(Resources(workers=1)):
            pytest.fail("nothing was started")
        assert Path(asked[0]["_temp_dir"]).parents[1] == short
        assert asked[0]["there"]
        longest = f"{asked[0]['_temp_dir']}/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store"
        assert len(longest) <= scratch._MOST_SOCKET
        assert [*long.iterdir(), *short.iterdir()] == []
        monkeypatch.setattr(tempfile, "tempdir", name)
        monkeypatch.setattr(scratch, "_SHORT", "/nowhere")
        with pytest.raises(EngineLost), connected(Resources(workers=1)):
            pytest.fail("nothing was started")
        assert Path(asked[1]["_temp_dir"]).parents[1] == short


def test_without_any_folder_for_temporary_files_it_is_one_line(monkeypatch):
    def nowhere(*_: object, **__: object) -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    for name in ("gettempdir", "mkdtemp", "TemporaryFile"):
        monkeypatch.setattr(tempfile, name, nowhere)
    monkeypatch.setattr(tempfile, "tempdir", None)
    with pytest.raises(ConfigError, match="No usable temporary directory found; set TMPDIR"):
        connected(Resources(workers=1)).__enter__()
    with pytest.raises(ResultsError, match=r"No usable temporary directory found \(set TMPDIR"):
        Child()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
@pytest.mark.parametrize("where", [(ray, "init"), (tempfile, "mkdtemp")], ids=["ray", "folder"])
def test_a_ray_that_has_no_room_is_not(monkeypatch, where, number):
    def full(**options):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(*where, full)
    room = pytest.raises(Unfinished, match=r"^no room for temporary files in .*; make room, or set TMPDIR")
    with room, connected(Resources(workers=1)):
        pytest.fail("nobody is connected")


@pytest.mark.parametrize(
    ("name", "limit", "words"),
    [
        ("NOFILE", 32, "Ray needs 64 open files (ulimit -n), and this shell allows 32"),
        ("NPROC", 180, "200 processes and threads (ulimit -u), and this shell allows 180"),
        ("AS", 2 * 10**9, "3,000,000,000 bytes of address space"),
        ("AS", resource.RLIM_INFINITY, None),
        ("NPROC", 200, None),
    ],
)
def test_limits_under_which_no_ray_lives_are_told_before_it_starts(monkeypatch, name, limit, words):
    def found(which: int) -> tuple[int, int]:
        return (limit if which == getattr(resource, f"RLIMIT_{name}") else 10**12,) * 2

    monkeypatch.setattr(resource, "getrlimit", found)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    with pytest.raises(ConfigError, match=re.escape(words)) if words else contextlib.nullcontext():
        Engine(Resources(workers=1)).stop()


def test_a_ray_whose_workers_are_never_heard_ends_the_sweep_and_one_of_a_cluster_may_take_longer(monkeypatch):
    monkeypatch.setattr(tuning, "check_home", lambda: None)
    monkeypatch.setattr(tuning, "HOME_SECONDS", 0.0)
    monkeypatch.setattr(tuning.time, "monotonic", lambda: 0.0)
    for address, silent, fatal in (None, 300.0, True), (None, 298.0, False), ("auto", 1e6, False):
        run = running([], heard=lambda config, place: None)
        mine = tuning_of(monkeypatch, [run], Resources(address=address))
        monkeypatch.setitem(tuning._runs, 7, mine)
        mine.silent = 1e9
        mine.check_home()
        assert run.fatal is None  # nothing is out
        mine.trials["a"] = mine.trials["b"] = SimpleNamespace(trial_id="t")  # type: ignore[assignment]
        tuning.Queue(7).on_trial_result("a", {"where": [{}]})
        mine.check_home()
        assert run.fatal is None
        mine.silent = silent
        mine.check_home()
        assert bool(run.fatal) is fatal
        assert not fatal or "no worker of Ray was heard for 300 s; see " in run.fatal


def test_a_trial_whose_worker_is_lost_goes_on_elsewhere_ten_times_and_then_ends_the_sweep(tmp_path):
    run = SweepRun(Search(small_sweep()), Store(tmp_path), 1.0)
    for losses in range(MAX_LOSSES + 1):
        assert run.fatal is None, losses
        started = run.next()
        assert started is not None
        run.lost(started[0])
    assert "its worker was lost 11 times" in run.fatal


def test_actors_start_together_unless_the_user_says_how_many(monkeypatch):
    monkeypatch.delenv(tuning.PENDING, raising=False)
    with tuning._started_together(4):
        assert os.environ[tuning.PENDING] == "4"
    assert tuning.PENDING not in os.environ
    monkeypatch.setenv(tuning.PENDING, "9")
    with tuning._started_together(4):
        assert os.environ[tuning.PENDING] == "9"
    assert os.environ[tuning.PENDING] == "9"


@pytest.mark.parametrize(("asked", "most"), [(None, 3), (1, 1)])
def test_tune_holds_no_more_trials_than_run_and_one_that_waits(monkeypatch, asked, most):
    run = running(itertools.count())
    monkeypatch.setitem(tuning._runs, 7, tuning_of(monkeypatch, [run], Resources(workers=asked), room=2))
    handed = [tuning.Queue(7).suggest(str(number)) for number in range(5)]
    assert [each is not None for each in handed] == [True] * most + [False] * (5 - most)


def running(trials: Iterable[int], **more: Any) -> Any:
    """A sweep with so many trials left, which are numbered."""
    left = iter(trials)
    search = SimpleNamespace(sweep=small_sweep(), workers=0)
    run = SimpleNamespace(search=search, store=SimpleNamespace(root=Path()), silence=1.0, fatal=None, over=False)

    def following() -> Any:
        number = next(left, None)
        return None if number is None else (SimpleNamespace(to_dict=lambda: number), None)

    def take_in(config: Any, result: Any) -> None:
        run.over = result["last"]

    vars(run).update({"next": following, "take_in": take_in} | more)
    return run


def tuning_of(monkeypatch: pytest.MonkeyPatch, runs: list[Any], resources: Resources, room: int = 1) -> tuning.Tuning:
    monkeypatch.setattr(tuning, "check_placement", lambda *_: room)
    monkeypatch.setattr(Resources, "gpus_of_trial", lambda *_: 0.0)
    return tuning.Tuning(Runs(each for each in runs), resources)


class Told(Exception):
    """A sweep that cannot be chosen."""


def chosen(*runs: Any) -> Iterator[Any]:
    yield from runs
    raise Told


def test_a_worker_that_is_idle_waits_for_the_next_sweep_and_ends_with_the_last(monkeypatch):
    """Tune would end it, and another one takes seconds to start."""
    first, second = running(range(3)), running(range(2))
    mine = tuning_of(monkeypatch, [first, second], Resources(), room=2)
    monkeypatch.setitem(tuning._runs, 7, mine)
    queue, stop = tuning.Queue(7), tuning.StopWhenDone(7)
    assert [queue.suggest(name)["trial"] for name in "abc"] == ["0", "1", "2"]
    assert queue.suggest("x") is None
    queue.on_trial_complete("a", {"status": "REACHED", "last": False})
    assert queue.suggest("x") is None  # the worker takes the trial that waits
    queue.on_trial_complete("b", {"status": "REACHED", "last": False})
    assert queue.suggest("x")["trial"] is None
    assert queue.suggest("y") is None
    assert not stop("x", {})
    queue.on_trial_complete("c", {"status": "REACHED", "last": True})
    assert queue.suggest("d")["trial"] == "0"
    assert mine.run is second
    assert not stop("x", {})  # a worker is free
    assert queue.suggest("e")["trial"] == "1"
    assert [stop("x", {}), stop("d", {})] == [True, False]
    queue.on_trial_complete("x", {"done": True})
    for name, last in ("d", False), ("e", True):
        queue.on_trial_complete(name, {"status": "REACHED", "last": last})
    assert queue.suggest("f") == tuning.Searcher.FINISHED
    assert (mine.runs.run, mine.problem) == (None, None)


@pytest.mark.parametrize("why", ["other workers", "a problem", "fatal"])
def test_a_sweep_that_these_workers_cannot_run_ends_the_experiment(monkeypatch, why):
    first, second = running([0]), running([1], silence=2.0 if why == "other workers" else 1.0)
    mine = tuning_of(monkeypatch, [first], Resources())
    mine.runs = Runs(chosen(first, *([] if why == "a problem" else [second])))
    assert mine.next("a")["trial"] == "0"
    mine.back("a")
    first.over, first.fatal = True, "it fails" if why == "fatal" else None
    assert mine.next("b") == tuning.Searcher.FINISHED
    assert mine.runs.run is {"other workers": second, "a problem": None, "fatal": first}[why]
    assert isinstance(mine.problem, Told) == (why == "a problem")
    assert mine.ended

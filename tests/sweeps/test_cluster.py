"""Where trials fit, and what Ray may not do to the process it runs in."""

import atexit
import contextlib
import math
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
import ray
from ray.core.generated import ray_client_pb2, ray_client_pb2_grpc

from cbs.compute import device
from cbs.errors import ConfigError, Unfinished
from cbs.interrupts import _core, interrupted, rearm, signals_as_interrupt, uninterrupted
from sweeps.running import access, cluster, tuning
from sweeps.running.cluster import Engine, EngineLost, PrestartedRay, connected, output_to_error
from sweeps.running.resources import Resources, check_placement
from sweeps.running.tuning import MAX_ENGINES, run_search


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


def test_a_ray_that_does_not_start_is_started_again_and_leaves_no_files(monkeypatch, tmp_path):
    started = []

    def too_slow(**options):
        started.append(options["_temp_dir"])
        raise Exception("The current node timed out during startup.\nThis could happen because")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", too_slow)
    notes: list[str] = []
    run = SimpleNamespace(
        over=False, search=SimpleNamespace(all_counts=lambda: (0, 0)), note=notes.append, all_lost=lambda: None
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


def test_a_gpu_is_refused_only_where_there_is_none(monkeypatch):
    monkeypatch.setattr(device, "count", lambda: 1)
    Resources(gpus_per_trial=1.0)
    with pytest.raises(ConfigError, match="2 GPUs does not fit on this machine, which has 1"):
        Resources(gpus_per_trial=2.0)
    Resources(gpus_per_trial=2.0, address="auto")  # the cluster knows


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


def test_a_second_interrupt_does_not_cut_the_end_short():
    before = signal.getsignal(signal.SIGINT)
    with uninterrupted():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGINT) is before


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


def test_a_cluster_that_dies_is_not_started_again(monkeypatch):
    @contextlib.contextmanager
    def lost(*_: object):
        raise EngineLost("its control service is gone")
        yield

    monkeypatch.setattr("sweeps.running.tuning.connected", lost)
    run: Any = SimpleNamespace(over=False, note=pytest.fail, search=SimpleNamespace(all_counts=lambda: (0, 0)))
    with pytest.raises(Unfinished, match=r"^Ray has died \(its control service is gone\)$"):
        run_search(SimpleNamespace(run=run), Resources(workers=1, address="10.0.0.1:6379"))


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

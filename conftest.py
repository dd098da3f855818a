"""Shared fixtures: one thread, one local Ray for the whole session; random numbers that do not depend on what ran
before; how tests are shared out among processes.

What takes seconds to import is imported by the fixtures: the process that shares out the tests runs none.
"""

import gc
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Tests are of processors, also where there is a GPU: on one they would round otherwise, and wait for each other.
# `CUDA_VISIBLE_DEVICES=0 pytest tests/noise_scale` asks for it; `make gpu-check` is what is meant to run on one.
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import pytest
from hypothesis import settings

# One thread in processes that tests start, too; time says nothing about a test on a machine that others use; and the
# examples of hypothesis are the same in every run.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Arrays of megabytes come and go: the C library of the processes that run tests would give their pages back each time,
# and the system would fill them with zeros again, which is a fifth of the time of the tests of answers.
os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", str(2**25))
os.environ.setdefault("MALLOC_TRIM_THRESHOLD_", str(2**28))
# A call of Ray outside a cluster would start one by itself, and wait for ever where another has just ended.
os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"
# A run writes and removes 150,000 small files: in memory, where the machine has a file system there with room.
MEMORY = Path("/dev/shm")
if "TMPDIR" not in os.environ and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 4 * 2**30:
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)
settings.register_profile("quick", deadline=None, derandomize=True, max_examples=20)
settings.register_profile("thorough", settings.get_profile("quick"), max_examples=50)
settings.load_profile("quick")

RAY_FILES = ("tests/sweeps/test_faults.py", "tests/sweeps/test_kill.py", "tests/sweeps/test_launch.py")
FORKING_FILES = (
    "tests/noise_scale/test_distributed.py",
    *("tests/optimizers/test_trust_ratio_sharded.py", "tests/sweeps/test_memory.py", "tests/sweeps/test_worker.py"),
    *("tests/test_cli.py", "tests/test_output.py", "docs/site/tests/test_docs.py", "tests/test_extensions.py"),
)
LOG_FILES = ("test_wandb.py", "test_tensorboard.py", "test_every_format.py", "test_trackers.py")
SCOPES = dict.fromkeys((*RAY_FILES, *FORKING_FILES), "processes")
# Those of extensions by name, wherever they are
OF_EXTENSIONS = {**dict.fromkeys(LOG_FILES, "logs"), "test_ranks.py": "processes"}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """How ``pytest -n`` shares out tests: those of a file, which share fixtures, to one process, and so those of all
    files that start Ray, so that there is one Ray at a time, or fork from :mod:`tests.fresh`, so that its server is
    there once, and of those that import what writes or reads logs. Ray comes first, as it takes longest.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::")[0]
            return SCOPES.get(file, OF_EXTENSIONS.get(file.rpartition("/")[2], file))

    config.option.loadscopereorder = False
    return ByFile(config, log)


def pytest_configure(config: pytest.Config) -> None:
    """More examples where the slow tests run, too. The garbage collector need not look through what collecting the
    tests makes after every seven hundred objects; nor later, see :func:`pytest_collection_finish`."""
    gc.set_threshold(100_000)
    settings.load_profile("quick" if config.getoption("markexpr") == "not slow" else "thorough")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that start Ray first; others that would start it are refused.

    Raises:
        pytest.UsageError: if ``local_ray`` is used in a file that is not in ``RAY_FILES``.
    """
    file = {item: item.nodeid.split("::")[0] for item in items}
    for item in items:
        if "local_ray" in getattr(item, "fixturenames", ()) and file[item] not in RAY_FILES:
            raise pytest.UsageError(f"{file[item]} uses local_ray; name it in RAY_FILES of tests/conftest.py")
    items.sort(key=lambda item: file[item] not in RAY_FILES)


def pytest_collection_finish() -> None:
    """What has been imported stays: the garbage collector need not look through a million objects time and again; that
    would be a twelfth of the time."""
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Before the fixtures, too: in whatever order tests run, each draws the same random numbers."""
    import numpy as np
    import torch

    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _no_seeds_for_absent_devices() -> None:
    """Where a device is not there, ``torch.manual_seed`` keeps the seed with a stack trace until it is: milliseconds
    below the frames of pytest, thousands of times."""
    import torch

    for device in (torch.cuda, torch.xpu, torch.mtia):
        if not device.is_available():
            device.manual_seed_all = lambda seed: None


@pytest.fixture(autouse=True, scope="session")
def _no_waiting_for_the_disk() -> None:
    """Three waits for every trial that a test stores; a process that is killed loses nothing by their absence. That
    they are asked for, and when, is seen in ``test_store.py`` and ``test_checkpoint.py``."""
    os.fsync = lambda file: None


@pytest.fixture(autouse=True, scope="session")
def _figures_are_sketches() -> Iterator[None]:
    """Files of figures are empty: laying one out and drawing it, as is done here with the first of every name in a
    process, takes a fourth of the time of writing PDF and PNG. What is in the files is seen where ``whole_figures`` is
    asked for; tests of figures draw them themselves."""
    from analysis.present import style

    sketched: set[str] = set()

    def sketch(figure: Any, path: Path) -> None:
        path.touch()
        if path.stem not in sketched:
            figure.canvas.draw()
            sketched.add(path.stem)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(style, "written", style.save_as, raising=False)
        patch.setattr(style, "save_as", sketch)
        yield


@pytest.fixture
def whole_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are written as they are for a person."""
    from analysis.present import style

    monkeypatch.setattr(style, "save_as", style.written)  # type: ignore[attr-defined]


@pytest.fixture(scope="session")
def local_ray() -> Iterator[None]:
    """One private Ray with two workers, started by the first test that needs it."""
    from sweeps.running.cluster import connected
    from sweeps.running.resources import Resources

    with connected(Resources(workers=2)):
        yield


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    """Run ``cbs`` in this process; returns exit code, standard output and standard error."""
    import cli

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["cbs", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        captured = capsys.readouterr()
        return int(stop.value.code or 0), captured.out, captured.err

    return call


@pytest.fixture
def children_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command asks of a child runs in this process: see :class:`tests.sweeps.alone.ChildHere`."""
    from tests.sweeps import alone

    alone.children_here(monkeypatch)

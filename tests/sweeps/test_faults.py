"""Faults injected into trials of real sweeps: each is told as what it is, and the other trials are as ever."""

import errno
import io
import json
import os
import shutil
from pathlib import Path

import pytest
from ray import tune
from rich.console import Console

from cbs.errors import ConfigError, ResultsError, Unfinished
from cbs.training.run import run_trial
from cbs.trial.config import Choice
from cbs.trial.record import TrialResult, TrialStatus
from cbs.trial.store import Store
from sweeps.launching.launch import resolve
from sweeps.launching.ledger import ledger
from sweeps.outlook.progress import Progress
from sweeps.outlook.report import outcome_lines, outcome_report
from sweeps.running import run as running
from sweeps.running.resources import Resources
from sweeps.spec.axes import Axes
from sweeps.spec.spec import Sweep, prototype
from tests.sweeps.alone import swept, without_ray
from tests.sweeps.test_kill import reached

pytestmark = pytest.mark.usefixtures("local_ray")
ROOT = Path(__file__).resolve().parents[2]


def asked(acts: dict[int, str], **options: object) -> Sweep:
    """One trial at every batch size that is named, and at 16, which is left alone."""
    workload = Choice(
        name="tests.sweeps.faulty:workload", options={"acts": {str(size): act for size, act in acts.items()}, **options}
    )
    base = Sweep(
        name="faults",
        trial=prototype(workload=workload),
        axes=Axes(optimizers=(Choice(name="sgd"),), batch_sizes=tuple(sorted({*acts, 16})), lrs=(0.1,)),
        max_steps=300,
        max_examples=2000,
    )
    return resolve(base, 0.4)


def results(folder: Path) -> dict[int, TrialResult]:
    return {result.config.batch_size: result for result in Store(folder).results()}


@pytest.fixture(autouse=True)
def _few_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every start of a process imports torch."""
    monkeypatch.setattr(running, "MAX_DEATHS", 1)


def run(wanted: Sweep, folder: Path, silence: float = 60.0) -> tuple[dict[int, TrialResult], str]:
    text = io.StringIO()
    progress = Progress(Console(file=text, width=300), 1)
    search = swept(wanted, folder, resources=Resources(workers=1), patience=silence, progress=progress)
    return results(folder), text.getvalue() + "\n".join(outcome_lines(outcome_report(search, folder)))


def test_a_crash_a_full_memory_and_a_lost_worker_are_told_and_harm_no_other_trial(tmp_path):
    flag = tmp_path / "flag"
    flag.touch()
    wanted = asked({4: "segfault", 5: "allocate", 6: "once kill the worker"}, flag=str(flag))
    found, told = run(wanted, tmp_path / "crash")
    assert (tmp_path / "flag-done").exists()
    assert {size: str(result.status) for size, result in found.items()} == {
        4: "FAILED", 5: "REACHED", 6: "REACHED", 16: "REACHED"
    }  # fmt: skip
    for size in (6, 16):
        assert str(found[size].evaluations) == str(run_trial(found[size].config).evaluations)
    assert "killed by SIGSEGV: in " in found[4].message
    assert "faulty.py:" in found[4].message
    assert (found[5].micro_batch_size, found[16].micro_batch_size) == (3, None)
    assert "passes of 3 examples, as more do not fit into memory" in told
    assert "1 of 4 trials failed" in told
    assert "easier --target" not in told
    last = (tmp_path / "crash" / "trials" / found[4].trial_id / "last-lines.txt").read_text()
    assert "Segmentation fault" in last


@pytest.mark.slow
@pytest.mark.parametrize(
    ("act", "status", "words"),
    [
        ("hang", "FAILED", "did not respond for 20 s: in <lambda>, "),
        ("exit", "FAILED", "exited with code 3: last words of the workload"),
        ("die", "FAILED", "killed by SIGKILL"),
        ("sys.exit", "FAILED", "SystemExit: 4"),
        ("raise", "FAILED", "ValueError: on purpose"),
        ("memory", "REACHED", ""),
        ("device memory", "REACHED", ""),
    ],
)
@pytest.mark.parametrize("after", [0, 12], ids=["first step", "later"])
def test_every_other_end_of_a_trial_is_told_and_a_later_sweep_mends_it(tmp_path, act, status, words, after):
    flag = tmp_path / "flag"
    flag.touch()
    wanted = asked({4: act}, flag=str(flag), after=after)
    found, told = run(wanted, tmp_path / "out", silence=20.0 if act == "hang" else 60.0)
    assert found[4].status == status
    assert words in found[4].message
    assert "\n" not in found[4].message
    assert found[16].status is TrialStatus.REACHED
    flag.unlink()
    if status == "FAILED":
        found, told = run(wanted, tmp_path / "out")
        assert found[4].status is TrialStatus.REACHED
        assert "failed" not in told


def test_a_full_folder_of_temporary_files_ends_the_sweep_in_one_line(tmp_path, monkeypatch):
    def full(tuner):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/tmp/ray/error.pkl")

    monkeypatch.setattr(tune.Tuner, "fit", full)
    with pytest.raises(Unfinished) as told:
        run(asked({}), tmp_path)
    assert "no room for temporary files in " in str(told.value)
    assert "set TMPDIR to a folder that has it; every finished trial is kept in " in str(told.value)
    assert "\n" not in str(told.value)


def test_damaged_files_are_set_aside_told_and_run_again_to_the_same_bytes(tmp_path):
    folder, wanted = tmp_path / "out", asked({}).replace(batch_sizes=(4, 8, 16, 32))
    with without_ray():
        run(wanted, folder)
    before, store = reached(folder), Store(folder)
    damages = {
        "record.parquet": lambda content: content[: len(content) // 2],
        "steps.parquet": lambda content: content[:-30],
        "timing.json": lambda content: b"[",
    }
    for trial_id, (name, damage) in zip(store.trial_ids(), damages.items(), strict=False):
        path = store.trials / trial_id / name
        path.write_bytes(damage(path.read_bytes()))
    shutil.rmtree(store.trials / store.trial_ids()[3])
    assert len(ledger(store).problems) == 1  # the table; the others are looked into by a sweep
    with without_ray():
        _, told = run(wanted, folder)
    assert reached(folder) == before
    assert told.count("the trial runs again") == 3
    assert len(store.damaged()) == 3
    assert "\n".join(store.trial_ids()).count("damaged") == 0


def test_a_folder_that_has_lost_its_plan_is_refused(tmp_path):
    wanted = asked({}).replace(batch_sizes=(16,))
    with without_ray():
        run(wanted, tmp_path)
    (tmp_path / "sweep.json").unlink()
    with pytest.raises(ResultsError, match=r"holds 1 trials but no sweep\.json"):
        run(wanted, tmp_path)
    (tmp_path / "sweep.json").write_text(json.dumps({"schema_version": 1})[:-3])
    with pytest.raises(ResultsError, match="cannot read"):
        run(wanted, tmp_path)


def test_a_trial_that_no_node_can_hold_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"no node can hold a trial of 1 cores and 1 GPUs: the nodes have 2 cores"):
        swept(asked({}), tmp_path, resources=Resources(address="auto", gpus_per_trial=1.0))


@pytest.mark.slow
def test_a_limit_on_the_memory_of_a_trial_makes_its_passes_smaller_and_changes_no_number(tmp_path):
    """A real limit of the system, from the first step on."""
    flag = tmp_path / "flag"
    flag.touch()
    found, told = run(asked(dict.fromkeys((16, 8, 4), "cramped"), flag=str(flag), after=0), tmp_path / "out")
    flag.unlink()
    assert {size: (str(result.status), result.micro_batch_size) for size, result in found.items()} == {
        4: ("REACHED", None), 8: ("REACHED", 4), 16: ("REACHED", 4)
    }  # fmt: skip
    assert told.count("passes of 4 examples, as more do not fit into memory") == 2
    for result in found.values():
        alone = run_trial(result.config, most=result.micro_batch_size)
        assert str(result.evaluations) == str(alone.evaluations)

"""Every tracker has the trials of a sweep once, and what it has is what ``cbs import`` reads back."""

import dataclasses
import importlib.util
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from analysis.read.importers import import_runs
from cbs.errors import ConfigError, MissingDependencyError, ResultsError
from cbs.trial.record import TrialResult, TrialStatus
from cbs.trial.store import Store
from sweeps.launching.trackers import TRACKERS, WRITTEN, Tracker, Tracking, curve, settings
from sweeps.running.run import SweepRun
from sweeps.search.search import Search
from tests import factories
from tests.analysis.read.importers.sources import settings as import_settings
from tests.kinds import kinds_of
from tests.sweeps.simulation import small_sweep

FOLDERS = {"tensorboard": "tensorboard", "wandb": "wandb"}
PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb"}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    for name in ("WANDB_MODE", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    return factories.sweep(tmp_path / "sweep", batch_sizes=(8, 32), lrs=(1e-3, 2e-3), growth=1.3)


def write(store: Store, names: list[str], results: list[TrialResult] | None = None) -> list[str]:
    """Lines said."""
    said: list[str] = []
    with Tracking(names, store, said.append) as tracking:
        tracking.add(list(store.results()) if results is None else results)
    return said


@pytest.mark.parametrize("name", kinds_of(TRACKERS.names(), ["tensorboard"]))
def test_what_a_tracker_has_is_what_an_importer_reads(name: str, store: Store, tmp_path: Path) -> None:
    if importlib.util.find_spec(PACKAGES[name]) is None:
        pytest.skip(f"{name} is not installed")
    (told,) = write(store, [name])
    folder = store.root / FOLDERS[name]
    sizes = {file: file.stat().st_size for file in folder.rglob("*") if file.is_file()}
    assert told.startswith(f"{name} has 4 trials: ")
    asked = import_settings(metric=factories.TARGET.metric, pattern="{optimizer}-b{batch_size}-lr{lr}-s{seed}-*")
    imported = import_runs([store.root / FOLDERS[name]], tmp_path / "back", asked)
    assert imported.format == name
    back = {(r.config.batch_size, r.config.lr): r for r in Store(tmp_path / "back").results()}
    assert len(back) == 4
    for result in store.results():
        there = back[result.config.batch_size, result.config.lr]
        assert [point.step for point in there.evaluations] == [point.step for point in result.evaluations]
        # event files hold single precision
        values = [[point.value for point in each.evaluations] for each in (there, result)]
        np.testing.assert_allclose(*values, rtol=2.0**-23)
        if result.steps_to_target is not None:
            assert there.steps_to_target == pytest.approx(result.steps_to_target, rel=1e-5)
    write(store, [name])  # nothing twice
    assert sizes == {file: file.stat().st_size for file in folder.rglob("*") if file.is_file()}


class Recorded(Tracker):
    """Keeps what it is given; fails at the trials of one batch size."""

    files = "recorded"
    written: list[tuple[str, TrialStatus]]
    fails_at: int | None = None

    def __init__(self, folder: Path) -> None: ...

    def write(self, result: TrialResult) -> None:
        if result.config.batch_size == self.fails_at:
            raise ConnectionError("no route to host\nmore")
        self.written.append((result.trial_id, result.status))

    @property
    def where(self) -> str:
        return "here"


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> type[Recorded]:
    monkeypatch.setitem(TRACKERS._entries, "recorded", Recorded)
    monkeypatch.setattr(Recorded, "written", [], raising=False)
    return Recorded


def test_a_trial_is_written_once_and_again_when_its_status_changes(store: Store, recorded: type[Recorded]) -> None:
    results = list(store.results())
    write(store, ["recorded"])
    write(store, ["recorded"])
    assert recorded.written == [(result.trial_id, result.status) for result in results]
    reached = next(result for result in store.results(with_steps=True) if result.status is TrialStatus.REACHED)
    changed = reached.replace(status=TrialStatus.PRUNED, steps_to_target=None)
    store.update_record(changed)
    write(store, ["recorded"])
    assert recorded.written[4:] == [(changed.trial_id, TrialStatus.PRUNED)]


def test_a_tracker_that_fails_is_named_and_left_out_and_made_up_for(
    store: Store, recorded: type[Recorded], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded, "fails_at", 8)
    assert write(store, ["recorded"]) == ["recorded is left out from now on: ConnectionError: no route to host"]
    assert len(recorded.written) == 2
    monkeypatch.setattr(recorded, "fails_at", None)
    assert write(store, ["recorded"]) == ["recorded has 4 trials: here"]
    assert len(set(recorded.written)) == len(recorded.written) == 4

    def no_disk(self: Recorded) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(recorded, "close", no_disk)
    assert write(store, ["recorded"]) == ["recorded is left out from now on: OSError: no space left"]


def test_settings_are_flat_and_losses_that_are_not_finite_are_left_out(store: Store) -> None:
    result = next(store.results())
    told = settings(result)
    assert told["fingerprint"] == result.config.fingerprint
    assert told["optimizer.name"] == "adamw"
    assert told["target.value"] == factories.TARGET.value
    assert all(isinstance(value, bool | int | float | str) for value in told.values())
    assert settings(result.replace(stated={"warmup_steps": 3}))["stated.warmup_steps"] == 3
    first, *others = result.evaluations
    bad = result.replace(evaluations=[first, *(dataclasses.replace(point, value=math.nan) for point in others)])
    assert all(factories.TARGET.metric not in values for _, values in list(curve(bad))[1:])
    assert all(values.keys() >= {"train_loss", "lr", "examples"} for _, values in curve(bad))


@pytest.mark.parametrize("metric", ["train_loss", "lr", "examples"])
def test_a_metric_that_is_called_like_another_column_is_the_metric(metric: str, tmp_path: Path) -> None:
    """The log of another program has no training loss, so its NaN left nothing of a metric of this name."""
    target = dataclasses.replace(factories.TARGET, metric=metric)
    made = factories.sweep(tmp_path, batch_sizes=(8,), lrs=(1e-3,), growth=1.3, target=target)
    for result in made.results():
        logged = [dataclasses.replace(point, train_loss=math.nan) for point in result.evaluations]
        told = [values[metric] for _, values in curve(result.replace(evaluations=logged))]
        assert told == [point.value for point in result.evaluations]


def test_what_is_there_what_ends_and_what_is_settled_is_written(store: Store, recorded: type[Recorded]) -> None:
    there, ends, settled, _ = store.results()
    search = Search(small_sweep())
    with Tracking(["recorded"], store, lambda line: None) as tracking:
        run = SweepRun(search, store, 1.0, [tracking])
        run.find([there])
        tracking.finished(ends, search)
        tracking.settled(settled)
    assert [trial_id for trial_id, _ in recorded.written] == [one.trial_id for one in (there, ends, settled)]


@pytest.mark.parametrize("name", ["wandb"])
def test_a_package_that_is_missing_is_named_before_anything_runs(
    name: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingDependencyError, match=rf"pip install {name}$"):
        Tracking([name], store, print)


def test_what_was_written_and_cannot_be_read_is_refused_by_name(store: Store, recorded: type[Recorded]) -> None:
    written = store.root / WRITTEN / "recorded.txt"
    written.parent.mkdir()
    written.write_bytes(b"\xff\xfe")
    with pytest.raises(ResultsError, match=r"recorded\.txt, which lists what recorded has: .*; remove it"):
        write(store, ["recorded"])
    written.unlink()
    written.mkdir()
    with pytest.raises(ResultsError, match="Is a directory"):
        write(store, ["recorded"])


@pytest.mark.parametrize("link", [WRITTEN, "tensorboard"])
def test_a_tracker_writes_through_no_link(store: Store, tmp_path: Path, link: str) -> None:
    (tmp_path / "outside").mkdir()
    (store.root / link).symlink_to(tmp_path / "outside")
    with pytest.raises(ResultsError, match="is a symbolic link"):
        write(store, ["tensorboard"])
    assert not any((tmp_path / "outside").iterdir())


def test_a_tracker_that_refuses_its_settings_is_one_line(store: Store, recorded: type[Recorded], monkeypatch) -> None:
    def refuses(self: Recorded, folder: Path) -> None:
        raise ValueError("no such scheme\nmore")

    monkeypatch.setattr(recorded, "__init__", refuses)
    with pytest.raises(ConfigError, match=r"^--log recorded cannot be written: ValueError: no such scheme$"):
        write(store, ["recorded"])


@pytest.mark.parametrize(("run", "ended"), [(None, ["teardown"]), ("of other code", [])])
def test_the_service_of_wandb_is_ended_unless_other_code_uses_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run: str | None, ended: list[str]
) -> None:
    calls: list[str] = []
    service = SimpleNamespace(run=run, teardown=lambda: calls.append("teardown"))
    monkeypatch.setitem(sys.modules, "wandb", service)
    TRACKERS["wandb"](tmp_path).close()
    assert calls == ended

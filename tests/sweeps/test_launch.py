"""Sweeps on a real Ray: one local instance for the session, tiny trials."""

import io
import math
import shutil
import sys
from pathlib import Path

import pytest
from rich.console import Console

from cbs.errors import ResultsError
from cbs.optimizers import OPTIMIZERS
from cbs.trial.config import Choice
from cbs.trial.record import TrialStatus
from cbs.trial.store import Store
from sweeps.external.trainer import ExternalTrainer, trained_by
from sweeps.launching.launch import output_folder, resolve
from sweeps.outlook.progress import Progress
from sweeps.running import tuning, worker
from sweeps.running.resources import Resources
from sweeps.running.worker import Setup, Worker
from sweeps.search.search import Search
from sweeps.spec.axes import Axes
from sweeps.spec.spec import Sweep, prototype
from tests.sweeps.alone import swept, without_ray
from tests.sweeps.test_worker import HereAndNow

pytestmark = pytest.mark.usefixtures("local_ray")
# Every worker of every sweep imports torch and Ray anew, which takes seconds.
ONE = Resources(workers=1)


def tiny(**changes: object) -> Sweep:
    """SGD on a small noisy quadratic: a trial takes milliseconds."""
    base = Sweep(
        name="tiny",
        trial=prototype(workload=Choice(name="noisy_quadratic", options={"dimension": 20})),
        axes=Axes(optimizers=(Choice(name="sgd"),), batch_sizes=(4, 32), seeds=(0, 1)),
        max_steps=300,
        max_examples=1000,
    )
    return resolve(base.replace(**changes), 0.2)


def files(folder: Path) -> dict[str, bytes]:
    """Bytes of every trial that was not pruned, clock facts excepted, and the status of every trial.

    Only where a pruned trial was stopped may depend on timing.
    """
    content: dict[str, bytes] = {}
    store = Store(folder)
    for result in store.results():
        content[result.trial_id] = result.status.encode()
        if result.status is not TrialStatus.PRUNED:
            for path in (store.trials / result.trial_id).glob("*.parquet"):
                content[f"{result.trial_id}/{path.name}"] = path.read_bytes()
    return content


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> Path:
    """An undisturbed sweep; copy it before changing it."""
    folder = tmp_path_factory.mktemp("reference") / "tiny"
    assert swept(tiny(), folder).done
    return folder


def copied(reference: Path, tmp_path: Path) -> Path:
    shutil.copytree(reference, tmp_path / "copy")
    return tmp_path / "copy"


def test_one_trial_after_the_other_leaves_the_same_bytes(reference, tmp_path):
    with without_ray():
        swept(tiny(), tmp_path)
    assert files(tmp_path) == files(reference) != {}


def test_a_finished_sweep_runs_nothing(reference, tmp_path):
    folder = copied(reference, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in folder.glob("trials/*/*")}
    manifest = (folder / "sweep.json").read_bytes()
    search = swept(tiny(), folder)
    assert (folder / "sweep.json").read_bytes() == manifest, "it was measured when its trials ran"
    assert {path: path.stat().st_mtime_ns for path in folder.glob("trials/*/*")} == before
    assert all(study.best for study in search.studies.values())


def test_what_is_missing_is_run_again_to_the_same_bytes(reference, tmp_path):
    folder = copied(reference, tmp_path)
    store = Store(folder)
    for trial_id in store.trial_ids()[::3]:
        shutil.rmtree(store.trials / trial_id)
    (store.trials / ".tmp-half-written").mkdir()
    with without_ray():
        search = swept(tiny(), folder)
    # what was lost is run again where the answer needs it, and the answer is the same
    assert files(folder).items() <= files(reference).items()
    whole = Search(tiny(), Store(reference).results())
    assert [s.best for s in search.studies.values()] == [s.best for s in whole.studies.values()]
    assert not list(store.trials.glob(".tmp-*"))


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(["merit", "schedule_free", "torch.radam"], id="one of each kind"),
        pytest.param(OPTIMIZERS.names(), id="every entry", marks=pytest.mark.slow),
    ],
)
def test_optimizers_join_a_folder_and_sweep_without_another_flag(names, reference, tmp_path):
    folder = copied(reference, tmp_path)
    optimizers = (*(Choice(name=name) for name in names), Choice(name="adamw", options={"eps": 1e-6}))
    with without_ray():
        search = swept(tiny(optimizers=optimizers, batch_sizes=(8,), lrs=(0.01,)), folder)
    assert {study.optimizer for study in search.studies} == {*names, "adamw(eps=1e-06)"}
    results = list(Store(folder).results())
    assert {result.config.optimizer.name for result in results} == {*names, "adamw", "sgd"}
    assert not [r for r in results if r.status in (TrialStatus.FAILED, TrialStatus.OUT_OF_MEMORY)]
    manifest = Store(folder).manifest()
    joined = ["sgd", *(name for name in names if name != "sgd"), "adamw(eps=1e-06)"]
    assert manifest["axes"]["optimizers"] == joined
    assert manifest["axes"]["batch_sizes"] == [4, 8, 32]
    assert len(manifest["runs"]) == 2


def by_a_worker(runs, *_):
    """What a worker of Ray does, in this process."""
    run = runs.run
    factor = run.search.sweep.prune_factor
    mine = Worker(
        Setup(store=str(run.store.root), path=str(Path.cwd()), threads=1, prune_factor=factor, silence=run.silence)
    )
    run.begin()
    while (started := run.next()) is not None:
        run.look_around()
        run.take_in(started[0], mine.run(started[0].to_dict(), started[1]))
    run.end()


def test_a_program_of_ones_own_is_swept_like_a_workload(tmp_path, monkeypatch):
    monkeypatch.setattr(tuning, "run_search", by_a_worker)
    monkeypatch.setattr(worker, "Child", HereAndNow)
    program = tmp_path / "program.py"
    program.write_text(
        "import json, sys\nbatch, lr, seed, out = sys.argv[1:]\n"
        "rate = min(float(lr), 0.6 - float(lr)) / (1 + 8 / int(batch))\n"
        "log = open(out + '/log.jsonl', 'w')\n"
        "for step in range(300): log.write(json.dumps({'step': step, 'loss': 4 * (1 - rate) ** step}) + '\\n')\n"
    )
    units = {"metric": "loss", "direction": "below", "metric_unit": "nats", "example_unit": "tree", "reads": "jsonl"}
    command = f"{sys.executable} -S {program} {{batch_size}} {{lr}} {{seed}} {{folder}}"
    asked = trained_by(ExternalTrainer(command=command, **units), tiny(lrs=(0.15, 0.3, 0.45), probe=None), 0.2, ())
    text = io.StringIO()
    console = Console(file=text, width=100, height=40, force_terminal=True)
    search = swept(resolve(asked), tmp_path / "own", resources=ONE, progress=Progress(console, 1))
    assert search.done
    for study in asked.studies():
        lr, steps = search.studies[study].best
        # where 4 (1 - rate)^s passes 0.2; the crossing is interpolated between whole steps
        assert (lr, steps) == (
            0.3,
            pytest.approx(math.log(20) / -math.log1p(-0.3 / (1 + 8 / study.batch_size)), rel=0.01),
        )
        assert f"{steps:.0f}" in text.getvalue()
    assert "left" in text.getvalue()
    assert "trials done" in text.getvalue()
    assert len(list((tmp_path / "own" / "runs").glob("*/log.jsonl"))) == len(Store(tmp_path / "own").trial_ids()) == 12


def test_a_folder_with_another_protocol_is_refused_and_left_alone(reference, tmp_path):
    folder = copied(reference, tmp_path)
    with pytest.raises(ResultsError, match="max_steps = 300, not 17"):
        swept(tiny(max_steps=17), folder)
    assert files(folder) == files(reference)


def test_the_default_folder_is_the_recipe_unless_the_protocol_was_changed():
    base = tiny()
    assert output_folder(base, base, Path("results")) == Path("results/tiny")
    assert output_folder(base.replace(seeds=(5,)), base, Path("results")) == Path("results/tiny")
    changed = output_folder(base.replace(max_steps=9), base, Path("results"))
    assert changed.name.startswith("tiny-")
    assert changed == output_folder(base.replace(max_steps=9), base, Path("results"))


@pytest.mark.slow
def test_pruning_changes_no_best_steps_where_the_same_learning_rates_are_tried(tmp_path):
    pruned = swept(tiny(method="grid"), tmp_path / "pruned", resources=ONE)
    with without_ray():
        full = swept(tiny(method="grid", prune_factor=None), tmp_path / "full")
    assert {c: pruned.best_steps(c) for c in pruned.cells()} == {c: full.best_steps(c) for c in full.cells()}

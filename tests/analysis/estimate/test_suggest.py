"""What to run next: the right trials, their worth, and a command that plans exactly them."""

import dataclasses
import json
import math
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from analysis.config import AnalysisConfig
from analysis.estimate.diagnosis import SUDDEN, Verdict, judge
from analysis.estimate.draws import Break
from analysis.estimate.estimates import answers
from analysis.estimate.result import Answer
from analysis.estimate.studies import Study
from analysis.estimate.suggest import Known, Suggestion, _beyond, suggest
from analysis.read.results import load
from cbs.training.run import run_trial
from cbs.trial.config import Choice, TrialConfig
from cbs.trial.record import TrialResult
from cbs.trial.store import Store
from cbs.trial.target import Target
from sweeps.folder.manifest import merged_manifest
from sweeps.launching.launch import resolve
from sweeps.recipes import RECIPES
from sweeps.search.search import Search
from sweeps.spec.overrides import override
from sweeps.spec.spec import UNRESOLVED, Sweep
from tests.factories import LRS, Truth, sweep
from tests.sweeps.simulation import simulate

ROOT = Path(__file__).resolve().parents[3]
SIZES = (2, 8, 32, 128, 512)
TARGET = ("--workload", "noisy_quadratic", "--target", "1.0", "--set", "max_steps=4000")


def answer(folder: Path, target: float | None = None) -> Answer:
    return answers(
        load(folder), AnalysisConfig(resamples=300), noise=False, targets=None if target is None else [target]
    )[0]


def planned(sizes: tuple[int, ...], seeds: int, lrs: tuple[float, ...] | None = None, value: float = 1.0) -> Sweep:
    """The sweep that ``cbs sweep`` makes of :data:`TARGET` and these axes."""
    base = RECIPES["default"]().replace(
        optimizers=(Choice(name="adamw"),), batch_sizes=sizes, seeds=tuple(range(seeds)), lrs=lrs
    )
    base = base.replace(workload=Choice(name="noisy_quadratic"), target=UNRESOLVED, expected=None)
    return resolve(override(base, ["max_steps=4000"]), value)


def finish(planned: Sweep, folder: Path, axes: str) -> None:
    """Run the search of a sweep on trials whose steps follow a known law."""
    command = f"cbs sweep --optim adamw {shlex.join(TARGET)} {axes} --workers 1 -o {shlex.quote(str(folder))} --json"
    go_on(planned, Store(folder), command, lambda config: simulate(config, None, None))


def go_on(planned: Sweep, store: Store, command: str, trained: Callable[[TrialConfig], TrialResult]) -> int:
    """Run the search of a sweep to its end; how many trials that took."""
    store.prepare()
    store.write_manifest(merged_manifest(store, planned, command))
    there = list(store.results())
    search = Search(planned, there)
    while (config := search.next()) is not None:
        result = trained(config)
        store.save(result)
        search.add(result)
    return len(list(store.results())) - len(there)


def dry_run(command: str) -> dict:
    """What the suggested line plans, run as a person would."""
    words = shlex.split(command)
    assert words[:2] == ["cbs", "sweep"]
    done = subprocess.run(
        [sys.executable, str(ROOT / "cli.py"), *words[1:], "--dry-run", "--json"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_a_short_sweep_is_told_to_go_on_and_the_command_plans_exactly_that(tmp_path: Path) -> None:
    folder = tmp_path / "a sweep"
    lrs = tuple(3.25e-4 * 2.0**power for power in range(7))
    finish(planned((1, 2, 4), 3, lrs), folder, f"--batch-sizes 1,2,4 --seeds 3 --lrs {','.join(map(str, lrs))}")
    found = suggest(answer(folder))
    assert found is not None
    assert found.batch_sizes == (16,)
    assert any("least above the present ones" in reason for reason in found.reasons)
    plan = dry_run(found.command)
    assert plan["axes"] == {
        "optimizers": ["adamw"],
        "batch_sizes": list(found.batch_sizes),
        "lrs": list(found.lrs),
        "seeds": list(found.seeds),
    }
    assert (plan["output"], plan["trials"], plan["trials_done"]) == (str(folder), found.trials, 0)
    assert found.trials == 3 * len(lrs)


@pytest.mark.slow
def test_more_seeds_in_a_searched_sweep_plan_the_cells_that_are_missing(tmp_path: Path) -> None:
    sizes = (4, 16, 64, 256)
    finish(planned(sizes, 1), tmp_path / "one", "--batch-sizes 4,16,64,256 --seeds 1")
    found = suggest(answer(tmp_path / "one"))
    assert found is not None
    assert (set(found.batch_sizes) >= set(sizes), found.seeds, found.lrs) == (True, (0, 1, 2), None)
    every = {(size, seed) for size in found.batch_sizes for seed in (0, 1, 2)}
    assert set(found.missing) == every - {(size, 0) for size in sizes}
    plan = dry_run(found.command)
    assert plan["axes"]["lrs"] is None
    # which learning rates further seeds need is known when they have run
    ran = go_on(
        planned(found.batch_sizes, 3),
        Store(tmp_path / "one"),
        found.command,
        lambda config: simulate(config, None, None),
    )
    assert plan["trials"] == pytest.approx(ran, rel=0.3)


@pytest.mark.slow
def test_the_suggested_trials_are_trained_and_join_the_sweep(tmp_path: Path) -> None:
    """Real training: what the suggested line plans is run and stored with the others."""
    settings = ["workload.dimension=20", "max_steps=300", "max_examples=1000", "probe=none"]
    base = RECIPES["default"]().replace(optimizers=(Choice(name="sgd"),), batch_sizes=(4, 8), seeds=(0,))
    base = base.replace(workload=Choice(name="noisy_quadratic"), target=UNRESOLVED, expected=None)
    start = resolve(override(base, settings), 0.2)
    flags = " ".join(f"--set {setting}" for setting in settings)
    command = f"cbs sweep --optim sgd --workload noisy_quadratic {flags} --target 0.2 --batch-sizes 4,8 --seeds 1"
    store = Store(tmp_path)
    go_on(start, store, command, run_trial)
    found = suggest(answer(tmp_path))
    assert found is not None
    again = start.replace(batch_sizes=found.batch_sizes, seeds=found.seeds)
    plan = dry_run(found.command)
    ran = go_on(again, store, found.command, run_trial)
    assert plan["trials"] == pytest.approx(ran, rel=0.5)
    grown = answer(tmp_path)
    assert {point.batch_size for point in grown.points} == {4, 8, *found.batch_sizes}
    assert {point.seeds for point in grown.points if point.batch_size in found.batch_sizes} == {3}


def healthy(folder: Path, seeds: int = 3, **changes: object) -> Answer:
    sweep(folder, {"adamw": Truth(noise=0.05)}, batch_sizes=SIZES, seeds=seeds, growth=1.3, **changes)
    return answer(folder)


def with_command(folder: Path, *commands: str, **changes: object) -> None:
    store = Store(folder)
    manifest = store.manifest() | {"runs": [{"command": command} for command in commands]} | changes
    manifest.pop("schema_version")
    store.write_manifest(manifest)


def test_a_healthy_sweep_is_told_the_cheapest_way_to_a_narrower_interval(tmp_path: Path) -> None:
    found = suggest(healthy(tmp_path))
    assert found is not None
    assert found.interval_factor is not None
    assert found.interval_factor < 1.0
    assert found.cost > 0
    assert (found.lrs, found.trials, found.command) == (None, None, "")
    assert "narrow the interval most per example" in found.reasons[0]
    json.dumps(found.to_json(), allow_nan=False)


@pytest.mark.parametrize(("kind", "below", "above", "between"), [("jump", 8, 32, (16,)), ("kink", 8, 128, (16, 64))])
def test_a_sudden_change_of_the_curve_gets_batch_sizes_in_its_gaps(
    tmp_path: Path, kind: str, below: float, above: float, between: tuple[int, ...]
) -> None:
    usual = healthy(tmp_path)
    for chance, asked in ((SUDDEN + 0.1, True), (SUDDEN, False)):
        doubts = dataclasses.replace(usual.doubts, sudden=Break(kind, below, above, chance))
        found = suggest(dataclasses.replace(usual, doubts=doubts))
        assert found is not None
        assert any("changes suddenly" in reason for reason in found.reasons) is asked
        if asked:
            assert (found.batch_sizes, found.seeds) == (between, (0, 1, 2))


def test_one_seed_is_filled_up_everywhere_and_two_are_enough_for_the_verdict(tmp_path: Path) -> None:
    one = healthy(tmp_path / "one", seeds=1)
    found = suggest(one)
    assert found is not None
    assert (set(found.batch_sizes) >= set(SIZES), found.seeds) == (True, (0, 1, 2))
    assert set(found.missing) >= {(size, seed) for size in SIZES for seed in (1, 2)}
    alone = suggest(one, 0.01, (0,))
    assert alone is not None
    assert (alone.seeds, set(alone.batch_sizes) & set(SIZES)) == ((0,), set())  # only new batch sizes can help
    for command, more in (("train.py {lr}", False), ("train.py {lr} {seed}", True)):  # of a program of the user
        group = dataclasses.replace(one.group, workload_options={"command": command})
        program = suggest(dataclasses.replace(one, group=group), 0.01)
        assert program is not None
        assert (len(program.seeds) > 1) is more
        assert ("no {seed}" in judge(one.points, one.doubts, "", "", seeded=group.seeded)[1]) is not more
    two = suggest(healthy(tmp_path / "two", seeds=2))
    assert two is not None
    assert not any("noise between seeds" in reason for reason in two.reasons)


def test_learning_rates_beyond_an_edge(tmp_path: Path) -> None:
    found = suggest(healthy(tmp_path, lrs=LRS[:2]))
    assert found is not None
    assert found.lrs is not None
    assert set(found.lrs) >= {2e-3, 4e-3, *LRS[:2]}
    new = set(found.batch_sizes) - set(SIZES)
    assert found.trials == sum(3 * len(found.lrs if size in new else {2e-3, 4e-3}) for size in found.batch_sizes)
    assert any("beyond the edge" in reason for reason in found.reasons)


def test_beyond_an_edge_a_search_goes_on_or_starts_at_another_target_from_what_is_known(tmp_path: Path) -> None:
    """A list of every learning rate at every batch size would take several times the trials of a search."""
    folder = tmp_path / "mine"
    healthy(folder, seeds=2, lrs=LRS[:2])
    command = "cbs sweep --optim adamw --target 2.4 --from old --set lr_resolution=1.1"
    with_command(folder, command, axes={"lrs": None, "batch_sizes": [*SIZES, 1024], "seeds": [0, 1]})
    found = suggest(answer(folder))
    assert found is not None
    assert (
        found.command
        == f"{command.replace(' --optim adamw', '')} --optim adamw --batch-sizes 2,8,32,128,512,1024 "
        + (f"--seeds 0,1 --output {folder}")
    )
    assert found.reasons == (
        "learning rates beyond the edge at batch size 2, 8, 32, 128, 512: the search there has not ended",
    )
    assert set(found.missing) == {(size, seed) for size in (*SIZES, 1024) for seed in (0, 1)}
    other = answer(folder, target=2.8)
    found = suggest(other)
    assert found is not None
    assert (found.batch_sizes, found.seeds, found.lrs) == (SIZES, (0, 1), None)
    assert set(found.missing) == {(size, seed) for size in SIZES for seed in (0, 1)}
    assert found.command == (
        "cbs sweep --set lr_resolution=1.1 --optim adamw --batch-sizes 2,8,32,128,512 --seeds 0,1 "
        f"--target 2.8 --from {folder} --output {folder}-at-2.8"
    )
    steps = {point.batch_size: point.steps_to_target for point in other.points}
    assert found.cost == pytest.approx(sum(2 * 3 * size * steps[size] for size in SIZES), rel=0.2)


@pytest.mark.parametrize("given", [{"lrs": list(LRS[:2])}, {"lrs": None, "lr_rule": ["sqrt:0.001@4"]}])
def test_who_says_learning_rates_gets_those_beyond_an_edge_listed(tmp_path: Path, given: dict[str, object]) -> None:
    healthy(tmp_path, seeds=2, lrs=LRS[:2])
    with_command(tmp_path, "cbs sweep --optim adamw --target 2.4", axes=given)
    found = suggest(answer(tmp_path, target=2.8))
    assert found is not None
    assert found.lrs is not None


def test_a_learning_rate_that_another_batch_size_tried_is_not_asked_for_a_second_time(tmp_path: Path) -> None:
    """Rates beyond an edge are rounded, those tried are 1e-3 times a root of 2."""
    roots = tuple(1e-3 * 2 ** (power / 2) for power in range(4))
    found = healthy(tmp_path, lrs=roots)
    known = Known(found)
    known.edges = {8: (0.00141421, 0.00282843, 0.004)}
    rates = known.rates(SIZES)
    assert rates is not None
    assert rates == (*roots, 0.004)


def test_a_learning_rate_lost_to_its_machine_is_no_neighbour_of_an_edge() -> None:
    """The best of what ended lies at the edge, so the one that was lost is asked for again, and those beyond."""
    steps = np.array([[300.0], [200.0], [math.nan]])
    status = np.array([["REACHED"], ["REACHED"], ["FAILED"]], dtype=object)
    bound, zero = np.full((3, 1), math.nan), np.zeros((3, 1))
    lost = Study(8, np.array([1e-3, 2e-3, 4e-3]), np.zeros(1), steps, status, bound, zero, zero)
    assert _beyond(lost, 2e-3)[0] == 4e-3
    diverged = dataclasses.replace(lost, status=np.where(status == "FAILED", "DIVERGED", status))
    assert _beyond(diverged, 2e-3) == ()


def test_another_target_that_was_evaluated_too_rarely_gets_a_sweep_of_its_own(tmp_path: Path) -> None:
    """Runs that are added here would be evaluated as rarely; at the sweep's own target no command helps."""
    folder = tmp_path / "mine"
    sweep(folder, batch_sizes=SIZES, seeds=2, growth=2.0)
    with_command(folder, "cbs sweep --optim adamw", axes={"lrs": None, "batch_sizes": [*SIZES], "seeds": [0, 1]})
    assert suggest(answer(folder)) is None
    found = suggest(answer(folder, target=2.8))
    assert found is not None
    assert found.reasons == ("a sweep at this target, which evaluates often near it",)
    assert found.command.endswith(f"--target 2.8 --from {folder} --output {folder}-at-2.8")


def test_where_the_warmup_decides_a_sweep_with_half_of_it_is_next(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    healthy(folder, seeds=2)
    protocol = {"schedule": {"warmup_steps": 10, "warmup_examples": None}}
    with_command(folder, "cbs sweep --optim adamw --set schedule.warmup_steps=10", protocol=protocol)
    doubted = dataclasses.replace(answer(folder), verdict=Verdict.IN_WARMUP)
    found = suggest(doubted)
    assert found is not None
    assert found.command == (
        "cbs sweep --optim adamw --batch-sizes 2,8,32,128,512 --seeds 0,1 --set schedule.warmup_steps=5 "
        f"--from {folder} --output {folder}-short-warmup"
    )
    going_on = suggest(doubted, goal=0.2)
    assert going_on is None or "warmup_steps=5" not in going_on.command


def test_nothing_is_suggested_where_more_of_the_same_would_not_reach_the_target(tmp_path: Path) -> None:
    sweep(tmp_path, batch_sizes=SIZES, max_steps=100, growth=1.3)
    assert suggest(answer(tmp_path)) is None


def test_one_batch_size_gets_neighbours(tmp_path: Path) -> None:
    sweep(tmp_path, batch_sizes=(16,), seeds=3, growth=1.3)
    found = suggest(answer(tmp_path))
    assert found is not None
    assert found.batch_sizes == (4, 64)
    assert found.interval_factor is None


def test_no_batch_sizes_beyond_those_that_missed_the_target(tmp_path: Path) -> None:
    sweep(tmp_path, {"adamw": Truth(noise=0.05)}, batch_sizes=(1, 4, 8, 16), seeds=3, max_steps=4000, growth=1.3)
    found = suggest(answer(tmp_path))
    assert found is not None
    assert min(found.batch_sizes) >= 4


def test_a_target_of_another_value_keeps_the_own_one_of_the_sweep(tmp_path: Path) -> None:
    healthy(tmp_path, seeds=2)
    with_command(tmp_path, "cbs sweep --recipe quick --target 2.4 --optim adamw")
    found = suggest(answer(tmp_path, target=2.8))
    assert isinstance(found, Suggestion)
    assert "--target 2.4" in found.command
    assert found.target == dataclasses.replace(Target(metric="validation_loss", value=2.4), value=2.8)

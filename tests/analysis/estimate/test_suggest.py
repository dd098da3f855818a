"""What to run next: the right trials, their worth, and a command that plans exactly them."""

import dataclasses
import json
import math
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import PropertyMock, patch

import numpy as np
import pytest

from analysis.config import AnalysisConfig
from analysis.estimate.diagnosis import SUDDEN, Verdict, judge
from analysis.estimate.draws import Break
from analysis.estimate.estimates import answers
from analysis.estimate.noise import NoiseScale
from analysis.estimate.result import Answer
from analysis.estimate.studies import Study
from analysis.estimate.suggest import suggest
from analysis.estimate.suggest.design import MOST
from analysis.estimate.suggest.known import BEYOND, LEAST_OPEN, OPEN, Known, _beyond
from analysis.read.results import load
from cbs.trial.config import Choice, TrialConfig
from cbs.trial.record import TrialResult
from cbs.trial.store import Store
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
        assert any("changes suddenly" in reason for reason in found.reasons) is asked
        if asked:
            assert (found.batch_sizes, found.seeds) == (between, (0, 1, 2))


def test_one_seed_is_filled_up_everywhere_and_two_are_enough_for_the_verdict(tmp_path: Path) -> None:
    one = healthy(tmp_path / "one", seeds=1)
    found = suggest(one)
    assert (set(found.batch_sizes) >= set(SIZES), found.seeds) == (True, (0, 1, 2))
    assert set(found.missing) >= {(size, seed) for size in SIZES for seed in (1, 2)}
    alone = suggest(one, 0.01, (0,))
    assert (alone.seeds, set(alone.batch_sizes) & set(SIZES)) == ((0,), set())  # only new batch sizes can help
    for command, more in (("train.py {lr}", False), ("train.py {lr} {seed}", True)):  # of a program of the user
        group = dataclasses.replace(one.group, workload_options={"command": command})
        program = suggest(dataclasses.replace(one, group=group), 0.01)
        assert (len(program.seeds) > 1) is more
        assert ("no {seed}" in judge(one.points, one.doubts, "", "", seeded=group.seeded)[1]) is not more
    two = suggest(healthy(tmp_path / "two", seeds=2))
    assert not any("noise between seeds" in reason for reason in two.reasons)


def test_beyond_an_edge_a_search_goes_on_or_starts_at_another_target_from_what_is_known(tmp_path: Path) -> None:
    """A list of every learning rate at every batch size would take several times the trials of a search."""
    folder = tmp_path / "mine"
    healthy(folder, seeds=2, lrs=LRS[:2])
    command = "cbs sweep --optim adamw --target 2.4 --from old --set lr_resolution=1.1"
    with_command(folder, command, axes={"lrs": None, "batch_sizes": [*SIZES, 1024], "seeds": [0, 1]})
    found = suggest(answer(folder))
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
    """Runs that are added here would be evaluated as rarely."""
    folder = tmp_path / "mine"
    sweep(folder, batch_sizes=SIZES, seeds=2, growth=2.0)
    with_command(folder, "cbs sweep --optim adamw", axes={"lrs": None, "batch_sizes": [*SIZES], "seeds": [0, 1]})
    assert suggest(answer(folder)) is None
    found = suggest(answer(folder, target=2.8))
    assert found.reasons == ("a sweep at this target, which evaluates often near it",)
    assert found.command.endswith(f"--target 2.8 --from {folder} --output {folder}-at-2.8")


def test_a_target_that_was_evaluated_too_rarely_gets_a_sweep_that_evaluates_more_often(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    sweep(folder, batch_sizes=SIZES, seeds=2, growth=2.0)
    with_command(folder, "cbs sweep --optim adamw", protocol={"evaluation": {"far_growth": 1.6}})
    found = suggest(answer(folder))
    assert found.reasons == ("a sweep that evaluates more often",)
    assert found.command.endswith(f"--set evaluation.far_growth=1.1 --from {folder} --output {folder}-often-evaluated")
    with_command(folder, "cbs sweep --optim adamw", protocol={"evaluation": {"far_growth": 1.1}})
    assert suggest(answer(folder)) is None


def test_where_the_warmup_decides_a_sweep_with_half_of_it_is_next(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    healthy(folder, seeds=2)
    protocol = {"schedule": {"warmup_steps": 10, "warmup_examples": None}}
    with_command(folder, "cbs sweep --optim adamw --set schedule.warmup_steps=10", protocol=protocol)
    doubted = dataclasses.replace(answer(folder), verdict=Verdict.IN_WARMUP)
    found = suggest(doubted)
    assert found.command == (
        "cbs sweep --optim adamw --batch-sizes 2,8,32,128,512 --seeds 0,1 --set schedule.warmup_steps=5 "
        f"--from {folder} --output {folder}-short-warmup"
    )
    going_on = suggest(doubted, goal=0.2)
    assert going_on is None or "warmup_steps=5" not in going_on.command


def test_nothing_is_suggested_where_more_of_the_same_would_not_reach_the_target(tmp_path: Path) -> None:
    sweep(tmp_path, batch_sizes=SIZES, max_steps=100, growth=1.3)
    assert suggest(answer(tmp_path)) is None


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Answer:
    """Five batch sizes around the answer."""
    folder = tmp_path_factory.mktemp("measured")
    sweep(folder, {"adamw": Truth(noise=0.1)}, batch_sizes=(2, 8, 32, 128, 512), seeds=3, growth=1.3)
    return answers(load(folder), AnalysisConfig(resamples=300), noise=False)[0]


@pytest.mark.parametrize(
    ("noise", "sides"),
    [
        (3.0, ([4], [])),
        (-2.0, ([4], [])),
        (60.0, ([], [64])),
        # more than a factor of 16 away: a stride of 16
        (300.0, ([], [256])),
        (None, ([4], [64])),
    ],
)
def test_the_noise_scale_says_where_a_single_batch_size_goes_on(
    noise: float | None, sides: tuple[list[int], list[int]], tmp_path: Path
) -> None:
    sweep(tmp_path, batch_sizes=(16,), seeds=1, growth=1.3)
    (answer,) = answers(load(tmp_path), AnalysisConfig(resamples=300), noise=False)
    with patch.object(Answer, "noise_scale", PropertyMock(return_value=NoiseScale(value=noise))):
        assert Known(answer).sides(OPEN) == sides


@pytest.mark.parametrize(
    ("beyond", "sides"),
    [
        ((OPEN - 0.01, 0.1), ([], [])),
        ((OPEN + 0.01, 0.1), ([1], [])),
        ((0.1, OPEN + 0.01), ([], [2048])),
        ((0.45, 0.55), ([], [2048])),
    ],
)
def test_it_goes_outwards_on_the_side_where_the_answer_more_probably_lies(
    beyond: tuple[float, float], sides: tuple[list[int], list[int]], measured: Answer
) -> None:
    assert OPEN < 0.45 < BEYOND
    with patch.object(Known, "_beyond", return_value=beyond):
        assert Known(measured).sides(OPEN) == sides


def test_an_end_that_runs_at_the_measured_batch_sizes_do_not_close_is_looked_for_beyond_them(measured: Answer) -> None:
    with (
        patch.object(Known, "_beyond", return_value=(LEAST_OPEN, OPEN - 0.1)),
        patch.object(Known, "most_for_its_cost", return_value=None),
    ):
        assert Known(measured).asked_for() is None
        wished = suggest(measured)
    assert max(wished.batch_sizes) == 2048
    with patch.object(Known, "_beyond", return_value=(LEAST_OPEN, OPEN - 0.1)):
        assert max(suggest(measured).batch_sizes) < 2048
        assert max(suggest(measured, outwards=True).batch_sizes) == 2048


def test_seeds_are_no_help_where_the_answer_lies_beyond(measured: Answer) -> None:
    known = Known(measured, 0.01)
    for chance, helps in ((BEYOND - 0.01, True), (BEYOND + 0.01, False)):
        with patch.object(Known, "_beyond", return_value=(0.0, chance)):
            assert (known.most_for_its_cost() is not None) is helps


def test_busy_workers_get_as_many_runs_as_they_can_take(measured: Answer) -> None:
    few, many = suggest(measured, 0.01), suggest(measured, 0.01, most=4 * MOST, least=4 * MOST)
    assert len(few.missing) <= MOST
    assert len(many.missing) == 4 * MOST


def test_only_the_seeds_that_may_be_used(measured: Answer) -> None:
    assert Known(measured).seeds_up_to(5) == (0, 1, 2, 3, 4)
    assert Known(measured, allowed=(0, 1, 2, 9)).seeds_up_to(5) == (0, 1, 2, 9)
    found = suggest(measured, 0.01, seeds=(0, 1, 2))
    assert found is None or found.seeds == (0, 1, 2)

"""What to run next: the right trials, their worth, and a command that plans exactly them."""

from __future__ import annotations

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
import typer

import cli
from analysis.config import AnalysisConfig
from analysis.estimate.diagnosis import MAY_FALL
from analysis.estimate.estimates import answers
from analysis.estimate.fitting import fit_curve
from analysis.estimate.fitting.bend import Bend
from analysis.estimate.fitting.data import Trials
from analysis.estimate.fitting.form_fits import widening
from analysis.estimate.fitting.least_squares import Exponent
from analysis.estimate.fitting.other_forms import OtherForms
from analysis.estimate.result import Answer
from analysis.estimate.studies import Study
from analysis.estimate.suggest import Suggestion, _beyond, _rates, _sides, suggest
from analysis.estimate.suggest.design import GOAL, best_per_example, variance, width_factor
from analysis.estimate.suggest.earlier_command import SWITCHES, adding, parsed
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
from sweeps.spec.spec import Sweep
from tests.factories import LRS, Truth, sweep, tables
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
    base = base.replace(workload=Choice(name="noisy_quadratic"), target=None, expected=None)
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
    assert found.batch_sizes == (8, 16)
    assert any("saturating part" in reason for reason in found.reasons)
    plan = dry_run(found.command)
    assert plan["axes"] == {
        "optimizers": ["adamw"],
        "batch_sizes": list(found.batch_sizes),
        "lrs": list(found.lrs),
        "seeds": list(found.seeds),
    }
    assert (plan["output"], plan["trials"], plan["trials_done"]) == (str(folder), found.trials, 0)
    assert found.trials == 2 * 3 * len(lrs)


@pytest.mark.slow
def test_more_seeds_in_a_searched_sweep_plan_the_cells_that_are_missing(tmp_path: Path) -> None:
    sizes = (4, 16, 64, 256)
    finish(planned(sizes, 1), tmp_path / "one", "--batch-sizes 4,16,64,256 --seeds 1")
    found = suggest(answer(tmp_path / "one"))
    assert found is not None
    # one seed leaves the interval so wide that sizes beyond the measured ones are asked for, too
    assert (found.batch_sizes, found.seeds, found.lrs) == ((1, *sizes, 1024), (0, 1, 2), None)
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
    base = base.replace(workload=Choice(name="noisy_quadratic"), target=None, expected=None)
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
    assert plan["trials"] == pytest.approx(ran, rel=0.3)
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
    sure = healthy(tmp_path)
    found = suggest(dataclasses.replace(sure, doubts=dataclasses.replace(sure.doubts, forms=None)))
    assert found is not None
    assert found.interval_factor is not None
    assert found.interval_factor < 1.0
    assert found.cost > 0
    assert (found.lrs, found.trials, found.command) == (None, None, "")
    assert "narrow the interval most per example" in found.reasons[0]
    json.dumps(found.to_json(), allow_nan=False)


def test_batch_sizes_that_tell_the_form_are_asked_for_where_the_verdict_is_that_it_matters(tmp_path: Path) -> None:
    unsure = healthy(tmp_path)
    told, falls = OtherForms(deciding=(1, 2048)), Bend(MAY_FALL + 0.01, 0.1, 1.1, 0.8)
    found = suggest(dataclasses.replace(unsure, doubts=dataclasses.replace(unsure.doubts, forms=told, bend=falls)))
    assert found is not None
    assert found.batch_sizes == (1, 2048)
    assert found.reasons == ("batch sizes 1, 2048: forms of the curve that fit as well differ most there",)


def test_an_exponent_from_the_prior_gets_batch_sizes_in_between(tmp_path: Path) -> None:
    sweep(tmp_path, {"adamw": Truth(noise=0.05)}, batch_sizes=(4, 32, 256), seeds=3, growth=1.3)
    found = suggest(answer(tmp_path))
    assert found is not None
    assert {11, 91} <= set(found.batch_sizes)
    assert any("hardly determine the exponent" in reason for reason in found.reasons)


def test_one_seed_is_filled_up_everywhere_and_two_are_enough_for_the_verdict(tmp_path: Path) -> None:
    found = suggest(healthy(tmp_path / "one", seeds=1))
    assert found is not None
    assert (set(found.batch_sizes) >= set(SIZES), found.seeds) == (True, (0, 1, 2))
    assert set(found.missing) >= {(size, seed) for size in SIZES for seed in (1, 2)}
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
        "the best learning rate is at the edge of the grid at batch size 2, 8, 32, 128, 512: its search has not ended",
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
    rates = _rates(found, SIZES, {8: (0.00141421, 0.00282843, 0.004)})
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


def test_nothing_is_suggested_where_more_of_the_same_would_not_reach_the_target(tmp_path: Path) -> None:
    sweep(tmp_path, batch_sizes=SIZES, max_steps=100, growth=1.3)
    assert suggest(answer(tmp_path)) is None


def test_one_batch_size_gets_neighbours(tmp_path: Path) -> None:
    sweep(tmp_path, batch_sizes=(16,), seeds=3, growth=1.3)
    found = suggest(answer(tmp_path))
    assert found is not None
    assert found.batch_sizes == (4, 8, 32, 64)
    assert found.interval_factor is None


def test_no_batch_sizes_beyond_those_that_missed_the_target(tmp_path: Path) -> None:
    sweep(tmp_path, {"adamw": Truth(noise=0.05)}, batch_sizes=(1, 4, 8, 16), seeds=3, max_steps=4000, growth=1.3)
    found = suggest(answer(tmp_path))
    assert found is not None
    assert min(found.batch_sizes) >= 4


def test_the_earlier_command_with_other_axes(tmp_path: Path) -> None:
    sweep(tmp_path, batch_sizes=(4,), growth=1.5)
    with_command(
        tmp_path,
        "cbs sweep --optim adamw --recipe quick --precision .1 --max-time=2h --set adamw.eps=1e-6 -oout --json",
        "cbs sweep --optim=muon --optim torch.adam --recipe quick --set muon.beta=0.9 --set torch.adam.eps=1 --dry-run",
        "python other.py",
    )
    muon = Choice(name="muon", options={"beta": 0.9})
    line = adding(Store(tmp_path).manifest(), tmp_path, muon, (4, 8), (0, 1), (1e-3, 0.5))
    expected = "cbs sweep --recipe quick --optim 'muon(beta=0.9)' --batch-sizes 4,8 --seeds 0,1 --lrs 0.001,0.5"
    assert line == f"{expected} --output {tmp_path}"
    alone = adding(Store(tmp_path).manifest(), tmp_path, Choice(name="adamw", options={"eps": 1e-6}), (4,), (3,), None)
    assert "--optim 'adamw(eps=1e-06)'" in alone
    assert "--set" not in alone
    assert "--precision" not in alone
    assert "--max-time" not in alone
    assert "--seeds 3," in alone
    assert "muon" not in alone


def test_a_variant_is_said_whole_whatever_settings_there_were(tmp_path: Path) -> None:
    sweep(tmp_path, batch_sizes=(4,), growth=1.5)
    with_command(
        tmp_path,
        "cbs sweep --optim 'muon(nesterov=false)' --optim muon --set optimizer.native=false --set max_steps=9 "
        "--set muon.momentum=.9",
    )
    variant = Choice(name="muon", options={"nesterov": False, "momentum": 0.9})
    line = adding(Store(tmp_path).manifest(), tmp_path, variant, (4,), (0, 1), None)
    assert line.startswith("cbs sweep --set max_steps=9 --optim 'muon(momentum=0.9, nesterov=false)' --batch-sizes 4")
    assert "native" not in line


def test_a_search_is_said_only_where_learning_rates_are_not_listed(tmp_path: Path) -> None:
    sweep(tmp_path, batch_sizes=(4,), growth=1.5)
    with_command(tmp_path, "cbs sweep --optim adamw --set lr_resolution=1.1 --set policy=once --from other")
    searched, listed = (
        adding(Store(tmp_path).manifest(), tmp_path, Choice(name="adamw"), (4,), (0, 1), lrs) for lrs in (None, (1e-3,))
    )
    assert searched.startswith("cbs sweep --set lr_resolution=1.1 --from other --optim adamw")
    assert listed.startswith("cbs sweep --optim adamw --batch-sizes 4")


def test_a_switch_takes_no_value_with_it(tmp_path: Path) -> None:
    sweep(tmp_path, batch_sizes=(4,), growth=1.5)
    with_command(tmp_path, "cbs sweep --workers-per-trial 4 --set shard=true --auto --optim adamw --batch-sizes 4..64")
    line = adding(Store(tmp_path).manifest(), tmp_path, Choice(name="adamw"), (8,), (0, 1), None)
    expected = "cbs sweep --workers-per-trial 4 --set shard=true --optim adamw --batch-sizes 8 --seeds 0,1"
    assert line == f"{expected} --output {tmp_path}"


def test_every_option_without_a_value_is_known_as_one() -> None:
    command = typer.main.get_command(cli.application("sweep")).commands["sweep"]  # type: ignore[attr-defined]
    assert {name for each in command.params if each.is_flag for name in each.opts} <= {*SWITCHES, "--help", "-h"}


def test_more_trials_of_a_width_are_not_another_telescope(tmp_path: Path) -> None:
    sweep(tmp_path, batch_sizes=(4,), growth=1.5)
    options = {"parametrization": "mup", "width": 32}
    with_command(
        tmp_path,
        "cbs sweep --optim adamw --set 'policy=telescope(widths=16..128)' --set workload.parametrization=mup -o there",
        protocol={"prune_factor": 1.3, "workload": {"name": "text", "options": options}},
    )
    line = adding(Store(tmp_path).manifest(), tmp_path, Choice(name="adamw"), (8,), (0, 1), (1e-3,))
    assert line.startswith(
        "cbs sweep --set workload.parametrization=mup --set workload.width=32 --optim adamw --batch-sizes 8"
    )


@pytest.mark.parametrize(("first", "smaller"), [(3, [1]), (5, [1, 2]), (6, [1, 3]), (1, []), (2, [1]), (16, [4, 8])])
def test_smaller_batch_sizes_need_not_be_powers_of_two(tmp_path: Path, first: int, smaller: list[int]) -> None:
    sweep(tmp_path, batch_sizes=(first,), seeds=3, growth=1.3)
    assert _sides(answer(tmp_path), [first])[0] == smaller


def test_imported_runs_have_no_command(tmp_path: Path) -> None:
    sweep(tmp_path, batch_sizes=(4,), growth=1.5)
    with_command(tmp_path, "cbs sweep --recipe quick")
    assert adding(Store(tmp_path).manifest(), tmp_path, Choice(name="adamw"), (4,), (0,), None)
    with_command(tmp_path, "cbs sweep --recipe quick", imported={"from": "table.csv"})
    assert adding(Store(tmp_path).manifest(), tmp_path, Choice(name="adamw"), (4,), (0,), None) == ""


def test_other_commands_are_not_taken_for_a_sweep() -> None:
    assert parsed("cbs analyze results") is None
    assert parsed("") is None
    assert parsed("cbs sweep --seeds=3 -o a") == [("--seeds", "3"), ("--output", "a")]


def test_the_design_predicts_the_variance_of_the_fit() -> None:
    """Against the scatter of the resamples themselves, which Student's t widens; 2000 draws know a standard deviation
    to 1.6 %, and linearising costs a few percent more."""
    sizes = np.array(SIZES)
    found = tables(Truth(noise=0.02, lr_power=0.0), sizes, 3, lrs=(5e-4, 1e-3, 2e-3))
    fit = fit_curve(sizes, [Trials.of(table) for table in found], config=AnalysisConfig(resamples=2000))
    scatter = np.std(fit.resampled_log_steps - fit.estimate.log_steps(fit.batch_sizes), axis=0)
    wide = widening(fit.freedom, 0.95)
    assert np.mean(scatter**2 * fit.weights) == pytest.approx((wide * fit.deviation) ** 2, rel=0.08)
    measured = np.std(np.log(fit.resampled_power.critical))
    # the design takes all batch sizes for equally noisy, the resamples do not
    assert measured == pytest.approx(fit.deviation * math.sqrt(variance(fit)) * wide, rel=0.2)


def test_twice_the_seeds_halve_what_the_belief_leaves_open_and_the_choice_meets_its_goal() -> None:
    sizes = np.array(SIZES)
    fit = fit_curve(sizes, [Trials.of(table) for table in tables(Truth(noise=0.05), sizes, 3)])
    free = dataclasses.replace(fit, exponent=Exponent())
    assert variance(free, SIZES, [3] * 5) == pytest.approx(variance(free) / 2)
    assert variance(free) / 2 < variance(fit) / 2 < variance(fit, SIZES, [3] * 5) < variance(fit) or (
        variance(fit) / 2 < variance(fit, SIZES, [3] * 5) < variance(free) / 2
    )
    factor = width_factor(fit, SIZES, [3] * 5, 0.95)
    assert factor is not None
    assert 0.9 / math.sqrt(2) < factor < 1.0
    chosen = best_per_example(fit, [1, 1024, *SIZES], 3)
    assert math.sqrt(variance(fit, chosen, [3] * len(chosen)) / variance(fit)) <= GOAL


def test_a_target_of_another_value_keeps_the_own_one_of_the_sweep(tmp_path: Path) -> None:
    healthy(tmp_path, seeds=2)
    with_command(tmp_path, "cbs sweep --recipe quick --target 2.4 --optim adamw")
    found = suggest(answer(tmp_path, target=2.8))
    assert isinstance(found, Suggestion)
    assert "--target 2.4" in found.command
    assert found.target == dataclasses.replace(Target(metric="validation_loss", value=2.4), value=2.8)

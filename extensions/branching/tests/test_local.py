"""``cbs local``: branches whose k* is known, from a folder to tables, files and figures."""

import dataclasses
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.config import AnalysisConfig
from analysis.estimate.diagnosis import Verdict
from analysis.read.results import load
from cbs.errors import ConfigError, ResultsError
from cbs.trial.record import TrialStatus
from cbs.trial.store import Store
from extensions.branching.checkpoints import number_of
from extensions.branching.local_batch_sizes import LocalBatchSizes, LocalScope, local
from extensions.branching.reading import Branched, TunedBranches, tuned
from extensions.branching.tables import checkpoints
from tests.branched_runs import BASE, FACTORS, WINDOW, critical, excess, write
from tests.factories import Truth, inside, sweep
from tests.test_malicious import edit

FAST = AnalysisConfig(resamples=400)
CHECKPOINTS = (10_000, 40_000, 160_000)


def true(examples: float, at: float | None = None, tolerance: float = 0.01) -> float:
    """The local critical batch size: where the excess is the tolerance above that of the smallest branch."""
    star = at or critical(examples)
    return BASE * star * ((tolerance + excess(FACTORS[0], star)) / 0.01) ** (1 / 1.5)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("one")
    write(root)
    return root


@pytest.fixture(scope="module")
def answered(one: Path) -> LocalBatchSizes:
    return local(one, config=FAST, noise_share=0.0)


def only(found: LocalBatchSizes) -> LocalScope:
    (scope,) = found.scopes
    return scope


def test_every_checkpoint_has_its_local_critical_batch_size(answered: LocalBatchSizes) -> None:
    (curve,) = only(answered).curves
    assert [each.examples for each in curve.checkpoints] == list(CHECKPOINTS)
    for each in curve.checkpoints:
        assert each.critical_batch_size.value == pytest.approx(true(each.examples), rel=0.25)
        assert inside(each.critical_batch_size.interval, true(each.examples))
        assert (each.batch_size, each.branches, each.window) == (BASE, 28, WINDOW)
        assert each.loss == pytest.approx(3.0 + 0.5 * math.log10(160_000 / each.examples))
        assert each.verdict is Verdict.OK
        assert each.published.interval[0] == BASE * each.published_factor
        assert each.published.interval[1] == 2 * BASE * each.published_factor


def test_the_noise_scale_stands_beside_with_its_ratio(answered: LocalBatchSizes) -> None:
    for each in only(answered).curves[0].checkpoints:
        assert each.noise_scale.value == pytest.approx(50.0, rel=0.1)
        ratio = each.noise_scale_ratio
        assert ratio.value == pytest.approx(each.noise_scale.value / each.critical_batch_size.value)
        assert ratio.interval[0] < ratio.value < ratio.interval[1]
    headings = [column.heading for column in checkpoints(answered).shown(wide=True).columns]
    assert "B_simple / B_local" in headings
    assert "B_matched" not in headings


def test_the_time_average_is_that_of_the_curve_and_of_its_power_law(answered: LocalBatchSizes) -> None:
    (curve,) = only(answered).curves
    values = [each.critical_batch_size.value for each in curve.checkpoints]
    halves = [(values[0] + values[1]) / 2 * 30_000, (values[1] + values[2]) / 2 * 120_000]
    assert curve.average.value == pytest.approx(sum(halves) / 150_000)
    assert inside(curve.exponent.interval, 0.5)
    assert inside(curve.power_average.interval, BASE * critical(160_000) / 1.5)
    last = curve.power_average.value * (curve.exponent.value + 1)
    assert last == pytest.approx(true(160_000), rel=0.3)


@pytest.mark.parametrize(
    ("options", "verdict", "advice"),
    [
        ({"at": lambda *_: 400.0}, Verdict.NONE_LOST, "try factors above 16"),
        ({"at": lambda *_: 0.25}, Verdict.ALL_LOST, "try factors below 1/4"),
        ({"seeds": 1}, Verdict.TOO_FEW_SEEDS, "3 seeds or more"),
        ({"slow": 0.5, "noise": 0.0003}, Verdict.SHORT_WINDOW, "double the window"),
        ({"slow": 2.0, "noise": 0.0003}, Verdict.SHORT_WINDOW, "double the window"),
        ({"noise": 0.06, "seeds": 2}, Verdict.UNTOLD, "more seeds"),
        ({"at": lambda *_: 17.0, "noise": 0.004, "seed": 2}, Verdict.UNTOLD, "more seeds, and factors above 16"),
        ({"at": lambda *_: 0.35, "noise": 0.02, "seed": 2}, Verdict.UNTOLD, "more seeds, and factors below 1/4"),
        ({"diverged": lambda factor: True}, Verdict.UNTOLD, "lower the learning rate"),
        ({"at": lambda *_: 0.6}, Verdict.OK, "still falls towards factors below 1/4"),
        ({"lr_factors": (0.5, 1.0)}, Verdict.OK, "at the edge"),
    ],
)
def test_the_verdict_says_what_is_wrong_and_what_to_do(
    options: dict[str, object], verdict: Verdict, advice: str, tmp_path: Path
) -> None:
    options = {"checkpoints": (40_000,), "noise": 0.0008} | options
    write(tmp_path, **options)  # type: ignore[arg-type]
    (each,) = only(local(tmp_path, config=FAST, noise_share=0.0)).curves[0].checkpoints
    assert each.verdict is verdict
    assert advice in each.advice


def test_losses_that_scatter_near_divergence_are_not_taken_for_sound(tmp_path: Path) -> None:
    write(tmp_path, checkpoints=(40_000,), noise=0.0, common=0.0005, seeds=5)
    import tests.branched_runs as runs

    (quiet,) = only(local(tmp_path, config=FAST, noise_share=0.0)).curves[0].checkpoints
    assert quiet.verdict is Verdict.OK
    usual, runs_excess = runs.excess, iter(range(10_000))
    try:
        runs.excess = lambda factor, at: usual(factor, at) * (1 + (0.5 * (next(runs_excess) % 7) if factor > 4 else 0))
        write(tmp_path / "loud", checkpoints=(40_000,), noise=0.0, common=0.0005, seeds=5)
    finally:
        runs.excess = usual
    (loud,) = only(local(tmp_path / "loud", config=FAST, noise_share=0.0)).curves[0].checkpoints
    assert loud.verdict is Verdict.NEAR_DIVERGENCE
    assert "factor 8 scatter" in loud.advice


def test_a_factor_whose_losses_run_away_on_some_seeds_counts_as_diverged() -> None:
    rng = np.random.default_rng(0)
    rows = [(k, 1.0, seed, 2.0 + 0.01 * rng.standard_normal()) for k in (1.0, 2.0, 4.0) for seed in range(3)]
    rows += [(8.0, 1.0, seed, 2.0 + 5.0 * seed) for seed in range(3)]
    assert tuned_of(rows).diverged.tolist() == [False, False, False, True]
    alone = [row for row in rows if row[0] in (1.0, 8.0) or row[2] == 0]
    assert not tuned_of([row for row in alone if row[0] < 8.0]).diverged.any(), "single seeds show no scatter"


@pytest.mark.parametrize("gone", [0.25, 2.0])
def test_a_factor_that_diverged_below_the_answer_is_told(gone: float, tmp_path: Path) -> None:
    write(tmp_path, checkpoints=(10_000,), diverged=lambda factor: factor == gone)
    (each,) = only(local(tmp_path, config=FAST, noise_share=0.0)).curves[0].checkpoints
    assert each.verdict is Verdict.NEAR_DIVERGENCE
    assert f"factor {number_of(gone)} diverged" in each.advice


def test_the_best_learning_rate_of_every_factor_counts(tmp_path: Path) -> None:
    write(tmp_path, checkpoints=(40_000,), lr_factors=(0.5, 1.0, 2.0), noise=0.0005, seed=1)
    (each,) = only(local(tmp_path, config=FAST, noise_share=0.0)).curves[0].checkpoints
    assert each.branches == 28
    assert [at.lr_factor for at in each.factors] == pytest.approx([math.sqrt(factor) for factor in FACTORS])
    assert inside(each.critical_batch_size.interval, true(40_000))


def tuned_of(rows: list[tuple[float, float, int, float]]) -> TunedBranches:
    trials = pd.DataFrame(rows, columns=["factor", "lr_factor", "seed", "loss"])
    trials["batch_size"] = 16 * trials["factor"]
    return tuned(Branched(group=None, source="", examples=1, window=1.0, trials=trials))  # type: ignore[arg-type]


def test_the_luck_of_the_best_learning_rate_is_taken_out() -> None:
    """Three rates around the best one, and as much noise as the outer two are worse: the lowest mean is too low."""
    rng, values = np.random.default_rng(0), []
    for _ in range(60):
        rows = [
            (factor, rate, seed, 0.05 * math.log2(rate) ** 2 + 0.05 * rng.standard_normal())
            for factor in (1.0, 2.0, 4.0)
            for rate in (0.25, 0.5, 1.0, 2.0, 4.0)
            for seed in range(3)
        ]
        curve = tuned_of(rows).curve("loss", AnalysisConfig(resamples=100), 0)
        values.append(float(np.nanmean(curve.losses)))
    assert abs(np.mean(values)) < 0.01


def test_a_rate_at_which_a_seed_diverged_stands_for_no_seed() -> None:
    rows = [(1.0, rate, seed, 2.0 + 0.1 * (rate < 1)) for rate in (0.9, 1.0) for seed in range(3)]
    rows = [(*row[:3], math.inf if row[1] == 1.0 and row[2] == 0 else row[3]) for row in rows]
    branches = tuned_of(rows)
    assert branches.lr_factors.tolist() == [0.9]
    assert branches.arranged(branches.branched.trials["loss"].to_numpy()).losses.tolist() == [[2.1]] * 3
    assert not branches.diverged.any()


def test_a_metric_whose_larger_values_are_better_is_the_mirror_image(tmp_path: Path, answered: LocalBatchSizes) -> None:
    write(tmp_path, checkpoints=CHECKPOINTS[:1], direction="above")
    found = only(local(tmp_path, config=FAST, noise_share=0.0)).curves[0]
    for one, other in zip(only(answered).curves[0].checkpoints, found.checkpoints, strict=False):
        assert other.loss == pytest.approx(-one.loss)
        assert other.critical_batch_size.value == pytest.approx(one.critical_batch_size.value)


def test_optimizers_are_compared_at_equal_loss(tmp_path: Path) -> None:
    larger = {"adamw": 1.0, "merit": 3.0}
    write(
        tmp_path,
        optimizers=("adamw", "merit"),
        at=lambda name, examples: larger[name] * critical(examples) / 2,
        noise=0.0005,
    )
    scope = only(local(tmp_path, config=FAST, noise_share=0.0))
    first = [pair for pair in scope.pairs if pair.optimizer == "merit"]
    assert [pair.loss for pair in first] == pytest.approx([3.0 + 0.5 * math.log10(160_000 / at) for at in CHECKPOINTS])
    for pair, examples in zip(first, CHECKPOINTS, strict=True):
        ratio = true(examples, 1.5 * critical(examples)) / true(examples, 0.5 * critical(examples))
        assert pair.value == pytest.approx(ratio, rel=0.2)
        assert pair.interval[0] < ratio < pair.interval[1]
        assert pair.interval[0] < pair.value < pair.interval[1] < 2 * ratio
        assert pair.probability > 0.95
    other = next(pair for pair in scope.pairs if pair.optimizer == "adamw")
    assert other.probability == pytest.approx(1.0 - first[0].probability)


def test_branches_are_no_points_of_a_curve_and_stand_beside_it(tmp_path: Path) -> None:
    write(tmp_path / "branches", checkpoints=(10_000, 40_000))
    with pytest.raises(ResultsError, match="'cbs local' compares them"):
        load(tmp_path / "branches")
    alone = only(local(tmp_path / "branches", config=FAST)).curves[0]
    assert alone.sweep == ()
    sweep(tmp_path / "sweep", {"adamw": Truth()}, batch_sizes=(4, 16, 64, 256))
    assert any("56 branches from checkpoints" in note for note in load(tmp_path).notes)
    assert len(load(tmp_path).trials) == len(load(tmp_path / "sweep").trials)
    (critical_one,) = only(local(tmp_path, config=FAST)).curves[0].sweep
    assert inside(critical_one.interval, 7381 / 175)


def test_checkpoints_of_one_folder_are_one_curve_and_those_that_may_be_of_several_runs_are_not(tmp_path: Path) -> None:
    root = tmp_path / "one"
    for index, born in enumerate(CHECKPOINTS):
        write(root, checkpoints=(born,), source=f"run/{'abc'[index]}.pt", seed=index)
    (curve,) = only(local(root, config=FAST)).curves
    assert [each.examples for each in curve.checkpoints] == list(CHECKPOINTS)
    assert curve.average.value is not None
    for source, apart in (("run/d.pt", 4), ("other/a.pt", 2)):
        both = tmp_path / source.replace("/", "-")
        shutil.copytree(root, both)
        write(both, checkpoints=CHECKPOINTS[:1], source=source, seed=9)
        assert len(only(local(both, config=FAST)).curves) == apart


def test_branches_of_a_checkpoint_that_has_changed_are_refused_though_each_was_run_from_both(tmp_path: Path) -> None:
    write(tmp_path, checkpoints=(10_000,), factors=(1.0, 2.0), seeds=1, source="run/a.pt", moments=False)
    store = Store(tmp_path)
    for trial in list(store.results(with_steps=True)):
        parent = dataclasses.replace(trial.config.parent, digest="f" * 16)
        config = dataclasses.replace(trial.config, parent=parent)
        store.save(trial.replace(config=config, evaluations=trial.evaluations[:-1]))
    with pytest.raises(ResultsError, match="different checkpoints of one name"):
        local(tmp_path, config=FAST)


def test_what_is_no_branch_is_refused_in_one_line(tmp_path: Path) -> None:
    sweep(tmp_path / "sweep", {"adamw": Truth()}, batch_sizes=(4, 16))
    with pytest.raises(ResultsError, match="no branches"):
        local(tmp_path / "sweep")
    with pytest.raises(ConfigError, match="--within"):
        local(tmp_path, within=0.0)
    with pytest.raises(ConfigError, match="--noise-share"):
        local(tmp_path, noise_share=-1.0)
    with pytest.raises(ConfigError, match="at least one"):
        local()


def test_branches_that_failed_are_left_out_and_a_damaged_parent_is_named(tmp_path: Path) -> None:
    write(tmp_path, checkpoints=(10_000, 40_000), seeds=2)
    store = Store(tmp_path)
    trials = [store.load(trial_id) for trial_id in store.trial_ids()]
    early = [trial for trial in trials if trial.config.parent.examples == 10_000]
    for trial in early:
        store.save(trial.replace(status=TrialStatus.FAILED, evaluations=[], steps={}))
    found = local(tmp_path, config=FAST)
    assert [each.examples for each in only(found).curves[0].checkpoints] == [40_000]
    assert any("14 of 14 branches left out" in note for note in found.notes)
    for trial in trials:
        store.save(trial.replace(status=TrialStatus.FAILED, evaluations=[], steps={}))
    with pytest.raises(ResultsError, match="no branch trained to the end"):
        local(tmp_path)
    edit(store, lambda summary: summary["config"].update(parent={"source": "x", "examples": -1, "digest": "y"}))
    with pytest.raises(ResultsError, match="is not a record of a trial"):
        local(tmp_path)


def test_what_is_written_is_what_was_found(one: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    code, out, err = run("local", one, "--resamples", 200, "--noise-share", 0)
    assert (code, err) == (0, "")
    assert "Local critical batch size in sequences" in out
    assert "near divergence" not in out
    folder = one / "analysis" / "local"
    found = json.loads((folder / "local.json").read_text())
    checkpoints = found["scopes"][0]["curves"][0]["checkpoints"]
    table = pd.read_csv(folder / "checkpoints.csv")
    assert table["local_critical_batch_size"].tolist() == pytest.approx(
        [each["critical_batch_size"]["value"] for each in checkpoints]
    )
    assert table["local_critical_batch_size_tokens"].tolist() == pytest.approx(
        (32 * table["local_critical_batch_size"]).tolist()
    )
    curve = pd.read_csv(folder / "curve-adamw.csv")
    assert curve["critical_batch_size"].tolist() == pytest.approx(table["local_critical_batch_size"].tolist())
    assert {path.name for path in (folder / "figures").glob("*.png")} == {"local_curve.png", "local_losses.png"}


def test_branches_that_diverged_are_lost_and_bound_the_answer(tmp_path: Path) -> None:
    write(tmp_path, checkpoints=(160_000,), diverged=lambda factor: factor >= 8, noise=0.0005)
    (each,) = only(local(tmp_path, config=FAST, noise_share=0.0)).curves[0].checkpoints
    by_factor = {at.factor: at for at in each.factors}
    assert (by_factor[8.0].standing, by_factor[8.0].diverged, by_factor[8.0].loss) == ("worse", 4, None)
    assert by_factor[4.0].standing == "equal"
    low, high = each.factor.interval
    assert 4.0 <= low < high <= 8.0

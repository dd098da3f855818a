"""The calibration: its truths by slow and obvious ways, its shortcuts bit for bit, and a short form of it."""

import dataclasses
import functools
import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from analysis.present import style
from analysis.questions.fit.table_fit import fit_table
from benchmarks.calibration import __main__ as calibration
from benchmarks.calibration import replicates
from benchmarks.calibration import truth as truths
from benchmarks.calibration.cases import CASES, PLAN, TARGET, Case
from benchmarks.calibration.first_passage import Walk, first_passages
from benchmarks.calibration.gradients import Setting, at_checkpoints, measured
from benchmarks.calibration.page import Found, against, fill, intervals, points, silent
from benchmarks.calibration.replicates import record, replicate, seeds_of, shared_workload, sweeps_of, train
from benchmarks.calibration.truth import Best, Truth, best_of, exact, fine_grid, fitted
from benchmarks.schedule_plans import crossing, losses
from benchmarks.telling import holds
from cbs.compute import seeding
from cbs.training.run import run_trial
from cbs.trial.record import TrialStatus
from cbs.trial.store import Store
from cbs.workloads.noisy_quadratic import NoiseStream
from sweeps.spec.axes import Cell
from tests.references.noisy_quadratic import expected_losses
from tests.sweeps.alone import swept

SMALL = {
    name: dataclasses.replace(case, dimension=40, batch_sizes=sizes, budget=(300, 6000))
    for (name, case), sizes in zip(CASES.items(), ((4, 16, 64), (4, 16, 64), (16, 64, 256)), strict=True)
}
SIZES = np.array([2.0, 16, 32, 64, 128, 256, 512, 1e12])


def known(case: Case, lr: float = 0.5) -> Truth:
    """Made up, with an exponent of 1.2: ``S_min`` 30, ``B_crit`` 100."""
    sizes = (1.0, *case.batch_sizes, 1e12)
    steps = [30.0 * (1 + (100.0 / size) ** 1.2) for size in sizes]
    return Truth(
        points=tuple(
            Best(batch_size=size, lr=lr, steps=count, error=0.001, deviation=0.05, expected_lr=lr, expected_steps=count)
            for size, count in zip(sizes, steps, strict=True)
        )
    )


@pytest.mark.parametrize("case", SMALL.values(), ids=SMALL)
@pytest.mark.parametrize("steps", [0, 1, 2, 7, 100])
def test_a_walk_has_the_second_moments_of_the_closed_form(case: Case, steps: int) -> None:
    walk = Walk(case.theory, 0.7, 8.0, case.momentum, case.power)
    expected = expected_losses(case.theory, case.method, case.momentum, [(0.7, 8.0)] * steps, case.power)[-1]
    loss = 0.5 * (case.theory.curvature * walk.second_moments(steps)).sum()
    assert loss == pytest.approx(float(expected), rel=1e-6)


@pytest.mark.parametrize("count", [1, 3, 10])
def test_a_root_gives_back_the_covariance(count: int) -> None:
    walk = Walk(SMALL["momentum"].theory, 0.7, 8.0, 0.9)
    root = walk.root(count)
    assert np.einsum("ijd,kjd->ikd", root, root) == pytest.approx(walk.step(count)[1], rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("name", SMALL)
def test_runs_drawn_at_evaluations_are_those_drawn_step_by_step(name: str) -> None:
    """Means of ``ln S`` within four standard errors of their difference, about 1 %; deviations within a quarter."""
    case, size, lr = SMALL[name], 16.0, {"sgd": 0.6, "momentum": 0.15, "preconditioned": 0.3}[name]
    walk = Walk(case.theory, lr, size, case.momentum, case.power)
    jumped = np.log(first_passages(walk, TARGET.value, PLAN, 1500, np.random.default_rng(0)))
    curves = losses(case, [(0, int(size), lr)], 1500, np.random.default_rng(1), 2000)
    stepped = np.log([crossing(curve) for curve in curves[..., 0].T])
    both = np.minimum(jumped, stepped.max())
    error = math.hypot(both.std(), stepped.std()) / math.sqrt(1500)
    assert abs(both.mean() - stepped.mean()) < 4 * error + 0.002
    assert both.std() == pytest.approx(stepped.std(), rel=0.25)


def test_a_run_that_diverges_or_settles_above_the_target_never_gets_there() -> None:
    model, rng = SMALL["sgd"].theory, np.random.default_rng(0)
    assert np.isinf(first_passages(Walk(model, 2.2, 1e12), 0.1, PLAN, 5, rng, most=500)).all()
    assert np.isinf(first_passages(Walk(model, 1.0, 0.1), 0.1, PLAN, 5, rng, most=500)).all()


@pytest.mark.parametrize("name", SMALL)
def test_a_trial_is_the_recurrence_of_its_own_examples(name: str) -> None:
    """In double precision from the same start and the same examples; a trial is in single precision."""
    case, lr = SMALL[name], {"sgd": 0.5, "momentum": 0.12, "preconditioned": 0.25}[name]
    size, seed = case.batch_sizes[1], 5
    result = run_trial(case.sweep((seed,)).trial_at(Cell(str(case.optimizer), size, seed), lr))
    assert result.status is TrialStatus.REACHED
    with seeding.seeded(seed, "init"):
        theta = torch.randn(case.dimension).double().numpy()
    h = case.theory.curvature
    stream = NoiseStream(torch.from_numpy(h).float().sqrt(), seeding.generator(seed, "data"))
    speed, losses = np.zeros_like(theta), [0.5 * float(h @ theta**2)]
    for _ in range(result.final_step):
        speed = case.momentum * speed - lr * h**-case.power * (h * theta + stream.next(size).double().mean(0).numpy())
        theta = theta + speed
        losses.append(0.5 * float(h @ theta**2))
    assert crossing(np.array(losses)) == pytest.approx(result.steps_to_target, rel=1e-4)


@pytest.mark.parametrize("kept", [6400, 64])
def test_shared_examples_give_the_same_trial_bit_for_bit(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a tape that is long enough, and on one that ends in the middle of a batch."""
    monkeypatch.setattr(replicates, "KEPT", kept)
    monkeypatch.setattr(replicates, "BLOCK", 64)
    case = SMALL["momentum"]
    shared = shared_workload(case)
    for size, lr in ((24, 0.1), (16, 0.1), (16, 0.2)):
        config = case.sweep((3,)).trial_at(Cell(str(case.optimizer), size, 3), lr)
        plain, quick = run_trial(config), run_trial(config, workload=shared)
        assert quick.evaluations == plain.evaluations
        assert quick.steps["train_loss"].tolist() == plain.steps["train_loss"].tolist()


def test_the_exact_and_the_fitted_truth_of_a_curve_of_the_fitted_form_agree() -> None:
    steps = 30.0 * (1 + (100.0 / SIZES) ** 1.2)
    fine = np.geomspace(20.0, 500.0, 100_001)
    half, double = (1 + (100.0 / (fine * factor)) ** 1.2 for factor in (0.5, 2.0))
    least = fine[np.abs(np.log(half / double) - np.log(2)).argmin()]
    for found in (exact(SIZES, steps), fitted(SIZES[1:-1], steps[1:-1])):
        assert found.critical == pytest.approx(least, rel=5e-3)
        assert found.min_steps == pytest.approx(30.0, rel=1e-6)
    hyperbola = 30.0 + 3000.0 / SIZES
    assert exact(SIZES, hyperbola).min_examples == pytest.approx(3060.0)  # at the smallest batch size, 2
    assert fitted(SIZES[1:-1], hyperbola[1:-1]).min_examples == pytest.approx(3000.0, rel=1e-6)


def test_the_answer_to_a_table_without_noise_is_the_fitted_truth() -> None:
    """So the two speak of the same thing; the exponent of 1.2 is not drawn to 1 by the prior."""
    case = SMALL["sgd"]
    truth, rng = known(dataclasses.replace(case, batch_sizes=(16, 32, 64, 128, 256, 512))), np.random.default_rng(0)
    frame = table_of(truth, 1e-4, rng)
    found = record(fit_table(frame).answers[0])["estimates"]
    wanted = truth.estimands("trials", "fitted")
    for name in truths.QUANTITIES:
        assert found[name]["value"] == pytest.approx(getattr(wanted, name), rel=3e-3)


def table_of(truth: Truth, noise: float, rng: np.random.Generator) -> pd.DataFrame:
    rows = [
        (int(best.batch_size), seed, best.steps * math.exp(noise * rng.standard_normal()))
        for best in truth.swept
        for seed in range(3)
    ]
    return pd.DataFrame(rows, columns=["batch_size", "seed", "steps"])


@pytest.mark.slow
def test_short_form() -> None:
    """24 sweeps around a curve of the fitted form, 5 % of noise in a seed: of intervals that hold the truth in 95 %
    fewer than 20 hold it once in 200 times; the mean error is within four standard errors."""
    truth = known(dataclasses.replace(SMALL["sgd"], batch_sizes=(16, 32, 64, 128, 256, 512)))
    rng, wanted = np.random.default_rng(1), truth.estimands("trials", "exact")
    records = [record(fit_table(table_of(truth, 0.05, rng)).answers[0]) for _ in range(24)]
    found = {name: against(records, name, getattr(wanted, name)) for name in ("critical", "min_steps")}
    for row in found.values():
        assert row["coverage"] * 24 >= 20
        assert abs(row["bias"]) < 4 * row["bias_error"] + 0.02
        # 1.96 for normal estimates and honest widths of the power law; other forms reach further to one side
        assert 1.2 < row["half_width"] / row["spread"] < 4.5


@functools.cache
def tiny() -> Truth:
    """The truth of the small momentum case, roughly."""
    case = SMALL["momentum"]
    return Truth(points=tuple(best_of(case, size, (40, 120)) for size in truths.sizes_of(case)))


@pytest.mark.slow
def test_no_other_learning_rate_is_faster_than_the_best() -> None:
    case, best = SMALL["momentum"], tiny().points[2]
    assert best.batch_size == 16

    def mean(lr: float) -> float:
        walk = Walk(case.theory, lr, best.batch_size, case.momentum)
        return float(np.log(first_passages(walk, 0.1, PLAN, 1000, np.random.default_rng(9), most=2000)).mean())

    assert mean(best.lr) < min(mean(best.lr / 1.5), mean(best.lr * 1.5))
    assert mean(best.lr) == pytest.approx(math.log(best.steps), abs=4 * best.error * math.sqrt(1.2))
    assert best.steps < best.expected_steps  # trials dip below the target before their expectation does


@pytest.mark.slow
def test_a_replicate_is_a_folder_of_trials_and_what_analyze_says_of_it(tmp_path: Path) -> None:
    case, truth = SMALL["momentum"], tiny()
    found = replicate(case, "fine", truth, 2, tmp_path / "sweep")
    results = list(Store(tmp_path / "sweep").results())
    assert found["trials"] == len(results) == 3 * 3 * 3
    assert {result.config.seed for result in results} == set(seeds_of(2)) == {6, 7, 8}
    assert all(result.config.schedule.warmup_examples == 0 for result in results)
    for point, best in zip(found["points"], truth.swept, strict=True):
        assert tuple(point["lrs"]) == fine_grid(best)
        assert point["lrs"] == pytest.approx([best.lr * 2**-0.25, best.lr, best.lr * 2**0.25], rel=1e-4)
        assert point["best_lr"] in point["lrs"]
        assert len(point["table"]) == 3
    json.dumps(found, allow_nan=False)


@pytest.mark.slow
def test_every_source_reads_what_the_closed_form_says() -> None:
    """Given the parameters, means over six runs within four standard errors, of at most 6 % for the noise."""
    case = SMALL["preconditioned"]
    best = dataclasses.replace(tiny().points[2], lr=0.4, steps=24.0)
    setting = Setting(case, best)
    for source in ("split", "per_example"):
        records = measured(setting, source, 6)
        assert {entry["geometry"] for entry in records} == {"l2", "l1", "preconditioned"}
        for moment in (moment for entry in records for moment in entry["moments"]):
            bias, error = moment["bias"]
            assert abs(bias) < 4 * error + 0.01, (source, moment)
            assert error < 0.06 or moment["moment"] == "signal"
    for moment in at_checkpoints(setting, 400)["moments"]:
        assert abs(moment["bias"][0]) < 4 * moment["bias"][1]
        assert moment["bias"][1] < 0.1 or moment["moment"] == "signal"


def test_moments_over_runs_are_means_of_those_of_a_run() -> None:
    """By drawing the parameters: ``E |G|^2`` and ``E |g|_1`` in closed form against the mean of 4000 draws."""
    case = SMALL["momentum"]
    setting, rng = Setting(case, dataclasses.replace(tiny().points[2], steps=12.0)), np.random.default_rng(0)
    second = setting.walk.second_moments(8)
    thetas = np.sqrt(second) * rng.standard_normal((4000, case.dimension))
    for geometry in ("l2", "hessian", "l1"):
        drawn = setting.of_run(geometry, thetas).mean(1)
        assert drawn == pytest.approx(setting.expected(geometry)[:, 8], rel=0.05)


def test_points_tell_training_from_choosing() -> None:
    truth = known(SMALL["sgd"])
    steps = [best.steps for best in truth.swept]

    def entry(factor: float) -> dict:
        return {
            "points": [
                {"steps": [0.9 * count] * 2, "at_grid_edge": True, "table": [[0.9 * count] * 2, [factor * count] * 2]}
                for count in steps
            ]
        }

    (row, *_) = points([entry(1.02), entry(1.04)], truth)
    assert row["trained"][0] == pytest.approx(math.log(1.02 * 1.04) / 2)
    assert row["chosen"][0] == pytest.approx(math.log(0.9) - math.log(1.02 * 1.04) / 2)
    assert row["at_edge"] == 1.0


def test_records_are_judged_against_the_truth() -> None:
    def entry(value: float | None, low: float | None, high: float | None, verdict: str) -> dict:
        return {"estimates": {"critical": {"value": value, "interval": [low, high]}}, "verdict": verdict}

    records = [
        entry(90.0, 80.0, 95.0, "ok"),
        entry(120.0, 80.0, 320.0, "ok"),
        entry(None, None, 99.0, "too few seeds"),
        entry(130.0, 90.0, None, "too few seeds"),
    ]
    row = against(records, "critical", 100.0)
    assert row["coverage"] == 0.5
    assert row["bias"] == pytest.approx((0.9 * 1.2 * 1.3) ** (1 / 3) - 1)
    assert row["half_width"] == pytest.approx((math.log(95 / 80) + math.log(4)) / 4)
    assert (row["without_value"], row["open"]) == (1, 2)
    assert row["coverage_interval"] == pytest.approx([0.0676, 0.9324], abs=1e-3)
    assert silent(records, 100.0) == (0.5, 0.25)
    assert holds((None, None), 1.0)
    assert not holds((None, 0.5), 1.0)
    assert not holds((1.1, None), 1.0)


def test_the_figure_of_intervals_says_what_its_lines_mean() -> None:
    truth = known(CASES["momentum"])
    exact_size = truth.estimands("trials", "exact").critical
    ends = [(0.6 * exact_size, 1.4 * exact_size), (1.1 * exact_size, None)]
    records = [{"estimates": {"critical": {"value": low * 1.3, "interval": [low, high]}}} for low, high in ends]
    figure, (axes, *_) = style.grid(1)
    intervals(axes, Found(truth, records, [], None), first=True)
    (legend,) = figure.legends
    meant = {
        text.get_text().replace("\n", " "): line for text, line in zip(legend.texts, legend.legend_handles, strict=True)
    }
    drawn = {(line.get_linestyle(), line.get_color()) for line in axes.lines if line.get_linestyle() != "None"}
    assert {(line.get_linestyle(), line.get_color()) for line in meant.values()} == drawn
    assert {"interval that misses it", "fitted truth"} <= set(meant)


@pytest.mark.slow
@pytest.mark.usefixtures("whole_figures")
def test_the_command_goes_on_where_it_stopped_and_fills_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(CASES, "momentum", SMALL["momentum"])
    monkeypatch.setattr(calibration, "truth_of", lambda case: tiny())
    (tmp_path / "figures").mkdir()
    page = tmp_path / "page.md"
    names = ("truth", "coverage", "silent", "prediction")
    page.write_text("".join(f"<!-- {name} -->\n<!-- end -->\nprose\n" for name in names))
    sizes = ["--replicates", "2", "--default-replicates", "1", "--gradients", "2"]
    command = ["--output", str(tmp_path / "found"), "--case", "momentum", *sizes]
    calibration.main(command)
    assert "3 of 3 replicates" in capsys.readouterr().err
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "found").rglob("*.json")}
    assert len(before) == 5
    calibration.main([*command, "--page", str(page)])
    assert "0 of 0 replicates" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "found").rglob("*.json")} == before
    text = page.read_text()
    assert text.count("prose") == len(names)
    assert "not run" not in text
    assert text.count("| momentum |") == 3 + 2 + 1 + 1
    every = (tmp_path / "found" / "tables.md").read_text()
    assert every.count("| momentum |") == text.count("| momentum |") + 6 + 3 + 7
    assert "nan" not in text
    for figure in ("curves", "intervals"):
        assert (tmp_path / "figures" / f"calibration_{figure}.png").stat().st_size > 5000
    with pytest.raises(ValueError, match="0 places for <!-- other -->"):
        fill(text, {"other": ""})


@pytest.mark.slow
def test_a_replicate_through_ray_has_the_same_records(tmp_path: Path) -> None:
    """Training in this process with shared examples stands for ``cbs sweep``: the same trials, each with the same
    status and steps, and bitwise the same losses as far as both were trained before they were pruned."""
    from sweeps.launching import launch
    from sweeps.running.resources import Resources

    case, truth = CASES["preconditioned"], known(CASES["preconditioned"])
    (sweep,) = (launch.resolve(each) for each in sweeps_of(case, "default", truth, 0))
    sweep = sweep.replace(batch_sizes=(512, 2048))
    swept(sweep, tmp_path / "ray", resources=Resources(workers=1))
    here = Store(tmp_path / "here")
    here.prepare()
    train(sweep, here, shared_workload(case))
    there = Store(tmp_path / "ray")
    assert here.trial_ids() == there.trial_ids()
    assert len(here.trial_ids()) >= 2 * 3 * 3
    for trial in here.trial_ids():
        one, other = here.load(trial), there.load(trial)
        assert (one.status, one.steps_to_target) == (other.status, other.steps_to_target)
        losses = [[row.value for row in result.evaluations] for result in (one, other)]
        common = min(map(len, losses))
        assert losses[0][:common] == losses[1][:common]
        assert common == len(losses[0]) or one.status is TrialStatus.PRUNED

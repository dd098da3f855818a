"""A sweep of the noisy quadratic is predicted from the spectrum of its model; where nothing can be, that is said."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from analysis.config import AnalysisConfig
from analysis.extensions.theory.noisy_quadratic import NoisyQuadratic, tuned
from analysis.extensions.theory.prediction import predict
from analysis.extensions.theory.prediction.mapping import DEFAULTS, Mapped, mapped, unlike
from analysis.extensions.theory.prediction.result import Predictions
from analysis.extensions.theory.prediction.variations import jackknifed
from analysis.present import presentation, write
from analysis.present.figures import FIGURES
from cbs.errors import ConfigError, ResultsError
from cbs.optimizers import OPTIMIZERS
from cbs.spectrum import record
from cbs.spectrum.measure import Effort
from cbs.training.run import run_trial
from cbs.trial.config import Choice, EvaluationPlan, TrialConfig
from cbs.trial.store import Store
from cbs.trial.target import Target
from cbs.workloads import build_workload
from sweeps.measuring.spectrum import measure_spectrum
from tests import factories

CONFIG = AnalysisConfig(resamples=200)
TARGET = Target(metric="validation_loss", value=2.0)
SIZES = (1, 4, 16, 64)
SIZE, POWER = 200, 0.5
"""Of the quadratic: many directions count, so a run's loss stays near its expectation."""


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real trials of SGD, two seeds, learning rates around the best, and the spectrum."""
    root = tmp_path_factory.mktemp("results") / "quadratic"
    store = Store(root)
    store.prepare()
    store.write_manifest({"name": "quadratic", "protocol": {"prune_factor": None}})
    workload = Choice(name="noisy_quadratic", options={"dimension": SIZE, "spectrum_power": POWER})
    built, model = build_workload(workload), NoisyQuadratic.power_law(SIZE, power=POWER).grouped()
    for batch_size in SIZES:
        best = tuned(model, "sgd", TARGET.value, batch_size)
        for seed, power in ((seed, power) for seed in (0, 1) for power in (-2, -1, 0, 1)):
            config = TrialConfig(
                workload=workload,
                optimizer=Choice(name="sgd", options={"momentum": 0.0}),
                lr=best.lr * 2 ** (power / 2),
                batch_size=batch_size,
                seed=seed,
                target=TARGET,
                max_steps=round(2 * best.steps) + 5,
                probe=None,
                evaluation=EvaluationPlan(far_growth=1.04),
            )
            store.save(run_trial(config, workload=built))
    record.write(measure_spectrum(root, effort=Effort(gradient_examples=4096, curvature_examples=4)), root)
    return root


@contextlib.contextmanager
def instead(
    sweep: Path, change: Callable[[record.SpectrumSample], record.SpectrumSample], count: int = 2
) -> Iterator[None]:
    """The sweep with a few changed measurements at the target in place of its spectrum."""
    spectrum = record.read(sweep)
    samples = tuple(map(change, spectrum.at("target")[:count]))
    record.write(dataclasses.replace(spectrum, samples=samples), sweep)
    try:
        yield
    finally:
        record.write(spectrum, sweep)


@pytest.fixture(scope="module")
def found(sweep: Path) -> Predictions:
    return predict(sweep, CONFIG)


def test_the_prediction_of_a_noisy_quadratic_is_right(found: Predictions) -> None:
    (entry,) = found.entries
    assert entry.mapped == Mapped(method="sgd")
    closed = NoisyQuadratic.power_law(SIZE, power=POWER)
    for point, steps in zip(entry.answer.points, entry.main.steps, strict=True):
        # closed form: at unit start, the spectrum's is two random ones; the sweep: grid of learning rates, two seeds
        assert steps.value == pytest.approx(tuned(closed.grouped(), "sgd", 2.0, point.batch_size).steps, rel=0.15)
        assert steps.value == pytest.approx(point.steps_to_target, rel=0.15)
    for ratio in (entry.critical_ratio, entry.min_steps_ratio):
        low, high = ratio.interval
        # a part of it is what a finer grid could save beside the edge of stability
        assert low < 1.0 < high < 5 * low
    # four batch sizes, two seeds, a coarse grid: how much an interval says lies near what is called little
    assert re.search("the prediction of B_crit (is not contradicted|holds)", entry.says)
    assert "the prediction of S_min holds" in entry.says


def test_a_quadratic_is_the_same_wherever_it_is_measured(found: Predictions) -> None:
    (entry,) = found.entries
    other = entry.others[0]
    assert (entry.main.point, other.point) == ("target", "start")
    assert other.critical_batch_size.value == pytest.approx(entry.main.critical_batch_size.value, rel=0.15)
    assert [round(each.floor, 3) for each in entry.others[1:]] == [0.0, 1.0]
    assert entry.others[1].min_steps.value == pytest.approx(entry.main.min_steps.value, rel=0.1)
    assert entry.others[2].min_steps.value > 1.15 * entry.main.min_steps.value


def test_the_interval_is_the_jackknife_over_measurements(found: Predictions) -> None:
    """Without each of n in turn, a mean of logarithms has the textbook interval of a mean."""
    logs = np.array([0.1, 0.5, 0.2, 0.9])
    rest = [float(np.exp(np.delete(logs, index).mean())) for index in range(4)]
    low, high = jackknifed(float(np.exp(logs.mean())), rest, 0.95)
    # Student's t at three degrees of freedom
    assert np.log([low, high]) == pytest.approx(
        logs.mean() + np.array([-1, 1]) * 3.1824 * logs.std(ddof=1) / 2, rel=1e-4
    )
    assert jackknifed(2.0, [1.0, None, 2.0], 0.95) == (None, None)
    (entry,) = found.entries
    for quantity in (entry.main.critical_batch_size, entry.main.min_steps, *entry.main.steps):
        assert quantity.interval[0] < quantity.value < quantity.interval[1]


def test_one_measurement_has_no_interval_and_no_verdict(sweep: Path) -> None:
    with instead(sweep, lambda sample: sample, count=1):
        (entry,) = predict(sweep, CONFIG, floors=[]).entries
    assert entry.main.min_steps.interval == (None, None)
    assert "without both intervals nothing can be said of S_min" in entry.says
    assert entry.others == ()


def test_one_table_one_figure_and_json(found: Predictions, tmp_path: Path) -> None:
    shown = presentation(found)
    frame = shown.tables["prediction"].frame()
    assert frame["critical_batch_size_ratio"][0] == pytest.approx(found.entries[0].critical_ratio.value)
    assumed = shown.tables["assumptions"].frame()
    assert len(assumed) == 4
    for ratio in ("critical_batch_size_ratio", "min_steps_ratio"):
        assert assumed[ratio][0] == frame[ratio][0]
    steps = shown.tables["predicted_steps"].frame()
    assert steps["ratio"].tolist() == (steps["predicted_steps"] / steps["steps_to_target"]).tolist()
    assert shown.tables["predicted_steps"].frame()["batch_size"].tolist() == list(SIZES)
    table = FIGURES["prediction"].compute(found)
    assert table["kind"].value_counts()[["point", "predicted", "assumed"]].tolist() == [4, 4, 12]
    predicted = table[table["kind"] == "predicted"]
    assert predicted["steps"].tolist() == [steps.value for steps in found.entries[0].main.steps]
    assert (predicted["low"] < predicted["steps"]).all()
    files = {path.name for path in write(found, tmp_path)}
    assert {"prediction.json", "prediction.csv", "prediction.tex", "prediction.pdf", "prediction.png"} <= files
    assert json.loads((tmp_path / "prediction.json").read_text())["predictions"][0]["says"] == found.entries[0].says


def test_the_command_predicts_and_draws(sweep: Path, tmp_path: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    drawn = tmp_path / "drawn.png"
    status, out, err = run(
        "theory", "quadratic", "--spectrum", sweep, "--batch-sizes", "2,32", "--floor", 0, "--figure", drawn
    )
    assert (status, err) == (0, "")
    assert "B_crit measured" in " ".join(out.split())
    assert drawn.stat().st_size > 1000
    for flags, message in (
        (["--power", "0.5"], "--power: --spectrum takes this from the sweep"),
        (["--optim", "muon"], "has no optimizer 'muon'; it has sgd"),
        (
            ["--at", "end"],
            "no spectrum was measured at 'end', only at start, target; measure it with 'cbs theory spectrum",
        ),
    ):
        status, out, err = run("theory", "quadratic", "--spectrum", sweep, *flags)
        assert (status, out) == (2, "")
        assert message in " ".join(err.split())
    status, _, err = run("theory", "quadratic", "--floor", 0)
    assert (status, "--at and --floor are about a measured spectrum" in " ".join(err.split())) == (2, True)


@pytest.mark.parametrize(
    ("target", "why_not"),
    [(-0.5, "the quadratic has its floor at .*, above the target -0.5, and never reaches it")],
)
def test_a_target_below_the_floor_is_said(sweep: Path, target: float, why_not: str) -> None:
    (entry,) = predict(sweep, CONFIG, targets=[target], floors=[0.0]).entries
    assert entry.says.startswith("no prediction: the quadratic has its floor at")
    assert presentation(Predictions(config=CONFIG, spectrum=record.read(sweep), entries=(entry,)))
    assert not len(FIGURES["prediction"].compute(Predictions(config=CONFIG, spectrum=None, entries=(entry,))))


def test_negative_curvature_is_an_answer_not_a_crash(sweep: Path) -> None:
    def turned(sample: record.SpectrumSample) -> record.SpectrumSample:
        measures = tuple(record.SpectralMeasure(each.kind, -each.curvature, each.weight) for each in sample.measures)
        return dataclasses.replace(sample, measures=measures)

    with instead(sweep, turned):
        (entry,) = predict(sweep, CONFIG, floors=[0.0]).entries
    assert "no prediction: negative curvature dominates" in entry.says
    assert json.dumps(entry.to_json(), allow_nan=False)


def test_without_a_spectrum_the_command_that_measures_one_is_named(tmp_path: Path) -> None:
    store = factories.sweep(tmp_path / "results")
    with pytest.raises(
        ResultsError, match=r"no spectrum in .*results: measure one with 'cbs theory spectrum .*results'"
    ):
        predict(store.root, CONFIG)


def test_an_accuracy_and_an_optimizer_unlike_any_method_are_refused(sweep: Path, tmp_path: Path) -> None:
    spectrum = record.read(sweep)
    store = factories.sweep(tmp_path / "results", {"muon": factories.Truth()}, batch_sizes=(4, 8))
    record.write(spectrum, store.root)
    with pytest.raises(ResultsError, match="muon is left out: the noisy quadratic model covers sgd, adam, adamw"):
        predict(store.root, CONFIG)
    record.write(dataclasses.replace(spectrum, direction="above"), store.root)
    with pytest.raises(ConfigError, match="predicts a loss, and validation_loss is better above its target"):
        predict(store.root, CONFIG)


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("sgd", Mapped(method="heavy_ball", momentum=0.9)),
        ("sgd momentum=0", Mapped(method="sgd")),
        ("sgd nesterov", Mapped(method="nesterov", momentum=0.9)),
        ("adamw", Mapped(method="heavy_ball", momentum=0.9, power=0.5)),
        ("adam betas", Mapped(method="sgd", power=0.5)),
    ],
)
def test_methods(choice: str, expected: Mapped) -> None:
    options = {
        "sgd momentum=0": {"momentum": 0.0},
        "sgd nesterov": {"nesterov": True},
        "adam betas": {"betas": [0.0, 0.9]},
    }
    assert mapped(Choice(name=choice.split()[0], options=options.get(choice, {})), {}) == expected


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults_are_those_of_the_optimizers(name: str) -> None:
    defaults = OPTIMIZERS[name].defaults
    assert {key: json.loads(json.dumps(defaults[key])) for key in DEFAULTS[name]} == DEFAULTS[name]


def test_what_the_quadratic_does_not_do_is_told() -> None:
    config = {"schedule": {"name": "cosine"}, "clip_norm": 1.0, "averaging": None}
    told = "; ".join(unlike(Choice(name="adamw", options={"weight_decay": 0.1}), config))
    assert all(word in told for word in ("weight decay 0.1", "clipped at 1", "schedule cosine"))
    assert "averaged weights" in mapped(Choice(name="adamw"), config | {"averaging": {"name": "ema"}})
    unknown = dict.fromkeys(config, "unknown")
    assert "averaging, clip_norm, schedule is unknown" in "; ".join(unlike(Choice(name="adamw"), unknown))
    assert not isinstance(mapped(Choice(name="adamw"), unknown), str)


def test_a_metric_that_is_not_the_loss_that_is_trained_is_told(sweep: Path, found: Predictions) -> None:
    assert found.notes == ()
    with instead(sweep, lambda sample: dataclasses.replace(sample, train_loss=sample.train_loss / np.log(2.0))):
        notes = predict(sweep, CONFIG, batch_sizes=[4, 64], floors=[]).notes
    assert any("takes the metric for the loss that is trained" in note for note in notes)


def test_one_run_is_told(sweep: Path) -> None:
    with instead(sweep, lambda sample: dataclasses.replace(sample, seed=0)):
        notes = predict(sweep, CONFIG, batch_sizes=[4, 64], floors=[]).notes
    assert notes == ("the spectrum is of one run: intervals of predictions hold no difference between runs",)


def test_what_is_left_out_of_the_quadratic_is_told(sweep: Path) -> None:
    def curved(sample: record.SpectrumSample) -> record.SpectrumSample:
        fifth = record.SpectralMeasure("noise", np.array([-0.1]), np.array([0.25 * sample.of("noise")[1].sum()]))
        return dataclasses.replace(sample, measures=(*sample.measures, fifth))

    with instead(sweep, curved):
        notes = predict(sweep, CONFIG, batch_sizes=[4, 64], floors=[]).notes
    assert "sgd: 20 % of the gradient or of its noise lies along negative curvature; it is left out" in notes

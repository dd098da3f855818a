"""From sweeps over widths to laws, comparisons and files; the world they are drawn from is known."""

import itertools
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import cli
from analysis import present
from analysis.config import AnalysisConfig
from analysis.estimate.diagnosis import Verdict
from analysis.estimate.estimates import answers
from analysis.estimate.result import Answer
from analysis.present.figures import FIGURES
from analysis.read.results import Results, load
from cbs.errors import CbsError
from cbs.trial.config import Choice, EvaluationPlan, Schedule, TrialConfig
from cbs.trial.record import Measurement, TrialResult, TrialStatus, WorkloadInfo
from cbs.trial.store import Store
from cbs.trial.target import Target
from extensions.scale.figures import Against
from extensions.scale.scaling import Scaling, scale

QUICK = AnalysisConfig(resamples=100)
TARGETS = (3.0, 2.7, 2.4)
WIDTHS = {16: 8_000, 32: 30_000, 64: 110_000}
B_STAR, ALPHA = 3000.0, 0.25


def steps_to(loss: float, parameters: int, batch_size: int, speed: float = 1.0) -> float:
    """Kaplan's law with an irreducible loss of 1; the critical batch size depends on the loss alone."""
    gap = loss - 1.0 - (3e3 / parameters) ** 0.3
    return 400.0 / speed * gap ** (-1 / 0.7) * (1 + speed * B_STAR / loss ** (1 / ALPHA) / batch_size)


def sweep(
    root: Path, width: int, *, optimizers: tuple[str, ...] = ("adamw",), noise: float = 0.03,
    parameters: int | None = None, layers: int = 2, batch_sizes: tuple[int, ...] = (4, 16, 64, 256, 1024),
    lrs: tuple[float, ...] = (1e-3,),
) -> Path:  # fmt: skip
    """Three seeds; ``muon`` takes half the steps and twice the critical batch size; the best learning rate is 1e-3."""
    store = Store(root)
    store.prepare()
    store.write_manifest({"name": root.name, "recipe": root.name, "protocol": {"prune_factor": None}})
    rng, target = np.random.default_rng([width, layers]), Target(metric="validation_loss", value=TARGETS[-1])
    size = parameters or WIDTHS[width]
    for optimizer in optimizers:
        for batch, seed, lr in itertools.product(batch_sizes, range(3), lrs):
            config = TrialConfig(
                workload=Choice(name="synthetic", options={"width": width, "layers": layers}),
                optimizer=Choice(name=optimizer), lr=lr, batch_size=batch, seed=seed, target=target,
                max_steps=10**7, schedule=Schedule(), evaluation=EvaluationPlan(),
            )  # fmt: skip
            factor = math.exp(noise * rng.standard_normal() + math.log(lr / 1e-3) ** 2 / 4)
            rows = [(0, 5.6)]
            for loss in np.linspace(3.6, TARGETS[-1], 25):
                found = factor * steps_to(loss, size, batch, 2.0 if optimizer == "muon" else 1.0)
                rows.append((max(rows[-1][0] + 1, round(found)), float(loss) + 1e-9 * seed))  # no two runs alike
            rows[-1] = (rows[-1][0], TARGETS[-1] - 1e-9)
            store.save(_trial(config, rows, size))
    return root


def _trial(config: TrialConfig, rows: list[tuple[int, float]], parameters: int) -> TrialResult:
    steps = np.arange(1, 3)
    return TrialResult(
        config=config,
        status=TrialStatus.REACHED,
        steps_to_target=float(rows[-1][0]),
        evaluations=[
            Measurement(step=step, examples=step * config.batch_size, value=value, train_loss=value, lr=config.lr)
            for step, value in rows
        ],
        steps={"step": steps, "examples": steps * config.batch_size, "train_loss": np.ones(2)},
        workload=WorkloadInfo(
            example_unit="sequence", tokens_per_example=32, metric_unit="nats/byte", parameters=parameters,
            data_hash="abc",
        ),
    )  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def _read_and_fitted_once() -> Iterator[None]:
    """No folder changes once it has been asked about, and most tests ask about the same ones."""
    read, fitted = cache(load), {}

    def once(results: Results, config: AnalysisConfig, **asked: Any) -> list[Answer]:
        key = (id(results), repr((config, asked)))
        if key not in fitted:
            fitted[key] = answers(results, config, **asked)
        return fitted[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("extensions.scale.scaling.load", lambda *paths: read(*map(str, paths)))
        patch.setattr("extensions.scale.scaling.answers", once)
        yield


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("three")
    for width in WIDTHS:
        sweep(root / f"w{width}", width, optimizers=("adamw", "muon"))
    return root


@pytest.fixture(scope="module")
def found(three: Path) -> Scaling:
    return scale([three], AnalysisConfig(resamples=300), targets=TARGETS, hold_data=[800_000])


def test_every_variant_optimizer_and_target_is_a_point(found: Scaling) -> None:
    own = [point for point in found.points if point.held_data is None]
    assert len(own) == len(WIDTHS) * 2 * len(TARGETS)
    for point in own:
        speed = 2.0 if point.optimizer == "muon" else 1.0
        low, high = point.interval
        truth = speed * B_STAR / point.target.value ** (1 / ALPHA)
        assert low / 1.2 < truth < high * 1.2  # 18 intervals of 95 %: some just miss
        assert point.data_unit == "token"
        assert point.compute == pytest.approx(6 * point.parameters * point.data)


def test_kaplans_law_against_the_loss(found: Scaling) -> None:
    law = next(law for law in found.laws if law.axis == "loss" and law.optimizer == "adamw")
    kaplan = law.kaplan
    assert kaplan["alpha_interval"][0] < ALPHA < kaplan["alpha_interval"][1]
    assert kaplan["B_star_interval"][0] < B_STAR < kaplan["B_star_interval"][1]
    assert law.also_varies == "width"


def test_at_equal_data_wider_models_have_reached_further(found: Scaling) -> None:
    """On 800,000 tokens the loss falls with the width, and B_crit grows as Kaplan's law says."""
    points = [point for point in found.points if point.held_data is not None and point.optimizer == "adamw"]
    assert [point.data for point in points] == [800_000] * 3
    for point in points:
        # beside its logarithm the exponent of the curve is fitted, too
        assert point.critical_batch_size == pytest.approx(B_STAR / point.target.value ** (1 / ALPHA), rel=0.15)
    assert points[0].critical_batch_size < points[1].critical_batch_size < points[2].critical_batch_size
    law = next(law for law in found.comparisons if "data=" in law.held and law.optimizer == "adamw")
    assert law.fit.exponent > 0


def test_one_size_at_several_targets(three: Path, tmp_path: Path) -> None:
    found = scale([three / "w32"], QUICK, targets=TARGETS, against=["data"], at=[1e9, 6e5])
    present.write(found, tmp_path / "out")
    law = found.laws[0]
    far, near = law.predictions
    assert law.x.max() * far.times_beyond_the_data == pytest.approx(1e9)
    assert near.times_beyond_the_data == 1
    assert far.interval[0] < far.critical_batch_size < far.interval[1]
    assert "layers" not in law.also_varies
    assert (tmp_path / "out" / "scaling-data.png").is_file()
    assert len(pd.read_csv(tmp_path / "out" / "predictions.csv")) == 4


def test_two_sizes_are_a_ratio_and_no_law(three: Path, tmp_path: Path) -> None:
    found = scale([three / "w16", three / "w64"], QUICK, against=["parameters"])
    for law in found.laws:
        assert law.fit is None
        assert law.remark.startswith("too few values for a law; over a factor 13.7 B_crit changes by a factor")
    assert not any("too few values" in note for note in found.notes), "it is said below the table"


def test_data_at_a_reference_batch_size(three: Path, tmp_path: Path) -> None:
    least, at_64 = (scale([three / "w32"], QUICK, targets=TARGETS, data_at_batch=batch) for batch in (None, 64.0))
    assert "batch size of 64" in at_64.data
    measured = answers(load(three / "w32"), QUICK, targets=TARGETS, noise=False)
    for a, b in zip(least.points, at_64.points, strict=True):
        assert a.data is not None
        (answer,) = [
            answer
            for answer in measured
            if (answer.group.optimizer, answer.target) == (a.optimizer, a.target) == (b.optimizer, b.target)
        ]
        assert a.data == pytest.approx(32 * answer.examples_at_critical.value)
        assert b.data == pytest.approx(32 * 64 * math.exp(answer.draws.estimate(np.array([64.0]))[0]))


def test_data_that_only_follow_the_critical_batch_size_are_said_to(
    found: Scaling, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where all models need the same fewest steps, data counted at B_crit are a multiple of it: the exponent is 1."""
    said = "data, counted at B_crit, is proportional to it, as the steps there hardly differ"
    assert not any("hardly differ" in note for note in found.notes)
    scatter = dict(zip(WIDTHS.values(), (16.0, 120.0, 45.0), strict=True))
    monkeypatch.setitem(
        globals(), "steps_to", lambda loss, size, batch, speed: 400 * (1 + scatter[size] / batch) / loss
    )
    folders = [sweep(tmp_path / f"w{width}", width) for width in WIDTHS]
    own, apart = (scale(folders, QUICK, targets=[2.4], against=["data"], data_at_batch=batch) for batch in (None, 4.0))
    assert own.laws[0].fit.exponent == pytest.approx(1.0, abs=0.2)
    assert [note for note in own.notes if said in note]
    assert not [note for note in apart.notes if said in note]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"against": ["tokens"]}, "--against tokens: known are data, parameters, loss, compute"),
        ({"at": [1e9]}, "--at needs exactly one --against"),
        ({"against": ["data"], "at": [-1.0]}, "positive numbers"),
        ({"vary": ["hidden"]}, "--vary hidden: no point has it"),
        ({"against": ["loss"]}, "no law against loss: synthetic, adamw: 1 point, and loss does not vary"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(three: Path, tmp_path: Path, arguments: dict, message: str) -> None:
    with pytest.raises(CbsError, match=message) as caught:
        scale([three / "w32"], QUICK, **arguments)
    assert "\n" not in str(caught.value)


def test_points_that_only_the_form_of_their_curve_gives_are_named(three: Path, tmp_path: Path) -> None:
    sweep(tmp_path / "low", 32, parameters=60_000, batch_sizes=(2, 4, 8, 16), noise=0.003)
    found = scale([three, tmp_path / "low"], replace(QUICK, definition="pareto"), against=["parameters"])
    (note,) = [note for note in found.notes if note.startswith("above the measured batch sizes: ")]
    assert any(point.sweep == "low" and point.critical_batch_size > 32 for point in found.points)
    assert note.endswith(f" of {len(found.points)} points, see points.csv")
    doubted = {index for index, point in enumerate(found.points) if point.verdict is not Verdict.OK}
    assert {index for index, point in enumerate(found.points) if point.sweep == "low"} <= doubted
    (law,) = [law for law in found.laws if law.optimizer == "adamw"]
    assert law.doubted == len(doubted & set(law.points)) > 0


def test_the_figure_draws_what_its_table_holds(found: Scaling) -> None:
    for axis, data, points in (("data", None, 18), ("width", None, 18), ("width", 800_000, 6)):
        table = FIGURES["scaling"].compute(Against(found, axis, data))
        assert set(table["optimizer"]) == {"adamw", "muon"}
        assert (table["kind"] == "point").sum() == points
        axes = FIGURES["scaling"].figure(table).axes[0]
        assert axes.get_xscale() == axes.get_yscale() == "log"
        assert "sequences" in axes.get_ylabel()


def test_options_of_the_definition_reach_the_points(three: Path, run: Callable, tmp_path: Path) -> None:
    """The command asks what the library is asked, and a larger overhead is a larger batch size."""
    found = {}
    options = ("--resamples", 200, "--figures", "none", "--json", "-o", tmp_path)
    for overhead in ("", "(overhead=1)", "(overhead=0.5)"):
        definition = ("--definition", f"overhead{overhead}")
        code, out, err = run("scale", three / "w32", "--target", 2.4, "--target", 3.0, *definition, *options)
        assert code == 0, err
        found[overhead] = [point["critical_batch_size"] for point in json.loads(out)["points"]]
    (default, whole, half) = (np.array(values) for values in found.values())
    assert (default < half).all()
    assert (half < whole).all()
    config = AnalysisConfig(definition="overhead", options={"overhead": {"overhead": 1.0}}, resamples=200)
    asked = scale([three / "w32"], config, targets=[2.4, 3.0])
    assert whole.tolist() == [point.critical_batch_size for point in asked.points]


def test_the_command(three: Path, tmp_path: Path) -> None:
    app = cli.application()
    arguments = ["scale", str(three), "--target", "2.4", "--target", "3.0", "--against", "data", "--at", "1e8"]
    options = ["--resamples", "100", "--figures", "none", "--wide", "-o", str(tmp_path / "out")]
    shown = CliRunner().invoke(app, [*arguments, *options])
    assert shown.exit_code == 0, shown.output
    said = " ".join(shown.output.split())  # where lines break hangs on the length of the folder's name
    assert "times beyond the data" in said
    assert "All else equal" in said
    printed = CliRunner().invoke(app, [*arguments, *options, "--json"])
    assert json.loads(printed.stdout)["laws"][0]["axis"] == "data"

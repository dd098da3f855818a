"""From a folder of results to a report: numbers, verdicts, JSON and files."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import jsonschema
import pandas as pd
import pytest

from analysis import Analysis, analyze, present
from analysis.config import AnalysisConfig
from analysis.estimate.definitions import DEFINITIONS
from cbs.errors import ConfigError, UnknownNameError
from cbs.trial.target import Target
from tests.analysis.present.test_answers import printed
from tests.factories import TARGET, Truth, sweep

SIZES = (2, 8, 32, 128, 512)
LRS = (1e-3, 2e-3, 4e-3, 8e-3)
INTERIOR = Truth(lr_at_1=2e-3, lr_power=0.0)
NOISY = {"adamw": dataclasses.replace(INTERIOR, noise=0.05)}

CLOSE = 0.03  # Relative error of a critical batch size of exact steps: the prior and the draws leave about 1 %

NUMBER = {"type": ["number", "null"]}
TEXT, OBJECT = {"type": "string"}, {"type": ["object", "null"]}
PAIR = {"type": "array", "items": NUMBER, "minItems": 2, "maxItems": 2}


def entries(numbers: str, **others: Any) -> dict[str, Any]:
    """The schema of an object with these numbers, each with its interval where the name has a ``+``, and others."""
    names = numbers.split()
    pairs = [f"{name[:-1]}_interval" for name in names if name.endswith("+")]
    properties = dict.fromkeys([name.rstrip("+") for name in names], NUMBER) | dict.fromkeys(pairs, PAIR) | others
    return {"type": "object", "properties": properties, "required": [*properties]}


def many(entry: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": entry}


POINT = entries(
    "batch_size steps_to_target examples_to_target best_lr seeds seeds_reached simple_noise_scale matched_noise_scale "
    "clipped_share",
    at_grid_edge={"type": ["boolean", "null"]},
    status=TEXT,
)
CRITICAL = entries(
    "critical_batch_size",
    definition={"enum": DEFINITIONS.names()},
    options={"type": "object"},
    interval=PAIR,
    remark=TEXT,
)
WORDS = ("sweep", "workload", "optimizer", "example_unit", "verdict", "advice", "matched_geometry")
NOTES = ("simple_noise_scale_note", "matched_noise_scale_note")
FIT = entries(
    "exponent+ moved_by_prior moved_by_warmup critical_batch_size min_steps+ examples_at_critical+ tokens_per_example "
    "residual_rms seed_deviation shared_by_seeds simple_noise_scale+ simple_noise_scale_ratio+ matched_exponent "
    "matched_noise_scale+ matched_noise_scale_ratio+",
    **dict.fromkeys([*WORDS, *NOTES], TEXT),
    **dict.fromkeys(["hyperbola", "sudden_change"], OBJECT),
    **dict.fromkeys(["interval", "within_10_percent"], PAIR),
    target={"type": "object", "required": ["metric", "value", "direction"]},
    definition={"enum": DEFINITIONS.names()},
    definitions=many(CRITICAL) | {"minItems": len(DEFINITIONS.names())},
    doublings=many(entries("batch_size steps_saved+ examples_added+")),
    far_seeds={"type": "array"},
    points=many(POINT),
    matched_symbol={"type": ["string", "null"]},
)
SCHEMA = entries(
    "",
    schema_version={"const": present.SCHEMA_VERSION},
    fits=many(FIT),
    suggestions={"type": ["array", "null"], "items": {"type": "object", "required": ["reasons", "command"]}},
    files=many(TEXT),
)


def run(path: Path, *, targets: Any = None, suggestions: bool = False, **config: Any) -> Analysis:
    """Analyze; every result has to be strict JSON of the schema."""
    made = AnalysisConfig(**({"resamples": 400} | config))
    found = analyze(path, made, targets=targets, suggestions=suggestions)
    text = json.dumps(present.to_json(found), allow_nan=False)
    jsonschema.validate(json.loads(text), SCHEMA)
    return found


def written(found: Analysis, folder: Path) -> tuple[Path, ...]:
    return present.write(found, folder, figures=None)


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Noise-free, interior optimum, two optimizers."""
    root = tmp_path_factory.mktemp("exact")
    optimizers = {"adamw": INTERIOR, "muon": dataclasses.replace(INTERIOR, min_steps=80.0, min_examples=4000.0)}
    sweep(root, optimizers, batch_sizes=SIZES, lrs=LRS, seeds=2, growth=1.3, moments=True, warmup_steps=0)
    return root


def test_known_parameters_come_back(exact: Path) -> None:
    adamw, muon = run(exact).answers
    assert adamw.examples_at_critical.value == pytest.approx(2 * 7381, rel=0.01)
    for answer, critical in ((adamw, 7381 / 175), (muon, 50.0)):
        assert answer.critical_batch_size == pytest.approx(critical, rel=CLOSE)
        low, high = answer.interval
        assert critical / 1.2 < low < critical < high < critical * 1.2
        # on the hyperbola from .54 to 1.86 times the least product; the curve is drawn at steps of 5 %
        assert answer.near == (pytest.approx(0.54 * critical, rel=0.1), pytest.approx(1.86 * critical, rel=0.1))
    assert (adamw.verdict, adamw.advice) == ("ok", "")
    assert [point.best_lr for point in adamw.points] == [2e-3] * len(SIZES)
    assert adamw.noise_scale.value == pytest.approx(20 / (0.5 * 1.25), rel=0.4)


def test_plain_and_matched_noise_scales_beside_the_critical_batch_size(tmp_path: Path) -> None:
    truth = {
        "muon": dataclasses.replace(NOISY["adamw"], geometry="nuclear", own_signal=2.0, own_noise=10.0),
        "sgd": NOISY["adamw"],
    }
    sweep(tmp_path, truth, batch_sizes=SIZES, lrs=LRS, seeds=2, growth=1.3, moments=True)
    found = run(tmp_path)
    written(found, tmp_path / "analysis")
    muon, sgd = found.to_json()["fits"]
    assert (muon["matched_geometry"], sgd["matched_geometry"]) == ("nuclear", "l2")
    nearest = min(SIZES, key=lambda size: abs(math.log(size / muon["critical_batch_size"])))
    assert muon["matched_noise_scale"] == pytest.approx(25 * (1 + muon["simple_noise_scale"] / nearest), rel=0.1)
    assert muon["simple_noise_scale"] == pytest.approx(20 / (0.5 * 1.25), rel=0.4)
    for name in ("", "_interval", "_note", "_ratio", "_ratio_interval"):
        assert sgd[f"matched_noise_scale{name}"] == sgd[f"simple_noise_scale{name}"]
    for fit in (muon, sgd):
        for kind in ("simple", "matched"):
            value, (low, high) = fit[f"{kind}_noise_scale_ratio"], fit[f"{kind}_noise_scale_ratio_interval"]
            assert value == pytest.approx(fit[f"{kind}_noise_scale"] / fit["critical_batch_size"])
            assert low < value < high
            assert low < fit[f"{kind}_noise_scale_interval"][0] / fit["critical_batch_size"]
    row = pd.read_csv(tmp_path / "analysis" / "summary.csv").iloc[0]
    assert row["matched_noise_scale_ratio"] == pytest.approx(muon["matched_noise_scale_ratio"])
    assert row["matched_noise_scale_ratio_high"] == pytest.approx(muon["matched_noise_scale_ratio_interval"][1])
    assert "matched_noise_scale" in pd.read_csv(tmp_path / "analysis" / "points.csv")


def test_a_target_is_chosen_afterwards_from_the_same_curves(exact: Path) -> None:
    report = run(exact, targets=[2.8, 2.6, 2.4])
    found = {(answer.group.optimizer, answer.target.value): answer for answer in report.answers}
    assert len(found) == 6
    for value in (2.4, 2.6, 2.8):
        scale = math.exp((2.4 - value) / 0.3)
        assert found["adamw", value].examples_at_critical.value == pytest.approx(2 * 7381 * scale, rel=0.02)
        assert found["adamw", value].critical_batch_size == pytest.approx(7381 / 175, rel=CLOSE)


def test_the_report_on_disk_is_the_report(exact: Path, tmp_path: Path) -> None:
    found = run(exact)
    before = sorted(exact.rglob("*"))
    files = written(found, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "report.json").read_text()) == present.to_json(found, files=files)
    tables = {f"{name}.{end}" for name in ("summary", "doublings", "definitions") for end in ("csv", "tex")}
    assert {path.name for path in files} == {"report.json", "summary_full.tex", "points.csv", *tables}
    assert all(path.is_file() for path in files)
    assert sorted(exact.rglob("*")) == before
    assert sorted(tmp_path.iterdir()) == [tmp_path / "out"]
    summary = pd.read_csv(tmp_path / "out" / "summary.csv")
    assert summary["critical_batch_size_tokens"].tolist() == pytest.approx([32 * 7381 / 175, 1600], rel=CLOSE)
    assert len(pd.read_csv(tmp_path / "out" / "points.csv")) == 2 * len(SIZES)


def test_another_definition_is_shown_in_place_of_the_headline(exact: Path, tmp_path: Path) -> None:
    options = {"overhead": {"overhead": 0.5, "reference_batch": 8.0}}
    adamw = run(exact, definition="overhead", options=options).answers[0]
    assert adamw.critical_batch_size == pytest.approx(1.5 * 8 + 0.5 * 7381 / 175, rel=CLOSE)
    assert adamw.definitions["least_product"].value == pytest.approx(7381 / 175, rel=CLOSE)
    found = run(exact, options=options)
    written(found, tmp_path)
    beside = found.answers[0]
    assert beside.critical_batch_size == adamw.definitions["least_product"].value
    assert beside.definitions["overhead"].to_json() == adamw.critical.to_json()
    summary = pd.read_csv(tmp_path / "summary.csv")
    assert summary["exponent"].tolist() == pytest.approx([1.0, 1.0], abs=0.05)
    assert (summary["within_10_percent_low"] < summary["critical_batch_size"]).all()


def test_the_law_across_targets_is_in_the_report(exact: Path, tmp_path: Path) -> None:
    """The steps of the synthetic sweep scale with the loss, so its critical batch size does not move; the law's is an
    asymptote."""
    fits = run(exact, targets=[2.4, 2.6, 2.8]).to_json()["fits"]
    for fit in fits:
        kaplan = next(entry for entry in fit["definitions"] if entry["definition"] == "kaplan")
        assert kaplan["critical_batch_size"] == pytest.approx(7381 / 175, rel=0.3)
        assert "extrapolated" in kaplan["remark"]


def test_an_answer_that_is_not_ok_says_which_trials_would_help(tmp_path: Path) -> None:
    sweep(tmp_path, {"adamw": INTERIOR}, batch_sizes=(1, 2, 4), lrs=LRS, growth=1.3)
    report = run(tmp_path)
    (suggestion,) = report.to_json()["suggestions"]
    assert suggestion["optimizer"] == "adamw"
    shown = " ".join(printed(report, wide=True).split())
    assert f"trials that would help adamw, validation_loss < 2.4: {suggestion['reasons'][0]}" in shown
    assert "trials that would help" not in printed(report)
    sweep(tmp_path / "none", {"adamw": INTERIOR}, batch_sizes=(1, 2), lrs=LRS, growth=1.3, max_steps=10)
    assert run(tmp_path / "none", suggestions=True).suggestions == ()


def test_nobody_reaching_the_target_is_a_normal_result(tmp_path: Path) -> None:
    sweep(tmp_path, {"adamw": INTERIOR}, batch_sizes=SIZES, lrs=LRS, max_steps=100, growth=1.3)
    report = run(tmp_path)
    fit = report.to_json()["fits"][0]
    assert fit["critical_batch_size"] is None
    assert fit["verdict"] == "target not reached"
    assert [point["status"] for point in fit["points"]] == ["BUDGET_EXHAUSTED"] * len(SIZES)
    assert [point["steps_lower_bound"] for point in fit["points"]] == [100] * len(SIZES)
    easier = float(fit["advice"].split("validation_loss < ")[1].split()[0])
    assert run(tmp_path, targets=[easier]).answers[0].critical_batch_size is not None


@pytest.mark.parametrize(
    ("sizes", "verdict", "sides"),
    [
        ((1, 2, 4), "above the measured batch sizes", (True, False)),
        ((4096, 8192, 16384), "below the measured batch sizes", (False, True)),
    ],
)
def test_one_part_of_the_curve_alone_bounds_from_one_side(
    tmp_path: Path, sizes: tuple[int, ...], verdict: str, sides: tuple[bool, bool]
) -> None:
    sweep(tmp_path, NOISY, batch_sizes=sizes, lrs=LRS, seeds=2, growth=1.3)
    report = run(tmp_path)
    answer = report.answers[0]
    assert answer.verdict == verdict
    assert answer.critical_batch_size is None
    assert tuple(end is not None for end in answer.interval) == sides
    assert sizes[0] <= next(end for end in answer.interval if end) <= sizes[-1]
    assert (f"{'above' if sides[0] else 'below'} {sizes[2 if sides[0] else 0]:,}" in printed(report)) == (
        answer.interval in ((sizes[2], None), (None, sizes[0]))
    )


def test_an_optimum_at_the_edge_and_a_single_seed_are_said(tmp_path: Path) -> None:
    more: dict[str, Any] = {"batch_sizes": SIZES, "growth": 1.3, "warmup_steps": 0}
    sweep(tmp_path / "edge", {"adamw": INTERIOR}, lrs=(5e-4, 1e-3), seeds=2, **more)
    answer = run(tmp_path / "edge").answers[0]
    assert answer.verdict == "LR optimum at edge of grid"
    assert "2 (0.001)" in answer.advice
    sweep(tmp_path / "one", NOISY, lrs=LRS, **more)
    answer = run(tmp_path / "one").answers[0]
    assert answer.verdict == "too few seeds"
    assert "one seed" in answer.advice
    assert (answer.draws.freedom, answer.to_json()["seed_deviation"]) == (0, None)


def test_an_accuracy_is_reached_from_below(tmp_path: Path) -> None:
    target = Target(metric="accuracy", value=0.7, direction="above")
    sweep(tmp_path, {"adamw": INTERIOR}, batch_sizes=(2, 32, 256), lrs=LRS, growth=1.3, target=target)
    assert run(tmp_path).answers[0].critical_batch_size == pytest.approx(7381 / 175, rel=0.1)
    assert run(tmp_path, targets=[0.5]).answers[0].critical_batch_size == pytest.approx(7381 / 175, rel=0.1)
    assert run(tmp_path, targets=[0.9]).answers[0].verdict == "target not reached"


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"targets": [99.0]}, ConfigError, "before the first step"),
        ({"targets": [dataclasses.replace(TARGET, metric="accuracy")]}, ConfigError, "does not fit sweep"),
        ({"targets": [math.nan]}, ConfigError, "finite"),
        ({"definition": "paretto"}, UnknownNameError, "pareto"),
        ({"options": {"pareto": {"overhead": 0.2}}}, ConfigError, "'pareto' has no option 'overhead'"),
        ({"options": {"overhead": {"overhead": -1}}}, ConfigError, "overhead must be a number above 0"),
        ({"confidence": 1.0}, ConfigError, "confidence"),
        ({"resamples": 3}, ConfigError, "resamples"),
    ],
)
def test_misuse_is_one_clear_line(exact: Path, options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        run(exact, **options)
    assert "\n" not in str(caught.value)


def test_of_several_sweeps_the_one_whose_target_is_too_easy_can_be_left_out(tmp_path: Path) -> None:
    for name in ("one", "two"):
        sweep(tmp_path / name, {"adamw": INTERIOR}, batch_sizes=(2, 32, 256), lrs=LRS, growth=1.3, name=name)
    with pytest.raises(ConfigError, match=r"choose a harder target, or give the folder of the sweep that is meant$"):
        run(tmp_path, targets=[99.0])
    with pytest.raises(ConfigError, match=r"choose a harder target$"):
        run(tmp_path / "one", targets=[99.0])

"""Losses predicted from a table of runs: the question, and ``cbs theory loss``."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.config import AnalysisConfig
from analysis.estimate.forms import FORMS, Reference
from analysis.estimate.laws.loss import fit
from analysis.extensions.theory.loss import Losses, losses
from analysis.extensions.theory.loss.critical import implied
from analysis.extensions.theory.loss.holdout import holdout
from analysis.extensions.theory.loss.predicted import predicted
from analysis.extensions.theory.loss.rows import read
from analysis.present import presentation
from analysis.present.figures import figures_of
from cbs.errors import DataError
from tests.references import loss_forms
from tests.references.loss_worlds import TRUTH, coordinates, made, table

QUICK = AnalysisConfig(resamples=100)
SMALL = {"batch_sizes": (16, 128, 1024), "steps": (300, 1500, 8000)}


@pytest.fixture(scope="module")
def found() -> Losses:
    """36 runs of the noisy quadratic system with 0.3 % noise."""
    runs = made(noise=0.003, **SMALL)
    return losses(table(runs), QUICK, holdouts=["N"], at=["2.5e8,256,20000"], targets=[2.6])


def test_the_form_the_runs_are_of_predicts_those_left_out(found: Losses) -> None:
    (one,) = found.holdouts
    assert (one.axis, one.start, one.beyond, int(one.left_out.sum())) == ("N", 6.4e7, 4.0, 9)
    entries = {entry.form: entry for entry in one.entries}
    error = {name: entry.error or np.inf for name, entry in entries.items()}
    assert error["nqs"] < 0.012  # four times the noise; the others cannot follow a loss that grows with the steps
    assert error["nqs"] < 0.2 * min(error["kaplan"], error["chinchilla"])
    low, high = entries["nqs"].interval
    assert low is not None
    assert high is not None
    assert low < error["nqs"] < high
    assert (entries["nqs"].inside or 0) >= 7


def test_the_error_is_of_runs_that_were_not_fitted() -> None:
    """Spoiling the runs left out changes what is predicted of none."""
    runs = made("chinchilla", noise=0.003, **SMALL)
    plain = holdout(runs, "D", None, ["chinchilla"], QUICK)
    assert plain is not None
    spoilt = runs.of(np.arange(len(runs.loss)))
    spoilt.loss[plain.left_out] *= 1.5
    other = holdout(spoilt, "D", None, ["chinchilla"], QUICK)
    assert other is not None
    before, after = plain.entries[0], other.entries[0]
    assert before.log_ratio is not None
    assert after.log_ratio is not None
    assert after.log_ratio[plain.left_out] == pytest.approx(before.log_ratio[plain.left_out] - np.log(1.5))
    assert before.inside == int(plain.left_out.sum())
    assert after.inside == 0
    assert after.bias == pytest.approx(before.bias - np.log(1.5))


def test_a_prediction_holds_the_truth_and_is_no_surer_than_the_holdout(found: Losses) -> None:
    by_form = {one.form: one for one in found.predictions}
    there = made(rows=[(2.5e8, 256, 20000)])
    reference = Reference.of(made(**SMALL))
    truth = FORMS["nqs"].loss(coordinates("nqs", reference)[None], there, reference)[0][0, 0]
    low, high = by_form["nqs"].interval
    assert low is not None
    assert high is not None
    assert low < truth < high
    errors = {entry.form: entry.error for entry in found.holdouts[0].entries}
    for name, one in by_form.items():
        low, high = one.interval
        assert low is not None
        assert high is not None
        assert np.log(high / low) > 2.5 * (errors[name] or np.inf)  # 3.9 of them, if nothing else were unknown
    assert by_form["nqs"].times_beyond == pytest.approx(2.5e8 * 256 * 20000 / (6.4e7 * 1024 * 8000))


def test_the_critical_batch_size_is_that_of_the_form(found: Losses) -> None:
    """Twice the fewest steps, with the truth's own curve by the step-by-step twin's formula."""
    one = next(each for each in found.implied if each.form == "nqs")
    reference = Reference.of(made(**SMALL))
    at = coordinates("nqs", reference)[None]

    def loss(batch_size: float, steps: float) -> float:
        return float(FORMS["nqs"].loss(at, made(rows=[(6.4e7, batch_size, steps)]), reference)[0][0, 0])

    grid = np.geomspace(100, 1e5, 4000)
    fewest = grid[next(index for index, steps in enumerate(grid) if loss(1e30, steps) <= 2.6)]
    sizes = np.geomspace(1, 1e5, 4000)
    critical = sizes[next(index for index, size in enumerate(sizes) if loss(size, 2 * fewest) <= 2.6)]
    low, high = one.critical.interval
    assert low is not None
    assert high is not None
    assert low < critical < high
    assert one.critical.value == pytest.approx(critical, rel=0.2)
    assert one.min_steps.value == pytest.approx(fewest, rel=0.1)


def test_kaplan_implies_its_own_law() -> None:
    runs = made("kaplan", **SMALL)
    found = fit("kaplan", runs, QUICK)
    one, law = implied(found, runs, 6.4e7, 2.4, QUICK), TRUTH["kaplan"]
    assert one.critical.value == pytest.approx(law["B_star"] / 2.4 ** (1 / law["alpha_B"]), rel=0.02)
    assert one.exponent.value == pytest.approx(1.0, abs=0.02)
    assert one.remark == ""
    unreachable = implied(found, runs, 6.4e7, 0.9, QUICK)
    assert unreachable.critical.value is None
    assert "does not reach this loss" in unreachable.remark
    next_to_perfect = implied(found, runs, 6.4e7, 1.75, QUICK)
    assert "B_crit is beyond the batch sizes measured, 16 to 1024" in next_to_perfect.remark


def test_a_new_run_is_as_the_twin_has_it() -> None:
    runs = made("kaplan", **SMALL)
    one = predicted(fit("kaplan", runs, QUICK), runs, (1e9, 64, 20000), 0.05, QUICK)
    assert one.loss == pytest.approx(loss_forms.kaplan(1e9, 64, 20000, **TRUTH["kaplan"]), rel=1e-3)
    low, high = one.interval
    assert low is not None
    assert high is not None
    assert np.log(high / low) == pytest.approx(2 * 1.96 * 0.05, rel=0.4)  # of 100 draws


def test_what_cannot_be_fitted_is_said_and_the_rest_answered() -> None:
    runs = made("chinchilla", noise=0.003, batch_sizes=(64,))
    found = losses(table(runs), QUICK)
    assert set(found.fits) == {"chinchilla"}
    assert found.refused["nqs"] == "gamma R and r cannot be separated with 1 batch size; it takes 2"
    assert found.implied == ()
    lines = "\n".join(str(line) for part in presentation(found).shown for line in getattr(part, "lines", [part]))
    assert "nqs is not fitted: gamma R and r" in lines
    with pytest.raises(DataError, match="E, P and p cannot be separated with 2 model sizes"):
        losses(table(made(sizes=(1e6, 4e6))), QUICK)


def test_forms_that_are_far_apart_about_a_batch_size_are_said_to_be(found: Losses) -> None:
    one = next(each for each in found.implied if each.critical.value)

    def said(factor: float) -> str:
        value = one.critical.value
        assert value is not None
        other = replace(one, form="another", critical=replace(one.critical, value=factor * value))
        return "\n".join(map(str, presentation(replace(found, implied=(one, other))).shown))

    assert f"{one.form} and another differ by a factor of 3: losses do not determine B_crit" in said(3.0)
    assert "differ by a factor" not in said(1.5)


def test_rows_are_read_as_they_are_meant() -> None:
    frame = table(made("chinchilla", **SMALL)).drop(columns="run")
    worse = frame.assign(loss=frame["loss"] * 1.1, lr=0.1)
    both = pd.concat([frame.assign(lr=0.2), worse, frame[:1].assign(loss=np.inf, lr=0.2)])
    _, runs, notes = read(both)
    assert sorted(runs.loss) == pytest.approx(sorted(frame["loss"]))
    assert len(np.unique(runs.group)) == 12
    assert [note.split(":")[0] for note in notes[:2]] == [
        "1 row without a finite loss left out",
        "of several learning rates the one with the lowest mean loss is kept",
    ]
    assert "add a column run where they do not" in notes[2]


def test_the_command_prints_and_writes(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "runs.csv"
    runs = made("chinchilla", noise=0.003, batch_sizes=(64,))
    table(runs).rename(columns={"K": "step"}).to_csv(path, index=False)
    given = [path, "--column", "K=step", "--resamples", 100, "--holdout", "N", "--at", "1e9,64,1e4"]
    code, out, err = run("theory", "loss", *given, "-o", tmp_path / "out", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert [one["form"] for one in found["predictions"]] == ["chinchilla"]
    written = {Path(name).name for name in found["files"]}
    assert {"holdout.csv", "parameters.csv", "predictions.csv", "losses.json", "loss_holdout.png"} <= written
    assert json.loads((tmp_path / "out" / "losses.json").read_text()) == found
    (error,) = pd.read_csv(tmp_path / "out" / "holdout.csv")["error_percent"]
    assert error == pytest.approx(100 * found["holdouts"][0]["entries"][0]["error"])


def test_what_is_drawn_is_what_was_found(found: Losses) -> None:
    pictures = {picture.name: picture for picture in figures_of(found)}
    assert set(pictures) == {"loss_holdout", "loss_steps"}
    off = pictures["loss_holdout"].table.query("form == 'nqs' and kind == 'left out'")["percent_off"]
    (nqs,) = (entry for entry in found.holdouts[0].entries if entry.form == "nqs")
    assert np.sqrt((np.log1p(off / 100) ** 2).mean()) == pytest.approx(nqs.error)
    for picture in pictures.values():
        assert picture.kind.figure(picture.table).axes


@pytest.mark.parametrize(
    ("change", "arguments", "words"),
    [
        ({}, ["--holdout", "Q"], "--holdout Q: it is one of N, B, K, D, C"),
        ({}, ["--holdout", "D:0"], "--holdout D:0: it is one of"),
        ({}, ["--at", "1e9,512"], "--at 1e9,512: it is N,B,K"),
        ({}, ["--target", "-1"], "--target must be above 0"),
        ({"loss": -1.0}, [], "line 2, column 'loss': '-1.0' is not a loss above 0"),
        ({"N": 0}, [], "column 'N': '0' must be above 0"),
        ({"K": ""}, [], "column 'K': it is empty; every row needs K"),
        ({"loss": "nan"}, [], "no row has a finite loss"),
        ({}, ["--column", "M=N"], "no column 'M' is looked for"),
    ],
)
def test_a_mistake_is_one_line(run, tmp_path: Path, change, arguments, words) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "runs.csv"
    table(made("chinchilla", **SMALL)).assign(**change).to_csv(path, index=False)
    code, out, err = run("theory", "loss", path, *arguments)
    assert (code, out) == (2, "")
    assert words in err.replace("\n", " ")
    assert "Traceback" not in err

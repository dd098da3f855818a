"""Figures that single papers have: what is in their tables, and that they are drawn of nothing else."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from analysis import analyze
from analysis.config import AnalysisConfig
from analysis.present.figures import FIGURES
from analysis.questions.compare.optimizers import compare
from tests.factories import Truth, sweep
from tests.sweeps.test_axes import stored as stored  # a sweep with tuned momentum

QUICK = AnalysisConfig(resamples=100)
TRUTHS = {"adamw": Truth(noise=0.02), "muon": Truth(noise=0.02, min_steps=90.0)}
SIZES = (4, 16, 64, 256)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("two")
    sweep(root, TRUTHS, batch_sizes=SIZES, lrs=(1e-3, 2e-3, 4e-3, 8e-3), seeds=2)
    return root


def drawn(name: str, table: pd.DataFrame) -> Figure:
    figure = FIGURES[name].figure(table)
    figure.draw_without_rendering()
    return figure


def test_fronts_of_several_targets_are_in_one_panel_for_each_optimizer(two: Path) -> None:
    one, several = analyze(two, QUICK).answers, analyze(two, QUICK, targets=[2.4, 2.8, 3.2]).answers
    kind = FIGURES["pareto_goals"]
    assert kind.compute(one).empty
    assert kind.compute([]).empty
    table = kind.compute(several)
    assert set(table["panel"]) == {"adamw", "muon"}
    points = table[table["kind"] == "point"]
    for answer in several:
        mine = points[(points["panel"] == answer.group.optimizer) & (points["goal"] == answer.target.value)]
        assert list(mine["steps"]) == [point.steps_to_target for point in answer.points]
        assert list(mine["examples"]) == [point.examples_to_target for point in answer.points]
    figure = drawn("pareto_goals", table)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [f"validation loss < {goal}" for goal in (3.2, 2.8, 2.4)]


def test_the_token_ratio_has_a_line_for_every_target(two: Path) -> None:
    kind = FIGURES["token_ratio_goals"]
    assert kind.compute(compare(two, QUICK)).empty
    found = compare(two, QUICK, targets=[2.4, 2.8])
    table = kind.compute(found)
    assert set(table["panel"]) == {"adamw / muon"}
    for each, goal in zip(found.comparisons, (2.4, 2.8), strict=True):
        own = table[table["goal"] == goal]
        assert list(own["token_ratio"]) == [at.value for at in each.token_ratios[0].at]
        assert list(own["batch_size"]) == list(SIZES)
    assert {text.get_text() for text in drawn("token_ratio_goals", table).axes[0].texts} >= {"2.4", "2.8"}


def test_pairs_of_tuned_options_are_marked_by_how_their_trials_ended(stored: Path) -> None:
    (answer,) = analyze(stored, QUICK).answers
    kind = FIGURES["tuned_option"]
    table = kind.compute([answer])
    assert set(table["option"]) == {"momentum"}
    for study, point in zip(answer.studies, answer.points, strict=True):
        own = table[table["batch_size"] == study.batch_size]
        hits, tried = np.isfinite(study.steps).sum(axis=1), study.ran.sum(axis=1)
        reached = ["reached" if hit == all_ else "reached by some seeds" for hit, all_ in zip(hits, tried, strict=True)]
        assert [name for name in own["outcome"] if name.startswith("reached")] == [
            name for name, hit in zip(reached, hits, strict=True) if hit
        ]
        (best,) = own[own["best"]].itertuples()
        assert (best.lr, f"momentum={best.value:g}") == (point.best_lr, point.tuned)
    diverged = table["outcome"] == "diverged"
    assert diverged.sum() == sum(
        set(study.status[row][study.ran[row]]) == {"DIVERGED"}
        for study in answer.studies
        for row in range(len(study.lrs))
    )
    axes = drawn("tuned_option", table).axes[0]
    assert axes.get_ylabel() == "1 - momentum"
    marked = np.concatenate([line.get_ydata() for line in axes.lines])
    assert set(np.round(marked, 9)) <= {0.2, 0.1, 0.05, 0.02}


def test_data_against_steps_at_one_rate_have_three_pieces_and_their_residual(tmp_path: Path, two: Path) -> None:
    sweep(tmp_path, {"adamw": Truth(curvature=0.35)}, batch_sizes=tuple(2**k for k in range(2, 10)), lrs=(4e-3,),
          prune_factor=None)  # fmt: skip
    (answer,) = analyze(tmp_path, QUICK).answers
    kind = FIGURES["one_rate"]
    table = kind.compute([answer])
    points, pieces, hyperbola, best = (
        table[table["kind"] == name] for name in ("point", "pieces", "hyperbola", "best")
    )
    assert list(points["examples"]) == [point.examples_to_target for point in answer.points]
    assert answer.hyperbola is not None
    curve = answer.hyperbola.curve.mapped(np.median)
    sizes = (hyperbola["examples"] / hyperbola["steps"]).to_numpy(float)
    np.testing.assert_allclose(np.log(hyperbola["steps"]), curve.log_steps(sizes), rtol=1e-5)
    assert pieces["residual"].iloc[0] < 0.5 * hyperbola["residual"].iloc[0]
    misses = curve.log_steps(points["batch_size"].to_numpy(float)) - np.log(points["steps"].to_numpy(float))
    assert hyperbola["residual"].iloc[0] == pytest.approx(np.sqrt(np.mean(misses**2)), rel=0.02)
    assert best["examples"].iloc[0] == pytest.approx(pieces["examples"].min(), rel=1e-3)
    drawn("one_rate", table)
    assert kind.compute(analyze(two, QUICK).answers).empty, "learning rates were searched"

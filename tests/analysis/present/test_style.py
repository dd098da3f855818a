"""How figures look: labels, ticks, keys, colours and names, those that the author sets, too; those of single papers."""

import itertools
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text

from analysis import analyze
from analysis.config import AnalysisConfig
from analysis.figure_options import FigureLabels, parse_figures
from analysis.present import style
from analysis.present.figures import FIGURES
from analysis.present.style.scales import width, wrapped
from analysis.questions.compare.optimizers import compare
from cbs.errors import ConfigError
from tests.factories import Truth, sweep
from tests.sweeps.test_axes import stored as stored  # a sweep with tuned momentum


@given(st.lists(st.floats(-0.2, 1.2), min_size=1, max_size=9), st.floats(0.01, 0.11))
def test_labels_never_overlap(positions: list[float], gap: float) -> None:
    placed = style.spread(positions, gap)
    assert np.all(np.diff(np.sort(placed)) >= gap * 0.98)
    order = np.argsort(positions, kind="stable")
    assert np.all(np.diff(placed[order]) >= 0)


def test_tick_labels_are_plain() -> None:
    values = (0.001, 0.25, 8, 256, 4096, 16384, 20000, 65536, 12345, 3e6, 2e9)
    labels = ["0.001", "0.25", "8", "256", "4096", "16k", "20k", "64k", "12345", "3M", "2G"]
    assert [style.plain(value) for value in values] == labels


def test_the_style_is_the_same_whatever_the_user_has_set() -> None:
    with style.style():
        before = dict(matplotlib.rcParams)
    with matplotlib.rc_context({"lines.linewidth": 9.0, "axes.grid": True, "axes.spines.top": True}), style.style():
        assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize(("low", "high"), [(1.2, 900.0), (90.0, 150.0), (1e-4, 3e-2)])
def test_ticks_are_round_numbers_of_the_axis_as_it_is_drawn(low: float, high: float) -> None:
    with style.style():
        axes = style.grid(1)[1][0]
        style.log_axes(axes, [0.1, 10.0], [1.0, 10.0], "x", "y")
        axes.set_xlim(low, high)
        ticks = [tick for tick in axes.get_xticks() if low <= tick <= high]
    assert 2 <= len(ticks) <= 6
    assert all(float(f"{tick:.1e}") == pytest.approx(tick) for tick in ticks)


@pytest.mark.parametrize("sizes", [[2**k for k in range(2, 10)], [2**k for k in range(21)], [4, 1000, 1024, 1100], [8]])
def test_batch_sizes_are_ticks_where_their_labels_fit(sizes: list[int]) -> None:
    with style.style():
        figure, (axes,) = style.grid(1)
        table = pd.DataFrame({"batch_size": sizes, "example_unit": "sequence", "tokens_per_example": 32.0})
        style.batch_axes(axes, table, [1.0, 10.0], "steps", table["batch_size"])
        figure.draw_without_rendering()
        boxes = [label.get_window_extent() for label in axes.get_xticklabels()]
    assert set(axes.get_xticks()) <= set(sizes)
    assert len(axes.child_axes) == (len(sizes) > 1)
    assert len(boxes) == len(sizes) if len(sizes) in (1, 8) else 1 < len(boxes) < len(sizes)
    assert not any(one.overlaps(other) for one, other in itertools.pairwise(boxes))


# Machado, Oliveira and Fernandes (2009), "A Physiologically-based Model for Simulation of Color Vision Deficiency",
# IEEE TVCG 15(6), severity 1.0, on linear RGB; every row keeps white white.
MACHADO = {
    "none": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
}
# A just noticeable difference is 2.3 for large patches (Mahy et al. 1994); marks of a few points need several times it.
DISTINCT = 15.0


def _linear(colour: str) -> np.ndarray:
    channels = np.asarray(to_rgb(colour))
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def _lab(linear: np.ndarray) -> np.ndarray:
    """CIELAB (CIE 15:2004) of linear sRGB under D65."""
    to_xyz = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
    xyz = np.array(to_xyz) @ np.clip(linear, 0, 1) / (0.95047, 1.0, 1.08883)
    f = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("sight", MACHADO)
def test_colours_are_told_apart_by_colour_blind_eyes(sight: str) -> None:
    np.testing.assert_allclose(MACHADO[sight].sum(axis=1), 1.0, atol=1e-5)
    seen = [_lab(MACHADO[sight] @ _linear(colour)) for colour in style.COLOURS]
    gaps = [np.linalg.norm(one - other) for index, one in enumerate(seen) for other in seen[:index]]
    assert min(gaps) >= DISTINCT


def test_without_colour_twenty_optimizers_differ_in_marker_or_dashes() -> None:
    names = [f"optimizer {index}" for index in range(20)]
    assert len({(look.marker, str(look.dashes)) for look in style.looks(names).values()}) == 20
    assert len({(look.marker, look.colour) for look in style.looks(names).values()}) == 20


@given(st.text(alphabet="ab_,=( 0.$", min_size=1, max_size=90), st.floats(0.3, 3.0), st.integers(1, 3))
def test_wrapped_text_fits_and_keeps_both_ends(text: str, inches: float, lines: int) -> None:
    found = wrapped(text, inches, 7, lines=lines).split("\n")
    assert len(found) <= lines
    assert all(width(line, 7) <= inches + 1e-9 for line in found)
    packed, whole = "".join("".join(found).split()), "".join(text.split())
    if "…" not in packed:
        assert packed == whole or not whole
    else:
        start, _, end = packed.partition("…")
        assert whole.startswith(start)
        assert whole.endswith(end)


def labels(axis: str, values: list[float], ticks: list[float] | None) -> int:
    """Number of labels of an axis, after none of them was found to overlap the next."""
    with style.style():
        figure, (axes,) = style.grid(1)
        style.log_scale(axes, axis, values, ticks)
        figure.draw_without_rendering()
        drawn = [label for label in getattr(axes, f"{axis}axis").get_ticklabels() if label.get_text()]
        boxes = [label.get_window_extent() for label in drawn]
    low, high = axes.bbox.get_points()[:, "xy".index(axis)]
    middles = [box.get_points()[:, "xy".index(axis)].mean() for box in boxes]
    boxes = [box for box, middle in zip(boxes, middles, strict=True) if low <= middle <= high]
    assert not any(one.overlaps(other) for one, other in itertools.pairwise(boxes))
    return len(boxes)


@pytest.mark.parametrize("axis", ["x", "y"])
@pytest.mark.parametrize(
    ("values", "least"), [([8, 46, 48, 52, 67, 512], 3), ([16, 17, 18, 19, 20], 2), ([4, 8, 16, 32, 64, 128, 256], 4)]
)
def test_labels_of_values_close_together_do_not_overlap(axis: str, values: list[float], least: int) -> None:
    assert labels(axis, values, values) >= least


QUICK = AnalysisConfig(resamples=100)
BETAS, OTHER = "adamw(betas=[0.9, 0.95])", "adamw(betas=[0.9, 0.99])"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sweep")
    truths = {OTHER: Truth(), BETAS: Truth(min_steps=90.0)}
    sweep(root, truths, variants=True, batch_sizes=(2, 8, 32), lrs=(1e-3, 2e-3))
    return root


def test_names_are_separated_by_commas_outside_brackets() -> None:
    names = {BETAS: "AdamW", "merit": "MERIT", "a(x=1, y=[2])": "a = b"}
    shown = f"{BETAS}=AdamW, merit=MERIT,a(x=1, y=[2])=a = b"
    assert parse_figures(f"icml,{shown},titles=no") == ("icml", FigureLabels(names=names, titles=False))
    assert parse_figures(shown) == ("default", FigureLabels(names=names))
    assert parse_figures("none") == (None, FigureLabels())


@pytest.mark.parametrize("text", ["adamw", "adamw=", "=AdamW", "a=1,a=2", "a(=b", "icml,b", "icml,titles=maybe"])
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_figures(text)


def test_curves_and_panels_have_the_names_that_were_given(results: Path) -> None:
    answers = analyze(results, QUICK).answers
    for name in ("steps", "learning_rate"):
        kind = FIGURES[name]
        labels = FigureLabels(names={BETAS: "AdamW"})
        words = " ".join(text.get_text() for text in kind.figure(kind.compute(answers), labels=labels).findobj(Text))
        assert "AdamW" in words
        assert "0.99" in words
        assert "0.95" not in words


def test_the_command_sets_them_and_refuses_in_one_line(results: Path, tmp_path: Path, run) -> None:
    common = ["analyze", results, "--resamples", "100", "-o", tmp_path / "out"]
    for options, words in {
        ("--figures", "muon=Muon"): "no curve has that name; there are: ",
        ("--figures", f"{OTHER}={BETAS}"): "would call both",
        ("--figures", f"{OTHER}=X,{OTHER}=Y"): "given twice",
        ("--figures", "none,titles=no"): "leave out what follows",
    }.items():
        code, _, err = run(*common, *options)
        assert (code, words in err, err.count("\n")) == (2, True, 1), err
        assert not (tmp_path / "out").exists()
    assert run(*common, "--figures", f"{BETAS}=AdamW,{OTHER}=MERIT,titles=no")[0] == 0
    assert (tmp_path / "out" / "figures" / "learning_rate.png").exists()


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
    curve = answer.hyperbola.curve.mapped(np.median)
    sizes = (hyperbola["examples"] / hyperbola["steps"]).to_numpy(float)
    np.testing.assert_allclose(np.log(hyperbola["steps"]), curve.log_steps(sizes), rtol=1e-5)
    assert pieces["residual"].iloc[0] < 0.5 * hyperbola["residual"].iloc[0]
    misses = curve.log_steps(points["batch_size"].to_numpy(float)) - np.log(points["steps"].to_numpy(float))
    assert hyperbola["residual"].iloc[0] == pytest.approx(np.sqrt(np.mean(misses**2)), rel=0.02)
    assert best["examples"].iloc[0] == pytest.approx(pieces["examples"].min(), rel=1e-3)
    drawn("one_rate", table)
    assert kind.compute(analyze(two, QUICK).answers).empty, "learning rates were searched"

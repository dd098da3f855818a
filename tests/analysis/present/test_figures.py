"""Every registered figure in every situation: drawn, saved as vector with its fonts, with the table beside it."""

import dataclasses
import functools
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from analysis import analyze
from analysis.config import AnalysisConfig
from analysis.estimate.result import Answer
from analysis.figure_options import VENUES
from analysis.formatting import with_interval
from analysis.present import style
from analysis.present.figures import FIGURES, Picture, figures_of, pictures
from analysis.present.findings import Analysis
from cbs.trial.target import Target
from tests.cases import of_extensions
from tests.factories import Truth, geometry_columns, sweep
from tests.kinds import kinds

QUICK = AnalysisConfig(resamples=100)
SIZES = (2, 8, 32, 128)
NOISY = Truth(noise=0.05, layers=2)
SITUATIONS = {
    "two optimizers": {"optimizers": {"adamw": NOISY, "muon": dataclasses.replace(NOISY, min_steps=80.0)}, "seeds": 2},
    "nothing reached, no attention": {"optimizers": {"adamw": dataclasses.replace(NOISY, layers=0)}, "max_steps": 50},
    "partly reached": {"optimizers": {"adamw": NOISY}, "max_steps": 500},
    "matched": {"optimizers": {"adamw": dataclasses.replace(NOISY, geometry="l1"), "sgd": NOISY}},
    "one batch size, one layer": {"optimizers": {"adamw": dataclasses.replace(NOISY, layers=1)}, "batch_sizes": (8,)},
    "five optimizers": {
        "optimizers": {
            name: dataclasses.replace(NOISY, layers=12) for name in ("adamw", "lamb", "lars", "merit", "sgd")
        },
        "batch_sizes": (8, 32),
        "lrs": (2e-3, 4e-3),
        "seeds": 2,
    },
    "long names": {
        "optimizers": {
            "muon(momentum=0.95, ns_steps=5, match_rms_adamw=true, beta2_half_life=40000)": NOISY,
            "muon(momentum=0.95, ns_steps=5, match_rms_adamw=true, beta2_half_life=80000)": NOISY,
            "orthogonalised_scale_invariant_optimizer_with_a_long_name": NOISY,
        },
        "target": Target(metric="validation_loss_on_the_held_out_topics_of_the_embedded_corpus", value=2.4),
    },
    "variants": {
        "optimizers": {
            "muon": NOISY,
            "muon(nesterov=false)": dataclasses.replace(NOISY, min_steps=80.0),
            "muon(betas=[0.9, 0.95], momentum=0.95, weight_decay=0.1)": NOISY,
            "muon(betas=[0.9, 0.99], momentum=0.95, weight_decay=0.1)": NOISY,
        },
        "variants": True,
    },
    "mathematics in names": {"optimizers": {"a$x_{$": NOISY, "_b$\\frac$": NOISY}},
}


@dataclasses.dataclass(frozen=True, eq=False)
class Situation:
    """Answers, with their figures drawn once for all tests."""

    answers: Sequence[Answer]

    @functools.cache  # noqa: B019 - as long as the module's fixture lives
    def table(self, name: str) -> pd.DataFrame:
        return FIGURES[name].compute(self.answers)

    @functools.cache  # noqa: B019
    def drawn(self, name: str) -> Figure:
        table = self.table(name)
        before = table.copy()
        figure = FIGURES[name].figure(table)
        pd.testing.assert_frame_equal(table, before)
        figure.draw_without_rendering()
        return figure


RARE = ("two optimizers", "matched", "one batch size, one layer", "variants", "mathematics in names")
"""What says little that the others, or tests of their own, do not."""


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=[pytest.mark.slow] * (name in RARE)) for name in SITUATIONS]
)
def situation(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Situation:
    root = tmp_path_factory.mktemp("sweep")
    arguments = {"batch_sizes": SIZES, "lrs": (1e-3, 2e-3, 4e-3), "growth": 1.5, "moments": True} | SITUATIONS[
        request.param
    ]
    sweep(root, **arguments)
    return Situation(analyze(root, QUICK).answers)


SELDOM = {
    *("noise_against_critical", "noise_against_loss", "pareto_goals", "tuned_option", "one_rate"),
    *(name for names in of_extensions("SELDOM") for name in names),
}
"""Drawn of several targets, tuned options or one rate: they have their own tests."""

OF_ANSWERS = [name for name in FIGURES.names() if FIGURES[name].of is Analysis]


@pytest.mark.parametrize("name", OF_ANSWERS)
def test_computes_a_table_then_draws_it(name: str, situation: Situation) -> None:
    table = situation.table(name)
    assert isinstance(table, pd.DataFrame)
    if table.empty:
        assert name not in [picture.name for picture in pictures(Analysis, situation.answers)]
        return
    figure = situation.drawn(name)
    assert figure.axes
    box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert box.x0 >= -0.01
    assert box.y0 >= -0.01
    assert box.x1 <= width + 0.01
    assert box.y1 <= height + 0.01
    for axes in figure.axes:
        inside = axes.get_window_extent()
        assert inside.width > 0.6 * figure.dpi
        assert inside.height > 0.6 * figure.dpi
        for legend in figure.legends:
            assert not legend.get_window_extent().overlaps(inside)
        texts = [text for text in axes.texts if text.get_text()]
        boxes = [_without_arrow(text) for text in texts] if axes.axison else []
        for index, one in enumerate(boxes):
            assert not any(one.overlaps(other) for other in boxes[:index]), (name, texts[index].get_text())
    sizes = [text.get_fontsize() for text in figure.findobj(Text) if text.get_text()]
    assert min(sizes) >= 6  # points on paper; what venues ask of a figure


def _without_arrow(text: Text) -> Bbox:
    """The box of the words, a little smaller than drawn: descenders of one line may touch ascenders of the next."""
    box = Text.get_window_extent(text)
    return Bbox.from_extents(box.x0 + 1, box.y0 + 2, box.x1 - 1, box.y1 - 2)


def test_plain_and_matched_have_lines_and_labels_of_their_own(tmp_path: Path) -> None:
    truth = {"adamw": dataclasses.replace(NOISY, geometry="l1", own_signal=2.0, own_noise=9.0), "sgd": NOISY}
    sweep(tmp_path, truth, batch_sizes=SIZES, lrs=(1e-3, 2e-3, 4e-3), growth=1.5, moments=True)
    kind = FIGURES["noise_scale"]
    table = kind.compute(analyze(tmp_path, QUICK).answers)
    adamw, sgd = kind.figure(table).axes
    plain, own = (f"${geometry_columns(name).symbol}$" for name in ("l2", "l1"))
    assert [text.get_text() for text in adamw.texts] == [r"$B_{\mathrm{crit}}$", plain, own]
    assert [text.get_text() for text in sgd.texts] == [r"$B_{\mathrm{crit}}$", plain]
    solid, dashed = adamw.lines[-2:]
    part = table[(table["optimizer"] == "adamw") & (table["batch_size"] == 32)]
    np.testing.assert_array_equal(solid.get_ydata(), part["simple_noise_scale"])
    np.testing.assert_array_equal(dashed.get_ydata(), part["matched_noise_scale"])
    uncorrected = part["matched_noise_scale"] / (1 + part["simple_noise_scale"] / 32)
    assert uncorrected.to_numpy() == pytest.approx(4.5**2, rel=0.3)
    assert (solid.get_linestyle(), dashed.get_linestyle()) == ("-", "--")
    assert solid.get_color() != dashed.get_color()
    assert len(table.groupby(["optimizer", "batch_size"])) == 2  # one batch size each, so few lines
    assert (adamw.get_xlim(), adamw.get_ylim()) == (sgd.get_xlim(), sgd.get_ylim())
    for axes, names in ((adamw, ("simple", "matched")), (sgd, ("simple",))):
        row = table[table["optimizer"] == axes.get_title()].iloc[0]
        values = [part.get_segments()[0].tolist() for part in axes.collections if isinstance(part, LineCollection)]
        bands = [part.get_datalim(axes.transData).get_points().tolist() for part in axes.collections]
        assert len(values) == len(names)
        for name, value in zip(names, values, strict=True):  # over the second half of training
            assert value == [[0.5, row[name]], [1.0, row[name]]]
            band = [[0.5, row[f"{name}_low"]], [1.0, row[f"{name}_high"]]]
            assert any(np.allclose(box, band) for box in bands), name


def test_learning_rates_have_the_range_of_their_seeds_on_the_same_axes(tmp_path: Path) -> None:
    names = {"adamw": NOISY, "sgd": dataclasses.replace(NOISY, min_steps=60.0)}
    sweep(tmp_path, names, batch_sizes=(8, 32), lrs=(1e-3, 2e-3, 4e-3), growth=1.5, seeds=2)
    kind = FIGURES["learning_rate"]
    answers = analyze(tmp_path, QUICK).answers
    table = kind.compute(answers)
    first, second = kind.figure(table).axes
    assert (first.get_xlim(), first.get_ylim()) == (second.get_xlim(), second.get_ylim())
    drawn = sorted((low, high) for bars in first.collections for ((_, low), (_, high)) in bars.get_segments())
    own = table[(table["optimizer"] == "adamw") & table["steps"].notna()]
    assert drawn == sorted(zip(own["low"], own["high"], strict=True))
    assert min(bars.get_zorder() for bars in first.collections) > max(line.get_zorder() for line in first.lines)
    assert kind.marks is not None
    assert "range over seeds" in [entry.get_label() for entry in kind.marks(table)]
    alone = kind.marks(table.assign(low=table["steps"], high=table["steps"]))
    assert "range over seeds" not in [entry.get_label() for entry in alone]
    best = own[own["best"]].set_index("batch_size")
    for point in answers[0].points:
        assert tuple(best.loc[point.batch_size, ["low", "high"]]) == pytest.approx(
            (min(point.steps_per_seed), max(point.steps_per_seed))
        )


@pytest.mark.usefixtures("whole_figures")
@pytest.mark.parametrize(
    "names", kinds([("steps", "definitions", "noise_scale")], [(tuple(sorted({*OF_ANSWERS} - SELDOM)),)])
)
def test_files_are_vector_with_embedded_fonts_and_their_table(names: tuple[str, ...], tmp_path: Path) -> None:
    sweep(tmp_path, {"adamw": NOISY}, batch_sizes=SIZES, lrs=(1e-3, 2e-3, 4e-3), growth=1.5, moments=True)
    answered = analyze(tmp_path, QUICK)
    pictures = {picture.name: picture for picture in figures_of(answered)}
    assert {*OF_ANSWERS} - SELDOM <= set(pictures)
    for name in names:
        pdf, png, csv = pictures[name].write(tmp_path / "figures")
        assert [path.name for path in (pdf, png, csv)] == [f"{name}.{suffix}" for suffix in ("pdf", "png", "csv")]
        content = pdf.read_bytes()
        assert content.startswith(b"%PDF")
        assert b"/FontFile2" in content
        assert b"/Type3" not in content
        assert png.read_bytes().startswith(b"\x89PNG")
        assert len(pd.read_csv(csv)) > 0
    again = pictures["steps"].write(tmp_path / "again")
    assert [path.read_bytes() for path in again] == [(tmp_path / "figures" / path.name).read_bytes() for path in again]


@pytest.mark.usefixtures("whole_figures")
@pytest.mark.parametrize("name", [*VENUES][:2])
def test_a_figure_is_as_wide_as_its_venue(name: str, tmp_path: Path) -> None:
    page = VENUES[name]
    assert 0 < page.column <= page.text
    kind = dataclasses.replace(FIGURES["steps"], frame=None, marks=None, draw=lambda axes, _: axes.plot([1.0], [2.0]))
    Picture("steps", kind, pd.DataFrame({"panel": ["a"], "optimizer": ["adamw"]})).write(tmp_path, page)
    for panels in (2, 3, 7):
        assert style.grid(panels, page)[0].get_size_inches()[0] == page.text
    box = re.search(rb"/MediaBox \[ ?0 0 ([\d.]+)", (tmp_path / "steps.pdf").read_bytes())
    assert float(box[1]) == pytest.approx(72 * page.single, abs=0.01)


def test_labels_of_batch_sizes_cover_no_point(situation: Situation) -> None:
    table = situation.table("pareto")
    if table.empty:
        return
    axes = situation.drawn("pareto").axes[0]
    marks = table[table["kind"].isin(["point", "critical"])]
    points = axes.transData.transform(marks[["steps", "examples"]].to_numpy(dtype=float))
    for text in axes.texts:
        box = Text.get_window_extent(text)
        assert not any(box.contains(x, y) for x, y in points), text.get_text()
    points = table[table["kind"] == "point"]
    ends = points.groupby("optimizer")["batch_size"].agg(["min", "max"]).to_numpy().ravel()
    assert {f"{size:g}" for size in ends} <= {text.get_text() for text in axes.texts}


def test_a_curve_that_is_no_hyperbola_is_drawn_beside_one(tmp_path: Path) -> None:
    sizes, drawn = (2, 8, 32, 128, 512), {}
    for name, exponent in (("bent", 0.6), ("straight", 1.0)):
        truth = dataclasses.replace(NOISY, exponent=exponent, noise=0.005, lr_at_1=2e-3, lr_power=0.0)
        sweep(tmp_path / name, {"adamw": truth}, batch_sizes=sizes, lrs=(1e-3, 2e-3, 4e-3), growth=1.1)
        (answer,) = analyze(tmp_path / name, QUICK).answers
        table = FIGURES["steps"].compute([answer])
        drawn[name] = (table["kind"] == "hyperbola").any()
        axes = FIGURES["steps"].figure(table).axes[0]
        (interval,) = (line.get_xdata() for line in axes.lines if line.get_alpha() == 0.6)
        np.testing.assert_allclose(
            interval, [e or edge for e, edge in zip(answer.interval, axes.get_xlim(), strict=True)]
        )
        words = [text.get_text() for text in axes.get_legend().get_texts()]
        assert words[0] == f"adamw  {with_interval(answer.critical_batch_size, answer.interval)}"
        assert ("hyperbola" in words) == drawn[name]
        curve, near = (table[table["kind"] == kind] for kind in ("fit", "near"))
        np.testing.assert_allclose(np.log(curve["steps"]), answer.draws.estimate(curve["batch_size"].to_numpy()))
        ends = [end or sizes[-place] for place, end in enumerate(answer.near)]
        assert near["batch_size"].iloc[[0, -1]].tolist() == pytest.approx(ends)
    assert drawn == {"bent": True, "straight": False}


def test_an_open_end_is_an_arrow_and_an_unknown_interval_nothing() -> None:
    rows = pd.DataFrame({"x": [1.0, 2.0, 3.0, 4.0], "y": [1.0] * 4})
    rows["low"], rows["high"] = [0.5, 0.5, np.nan, np.nan], [2.0, np.nan, 2.0, np.nan]
    axes = Figure().subplots()
    style.points(axes, rows, "x", "y", style.looks(["adamw"])["adamw"])
    assert [(text.xy[0], np.sign(text.xyann[1])) for text in axes.texts] == [(2.0, 1.0), (3.0, -1.0)]

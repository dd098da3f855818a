"""Marks of the figures on the page say what they are: at their place, with the numbers of the table."""

import re
from html import unescape

import numpy as np
import pandas as pd
import pytest

from analysis import analyze
from analysis.config import AnalysisConfig
from analysis.formatting import ends, number
from analysis.present.figures import Picture, pictures
from analysis.present.findings import Analysis
from extensions.report.vector import drawn
from tests.factories import Truth, sweep

TITLE = re.compile(r'<circle cx="([\d.]+)" cy="([\d.]+)" r="5"><title>([^<]*)</title>')


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Picture, str]]:
    """Figures of a sweep of which the smallest batch size never reached the target, and one optimizer diverged."""
    root = tmp_path_factory.mktemp("sweep")
    truths = {"<b>adamw": Truth(noise=0.05), "muon": Truth(noise=0.05, min_steps=60.0)}
    sweep(root, truths, batch_sizes=(2, 8, 32, 128), lrs=(1e-3, 2e-3, 4e-3), seeds=2, growth=1.2, max_steps=1500)
    shown = pictures(Analysis, analyze(root, AnalysisConfig(resamples=100)).answers)
    return {picture.name: (picture, str(drawn(picture, 1)["drawing"])) for picture in shown}


def said(drawing: str) -> list[str]:
    return [line for _, _, text in TITLE.findall(drawing) for line in unescape(text).split("\n")]


def test_every_point_says_its_numbers_and_its_interval(found: dict[str, tuple[Picture, str]]) -> None:
    picture, drawing = found["steps"]
    points = picture.table[picture.table["kind"] == "point"]
    lines = said(drawing)
    assert len(points) > 4
    for row in points.itertuples():
        assert (
            f"{row.optimizer}: batch size (sequences) {number(row.batch_size, 4)}, steps to validation loss < 2.4 "
            f"{number(row.steps, 4)} {ends((row.low, row.high))}" in lines
        )
    assert "<b>" not in drawing.replace("&lt;b&gt;", "")


def test_a_lower_bound_is_said_to_be_one(found: dict[str, tuple[Picture, str]]) -> None:
    for name, bounds in (("steps", "censored"), ("learning_rate", "steps_lower_bound")):
        picture, drawing = found[name]
        table = picture.table
        rows = table[table["kind"] == bounds] if name == "steps" else table[table[bounds].notna()]
        assert len(rows)
        assert sum("more than" in line for line in dict.fromkeys(said(drawing))) == len(
            rows.drop_duplicates(["optimizer", "steps" if name == "steps" else "lr", "batch_size"])
        )


def test_circles_lie_on_the_marks(found: dict[str, tuple[Picture, str]]) -> None:
    for name, (_, drawing) in found.items():
        uses = np.array(re.findall(r'<use [^>]*?x="([\d.]+)" y="([\d.]+)"', drawing), dtype=float)
        circles = np.array([match[:2] for match in TITLE.findall(drawing)], dtype=float)
        assert len(circles), name
        distances = np.hypot(*(circles[:, None] - uses[None]).transpose(2, 0, 1)).min(axis=1)
        assert distances.max() < 1.0, name


def test_what_stands_elsewhere_than_at_its_number_says_nothing(found: dict[str, tuple[Picture, str]]) -> None:
    """An arrow at the edge of the axes is no number of the table."""
    picture, drawing = found["definitions"]
    numbers = {number(value, 4) for value in picture.table["value"].dropna()}
    for line in said(drawing):
        value = re.search(r"validation loss < 2.4 ([\d.,]+)", line)
        assert value
        assert value[1] in numbers, line


def test_a_figure_without_numbers_has_no_circles() -> None:
    from analysis.present import style
    from extensions.report.vector import values

    figure, (axes,) = style.grid(1)
    axes.plot([1, 2], [1, 2], "o")
    assert values(figure, pd.DataFrame({"optimizer": ["a"], "steps": [7.0]})) == ""

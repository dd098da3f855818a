"""Every registered figure in every situation: drawn, saved as vector with its fonts, with the table beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis import analyze, style
from analysis.answers import Answer
from analysis.figures import FIGURES
from analysis.noise_scale_run import SYMBOLS
from tests.factories import Truth, sweep

SIZES = (2, 8, 32, 128)
NOISY = Truth(noise=0.05, layers=2)
SITUATIONS = {
    "two optimizers": {"optimizers": {"adamw": NOISY, "muon": dataclasses.replace(NOISY, min_steps=80.0)}, "seeds": 2},
    "one seed": {"optimizers": {"adamw": NOISY}},
    "nothing reached": {"optimizers": {"adamw": NOISY}, "max_steps": 50},
    "partly reached": {"optimizers": {"adamw": NOISY}, "max_steps": 500},
    "matched": {"optimizers": {"adamw": dataclasses.replace(NOISY, geometry="l1"), "sgd": NOISY}},
    "one batch size": {"optimizers": {"adamw": NOISY}, "batch_sizes": (8,)},
    "five optimizers": {
        "optimizers": {
            name: dataclasses.replace(NOISY, layers=12) for name in ("adamw", "lamb", "lars", "merit", "sgd")
        },
        "batch_sizes": (8, 32),
        "lrs": (2e-3, 4e-3),
        "seeds": 2,
    },
    "one layer": {"optimizers": {"adamw": dataclasses.replace(NOISY, layers=1)}, "batch_sizes": (8, 32)},
    "no attention": {"optimizers": {"adamw": dataclasses.replace(NOISY, layers=0)}, "batch_sizes": (8, 32)},
}


@pytest.fixture(scope="module", params=SITUATIONS)
def answers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Sequence[Answer]:
    root = tmp_path_factory.mktemp("sweep")
    arguments = {"batch_sizes": SIZES, "lrs": (1e-3, 2e-3, 4e-3), "growth": 1.5, "moments": True} | SITUATIONS[
        request.param
    ]
    sweep(root, **arguments)
    return analyze(root, figures=False, resamples=200).answers


@pytest.mark.parametrize("name", FIGURES.names())
def test_computes_a_table_then_draws_it(name: str, answers: Sequence[Answer]) -> None:
    kind = FIGURES[name]
    table = kind.compute(answers)
    assert isinstance(table, pd.DataFrame)
    before = table.copy()
    figure = kind.figure(table)
    pd.testing.assert_frame_equal(table, before)
    assert figure.axes
    figure.canvas.draw()
    box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert box.x0 >= -0.01
    assert box.y0 >= -0.01
    assert box.x1 <= width + 0.01
    assert box.y1 <= height + 0.01


def test_plain_and_matched_have_lines_and_labels_of_their_own(tmp_path: Path) -> None:
    truth = {"adamw": dataclasses.replace(NOISY, geometry="l1", own_signal=2.0, own_noise=9.0), "sgd": NOISY}
    sweep(tmp_path, truth, batch_sizes=SIZES, lrs=(1e-3, 2e-3, 4e-3), growth=1.5, moments=True)
    kind = FIGURES["noise_scale"]
    table = kind.compute(analyze(tmp_path, figures=False, resamples=200).answers)
    adamw, sgd = kind.figure(table).axes
    assert [text.get_text() for text in adamw.texts] == [r"$B_{\mathrm{crit}}$", SYMBOLS["l2"], SYMBOLS["l1"]]
    assert [text.get_text() for text in sgd.texts] == [r"$B_{\mathrm{crit}}$", SYMBOLS["l2"]]
    solid, dashed = adamw.lines[-2:]
    part = table[(table["optimizer"] == "adamw") & (table["batch_size"] == 32)]
    np.testing.assert_array_equal(solid.get_ydata(), part["simple_noise_scale"])
    np.testing.assert_array_equal(dashed.get_ydata(), part["matched_noise_scale"])
    uncorrected = part["matched_noise_scale"] / (1 + part["simple_noise_scale"] / 32)
    assert uncorrected.to_numpy() == pytest.approx(4.5**2, rel=0.3)
    assert (solid.get_linestyle(), dashed.get_linestyle()) == ("-", "--")
    assert solid.get_color() != dashed.get_color()


def test_files_are_vector_with_embedded_fonts_and_their_table(tmp_path: Path) -> None:
    sweep(tmp_path, {"adamw": NOISY}, batch_sizes=SIZES, lrs=(1e-3, 2e-3, 4e-3), growth=1.5, moments=True)
    report = analyze(tmp_path, resamples=200)
    for name in FIGURES.names():
        pdf, png, csv = (tmp_path / "analysis" / "figures" / f"{name}.{suffix}" for suffix in ("pdf", "png", "csv"))
        assert {pdf, png, csv} <= set(report.files)
        content = pdf.read_bytes()
        assert content.startswith(b"%PDF")
        assert b"/FontFile2" in content
        assert b"/Type3" not in content
        assert png.read_bytes().startswith(b"\x89PNG")
        assert len(pd.read_csv(csv)) > 0
    first = {path: path.read_bytes() for path in report.files}
    assert {path: path.read_bytes() for path in analyze(tmp_path, resamples=200).files} == first


def test_files_of_several_targets_are_told_apart(tmp_path: Path) -> None:
    sweep(tmp_path, {"adamw": NOISY}, batch_sizes=(2, 32), lrs=(1e-3, 2e-3), growth=1.5)
    files = {path.name for path in analyze(tmp_path, targets=[2.4, 2.8], resamples=200).files}
    assert {"steps-validation_loss_below_2.4.pdf", "steps-validation_loss_below_2.8.pdf"} <= files


@given(st.lists(st.floats(-0.2, 1.2), min_size=1, max_size=9), st.floats(0.01, 0.11))
def test_labels_never_overlap(positions: list[float], gap: float) -> None:
    placed = style.spread(positions, gap)
    assert np.all(np.diff(np.sort(placed)) >= gap * 0.98)
    order = np.argsort(positions, kind="stable")
    assert np.all(np.diff(placed[order]) >= 0)


def test_tick_labels_are_plain() -> None:
    assert [style.plain(value) for value in (0.001, 0.25, 8, 256, 4096, 20000, 3e6, 2e9)] == [
        "0.001",
        "0.25",
        "8",
        "256",
        "4096",
        "20k",
        "3M",
        "2G",
    ]


def test_twenty_optimizers_look_different():
    looks = style.looks([f"optimizer {index}" for index in range(20)])
    assert len(set(looks.values())) == 20


def test_a_long_key_stands_beside_the_axes() -> None:
    from matplotlib.lines import Line2D

    with style.style():
        figure, (axes,) = style.grid(1)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlim(1, 10)
        axes.set_ylim(1, 10)
        handles = [Line2D([], [], color="k", label=f"optimizer {index}") for index in range(style.MOST_INSIDE + 1)]
        style.key(axes, handles, pd.Series([1.0, 9.0]), pd.Series([2.0, 3.0]))
        figure.draw_without_rendering()
    (legend,) = figure.legends
    assert not legend.get_window_extent().overlaps(axes.get_window_extent())
    assert axes.get_ylim() == (1, 10)

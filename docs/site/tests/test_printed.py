"""Screens that pages show have the columns and sentences that their commands print now."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from analysis.config import AnalysisConfig
from analysis.present import presentation
from analysis.present.table import Table
from analysis.questions.compare.optimizers import compare
from analysis.read.throughput import Assumed
from cbs.registry.extensions import modules
from tests.factories import Truth, sweep

DOCS = Path(__file__).resolve().parents[2]
FAST = AnalysisConfig(resamples=100)
TIMES = Assumed(examples_per_second=2000, max_batch_per_device=32, latency=0.004)


def recommended(folder: Path) -> Any:
    from extensions.recommending.recommendations import Wish, recommend

    return recommend(folder, TIMES, Wish(devices=4, price_ratio=3), FAST)


def tuned(folder: Path) -> Any:
    from extensions.lr.learning_rates import learning_rates

    return learning_rates(folder, FAST)


PRINTED: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "comparing.md": ("", lambda folder: compare(folder, FAST, throughput=TIMES)),
    "recommending.md": ("extensions.recommending", recommended),
    "learning-rates.md": ("extensions.lr", tuned),
}
"""The extension that prints the screens of a page, if one does, and how."""


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("printed") / "two"
    sweep(folder, {"adamw": Truth(noise=0.04), "merit": Truth(noise=0.04, min_examples=9600.0)}, seeds=2)
    return folder


def screens(page: str) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the headings of every table that a page shows, and the sentences below it."""
    for block in re.findall(r"^```\w*\n(.*?)^```", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE):
        for part in re.split(r"\n\n", block):
            before, rule, after = part.partition("\n─")
            if rule:
                rows = after.splitlines()[1:]
                yield re.split(r"\s{2,}", before.splitlines()[-1]), [row for row in rows if "  " not in row]


def without_numbers(text: str) -> str:
    return re.sub(r"[\d.,]+\d", "#", text)


@pytest.mark.parametrize("page", PRINTED)
def test_a_page_shows_columns_and_sentences_that_are_printed(page: str, two: Path) -> None:
    extension, asked = PRINTED[page]
    if extension and extension not in {name.rpartition(".")[0] for name, _ in modules("tables")}:
        pytest.skip(f"{extension} is not here")
    printed = presentation(asked(two))
    tables = [part.shown(wide=True) for part in (*printed.shown, *printed.wide) if isinstance(part, Table)]
    said = {without_numbers(line) for part in printed.shown if isinstance(part, Table) for line in part.lines}
    found = list(screens(page))
    assert found
    for headings, sentences in found:
        rows = [[column.heading for column in table.columns] for table in tables]
        assert any([name for name in row if name in headings] == headings for row in rows), headings
        assert {without_numbers(line) for line in sentences} <= said

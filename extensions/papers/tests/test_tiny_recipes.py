"""Every tiny recipe, trained: to its end, with its figure and the statements of its record, in ten minutes of two
cores."""

import json
import time
from pathlib import Path

import pytest

from extensions.papers.experiments import PAPERS
from extensions.papers.reproducing.reproduce import reproduce
from tests.sweeps.alone import without_ray

MINUTES, CORES = 10, 2
RECORDS = Path(__file__).parents[1] / "atlas"


@pytest.mark.slow
@pytest.mark.usefixtures("whole_figures")
@pytest.mark.parametrize("name", PAPERS.names())
def test_a_tiny_recipe_runs_to_its_verdicts(name: str, tmp_path: Path) -> None:
    before = time.process_time()
    with without_ray():
        outcome = reproduce(name, "tiny", tmp_path / "out")
    assert time.process_time() - before < 60 * MINUTES * CORES
    assert outcome.complete
    assert outcome.failures == {}
    assert all((tmp_path / "out" / file).stat().st_size for file in outcome.figures)
    assert any(file.endswith(".png") for file in outcome.figures)
    record = RECORDS / f"{name}-tiny.json"
    rows = json.loads(record.read_text())["verdicts"] if record.exists() else []
    assert not rows or [row["claim"] for row in rows] == [each.expectation.claim for each in outcome.judged]

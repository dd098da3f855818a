"""Which of two optimizers is better, told from worlds in which one is, of losses and of accuracies."""

import json
import time
from pathlib import Path

import pytest

from analysis.config import AnalysisConfig
from extensions.papers.experiments import PAPERS, Beyond, Expectation, Reproduced
from extensions.papers.reproducing.asking import answer
from extensions.papers.reproducing.reproduce import judge, reproduce
from tests.equal_budgets import World, write
from tests.sweeps.alone import without_ray

RECIPES = ("lamb-resnet50", "lamb-bert", "merit-gpt2", "merit-llama")


@pytest.mark.parametrize(
    ("name", "scale", "good"),
    [
        pytest.param(name, "tiny", good, marks=() if place < 2 and good == (place == 0) else pytest.mark.slow)
        for place, name in enumerate(RECIPES)
        for good in (True, False)
    ]
    + [pytest.param(name, "paper", True, marks=pytest.mark.slow) for name in ("lamb-bert", "merit-llama")],
)
def test_the_better_optimizer_is_the_one_that_is_better(name: str, scale: str, good: bool, tmp_path: Path) -> None:
    recipe = PAPERS.make(name, scale)
    order = ("merit", "lamb", "lars", "adamw", "sgd")
    for run in recipe.runs:
        here = {each: place for place, each in enumerate(order) if each in [o.name for o in run.sweep.axes.optimizers]}
        worlds = {each: World(floor=2.0 + 0.1 * place * (1 if good else -1)) for each, place in here.items()}
        accuracy = "accuracy" in str(run.sweep.trial.workload)
        more = {"metric": "validation_accuracy", "direction": "above"} if accuracy else {}
        write(
            tmp_path / run.name,
            worlds,
            sizes=run.sweep.axes.batch_sizes,
            budget=16 * run.sweep.axes.batch_sizes[-1],
            **more,
        )
    config = AnalysisConfig(resamples=200)
    answers = {of: answer(each, tmp_path, config=config, draw=False)[0] for of, each in recipe.analyses.items()}
    pairs: list[Expectation] = [each for each in recipe.expectations if isinstance(each.relation, Beyond)
                                and "ends" in each.claim and "best" not in each.claim]  # fmt: skip
    assert pairs
    expected = Reproduced.YES if good else Reproduced.NO
    assert [judge(each, answers, {}).verdict for each in pairs] == [expected] * len(pairs)


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

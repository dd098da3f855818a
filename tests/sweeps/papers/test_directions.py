"""Which of two optimizers is better, told from worlds in which one is, of losses and of accuracies."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweeps.papers import PAPERS, Expectation, Reproduced
from sweeps.reproducing.asking import ask
from sweeps.reproducing.reproduce import judge
from tests.analysis.questions.equal_budgets import World, write

RECIPES = ("lamb-resnet50", "lamb-bert", "merit-gpt2", "merit-llama")


@pytest.mark.parametrize(
    ("name", "good"),
    [
        pytest.param(name, good, marks=() if good == (place % 2 == 0) else pytest.mark.slow)
        for place, name in enumerate(RECIPES)
        for good in (True, False)
    ],
)
def test_the_better_optimizer_is_the_one_that_is_better(name: str, good: bool, tmp_path: Path) -> None:
    recipe = PAPERS.make(name, "tiny")
    (run,) = recipe.runs
    order = ("merit", "lamb", "lars", "adamw", "sgd")
    here = [each for each in order if each in map(str, run.sweep.optimizers)]
    worlds = {each: World(floor=2.0 + 0.1 * place * (1 if good else -1)) for place, each in enumerate(here)}
    accuracy = {"metric": "validation_accuracy", "direction": "above"} if "accuracy" in str(run.sweep.workload) else {}
    write(tmp_path, worlds, sizes=run.sweep.batch_sizes, budget=8192, **accuracy)
    (analysis,) = recipe.analyses
    contents = {analysis: ask(f"budget {tmp_path} --resamples 200 --figures none")}
    pairs: list[Expectation] = [each for each in recipe.expectations if "pairs" in each.ours[0].path]
    assert len(pairs) == sum("ends" in each.claim and "best" not in each.claim for each in recipe.expectations)
    expected = Reproduced.YES if good else Reproduced.NO
    assert [judge(each, contents, {}).verdict for each in pairs] == [expected] * len(pairs)

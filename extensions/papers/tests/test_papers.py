"""Every recipe of a paper at both scales, and which of two optimizers is told to be better in worlds where one is."""

import dataclasses
import json
import re
import shlex
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from analysis.config import AnalysisConfig
from analysis.estimate.definitions import DEFINITIONS, Definition
from analysis.quantities import Quantity
from cbs.errors import ConfigError
from cbs.registry.choices import Choice, parse_choice
from extensions.papers.experiments import (
    PAPERS,
    SCALES,
    Beyond,
    Expectation,
    Measured,
    Near,
    OurNumber,
    PaperRecipe,
    RecipeRun,
    Reproduced,
    asks,
)
from extensions.papers.experiments.parts import TEXT, experiment, one_run
from extensions.papers.reproducing.asking import QUESTIONS, answer, command_line, read
from extensions.papers.reproducing.reproduce import judge, reproduce
from extensions.papers.reproducing.telling import parameters_of, price
from sweeps.launching.policies import POLICIES
from tests.equal_budgets import World, write
from tests.kinds import kinds_of
from tests.parameters import COMMANDS, flags_of
from tests.sweeps.alone import without_ray

BOTH = [(name, scale) for name in PAPERS for scale in SCALES]
MODELS = [
    pytest.param(run, id=f"{name}-{run.name}")
    for name in PAPERS
    for run in PAPERS.make(name, "paper").runs
    if run.parameters is not None
]


@pytest.mark.parametrize(("name", "scale"), BOTH)
def test_a_recipe_says_what_it_does_and_expects(name: str, scale: str) -> None:
    recipe: PaperRecipe = PAPERS.make(name, scale)
    assert recipe.expectations
    assert re.search(r"\b(19|20)\d\d\b", recipe.paper)
    assert (recipe.minutes is not None) == (scale == "tiny" or not recipe.runs)
    assert recipe.minutes is None or recipe.minutes < 10
    assert len(recipe.title) <= 80
    for each in recipe.expectations:
        assert each.published
        assert each.source
        assert each.ours
    claims = [each.claim for each in recipe.expectations]
    assert len(set(claims)) == len(claims)
    for run in recipe.runs:
        assert run.policy.name in POLICIES


@pytest.mark.parametrize(("name", "scale"), BOTH)
def test_questions_are_those_of_commands(name: str, scale: str) -> None:
    for question in PAPERS.make(name, scale).analyses.values():
        assert question.name in QUESTIONS
        words = shlex.split(command_line(question, Path("here")))
        command = " ".join(words[:2]) if " ".join(words[:2]) in COMMANDS else words[0]
        assert command in COMMANDS
        assert {word for word in words if word.startswith("--")} <= set(flags_of(command))


@pytest.mark.parametrize("name", kinds_of(PAPERS.names(), PAPERS.names()[::6]))
def test_a_tiny_recipe_can_be_priced_without_training(name: str) -> None:
    recipe: PaperRecipe = PAPERS.make(name, "tiny")
    priced = [price(run) for run in recipe.runs]
    assert sum(each.examples for each in priced) < 6e6
    assert sum(each.trials for each in priced) < 120


@pytest.mark.parametrize("run", MODELS)
def test_models_of_the_papers_have_the_published_size(run: RecipeRun) -> None:
    count = parameters_of(run, without_embeddings=run.without_embeddings)
    assert count == pytest.approx(run.parameters, rel=0.01)


def test_a_recipe_whose_parts_do_not_fit_is_refused() -> None:
    about = {"title": "t", "paper": "p 2020", "protocol": "p"}
    sweep = PAPERS.make("seesaw", "tiny").runs[0].sweep
    run = RecipeRun(name="one", sweep=sweep, policy=Choice(name="once"))
    with pytest.raises(ConfigError, match="two runs with the same name: one, one"):
        PaperRecipe(**about, runs=(run, run))
    with pytest.raises(ConfigError, match="run one starts from 'two', which is not an earlier run"):
        PaperRecipe(
            **about,
            runs=(dataclasses.replace(run, sweep=sweep.replace(after="two")), dataclasses.replace(run, name="two")),
        )
    with pytest.raises(ConfigError, match="names a run 'two', which it does not have"):
        PaperRecipe(**about, runs=(run,), analyses={"a": asks("analyze", "two/width-8")})
    reading = OurNumber(question="b", of=lambda _: Measured("x", 1.0))
    wanted = Expectation(claim="c", published="p", source="s", relation=Near((1.0,), 0.1), ours=(reading,))
    with pytest.raises(ConfigError, match="reads from 'b', which is not its question"):
        PaperRecipe(**about, runs=(run,), analyses={"a": asks("analyze", "one")}, expectations=(wanted,))


def test_a_number_counts_where_its_answer_is_not_in_doubt() -> None:
    """``cbs budget`` leaves a batch size out whose learning rate is at the edge, and the best of the others is not the
    best; a temperature needs runs that have settled, a curve the verdict ``ok``."""
    sizes = [SimpleNamespace(batch_size=512, excess=Quantity(0.0), at_grid_edge=edge) for edge in (False, True)]
    best = SimpleNamespace(best=Quantity(8.0), largest_within=Quantity(9.0))
    of = [SimpleNamespace(optimizer=name, sizes=sizes, equivalence=best) for name in ("adamw", "lamb", "lars")]
    law = SimpleNamespace(lr=Quantity(1.0), batch_size=Quantity(1.0), temperature=Quantity(1.0), unsettled=2)
    fit = SimpleNamespace(group=SimpleNamespace(optimizer="adamw"), verdict="few sizes", exponent=1.0,
                          critical=Quantity(1.0), noise_scale_ratio=Quantity(1.0))  # fmt: skip
    found = {
        "budget": SimpleNamespace(budgets=[SimpleNamespace(optimizers=of, pairs=())] * 3),
        "temperature": SimpleNamespace(laws=[law]),
        "analyze": SimpleNamespace(answers=[SimpleNamespace(**vars(fit), target=SimpleNamespace(value=value))
                                            for value in (3.0, 2.8, 2.6)]),
    }  # fmt: skip
    doubted = {"at_grid_edge": 0, "unsettled": 0, "verdict": 0}
    for name in ("lamb-bert", "lars", "power-lines", "mccandlish-temperature", "mccandlish-lm"):
        for each in PAPERS.make(name, "tiny").expectations:
            for reading in each.ours if "ends below" not in each.claim and "lars ends" not in each.claim else ():
                sizes[0].batch_size = 64  # the other one is at the edge
                _, why = read(found, reading)
                assert len(why) == 1, each.claim
                doubted[next(word for word in doubted if word in why[0])] += 1
    assert doubted == {"at_grid_edge": 2 + 1 + 3, "unsettled": 3, "verdict": 5}


@pytest.mark.parametrize(("ratio", "published"), [(2191, 745.3), (3240, 955.2), (5433, 1393.7)])
def test_the_overhead_at_the_scale_of_the_paper_is_counted_from_its_reference(ratio: float, published: float) -> None:
    """Zhang et al. 2024, their fits of steps a + b/B: b/a, and the critical batch size that they report."""
    chosen = parse_choice(PAPERS.make("cbs-scaling", "paper").analyses["data"].options["definition"])
    definition: Definition = DEFINITIONS[chosen.name](**chosen.options)
    sample = SimpleNamespace(hyperbola=SimpleNamespace(critical=np.array([float(ratio)])))
    assert definition([sample])[0] == pytest.approx(published, abs=0.2)  # type: ignore[list-item]


def test_a_tiny_run_finds_its_batch_sizes_if_it_has_a_goal() -> None:
    sweep = experiment(TEXT, ("adamw",), (8, 32), target=2.8)
    found = one_run("x", sweep, True, goal=0.3, parameters=5.0)
    assert found.policy == Choice(name="precision", options={"goal": 0.3, "finds": True})
    assert found.parameters is None
    assert one_run("x", sweep, True).policy == Choice(name="once")
    published = one_run("x", sweep, False, goal=0.3, parameters=5.0)
    assert (published.policy, published.parameters) == (Choice(name="once"), 5.0)


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

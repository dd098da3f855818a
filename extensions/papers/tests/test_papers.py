"""Every recipe of a paper at both scales: its parts fit together, and its models have the published size."""

from __future__ import annotations

import dataclasses
import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from analysis.estimate.definitions import DEFINITIONS, Definition
from cbs.errors import ConfigError
from cbs.registry.choices import Choice, parse_choice
from extensions.papers.experiments import PAPERS, SCALES, AnswerPath, Expectation, Near, PaperRecipe, RecipeRun
from extensions.papers.experiments.base import EACH
from extensions.papers.reproducing.price import parameters_of, price
from extensions.papers.reproducing.reproduce import command_lines, recipe_of
from sweeps.launching.policies import POLICIES
from tests.kinds import kinds_of
from tests.parameters import COMMANDS, flags_of

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
def test_as_many_values_are_published_as_are_compared(name: str, scale: str) -> None:
    for each in PAPERS.make(name, scale).expectations:
        if isinstance(each.relation, Near) and not any(EACH in reading.path for reading in each.ours):
            assert len(each.relation.values) == len(each.ours), each.claim


@pytest.mark.parametrize(("name", "scale"), BOTH)
def test_analyses_are_command_lines_that_there_are(name: str, scale: str) -> None:
    for line in command_lines(PAPERS.make(name, scale), Path("here")).values():
        words = shlex.split(line)
        command = " ".join(words[:2]) if " ".join(words[:2]) in COMMANDS else words[0]
        assert command in COMMANDS
        assert {word for word in words if word.startswith("--")} <= set(flags_of(command))
        assert "{" not in line


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


def test_a_model_is_counted_without_memory_for_it() -> None:
    run = next(run for run in PAPERS.make("merit-gpt2", "paper").runs if run.name == "large")
    told = price(run)
    sequences = round(20 * 770e6 / 1024)
    assert told.parameters == 774_030_080  # GPT-2 Large as released
    assert told.trials == 9
    assert told.examples == pytest.approx(9 * sequences, rel=1e-3)  # to whole batches
    assert told.tokens == 1024 * told.examples
    assert told.flops == 6 * told.parameters * told.tokens
    assert told.hours(5e14) == pytest.approx(told.flops / 5e14 / 3600)


def test_settings_change_every_sweep_of_a_recipe() -> None:
    recipe = recipe_of("cbs-scaling", "tiny", ["clip_norm=2.5", "workload.layers=1"])
    assert {run.sweep.trial.clip_norm for run in recipe.runs} == {2.5}
    assert [run.sweep.trial.workload.options["width"] for run in recipe.runs] == [16, 32, 64]
    assert {run.sweep.trial.workload.options["layers"] for run in recipe.runs} == {1}
    with pytest.raises(ConfigError, match="'nqm' has no sweep"):
        recipe_of("nqm", "tiny", ["clip_norm=2.5"])
    with pytest.raises(ConfigError, match="unknown scale 'huge': known scales are tiny, paper"):
        recipe_of("nqm", "huge")


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
        PaperRecipe(**about, runs=(run,), analyses={"a": "analyze {two}"})
    reading = AnswerPath(analysis="b", path=("x",))
    wanted = Expectation(claim="c", published="p", source="s", relation=Near((1.0,), 0.1), ours=(reading,))
    with pytest.raises(ConfigError, match="reads from 'b', which is not its analysis"):
        PaperRecipe(**about, runs=(run,), analyses={"a": "analyze {one}"}, expectations=(wanted,))


def test_batch_sizes_are_compared_where_no_learning_rate_is_at_an_edge() -> None:
    """``cbs budget`` leaves such sizes out, and the best of the others is not the best."""
    readings = [reading for name, scale in BOTH for each in PAPERS.make(name, scale).expectations
                for reading in each.ours if "excess" in reading.path or "equivalence" in reading.path]  # fmt: skip
    assert len(readings) == 2 * (2 + 1 + 3)
    for reading in readings:
        assert reading.ok == ((*reading.path[:4], "sizes", {}, "at_grid_edge"),)


def test_the_temperature_counts_where_runs_have_settled() -> None:
    for scale in SCALES:
        for each in PAPERS.make("mccandlish-temperature", scale).expectations:
            assert [reading.ok for reading in each.ours] == [(("laws", 0, "unsettled"),)]


def test_a_curve_counts_where_its_verdict_is_ok() -> None:
    readings = [reading for name, scale in BOTH for each in PAPERS.make(name, scale).expectations
                for reading in each.ours if reading.analysis == "analyze"]  # fmt: skip
    assert readings
    for reading in readings:
        assert reading.ok == ((*reading.path[:-1], "verdict"),)


@pytest.mark.parametrize(("ratio", "published"), [(2191, 745.3), (3240, 955.2), (5433, 1393.7)])
def test_the_overhead_at_the_scale_of_the_paper_is_counted_from_its_reference(ratio: float, published: float) -> None:
    """Zhang et al. 2024, their fits of steps a + b/B: b/a, and the critical batch size that they report."""
    words = shlex.split(PAPERS.make("cbs-scaling", "paper").analyses["data"])
    chosen = parse_choice(words[words.index("--definition") + 1])
    definition: Definition = DEFINITIONS[chosen.name](**chosen.options)
    sample = SimpleNamespace(hyperbola=SimpleNamespace(critical=np.array([float(ratio)])))
    assert definition([sample])[0] == pytest.approx(published, abs=0.2)  # type: ignore[list-item]

"""Statements of the pages about defaults, limits, names and stored tables, each compared with the code it is about."""

import dataclasses
import inspect
import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from analysis.config import DEFAULT as ANALYSIS
from analysis.estimate import diagnosis, prior, seeds, study_draws
from analysis.estimate.definitions import DEFINITIONS, HEADLINE
from analysis.estimate.studies import FARTHEST
from analysis.estimate.suggest.design import GOAL
from analysis.figure_options import VENUES
from analysis.formatting import B_CRIT
from benchmarks import models
from benchmarks.model_cells import EXACT, FALLBACK, REFUSED
from benchmarks.models import read
from cbs.errors import ConfigError, Unfinished
from cbs.noise_scale.probe import FIRST, PERIOD
from cbs.schedules.batch_size import BATCH_SCHEDULES
from cbs.training.metrics import GradientNorm
from cbs.training.noise_scale import OVERHEAD
from cbs.training.noise_scale import PERIOD as PERIOD_OF_SWEEPS
from cbs.trial.config import EvaluationPlan
from cbs.trial.record import TrialStatus
from cbs.trial.target import NEARBY
from cbs.workloads import WORKLOADS
from sweeps.external.process import GRACE
from sweeps.launching.policies.rounds import MOST_ROUNDS
from sweeps.recipes import RECIPES
from sweeps.running import patience, run, tuning
from tests.cases import of_extensions

ROOT = Path(__file__).resolve().parents[3]
WORDS = {2: "two", 5: "five", 8: "eight", 10: "ten"}


def option(rule: str, name: str) -> Any:
    """Default of an option of a batch-size rule."""
    return inspect.signature(BATCH_SCHEDULES[rule]).parameters[name].default


def default(definition: str, name: str) -> Any:
    """Default of an option of a definition."""
    return next(part.default for part in dataclasses.fields(DEFINITIONS[definition]) if part.name == name)


def cells(source: str, kind: str) -> int:
    """Cells of the stored comparison of the noise scale with a loop over examples."""
    found = read(models.PAGE.read_text())
    return sum(key[2] == source and cell.kind == kind for key, cell in found.items())


QUICK, DEFAULT, PLAN = RECIPES.make("quick"), RECIPES.make("default"), EvaluationPlan()
MODELS = len({model for model, _, _ in read(models.PAGE.read_text())})

STATEMENTS: list[tuple[str, str, Callable[[], tuple[Any, ...]]]] = [
    (
        "README.md",
        "a precision of {:.0f} % instead of {:.0f}: a first look",
        lambda: (100 * QUICK.usual_precision, 100 * DEFAULT.usual_precision),
    ),
    ("README.md", "one of {} definitions", lambda: (WORDS[len(DEFINITIONS.names())],)),
    (
        "protocol.md",
        "the next evaluation after step s is at {} s near the target and at {} s far from it. Once {:.0f} % of the "
        "distance at step 0 is left, the ratio falls with it",
        lambda: (PLAN.growth, PLAN.far_growth, 100 * PLAN.near_fraction),
    ),
    ("protocol.md", "a line through the evaluations of the last factor of {} before the first", lambda: (NEARBY,)),
    ("protocol.md", "pruned when it has taken {} times the best steps", lambda: (DEFAULT.prune_factor,)),
    ("protocol.md", "rises linearly over the first {} updates", lambda: (WORDS[DEFAULT.schedule.warmup_steps],)),
    ("protocol.md", "down to a ratio of {} (`--set lr_resolution", lambda: (DEFAULT.search.lr_resolution,)),
    ("protocol.md", "One step in {} is measured, below {} examples", lambda: (PERIOD_OF_SWEEPS, OVERHEAD)),
    ("protocol.md", "after {} rounds", lambda: (MOST_ROUNDS,)),
    (
        "noise-scale.md",
        "the first {} steps are measured, then fewer and fewer, and from step {} on one in {}",
        lambda: (2 * FIRST, FIRST * 2 ** PERIOD.bit_length(), PERIOD),
    ),
    ("noise-scale.md", "single examples on {} models", lambda: (MODELS,)),
    ("fits.md", "{} curves are drawn from the posterior", lambda: (ANALYSIS.resamples,)),
    (
        "fits.md",
        "Shares rho up to {} and lengths l from {:.0f} to {} e-folds",
        lambda: (max(seeds.SHARES), min(seeds.LENGTHS), max(seeds.LENGTHS)),
    ),
    (
        "fits.md",
        "median is {:.0f} % of the steps, a factor of {:.1f} either way",
        lambda: (100 * prior.StepsPrior.noise, math.exp(prior.StepsPrior.noise_spread)),
    ),
    (
        "fits.md",
        "a standard deviation of {:.0f} e-folds), and ln a around 0 with standard deviation {}",
        lambda: (prior.PLACE, prior.EXPONENT),
    ),
    ("fits.md", "(Matérn 3/2, length {:.0f} in ln B)", lambda: (prior.LENGTH,)),
    (
        "fits.md",
        "{:.1g}, {:.1g}, {:.1g}, {:.2g} and {:.2g}, as standard deviations of the slope",
        lambda: tuple(math.sqrt(2) * size for size in prior.SIZES),
    ),
    ("fits.md", "have the prior probabilities {}, {}, {}, {} and {}", lambda: prior.WEIGHTS),
    (
        "fits.md",
        "**A jump**, at odds of {}: from some batch size on all runs are slower or faster, by about {:.0f} %",
        lambda: (prior.JUMPS, 100 * prior.JUMP),
    ),
    ("fits.md", "A seed a factor of {} or more from the others", lambda: (study_draws.LEAST_FACTOR,)),
    (
        "fits.md",
        "by more than a {} of its interval, in ln B, and by more than {:.0f} %",
        lambda: ({0.25: "quarter"}[diagnosis.MOVES], 100 * diagnosis.NOTABLE),
    ),
    (
        "fits.md",
        "**A kink**, at odds of {}: no power law, but two straight lines that meet at any place, with the exponents "
        "{:.0f} ± {} before and {} ± {} after it",
        lambda: (prior.KINKS, *prior.BEFORE, *prior.AFTER),
    ),
    (
        "fits.md",
        "**Another knee**, with probability {:.2g}: `(1/g) ln(1 + (B_0/B)^(a g))` with g = {} (blunt)",
        lambda: (sum(prior.OTHERS.values()), next(iter(prior.OTHERS))),
    ),
    ("fits.md", "a jump or a kink has a probability above {}, it is the verdict", lambda: (diagnosis.SUDDEN,)),
    ("fits.md", "until it is expected to be {:.0f} % narrower", lambda: (100 * (1 - GOAL),)),
    ("fits.md", "between two that are more than a factor of {} apart", lambda: (FARTHEST,)),
    ("fits.md", "the interval spans a factor of {} or more", lambda: (WORDS[int(diagnosis.WIDE)],)),
    (
        "definitions.md",
        "`exchange` r = {:g}, `span` = {:g} | above",
        lambda: (default(HEADLINE, "exchange"), default(HEADLINE, "span")),
    ),
    ("definitions.md", "`overhead` p = {}, `reference_batch`", lambda: (default("overhead", "overhead"),)),
    ("definitions.md", "- S_min) | `tolerance` t = {} | [Shallue", lambda: (default("saturation", "tolerance"),)),
    (
        "schedules.md",
        "| (B/B0)^e (0) | `theta` ({}), `cap` | 2412.21124 |",
        lambda: (f"{option('norm_test', 'theta'):g}"[1:],),
    ),
    (
        "schedules.md",
        "| (B/B0)^e (.5) | `theta` ({}), `cap` | 2602.03001 |",
        lambda: (f"{option('dual_norm', 'theta'):g}"[1:],),
    ),
    ("schedules.md", "| `cut` ({:g}), `cap` | 1711.00489 |", lambda: (option("smith", "cut"),)),
    (
        "schedules.md",
        "`first_examples`, `delta` ({:g}), `gamma` ({}), `stage_power` ({:g}), `cap` ({})",
        lambda: tuple(option("growth", name) for name in ("delta", "gamma", "stage_power", "cap")),
    ),
    ("faults.md", "| {} | some trials failed, Ray died for good", lambda: (Unfinished.exit_code,)),
    ("faults.md", "or its process dies {} times", lambda: ({3: "three"}[run.MAX_DEATHS + 1],)),
    ("faults.md", "it is started again, {} times at most", lambda: ({3: "three"}[tuning.MAX_ENGINES],)),
    ("faults.md", "from its checkpoint, {} times at most", lambda: (WORDS[run.MAX_LOSSES],)),
    ("faults.md", "| {} | the input is wrong, or the folder cannot be used", lambda: (ConfigError.exit_code,)),
    (
        "faults.md",
        "default: {:.0f} times the longest expected step, at least {:.0f} minutes",
        lambda: (patience.MARGIN, patience.LEAST_SECONDS / 60),
    ),
    ("own-trainer.md", "the program gets SIGTERM, and {} seconds later SIGKILL", lambda: (WORDS[int(GRACE)],)),
    ("budget.md", "`gradient_norm` (over {} fixed training examples)", lambda: (GradientNorm.examples,)),
    ("figures.md", "- `acl`: {:.2f} in, {:.2f} in", lambda: (VENUES["acl"].single, VENUES["acl"].text)),
    ("figures.md", "- `ieee`: {:.2f} in, {:.2f} in", lambda: (VENUES["ieee"].single, VENUES["ieee"].text)),
    ("evidence.md", "| `split` | {} | 0 | {} |", lambda: (cells("split", EXACT), cells("split", REFUSED))),
    (
        "evidence.md",
        "| `accumulation` | {} | 0 | {} |",
        lambda: (cells("accumulation", EXACT), cells("accumulation", REFUSED)),
    ),
    (
        "evidence.md",
        "| `auto` | {} | {} | {} |",
        lambda: tuple(cells("auto", kind) for kind in (EXACT, FALLBACK, REFUSED)),
    ),
    *(statement for statements in of_extensions("STATEMENTS") for statement in statements),
]
"""Page, what it says, and the values in it as the program has them."""


@pytest.mark.parametrize(
    ("page", "said", "values"), STATEMENTS, ids=[f"{page}: {said}" for page, said, _ in STATEMENTS]
)
def test_a_page_says_what_the_program_does(page: str, said: str, values: Callable[[], tuple[Any, ...]]) -> None:
    text = (ROOT / page if page == "README.md" else ROOT / "docs" / page).read_text()
    assert said.format(*values()) in " ".join(text.split())


@pytest.mark.parametrize("page", ["README.md", "docs/definitions.md", "docs/glossary.md"])
def test_the_headline_is_said_in_the_same_words(page: str) -> None:
    text = (ROOT / page).read_text().replace("**", "")
    assert B_CRIT.partition(" ")[2] in text


def test_every_verdict_stands_in_the_guide_of_its_question() -> None:
    words: set[str] = set()
    for page, heading in (("fits.md", "## Verdicts"), ("branching.md", "| verdict |")):
        rows = (ROOT / "docs" / page).read_text().partition(heading)[2]
        words |= set(re.findall(r"^\| ([^|]+) \|", rows, re.MULTILINE))
    words |= set(re.findall(r"`([^`]+)`", (ROOT / "docs" / "budget.md").read_text().partition("Not finding a")[2]))
    assert words >= {str(verdict) for verdict in diagnosis.Verdict}


def test_the_glossary_has_every_status_of_a_trial() -> None:
    glossary = (ROOT / "docs" / "glossary.md").read_text()
    assert all(f"- `{status}`: " in glossary for status in TrialStatus)


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("definitions.md", DEFINITIONS.names()),
        ("schedules.md", BATCH_SCHEDULES.names()),
        ("workloads.md", WORKLOADS.names()),
        ("figures.md", VENUES),
    ],
)
def test_a_page_names_all_entries_of_a_registry(page: str, names: Iterable[str]) -> None:
    text = (ROOT / "docs" / page).read_text()
    assert [name for name in names if f"`{name}`" not in text] == []

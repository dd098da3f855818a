"""Every expectation of every tiny recipe finds its number in the answers to its questions; verdicts from intervals."""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from torch import nn

from analysis.config import DEFAULT, AnalysisConfig
from analysis.quantities import Quantity
from cbs.optimizers import build_optimizer
from cbs.schedules.batch_size import build_batch_schedule
from cbs.schedules.learning_rate import build_schedule
from cbs.training.batch_sizes import run_of
from cbs.trial.record import GeometryColumns, Measurement, TrialResult, TrialStatus, WorkloadInfo
from cbs.trial.store import Store
from extensions.papers.experiments import (
    PAPERS,
    Beyond,
    Expectation,
    Likely,
    Measured,
    Monotone,
    Near,
    NoSuchNumber,
    OurNumber,
    PaperRecipe,
    PublishedRelation,
    RecipeRun,
    Reproduced,
    nth,
)
from extensions.papers.reproducing.asking import answer, read
from extensions.papers.reproducing.reproduce import JudgedExpectation, judge
from extensions.papers.reproducing.telling import told
from sweeps.folder.manifest import merged_manifest
from sweeps.launching.launch import resolve
from sweeps.launching.policies import POLICIES
from sweeps.search.search import Limits
from sweeps.spec.axes import Cell
from sweeps.spec.spec import Sweep
from tests.branched_runs import write as branches
from tests.factories import TARGET

PLAIN = GeometryColumns(geometry="l2", symbol="B", exponent=1, signal="grad_sq_norm", noise="noise_trace")
SEEDS, RATES, SLOPE = 3, (0.5, 1.0, 2.0), 0.3
LONG = ("cbs-scaling",)


def quick() -> set[str]:
    """The first recipe that asks each question; the others ask alike."""
    found: dict[str, str] = {}
    for name in PAPERS.names():
        for question in PAPERS.make(name, "tiny").analyses.values() if name not in LONG else ():
            found.setdefault(question.name, name)
    return {*found.values()}


RECIPES = [
    pytest.param(name, marks=() if name in quick() else pytest.mark.slow)
    for name in PAPERS.names()
    if PAPERS.make(name, "tiny").runs
]


def folders(root: Path, run: RecipeRun) -> list[Path]:
    """Where the sweeps of a run are: one for every width that telescoping tunes."""
    widths = run.policy.options.get("widths", ())[:3] if run.policy.name == "telescope" else ()
    return [root / run.name / f"width-{width}" for width in widths] or [root / run.name]


def write(root: Path, sweep: Sweep, parameters: int) -> None:
    """Trials of a sweep on curves that differ a little by optimizer, with the best learning rate in the middle."""
    store, rng = Store(root), np.random.default_rng(parameters)
    store.prepare()
    sweep = sweep.replace(seeds=tuple(range(SEEDS)))
    if sweep.target is None:
        own = "validation_accuracy" if "accuracy" in str(sweep.trial.workload) else "validation_loss"
        metric = sweep.metric or own
        sweep = sweep.replace(target=dataclasses.replace(TARGET, metric=metric))
    if "accuracy" in str(sweep.trial.workload):
        sweep = sweep.replace(target=dataclasses.replace(sweep.target, direction="above"))  # type: ignore[type-var]
    store.write_manifest(merged_manifest(store, sweep, ""))
    assert sweep.target is not None
    for study in sweep.studies():
        optimizer = [*sweep.choices].index(study.optimizer)
        size, best = study.batch_size, 1e-3 * math.sqrt(study.batch_size)
        for lr in sweep.axes.lrs or [best * rate for rate in RATES]:
            for seed in range(SEEDS):
                config = sweep.trial_at(Cell(study.optimizer, size, seed), lr)
                off = 0.3 * math.log(lr / best) ** 2 if sweep.axes.lrs is None else 0.0
                critical = (40.0 + 10 * optimizer) * parameters**0.1
                needed = 100.0 * (1 + critical / size) * math.exp(off + 0.02 * rng.standard_normal())
                last = config.max_steps if not config.stops_at_target else math.ceil(needed) + 1
                last = min(last, 3_000) if sweep.axes.lrs else last
                store.save(result(config, needed, last, lr, rng, parameters))


def result(config: Any, needed: float, last: int, lr: float, rng: np.random.Generator, parameters: int) -> TrialResult:
    sign = 1.0 if config.target.direction == "below" else -1.0
    sizes = np.full(last, config.batch_size)
    if config.batch_schedule is not None and config.stops_at_target:
        sizes[last // 2 :] *= 2
    elif config.batch_schedule is not None:  # as many examples in fewer steps
        sizes = np.append(sizes[: last // 2], np.full(last // 4, 2 * config.batch_size))
        last = len(sizes)
    seen, steps = np.cumsum(sizes), sorted({*np.geomspace(1, last, 60).round().astype(int).tolist(), last})
    rows = [Measurement(step=0, examples=0, value=config.target.value + sign * 3, train_loss=3.0, lr=0.0)]
    rows[0].others.update(dict.fromkeys(config.metrics, 3.0))
    for step in steps:
        value = config.target.value + sign * SLOPE * math.log(needed / step)
        others = dict.fromkeys(config.metrics, value)
        rows.append(
            Measurement(step=step, examples=int(seen[step - 1]), value=value, train_loss=value, lr=lr, others=others)
        )
    columns = {"step": np.arange(1, last + 1), "examples": seen, "batch_size": sizes, "train_loss": np.ones(last)}
    columns |= {"lr_factor": np.ones(last)} if config.batch_schedule is not None else {}
    for layer in (1, 2) if "max_attention_logit" in config.diagnostics else ():
        columns[f"max_attention_logit_layer_{layer}"] = layer + rng.random(last)
    if config.probe is not None:
        columns["grad_sq_norm"] = 1.0 + 0.1 * rng.standard_normal(last)
        columns["noise_trace"] = 50 * config.batch_size / lr * (1.0 + 0.1 * rng.standard_normal(last))
    known = WorkloadInfo(
        example_unit="sequence", tokens_per_example=32, metric_unit="nats/byte", parameters=parameters, data_hash="abc"
    )
    crossing = config.target.crossing([row.step for row in rows], [row.value for row in rows])
    hit = crossing is not None and config.stops_at_target
    return TrialResult(
        config=config, status=TrialStatus.REACHED if hit else TrialStatus.BUDGET_EXHAUSTED, evaluations=rows,
        steps_to_target=crossing if hit else None, steps=columns, workload=known,
        geometries=(PLAIN,) if config.probe is not None else (),
    )  # fmt: skip


def freed(reading: OurNumber) -> OurNumber:
    """The same number, whatever the verdicts."""

    def of(found: Any) -> list[Measured]:
        measured = reading.of(found)
        listed = [measured] if isinstance(measured, Measured) else measured
        return [dataclasses.replace(each, valid_if={}) for each in listed]

    return dataclasses.replace(reading, of=of, over=freed(reading.over) if reading.over else None)


@pytest.mark.parametrize("name", RECIPES)
def test_every_expectation_finds_its_number(name: str, tmp_path: Path) -> None:
    recipe: PaperRecipe = PAPERS.make(name, "tiny")
    for number, run in enumerate(recipe.runs):
        for folder in folders(tmp_path, run):
            branches(folder) if run.policy.name == "branch" else write(folder, run.sweep, 10 ** (number + 3))
    quick = AnalysisConfig(resamples=100)
    answers = {
        name_of: answer(question, tmp_path, config=DEFAULT if "temperature" in question.name else quick, draw=False)[0]
        for name_of, question in recipe.analyses.items()
    }
    for each in recipe.expectations:
        for reading in each.ours:
            assert read(answers, reading)[0], each.claim
        free = tuple(freed(reading) for reading in each.ours)
        assert judge(dataclasses.replace(each, ours=free), answers, {}).why == ()


@pytest.mark.parametrize("name", [name for name in PAPERS.names() if PAPERS.make(name, "tiny").runs])
def test_every_sweep_of_a_tiny_recipe_can_be_built(name: str) -> None:
    for run in PAPERS.make(name, "tiny").runs:
        resolved = resolve(run.sweep)
        assert resolved.target is not None
        POLICIES.make(run.policy.name, **run.policy.options).check(resolved, limits=Limits(), source=None)


@pytest.mark.parametrize("name", [name for name in PAPERS.names() if PAPERS.make(name, "paper").runs])
def test_schedules_and_optimizers_at_the_scale_of_the_paper_can_be_built(name: str) -> None:
    """Without the data, which nobody has here."""
    for run in PAPERS.make(name, "paper").runs:
        sweep = run.sweep if run.sweep.target is not None else run.sweep.replace(target=TARGET)
        for study in sweep.studies():
            trial = sweep.trial_at(Cell(study.optimizer, study.batch_size, 0), sweep.listed_lrs(study)[0])
            build_schedule(trial.schedule)
            build_batch_schedule(trial.batch_schedule, run_of(trial, 1024))
            build_optimizer(trial.optimizer, nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), 1e-3)


ROWS = (
    SimpleNamespace(name="x", size=8, number=Quantity(1.0, (0.5, 1.5))),
    SimpleNamespace(name="x", size=16, number=Quantity(2.0, (1.0, 4.0))),
    SimpleNamespace(name="y", size=8, number=Quantity(4.0, (3.0, 5.0))),
)


def reading(*places: int, valid_if: Mapping[str, str | int] | None = None, **more: object) -> OurNumber:
    def of(rows: tuple[SimpleNamespace, ...]) -> list[Measured]:
        return [Measured("number", nth(rows, place).number, valid_if or {}) for place in places]

    return OurNumber(question="a", of=of, **more)  # type: ignore[arg-type]


def number(value: float | Quantity | None, **more: object) -> tuple[list[Quantity], list[str]]:
    return read({"a": None}, OurNumber(question="a", of=lambda _: Measured("n", value), **more))  # type: ignore[arg-type]


def test_a_number_comes_with_its_interval_an_exact_one_with_itself() -> None:
    assert number(Quantity(2.0, (None, 4.0))) == ([Quantity(2.0, (None, 4.0))], [])
    assert number(3) == ([Quantity(3, (None, None))], [])
    assert number(3.0, exact=True) == ([Quantity(3.0, (3.0, 3.0))], [])
    assert number(None) == number(Quantity()) == ([], ["a: n has no value"])


def test_a_number_over_another_has_the_interval_of_independent_ones() -> None:
    (ratio,), _ = read({"a": ROWS}, reading(2, over=reading(0)))
    assert ratio == ROWS[2].number.over(ROWS[0].number)
    ratios, _ = read({"a": ROWS}, reading(0, 1, 2, over=reading(0)))
    assert [each.value for each in ratios] == [1.0, 2.0, 4.0]
    with pytest.raises(NoSuchNumber, match="1 numbers over 3"):
        read({"a": ROWS}, reading(0, over=reading(0, 1, 2)))
    assert number(1.0, over=OurNumber(question="a", of=lambda _: Measured("m", None))) == ([], ["a: m has no value"])


def test_what_speaks_against_a_number_is_said() -> None:
    def against(**more: object) -> list[str]:
        return read({"a": ROWS}, reading(0, **more))[1]  # type: ignore[arg-type]

    assert against(valid_if={"verdict": "ok", "flag": False, "count": 0}) == []
    assert against(valid_if={"verdict of x": "too few seeds", "flag": True, "count": 3}) == [
        "a: verdict of x is 'too few seeds'",
        "a: flag is True",
        "a: count is 3",
    ]
    assert against(over=reading(0, valid_if={"flag": True})) == ["a: flag is True"]


def test_a_number_in_doubt_is_shown_and_does_not_count() -> None:
    def judged(valid_if: Mapping[str, str | int] | None = None, *, failed: bool = False) -> JudgedExpectation:
        ours = (reading(0, valid_if=valid_if), reading(2))
        wanted = Expectation(claim="c", published="p", source="s", relation=Beyond(0.0), ours=ours)
        return judge(wanted, {"a": ROWS}, {"a": "no results"} if failed else {})

    sure, doubted, failed = judged(), judged({"verdict": "too few seeds"}), judged(failed=True)
    assert (sure.verdict, sure.why) == (Reproduced.YES, ())
    assert (doubted.verdict, doubted.why) == (Reproduced.UNKNOWN, ("a: verdict is 'too few seeds'",))
    assert doubted.found == sure.found
    assert told(doubted.found, *doubted.why) == "1 [0.5, 1.5], 4 [3, 5] (a: verdict is 'too few seeds')"
    assert told([Quantity(-0.2, (None, 1.2)), Quantity(3.0)], "") == "-0.2 [open, 1.2], 3"
    assert (failed.verdict, failed.found, failed.why) == (Reproduced.UNKNOWN, (), ("no results",))
    assert told(failed.found, *failed.why) == "no results"


YES, NO, UNKNOWN = Reproduced.YES, Reproduced.NO, Reproduced.UNKNOWN


def q(low: float | None, high: float | None, value: float = 1.0) -> Quantity:
    return Quantity(value, (low, high))


CASES = [
    (Near((1.0,), 0.2), [q(0.9, 1.1)], YES),
    (Near((1.0,), 0.2), [q(0.8, 1.2)], YES),
    (Near((1.0,), 0.2), [q(0.9, 1.3)], UNKNOWN),
    (Near((1.0,), 0.2), [q(0.5, 2.0)], UNKNOWN),
    (Near((1.0,), 0.2), [q(1.21, 1.3)], NO),
    (Near((1.0,), 0.2), [q(0.1, 0.79)], NO),
    (Near((1.0,), 0.2), [q(None, None)], UNKNOWN),
    (Near((1.0,), 0.2), [q(1.5, None)], NO),
    (Near((7.0,), 0.0), [q(7.0, 7.0)], YES),
    (Near((7.0,), 0.0), [q(8.0, 8.0)], NO),
    (Near((1.0, 2.0), 0.2), [q(0.9, 1.1), q(1.9, 2.1)], YES),
    (Near((1.0, 2.0), 0.2), [q(0.9, 1.1), q(2.9, 3.1)], NO),
    (Near((1.0, 2.0), 0.2), [q(0.9, 1.1), q(1.0, 3.0)], UNKNOWN),
    (Near((1.0, 2.0), 0.2), [q(0.9, 1.1)], UNKNOWN),
    (Beyond(0.0), [q(0.1, 0.5)], YES),
    (Beyond(0.0), [q(-0.1, 0.5)], UNKNOWN),
    (Beyond(0.0), [q(-0.5, -0.1)], NO),
    (Beyond(0.0), [q(0.1, None)], YES),
    (Beyond(0.0), [q(None, -0.1)], NO),
    (Beyond(0.0, above=False), [q(-0.5, -0.1)], YES),
    (Beyond(0.0, above=False), [q(0.1, 0.5)], NO),
    (Beyond(0.02, above=False), [q(0.01, 0.015)], YES),
    (Beyond(1.0), [q(1.1, 1.2), q(0.9, 1.2)], UNKNOWN),
    (Beyond(1.0), [q(1.1, 1.2), q(0.5, 0.9)], NO),
    (Beyond(1.0), [], UNKNOWN),
    (Likely(), [Quantity(0.97)], YES),
    (Likely(), [Quantity(0.95)], YES),
    (Likely(), [Quantity(0.94)], UNKNOWN),
    (Likely(), [Quantity(0.05)], NO),
    (Likely(), [Quantity(0.06)], UNKNOWN),
    (Monotone(), [q(1, 2), q(None, None), q(3, 4)], UNKNOWN),
    (Monotone(), [q(1, 2), q(1.5, None), q(3, 4)], YES),
    (Monotone(), [q(1, 2), q(1.5, 3), q(3, 4)], YES),
    (Monotone(), [q(1, 2), q(1.5, 3)], UNKNOWN),
    (Monotone(), [q(1, 2), q(5, 6), q(3, 4)], NO),
    (Monotone(), [q(3, 4), q(1, 2)], NO),
    (Monotone(), [q(3, 4), q(2.5, 3.5), q(1, 2.6)], NO),
    (Monotone(), [q(3, 4)], UNKNOWN),
    (Monotone(rising=False), [q(3, 4), q(1, 2)], YES),
    (Monotone(rising=False), [q(1, 2), q(3, 4)], NO),
    (Monotone(), [q(None, None), q(1, 2)], UNKNOWN),
]


@pytest.mark.parametrize(("relation", "found", "verdict"), CASES)
def test_a_verdict_follows_from_intervals(
    relation: PublishedRelation, found: list[Quantity], verdict: Reproduced
) -> None:
    assert relation.verdict(found) is verdict

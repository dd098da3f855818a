"""The question of the learning rate: law, factors, and what the way it is chosen does to the critical batch size."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest

from analysis.config import AnalysisConfig
from analysis.estimate.estimates import answers
from analysis.estimate.learning_rate_law import Trend
from analysis.estimate.result import Answer
from analysis.estimate.suggest.earlier_command import parsed
from analysis.present import presentation
from analysis.read.results import load
from cbs.errors import ConfigError
from extensions.lr.learning_rates import MULTIPLES, Protocol, learning_rates, protocols, snapped
from tests.factories import Truth, sweep

SIZES = (2, 8, 32, 128, 512)
LRS = tuple(2.5e-4 * 2.0**power for power in range(8))
ROOT = Truth(lr_at_1=1e-3 / math.sqrt(32), lr_power=0.5, lr_max=1.0)
"""Best learning rate 1e-3 at B = 32, on the grid at every batch size from 2 to 512."""
CONFIG = AnalysisConfig(resamples=100)


@pytest.fixture(scope="module")
def rooted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rooted")
    store = sweep(folder, {"adamw": ROOT}, batch_sizes=SIZES, lrs=LRS, seeds=2, prune_factor=None, growth=1.3)
    command = f"cbs sweep --recipe quick --optim adamw --target 2.4 -o {folder}"
    store.write_manifest(store.manifest() | {"runs": [{"command": command}]})
    return folder


@pytest.fixture(scope="module")
def answer(rooted: Path) -> Answer:
    return answers(load(rooted), CONFIG, noise=False)[0]


@pytest.fixture(scope="module")
def found(answer: Answer) -> dict[str, Protocol]:
    return by_name(protocols(answer))


def by_name(found: tuple[Protocol, ...]) -> dict[str, Protocol]:
    return {protocol.name: protocol for protocol in found}


def without(answer: Answer, batch_size: int, lr: float, seeds: slice = slice(None)) -> Answer:
    """As if these trials had never been run."""
    changed = []
    for study in answer.studies:
        if study.batch_size == batch_size:
            row = int(np.abs(study.lrs - lr).argmin())
            steps, status, bound = study.steps.copy(), study.status.copy(), study.bound.copy()
            steps[row, seeds], status[row, seeds], bound[row, seeds] = np.nan, "", np.nan
            study = dataclasses.replace(study, steps=steps, status=status, bound=bound)
        changed.append(study)
    return dataclasses.replace(answer, studies=tuple(changed))


def test_the_rule_that_the_truth_follows_gives_the_tuned_answer(answer: Answer, found: dict[str, Protocol]) -> None:
    assert list(found) == [
        "tuned per batch size",
        "one for all batch sizes",
        "that of batch size 32",
        "square-root rule",
        "linear rule",
    ]
    tuned, rule = found["tuned per batch size"], found["square-root rule"]
    assert tuned.answer is answer
    assert rule.reference == 32
    assert rule.lrs == pytest.approx({size: 1e-3 * math.sqrt(size / 32) for size in SIZES})
    assert rule.lrs == tuned.lrs
    assert not rule.missing
    assert rule.answer.critical_batch_size == pytest.approx(answer.critical_batch_size, rel=1e-3)
    assert rule.answer.examples_at_critical.value == pytest.approx(answer.examples_at_critical.value, rel=1e-3)


def test_one_learning_rate_is_the_one_of_least_excess_and_costs_steps(
    answer: Answer, found: dict[str, Protocol]
) -> None:
    one = found["one for all batch sizes"]
    assert one.lrs == pytest.approx(dict.fromkeys(SIZES, 1e-3))
    assert one.answer.critical_batch_size != pytest.approx(answer.critical_batch_size, rel=0.03)
    steps = {point.batch_size: point.steps_to_target for point in answer.points}
    for point in one.answer.points:
        away = 0.5 * math.log(point.batch_size / 32)
        assert point.steps_to_target == pytest.approx(
            steps[point.batch_size] * math.exp(0.5 * ROOT.curvature * away**2), rel=0.02
        )
    # where it was never run, the one that reached the target at more batch sizes wins
    assert set(by_name(protocols(without(answer, 32, 1e-3)))["one for all batch sizes"].lrs.values()) != {1e-3}


def test_cells_that_were_never_run_are_named_and_do_not_count_as_failed(found: dict[str, Protocol]) -> None:
    linear = found["linear rule"]
    assert linear.not_run == (2,)
    assert linear.verdict == "not run at 1 batch size"
    assert linear.answer.critical_batch_size is not None
    said = linear.to_json()
    assert (said["critical_batch_size"], said["interval"], said["examples_at_critical"]) == (None, [None, None], None)
    assert found["square-root rule"].to_json()["critical_batch_size"] is not None
    assert linear.lrs == pytest.approx({8: 2.5e-4, 32: 1e-3, 128: 4e-3, 512: 16e-3})
    assert [point.batch_size for point in linear.answer.points] == [8, 32, 128, 512]
    (missing,) = linear.missing
    assert (missing.batch_sizes, missing.seeds) == ((2,), (0, 1))
    assert missing.lr == pytest.approx(6.25e-5)
    options = dict(parsed(missing.command) or ())
    assert options["--batch-sizes"] == "2"
    assert options["--seeds"] == "0,1"
    assert options["--target"] == "2.4"
    assert float(options["--lrs"]) == pytest.approx(6.25e-5)


def test_cells_that_ran_without_reaching_are_bounds(tmp_path: Path) -> None:
    sweep(tmp_path, {"adamw": ROOT}, batch_sizes=SIZES, lrs=LRS, seeds=2, prune_factor=1.3, growth=1.1)
    answer = answers(load(tmp_path), CONFIG, noise=False)[0]
    one = by_name(protocols(answer))["one for all batch sizes"]
    assert list(one.lrs) == list(SIZES)
    assert not one.missing
    last = one.answer.points[-1]
    assert (last.steps_to_target, last.status) == (None, "PRUNED")
    assert last.steps_lower_bound == pytest.approx(1.3 * (answer.points[-1].steps_to_target or 0), rel=1e-6)
    assert "512 (PRUNED)" in one.answer.advice


def test_the_reference_is_the_middle_one_inside_the_grid_or_as_asked(
    answer: Answer, found: dict[str, Protocol]
) -> None:
    assert {protocol.reference for protocol in found.values()} == {None, 32}
    asked = by_name(protocols(answer, 128))
    assert asked["square-root rule"].reference == 128
    assert asked["that of batch size 128"].lrs == pytest.approx(dict.fromkeys(SIZES, 2e-3))
    points = tuple(dataclasses.replace(point, at_grid_edge=point.batch_size in (8, 32, 128)) for point in answer.points)
    edged = dataclasses.replace(answer, points=points)
    assert {protocol.reference for protocol in protocols(edged)} <= {None, 2, 512}
    with pytest.raises(ConfigError, match=r"batch size 16 of adamw .* there are 2, 8, 32, 128, 512"):
        protocols(answer, 16)


def test_a_wanted_learning_rate_is_at_most_half_a_step_from_the_grid() -> None:
    grid = np.array([1.0, 2.0, 8.0])
    assert snapped(1.3, grid) == [1.0]
    assert snapped(math.sqrt(2), grid) == [1.0, 2.0]
    assert snapped(3.9, grid) == [2.0]
    assert snapped(4.1, grid) == [8.0]
    assert snapped(15.9, grid) == [8.0]
    assert snapped(16.3, grid) == [16.3]
    assert snapped(0.708, grid) == [1.0]
    assert snapped(0.7, grid) == [0.7]
    assert snapped(3.0, np.array([3.0])) == [3.0]
    assert snapped(3.1, np.array([3.0])) == [3.1]


def test_law_factors_and_protocols_of_a_folder(rooted: Path) -> None:
    asked = learning_rates(rooted, CONFIG, targets=[2.4, 2.8])
    assert [entry.answer.target.value for entry in asked.entries] == [2.4, 2.8]
    for entry in asked.entries:
        law = entry.law
        assert law.inside == list(SIZES[1:])  # the lowest learning rate wins at B = 2
        assert law.trend is Trend.POWER_LAW
        assert law.slope.value == pytest.approx(0.5, abs=1e-3)
        critical = entry.answer.critical_batch_size
        assert [(factor.batch_size, factor.multiple) for factor in entry.factors] == [
            (start, multiple) for start in (critical, 512) for multiple in MULTIPLES
        ]
        assert all(factor.square_root and not factor.linear for factor in entry.factors)
        assert [factor.extrapolated for factor in entry.factors] == [False] * 3 + [True] * 3
    assert presentation(asked).then == [f"cbs throughput {rooted}"]
    written = json.loads(json.dumps(asked.to_json(), allow_nan=False))
    first = written["learning_rates"][0]
    assert first["law"]["trend"] == "power law, no saturation seen"
    assert [entry["batch_size"] for entry in first["law"]["optima"]] == list(SIZES)
    assert first["protocols"][-1]["missing"][0]["batch_sizes"] == [2]
    assert written["confidence"] == 0.95

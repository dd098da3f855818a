"""A sweep that finds its batch sizes: several optimizers, limits, memory, and commands before and after."""

import itertools
import math
import random
import shlex
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer

import cli
from analysis.config import AnalysisConfig
from analysis.estimate.estimates import answers
from analysis.estimate.result import Answer
from analysis.estimate.suggest import suggest
from analysis.estimate.suggest.known import Known
from analysis.read.results import load
from cbs.registry.choices import parse_choice
from cbs.trial.config import TrialConfig
from cbs.trial.record import TrialStatus
from cbs.trial.store import Store
from sweeps.external.asked import with_flags
from sweeps.folder.manifest import merged_manifest
from sweeps.launching.loop import follow
from sweeps.launching.policies.precision import FEWEST_RUNS, MOST_RUNS, Precision
from sweeps.launching.policies.rounds import _grown, part_of
from sweeps.launching.policies.staged import EachSetting
from sweeps.search.forecast import End, ended
from sweeps.search.search import Limits, Search
from sweeps.spec.axes import StagedStudy, StudyKey
from sweeps.spec.spec import Sweep
from tests.sweeps.search_worlds import sweep
from tests.sweeps.test_precision import GOAL, TRUTH, WORLD, covered, to_precision, trainer

TWO = sweep(WORLD).replace(optimizers=tuple(map(parse_choice, ("adamw", "sgd"))))
LARGE = 500.0  # Critical batch size of the second optimizer


def apart(config: TrialConfig) -> End:
    """The second optimizer has a larger critical batch size and other learning rates."""
    if config.optimizer.name == "adamw":
        return WORLD.end(config)
    gap = math.log(config.lr / (0.05 * math.sqrt(config.batch_size / LARGE)))
    noise = random.Random(f"{config.batch_size} {config.lr} {config.seed}").gauss(0.0, 0.05)
    steps = math.exp(math.log(100.0 * (1.0 + LARGE / config.batch_size)) + 0.25 * gap**2 + noise)
    if steps < config.max_steps:
        return End(steps)
    return End(config.max_steps, reached=False, distance=1.0 - config.max_steps / steps)


def cells(folder: Path) -> set[tuple[str, int, int]]:
    configs = [result.config for result in Store(folder).results()]
    return {(config.optimizer.name, config.batch_size, config.seed) for config in configs}


def asked(done: Precision, asked: Sweep) -> set[tuple[str, int, int]]:
    """All that was asked for from round to round."""
    parts = [*done.first(asked), *(part for entry in done.rounds for part in entry["added"])]
    return {
        cell for part in parts for cell in itertools.product(part["optimizers"], part["batch_sizes"], part["seeds"])
    }


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Precision, Path]:
    folder = tmp_path_factory.mktemp("both")
    return to_precision(TWO, GOAL, folder, trainer(folder, apart), finds=True), folder


def test_every_optimizer_finds_its_own_place_with_the_same_seeds(both: tuple[Precision, Path]) -> None:
    done, folder = both
    assert not done.reasons
    there = cells(folder)
    for name, truth in (("adamw", TRUTH), ("sgd", LARGE)):
        sizes = sorted({size for each, size, _ in there if each == name})
        assert sizes[0] < truth < sizes[-1] <= 8 * truth
        for size in sizes:
            seeds = sorted(seed for each, at, seed in there if (each, at) == (name, size))
            assert seeds == list(range(len(seeds)))
    first, *_ = done.rounds
    assert all(part["optimizers"] == ["adamw", "sgd"] and part["seeds"] == [0] for part in first["added"])


def test_what_was_asked_for_is_run_and_nothing_else(both: tuple[Precision, Path]) -> None:
    done, folder = both
    assert cells(folder) == asked(done, TWO)
    trials = {result.trial_id: result for result in Store(folder).results()}
    for one in done.rounds[-1]["estimates"]:
        mine = [result for result in trials.values() if result.config.optimizer.name == one["optimizer"]]
        assert (one["trials"], one["examples"]) == (len(mine), sum(result.final_examples for result in mine))


def test_a_sweep_that_finds_its_sizes_is_another_than_a_grid_and_ends_at_a_price() -> None:
    assert (Precision(finds=True).runs, Precision().runs, Precision(runs=30.0).runs) == (MOST_RUNS, math.inf, 30.0)
    assert Precision(finds=True).asked() != Precision().asked()


@pytest.mark.parametrize(
    ("changes", "sizes"),
    [
        ({}, [16]),
        ({"probe": None}, [8, 32]),
        ({"expected": (200.0, 8_000.0)}, [8, 32]),
        ({"expected": (200.0, 200_000.0)}, [256, 1024]),
        ({"expected": (200.0, 200.0)}, [1, 4]),
    ],
)
def test_it_begins_where_the_answer_is_expected(changes: dict[str, object], sizes: list[int]) -> None:
    (part,) = Precision(finds=True).first(sweep(WORLD).replace(seeds=(3, 8), **changes))
    assert (part["batch_sizes"], part["seeds"]) == (sizes, [3])


@pytest.mark.parametrize(("workers", "most"), [(1, FEWEST_RUNS), (10, 10)])
def test_a_round_is_as_large_as_the_workers(workers: int, most: int, tmp_path: Path) -> None:
    train = trainer(tmp_path, WORLD.end)

    def ran(part: Sweep) -> Search:
        search = train(part)
        search.workers = workers
        return search

    done = to_precision(sweep(WORLD), 0.05, tmp_path, ran, finds=True, runs=26.0)
    new, known = [], {(16, 0)}
    for entry in done.rounds:
        added = {cell for part in entry["added"] for cell in itertools.product(part["batch_sizes"], part["seeds"])}
        if any("narrow the interval" in part["why"] for part in entry["added"]):
            new.append(len(added - known))
        known |= added
    assert max(new) == most

    def left_nothing_to_run(part: Sweep) -> Search:
        search = train(part)
        search.workers = 0
        return search

    again = to_precision(sweep(WORLD), 0.05, tmp_path, left_nothing_to_run, finds=True, runs=26.0)
    assert again.workers == workers


def test_the_noise_scale_is_read_only_while_there_is_a_single_batch_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[bool] = []

    def reading(*args: Any, noise: bool) -> list[Answer]:
        read.append(noise)
        return answers(*args, noise=noise)

    monkeypatch.setattr("analysis.estimate.estimates.answers", reading)
    to_precision(sweep(WORLD), 1.0, tmp_path, trainer(tmp_path, WORLD.end), finds=True)
    assert read == [True, *[False] * (len(read) - 1)]
    assert len(read) > 2


def test_listed_learning_rates_are_a_grid_at_every_batch_size_that_is_found(tmp_path: Path) -> None:
    rates = (2e-3, 4e-3, 8e-3)
    one = sweep(WORLD).replace(lrs=rates, expected=(200.0, 8_000.0))
    done = to_precision(one, 0.6, tmp_path, trainer(tmp_path, WORLD.end), finds=True)
    held: dict[tuple[int, int], set[float]] = {}
    for result in Store(tmp_path).results():
        held.setdefault((result.config.batch_size, result.config.seed), set()).add(result.config.lr)
    assert len({size for size, _ in held}) > 2
    assert all(lrs >= set(rates) for lrs in held.values())
    assert cells(tmp_path) == asked(done, one)


def test_an_optimizer_that_never_reaches_the_target_costs_the_other_nothing(
    both: tuple[Precision, Path], tmp_path: Path
) -> None:
    def end(config: TrialConfig) -> End:
        return apart(config) if config.optimizer.name == "adamw" else End(config.max_steps, reached=False, distance=0.9)

    done = to_precision(TWO, GOAL, tmp_path, trainer(tmp_path, end), finds=True)
    assert {label: "target not reached" in why for label, why in done.reasons.items()} == {"sgd": True}
    assert {cell for cell in cells(tmp_path) if cell[0] == "adamw"} == {
        cell for cell in cells(both[1]) if cell[0] == "adamw"
    }
    assert {cell for cell in cells(tmp_path) if cell[0] == "sgd"} == {("sgd", 16, 0)}


def out_of_memory(folder: Path, fits: int) -> Callable[[Sweep], Search]:
    """Trials of larger batch sizes run out of memory."""
    store = Store(folder)

    def train(part: Sweep) -> Search:
        store.prepare()
        store.write_manifest(merged_manifest(store, part, "cbs sweep"))
        search = Search(part, list(store.results()))
        while (config := search.next()) is not None:
            end = WORLD.end(config)
            result = ended(config, end, end.steps)
            if config.batch_size > fits:
                result = result.replace(status=TrialStatus.OUT_OF_MEMORY, steps_to_target=None, evaluations=[])
            store.save(result)
            search.add(result)
        return search

    return train


def test_below_a_batch_size_that_does_not_fit_into_memory_it_ends_at_one_that_does(tmp_path: Path) -> None:
    """And asks for no seeds that cannot tell how far beyond the answer lies."""
    done = to_precision(sweep(WORLD), GOAL, tmp_path, out_of_memory(tmp_path, 16), finds=True)
    assert {size for _, size, _ in cells(tmp_path)} == {4, 16, 32, 64}
    assert {seed for _, _, seed in cells(tmp_path)} == {0, 1}
    assert "no further trial is known to help" in done.reasons["adamw"]


def test_where_an_end_stays_open_it_ends_at_its_price(tmp_path: Path) -> None:
    """The answer probably lies below the largest batch size that fits, and it cannot be shown."""
    done = to_precision(sweep(WORLD), GOAL, tmp_path, out_of_memory(tmp_path, 128), finds=True, runs=20.0)
    assert done.rounds[-1]["estimates"][0]["interval"][1] is None
    assert "20 runs at B_crit (--max-runs)" in done.reasons["adamw"]


def test_what_a_limit_ended_goes_on_to_the_same_trials(alone: tuple[Precision, Path], tmp_path: Path) -> None:
    whole, folder = alone
    limits = Limits(examples=0.5 * whole.rounds[-1]["examples"])
    part = to_precision(sweep(WORLD), 0.6, tmp_path, trainer(tmp_path, WORLD.end), finds=True, limits=limits)
    assert "--max-examples are spent" in part.reasons["adamw"]
    again = to_precision(sweep(WORLD), 0.6, tmp_path, trainer(tmp_path, WORLD.end), finds=True)
    assert again.rounds == whole.rounds
    assert Store(tmp_path).trial_ids() == Store(folder).trial_ids()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Precision, Path]:
    folder = tmp_path_factory.mktemp("alone")
    return to_precision(sweep(WORLD), 0.6, folder, trainer(folder, WORLD.end), finds=True), folder


@pytest.fixture
def one(alone: tuple[Precision, Path], tmp_path: Path) -> Precision:
    """An optimizer alone, to a wide interval, in a folder of the test's own."""
    done, folder = alone
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    return done


def test_another_precision_goes_on_from_what_is_there(one: Precision, tmp_path: Path) -> None:
    before = Store(tmp_path).trial_ids()
    wider = to_precision(sweep(WORLD), 0.9, tmp_path, trainer(tmp_path, WORLD.end, most=0), finds=True)
    assert [entry["added"] for entry in wider.rounds] == [[]]
    # its price is that of all trials on which the answer rests
    assert wider.rounds[0]["estimates"] == one.rounds[-1]["estimates"]
    narrower = to_precision(sweep(WORLD), 0.36, tmp_path, trainer(tmp_path, WORLD.end), finds=True)
    assert narrower.rounds[0]["estimates"] == one.rounds[-1]["estimates"]
    assert not narrower.reasons
    assert set(before) < set(Store(tmp_path).trial_ids())
    assert narrower.rounds[-1]["estimates"][0]["trials"] == len(Store(tmp_path).trial_ids())


def test_new_seeds_come_after_the_first_on_which_learning_rates_are_searched(tmp_path: Path) -> None:
    grid = sweep(WORLD).replace(batch_sizes=(8, 32, 128), seeds=(5,))
    to_precision(grid, 0.6, tmp_path, trainer(tmp_path, WORLD.end))
    seeds = sorted({seed for _, _, seed in cells(tmp_path)})
    assert seeds == list(range(5, 5 + len(seeds)))
    assert len(seeds) > 1


def test_every_value_of_a_setting_finds_its_batch_sizes_in_its_own_folder(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    each = EachSetting(lambda: Precision(0.6, finds=True), {"clip_norm": ("1", "none")})
    report = follow(each, sweep(WORLD), folder, lambda part, at: trainer(at, WORLD.end)(part), Limits())
    (first, second) = report.content["sweeps"]
    assert first["answers"] == second["answers"]
    assert first["precision"]["reached"]
    assert len(Store(tmp_path / "x-clip_norm=1").trial_ids()) == first["answers"][0]["trials"]
    said = list(each.not_counted(report, Limits()))
    assert any("depends on how they end" in line for line in said)


def test_a_learning_rate_that_its_neighbours_vouch_for_is_at_no_edge(both: tuple[Precision, Path]) -> None:
    done, folder = both
    found = done.look(TWO, folder).values()
    assert any(len(study.lrs) == 1 for answer in found for study in answer.studies)
    for answer in found:
        pairs = zip(answer.studies, answer.points, strict=True)
        alone = [point for study, point in pairs if len(study.lrs) == 1]
        assert not any(point.at_grid_edge for point in alone)
        vouched, sizes = {point.batch_size for point in alone}, {point.batch_size for point in answer.points}
        assert vouched <= set(Known(answer, GOAL).believed()) < sizes
        listed = answer.group.manifest | {"axes": {"lrs": [0.1, 0.2]}}
        assert not Known(replace(answer, group=replace(answer.group, manifest=listed)), GOAL).believed()
        assert not Known(answer).believed()  # a sweep that goes on by itself can bracket them, nobody else
    assert {answer.verdict for answer in found} == {"ok"}


def test_studies_of_earlier_stages_tell_where_later_ones_start() -> None:
    studies = {8: 0, 32: 0, 16: 1, 4: 2, 128: 2}
    staged = tuple(StagedStudy(StudyKey("adamw", size), stage, (0,)) for size, stage in studies.items())
    grown = sweep(WORLD).replace(batch_sizes=(4, 8, 16, 32, 128), seeds=(0,), staged=staged)
    assert [(study.batch_size, grown.axes.plans[study].stage) for study in grown.studies()] == sorted(studies.items())
    before = {study.batch_size: {each.batch_size for each in study.inner} for study in Search(grown).studies.values()}
    assert before == {8: set(), 32: {8}, 16: {8, 32}, 4: {8, 16, 32}, 128: {4, 8, 16, 32}}


def test_a_study_has_its_own_seeds_and_learning_rates() -> None:
    staged = (
        StagedStudy(StudyKey("adamw", 8), 0, (0, 1), (1e-3, 2e-3)),
        StagedStudy(StudyKey("adamw", 32), 1, (0,), (2e-3, 4e-3, 8e-3)),
    )
    grown = sweep(WORLD).replace(batch_sizes=(8, 32), seeds=(0, 1), lrs=(1e-3, 2e-3), staged=staged)
    waiting = {(config.batch_size, config.seed, config.lr) for config in Search(grown).waiting()}
    assert waiting == {
        *itertools.product((8,), (0, 1), (1e-3, 2e-3)),
        *itertools.product((32,), (0,), (2e-3, 4e-3, 8e-3)),
    }


def test_what_is_added_to_a_study_joins_what_it_has() -> None:
    def part(sizes: tuple[int, ...], seeds: tuple[int, ...], lrs: tuple[float, ...] | None) -> list[dict[str, Any]]:
        return [part_of(sweep(WORLD), ["adamw"], sizes, seeds, lrs)]

    stages = [part((8, 32), (0,), (1e-3,)), part((8,), (1,), (2e-3,)), part((4, 8), (2,), None)]
    grown = _grown(sweep(WORLD), stages)
    assert grown.axes.staged == (
        StagedStudy(StudyKey("adamw", 8), 0, (0, 1, 2), (1e-3, 2e-3)),
        StagedStudy(StudyKey("adamw", 32), 0, (0,), (1e-3,)),
        StagedStudy(StudyKey("adamw", 4), 2, (2,)),
    )
    assert (grown.axes.batch_sizes, grown.axes.seeds) == ((4, 8, 32), (0, 1, 2))


def test_the_price_counts_only_once_batch_sizes_enclose_the_answer(tmp_path: Path) -> None:
    """From far above it every batch size is worth many runs at the critical one."""
    far = sweep(WORLD).replace(expected=(200.0, 400_000.0))
    done = to_precision(far, 0.01, tmp_path, trainer(tmp_path, WORLD.end), finds=True, runs=1.0)
    dear = [entry for entry in done.rounds if (entry["estimates"][0]["runs"] or 0.0) > 1.0]
    opened = [entry for entry in dear if None in entry["estimates"][0]["interval"]]
    assert opened[0] is dear[0]
    assert dear[-1] not in opened
    # what is dear already is closed, not narrowed
    assert not any("narrow" in part["why"] for entry in opened for part in entry["added"])
    assert "1 runs at B_crit (--max-runs)" in done.reasons["adamw"]


def test_rounds_that_were_decided_run_nothing_whatever_came_later(one: Precision, tmp_path: Path) -> None:
    trainer(tmp_path, lambda config: End(250.0))(sweep(WORLD).replace(batch_sizes=(16,), seeds=(0,), lrs=(5.5e-3,)))
    train, yielded = trainer(tmp_path, WORLD.end), []

    def watched(part: Sweep) -> Search:
        yielded.append(
            {("adamw", study.batch_size, seed) for study in part.studies() for seed in part.axes.plans[study].seeds}
        )
        return train(part)

    to_precision(sweep(WORLD), 0.6, tmp_path, watched, finds=True)
    assert yielded[0] == asked(one, sweep(WORLD))


def test_batch_sizes_that_are_given_later_join_what_was_found(one: Precision, tmp_path: Path) -> None:
    grid = sweep(WORLD).replace(batch_sizes=(8, 32, 128), seeds=(0, 1))
    done = to_precision(grid, GOAL, tmp_path, trainer(tmp_path, WORLD.end))
    assert not done.reasons
    assert {("adamw", size, seed) for size in (8, 32, 128) for seed in (0, 1)} <= cells(tmp_path)
    assert covered(done.rounds[-1])


def test_the_suggested_commands_plan_exactly_what_is_missing(one: Precision, tmp_path: Path) -> None:
    store = Store(tmp_path)
    manifest = store.manifest()
    manifest["runs"] = [{"command": "cbs sweep --optim adamw --precision 0.6 --max-runs 9 --seeds 3 -o there"}]
    del manifest["schema_version"]
    store.write_manifest(manifest)
    (answer,) = answers(load(tmp_path), AnalysisConfig(resamples=300), noise=False)
    found = suggest(answer)
    command = typer.main.get_command(cli.application()).commands["sweep"]  # type: ignore[attr-defined]
    planned: set[tuple[int, int]] = set()
    commands = [shlex.split(line) for line in found.command.split(" && ")]
    for words in commands:
        assert words[:2] == ["cbs", "sweep"]
        given = command.make_context("sweep", words[2:]).params
        assert (given["precision"], given["max_runs"], given["output"]) == (None, None, tmp_path)
        names = ("workload", "optim", "batch_sizes", "lrs", "seeds", "schedule", "axis")
        part = with_flags(sweep(WORLD), **{name: given[name] for name in names})
        search = Search(part, [result for result in store.results() if result.status.final])
        planned |= {(config.batch_size, config.seed) for config in search.waiting()}
        planned |= set(itertools.product(part.axes.batch_sizes, part.axes.seeds))
    # more seeds may call for another learning rate of a seed that has run; which, only the search knows
    assert planned - {(size, seed) for _, size, seed in cells(tmp_path)} == set(found.missing)


def test_a_command_that_finds_its_first_trials_done_decides_with_all_workers(tmp_path: Path) -> None:
    train, policy = trainer(tmp_path, WORLD.end), Precision(0.6, finds=True)

    def stored(part: Sweep, _: Path) -> Search:
        search = train(part)
        search.workers = 0  # of trials that need not run nobody knows how many ran at once
        return search

    follow(policy, sweep(WORLD), tmp_path, stored, Limits(), workers=3)
    assert {entry["workers"] for entry in policy.rounds} == {3}

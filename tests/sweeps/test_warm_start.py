"""A search that starts where other results say: cheaper where they are right, as sure where they mislead."""

import json
import math
import shutil
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from cbs.errors import ConfigError, ResultsError
from cbs.registry.choices import Choice
from cbs.trial.lr_choice import expected
from cbs.trial.store import Store
from sweeps.folder.manifest import merged_manifest
from sweeps.outlook.cost import Cost
from sweeps.outlook.report import reasons
from sweeps.search.forecast import play
from sweeps.search.search import Search
from sweeps.search.warm_start import MOVED, expected_from, started
from sweeps.spec.given_rates import Prior
from sweeps.spec.spec import Sweep
from tests.factories import Truth
from tests.factories import sweep as write_sweep
from tests.sweeps.search_worlds import SIZES, World, found, sweep
from tests.sweeps.simulation import run_search, small_sweep

TRUTH = Truth(lr_at_1=2e-4, lr_power=0.5, lr_max=1.0)
ASKED = small_sweep(optimizers=(Choice(name="adamw"),), seeds=(0,))


@dataclass(frozen=True)
class Elsewhere:
    """Other results: their learning rates over those of the world at the middle batch size, and how they turn."""

    name: str
    factor: float = 1.0
    turn: float = 0.0

    def prior(self, world: World) -> Prior:
        middle = SIZES[len(SIZES) // 2]
        lrs = [world.best_lr(size) * self.factor * (size / middle) ** self.turn for size in SIZES]
        return Prior(
            source="elsewhere",
            told="",
            batch_sizes=SIZES,
            log_lrs=tuple(map(math.log, lrs)),
            variances=(0.02,) * len(lrs),
        )


RIGHT, TOO_HIGH, TURNED = (
    Elsewhere("right"),
    Elsewhere("30 times too high", factor=30.0),
    Elsewhere("30 times too high and turned", factor=30.0, turn=-1.0),
)


def measure(world: World, kind: Elsewhere | None) -> dict[str, float]:
    """Trials, examples, share of the batch sizes with an interior optimum, and ln S lost against the best."""
    asked = sweep(world)
    if kind is not None:
        asked = asked.replace(warm_start={"adamw": kind.prior(world)})
    search = Search(asked)
    played = play(search, world.end, workers=2)
    inside, true = found(search, world)
    return {
        "trials": sum(played.trials.values()),
        "examples": played.examples,
        "inside": inside / len(SIZES),
        "lost": statistics.mean(true),
    }


def prior(**changes: object) -> Prior:
    found = {"source": "there", "told": "", "batch_sizes": (4, 64), "log_lrs": (-6.0, -4.0), "variances": (0.02, 0.02)}
    return Prior(**found | changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("other")
    lrs = [2e-4 * 2.0**power for power in range(6)]
    truths = {"adamw": TRUTH, "sgd(momentum=0.5)": Truth(lr_at_1=0.05, lr_power=0.0)}
    write_sweep(root, truths, variants=True, lrs=[*lrs, 0.025, 0.05, 0.1], batch_sizes=(4, 16, 64, 256), growth=1.3)
    return root


def test_the_law_begins_with_the_other_results_and_goes_over_to_its_own() -> None:
    at = math.log(16)
    there = expected(at, [math.log(4), math.log(64)], [-6.0, -4.0], [0.02, 0.02])
    first = expected_from(prior(), at, [])
    assert first.log_lr == there.log_lr == pytest.approx(-5.0, abs=0.05)
    assert first.deviation == pytest.approx(math.hypot(there.deviation, MOVED))
    # all learning rates a factor e**3 higher: seen at one batch size, known at the others
    own = [(math.log(64), -1.0, 1e-4)]
    moved = expected_from(prior(), at, own)
    assert moved.log_lr == pytest.approx(there.log_lr + 3.0, abs=0.1)
    assert moved.deviation < 0.7
    # what one's own optima say outvotes a slope that is wrong
    flat = [(math.log(size), -1.0, 1e-4) for size in (32, 64, 128, 256)]
    assert expected_from(prior(), math.log(512), flat).log_lr == pytest.approx(-1.0, abs=0.3)


def test_results_that_are_right_save_what_a_far_default_costs() -> None:
    world = World(30.0, 0.5, 0.03, 0)
    without, led = measure(world, None), measure(world, RIGHT)
    assert led["inside"] == 1.0
    assert led["examples"] < 0.9 * without["examples"]
    assert led["trials"] < without["trials"]


def test_the_best_learning_rates_of_the_other_folder_are_taken(elsewhere: Path, tmp_path: Path) -> None:
    said: list[str] = []
    found = started(ASKED, tmp_path / "new", elsewhere, said.append).search.warm_start["adamw"]
    assert found.batch_sizes == (4, 16, 64, 256)
    for size, log_lr, variance in zip(found.batch_sizes, found.log_lrs, found.variances, strict=True):
        assert log_lr == pytest.approx(math.log(TRUTH.best_lr(size)), abs=0.2)
        assert 0 < variance < 0.2
    (line,) = said
    assert line.startswith(f"adamw starts from {elsewhere}: adamw on synthetic to validation_loss < 2.4")
    assert "at 4 batch sizes from 4 to 256" in line
    assert Prior.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_a_killed_sweep_goes_on_alike_when_the_other_folder_is_gone(elsewhere: Path, tmp_path: Path) -> None:
    source, folder = tmp_path / "other", tmp_path / "mine"
    shutil.copytree(elsewhere, source)
    asked = started(ASKED, folder, source)
    store = Store(folder)
    store.prepare()
    store.write_manifest(merged_manifest(store, asked, "first"))
    shutil.rmtree(source)
    whole, part = Search(asked), Search(asked)
    results, first = run_search(whole), run_search(part, stop_after=4)
    for again in (started(ASKED, folder, source), started(ASKED, folder, None)):
        assert again.search.warm_start == asked.search.warm_start
        assert merged_manifest(store, again, "again")["warm_start"] == store.manifest()["warm_start"]
        resumed = Search(again, first.values())
        rest = run_search(resumed)
        assert reasons(resumed) == reasons(whole)
        assert set(first) | set(rest) == set(results)
    told = [row["why"] for row in reasons(whole)]
    assert any(f"the results in {source} predict" in why for why in told)
    assert any(f"the batch sizes tried and the results in {source} predict" in why for why in told)
    with pytest.raises(ResultsError, match="does not exist"):
        started(ASKED, tmp_path / "third", source)


def test_an_optimizer_with_other_options_is_better_than_none(elsewhere: Path, tmp_path: Path) -> None:
    options = [{"momentum": 0.5}, {"momentum": 0.9}]
    asked = ASKED.replace(optimizers=(*(Choice(name="sgd", options=each) for each in options), Choice(name="lion")))
    said: list[str] = []
    found = started(asked, tmp_path, elsewhere, said.append).search.warm_start
    assert list(found) == ["sgd(momentum=0.5)", "sgd(momentum=0.9)"]
    assert ["(other options)" in line for line in said] == [False, True, False]
    assert said[2] == f"lion is not in {elsewhere}, and starts at its default"
    with pytest.raises(ConfigError, match=r"has no best learning rate of lion; its optimizers are: adamw, sgd"):
        started(ASKED.replace(optimizers=(Choice(name="lion"),)), tmp_path, elsewhere)


@pytest.mark.parametrize(
    ("asked", "source", "said"),
    [
        (ASKED.replace(lrs=(1e-3,)), "other", "searches nothing"),
        (ASKED.replace(method="grid"), "other", "searches nothing"),
        (ASKED, "mine", "is the folder of this sweep"),
        (ASKED, "nowhere", "does not exist"),
    ],
)
def test_what_is_no_start(asked: Sweep, source: str, said: str, elsewhere: Path, tmp_path: Path) -> None:
    with pytest.raises((ConfigError, ResultsError), match=said):
        started(asked, tmp_path / "mine", elsewhere if source == "other" else tmp_path / source)


@pytest.mark.parametrize("damage", [7, {"adamw": 3}, {"adamw": {"source": "x"}}, {"adamw": "lrs"}])
def test_a_damaged_start_is_told(tmp_path: Path, damage: object) -> None:
    store = Store(tmp_path)
    store.prepare()
    store.write_manifest(merged_manifest(store, ASKED, "first") | {"warm_start": damage})
    with pytest.raises(ResultsError, match=r"warm_start in .*sweep.json cannot be read"):
        started(ASKED, tmp_path, None)


@pytest.mark.parametrize(
    "changes",
    [{"batch_sizes": (4,)}, {"log_lrs": (math.nan, 1.0)}, {"variances": (-1.0, 1.0)}, {"batch_sizes": (0, 4)}],
)
def test_a_prior_has_numbers(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"needs|below"):
        prior(**changes)


def test_the_command_tells_where_it_starts(
    elsewhere: Path, tmp_path: Path, run: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sweeps.launching.loop.timed_apart", lambda *parts: Cost())
    words = ["sweep", "--workload", "noisy_quadratic", "--optim", "adamw", "--batch-sizes", "4", "-o", "new"]
    code, out, err = run(*words, "--from", elsewhere, "--dry-run", "--json")
    assert code == 0, err
    assert f"adamw starts from {elsewhere}" in " ".join(err.split())
    assert all(row["why"].startswith(("the results in", "a factor of 2")) for row in json.loads(out)["first"])

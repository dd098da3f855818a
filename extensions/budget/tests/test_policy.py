"""How ``--precision`` adds trials to sweeps at equal budgets."""

import math
import random
from pathlib import Path
from typing import Any

import pytest

from cbs.errors import ConfigError
from cbs.registry.choices import Choice, parse_choice
from cbs.trial.store import Store
from cbs.trial.target import Target
from extensions.budget.policies import MOST_SEEDS, EqualBudgets
from sweeps.folder.manifest import merged_manifest
from sweeps.launching.loop import follow
from sweeps.launching.policies import POLICIES, Policy
from sweeps.launching.train import policy_of
from sweeps.search.forecast import End, play
from sweeps.search.search import Limits, Search
from sweeps.spec.lengths import ScheduleRule
from sweeps.spec.spec import Sweep
from tests.sweeps.simulation import small_sweep

CRITICAL, MARGIN, NOISE = 100.0, 0.02, 0.004


def sweep(**changes: object) -> Sweep:
    plain = {
        "optimizers": (parse_choice("adamw"),),
        "batch_sizes": (4, 8, 16),
        "seeds": (0, 1, 2),
        "budgets": (20_000,),
        "within": MARGIN,
        "target": Target(metric="loss", value=2.5),
        "schedule": ScheduleRule(warmup_steps=1),
    }
    return small_sweep(**plain | changes)


def truth(batch_size: float) -> float:
    return 2.0 + (1.0 + batch_size / CRITICAL) ** 0.15


def end(config):
    gap = math.log(config.lr / (1e-3 * math.sqrt(config.batch_size)))
    if gap > 3:
        return End(20.0, reached=False, distance=math.inf)
    noise = random.Random(f"{config.batch_size} {config.lr:.4g} {config.seed}").gauss(0.0, NOISE)
    return End(config.max_steps, reached=False, distance=truth(config.batch_size) + 0.03 * gap**2 + noise - 2.5)


def ran(asked: Sweep, folder: Path, said: list[str], *, most: int | None = None, **options: Any) -> EqualBudgets:
    store, policy = Store(folder), EqualBudgets(**options)

    def run(part: Sweep, place: Path) -> Search:
        store.prepare()
        store.write_manifest(merged_manifest(store, part, "cbs sweep"))
        search = Search(part, [r for r in store.results() if r.status.final])
        for result in play(search, end, most=most).results:
            store.save(result)
        return search

    follow(policy, asked, folder, run, Limits(), said.append)
    return policy


def test_larger_batch_sizes_come_until_one_is_worse_and_the_answer_holds(tmp_path):
    said: list[str] = []
    policy = ran(sweep(), tmp_path, said)
    last = policy.rounds[-1]
    (estimate,) = last["estimates"]
    largest = CRITICAL * ((truth(4) - 2.0 + MARGIN) ** (1 / 0.15) - 1.0)
    low, high = estimate["interval"]
    assert low < largest < (high or math.inf)
    assert "worse" in estimate["standing"]
    assert not last["added"]
    assert not policy.reasons
    sizes = {result.config.batch_size for result in Store(tmp_path).results()}
    assert max(sizes) > 16
    assert any("the largest, is not shown to be worse" in line for line in said)
    assert said[-1].startswith(f"round {len(said)}: adamw after 20,000 examples: as good up to batch size ")


def test_seeds_come_where_it_cannot_be_told_and_the_same_command_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.NOISE", 0.02)
    said: list[str] = []
    whole = ran(sweep(batch_sizes=(8, 16, 64)), tmp_path / "a", said)
    added = [part for entry in whole.rounds for part in entry["added"]]
    assert max(len(part["seeds"]) for part in added) > 3
    assert all(set(part["seeds"]) >= {0, 1, 2} for part in added)
    again = ran(sweep(batch_sizes=(8, 16, 64)), tmp_path / "a", [], most=0)
    assert again.rounds == whole.rounds
    assert max(len(part["seeds"]) for part in added) <= MOST_SEEDS


@pytest.mark.parametrize(
    ("changes", "goal", "said"),
    [
        ({"budgets": ()}, None, "needs --budget"),
        ({"lrs": (0.1, 0.2)}, None, "does not go with --lrs"),
        ({}, 2.0, "--precision must be above 0"),
    ],
)
def test_what_it_does_not_go_with_is_refused(changes, goal, said):
    with pytest.raises(ConfigError, match=said):
        EqualBudgets(goal).check(sweep(**changes), limits=Limits(), source=None)


def test_budgets_find_their_batch_sizes_too(tmp_path: Path) -> None:
    policy = ran(sweep(batch_sizes=(512,)), tmp_path, [], finds=True)
    sizes = sorted({result.config.batch_size for result in Store(tmp_path).results()})
    assert 8 in sizes
    assert 32 in sizes
    assert 512 not in sizes[:-1]
    assert not policy.reasons
    assert EqualBudgets(finds=True).asked() != EqualBudgets().asked()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"finds": True, "usual": 0.35, "budget": True}, Choice(name="equal_budgets", options={"finds": True})),
        ({"finds": True, "budget": True}, Choice(name="equal_budgets", options={"finds": True})),
        ({"precision": 0.2, "budget": True}, Choice(name="equal_budgets", options={"goal": 0.2})),
    ],
)
def test_flags_ask_for_it(given: dict[str, Any], expected: Choice) -> None:
    assert policy_of(**given) == expected
    assert isinstance(POLICIES.make(expected.name, **expected.options), Policy)

"""How ``--precision`` adds trials to sweeps at equal budgets."""

import math
import random
from pathlib import Path
from typing import Any

import pytest

from cbs.errors import ConfigError, ResultsError
from cbs.registry.choices import Choice, parse_choice
from cbs.trial.store import Store
from cbs.trial.target import Target
from extensions.budget.equal_budgets import budget
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
from tests.sweeps.test_budgets import ran_once, tiny

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


def test_new_seeds_follow_the_first_and_none_come_where_they_were_given(tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.NOISE", 0.02)
    asked = sweep(batch_sizes=(8, 16, 64), seeds=(5, 6))
    for more in (True, False):
        ran(asked, tmp_path / str(more), [], more_seeds=more)
        seeds = sorted({result.config.seed for result in Store(tmp_path / str(more)).results()})
        assert seeds == list(range(5, 5 + len(seeds)))
        assert (len(seeds) > 2) is more


def test_a_sweep_that_stopped_adds_nothing_and_says_what_would_help(tmp_path):
    policy = ran(sweep(), tmp_path, [], most=12)
    assert all("not all trials have run" in why for why in policy.reasons.values())
    assert not policy.rounds or not policy.rounds[-1]["added"]


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


def test_analysis_answers_for_any_metric_that_trials_recorded(tmp_path):
    ran_once(tiny(metrics=("gradient_norm",), seeds=(0, 1)), tmp_path / "a")
    ends = [result.evaluations[-1].others["gradient_norm"] for result in Store(tmp_path / "a").results()]
    (entry,) = budget(tmp_path / "a", metric="gradient_norm").budgets
    assert (entry.metric, entry.metric_unit) == ("gradient_norm", "")
    assert budget(tmp_path / "a", metric="train_loss").budgets[0].metric_unit == "loss"
    seeds = [value for size in entry.optimizers[0].sizes for value in size.per_seed]
    assert sorted(seeds) == pytest.approx(sorted(ends))
    with pytest.raises(ResultsError, match="has no metric 'other'; it has validation_loss, train_loss, gradient_norm"):
        budget(tmp_path / "a", metric="other")


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


def test_where_no_policy_narrows_budgets_it_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EqualBudgets, "narrows_budgets", False)
    with pytest.raises(ConfigError, match="no policy here narrows answers at equal budgets"):
        policy_of(precision=0.2, budget=True)

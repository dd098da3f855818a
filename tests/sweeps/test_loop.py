"""The loop: which policy is asked for, what is run, and the function that Python users call."""

from collections.abc import Generator
from pathlib import Path

import pytest

from cbs.errors import ConfigError
from cbs.registry.choices import Choice
from sweeps.launching import launch, loop
from sweeps.launching.loop import follow, run_sweep
from sweeps.launching.policies import POLICIES, Once, Policy
from sweeps.launching.train import policy_of
from sweeps.outlook.cost import Cost
from sweeps.running.run import SweepRun
from sweeps.search.search import Limits, Search
from sweeps.spec.overrides import override, split
from sweeps.spec.spec import Sweep
from tests.sweeps.simulation import run_search, small_sweep


class MoreSeeds(Policy):
    """As in the docstring of the base class."""

    def next(self, underway):
        sweep, folder = underway.sweep, underway.folder
        if len(underway.ran) == 2:
            underway.note("one seed more has run")
        more = sweep.replace(seeds=(*sweep.axes.seeds, 101)), folder / "more"
        return [(sweep, folder), more, None][len(underway.ran)]


def ran(seen: list[tuple[tuple[int, ...], Path]]):
    def run(part: Sweep, place: Path) -> Search:
        seen.append((part.axes.seeds, place))
        search = Search(part)
        run_search(search)
        return search

    return run


def test_the_loop_runs_what_the_policy_says_in_its_order_and_returns_its_report(tmp_path):
    seen, said = [], []
    asked = small_sweep(seeds=(0,), batch_sizes=(4,))
    report = follow(MoreSeeds(), asked, tmp_path, ran(seen), Limits(), said.append)
    assert seen == [((0,), tmp_path), ((0, 101), tmp_path / "more")]
    assert said == ["one seed more has run"]
    assert sum(report.content["statuses"].values()) == len(report.content["trials"]) > 0
    assert {row["seed"] for row in report.content["trials"]} == {0, 101}
    seen.clear()
    follow(Once(), asked, tmp_path, ran(seen), Limits())
    assert seen == [((0,), tmp_path)]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, Choice(name="once")),
        ({"finds": True}, Choice(name="precision", options={"finds": True})),
        ({"finds": True, "usual": 0.35}, Choice(name="precision", options={"goal": 0.35, "finds": True})),
        ({"precision": 0.15, "usual": 0.35}, Choice(name="precision", options={"goal": 0.15})),
        ({"usual": 0.35}, Choice(name="once")),
        ({"precision": 0.15, "runs": 50.0}, Choice(name="precision", options={"goal": 0.15, "runs": 50.0})),
        ({"finds": True, "more_seeds": False}, Choice(name="precision", options={"finds": True, "more_seeds": False})),
        ({"budget": True}, Choice(name="once")),
        ({"named": "precision(goal=0.2)", "finds": True}, Choice(name="precision", options={"goal": 0.2})),
    ],
)
def test_flags_ask_for_a_policy(given, expected):
    assert policy_of(**given) == expected
    assert isinstance(POLICIES.make(expected.name, **expected.options), Policy)


def test_settings_of_a_run_are_told_from_those_of_the_sweep():
    settings = ["max_steps=7", "trial_timeout=1.5", "policy=precision(goal=0.1)", "cpus_per_trial=2", "search=grid"]
    run, rest = split(settings)
    assert run == {"trial_timeout": 1.5, "policy": "precision(goal=0.1)", "cpus_per_trial": 2}
    changed = override(small_sweep(), rest)
    assert (changed.max_steps, changed.search.method, changed.exhaustive) == (7, "grid", True)
    for wrong in ("trial_timeout=soon", "cpus_per_trial=1.5", "cpus_per_trial=true"):
        with pytest.raises(ConfigError, match=f"--set {wrong.partition('=')[0]}: expected a"):
            split([wrong])
    with pytest.raises(ConfigError, match=r"the keys are max_steps, .*search, lr_resolution.*policy.*workload\.OPTION"):
        override(small_sweep(), ["help="])


def test_python_runs_what_the_command_runs(tmp_path, monkeypatch):
    given = {}

    def run(part: Sweep, place: Path, **rest) -> Generator[SweepRun, None, Search]:
        given.update(rest, folder=place, sweep=part)
        yield from ()
        return ran([])(part, place)

    monkeypatch.setattr(launch, "sweep", run)
    monkeypatch.setattr(loop, "timed_apart", lambda *_: Cost())
    said, limits = [], Limits(examples=1e12)
    asked = small_sweep(seeds=(0,), batch_sizes=(4,))
    report = run_sweep(asked, tmp_path, target=0.5, limits=limits, trackers=["mine"], note=said.append)
    assert given["sweep"].target.value == 0.5
    assert (given["folder"], given["limits"], given["trackers"]) == (tmp_path, limits, ["mine"])
    assert any("no step could be timed" in line for line in said)
    assert report.content["studies"]
    assert report.lines[-1] == f"next: cbs analyze {tmp_path}"
    alone = type("Alone", (Once,), {"asked_as": "alone", "excludes": {"--from": "it begins anew"}})()
    with pytest.raises(ConfigError, match="alone does not go with --from: it begins anew"):
        run_sweep(asked, tmp_path, policy=alone, source=tmp_path)

"""Sweeps that follow one another: for every value of a setting, and from width to width."""

import json
import math
from pathlib import Path

import pytest

from cbs.errors import ConfigError
from cbs.trial.config import Choice, TrialConfig
from cbs.trial.record import TrialResult
from cbs.trial.target import Target
from sweeps.launching import launch
from sweeps.launching.loop import follow
from sweeps.launching.policies import Once
from sweeps.launching.policies import telescope as stages
from sweeps.launching.policies.staged import EachSetting, split_axes
from sweeps.recipes import RECIPES
from sweeps.search.observer import Limits
from sweeps.search.search import Search
from sweeps.spec.spec import Sweep
from tests.sweeps import simulation
from tests.sweeps.simulation import run_search, small_sweep

AXES = {"clip_norm": ("1", "none"), "averaging": ("none", '"ema(half_life=50)"')}


def test_settings_are_axes_of_their_own_and_options_of_optimizers_are_left():
    settings, rest = split_axes(
        ["clip_norm=1,none", "momentum=.9,.95", "averaging=none,'ema(half_life=50)'", "adamw.eps=1e-8,1e-6"]
    )
    assert settings == AXES
    assert rest == ["momentum=.9,.95", "adamw.eps=1e-8,1e-6"]


@pytest.mark.parametrize("axes", [["clip_norm=1"], ["clip_norm=1,1"], ["clip_norm=1,2", "clip_norm=3,4"]])
def test_an_axis_has_two_values_each_once(axes):
    with pytest.raises(ConfigError, match="--set clip_norm= sets one"):
        split_axes(axes)


def test_every_combination_runs_in_a_folder_of_its_own_and_is_told_apart(tmp_path):
    seen: list[tuple[Sweep, Path]] = []

    def run(part: Sweep, place: Path) -> Search:
        seen.append((part, place))
        search = Search(part)
        run_search(search)
        return search

    asked, said = small_sweep(seeds=(0,), batch_sizes=(4,)), []
    report = follow(EachSetting(Once, AXES), asked, tmp_path / "x", run, Limits(), said.append)
    assert [place.name for _, place in seen] == [
        "x-clip_norm=1-averaging=none",
        "x-clip_norm=1-averaging=ema(half_life=50)",
        "x-clip_norm=none-averaging=none",
        "x-clip_norm=none-averaging=ema(half_life=50)",
    ]
    assert [(part.trial.clip_norm, part.trial.averaging and part.trial.averaging.name) for part, _ in seen] == [
        (1.0, None), (1.0, "ema"), (None, None), (None, "ema")
    ]  # fmt: skip
    assert len({part.protocol_fingerprint for part, _ in seen}) == 4
    assert [content["settings"] for content in report.content["sweeps"]][1] == [
        "clip_norm=1", 'averaging="ema(half_life=50)"'
    ]  # fmt: skip
    assert report.content["examples"] == sum(content["examples"] for content in report.content["sweeps"])
    assert report.content["failures"] == {"trials": 0, "first": None}
    assert len([line for line in report.lines if line.startswith("== ")]) == len(said) == 4


def test_a_value_that_cannot_be_built_is_refused_before_the_first_runs(tmp_path):
    def run(part: Sweep, place: Path) -> Search:
        raise AssertionError

    policy = EachSetting(Once, {"schedule.name": ("constant", "foo")})
    with pytest.raises(ConfigError, match="unknown schedule 'foo'"):
        follow(policy, small_sweep(), tmp_path, run, Limits())
    with pytest.raises(ConfigError, match="clip_norm must be a finite number"):
        EachSetting(Once, {"clip_norm": ("1", "-1")}).check(small_sweep(), limits=Limits(), source=None)


def test_a_limit_ends_it_between_settings(tmp_path):
    def run(part: Sweep, place: Path) -> Search:
        return Search(part)

    report = follow(EachSetting(Once, AXES), small_sweep(), tmp_path / "x", run, Limits(examples=0))
    assert len(report.content["sweeps"]) == 1


def test_a_dry_run_shows_each(tmp_path):
    policy = EachSetting(Once, {"schedule.warmup_steps": ("5", "20")})
    report = policy.preview(small_sweep(), tmp_path / "x", None, 1)
    assert [content["output"] for content in report.content["sweeps"]] == [
        str(tmp_path / "x-schedule.warmup_steps=5"), str(tmp_path / "x-schedule.warmup_steps=20")
    ]  # fmt: skip
    assert "step times are those of the sweep without the values of --axis" in policy.not_counted(report, Limits())


WIDTHS = (16, 32, 64)


def small(**changes: object) -> Sweep:
    return RECIPES["essential_telescope"]().replace(
        target=Target(metric="validation_loss", value=1.0), max_steps=2000, **changes
    )


class Sweeps:
    """In place of :func:`sweeps.launching.launch.sweep`: trials follow a law and are kept by folder; may be killed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kill_after: int | None = None) -> None:
        self.kept: dict[Path, dict[str, TrialResult]] = {}
        self.left = kill_after
        monkeypatch.setattr(simulation, "true_best_lr", self.best)

    @staticmethod
    def best(config: TrialConfig) -> float:
        return 5e-3 * math.exp(-5 / config.workload.options["width"])

    def telescope(self, sweep: Sweep, widths: tuple[int, ...], folder: Path) -> dict:
        return follow(stages.Telescope(widths), sweep, folder, self.run, Limits()).content

    def run(self, sweep: Sweep, folder: Path) -> Search:
        folder.mkdir(parents=True, exist_ok=True)
        kept = self.kept.setdefault(folder, {})
        search = Search(sweep, list(kept.values()))
        before = len(kept)
        kept |= simulation.run_search(search, stop_after=self.left)
        if self.left is not None:
            self.left -= len(kept) - before
            if self.left <= 0:
                self.left = None
                raise launch.Interrupted("killed")
        return search


def test_stages_are_folders_and_what_was_found_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweeps = Sweeps(monkeypatch)
    told = sweeps.telescope(small(seeds=(0, 1)), WIDTHS, tmp_path)
    assert json.loads((tmp_path / "telescope.json").read_text()) == told
    assert sorted(path.name for path in sweeps.kept) == ["width-16", "width-32", "width-64"]
    for folder, results in sweeps.kept.items():
        options = {json.dumps(result.config.workload.options, sort_keys=True) for result in results.values()}
        width = int(folder.name.removeprefix("width-"))
        assert options == {json.dumps({"context": 16, "parametrization": "mup", "width": width})}
    assert [study["optimizer"] for study in told["studies"]] == ["adamw", "muon"]
    for study in told["studies"]:
        assert [stage["width"] for stage in study["stages"]] == list(WIDTHS)
        for stage in study["stages"]:
            assert abs(math.log2(stage["optimum"] / (5e-3 * math.exp(-5 / stage["width"])))) < 0.5
        assert study["trials"] == 2 * sum(len(stage["lrs"]) for stage in study["stages"])
        assert study["trials"] <= sum(len(results) for results in sweeps.kept.values())
    lines = "\n".join(stages.report_lines(told))
    assert "adamw, batch size 64, to validation_loss" in lines
    assert " ".join(lines.split()).count(stages.NO_LAW) == 2
    assert not {"drift", "alpha", "limit"} & told["studies"][0].keys()


@pytest.mark.parametrize("kill_after", [1, 8, 9, 14, 16, 17])
def test_a_kill_at_any_point_changes_nothing(kill_after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = small(optimizers=(Choice(name="adamw"),))
    undisturbed = Sweeps(monkeypatch).telescope(asked, (16, 32, 64, 128), tmp_path)
    killed = Sweeps(monkeypatch, kill_after)
    with pytest.raises(launch.Interrupted):
        killed.telescope(asked, (16, 32, 64, 128), tmp_path)
    assert sum(map(len, killed.kept.values())) == kill_after
    assert killed.telescope(asked, (16, 32, 64, 128), tmp_path) == undisturbed
    assert sum(map(len, killed.kept.values())) == undisturbed["studies"][0]["trials"]


def test_learning_rates_given_are_the_first_grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweeps = Sweeps(monkeypatch)
    asked = small(lrs=(1e-3, 2e-3, 4e-3, 8e-3, 16e-3))
    (stage, *_), *_ = (study["stages"] for study in sweeps.telescope(asked, WIDTHS, tmp_path)["studies"])
    assert stage["lrs"] == [1e-3, 2e-3, 4e-3, 8e-3, 16e-3]


def test_a_plan_says_widths_learning_rates_and_trials(tmp_path: Path) -> None:
    told = stages.planned(small(seeds=(0, 1)), (16, 32, 64, 128), tmp_path)
    assert told["trials"] == 2 * 2 * 17
    assert len(told["lrs"]["adamw"]) == 8
    assert any(line.startswith("trials        68") for line in stages.planned_lines(told))


@pytest.mark.parametrize(
    ("changes", "widths", "message"),
    [
        (
            {"workload": Choice(name="text", options={"context": 16})},
            WIDTHS,
            "in muP: add --set workload.parametrization=mup",
        ),
        ({"workload": Choice(name="noisy_quadratic")}, WIDTHS, "width"),
        ({}, (32, 16), "at least two widths that increase, got 32, 16"),
        ({}, (16, 40), "not a multiple of 16"),
    ],
)
def test_what_does_not_telescope_is_refused_before_anything_runs(
    changes: dict, widths: tuple[int, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweeps = Sweeps(monkeypatch)
    with pytest.raises(ConfigError, match=message):
        sweeps.telescope(small(**changes), widths, tmp_path)
    assert not sweeps.kept


def test_edges_misses_and_carried_learning_rates_are_said() -> None:
    stage = {"width": 16, "lrs": [1.0, 2.0], "steps": [None, 5.0], "best_lr": 1.0, "optimum": 1.0}
    both = [stage | {"tuned": True, "at_grid_edge": True}, stage | {"tuned": False, "at_grid_edge": False}]
    study = {"optimizer": "lion", "batch_size": 4, "stages": both, "trials": 9, "full_grid_trials": 20}
    lines = stages.report_lines({"studies": [study], "target": "x", "output": "there"})
    assert lines[3].endswith("-  LR at the edge of the grid")
    assert lines[4].endswith("carried over")
    assert stages.NO_LAW in " ".join(" ".join(lines).split())
    assert "trials: 9; with the full grid at every width: 20" in lines

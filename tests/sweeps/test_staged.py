"""Sweeps that follow one another: for every value of a setting, and from width to width."""

from pathlib import Path

import pytest

from cbs.errors import ConfigError
from sweeps.launching.loop import follow
from sweeps.launching.policies import Once
from sweeps.launching.policies.staged import EachSetting, split_axes
from sweeps.search.search import Limits, Search
from sweeps.spec.spec import Sweep
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

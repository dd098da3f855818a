"""The noise scale along a run: it is the workload's, phase by phase."""

import dataclasses
import json
from dataclasses import replace

import numpy as np
import pytest

from cbs.compute import seeding
from cbs.errors import ConfigError
from cbs.noise_scale.averages import Estimate
from cbs.trial.config import Choice, TrialConfig
from cbs.workloads import build_workload
from extensions.noise_scale.phases import corrected_estimate as corrected
from extensions.noise_scale.phases import measure_run, phase_ends
from tests.factories import quadratic
from tests.kinds import kinds
from tests.noise_scale.geometries.test_every_geometry import ThriceOfNorms
from tests.references.quadratic_moments import true_moments

CONFIG = quadratic(
    "sgd(momentum=0.0)",
    {"dimension": 100},
    target=1e-9,
    lr=1e-6,
    batch_size=16,
    seed=0,
    max_steps=240,
    probe=Choice(name="split", options={"geometry": ["l2", "matched"]}),
)


def config_with(**changes: object) -> TrialConfig:
    return dataclasses.replace(CONFIG, **changes)


@pytest.mark.parametrize("source", kinds(["split"], ["accumulation", "per_example"]))
def test_standing_still_every_phase_reads_the_true_noise_scale(source: str) -> None:
    done: list[None] = []
    run = measure_run(
        config_with(probe=dataclasses.replace(CONFIG.probe, name=source)),
        phases=3,
        confidence=0.9999,
        progress=lambda: done.append(None),
    )
    workload = build_workload(CONFIG.workload)

    with seeding.seeded(0, "init"):
        model = workload.build_model()
    signal, noise = true_moments(model)
    assert run.source == source
    assert run.matched == "l2"
    assert len(done) == 240
    assert [(phase.first_step, phase.last_step) for phase in run.phases] == [(1, 60), (61, 120), (121, 240)]
    assert [phase.last_examples for phase in run.phases] == [960, 1920, 3840]
    for phase in run.phases:
        estimate = phase.noise_scales["l2"]
        assert estimate.steps == phase.last_step - phase.first_step + 1
        assert estimate.low < noise / signal
        assert estimate.high is None or noise / signal < estimate.high
        # tr(Sigma) of 60 steps of 16 examples in about 25 effective dimensions is known to about 4 %
        assert estimate.noise == pytest.approx(noise, rel=0.2)
        assert set(phase.layers) == {"theta"}


def test_the_report_is_plain_json() -> None:
    run = measure_run(config_with(max_steps=4, optimizer=Choice(name="adamw")), phases=2)
    again = json.loads(json.dumps(run.to_json(), allow_nan=False))
    assert TrialConfig.from_dict(again["config"]) == run.config
    assert [phase["last_examples"] for phase in again["phases"]] == [32, 64]
    assert set(again["phases"][0]["noise_scales"]) == {"l2", "l1", "l1_corrected"}


def test_phases_double() -> None:
    assert phase_ends(256, 4) == [32, 64, 128, 256]
    assert phase_ends(10, 1) == [10]
    assert np.all(np.diff(phase_ends(1000, 6)) > 0)


@pytest.mark.parametrize(("steps", "phases"), [(8, 4), (1, 1), (100, 0)])
def test_too_few_steps_are_refused(steps: int, phases: int) -> None:
    with pytest.raises(ConfigError):
        phase_ends(steps, phases)


def test_a_run_that_is_measured_phase_by_phase_has_its_symbols() -> None:
    options = {"geometry": ["l2", f"{ThriceOfNorms.__module__}:ThriceOfNorms"]}
    config = dataclasses.replace(CONFIG, max_steps=8, probe=Choice(name="split", options=options))
    run = measure_run(config, phases=2).to_json()
    names = ("l2", "threefold_norms", "threefold_norms_corrected")
    assert set(run["phases"][0]["noise_scales"]) == set(names)
    assert [run["symbols"][name] for name in names] == [
        r"B_{\mathrm{simple}}", r"B_{\times 3}", r"B_{\times 3}^{\mathrm{corr}}",
    ]  # fmt: skip


SIMPLE = Estimate(
    value=40.0, low=30.0, high=60.0, confidence=0.95, signal=1.0, noise=40.0, steps=100, examples=6400, note=""
)
L1 = replace(SIMPLE, value=50.0, low=45.0, high=56.0)


def test_the_value_is_that_of_the_rule() -> None:
    found = corrected(L1, SIMPLE, 64)
    assert found.value == pytest.approx(50.0 * (1 + 40.0 / 64))
    assert found.low < found.value < found.high
    # no narrower than either part alone
    assert found.value / found.low >= 50 / 45
    assert found.high / found.value >= (1 + 60 / 64) / (1 + 40 / 64)


def test_what_is_undefined_stays_undefined_and_says_why() -> None:
    nothing = replace(SIMPLE, value=None, low=None, high=None, note="the mean signal is not positive (-1)")
    found = corrected(L1, nothing, 64)
    assert found.value is None
    assert found.interval == (None, None)
    assert "not positive" in found.note
    assert corrected(nothing, SIMPLE, 64) == nothing
    assert corrected(L1, replace(SIMPLE, high=None), 64).high is None
    # an open lower end of the simple scale only says that the correction is at least 1
    assert corrected(L1, replace(SIMPLE, low=None), 64).low is not None

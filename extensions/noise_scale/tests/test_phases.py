"""The noise scale along a run: it is the workload's, phase by phase."""

import dataclasses
import json

import numpy as np
import pytest
from torch import nn

from cbs.compute import seeding
from cbs.errors import ConfigError
from cbs.trial.config import Choice, TrialConfig
from cbs.workloads import build_workload
from extensions.noise_scale.phases import measure_run, phase_ends
from tests.factories import quadratic
from tests.kinds import kinds
from tests.noise_scale.geometries.test_own_geometry import ThriceOfNorms
from tests.references.quadratic_moments import true_moments
from tests.training.test_step_passes import Images, train

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
        assert estimate.low is not None
        assert estimate.low < noise / signal
        assert estimate.high is None or noise / signal < estimate.high
        # tr(Sigma) of 60 steps of 16 examples in about 25 effective dimensions is known to about 4 %
        assert estimate.noise == pytest.approx(noise, rel=0.2)
        assert set(phase.layers) == {"theta"}


def test_clipping_comes_after_the_measurement() -> None:
    clipped, plain = (measure_run(config_with(max_steps=8, clip_norm=norm), phases=1) for norm in (0.01, None))
    for found, wanted in zip(clipped.phases, plain.phases, strict=True):
        assert found.noise_scales["l2"].value == pytest.approx(wanted.noise_scales["l2"].value, rel=1e-4)


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


def test_divergence_is_said() -> None:
    with pytest.raises(ConfigError, match=r"not finite at step .* lower the learning rate"):
        measure_run(config_with(lr=1e30), phases=1)


def test_a_run_without_a_probe_is_refused() -> None:
    with pytest.raises(ConfigError, match="no probe"):
        measure_run(config_with(probe=None))


def test_a_run_that_is_measured_phase_by_phase_has_its_symbols() -> None:
    options = {"geometry": ["l2", f"{ThriceOfNorms.__module__}:ThriceOfNorms"]}
    config = dataclasses.replace(CONFIG, max_steps=8, probe=Choice(name="split", options=options))
    run = measure_run(config, phases=2).to_json()
    names = ("l2", "threefold_norms", "threefold_norms_corrected")
    assert set(run["phases"][0]["noise_scales"]) == set(names)
    assert [run["symbols"][name] for name in names] == [
        r"B_{\mathrm{simple}}", r"B_{\times 3}", r"B_{\times 3}^{\mathrm{corr}}",
    ]  # fmt: skip


def test_a_short_run_for_the_noise_scale_trains_as_without_it() -> None:
    config = train(Images(lambda: nn.BatchNorm2d(4)), "auto").config
    found = measure_run(config, workload=Images(lambda: nn.BatchNorm2d(4)), phases=1)
    plain = train(Images(lambda: nn.BatchNorm2d(4)), None)
    assert found.phases[0].train_loss == plain.steps["train_loss"].mean()
    estimate = found.phases[0].noise_scales["l2"]
    assert estimate.value is None
    assert "would change the training" in estimate.note

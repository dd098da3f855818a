"""The noise scale along a run, and what one step saves, where both are known."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from cbs.compute import seeding
from cbs.errors import ConfigError
from cbs.noise_scale.averages import Estimate
from cbs.training.loop import TrainingLoop
from cbs.trial.config import Choice, TrialConfig
from cbs.workloads import build_workload
from extensions.noise_scale.one_step import OneStepTest, one_step_test
from extensions.noise_scale.one_step_gain import OneStep, _searched, one_step
from extensions.noise_scale.phases import corrected_estimate as corrected
from extensions.noise_scale.phases import measure_run, phase_ends
from tests.factories import inside, quadratic
from tests.kinds import kinds
from tests.noise_scale.geometries.test_every_geometry import ThriceOfNorms
from tests.references.quadratic_moments import true_moments

SIZES = (2, 8, 32, 128)
CONFIG = quadratic(
    "sgd", {"dimension": 24, "noise": 2.0}, target=1e-3, lr=0.1, batch_size=8, seed=0, max_steps=10, probe=None
)


@pytest.fixture(scope="module")
def loop() -> TrainingLoop:
    return TrainingLoop(CONFIG, build_workload(CONFIG.workload), torch.device("cpu"))


@pytest.fixture(scope="module")
def measured(loop: TrainingLoop) -> OneStep:
    return one_step(loop, SIZES, replicates=24, examples=8192)


@pytest.fixture(scope="module")
def found(measured: OneStep) -> OneStepTest:
    about = {"workload": "noisy_quadratic", "optimizer": "sgd", "steps": 0, "example_unit": "sample"}
    fields = {name: value for name, value in vars(measured).items() if name != "loss"}
    return one_step_test(about, **fields)


def truth(loop: TrainingLoop) -> dict[str, float]:
    h, noise = (getattr(loop.model, name).double() for name in ("curvature", "noise"))
    gradient = h * loop.model.theta.detach().double()
    square, bent, spread = (gradient**2).sum(), (h * gradient**2).sum(), (h * noise).sum()
    values = {"most": square**2 / (2 * bent), "noise": spread / bent, "simple": noise.sum() / square,
              "square": square, "bent": bent, "spread": spread}  # fmt: skip
    return {name: float(value) for name, value in values.items()}


def test_what_steps_save_and_the_three_noise_scales_are_those_of_the_closed_form(
    loop: TrainingLoop, found: OneStepTest
) -> None:
    true = truth(loop)
    for point in found.points:
        bent = true["bent"] + true["spread"] / point.batch_size
        assert point.length.value == pytest.approx(true["square"] / bent, rel=0.4 if point.batch_size < 9 else 0.15)
        saved = true["most"] / (1 + true["noise"] / point.batch_size)
        assert point.saved.value == pytest.approx(saved, rel=0.4 if point.batch_size < 9 else 0.1)
        assert not point.at_edge
    assert found.most.value == pytest.approx(true["most"], rel=0.1)
    assert found.noise_scale.value == pytest.approx(true["noise"], rel=0.35)
    assert inside(found.noise_scale.interval, true["noise"])
    assert inside(found.hessian_noise_scale.interval, true["noise"])
    assert found.simple_noise_scale.value == pytest.approx(true["simple"], rel=0.5)
    assert inside(found.simple_noise_scale.interval, true["simple"])
    assert not inside(found.simple_noise_scale.interval, true["noise"])


def test_moments_are_those_of_the_gradients(loop: TrainingLoop, measured: OneStep) -> None:
    true = truth(loop)
    assert measured.curvatures[-1].mean() == pytest.approx(true["bent"] + true["spread"] / 128, rel=0.1)
    assert measured.loss == pytest.approx(loop.workload.validate(loop.model), abs=0.1)
    for changes, lengths in zip(measured.changes, measured.lengths, strict=True):
        assert changes.shape == (24, len(lengths))
        assert (np.diff(lengths) > 0).all()


def test_the_exact_curve_gives_its_noise_scale_back() -> None:
    """Without noise, at lengths that hold the best one between them."""
    sizes, lengths = (4, 16, 64, 256), np.geomspace(0.01, 4.0, 25)
    changes = [np.tile(-lengths + lengths**2 / 2 * (1 + 50 / size), (3, 1)) for size in sizes]
    sq_norms = np.array([[1 + 70 / size] * 3 for size in sizes])
    curved = np.array([[1 + 50 / size] * 3 for size in sizes])
    found = one_step_test({"example_unit": "a"}, sizes, [lengths] * 4, changes, sq_norms, curved, 10_000)
    assert found.noise_scale.value == pytest.approx(50, rel=1e-2)
    assert found.most.value == pytest.approx(0.5, rel=1e-2)
    assert found.hessian_noise_scale.value == pytest.approx(50)
    assert found.simple_noise_scale.value == pytest.approx(70)
    assert [point.length.value for point in found.points] == pytest.approx([1 / (1 + 50 / size) for size in sizes])
    assert found.notes == ()
    few = one_step_test({"example_unit": "a"}, sizes, [lengths] * 4, changes, sq_norms, curved, 100)
    assert "take more" in few.notes[0]
    short = one_step_test({}, sizes, [lengths[:8]] * 4, [each[:, :8] for each in changes], sq_norms, curved, 10_000)
    assert all(point.at_edge for point in short.points[1:])
    assert "beyond those tried" in short.notes[0]


@pytest.mark.parametrize(("best", "added"), [(0.3, []), (0.06, [0.025, 0.075]), (2.2, [2.0, 3.6])])
def test_lengths_go_on_by_a_factor_of_four_where_the_best_one_is_at_an_end(best: float, added: list[float]) -> None:
    first = [0.1, 0.3, 0.5, 0.9]
    lengths, changes = _searched(first, lambda tried: np.array([[-one + one**2 / (2 * best) for one in tried]] * 3))
    assert lengths.tolist() == pytest.approx(sorted([*first, *added]))
    assert changes.argmin(axis=1).tolist() == [int(np.abs(lengths - best).argmin())] * 3


def test_lengths_at_which_the_loss_is_not_finite_are_passed_over() -> None:
    def changes(lengths: Sequence[float]) -> np.ndarray:
        return np.array([[-one if one < 0.3 else np.nan for one in lengths]] * 2)

    lengths, found = _searched([0.1, 0.2, 0.5], changes)
    assert lengths.tolist() == [0.1, 0.2, 0.5]
    assert found[:, 2].min() > 1e20
    with pytest.raises(ConfigError, match="diverges for every step length"):
        _searched([0.5, 1.0], lambda lengths: np.full((2, len(lengths)), np.nan))


def test_bad_requests_are_refused(loop: TrainingLoop) -> None:
    with pytest.raises(ConfigError, match="two batch sizes"):
        one_step(loop, (4,))
    with pytest.raises(ConfigError, match="two replicates"):
        one_step(loop, (4, 8), replicates=1)


def test_the_command_measures_where_a_run_or_a_checkpoint_stands(
    run: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("extensions.noise_scale.measuring.ONE_STEP_SIZES", (4, 16))
    asked = ("noise-scale", "--one-step", "--optim", "sgd", "--lr", 0.1, "--workload", "noisy_quadratic")
    asked += ("--set", "workload.dimension=9")
    monkeypatch.setattr("extensions.noise_scale.one_step_gain.LENGTHS", (0.5, 1.0, 2.0))
    code, out, err = run(*asked, "--steps", 3, "-o", tmp_path)
    assert (code, err) == (0, "")
    assert "after 3 steps" in out
    written = json.loads((tmp_path / "one_step.json").read_text())
    assert written["noise_scale"]["value"] is None or written["noise_scale"]["value"] > 0
    weights = tmp_path / "weights.pt"
    torch.save({"theta": torch.full((9,), 5.0), "curvature": torch.ones(9), "noise": torch.ones(9)}, weights)
    code, out, err = run(*asked, "--steps", 0, "--from-checkpoint", weights, "--json", "-o", tmp_path)
    assert (code, err) == (0, "")
    loss = json.loads(out)["about"]["loss"]
    assert loss == pytest.approx(0.5 * 9 * 25.0, rel=0.1)
    code, _, err = run("noise-scale", "--from-checkpoint", weights)
    assert (code, "goes with --one-step" in err) == (2, True)


PHASES = quadratic(
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
    return dataclasses.replace(PHASES, **changes)


@pytest.mark.parametrize("source", kinds(["split"], ["accumulation", "per_example"]))
def test_standing_still_every_phase_reads_the_true_noise_scale(source: str) -> None:
    done: list[None] = []
    run = measure_run(
        config_with(probe=dataclasses.replace(PHASES.probe, name=source)),
        phases=3,
        confidence=0.9999,
        progress=lambda: done.append(None),
    )
    workload = build_workload(PHASES.workload)

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
    config = dataclasses.replace(PHASES, max_steps=8, probe=Choice(name="split", options=options))
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

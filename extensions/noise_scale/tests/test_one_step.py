"""What one step saves, on the noisy quadratic, where it is known in closed form."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from cbs.errors import ConfigError
from cbs.training.loop import TrainingLoop
from cbs.workloads import build_workload
from extensions.noise_scale.one_step import OneStepTest, one_step_test
from extensions.noise_scale.one_step_gain import OneStep, one_step
from tests.factories import inside, quadratic

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

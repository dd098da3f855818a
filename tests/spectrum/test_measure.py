"""A measurement on the noisy quadratic, whose curvature, gradient and noise are known; and its file."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from analysis.extensions.theory.noisy_quadratic import NoisyQuadratic, modes_of, tuned
from analysis.extensions.theory.noisy_quadratic.measured import measured_quadratic
from cbs.errors import ConfigError, ResultsError
from cbs.spectrum import record
from cbs.spectrum.measure import Effort, measure
from cbs.spectrum.record import GAUSS_NEWTON, HESSIAN, START, TARGET, Spectrum, SpectrumSample
from cbs.training.loop import TrainingLoop
from cbs.trial.config import Choice, TrialConfig
from cbs.trial.target import Target
from cbs.workloads import build_workload

SIZE = 24
TRIAL = TrialConfig(
    workload=Choice(name="noisy_quadratic", options={"dimension": SIZE, "noise": 0.3}),
    optimizer=Choice(name="sgd", options={"momentum": 0.0}),
    lr=0.1,
    batch_size=8,
    seed=0,
    target=Target(metric="validation_loss", value=0.15),
    max_steps=400,
    probe=None,
)
EFFORT = Effort(nodes=SIZE, curvature_examples=2, gradient_examples=16384)


def taken(
    config: TrialConfig, point: str, effort: Effort = EFFORT
) -> tuple[SpectrumSample, TrainingLoop, torch.Tensor]:
    loop = TrainingLoop(config, build_workload(config.workload), torch.device("cpu"))
    start = loop.model.theta.detach().clone()
    if point == TARGET:
        loop.run(None)
    else:
        loop.evaluate(step=0, lr=0.0, losses=np.empty(0))
    return measure(loop, [start], effort, point=point, replicate=0), loop, start


@pytest.mark.parametrize("kind", [GAUSS_NEWTON, HESSIAN])
def test_finds_curvature_gradient_and_noise(kind: str) -> None:
    sample, loop, start = taken(TRIAL, START, dataclasses.replace(EFFORT, curvature=kind))
    truth = np.sort(loop.model.curvature.double().numpy())
    h, gradient = sample.of("gradient")
    # products are in single precision
    np.testing.assert_allclose(h, truth, rtol=1e-4)
    exact = (loop.model.curvature * start).double().numpy()[np.argsort(loop.model.curvature.numpy())] ** 2
    # the halves of the gradient are of 8,192 examples each: an entry of one is off by sqrt(c/8192)
    error = np.sqrt(2 * exact * 0.3 * truth / 8192) + 0.3 * truth / 8192
    assert (abs(gradient - exact) < 4 * error).all()
    along, noise = sample.of("noise")
    assert len(along) == SIZE + 1
    # variances of 256 batches: 9 % each
    np.testing.assert_allclose(noise[:SIZE], 0.3 * truth, rtol=0.36)


@pytest.mark.parametrize("vectors", [1, 16])
def test_noise_vectors_estimate_the_trace_together(vectors: int) -> None:
    """With few nodes most of the noise is off the settled directions, where random vectors measure it."""
    effort = dataclasses.replace(EFFORT, nodes=4, noise_vectors=vectors)
    sample, loop, _ = taken(TRIAL, START, effort)
    measures = [measure for measure in sample.measures if measure.kind == "noise"]
    assert len(measures) == 1 + vectors
    trace = 0.3 * float(loop.model.curvature.double().sum())
    # one vector is off by 40 % at most, as unequal directions share few degrees of freedom; three times that
    assert sum(measure.weight.sum() for measure in measures) == pytest.approx(trace, rel=1.2 / vectors**0.5)


@pytest.mark.parametrize("point", [START, TARGET])
def test_the_quadratic_it_makes_is_the_one_that_was_trained(point: str) -> None:
    sample, loop, start = taken(TRIAL, point)
    found = measured_quadratic([sample])
    h, c = (getattr(loop.model, name).double().numpy() for name in ("curvature", "noise"))
    true = NoisyQuadratic(curvature=h, noise=c, start=start.double().numpy() ** 2, count=np.ones(SIZE))
    # the gradient's own noise: the excess loss is off by sqrt(theta' c theta / 16384)
    at = loop.model.theta.detach().double().numpy()
    error = 4 * np.sqrt(at @ (c * at) / 16384) + 1e-3
    assert abs(found.floor) < error
    assert found.model.initial_loss == pytest.approx(true.initial_loss, abs=4 * np.sqrt(true.start @ c / 16384) + 1e-3)
    assert (found.negative, found.flat) == (0.0, pytest.approx(0.0, abs=1e-9))
    # the start's loss is known, and so is the floor: what is left is the noise
    known = measured_quadratic([sample], 0.0).model
    for method, momentum, power in (("sgd", 0.0, 0.0), ("heavy_ball", 0.9, 0.5)):
        for size in (2, 64):
            expected = tuned(true, method, 0.15, size, momentum, power=power)
            steps = tuned(known, method, 0.15, size, momentum, power=power)
            # noise is known to 9 % per direction
            assert steps.steps == pytest.approx(expected.steps, rel=0.1)


def test_what_the_first_steps_take_off_the_loss_is_exact_with_few_nodes() -> None:
    """With k nodes in a half of them, to the noise of the gradient, which the same examples with all nodes share."""
    few, all_of_them = (
        measured_quadratic([taken(TRIAL, START, dataclasses.replace(EFFORT, nodes=nodes))[0]]) for nodes in (8, SIZE)
    )
    for steps, exact in ((1, True), (2, True), (4, True), (40, False)):
        one, other = (
            float(modes_of(found.model, "sgd", 0.5).loss(steps, 1e12)) + found.floor for found in (few, all_of_them)
        )
        assert (abs(one - other) < 2e-6) == exact


def test_the_model_stays_as_it_is() -> None:
    sample, loop, start = taken(TRIAL, START)
    assert torch.equal(loop.model.theta.detach(), start)
    assert loop.model.theta.grad is None
    assert loop.model.training
    again, *_ = taken(TRIAL, START)
    assert all(np.array_equal(one.weight, two.weight) for one, two in zip(sample.measures, again.measures, strict=True))


def test_a_curvature_that_needs_outputs_is_refused_without_them() -> None:
    loop = TrainingLoop(TRIAL, build_workload(TRIAL.workload), torch.device("cpu"))
    loop.evaluate(step=0, lr=0.0, losses=np.empty(0))
    loop.model.theta.requires_grad_(False)
    with pytest.raises(ConfigError, match="no trainable parameter"):
        measure(loop, [loop.model.theta], EFFORT, point=START, replicate=0)
    loop.model.theta = torch.nn.Parameter(loop.model.theta.to(torch.complex64))
    with pytest.raises(ConfigError, match="complex parameters"):
        measure(loop, [loop.model.theta], EFFORT, point=START, replicate=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"curvature": "fisher"}, "curvature must be one of auto, gauss_newton, hessian, got 'fisher'"),
        ({"nodes": 0}, "nodes must be at least 1, got 0"),
        ({"curvature_examples": 0}, "curvature examples must be at least 1"),
        ({"noise_vectors": 0}, "noise vectors must be at least 1"),
        ({"gradient_examples": 7}, "gradient examples must be at least 8"),
    ],
)
def test_values_out_of_their_domain(change: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Effort(**change)


def stored(folder: Path) -> Spectrum:
    sample, *_ = taken(TRIAL, START)
    found = Spectrum(
        curvature=GAUSS_NEWTON, nodes=SIZE, parameters=SIZE, trial="", metric="validation_loss", direction="below",
        workload={"name": "noisy_quadratic", "options": {}}, samples=(sample,),
    )  # fmt: skip
    assert record.write(found, folder) == folder / "spectrum.parquet"
    return found


def test_what_is_written_is_read(tmp_path: Path) -> None:
    found = stored(tmp_path)
    back = record.read(tmp_path)
    assert dataclasses.replace(back, samples=()) == dataclasses.replace(found, samples=())
    (one,), (other,) = found.samples, back.samples
    assert dataclasses.replace(one, measures=()) == dataclasses.replace(other, measures=())
    for kind in record.KINDS:
        assert all(np.array_equal(a, b) for a, b in zip(one.of(kind), other.of(kind), strict=True))
    assert [path.name for path in tmp_path.iterdir()] == ["spectrum.parquet"]


def test_a_file_that_is_missing_foreign_or_damaged(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match=r"no spectrum in .*: measure one with 'cbs theory spectrum "):
        record.read(tmp_path)
    found = stored(tmp_path)
    table = pq.read_table(tmp_path / "spectrum.parquet")
    pq.write_table(table.replace_schema_metadata({}), tmp_path / "spectrum.parquet")
    with pytest.raises(ResultsError, match=r"cannot read .*measure it again with 'cbs theory spectrum "):
        record.read(tmp_path)
    (tmp_path / "spectrum.parquet").write_bytes(b"no table")
    with pytest.raises(ResultsError, match=r"cannot read .*measure it again"):
        record.read(tmp_path)
    bad = dataclasses.replace(
        found.samples[0], measures=(record.SpectralMeasure("noise", np.array([1.0]), np.array([np.nan])),)
    )
    record.write(dataclasses.replace(found, samples=(bad,)), tmp_path)
    with pytest.raises(ResultsError, match="numbers that are not finite"):
        record.read(tmp_path)

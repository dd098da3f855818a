"""The training loop: repeatable, indifferent to how a step is cut up, and honest about how a trial ends."""

import dataclasses
import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cbs.errors import ConfigError
from cbs.training.noise_scale import L2_COLUMNS, PERIOD, ProbeOptions
from cbs.training.run import run_trial
from cbs.trial.config import Choice, EvaluationPlan, Schedule, TrialConfig
from cbs.trial.ending import Ending
from cbs.trial.record import Measurement, TrialResult, TrialStatus
from cbs.trial.target import Target
from cbs.workloads import build_workload
from tests.factories import quadratic
from tests.kinds import kinds

CONFIG = quadratic("sgd(momentum=0.5)", {"dimension": 30}, target=0.2, lr=0.05, batch_size=12, seed=5, max_steps=400)


def config_with(**changes: Any) -> TrialConfig:
    return dataclasses.replace(CONFIG, **changes)


def values(result: TrialResult) -> list[float]:
    return [row.value for row in result.evaluations]


class Recorder:
    """A workload that keeps the size of every micro-batch and the gradient of every whole batch."""

    def __init__(self) -> None:
        self.inner = build_workload(CONFIG.workload)
        self.sizes: list[int] = []
        self.gradients: list[Tensor] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def build_model(self) -> nn.Module:
        model = self.inner.build_model()
        self.parameters = list(model.parameters())
        return model

    def example_losses(self, model: nn.Module, batch: Tensor) -> Tensor:
        self.sizes.append(len(batch))
        return self.inner.example_losses(model, batch)

    def validate(self, model: nn.Module) -> float:
        if all(parameter.grad is not None for parameter in self.parameters):
            self.gradients.append(torch.cat([parameter.grad.flatten().clone() for parameter in self.parameters]))
        return self.inner.validate(model)


def test_bitwise_repeatable() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        first = run_trial(CONFIG)
        torch.manual_seed(2)
        before = torch.random.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
        second = run_trial(CONFIG)
        assert torch.equal(torch.random.get_rng_state(), before[0])
        assert (np.random.get_state()[1].tolist(), random.getstate()) == before[1:]
    assert first.status is TrialStatus.REACHED
    assert values(first) == values(second)
    assert first.steps_to_target == second.steps_to_target
    for name, column in first.steps.items():
        np.testing.assert_array_equal(column, second.steps[name])
    assert values(run_trial(config_with(seed=6))) != values(first)


@pytest.mark.parametrize("micro_batch_size", kinds([1, 5, 13], [4, 12, 50]))
def test_accumulation_equals_the_whole_batch(micro_batch_size: int) -> None:
    whole, parts = Recorder(), Recorder()
    one = run_trial(config_with(batch_size=13, probe=None), workload=whole)
    many = run_trial(config_with(batch_size=13, probe=None, micro_batch_size=micro_batch_size), workload=parts)
    count = math.ceil(13 / micro_batch_size)
    assert set(whole.sizes) == {13}
    assert sum(parts.sizes[:count]) == 13
    assert max(parts.sizes) <= micro_batch_size
    assert len(whole.gradients) == len(parts.gradients) >= 7
    torch.testing.assert_close(torch.stack(parts.gradients), torch.stack(whole.gradients), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(values(many), values(one), rtol=1e-4)
    np.testing.assert_allclose(many.steps["train_loss"], one.steps["train_loss"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("source", ["auto", "split", "accumulation", "per_example"])
def test_a_probe_does_not_change_the_run(source: str) -> None:
    with_probe, without = run_trial(config_with(probe=Choice(name=source))), run_trial(config_with(probe=None))
    np.testing.assert_allclose(values(with_probe), values(without), rtol=1e-4)
    assert set(without.steps) == {"step", "examples", "batch_size", "train_loss"}
    assert set(with_probe.steps) == {"step", "examples", "batch_size", "train_loss", *L2_COLUMNS}


def test_the_matched_geometry_is_measured_beside_the_plain_one() -> None:
    adam = config_with(optimizer=Choice(name="adamw"), lr=0.02, max_steps=20)
    steps = run_trial(adam).steps
    assert set(steps) == {"step", "examples", "batch_size", "train_loss", *L2_COLUMNS, "l1_signal", "l1_noise"}
    due = [step % ProbeOptions(source="split").interval(adam.batch_size) == 0 for step in range(20)]
    assert np.isfinite(steps["l1_noise"]).tolist() == due
    assert np.isfinite(steps["noise_trace"]).tolist() == due
    assert np.isfinite(steps["big_grad_sq_norm"]).all()
    often = dataclasses.replace(adam, probe=Choice(name="auto", options={"every": 1}))
    assert np.isfinite(run_trial(often).steps["l1_noise"]).all()
    large = run_trial(dataclasses.replace(adam, batch_size=64)).steps["l1_noise"]
    assert np.flatnonzero(np.isfinite(large)).tolist() == [0, PERIOD + 2]
    plain = run_trial(dataclasses.replace(adam, probe=Choice(name="auto", options={"geometry": "l2"}))).steps
    assert set(plain) == set(steps) - {"l1_signal", "l1_noise"}


def test_a_single_example_has_no_moments_but_a_gradient() -> None:
    recorder = Recorder()
    result = run_trial(config_with(batch_size=1, lr=0.001, max_steps=3), workload=recorder)
    assert np.isnan(result.steps["noise_trace"]).all()
    assert np.isnan(result.steps["small_batch_size"]).all()
    assert result.steps["big_grad_sq_norm"][-1] == pytest.approx(recorder.gradients[-1].square().sum().item(), rel=1e-5)


class Spy:
    """A workload that keeps every batch it hands out and every model it builds."""

    def __init__(self) -> None:
        self.inner = build_workload(CONFIG.workload)
        self.batches: list[Tensor] = []
        self.models: list[nn.Module] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def build_model(self) -> nn.Module:
        self.models.append(self.inner.build_model())
        self.initial = self.models[-1].theta.detach().clone()
        return self.models[-1]

    def training_stream(self, generator: torch.Generator) -> "Spy":
        self.stream = self.inner.training_stream(generator)
        return self

    def next(self, examples: int) -> Tensor:
        self.batches.append(self.stream.next(examples))
        return self.batches[-1]


def test_data_and_start_depend_on_the_seed_alone() -> None:
    def data(**changes: Any) -> tuple[Tensor, Tensor]:
        spy = Spy()
        run_trial(
            config_with(max_steps=20, target=dataclasses.replace(CONFIG.target, value=1e-9), **changes), workload=spy
        )
        return spy.initial, torch.cat(spy.batches)[:120]

    initial, examples = data()
    for changes in ({"lr": 0.2}, {"batch_size": 6}, {"probe": None}, {"micro_batch_size": 3}):
        other_initial, other_examples = data(**changes)
        assert torch.equal(initial, other_initial)
        assert torch.equal(examples, other_examples)
    other_initial, other_examples = data(seed=6)
    assert not torch.equal(initial, other_initial)
    assert not torch.equal(examples, other_examples)


def test_reached() -> None:
    result = run_trial(CONFIG)
    assert result.status is TrialStatus.REACHED
    assert result.message == ""
    assert result.evaluations[-1].value < 0.2
    assert all(value >= 0.2 for value in values(result)[:-1])
    assert result.evaluations[-2].step <= result.steps_to_target <= result.final_step
    assert result.examples_to_target == result.steps_to_target * 12


@pytest.mark.parametrize("max_steps", [1, 2, 37, 100])
def test_budget_exhausted_ends_with_an_evaluation(max_steps: int) -> None:
    result = run_trial(config_with(max_steps=max_steps, target=dataclasses.replace(CONFIG.target, value=1e-9)))
    assert result.status is TrialStatus.BUDGET_EXHAUSTED
    assert result.steps_to_target is None
    assert result.examples_to_target is None
    assert result.final_step == max_steps == result.evaluations[-1].step == len(result.steps["step"])
    assert f"{max_steps} steps" in result.message


@pytest.mark.parametrize("lr", [3.0, 100.0, 1e30])
def test_diverged(lr: float) -> None:
    result = run_trial(config_with(lr=lr))
    assert result.status is TrialStatus.DIVERGED
    assert result.steps_to_target is None
    assert result.message
    assert result.final_step < 100


class Exploding(Spy):
    """The training loss is not a number in one step."""

    def example_losses(self, model: nn.Module, batch: Tensor) -> Tensor:
        losses = self.inner.example_losses(model, batch)
        return losses * math.nan if len(self.batches) == 30 else losses


def test_a_training_loss_that_is_not_finite_is_divergence_at_its_step() -> None:
    result = run_trial(CONFIG, workload=Exploding())
    assert result.status is TrialStatus.DIVERGED
    assert "training loss is not finite at step 30" in result.message
    assert np.isnan(result.steps["train_loss"]).tolist().index(True) == 29
    assert all(map(math.isfinite, values(result)))


class Failing(torch.optim.SGD):
    """Fails in its tenth step, with a value put where ``kind`` says."""

    kind, value = "", math.nan

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        (theta,) = self.param_groups[0]["params"]
        self.state[theta]["step"] = self.state[theta].get("step", torch.zeros(())) + 1
        if self.state[theta]["step"] == 10:
            {"weight": theta, "gradient": theta.grad, "state": self.state[theta]["step"]}[self.kind].fill_(self.value)
            raise ArithmeticError("did not converge")
        return super().step(closure)


@pytest.mark.parametrize("kind", ["weight", "gradient", "state"])
@pytest.mark.parametrize("value", [math.nan, math.inf, 1e30])
def test_a_step_that_fails_on_what_is_not_finite_is_divergence(
    kind: str, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Failing, "kind", kind)
    monkeypatch.setattr(Failing, "value", value)
    config = config_with(optimizer=Choice(name=f"{__name__}:Failing"), lr=1e-3)
    if math.isfinite(value):
        with pytest.raises(ArithmeticError, match="did not converge"):
            run_trial(config)
        return
    result = run_trial(config)
    assert result.status is TrialStatus.DIVERGED
    where = {"weight": "weight theta", "gradient": "gradient of theta", "state": "optimizer state of theta"}[kind]
    assert result.message == f"{where} is not finite; step 10 raised ArithmeticError: did not converge"
    assert result.steps["step"].tolist() == list(range(1, 11))
    assert np.isfinite(result.steps["train_loss"]).all()
    assert result.final_step < 10


def test_pruned_by_the_monitor() -> None:
    seen: list[Measurement] = []

    def monitor(rows: Sequence[Measurement]) -> Ending | None:
        seen.append(rows[-1])
        return (TrialStatus.PRUNED, "slower") if rows[-1].step >= 10 else None

    result = run_trial(CONFIG, monitor=monitor)
    assert (result.status, result.message) == (TrialStatus.PRUNED, "slower")
    assert result.steps_to_target is None
    assert seen == result.evaluations[1:]
    assert 10 <= result.final_step == seen[-1].step


def test_evaluation_steps_are_geometric_and_finer_near_the_target() -> None:
    plan = EvaluationPlan(growth=1.1, far_growth=1.5, near_fraction=0.3)
    result = run_trial(config_with(evaluation=plan, lr=0.02))
    start = CONFIG.target.distance(result.evaluations[0].value)
    expected = [0, 1]
    for row in result.evaluations[1:-1]:
        far = min(1.0, CONFIG.target.distance(row.value) / start / 0.3)
        expected.append(max(row.step + 1, math.ceil(row.step * max(1.1, 1.5**far))))
    assert [row.step for row in result.evaluations] == expected
    ratios = np.divide(expected[-4:], expected[-5:-1])
    assert ratios[0] > 1.3 > ratios[1] > 1.1 + 1 / expected[-4] >= ratios[2:].max()
    # the latest two say that the target is nearer than the distance alone does
    quick = dataclasses.replace(plan, far_growth=3.0, near_fraction=0.1)
    rows = run_trial(config_with(evaluation=quick, lr=0.02)).evaluations
    latest = [(row.step, CONFIG.target.distance(row.value) / start) for row in rows]
    coming = [quick.next_step(*here, before) for before, here in zip([None, *latest], latest[:-1], strict=False)]
    assert [row.step for row in rows[1:]] == coming != [quick.next_step(*here) for here in latest[:-1]]
    # a further target that is nearer counts, too
    easy = dataclasses.replace(CONFIG.target, metric="gradient_norm", value=1e9)
    both = run_trial(config_with(evaluation=plan, lr=0.02, further_targets=(easy,)))
    assert [row.step for row in both.evaluations][:8] == list(range(8))


def test_one_row_of_finite_values_for_every_step() -> None:
    result = run_trial(config_with(probe=Choice(name="auto", options={"every": 1})))
    steps = result.final_step
    np.testing.assert_array_equal(result.steps["step"], np.arange(1, steps + 1))
    np.testing.assert_array_equal(result.steps["examples"], 12 * np.arange(1, steps + 1))
    for column in result.steps.values():
        assert column.shape == (steps,)
        assert np.isfinite(column).all()
    assert (result.steps["small_batch_size"] == 6).all()


def test_learning_rate_follows_the_schedule_in_examples() -> None:
    result = run_trial(config_with(schedule=Schedule(warmup_examples=120)))
    rates = {row.step: row.lr for row in result.evaluations}
    assert rates[0] == 0.0
    for step, rate in rates.items():
        assert rate == pytest.approx(0.05 * min(1.0, step / 10))


def test_clipping_scales_longer_gradients_down_and_is_recorded() -> None:
    spy, plain = Spy(), run_trial(config_with(probe=None))
    limit = 0.5
    result = run_trial(config_with(clip_norm=limit, max_steps=1, probe=None), workload=spy)
    gradient = spy.models[0].curvature * spy.initial + spy.batches[0].mean(0)
    assert gradient.norm() > limit
    moved = spy.initial - 0.05 * gradient * limit / gradient.norm()
    torch.testing.assert_close(spy.models[0].theta.detach(), moved)
    assert result.steps["clipped"].tolist() == [1.0]
    never = run_trial(config_with(clip_norm=1e6, probe=None))
    assert values(never) == values(plain)
    assert set(never.steps["clipped"]) == {0.0}
    assert "clipped" not in plain.steps


def test_the_noise_scale_reads_gradients_before_they_are_clipped() -> None:
    every = Choice(name="auto", options={"every": 1})
    clipped, plain = (run_trial(config_with(clip_norm=norm, probe=every)).steps for norm in (1.0, None))
    assert set(clipped) - set(plain) == {"clipped"}
    for name in L2_COLUMNS:
        assert clipped[name][0] == plain[name][0]
    norms = np.sqrt(clipped["big_grad_sq_norm"])
    np.testing.assert_array_equal(clipped["clipped"], norms > 1.0)
    assert 0 < clipped["clipped"].mean() < 1


def test_facts_of_the_workload_travel_with_the_result() -> None:
    result = run_trial(config_with(max_steps=1))
    assert result.workload.parameters == 30
    assert result.workload.example_unit == "sample"
    assert result.workload.metric_unit == "loss"
    assert {"seconds", "evaluation_seconds", "device", "host", "threads"} <= set(result.timing)
    assert result.timing["processor_seconds"] > 0


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"workload": Choice(name="noisy_cubic")}, "noisy_quadratic"),
        ({"optimizer": Choice(name="sdg")}, "did you mean sgd"),
        ({"optimizer": Choice(name="sgd", options={"colour": 1})}, "colour"),
        ({"target": Target(metric="accuracy", value=0.5)}, "accuracy"),
        ({"schedule": Schedule(name="linear")}, "decay_examples"),
        ({"probe": Choice(name="splt")}, "did you mean split"),
        ({"probe": Choice(name="split", options={"group": 3})}, "parts=2, every=None"),
        ({"probe": Choice(name="split", options={"every": 0})}, "at least 1"),
        ({"probe": Choice(name="split", options={"parts": 1})}, "at least 2"),
        ({"probe": Choice(name="split", options={"geometry": "l3"})}, "did you mean"),
    ],
)
def test_misuse_is_one_line(changes: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run_trial(config_with(**changes))
    assert word in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without CUDA")
@pytest.mark.parametrize(
    ("changes", "words"), [({"device": "cuda"}, "no such device"), ({"precision": "bfloat16"}, "not cpu")]
)
def test_what_this_machine_cannot_do_is_said(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        run_trial(config_with(**changes))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda losses: losses[: len(losses) // 2], r"shape \[4\], got shape \[2\]"),
        (lambda losses: losses[:, None], r"got shape \[4, 1\]"),
        (lambda losses: losses.expand(4, 4), r"got shape \[4, 4\]"),
        (lambda losses: losses.mean(), r"got shape \[\]"),
        (lambda losses: 1.0, "got float"),
    ],
)
def test_losses_that_are_not_one_per_example_are_refused(change: Any, words: str) -> None:
    """The mean of anything else would train, at another learning rate."""
    workload = build_workload(CONFIG.workload)
    whole = workload.example_losses
    workload.example_losses = lambda model, batch: change(whole(model, batch))
    with pytest.raises(ConfigError, match=words):
        run_trial(config_with(micro_batch_size=4), workload=workload)


def test_signs_of_life_come_with_every_step_and_every_evaluation() -> None:
    seen: list[int] = []
    result = run_trial(config_with(max_steps=7), alive=seen.append)
    assert seen.count(0) == 1
    assert set(seen) == set(range(8))
    assert len(seen) == 7 + len(result.evaluations)

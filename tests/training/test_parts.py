"""Parts that a trial is made of, and metrics that are recorded beside that of the target."""

import copy
import dataclasses
import math
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves

from cbs.compute import seeding
from cbs.diagnostics import Diagnostic, build_diagnostics
from cbs.errors import ConfigError
from cbs.training.assembly import StepColumns
from cbs.training.loop import TrainingLoop
from cbs.training.metrics import METRICS, POWER, GradientNorm, MetricInputs, TrainingLoss
from cbs.training.parts import Clipping, Diagnostics, Part, TrainingStep
from cbs.training.run import run_trial
from cbs.trial.config import Choice
from cbs.trial.record import TrialStatus
from cbs.trial.store import Store
from cbs.trial.target import Target
from cbs.workloads import build_workload
from sweeps.launching.launch import resolve
from sweeps.spec.spec import UNRESOLVED
from tests.factories import quadratic
from tests.kinds import kinds
from tests.sweeps.simulation import small_sweep

CONFIG = quadratic("sgd", {"dimension": 8}, target=1e-9, lr=0.05, batch_size=6, seed=1, max_steps=20, clip_norm=1e-3)


class Witness(Part):
    """Writes down what is called and what the weights and gradients are then."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.weight = next(model.parameters())
        self.calls: list[tuple[str, int, torch.Tensor, float]] = []

    def _note(self, what: str, step: TrainingStep) -> None:
        length = float("nan") if self.weight.grad is None else float(self.weight.grad.norm())
        self.calls.append((what, step.number, self.weight.detach().clone(), length))

    def begin(self, step: TrainingStep) -> None:
        assert step.batch is None
        assert not step.values
        self._note("begin", step)

    def before_step(self, step: TrainingStep) -> None:
        assert step.batch is not None
        assert "train_loss" in step.values
        self._note("before", step)

    def after_step(self, step: TrainingStep) -> None:
        self._note("after", step)


def loop(**changes: Any) -> TrainingLoop:
    config = dataclasses.replace(CONFIG, **changes)
    return TrainingLoop(config, build_workload(config.workload), torch.device("cpu"))


def test_each_method_is_called_once_per_step_around_the_gradient_and_the_move() -> None:
    trial = loop(probe=None)
    witness = Witness(trial.model)
    trial.parts.insert(0, witness)
    for step in (1, 2):
        trial.train_step(step)
    assert [call[:2] for call in witness.calls] == [(what, n) for n in (1, 2) for what in ("begin", "before", "after")]
    begin, before, after = (call[2] for call in witness.calls[:3])
    assert torch.equal(begin, before)
    assert not torch.equal(before, after)


def test_parts_before_clipping_see_the_gradient_as_it_is_and_those_behind_it_the_clipped_one() -> None:
    trial = loop(probe=None)
    (place,) = (index for index, part in enumerate(trial.parts) if isinstance(part, Clipping))
    first, last = Witness(trial.model), Witness(trial.model)
    trial.parts.insert(place + 1, last)
    trial.parts.insert(place, first)
    trial.train_step(1)
    assert first.calls[1][3] > 1e-3
    assert last.calls[1][3] == pytest.approx(1e-3, rel=1e-4)
    assert trial.columns.flush()[:, 1].tolist() == [1.0]


def flat(state: Any) -> list[Any]:
    return [leaf.tolist() if isinstance(leaf, torch.Tensor) else leaf for leaf in tree_leaves(state)]


def test_every_part_goes_back_to_the_state_it_gave() -> None:
    changes = {
        "probe": Choice(name="accumulation", options={"every": 1}),
        "averaging": Choice(name="ema", options={"decay": 0.5}),
        "batch_schedule": Choice(name="stages", options={"table": "0:6 12:8"}),
        "optimizer": Choice(name="sgd", options={"momentum": 0.5}),
    }
    trial = loop(**changes)
    trial.evaluate(step=0, lr=0.0, losses=np.empty(0))
    for step in (1, 2, 3):
        trial.train_step(step)
    trial.evaluate(step=3, lr=0.0, losses=trial.columns.flush()[:, 0])
    state, other = trial.state(), loop(**changes)
    fresh = other.state()["parts"]
    other.load_state(copy.deepcopy(state))
    again = other.state()["parts"]
    for name, before in state["parts"].items():
        assert flat(again[name]) == flat(before)
        assert not before or flat(fresh[name]) != flat(before), name


def test_a_checkpoint_without_the_state_of_a_part_is_refused() -> None:
    trial = loop()
    trial.evaluate(step=0, lr=0.0, losses=np.empty(0))
    trial.columns.flush()
    state = trial.state()
    loop().load_state(state)
    del state["parts"][StepColumns.__name__]
    with pytest.raises(LookupError):
        loop().load_state(state)


def test_a_diagnostic_does_not_take_the_column_of_another_part() -> None:
    class Loss(Diagnostic):
        compiled = True

        def __enter__(self) -> object:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def columns(self) -> dict[str, torch.Tensor]:
            return {"train_loss": torch.tensor(0.0)}

    trial = loop(probe=None)
    trial.parts.insert(0, Diagnostics([Loss()], 1, trial.model, trial.optimizer))
    with pytest.raises(ConfigError, match="Loss has columns that already exist: train_loss"):
        trial.train_step(1)


METERED = quadratic("sgd", {"dimension": 10}, target=1e-9, lr=0.02, batch_size=8, seed=0, max_steps=60)


class Several:
    """The quadratic with two metrics of its own."""

    directions: ClassVar = {"half": "above"}

    def __init__(self, **others: Any) -> None:
        self._inner = build_workload(METERED.workload)
        self._others = others

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def validate(self, model: torch.nn.Module) -> dict[str, float]:
        loss = self._inner.validate(model)
        return {"validation_loss": loss, "half": loss / 2, **self._others}


def test_what_a_workload_says_is_stored_whole_and_the_target_chooses(tmp_path):
    result = run_trial(METERED, workload=Several())
    for row in result.evaluations:
        assert row.others == {"half": row.value / 2}
    assert result.directions == {"half": "above"}
    store = Store(tmp_path)
    store.create()
    store.save(result)
    stored = store.load(result.trial_id)
    assert stored.evaluations[1:] == result.evaluations[1:]
    assert stored.evaluations[0].others == result.evaluations[0].others
    assert stored.directions == result.directions

    other = dataclasses.replace(METERED, target=Target(metric="half", value=1e9, direction="above"))
    chosen = run_trial(other, workload=Several())
    halves = {row.step: row.others["half"] for row in result.evaluations}
    both = [row for row in chosen.evaluations if row.step in halves]
    assert len(both) > 3
    assert [row.value for row in both] == [halves[row.step] for row in both]
    assert chosen.evaluations[0].others == {"validation_loss": 2 * chosen.evaluations[0].value}
    with pytest.raises(
        ConfigError,
        match=r"target is on 'other', but workload 'noisy_quadratic' measures half, validation_loss; every workload",
    ):
        run_trial(dataclasses.replace(METERED, target=Target(metric="other", value=0.0)), workload=Several())


def test_the_gradient_norm_is_that_of_the_mean_loss_over_a_fixed_set_however_it_is_cut():
    workload = build_workload(METERED.workload)
    with seeding.seeded(3, "init"):
        model = workload.build_model()
    norms = [
        METRICS.make("gradient_norm", MetricInputs(workload, model, lambda batch: batch, size)).value()
        for size in (None, 100, 512)
    ]
    with seeding.seeded(0, "gradient norm"):
        batch = workload.training_stream(seeding.generator(0, "gradient norm")).next(GradientNorm.examples)
    loss = workload.example_losses(model, batch).mean()
    truth = math.sqrt(sum(float(part.square().sum()) for part in torch.autograd.grad(loss, list(model.parameters()))))
    assert norms == pytest.approx([truth] * 3, rel=1e-5)
    assert all(part.grad is None for part in model.parameters())
    with pytest.raises(ConfigError, match="needs whole tensors in one process"):
        METRICS.make("gradient_norm", MetricInputs(workload, model, lambda batch: batch, one_process=False))


@pytest.mark.parametrize("probe", kinds([Choice(name="split")], [None]))
def test_measuring_changes_nothing_of_the_training(probe):
    plain = run_trial(dataclasses.replace(METERED, probe=probe))
    measured = run_trial(dataclasses.replace(METERED, probe=probe, metrics=tuple(METRICS.names())))
    assert [row.value for row in measured.evaluations] == [row.value for row in plain.evaluations]
    for name, column in plain.steps.items():
        np.testing.assert_array_equal(measured.steps[name], column)
    assert set(measured.evaluations[-1].others) == set(METRICS.names()) == set(measured.directions)
    assert all(math.isfinite(value) for row in measured.evaluations for value in row.others.values())


def line(curve, *, batch: int, steps: int, parts: int = 7) -> float:
    """The training loss after so many steps whose losses lie on a curve of ln examples, observed in parts."""
    metric = TrainingLoss(SimpleNamespace())
    examples = batch * np.arange(1, steps + 1)
    losses = np.array([curve(math.log(max(1, seen - batch))) for seen in examples])
    for some in np.array_split(np.arange(steps), parts):
        metric.observe(examples[some], losses[some])
        state = metric.state()
        metric = TrainingLoss(SimpleNamespace())
        metric.load_state(state)
    return metric.value()


def test_a_loss_that_falls_on_a_line_of_log_examples_has_no_lag():
    def curve(x):
        return 5.0 - 0.4 * x

    for batch, steps in ((4, 1000), (4, 40), (64, 3)):
        assert line(curve, batch=batch, steps=steps) == pytest.approx(curve(math.log(batch * steps)), abs=1e-9)
    assert line(curve, batch=4, steps=1, parts=1) == pytest.approx(curve(0.0))


def test_a_trial_ends_where_its_training_loss_does_and_goes_on_from_a_checkpoint():
    target = Target(metric="training_loss", value=0.3)
    result = run_trial(dataclasses.replace(METERED, target=target, max_steps=4000, lr=0.05))
    assert result.status is TrialStatus.REACHED
    assert result.evaluations[-1].value < 0.3 <= result.evaluations[-2].value
    assert "validation_loss" in result.evaluations[-1].others
    assert abs(math.log(result.evaluations[0].value / result.evaluations[0].others["validation_loss"])) < 1.0


def test_a_sweep_asks_for_a_metric_of_its_workload_or_one_that_every_workload_has():
    sweep = small_sweep(target=UNRESOLVED, metric="gradient_norm")
    with pytest.raises(ConfigError, match="no target of its own: give --target VALUE, or a --budget"):
        resolve(sweep)
    asked = resolve(sweep, 0.5).target
    assert (asked.metric, asked.value, asked.direction) == ("gradient_norm", 0.5, "below")
    assert resolve(small_sweep(target=UNRESOLVED, metric="validation_loss")).target.value == 0.1
    assert resolve(sweep, 0.5).protocol_fingerprint != resolve(small_sweep(target=UNRESOLVED), 0.5).protocol_fingerprint


def test_the_noise_scale_is_that_of_the_gradient_before_it_is_clipped() -> None:
    clipped, plain = loop(), loop(clip_norm=None)
    for trial in (clipped, plain):
        trial.train_step(1)
        trial.columns.flush()
    one, other = clipped.columns.arrays(), plain.columns.arrays()
    for name in ("big_grad_sq_norm", "noise_trace"):
        np.testing.assert_array_equal(one[name], other[name])


def test_what_is_left_of_the_lag_is_of_second_order_as_stated():
    end = math.log(8 * 4000)
    bias = line(lambda x: 3.0 * (x - end) ** 2 - (x - end), batch=8, steps=4000)
    assert bias == pytest.approx(-6.0 / (POWER + 1) ** 2, rel=0.02)


def test_a_trial_that_is_picked_up_again_measures_what_it_would_have():
    config = dataclasses.replace(METERED, metrics=("training_loss",), probe=None)
    whole, resumed = (TrainingLoop(config, build_workload(config.workload), torch.device("cpu")) for _ in range(2))
    with seeding.seeded(0, "training"):
        start = whole.evaluate(0, 0.0, np.empty(0))
        for _ in range(6):
            whole.to_next_evaluation(start, None)
        saved = copy.deepcopy(whole.state())
        whole.to_next_evaluation(start, None)
        resumed.load_state(saved)
        assert resumed.validation.directions == whole.validation.directions == {"training_loss": "below"}
        resumed.to_next_evaluation(start, None)
    assert resumed.evaluations[-1] == whole.evaluations[-1]


@pytest.mark.parametrize(
    ("sees", "compiled", "refused"), [(False, True, True), (False, False, False), (True, True, False)]
)
def test_a_diagnostic_that_cannot_see_into_a_compiled_model_is_refused_there(
    monkeypatch: pytest.MonkeyPatch, sees: bool, compiled: bool, refused: bool
) -> None:
    monkeypatch.setattr("cbs.diagnostics.DIAGNOSTICS", SimpleNamespace(make=lambda _: SimpleNamespace(compiled=sees)))
    if refused:
        with pytest.raises(ConfigError, match="'mine' cannot see into a compiled model; use --set compile=false"):
            build_diagnostics(["mine"], compiled=compiled)
    else:
        assert len(build_diagnostics(["mine", "other"], compiled=compiled)) == 2

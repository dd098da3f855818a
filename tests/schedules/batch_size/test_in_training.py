"""Batch-size schedules in the training loop: what is trained, what is recorded, and where a killed trial goes on."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbs.errors import ConfigError
from cbs.optimizers.adam import AdamW
from cbs.schedules.batch_size import ClosedLoop, Observed, build_batch_schedule
from cbs.schedules.learning_rate import build_schedule
from cbs.training.batch_sizes import SEEN, observed, run_of
from cbs.training.run import run_trial
from cbs.trial.checkpoint import Checkpoint
from cbs.trial.config import Choice, EvaluationPlan, Schedule, TrialConfig
from cbs.trial.record import TrialResult, TrialStatus
from cbs.trial.store import Store
from cbs.workloads import build_workload
from tests.factories import quadratic
from tests.kinds import kinds

CONFIG = quadratic("sgd(momentum=0.5)", {"dimension": 20}, target=1e-9, lr=0.05, batch_size=6, seed=5, max_steps=150)

STAGES = Choice(name="stages", options={"table": "0:6 100:16 301:40 700:9", "lr_exponent": 0.5})
NORM_TEST = Choice(name="norm_test", options={"theta": 0.9, "measurements": 20, "cap": 64})
EVERY_STEP = Choice(name="auto", options={"every": 1})


def config_with(**changes: Any) -> TrialConfig:
    return dataclasses.replace(CONFIG, **changes)


def same(one: TrialResult, other: TrialResult) -> bool:
    """Whether two trials were the same, bit for bit."""
    assert list(one.steps) == list(other.steps)
    columns = all(np.array_equal(one.steps[name], other.steps[name], equal_nan=True) for name in one.steps)
    return columns and repr(one.evaluations) == repr(other.evaluations) and one.status is other.status


class Killed(Exception):
    pass


class KilledAfter(Checkpoint):
    """Writes at every evaluation from some step on, then dies."""

    def __init__(self, path: Path, step: int) -> None:
        super().__init__(path, seconds=0.0)
        self._step = step

    def due(self) -> bool:
        return True

    def save(self, state: dict[str, Any]) -> None:
        if state["evaluations"][-1]["step"] >= self._step:
            super().save(state)
            raise Killed


def resumed(config: TrialConfig, folder: Path, step: int) -> TrialResult:
    path = folder / "state.pt"
    path.unlink(missing_ok=True)
    with pytest.raises(Killed):
        run_trial(config, checkpoint=KilledAfter(path, step))
    return run_trial(config, checkpoint=Checkpoint(path))


@pytest.mark.parametrize("probe", [None, Choice(name="auto")])
def test_a_schedule_of_one_stage_leaves_the_same_bytes_as_none(probe: Choice | None, tmp_path: Path) -> None:
    config = config_with(probe=probe, schedule=Schedule(name="cosine", warmup_examples=60, decay_examples=900))
    plain = run_trial(config)
    constant = run_trial(dataclasses.replace(config, batch_schedule=Choice(name="constant")))
    for result, folder in ((plain, "a"), (constant, "b")):
        Store(tmp_path / folder).save(result)
    for name in ("record.parquet", "steps.parquet"):
        one, other = (next((tmp_path / folder).glob(f"trials/*/{name}")).read_bytes() for folder in "ab")
        assert one == other
    stage = run_trial(dataclasses.replace(config, batch_schedule=Choice(name="stages", options={"table": "0:6"})))
    assert np.array_equal(stage.steps.pop("lr_factor"), np.ones(150))
    assert same(stage, plain)


def test_every_step_has_the_batch_of_its_stage_and_the_learning_rate_follows_examples_and_stage_alone() -> None:
    config = config_with(
        batch_schedule=STAGES,
        schedule=Schedule(name="linear", warmup_examples=50, decay_examples=900),
        evaluation=EvaluationPlan(growth=1.0001, far_growth=1.0001),
    )
    result = run_trial(config)
    sizes, examples = result.steps["batch_size"], result.steps["examples"]
    assert sizes.tolist() == [6] * 17 + [16] * 13 + [40] * 10 + [9] * 21
    assert examples.tolist() == np.cumsum(sizes).tolist()
    assert [row.examples for row in result.evaluations] == [0, *examples]
    assert config.max_examples - 9 < examples[-1] <= config.max_examples == 900
    assert result.status is TrialStatus.BUDGET_EXHAUSTED
    assert "61 steps" in result.message
    multiplier = build_schedule(config.schedule)
    wanted = [0.05 * math.sqrt(size / 6) * multiplier(seen) for size, seen in zip(sizes, examples, strict=True)]
    assert [row.lr for row in result.evaluations[1:]] == pytest.approx(wanted, rel=1e-12)
    np.testing.assert_allclose(result.steps["lr_factor"], np.sqrt(sizes / 6))


def test_probe_and_micro_batches_are_planned_again_at_a_switch() -> None:
    workload = build_workload(CONFIG.workload)
    sizes: list[int] = []
    inner = workload.example_losses
    workload.example_losses = lambda model, batch: sizes.append(len(batch)) or inner(model, batch)  # type: ignore[method-assign, func-returns-value]
    table = Choice(name="stages", options={"table": "0:6 240:32"})
    config = config_with(batch_schedule=table, micro_batch_size=8, probe=Choice(name="accumulation"), max_steps=80)
    steps = run_trial(config, workload=workload).steps
    assert steps["batch_size"].tolist() == [6] * 40 + [32] * 7
    # 64 examples to a measurement: every tenth step of 6 examples, every second of 32, counted from the first of all
    measured = np.flatnonzero(np.isfinite(steps["noise_trace"])).tolist()
    assert measured == [0, 10, 20, 30, 40, 42, 44, 46]
    small = steps["small_batch_size"][measured]
    np.testing.assert_allclose(small, [3.0] * 4 + [8.0] * 4)
    # before the first step is cut, its gradient is compared with that of smaller passes
    assert sizes[:4] == [6, 2, 2, 2]
    assert sizes[4:] == [6 if step % 10 else 3 for step in range(40) for _ in range(1 if step % 10 else 2)] + [8] * 28
    # the moments are those of the whole step: their estimates agree with the truth in either stage
    truth = float(sum(index**-1.0 for index in range(1, 21)))
    many = run_trial(config_with(batch_schedule=STAGES, probe=EVERY_STEP)).steps
    for size in (6, 16, 40):
        chosen = many["noise_trace"][many["batch_size"] == size]
        assert chosen.mean() == pytest.approx(truth, abs=5 * chosen.std() / math.sqrt(len(chosen)))


@settings(max_examples=3, deadline=None)
@given(st.lists(st.tuples(st.integers(20, 120), st.integers(1, 20)), min_size=1, max_size=4), st.integers(1, 25))
def test_resuming_inside_any_stage_is_bitwise_and_the_learning_rate_depends_on_examples_and_stage_alone(
    tmp_path_factory: pytest.TempPathFactory, stages: list[tuple[int, int]], step: int
) -> None:
    starts = np.cumsum([30, *(length for length, _ in stages[:-1])])
    table = " ".join(["0:6", *(f"{start}:{size}" for start, (_, size) in zip(starts, stages, strict=True))])
    config = config_with(
        batch_schedule=Choice(name="stages", options={"table": table, "lr_exponent": 0.5}), max_steps=80,
        schedule=Schedule(name="linear", warmup_examples=50, decay_examples=480),
    )  # fmt: skip
    whole = run_trial(config)
    assert same(resumed(config, tmp_path_factory.mktemp("state"), min(step, whole.final_step)), whole)
    multiplier = build_schedule(config.schedule)
    for row in whole.evaluations[1:]:
        size = whole.steps["batch_size"][row.step - 1]
        assert row.lr == pytest.approx(config.lr * math.sqrt(size / 6) * multiplier(row.examples), rel=1e-12)


@pytest.mark.parametrize(
    ("name", "step"), kinds([("noise_rule", 60), ("doubling", 7)], [("norm_test", 7), ("dual_norm", 60)])
)
def test_resuming_a_closed_loop_run_is_bitwise(name: str, step: int, tmp_path: Path) -> None:
    own = {"noise_rule": {"price": 40.0}, "doubling": {}}.get(name, {"theta": 0.9})
    assert_resumed_bitwise(tmp_path, name, step, own)


def assert_resumed_bitwise(tmp_path: Path, name: str, step: int, options: dict[str, float]) -> None:
    choice = Choice(name=name, options={"measurements": 20, "cap": 64, **options})
    config = config_with(
        batch_schedule=choice, probe=EVERY_STEP, max_steps=150,
        optimizer=Choice(name="adamw" if name == "dual_norm" else "sgd"), lr=0.02 if name == "dual_norm" else 0.1,
    )  # fmt: skip
    whole = run_trial(config)
    assert len(set(whole.steps["batch_size"])) > 1
    assert same(resumed(config, tmp_path, step), whole)


def test_decisions_are_rows_and_replay_from_them() -> None:
    config = config_with(batch_schedule=NORM_TEST, probe=EVERY_STEP, max_steps=400)
    steps = run_trial(config).steps
    rule = build_batch_schedule(NORM_TEST, run_of(config, None))
    assert isinstance(rule, ClosedLoop)
    stage, sizes = rule.first, []
    for row in range(len(steps["step"])):
        sizes.append(stage.batch_size)
        low, value, high = (None if np.isnan(steps[name][row]) else float(steps[name][row]) for name in SEEN)
        if (row + 1) % 20 == 0:
            stage = rule.decide(int(steps["examples"][row]), Observed(stage=stage, low=low, value=value, high=high))
        else:
            assert low is None
    assert sizes == steps["batch_size"].tolist()
    assert len(set(sizes)) > 1
    np.testing.assert_array_equal(np.diff(sizes) >= 0, True)
    # what it saw are the moments of the twenty steps before
    for row in np.flatnonzero(np.isfinite(steps["seen"])):
        signal, noise = (steps[name][row - 19 : row + 1] for name in ("grad_sq_norm", "noise_trace"))
        assert steps["seen"][row] == noise.mean() / signal.mean()


@pytest.mark.parametrize(
    ("name", "options", "low"),
    [
        ("norm_test", {"theta": 0.5}, 0.9 * 6 * 0.25),
        ("dual_norm", {"theta": 0.5}, 0.9 * 6 * 0.25),
        ("doubling", {}, 11.0),
    ],
)
def test_a_rule_grows_where_the_lower_end_of_the_interval_asks_for_it(name: str, options: dict, low: float) -> None:
    choice = Choice(name=name, options={"measurements": 20, "cap": 4096, **options})
    config = config_with(batch_schedule=choice, batch_size=6)
    rule = build_batch_schedule(choice, run_of(config, None))
    assert isinstance(rule, ClosedLoop)
    assert rule.first.batch_size == 6
    seen = Observed(stage=rule.first, low=low, value=1e3, high=1e4)
    assert rule.decide(10**6, seen) == rule.first
    assert rule.decide(10**6, dataclasses.replace(seen, low=100.0)).batch_size > 6


def test_options_in_examples_follow_the_batch_size() -> None:
    options = {"beta2_half_life": 500, "weight_decay_timescale": 4000}
    config = config_with(optimizer=Choice(name="adamw", options=options), batch_schedule=STAGES, probe=None)
    seen: list[tuple[int, float, float]] = []
    inner = AdamW.step

    def step(self: Any, *args: Any) -> Any:
        (group,) = self.param_groups
        seen.append((0, group["betas"][1], group["weight_decay"]))
        return inner(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AdamW, "step", step)
        sizes = run_trial(config).steps["batch_size"]
    np.testing.assert_allclose([beta2 for _, beta2, _ in seen], 2.0 ** (-sizes / 500))
    np.testing.assert_allclose([decay for *_, decay in seen], sizes / (0.05 * np.sqrt(sizes / 6) * 4000))


def test_a_rule_that_looks_needs_a_probe() -> None:
    with pytest.raises(ConfigError, match="needs a probe"):
        run_trial(config_with(batch_schedule=NORM_TEST, probe=None))


def grown(name: str, options: dict[str, Any], true_noise_scale: float, seed: int, looks: int = 8) -> list[int]:
    """Batch sizes after every look at a stream of independent, noisy moments."""
    rule = build_batch_schedule(Choice(name=name, options=options), run_of(config_with(batch_size=64), None))
    assert isinstance(rule, ClosedLoop)
    rng, stage, found = np.random.default_rng(seed), rule.first, []
    for _ in range(looks):
        signal, noise = rng.normal(1.0, 2.0, 100), true_noise_scale * rng.normal(1.0, 0.5, 100)
        stage = rule.decide(10**6, observed(rule, stage, signal, noise))
        found.append(stage.batch_size)
    return found


@pytest.mark.parametrize(
    ("name", "options", "noise_scale"),
    # below the batch; a tenth below twice the batch, where it would grow; a fifth below where the norm test grows
    kinds([("doubling", {}, 0.9 * 128)], [("doubling", {}, 60.0), ("norm_test", {"theta": 0.95}, 0.8 * 64 * 0.95**2)]),
)
def test_a_rule_rarely_grows_where_the_noise_scale_is_below_its_threshold(
    name: str, options: dict[str, Any], noise_scale: float
) -> None:
    most = np.array([max(grown(name, options, noise_scale, seed)) for seed in range(300)])
    assert (most > 64).mean() <= (
        0.0 if noise_scale < 64 and name == "doubling" else 0.1 if name == "doubling" else 0.05
    )


def test_doubling_comes_within_a_few_looks_where_the_noise_scale_is_far_above_twice_the_batch() -> None:
    first = [grown("doubling", {}, 6 * 64, seed, looks=3)[-1] for seed in range(20)]
    assert np.mean(np.array(first) > 64) >= 0.95

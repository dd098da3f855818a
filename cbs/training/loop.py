"""The training loop: model, optimizer and data of one trial, step by step and evaluation by evaluation."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils import clip_grad_norm_
from torch.utils._pytree import tree_map

from cbs.compute import device as devices
from cbs.compute import seeding
from cbs.compute.beside import evaluating
from cbs.compute.finite import loss_not_finite, tensor_not_finite
from cbs.compute.pass_sizes import micro_sizes
from cbs.compute.sharding import parted, parted_state, whole
from cbs.diagnostics import Diagnostic, build_diagnostics
from cbs.errors import CbsError, ConfigError, out_of_memory, reason
from cbs.noise_scale.probe import AUTO, FALLBACK, REPLICAS
from cbs.optimizers import build_optimizer
from cbs.optimizers.problem import ProblemOptimizer, check_clipping
from cbs.optimizers.scaling import Rescaling
from cbs.schedules.batch_size import Run, build_batch_schedule
from cbs.schedules.learning_rate import build_schedule
from cbs.training.averaging import build_averaging
from cbs.training.averaging.weights import averaged_weights, trained_weights
from cbs.training.batch_sizes import LR_FACTOR, SEEN, BatchSizes
from cbs.training.checks import check_losses, check_model, check_optimizer
from cbs.training.micro_batches import PassTooLarge, split_batch
from cbs.training.probe_columns import ProbeColumns, build_probe
from cbs.training.problem import problem_of
from cbs.training.ranks import ALONE, Ranks
from cbs.training.step_columns import StepColumns
from cbs.training.step_passes import StepPasses
from cbs.trial.checkpoint import Checkpoint
from cbs.trial.config import TrialConfig
from cbs.trial.ending import Ending, Monitor, ended, ended_at_start, exhausted
from cbs.trial.record import CLIPPED, Measurement, TrialStatus
from cbs.workloads import Workload
from cbs.workloads.base import Batch
from cbs.workloads.streams import skip

UNMEASURED = "the noise scale is not measured: "


@dataclass
class TrainingLoop:
    """A trial under way: model, optimizer, data and what was measured so far.

    Attributes:
        config: what is trained.
        workload: model, data and metric.
        device: where, see :func:`cbs.compute.device.pick`.
        ranks: the workers that take every step together.
        most: examples of a forward and backward pass that memory holds, where that is known to be less than
            configured.
    """

    config: TrialConfig
    workload: Workload
    device: torch.device
    ranks: Ranks = ALONE
    most: int | None = None

    def __post_init__(self) -> None:
        config = self.config
        self.ranks.check(config)
        self.micro_batch_size = smaller(config.micro_batch_size, self.most)
        self.diagnostics = build_diagnostics(config.diagnostics, compiled=config.compile)
        with seeding.seeded(config.seed, "init"):
            self.model = self.ranks.placed(check_model(self.workload.build_model()), self.device)
        if not self.model.training:  # as models come that are loaded; a part alone that does not train is meant so
            self.model.train()
        cut = self.most is not None and self.most < micro_sizes(config.batch_size, config.micro_batch_size)[0]
        if cut and any(isinstance(module, _BatchNorm) for module in self.model.modules()):
            raise MemoryError(
                f"memory holds passes of {self.micro_batch_size} examples only, and batch normalisation in smaller "
                "passes is another model; to train that one at every batch size: --set micro_batch_size=N"
            )
        self.optimizer = build_optimizer(config.optimizer, self.model, config.lr, config.batch_size)
        check_optimizer(self.optimizer, self.model, config.optimizer.name)
        trained_weights(self.optimizer)
        if isinstance(self.optimizer, ProblemOptimizer):
            if self.ranks.world > 1:
                raise ConfigError(
                    f"optimizer {config.optimizer.name!r} evaluates the model itself, and would see one worker's "
                    "examples: use one worker per trial"
                )
            self.optimizer.attach(problem_of(self.workload, self.model, config, self.device, self.micro_batch_size))
        check_clipping(self.optimizer, config.clip_norm)
        self.average = (
            build_averaging(config.averaging, self.model, self.optimizer) if config.averaging is not None else None
        )
        self.base_lrs = [group["lr"] for group in self.optimizer.param_groups]
        self.called: nn.Module = torch.compile(self.model) if config.compile else self.model  # type: ignore[assignment]
        self.trained = self.ranks.wrapped(self.called)
        self.stream = self.workload.training_stream(seeding.generator(config.seed, "data"))
        self.probe = self.build_probe() if config.probe is not None else None
        self.passes = StepPasses(
            self.model,
            self.workload.example_losses,
            self.micro_batch_size,
            self.probe.probe if self.probe and self.ranks.world == 1 else None,
        )
        schedule = build_batch_schedule(config.batch_schedule, run_of(config, self.workload.tokens_per_example))
        self.multiplier = schedule.multiplier or build_schedule(config.schedule)
        measured = self.probe.names if self.probe else ()
        self.sizes = BatchSizes(schedule, measured, self.probe.geometries if self.probe else ())
        self.rescaling = Rescaling(config.optimizer, self.optimizer, config.lr, config.batch_size)
        if config.batch_schedule is not None:
            self.rescaling.to(config.batch_size, config.lr)  # refuses now what it could not do at a switch
        planned = (*([LR_FACTOR] if config.batch_schedule else ()), *(SEEN if self.sizes.closed else ()))
        self.columns = StepColumns((*measured, *((CLIPPED,) if config.clip_norm else ())), planned)
        self.before_clipping: Callable[[], object] = lambda: None
        self.alive: Callable[[int], object] = lambda step: None
        self.seen = 0
        self.batch_size = self.in_pass = self.largest_pass = config.batch_size
        self.evaluations: list[Measurement] = []
        self.training_seconds = self.evaluation_seconds = 0.0

    def curve(self) -> tuple[list[int], list[float]]:
        """Steps and values of the evaluations so far."""
        return [row.step for row in self.evaluations], [row.value for row in self.evaluations]

    def run(self, monitor: Monitor | None, checkpoint: Checkpoint | None = None) -> Ending:
        """Train to the end."""
        config = self.config
        if not self.evaluations:
            self.evaluate(step=0, lr=0.0, losses=np.empty(0))
        start = self.evaluations[0]
        ending = ended_at_start(config, start)
        while ending is None:
            if not self.room():
                return exhausted(config, self.evaluations[-1])
            ending = self.to_next_evaluation(start, monitor)
            if ending is None and checkpoint is not None and self.ranks.agreed(checkpoint.due(), self.device):
                state = self.state()
                if self.ranks.first:
                    checkpoint.save(state)
        return ending

    def to_next_evaluation(self, start: Measurement, monitor: Monitor | None) -> Ending | None:
        """Train up to the next evaluation and take it; returns how the trial ended there, if it did."""
        config, target = self.config, self.config.target
        before = self.evaluations[-1]
        near = target.distance(before.value) <= config.evaluation.near_fraction * target.distance(start.value)
        step = before.step
        next_evaluation = config.evaluation.next_step(step, near=near)
        started = time.perf_counter()
        failure = None
        while step < next_evaluation and self.room() and failure is None:
            step += 1
            try:
                lr = self.train_step(step)
            except (CbsError, MemoryError):
                raise
            except Exception as error:  # noqa: BLE001 - raised below, unless it comes of what is not finite
                failure = error
            self.alive(step)
        losses = self.columns.flush()[:, 0]
        self.training_seconds += time.perf_counter() - started
        diverged = loss_not_finite(losses, before.step + 1)
        if failure is not None:
            # Sharded weights are not asked: ranks would have to do that together, and one of them may have failed.
            diverged = diverged or (None if self.ranks.shard else tensor_not_finite(self.model, self.optimizer))
            if diverged is None:
                raise failure
            diverged += f"; step {step} raised {type(failure).__name__}: {reason(failure)}"
        if diverged is not None:
            return TrialStatus.DIVERGED, diverged
        return ended(config, start, self.evaluate(step, lr, losses), monitor)

    def room(self) -> bool:
        """Whether the budget of examples holds another step."""
        return self.seen + self.sizes.at(self.seen).batch_size <= self.config.max_examples

    def resume(self, saved: dict[str, Any], checkpoint: Checkpoint) -> bool:
        """Go on from what a checkpoint held; whether this loop can run: not if it refused what it was given."""
        try:
            self.load_state(saved)
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            if out_of_memory(error):
                raise
            if self.ranks.first:
                checkpoint.refuse(f"{type(error).__name__}: {reason(error)}")
            return False
        return True

    def state(self) -> dict[str, Any]:
        """Everything that a later process needs to go on from the latest evaluation."""
        return {
            "model": self._whole(self.model.state_dict()),
            "optimizer": self._whole(self.optimizer.state_dict()),
            "average": self.average.state_dict() if self.average else {},
            "columns": torch.from_numpy(self.columns.table()),
            "planned": torch.from_numpy(self.columns.planned()),
            "batch_sizes": self.sizes.state_dict(),
            "column_names": list(self.columns.names),
            "probe_source": self.probe.source if self.probe else "",
            "probe_stopped": self.probe.probe.stopped if self.probe else "",
            "probe_passes": self.passes.state,
            "evaluations": [dataclasses.asdict(row) for row in self.evaluations],
            "seconds": (self.training_seconds, self.evaluation_seconds),
            "random": seeding.states(),
            "micro_batch_size": self.micro_batch_size,
        }

    def _whole(self, state: Any) -> Any:
        return whole(state, keep=self.ranks.first) if self.ranks.shard else state

    def load_state(self, state: dict[str, Any]) -> None:
        """Go back to :meth:`state`; the training stream goes on after the examples seen so far."""
        model, optimizer = state["model"], state["optimizer"]
        if self.ranks.shard:
            model = parted(model, self.model.state_dict())
            groups = self.optimizer.param_groups
            optimizer = parted_state(optimizer, [weight for group in groups for weight in group["params"]])
        self.model.load_state_dict(model)
        self.optimizer.load_state_dict(optimizer)
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        # checkpoints from before there were batch schedules do not say what a step held
        rows = torch.full((len(state["columns"]), 1), float(self.config.batch_size), dtype=torch.float64)
        planned = state.get("planned", rows).numpy()
        self.columns.restore(state["columns"].numpy(), state["column_names"], planned)
        self.sizes.load_state_dict(state.get("batch_sizes") or self.sizes.state_dict())
        self.evaluations = [Measurement(**row) for row in state["evaluations"]]
        self.training_seconds, self.evaluation_seconds = state["seconds"]
        done = self.evaluations[-1].step
        sizes = [int(size) for size in planned[:, 0]]
        self.seen = sum(sizes)
        recorded = len(self.columns.table())
        if not (0 <= done == recorded and self.seen <= self.config.max_examples):
            raise ValueError(
                f"{recorded} steps recorded at step {done}, {self.seen} examples of a budget of "
                f"{self.config.max_examples}"
            )
        if self.probe is not None:
            self.probe.plan(sizes[-1] if sizes else self.config.batch_size)
            self.probe.start_at(done, state["probe_source"], state["probe_stopped"])
            self.passes.state = tuple(state["probe_passes"])
        if sizes:
            self.batch_size = sizes[-1]
        skip(self.stream, sizes)
        if self.ranks.first:
            seeding.set_states(state["random"])
        else:  # what is saved is the first rank's, and the others draw other numbers
            seeding.start(self.config.seed, self.ranks.purpose(f"training from step {done}"))

    def train_step(self, step: int) -> float:
        """One optimizer update; returns its learning rate.

        Raises:
            PassTooLarge: if memory is full; the loop cannot go on.
        """
        try:
            return self._step(step)
        except Exception as error:
            if not out_of_memory(error):
                raise
            raise PassTooLarge(self.largest_pass, reason(error)) from error

    def _step(self, step: int) -> float:
        config, stage = self.config, self.sizes.at(self.seen)
        if stage.batch_size != self.batch_size:
            self.batch_size = stage.batch_size
            self.rescaling.to(stage.batch_size, config.lr * stage.lr_factor)
            if self.probe is not None:
                self.probe.plan(stage.batch_size)
        self.seen += stage.batch_size
        multiplier = stage.lr_factor * self.multiplier(self.seen)
        lrs = [base * multiplier for base in self.base_lrs]
        for group, lr in zip(self.optimizer.param_groups, lrs, strict=True):
            group["lr"] = lr
        share, own = self.ranks.share(
            self.stream.next(stage.batch_size), stage.batch_size, equal=self.probe is not None
        )
        batch = self.to_device(own)
        watching = self.diagnostics if (step - 1) % config.diagnostics_every == 0 else ()
        loss = self.accumulate(batch, share, watching)
        seen = {name: value for diagnostic in watching for name, value in diagnostic.columns().items()}
        watching_noise = self.probe is not None and self.probe.watching
        measured = self.probe.step() if self.probe else ()
        planned: list[float] = [stage.lr_factor] if config.batch_schedule else []
        if self.sizes.closed:
            nothing = (math.nan,) * len(SEEN)
            planned += self.sizes.look(self.seen, measured) if watching_noise else nothing
        self.before_clipping()
        self.columns.append(stage.batch_size, [loss, *measured, *self.clip()], seen, planned)
        if isinstance(self.optimizer, ProblemOptimizer):
            self.optimizer.observe(batch)
        self.optimizer.step()
        if [group["lr"] for group in self.optimizer.param_groups] != lrs:
            raise ConfigError(
                f"optimizer {config.optimizer.name!r} changes the learning rate of its param_groups in step(), which "
                "the schedule of the sweep sets: keep what it multiplies it by elsewhere"
            )
        if self.average is not None:
            self.average.update(self.seen, stage.batch_size)
        return config.lr * multiplier

    def clip(self) -> list[Tensor]:
        """Scale the gradient down to ``clip_norm`` if it is longer; 1 if it was, else 0, nothing without a norm."""
        limit = self.config.clip_norm
        if limit is None:
            return []
        norm = clip_grad_norm_(self.model.parameters(), limit)
        return [((whole(norm) if self.ranks.shard else norm) > limit).double()]

    def accumulate(self, batch: Batch, examples: int, watching: Sequence[Diagnostic] = ()) -> Tensor:
        """Fill every ``.grad`` with the gradient of the step's mean loss; returns that loss.

        Args:
            batch: this rank's part of the step.
            examples: in it.
            watching: diagnostics that see the forward passes.
        """
        self.optimizer.zero_grad(set_to_none=True)
        losses = []
        sizes = self.passes.sizes(batch, examples)
        self.largest_pass = sizes[0]
        for index, (size, part) in enumerate(split_batch(batch, sizes)):
            self.in_pass = size
            with contextlib.ExitStack() as stack:
                stack.enter_context(self.ranks.averaging(self.trained, last=index == len(sizes) - 1))
                for diagnostic in watching:
                    stack.enter_context(diagnostic)
                with devices.autocast(self.device, self.config.precision):
                    loss = check_losses(self.workload.example_losses(self.trained, part), size).mean()
                if size * self.ranks.world != self.batch_size:
                    loss = loss * (size * self.ranks.world / self.batch_size)
                loss.backward()
            losses.append(loss.detach())
        return self.ranks.mean(torch.stack(losses).sum())

    @property
    def note(self) -> str:
        """Why the noise scale is not measured, one line; empty if it is."""
        why = self.probe.probe.stopped if self.probe else ""
        return f"{UNMEASURED}{why}" if why else ""

    def build_probe(self) -> ProbeColumns:
        """The configuration's probe; examples are counted here, so a workload may call its model as it likes."""
        assert self.config.probe is not None
        choice = self.config.probe
        if choice.name == AUTO and (self.config.compile or self.ranks.world > 1):
            choice = dataclasses.replace(choice, name=REPLICAS if self.ranks.world > 1 else FALLBACK)
        return ProbeColumns(
            build_probe(
                choice, self.trained, self.optimizer, self.config.batch_size, count=lambda args, kwargs: self.in_pass
            ),
            choice,
        )

    def evaluate(self, step: int, lr: float, losses: np.ndarray) -> Measurement:
        """Measure the validation metric and append it to the curve."""
        started = time.perf_counter()
        value = self.ranks.agreed(self.validated() if self.ranks.first or self.ranks.shard else math.nan, self.device)
        self.ranks.check_alike(self.model)
        measurement = Measurement(
            step=step,
            examples=self.seen,
            value=value,
            train_loss=float(losses.mean()) if len(losses) else math.nan,
            lr=lr,
        )
        self.evaluations.append(measurement)
        self.evaluation_seconds += time.perf_counter() - started
        self.alive(step)
        return measurement

    def validated(self) -> float:
        """The validation metric. What it draws at random is the same every time, and not what training draws."""
        with (
            evaluating(self.model),
            seeding.seeded(0, "validation"),
            averaged_weights(self.optimizer, self.average),
            torch.no_grad(),
            devices.autocast(self.device, self.config.precision),
        ):
            try:
                return float(self.workload.validate(self.called))
            except Exception as error:
                told = isinstance(error, CbsError) or out_of_memory(error) or not self.evaluations
                if told or self.ranks.shard or tensor_not_finite(self.model) is None:
                    raise
                return math.nan  # a metric that refuses what such a model says

    def to_device(self, batch: Batch) -> Batch:
        """The batch with every tensor on the trial's device."""
        return tree_map(
            lambda leaf: leaf.to(self.device, non_blocking=True) if isinstance(leaf, Tensor) else leaf, batch
        )


def smaller(one: int | None, other: int | None) -> int | None:
    """The smaller of two limits, ``None`` for no limit."""
    return min((limit for limit in (one, other) if limit is not None), default=None)


def run_of(config: TrialConfig, tokens_per_example: int | None) -> Run:
    """What a batch schedule needs to know of a trial."""
    return Run(
        batch_size=config.batch_size,
        examples=config.max_examples,
        lr_schedule=config.schedule,
        tokens_per_example=tokens_per_example,
    )

"""The training loop of a trial, step by step and evaluation by evaluation."""

import math
import time

import numpy as np

from cbs.errors import CbsError, ConfigError, out_of_memory, reason
from cbs.training.assembly import Assembly
from cbs.training.parents import KeptCheckpoints
from cbs.training.parts import TrainingStep
from cbs.training.passes import PassTooLarge
from cbs.training.validation import tensor_not_finite
from cbs.trial.checkpoint import Checkpoint
from cbs.trial.ending import Ending, Monitor, ended, ended_at_start, exhausted, value_of
from cbs.trial.record import Measurement, TrialStatus


class TrainingLoop(Assembly):
    """A trial in progress; arguments and attributes are those of :class:`~cbs.training.assembly.Assembly`."""

    kept: KeptCheckpoints | None = None

    def curve(self) -> tuple[list[int], list[float]]:
        """Return the steps and the metric values of the evaluations so far."""
        return [row.step for row in self.evaluations], [row.value for row in self.evaluations]

    def run(
        self, monitor: Monitor | None, checkpoint: Checkpoint | None = None, kept: KeptCheckpoints | None = None
    ) -> Ending:
        """Train until the trial ends; return its ending."""
        self.kept = kept
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
        """Train up to the next evaluation and take it; return the ending if the trial ended there."""
        config, before = self.config, self.evaluations[-1]
        latest, *earlier = ((row.step, self._share(start, row)) for row in self.evaluations[:-3:-1])
        step = before.step
        next_evaluation = config.evaluation.next_step(*latest, *earlier)
        started = time.perf_counter()
        failure = None
        while step < next_evaluation and self.room() and failure is None:
            step += 1
            try:
                lr = self.train_step(step)
            except (CbsError, MemoryError):
                raise
            except Exception as error:  # noqa: BLE001 - raised below unless a value that is not finite caused it
                failure = error
            if self.kept is not None and failure is None and self.kept.due(self.seen):
                self.kept.write(self.birth_state, self.seen, first=self.ranks.first)
            self.alive(step)
        # Only here, once per evaluation: reading a loss after every step would wait for the device.
        losses = self.columns.flush()[:, 0]
        self.training_seconds += time.perf_counter() - started
        # A loss that is not finite goes before the exception of the step that it made fail.
        finite, diverged = np.isfinite(losses), None
        if not finite.all():
            diverged = f"training loss is not finite at step {before.step + 1 + int(finite.argmin())}"
        if failure is not None:
            # Sharded weights are not checked: that needs all ranks, and one of them may have failed.
            diverged = diverged or (None if self.ranks.shard else tensor_not_finite(self.model, self.optimizer))
            if diverged is None:
                raise failure
            diverged += f"; step {step} raised {type(failure).__name__}: {reason(failure)}"
        if diverged is not None:
            return TrialStatus.DIVERGED, diverged
        self.evaluate(step, lr, losses)
        return ended(config, self.evaluations, monitor)

    def _share(self, start: Measurement, row: Measurement) -> float:
        """Return the distance to the nearest target as a share of that at the start; 0 where one is passed or its
        distance undefined."""
        shares = []
        for target in self.config.targets:
            first, latest = (target.distance(value_of(self.config, target, each)) for each in (start, row))
            shares.append(latest / first if first > 0 and latest > 0 else 0.0)
        return min(shares)

    def room(self) -> bool:
        """Whether the budget of examples has room for another step."""
        return self.seen + self.sizes.at(self.seen).batch_size <= self.config.max_examples

    def train_step(self, number: int) -> float:
        """Run one optimizer update; return its learning rate.

        Raises:
            PassTooLarge: if memory is full; the loop cannot continue.
        """
        try:
            return self._step(number)
        except Exception as error:
            if not out_of_memory(error):
                raise
            raise PassTooLarge(self.gradient.largest_pass, reason(error)) from error

    def _step(self, number: int) -> float:
        config, optimizer = self.config, self.optimizer
        stage = self.sizes.at(self.seen)
        # Before the step: schedules are functions of the examples seen including its own.
        self.seen += stage.batch_size
        step = TrainingStep(number, stage, self.seen)
        for part in self.parts:
            part.begin(step)
        multiplier = stage.lr_factor * self.multiplier(self.seen)
        lrs = [base * multiplier for base in self.base_lrs]
        for group, lr in zip(optimizer.param_groups, lrs, strict=True):
            group["lr"] = lr
        # every rank draws the whole batch, so that the examples are the same on any number of ranks
        batch = self.stream.next(stage.batch_size)
        examples, own = self.ranks.share(batch, stage.batch_size, equal=self.noise_scale is not None)
        step.batch = self.to_device(own)
        step.values["train_loss"] = self.gradient.compute(step, examples)
        for part in self.parts:
            part.before_step(step)
        optimizer.step()
        # Otherwise the search would choose among learning rates that were never used.
        if [group["lr"] for group in optimizer.param_groups] != lrs:
            raise ConfigError(
                f"optimizer {config.optimizer.name!r} changes the learning rate of its param_groups in step(), but the "
                "schedule of the sweep sets it: keep a factor of your own in another variable"
            )
        for part in self.parts:
            part.after_step(step)
        return config.lr * multiplier

    def evaluate(self, step: int, lr: float, losses: np.ndarray) -> Measurement:
        """Measure the validation metric and append it to the curve."""
        started = time.perf_counter()
        values = {self.config.target.metric: math.nan}
        if self.ranks.first or self.ranks.shard:  # a forward pass of a sharded model needs all ranks
            sizes = self.columns.batch_sizes()
            values = self.validation.measure(np.cumsum(sizes, dtype=np.int64)[len(sizes) - len(losses) :], losses)
        for target in self.config.targets:
            # by it ranks decide whether to go on, and one that ends alone leaves the others waiting
            values[target.metric] = self.ranks.agreed(values.get(target.metric, math.nan), self.device)
        value = values.pop(self.config.target.metric)
        self.ranks.check_alike(self.model)
        train_loss = float(losses.mean()) if len(losses) else math.nan
        measurement = Measurement(
            step=step, examples=self.seen, value=value, train_loss=train_loss, lr=lr, others=values
        )
        self.evaluations.append(measurement)
        self.evaluation_seconds += time.perf_counter() - started
        self.alive(step)
        return measurement

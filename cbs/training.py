"""The training loop: one configuration in, one result out."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.utils._pytree import tree_flatten, tree_map

from cbs import seeding
from cbs.averaging import build_averaging
from cbs.averaging.weights import averaged_weights
from cbs.checkpoint import Checkpoint
from cbs.config import TrialConfig
from cbs.diagnostics import Diagnostic, build_diagnostics
from cbs.ending import Ending, Monitor, ended, ended_at_start
from cbs.errors import ConfigError
from cbs.noise_scale.columns import ProbeColumns, build_probe
from cbs.noise_scale.probe import AUTO
from cbs.optimizers import build_optimizer
from cbs.optimizers.problem import Problem, ProblemOptimizer, check_clipping
from cbs.record import CLIPPED, Measurement, TrialResult, TrialStatus, WorkloadInfo
from cbs.schedules import build_schedule
from cbs.step_columns import StepColumns
from cbs.workloads import Workload, build_workload
from cbs.workloads.base import Batch, PredictiveWorkload


def run_trial(
    config: TrialConfig,
    *,
    workload: Workload | None = None,
    monitor: Monitor | None = None,
    checkpoint: Checkpoint | None = None,
) -> TrialResult:
    """Train until the target is reached, the trial diverges, the budget is spent, or the monitor stops it.

    Bitwise repeatable for a configuration on one machine at one thread count. Divergence and an exhausted budget are
    statuses of the result, not exceptions.

    Args:
        config: the trial.
        workload: the built workload of ``config.workload``, to save loading its data again.
        monitor: see :data:`cbs.ending.Monitor`.
        checkpoint: where the trial picks up if it was begun before, and leaves its state now and then; the result is
            bitwise that of an undisturbed trial. Remove it once the result is stored.

    Raises:
        ConfigError: if the configuration names something unknown or cannot run on this machine.
        torch.OutOfMemoryError: if the device runs out of memory.
    """
    workload = workload or build_workload(config.workload)
    if config.target.metric != workload.metric:
        raise ConfigError(
            f"target is on {config.target.metric!r}, workload {config.workload.name!r} measures {workload.metric!r}"
        )
    device = pick_device(config)
    loop = TrainingLoop(config, workload, device)
    with seeding.seeded(config.seed, "training"):
        status, message = loop.run(monitor, checkpoint)
    return TrialResult(
        config=config,
        status=status,
        steps_to_target=config.target.crossing(*loop.curve()) if status is TrialStatus.REACHED else None,
        evaluations=loop.evaluations,
        steps=loop.columns.arrays(),
        geometries=loop.probe.geometries if loop.probe else (),
        workload=_describe(workload, loop.model),
        message=message,
        timing={
            "seconds": loop.training_seconds + loop.evaluation_seconds,
            "training_seconds": loop.training_seconds,
            "evaluation_seconds": loop.evaluation_seconds,
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            "host": platform.node(),
            "threads": torch.get_num_threads(),
        },
    )


@dataclass
class TrainingLoop:
    """A trial under way: model, optimizer, data and what was measured so far."""

    config: TrialConfig
    workload: Workload
    device: torch.device

    def __post_init__(self) -> None:
        config = self.config
        self.diagnostics = build_diagnostics(config.diagnostics, compiled=config.compile)
        with seeding.seeded(config.seed, "init"):
            self.model = self.workload.build_model().to(self.device)
        self.optimizer = build_optimizer(config.optimizer, self.model, config.lr, config.batch_size)
        if isinstance(self.optimizer, ProblemOptimizer):
            self.optimizer.attach(self.problem())
        check_clipping(self.optimizer, config.clip_norm)
        self.average = (
            build_averaging(config.averaging, self.model, self.optimizer, config.batch_size)
            if config.averaging is not None
            else None
        )
        self.multiplier = build_schedule(config.schedule)
        self.base_lrs = [group["lr"] for group in self.optimizer.param_groups]
        self.trained: nn.Module = torch.compile(self.model) if config.compile else self.model  # type: ignore[assignment]
        self.stream = self.workload.training_stream(seeding.generator(config.seed, "data"))
        self.probe = self.build_probe() if config.probe is not None else None
        clipped = (CLIPPED,) if config.clip_norm else ()
        self.columns = StepColumns(config.batch_size, (*(self.probe.names if self.probe else ()), *clipped))
        self.before_clipping: Callable[[], object] = lambda: None
        self.examples = config.batch_size
        self.micro_batches = 1
        self.evaluations: list[Measurement] = []
        self.training_seconds = self.evaluation_seconds = 0.0

    def curve(self) -> tuple[list[int], list[float]]:
        """Steps and values of the evaluations so far."""
        return [row.step for row in self.evaluations], [row.value for row in self.evaluations]

    def run(self, monitor: Monitor | None, checkpoint: Checkpoint | None = None) -> Ending:
        """Train to the end."""
        config = self.config
        saved = checkpoint.load() if checkpoint is not None else None
        if saved is not None:
            self.load_state(saved)
        else:
            self.evaluate(step=0, lr=0.0, losses=np.empty(0))
        start = self.evaluations[0]
        ending = ended_at_start(config, start)
        while ending is None:
            ending = self.to_next_evaluation(start, monitor)
            if ending is None and checkpoint is not None and checkpoint.due():
                checkpoint.save(self.state())
        return ending

    def to_next_evaluation(self, start: Measurement, monitor: Monitor | None) -> Ending | None:
        """Train up to the next evaluation and take it; returns how the trial ended there, if it did."""
        config, target = self.config, self.config.target
        before = self.evaluations[-1]
        near = target.distance(before.value) <= config.evaluation.near_fraction * target.distance(start.value)
        step = before.step
        next_evaluation = min(config.evaluation.next_step(step, near=near), config.max_steps)
        started = time.perf_counter()
        while step < next_evaluation:
            step += 1
            lr = self.train_step(step)
        losses = self.columns.flush()[:, 0]
        self.training_seconds += time.perf_counter() - started
        if not np.isfinite(losses).all():
            first = step - len(losses) + 1 + int(np.argmin(np.isfinite(losses)))
            return TrialStatus.DIVERGED, f"training loss is not finite at step {first}"
        return ended(config, start, self.evaluate(step, lr, losses), monitor)

    def state(self) -> dict[str, Any]:
        """Everything that a later process needs to go on from the latest evaluation."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": self.average.state_dict() if self.average else {},
            "columns": torch.from_numpy(self.columns.table()),
            "column_names": list(self.columns.names),
            "probe_source": self.probe.source if self.probe else "",
            "evaluations": [dataclasses.asdict(row) for row in self.evaluations],
            "seconds": (self.training_seconds, self.evaluation_seconds),
            "random": torch.get_rng_state(),
            "cuda_random": torch.cuda.get_rng_state_all() if self.device.type == "cuda" else [],
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Go back to :meth:`state`; the training stream is drawn again up to that point."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        self.columns.restore(state["columns"].numpy(), state["column_names"])
        self.evaluations = [Measurement(**row) for row in state["evaluations"]]
        self.training_seconds, self.evaluation_seconds = state["seconds"]
        done = self.evaluations[-1].step
        if self.probe is not None:
            self.probe.start_at(done, state["probe_source"])
        for _ in range(done):
            self.stream.next(self.config.batch_size)
        torch.set_rng_state(state["random"])
        if state["cuda_random"]:
            torch.cuda.set_rng_state_all(state["cuda_random"])

    def train_step(self, step: int) -> float:
        """One optimizer update; returns its learning rate."""
        config = self.config
        multiplier = self.multiplier(step * config.batch_size)
        for group, base in zip(self.optimizer.param_groups, self.base_lrs, strict=True):
            group["lr"] = base * multiplier
        batch = self.to_device(self.stream.next(config.batch_size))
        watching = self.diagnostics if (step - 1) % config.diagnostics_every == 0 else ()
        loss = self.accumulate(batch, watching)
        seen = {name: value for diagnostic in watching for name, value in diagnostic.columns().items()}
        measured = self.probe.step() if self.probe else ()
        self.before_clipping()
        self.columns.append([loss, *measured, *self.clip()], seen)
        if isinstance(self.optimizer, ProblemOptimizer):
            self.optimizer.observe(batch)
        self.optimizer.step()
        if self.average is not None:
            self.average.update(step)
        return config.lr * multiplier

    def clip(self) -> list[Tensor]:
        """Scale the gradient down to ``clip_norm`` if it is longer; 1 if it was, else 0, nothing without a norm."""
        limit = self.config.clip_norm
        if limit is None:
            return []
        return [(clip_grad_norm_(self.model.parameters(), limit) > limit).double()]

    def accumulate(self, batch: Batch, watching: Sequence[Diagnostic] = ()) -> Tensor:
        """Fill every ``.grad`` with the gradient of the batch's mean loss; returns that loss. The diagnostics in
        ``watching`` see the forward passes."""
        self.optimizer.zero_grad(set_to_none=True)
        losses = []
        sizes = micro_sizes(self.config, self.probe.micro_batches if self.probe else self.micro_batches)
        for examples, part in split_batch(batch, sizes):
            self.examples = examples
            with contextlib.ExitStack() as stack:
                for diagnostic in watching:
                    stack.enter_context(diagnostic)
                with torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.precision == "bfloat16"):
                    loss = self.workload.example_losses(self.trained, part).mean()
            if examples != self.config.batch_size:
                loss = loss * (examples / self.config.batch_size)
            loss.backward()
            losses.append(loss.detach())
        return torch.stack(losses).sum()

    def problem(self) -> Problem:
        """The workload as an optimizer sees it that evaluates the model itself."""
        workload, config = self.workload, self.config
        if not isinstance(workload, PredictiveWorkload):
            raise ConfigError(
                f"optimizer {config.optimizer.name!r} needs the model's outputs: workload {config.workload.name!r} "
                "must define outputs, output_losses and curvature_sample (see cbs.workloads.base.PredictiveWorkload)"
            )

        def outputs(model: nn.Module, batch: Batch) -> Tensor:
            with torch.autocast(self.device.type, torch.bfloat16, enabled=config.precision == "bfloat16"):
                return workload.outputs(model, batch).float()

        return Problem(
            model=self.model,
            outputs=outputs,
            output_losses=workload.output_losses,
            curvature_sample=workload.curvature_sample,
            seed=seeding.derive(config.seed, "optimizer"),
            micro_batch_size=config.micro_batch_size,
        )

    def build_probe(self) -> ProbeColumns:
        """The configuration's probe; examples are counted here, so a workload may call its model as it likes."""
        assert self.config.probe is not None
        choice = self.config.probe
        if self.config.compile and choice.name == AUTO:
            choice = dataclasses.replace(choice, name="accumulation")
        return ProbeColumns(
            build_probe(
                choice, self.trained, self.optimizer, self.config.batch_size, count=lambda args, kwargs: self.examples
            )
        )

    def evaluate(self, step: int, lr: float, losses: np.ndarray) -> Measurement:
        """Measure the validation metric and append it to the curve."""
        started = time.perf_counter()
        self.model.eval()
        with (
            averaged_weights(self.optimizer, self.average),
            torch.no_grad(),
            torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.precision == "bfloat16"),
        ):
            value = float(self.workload.validate(self.trained))
        self.model.train()
        measurement = Measurement(
            step=step,
            examples=step * self.config.batch_size,
            value=value,
            train_loss=float(losses.mean()) if len(losses) else math.nan,
            lr=lr,
        )
        self.evaluations.append(measurement)
        self.evaluation_seconds += time.perf_counter() - started
        return measurement

    def to_device(self, batch: Batch) -> Batch:
        """The batch with every tensor on the trial's device."""
        return tree_map(
            lambda leaf: leaf.to(self.device, non_blocking=True) if isinstance(leaf, Tensor) else leaf, batch
        )


def pick_device(config: TrialConfig) -> torch.device:
    """The device a configuration asks for.

    Raises:
        ConfigError: if this machine does not have it, or it cannot do the precision.
    """
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device 'cuda' was asked for, but torch finds no CUDA device; use --set device=auto")
    device = torch.device("cuda" if config.device != "cpu" and torch.cuda.is_available() else "cpu")
    if config.precision == "bfloat16" and device.type != "cuda":
        raise ConfigError("precision bfloat16 needs a CUDA device; use --set precision=float32")
    return device


def micro_sizes(config: TrialConfig, wanted: int) -> list[int]:
    """Sizes of the micro-batches of a step: as configured, else the batch in ``wanted`` parts as equal as can be."""
    batch_size = config.batch_size
    size = min(config.micro_batch_size or batch_size, batch_size)
    count = max(math.ceil(batch_size / size), min(wanted, batch_size))
    return even_sizes(batch_size, count)


def even_sizes(examples: int, parts: int) -> list[int]:
    """Sizes of ``parts`` parts of so many examples that differ by at most one, larger ones first."""
    return [examples // parts + (index < examples % parts) for index in range(parts)]


def split_batch(batch: Batch, sizes: Sequence[int]) -> Iterator[tuple[int, Batch]]:
    """The parts of a batch that hold ``sizes`` examples, each with its size."""
    if len(sizes) == 1:
        yield sizes[0], batch
        return
    leaves, structure = tree_flatten(batch)
    parts = [leaf.split(list(sizes)) if isinstance(leaf, Tensor) else [leaf] * len(sizes) for leaf in leaves]
    for index, size in enumerate(sizes):
        yield size, structure.unflatten([part[index] for part in parts])


def _describe(workload: Workload, model: nn.Module) -> WorkloadInfo:
    return WorkloadInfo(
        example_unit=workload.example_unit,
        tokens_per_example=workload.tokens_per_example,
        metric_unit=workload.metric_unit,
        parameters=sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad),
        data_hash=workload.data_hash,
    )

"""Estimate how long a step, an evaluation and a trial take on this machine, from a few seconds of timing."""

from __future__ import annotations

import dataclasses
import functools
import math
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

from cbs.compute import device, seeding
from cbs.compute.device import pick
from cbs.compute.state import evaluating
from cbs.errors import CbsError, ConfigError, out_of_memory, reason
from cbs.training.loop import TrainingLoop
from cbs.trial.config import EvaluationPlan, TrialConfig
from cbs.workloads import Workload
from sweeps.outlook.own_code import EXAMPLES, doubts
from sweeps.spec.axes import Cell
from sweeps.spec.spec import Sweep
from sweeps.spec.workload import built

MOST_SECONDS = 12.0  # Wall-clock seconds of timing for all optimizers together; a single step may take longer

# Number of steps that are timed at a batch size; fewer once they have taken this many seconds
STEPS, ENOUGH_SECONDS = 5, 0.3

LONG_STEP = 5.0  # A first step that takes at least this many seconds is not repeated, but counts itself

# Distance to the target, as a share of that at the start, for every factor of e by which the steps fall short of it;
# 0.16 to 0.5 on the embedded text.
_SHARE_PER_LOG = 0.2


@dataclass(frozen=True)
class StepCost:
    """Seconds of one optimizer update, ``fixed + per_example * batch_size``, and of one evaluation."""

    fixed: float
    per_example: float
    evaluation: float

    def seconds(self, batch_size: int, steps: float, plan: EvaluationPlan = EvaluationPlan()) -> float:  # noqa: B008
        """Return the seconds that a trial of ``steps`` updates takes, including its evaluations."""
        return steps * (self.fixed + self.per_example * batch_size) + evaluations(plan, round(steps)) * self.evaluation


@dataclass(frozen=True)
class Cost:
    """What is known of the trials of a sweep that run on this machine.

    Attributes:
        steps: cost per optimizer, by the text of its choice; empty if no step could be timed.
        on_gpu: whether they run on a GPU or another accelerator.
        parameters: number of parameters of the model; ``None`` if none was built.
        told: what was extrapolated instead of measured, in words.
        doubts: assumptions that the user's own workload or optimizer violates, in words; see
            :mod:`sweeps.outlook.own_code`.
    """

    steps: Mapping[str, StepCost] = field(default_factory=dict)
    on_gpu: bool = False
    parameters: int | None = None
    told: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()


@functools.lru_cache(maxsize=4096)
def evaluations(plan: EvaluationPlan, steps: int) -> int:
    """Return how often a trial of ``steps`` updates is evaluated, including step 0."""
    count, step = 1, 0
    while step < steps:
        share = _SHARE_PER_LOG * math.log(steps / step) if step else 1.0
        step, count = plan.next_step(step, min(share, 1.0)), count + 1
    return count


def on_gpu(sweep: Sweep) -> bool:
    """Return whether trials that run on this machine use a GPU or another accelerator."""
    return sweep.trial.device != "cpu" and device.count() > 0


def measure_cost(sweep: Sweep, most_seconds: float = MOST_SECONDS) -> Cost:
    """Time a few steps of every optimizer and a validation pass, with one thread, in this process.

    Batch sizes are timed from 1 (or the smallest of the sweep) upwards as long as there is time; larger ones are
    extrapolated. A validation pass that takes too long is stopped, and extrapolated from the number of validation
    examples. No step is timed if even the smallest batch does not fit into memory.

    Raises:
        ConfigError: if the target is reached before the first step, or the workload or optimizer fails in its first
            step, as it would in every trial.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    workload = built(sweep.trial.workload)
    step_costs: dict[str, StepCost] = {}
    clock = time.perf_counter if on_gpu(sweep) else time.process_time
    deadline = time.monotonic() + most_seconds
    timing = _Timing(sweep, workload, clock, deadline)
    try:
        for optimizer in sweep.choices:
            if step_costs and time.monotonic() + timing.built > deadline:
                first, step_costs[optimizer] = next(iter(step_costs.items()))
                timing.told.append(
                    f"steps of {sweep.axes.labels[optimizer]} are assumed to cost as much as those of "
                    f"{sweep.axes.labels[first]}"
                )
                continue
            step_costs[optimizer] = timing.of(optimizer, most_seconds / len(sweep.choices))
        doubted = dict.fromkeys(timing.doubts())
    except CbsError:
        raise
    except Exception as error:
        if out_of_memory(error):
            return Cost(on_gpu=on_gpu(sweep))
        what = f"{type(error).__name__}: {reason(error)}"
        raise ConfigError(f"{_raiser(error, workload, sweep)} fails in its first step: {what}") from error
    finally:
        torch.set_num_threads(threads)
    told = tuple(dict.fromkeys(timing.told))
    return Cost(step_costs, on_gpu(sweep), timing.parameters, told, tuple(doubted))


def _raiser(error: BaseException, workload: Workload, sweep: Sweep) -> str:
    """Return whether the optimizer or the workload raised an error, judged by whose method was the last to be
    entered."""
    asked = raiser = f"workload {sweep.trial.workload.name!r}"
    name = ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        owner = frame.f_locals.get("self")
        if isinstance(owner, TrainingLoop):
            name = str(owner.config.optimizer)
        elif isinstance(owner, torch.optim.Optimizer):
            raiser = f"optimizer {(name or type(owner).__name__)!r}"
        elif owner is workload or isinstance(owner, nn.Module):
            raiser = asked
    return raiser


@dataclass
class _Timing:
    sweep: Sweep
    workload: Workload
    clock: Callable[[], float]
    """CPU time of this process if it computes on the CPU, so that other load on the machine does not distort the
    measurement. The time limits use the wall clock, because a user waits for them."""
    deadline: float
    """Time on the clock of :func:`time.monotonic`, like ``built``."""
    told: list[str] = field(default_factory=list)
    evaluation: float | None = None
    parameters: int | None = None
    built: float = 0.0
    """Seconds it took to build a model and its optimizer."""

    def of(self, optimizer: str, share: float) -> StepCost:
        """Measure the cost of one optimizer in about ``share`` seconds."""
        until = time.monotonic() + share
        smallest, largest = self.sweep.axes.batch_sizes[0], self.sweep.axes.batch_sizes[-1]
        # both ends of the sweep, and smaller ones from a single example upwards
        untried = sorted({*(4**power for power in range(7) if 4**power < largest), smallest, largest})
        timed: dict[int, float] = {}
        while untried:
            batch_size = untried[0]
            if timed:  # the largest that fits, if a step takes time in proportion to its batch
                per_example = STEPS * max(timed.values()) / max(timed)
                left = until - time.monotonic() - self.built
                if not (fitting := [size for size in untried if per_example * size <= left]):
                    break
                batch_size = fitting[-1]
            untried = [size for size in untried if size > batch_size]
            try:
                timed[batch_size] = self._step(optimizer, batch_size)
            except Exception:
                if batch_size >= self.sweep.axes.batch_sizes[0]:
                    raise
                # smaller than any batch of the sweep; batch normalisation, for one, needs two examples
        largest = self.sweep.axes.batch_sizes[-1]
        if max(timed) < largest:
            self.told.append(f"steps beyond batch size {max(timed)} are assumed to grow like those up to it")
        sizes = sorted(timed)
        low, high = (sizes[0], sizes[-1]) if len(sizes) > 1 else (0, sizes[0])
        slope = max(0.0, (timed[high] - timed.get(low, 0.0)) / (high - low))
        return StepCost(max(0.0, timed[high] - slope * high), slope, self.evaluation or 0.0)

    def doubts(self) -> Iterator[str]:
        """Yield the violated assumptions of the user's own code, unless checking them would take too long."""
        theirs = self.sweep.trial.workload.name
        own = [text for text, choice in self.sweep.choices.items() if ":" in theirs + choice.name]
        if self.built + (self.evaluation or 0.0) > LONG_STEP:
            return
        for optimizer in own:
            config = self.sweep.trial_at(Cell(optimizer, EXAMPLES, 0), self.sweep.lr_grid(optimizer)[0])
            for doubt in doubts(dataclasses.replace(config, probe=None, batch_schedule=None), self.workload):
                yield f"workload {self.sweep.trial.workload.name!r}: {doubt}"

    def _step(self, optimizer: str, batch_size: int) -> float:
        """Return the seconds of a step, the minimum of a few; a very slow step is not repeated."""
        grid = self.sweep.lr_grid(optimizer)
        config = self.sweep.trial_at(Cell(optimizer, batch_size, 0), grid[0])
        config = dataclasses.replace(config, seed=0, batch_schedule=None)
        started = time.monotonic()
        loop = TrainingLoop(config, self.workload, pick(config.device, config.precision))
        self.built = time.monotonic() - started
        self.parameters = sum(each.numel() for each in loop.model.parameters() if each.requires_grad)
        with seeding.seeded(0, "training"):
            if self.evaluation is None:
                self.evaluation = self._validation(loop, config)
            seconds: list[float] = []
            for step in range(1, STEPS + 2):
                started = self._now(loop)
                loop.train_step(step)
                seconds.append(self._now(loop) - started)
                enough = sum(seconds) > ENOUGH_SECONDS and len(seconds) > 1
                if enough or seconds[-1] > LONG_STEP or time.monotonic() > self.deadline:
                    break
        return min(seconds)

    def _validation(self, loop: TrainingLoop, config: TrialConfig) -> float:
        """Return the seconds of a validation pass, extrapolated if it takes longer than a quarter of the time left."""
        started = self._now(loop)
        now = time.monotonic()
        limit = max(1.0, (self.deadline - now) / 4)
        with _Interrupted(loop.model, now + limit) as stopped:
            value = loop.evaluate(step=0, lr=0.0, losses=torch.empty(0).numpy()).value
            if config.stops_at_target and config.target.reached(value):
                raise ConfigError(
                    f"target {config.target} is reached before the first step ({value:.4g}); choose a harder one"
                )
        if not stopped.cut:
            return self._now(loop) - started
        examples = getattr(self.workload, "validation_examples", None)
        if examples is None:
            self.told.append(
                f"a validation pass takes longer than {limit:.1f} s; counted as {limit:.1f} s, since the workload has "
                "no attribute validation_examples"
            )
            return limit
        batch = loop.to_device(loop.stream.next(1))
        started = self._now(loop)
        with evaluating(loop.model), torch.no_grad():
            self.workload.example_losses(loop.trained, batch)
        self.told.append(f"a validation pass is extrapolated from one of its {examples} examples")
        return (self._now(loop) - started) * int(examples)

    def _now(self, loop: TrainingLoop) -> float:
        device.synchronize(loop.device)
        return self.clock()


class _Enough(BaseException):
    """Ends a validation pass; not an ``Exception``, so that no model catches it as one of its own errors."""


class _Interrupted:
    """Context manager in which forward passes of a model end at a deadline on the clock of :func:`time.monotonic`."""

    def __init__(self, model: nn.Module, deadline: float) -> None:
        self.cut = False
        self._model, self._deadline = model, deadline

    def __enter__(self) -> _Interrupted:
        def check(module: nn.Module, args: object) -> None:
            if time.monotonic() > self._deadline:
                raise _Enough

        self._hooks = [module.register_forward_pre_hook(check) for module in self._model.modules()]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        for hook in self._hooks:
            hook.remove()
        self.cut = kind is not None and issubclass(kind, _Enough)
        self._model.train()
        return self.cut


def prior_steps(sweep: Sweep, batch_size: int) -> float:
    """Return the steps that a trial is expected to take before any has run: those that the recipe expects to the
    target, otherwise the budget."""
    if sweep.expected is None or sweep.budgets:
        return float(sweep.budget(batch_size))
    min_steps, min_examples = sweep.expected
    return min(float(sweep.budget(batch_size)), min_steps + min_examples / batch_size)

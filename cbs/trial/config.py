"""Everything that determines a trial's result, checked when it is built.

A configuration is a frozen dataclass that survives a round trip through plain dictionaries and has a fingerprint. Two
trials with the same fingerprint have the same result on the same machine.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import re
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, Literal

from cbs.errors import ConfigError
from cbs.registry.choices import Choice, json_options
from cbs.registry.values import finite, is_whole, whole
from cbs.trial.parent import Parent
from cbs.trial.target import Target

_NOT_IN_NAMES = r'[/\\:*?"<>|]'

DEVICES = ("auto", "cpu", "cuda", "xpu", "mps")
"""Devices that a trial may request; the kinds are those of :mod:`cbs.compute.device`."""

CONSTANT = "constant"  # Name of the batch schedule that keeps the batch size constant
COMMAND = "command"  # Name of the workload of trials that another program trains; there is nothing to build

ENDLESS = 10**9  # Budget in steps if an external program trains and decides itself when to stop

UNKNOWN = "unknown"
"""Stored in place of a setting that was not reported."""

# Fields that came later are left out where they are empty, so that the fingerprints of earlier trials stay
_LATER = ("parent", "further_targets")

OF_TRAINER = ("averaging", "clip_norm", "compile", "device", "evaluation", "micro_batch_size", "precision", "schedule")
"""Settings of the training program; for a program other than this package they may be unknown."""

CONFIG_VERSION = 1  # Raised when the meaning of a field changes, so that old trials are not mistaken for new ones


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)


def _set_floats(config: object, *names: str) -> None:
    """Check that fields hold finite numbers and store them as floats, so that 2 and 2.0 have one fingerprint."""
    for name in names:
        object.__setattr__(config, name, finite(name, getattr(config, name)))


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Learning-rate schedule; every length is in examples, so it means the same at every batch size.

    Attributes:
        name: name in :data:`cbs.schedules.learning_rate.SCHEDULES`.
        warmup_examples: length of the linear warmup from 0.
        decay_examples: examples after which the decay is complete; required by schedules that decay.
        final_fraction: learning rate at the end of the decay, as a fraction of the peak.
        options: options that only this schedule has, such as the power of a polynomial; only JSON values.

    Example:
        >>> from cbs.schedules.learning_rate import build_schedule
        >>> multiplier = build_schedule(Schedule(name="linear", warmup_examples=640, decay_examples=6400))
        >>> [multiplier(examples) for examples in (320, 640, 3520, 6400)]
        [0.5, 1.0, 0.5, 0.0]
    """

    name: str = "constant"
    warmup_examples: int = 0
    decay_examples: int | None = None
    final_fraction: float = 0.0
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", json_options(self.name, self.options))
        _set_floats(self, "final_fraction")
        whole("warmup_examples", self.warmup_examples, least=0)
        _require(0.0 <= self.final_fraction <= 1.0, f"final_fraction must be in [0, 1], got {self.final_fraction}")
        if self.decay_examples is not None:
            _require(
                is_whole(self.decay_examples, self.warmup_examples + 1),
                f"decay_examples must be a whole number above warmup_examples ({self.warmup_examples}), "
                f"got {self.decay_examples}",
            )


@dataclass(frozen=True, kw_only=True)
class EvaluationPlan:
    """Plan of the evaluations: at geometric steps, ever closer together as the metric approaches the target.

    With r the distance to the target as a share of that at step 0, the step after step ``s`` is ``ceil(f s)``, at least
    ``s + 1``, with ``f = far_growth ** (r / near_fraction)`` between ``growth`` and ``far_growth``. But it is not
    behind the step at which r would be 0 if it fell on as between the latest two evaluations, unless by ``growth``.

    >>> plan = EvaluationPlan()
    >>> plan.next_step(100, share=1.0), plan.next_step(100, share=0.0)
    (250, 105)
    >>> plan.next_step(100, share=0.4, before=(50, 0.8))  # .4 in 50 steps: the target may be at 150
    150

    Attributes:
        growth: smallest ratio of the steps of consecutive evaluations, at the target.
        far_growth: largest ratio of the steps of consecutive evaluations, far from the target.
        near_fraction: share r of the distance at step 0 below which the ratio falls.
    """

    growth: float = 1.05
    far_growth: float = 2.5
    near_fraction: float = 0.3

    def __post_init__(self) -> None:
        _set_floats(self, "growth", "far_growth", "near_fraction")
        _require(self.growth > 1.0, f"evaluation growth must exceed 1, got {self.growth}")
        _require(
            self.far_growth >= self.growth,
            f"far_growth ({self.far_growth}) must not be below growth ({self.growth})",
        )
        _require(self.near_fraction >= 0.0, f"near_fraction must be >= 0, got {self.near_fraction}")

    def next_step(self, step: int, share: float, before: tuple[int, float] | None = None) -> int:
        """Return the evaluation step that follows ``step``.

        Args:
            step: step of the latest evaluation.
            share: distance to the target there, as a share of the distance at step 0; 0 or NaN where that is unknown.
            before: both of the evaluation before it; ``None`` where there is none.
        """
        share = max(0.0, share)  # in this order 0 for NaN, too
        far = 1.0 if share >= self.near_fraction else share / self.near_fraction
        onward = step * self.far_growth**far
        if before is not None and before[1] > share:
            # metrics fall ever more slowly, so that most have not passed the target there
            onward = min(onward, step + (step - before[0]) * share / (before[1] - share))
        return max(step + 1, math.ceil(max(self.growth * step, onward)))


@dataclass(frozen=True, kw_only=True)
class TrialConfig:
    """Configuration of one training run.

    Attributes:
        workload: model, data and metric.
        optimizer: optimizer and its options, except the learning rate.
        lr: peak learning rate.
        batch_size: examples per optimizer update over all devices; with a batch schedule those of the first update.
        seed: determines initial weights, data order and all other random draws.
        parent: the checkpoint that the trial starts from; ``None`` for newly initialized weights. With the seed of the
            trial that wrote it, the data continue where that trial was; with any other seed they start anew, in the
            same order for all batch sizes.
        target: the trial ends when it is reached, unless ``stops_at_target`` is false. It also names the metric, and
            its value is the reference of ``divergence_factor`` and of ``evaluation``.
        further_targets: targets of other metrics that have to be reached, too, each at any evaluation; sorted by
            metric.
        max_steps: budget in optimizer updates of ``batch_size`` examples; with a batch schedule the budget is in
            examples, see :attr:`max_examples`.
        micro_batch_size: examples per forward and backward pass; ``None`` for the whole batch at once.
        schedule: learning-rate schedule.
        batch_schedule: batch-size schedule, a name in :data:`cbs.schedules.batch_size.BATCH_SCHEDULES`; ``None`` and
            ``constant`` keep ``batch_size`` throughout.
        clip_norm: the gradient is scaled down to this norm where it is longer; ``None`` or 0 for no clipping.
        averaging: average of the weights that is validated; ``None`` for the weights that are trained.
        evaluation: plan of the evaluations.
        stops_at_target: whether the trial ends when the target is reached; otherwise it trains until its budget is
            spent.
        metrics: further metrics that are measured at every evaluation, sorted; that of the target is measured anyway.
        probe: how the noise scale of every step is measured: a source (see :mod:`cbs.noise_scale.sources`) with the
            options ``parts``, ``every`` and ``geometry``; ``None`` for no measurement.
        diagnostics: further quantities that are recorded with the steps, sorted.
        diagnostics_every: diagnostics are recorded in one step of this many, starting with the first.
        precision: ``"float32"``, or ``"bfloat16"`` for autocast, on devices that support it.
        compile: whether the model is compiled with ``torch.compile``.
        device: where the model trains.
        divergence_factor: a trial has diverged when its distance to the target exceeds this multiple of the distance
            at step 0.
        unknown: settings among :data:`OF_TRAINER` that were not reported. They are stored as :data:`UNKNOWN`, and the
            values of these fields mean nothing.

    Example:
        >>> config = TrialConfig(
        ...     workload=Choice(name="text"), optimizer=Choice(name="adamw"), lr=0.004, batch_size=32, seed=0,
        ...     target=Target(metric="validation_loss", value=2.6), max_steps=1000,
        ... )
        >>> config.max_examples, config.trial_id == dataclasses.replace(config, seed=1).trial_id
        (32000, False)
    """

    workload: Choice
    optimizer: Choice
    lr: float
    batch_size: int
    seed: int
    target: Target
    max_steps: int
    further_targets: tuple[Target, ...] = ()
    parent: Parent | None = None
    micro_batch_size: int | None = None
    schedule: Schedule = field(default_factory=Schedule)
    batch_schedule: Choice | None = None
    clip_norm: float | None = None
    averaging: Choice | None = None
    evaluation: EvaluationPlan = field(default_factory=EvaluationPlan)
    stops_at_target: bool = True
    metrics: tuple[str, ...] = ()
    probe: Choice | None = field(default_factory=lambda: Choice(name="auto"))
    diagnostics: tuple[str, ...] = ()
    diagnostics_every: int = 1
    precision: Literal["float32", "bfloat16"] = "float32"
    compile: bool = False
    device: Literal["auto", "cpu", "cuda", "xpu", "mps"] = "auto"
    divergence_factor: float = 5.0
    unknown: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _set_floats(self, "lr", "divergence_factor")
        whole("batch_size", self.batch_size)
        whole("max_steps", self.max_steps)
        _require(
            isinstance(self.stops_at_target, bool),
            f"stops_at_target must be true or false, got {self.stops_at_target!r}",
        )
        further = sorted(self.further_targets, key=lambda target: target.metric)
        object.__setattr__(self, "further_targets", tuple(further))
        names = [target.metric for target in self.targets]
        _require(
            len(set(names)) == len(names), f"two targets have the same metric: {', '.join(map(str, self.targets))}"
        )
        _require(self.stops_at_target or not further, "a trial that trains to its budget has no further targets")
        whole("seed", self.seed, least=0)
        _require(self.lr > 0, f"lr must be above 0, got {self.lr}")
        if self.micro_batch_size is not None:
            whole("micro_batch_size", self.micro_batch_size)
        if self.batch_schedule == Choice(name=CONSTANT):
            object.__setattr__(self, "batch_schedule", None)
        _require(
            self.parent is None or self.batch_schedule is None,
            f"batch schedule {self.batch_schedule} cannot start from a checkpoint: leave out one of the two",
        )
        norm = self.clip_norm
        valid = isinstance(norm, Real) and not isinstance(norm, bool) and 0.0 <= float(norm) < math.inf
        _require(norm is None or valid, f"clip_norm must be a finite number of at least 0 or none, got {norm!r}")
        object.__setattr__(self, "clip_norm", float(norm) if norm else None)
        object.__setattr__(self, "diagnostics", sorted_names("diagnostics", self.diagnostics))
        object.__setattr__(self, "metrics", sorted_names("metrics", self.metrics))
        object.__setattr__(self, "unknown", sorted_names("unknown", self.unknown))
        unread = [name for name in self.unknown if name not in OF_TRAINER]
        _require(not unread, f"{', '.join(unread)} must be known")
        for part in dataclasses.fields(self):
            if part.name in self.unknown:  # so that a configuration equals its stored copy
                factory = part.default_factory
                value = part.default if factory is dataclasses.MISSING else factory()
                object.__setattr__(self, part.name, value)
        whole("diagnostics_every", self.diagnostics_every)
        _require(
            self.precision in ("float32", "bfloat16"), f"unknown precision {self.precision!r}: float32 or bfloat16"
        )
        _require(self.device in DEVICES, f"unknown device {self.device!r}: {', '.join(DEVICES)}")
        _require(self.divergence_factor > 1.0, f"divergence_factor must exceed 1, got {self.divergence_factor}")

    def to_dict(self) -> dict[str, Any]:
        """Return plain dictionaries, lists and scalars; inverse of :meth:`from_dict`."""
        values = plain_values(self)
        return {name: value for name, value in values.items() if value or name not in _LATER}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> TrialConfig:
        """Build a configuration from the output of :meth:`to_dict`.

        Raises:
            ConfigError: if a field is missing, unknown or invalid.
        """
        nested = {
            "workload": Choice,
            "optimizer": Choice,
            "target": Target,
            "schedule": Schedule,
            "evaluation": EvaluationPlan,
        }
        if isinstance(data, dict) and data.get("parent") is not None:
            nested["parent"] = Parent
        if not isinstance(data, dict):
            raise ConfigError(f"not a trial configuration: expected names and values, got {type(data).__name__}")
        unknown = tuple(key for key in OF_TRAINER if data.get(key) == UNKNOWN)
        data = {key: value for key, value in data.items() if key not in unknown}
        try:
            parts = {key: nested[key](**value) if key in nested else value for key, value in data.items()}
            parts["further_targets"] = tuple(Target(**each) for each in data.get("further_targets", ()))
            choices = {key: Choice(**data[key]) for key in ("probe", "averaging", "batch_schedule") if data.get(key)}
            return cls(**parts | choices, unknown=unknown)
        except TypeError as error:
            raise ConfigError(f"not a trial configuration: {error}") from None

    @property
    def targets(self) -> tuple[Target, ...]:
        """All targets of the trial."""
        return (self.target, *self.further_targets)

    @property
    def max_examples(self) -> int:
        """The budget in examples."""
        return self.max_steps * self.batch_size

    @functools.cached_property
    def fingerprint(self) -> str:
        """First 16 hexadecimal digits of the SHA-256 of the configuration and its version as canonical JSON."""
        return fingerprint({"version": CONFIG_VERSION, **self.to_dict()})

    @functools.cached_property
    def trial_id(self) -> str:
        """Readable, unique name of the trial and of its folder.

        It consists of optimizer, batch size, batch schedule if there is one, learning rate, seed, and fingerprint.
        """
        scheduled = "" if self.batch_schedule is None else f"-{self.batch_schedule.name}"
        name = f"{self.optimizer.name}-b{self.batch_size}{scheduled}-lr{self.lr:.4g}-s{self.seed}"
        return f"{re.sub(_NOT_IN_NAMES, '_', name)}-{self.fingerprint[:8]}"


def sorted_names(field_name: str, names: Any) -> tuple[str, ...]:
    """Return names in sorted order, so that equal sets have the same fingerprint.

    Raises:
        ConfigError: if it is not a list of distinct names.
    """
    _require(
        isinstance(names, list | tuple) and all(isinstance(name, str) and name for name in names),
        f"{field_name} must be a list of names, got {names!r}",
    )
    _require(len(set(names)) == len(names), f"{field_name} holds a name twice: {', '.join(names)}")
    return tuple(sorted(names))


def plain_values(settings: Any) -> dict[str, Any]:
    """Convert a dataclass of settings to dictionaries, lists and scalars.

    Fields named in its ``unknown`` have the value :data:`UNKNOWN`.
    """
    unknown = getattr(settings, "unknown", ())
    return {
        name: UNKNOWN if name in unknown else _plain(getattr(settings, name))
        for name in settings.__dataclass_fields__
        if name != "unknown"
    }


def _plain(value: Any) -> Any:
    """Return plain JSON values; :func:`dataclasses.asdict` copies every leaf, which takes ten times as long."""
    if value is None or isinstance(value, (str, int, float)):  # nearly all are: asked first
        return value
    if dataclasses.is_dataclass(value):
        return {name: _plain(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value


def fingerprint(data: Any) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of ``data`` as canonical JSON."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]

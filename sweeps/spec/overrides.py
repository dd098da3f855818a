"""``--set key=value``: change one field of a sweep by its name."""

import dataclasses
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from cbs.errors import ConfigError
from cbs.optimizers import OPTIMIZERS
from cbs.registry.choices import Choice, parse_choice, parse_value
from cbs.schedules.batch_size import batch_schedule_options
from cbs.schedules.learning_rate import schedule_options
from cbs.trial.parent import Parent
from cbs.trial.target import Target
from sweeps.spec.spec import Sweep

OF_TRIAL = (
    "max_steps",
    "max_examples",
    "micro_batch_size",
    "search",
    "lr_resolution",
    "clip_norm",
    "prune_factor",
    "within",
    "diagnostics_every",
    "precision",
    "compile",
    "device",
)
FIELD = {"search": "method"}  # Fields whose keys have other names
NAMES = ("metrics", "diagnostics")
_NESTED = ("schedule", "evaluation", "parent")
OF_PARENT = ("examples", "optimizer", "warmup_examples")
_NONE_TOO = ("prune_factor", "clip_norm", "within")
_OPTIONAL = ("probe", "averaging")  # Fields that hold a name with options, or ``None``


class RunKey(NamedTuple):
    """A key of ``cbs sweep --set`` that is not a field of the sweep but says how it runs."""

    kind: Any
    default: str
    meaning: str


RUN = {
    "policy": RunKey(
        str, "none", "Which sweep comes next, in place of the options that choose it: `precision(goal=0.2)`."
    ),
    "gpu_hour": RunKey((int, float), "none", "Dollars for an hour of a GPU, in which `--dry-run` prices the answer."),
    "trial_timeout": RunKey((int, float), "none", "Seconds without a step or an evaluation until a trial is stopped."),
    "cpus_per_trial": RunKey(int, "1", "Cores and torch threads of each worker of a trial."),
    "nodes_per_trial": RunKey(
        int, "1", "Nodes of a Ray cluster on which `--command` is started for a trial, with `{node_rank}` and `{head}`."
    ),
    "shard": RunKey(
        bool, "false", "Whether workers of a trial share its weights (FSDP2) or hold copies of them (DDP)."
    ),
}


def split(settings: Iterable[str], keys: Mapping[str, RunKey] = RUN) -> tuple[dict[str, Any], list[str]]:
    """Split settings of the form ``key=value`` into those with one of the ``keys``, by key, and the others.

    Raises:
        ConfigError: if a value has the wrong type.
    """
    run, rest = {}, []
    for setting in settings:
        key, _, text = (part.strip() for part in setting.partition("="))
        if key not in keys:
            rest.append(setting)
            continue
        kind = keys[key].kind
        run[key] = text if kind is str else parse_value(text)
        if not isinstance(run[key], kind) or isinstance(run[key], bool) != (kind is bool):
            wanted = {int: "a whole number", bool: "true or false"}.get(kind, "a number")
            raise ConfigError(f"--set {key}: expected {wanted}, got {text!r}")
    return run, rest


def is_setting(key: str) -> bool:
    """Return whether a key names a setting that all trials of a sweep share, rather than an option of an optimizer."""
    return key in OF_TRIAL or key.partition(".")[0] in (*_NESTED, *_OPTIONAL, "workload")


def override(sweep: Sweep, settings: Iterable[str]) -> Sweep:
    """Return the sweep with settings of the form ``key=value`` applied.

    A key is one of:

    - a field of the sweep (``max_steps``) or of a nested object (``schedule.name``, ``evaluation.growth``);
    - a further target, by its metric (``target.training_loss``);
    - an option of the learning-rate schedule (``schedule.power``) or of the batch schedules (``schedule.alpha``), whose
      names are all different;
    - an option of the workload (``workload.size``), the probe (``probe.groups``) or the averaging of weights
      (``averaging.decay``);
    - an option of one optimizer (``merit.eps``, in every variant of it) or of all that have it (``optimizer.eps``).

    Values are parsed by :func:`cbs.registry.choices.parse_value`.

    Raises:
        ConfigError: if a key is unknown (the message names the known ones) or a value is invalid.
    """
    for setting in settings:
        key, separator, text = setting.partition("=")
        if not separator or not key:
            raise ConfigError(f"--set takes key=value, got {setting!r}; for example --set workload.size=200k")
        sweep = _apply(sweep, key.strip(), parse_value(text))
    return sweep


def _apply(sweep: Sweep, key: str, value: Any) -> Sweep:
    head, _, option = key.partition(".")
    if head in _OPTIONAL and option in ("", "name"):
        if value is not None and not isinstance(value, str):
            raise ConfigError(f"--set {key}: expected a name or none, got {value!r}")
        return sweep.replace(**{head: None if value is None else parse_choice(value)})
    if not option:
        if head in NAMES:
            return sweep.replace(**{head: () if value is None else [value] if isinstance(value, str) else value})
        if head not in OF_TRIAL:
            raise ConfigError(_unknown(sweep, key))
        current = sweep.value(FIELD.get(head, head))
        if current is not None and not _same_kind(current, value) and not (head in _NONE_TOO and value is None):
            raise ConfigError(f"--set {key}: expected a value like {current!r}, got {value!r}")
        if head == "micro_batch_size" and value is not None and not isinstance(value, int):
            raise ConfigError(f"--set {key}: expected a whole number or none, got {value!r}")
        return sweep.replace(**{FIELD.get(head, head): value})
    if head in _NESTED:
        part = sweep.value(head)
        if part is None:
            raise ConfigError(f"--set {key}: trials start from fresh weights; give --from-checkpoint PATH first")
        if head == "schedule" and option in batch_schedule_options():
            return _with_schedule_option(sweep, key, option, value)
        if head == "schedule" and option in {*schedule_options(), *schedule_options(part.name)}:
            option, value = "options", {**part.options, option: value}
        elif option not in _fields(part):
            raise ConfigError(_unknown(sweep, key))
        try:
            return sweep.replace(**{head: dataclasses.replace(part, **{option: value})})
        except TypeError as error:
            raise ConfigError(f"--set {key}: {error}") from None
    if head == "target":
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ConfigError(f"--set {key}: expected the value of {option} to train to, got {value!r}")
        others = [target for target in sweep.trial.further_targets if target.metric != option]
        return sweep.replace(further_targets=(*others, Target(metric=option, value=value)))
    if head == "workload":
        return sweep.replace(workload=_with_option(sweep.trial.workload, option, value))
    if head in _OPTIONAL:
        choice = sweep.value(head)
        if choice is None:
            raise ConfigError(f"--set {key}: the sweep has no {head}; set {head}=NAME first")
        return sweep.replace(**{head: _with_option(choice, option, value)})
    names = list(dict.fromkeys(choice.name for choice in sweep.axes.optimizers))
    # Names of optimizers from libraries contain a dot themselves: torch.adam.eps.
    head, option = next(((name, key[len(name) + 1 :]) for name in names if key.startswith(f"{name}.")), (head, option))
    if head in names or head == "optimizer":
        having = [head] if head in names else [name for name in names if option in options_of(name)]
        if not having:
            near = get_close_matches(option, sorted(set().union(*map(options_of, names))), n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; 'cbs optimizers {names[0]}' shows those there are"
            raise ConfigError(f"--set {key}: no optimizer of the sweep has an option {option!r}{hint}")
        optimizers = tuple(_with_option(c, option, value) if c.name in having else c for c in sweep.axes.optimizers)
        return sweep.replace(optimizers=optimizers)
    if head in OPTIMIZERS:
        raise ConfigError(
            f"--set {key}: the sweep has no optimizer {head!r}, only {', '.join(names)}; add --optim {head}"
        )
    raise ConfigError(_unknown(sweep, key))


def typed(value: object) -> str:
    """Format a value as ``--set`` accepts it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return f"[{', '.join(typed(part) for part in value)}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _fields(part: Any) -> list[str]:
    if part is None or isinstance(part, Parent):
        return [*OF_PARENT]
    return [field.name for field in dataclasses.fields(part) if field.name != "options"]


def _same_kind(current: Any, value: Any) -> bool:
    if isinstance(current, bool) or isinstance(value, bool):
        return isinstance(current, bool) and isinstance(value, bool)
    if isinstance(current, float):
        return isinstance(value, (int, float))
    return value is None if current is None else isinstance(value, type(current))


def _with_option(choice: Choice, option: str, value: Any) -> Choice:
    return Choice(name=choice.name, options={**choice.options, option: value})


def _with_schedule_option(sweep: Sweep, key: str, option: str, value: Any) -> Sweep:
    """Return the sweep with an option set in all its batch schedules that have it."""
    having = [choice for choice in sweep.axes.batch_schedules if option in batch_schedule_options(choice.name)]
    if not having:
        names = ", ".join(choice.name for choice in sweep.axes.batch_schedules)
        raise ConfigError(f"--set {key}: no batch schedule of the sweep ({names}) has an option {option!r}")
    return sweep.replace(
        batch_schedules=tuple(
            _with_option(choice, option, value) if choice in having else choice for choice in sweep.axes.batch_schedules
        )
    )


def options_of(optimizer: str) -> set[str]:
    """Return the names of an optimizer's options, including those measured in examples."""
    spec = OPTIMIZERS[optimizer]
    return {*spec.defaults, *spec.options_in_examples}


def _unknown(sweep: Sweep, key: str) -> str:
    nested = [f"{part}.{name}" for part in _NESTED for name in _fields(sweep.value(part))]
    schedule = [f"schedule.{name}" for name in sorted({*schedule_options(), *batch_schedule_options()})]
    options = [
        f"{part}.OPTION" for part in ("workload", *_OPTIONAL, "optimizer", *(c.name for c in sweep.axes.optimizers))
    ]
    known = dict.fromkeys([*OF_TRIAL, *NAMES, *RUN, *_OPTIONAL, "target.METRIC", *nested, *schedule, *options])
    if key == "help":
        return f"--set: the keys are {', '.join(known)}; 'cbs explain --settings' says what they mean"
    near = get_close_matches(key, known, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"--set: unknown key {key!r}; {hint}'cbs explain --settings' lists the keys"

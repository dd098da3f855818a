"""Build the sweep that the options of ``cbs sweep`` ask for, trained here or by an external program."""

import functools
import itertools
import math
import os
import shlex
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from analysis.formatting import plural
from cbs.errors import ConfigError
from cbs.optimizers import OPTIMIZERS
from cbs.registry.choices import Choice, parse_choice, parse_value, value_text
from cbs.registry.commands import masked
from cbs.registry.values import parse_batch_sizes, parse_numbers, parse_seeds
from cbs.training.parents import parent_at
from cbs.trial.config import COMMAND
from sweeps.external.trainer import REPORT, ExternalTrainer, trained_by, variables_of
from sweeps.spec.combinations import refuse
from sweeps.spec.given_rates import is_rule, parse_lr_rule
from sweeps.spec.lengths import in_examples, parse_budgets
from sweeps.spec.overrides import options_of, override
from sweeps.spec.spec import UNRESOLVED, Sweep
from sweeps.spec.workload import built, calling_theirs

_FLAGS = {"columns": "column", "from_": "from"}  # Options whose parameters have other names


def asked_sweep(recipe: Sweep, asked: Mapping[str, Any], program: Mapping[str, Any], finds: bool = False) -> Sweep:
    """Return the recipe with the options ``asked`` (of ``sweep_flags`` and ``program_flags``) applied; if the batch
    sizes are to be found, ``finds``, those of the recipe need not all fit into a budget."""
    given = {**asked, **program, "reads": None if program["reads"] == REPORT else program["reads"]}
    refuse({f"--{_FLAGS.get(name, name).replace('_', '-')}" for name, value in given.items() if value})
    axes = ("workload", "optim", "batch_sizes", "lrs", "seeds", "schedule", "axis")
    sweep = with_flags(recipe, **{name: asked[name] for name in axes})
    if asked["from_checkpoint"] is not None:
        sweep = sweep.replace(parent=parent_at(asked["from_checkpoint"]))
    amounts = None if asked["budget"] is None else parse_budgets(asked["budget"])
    target = 0.0 if amounts and asked["target"] is None else asked["target"]
    trainer = program_of(**program, target=target, optimizers=asked["optim"])
    if trainer is not None:
        if "seed" not in trainer.places and asked["seeds"] is not None and len(sweep.axes.seeds) > 1:
            raise ConfigError(
                f"--command has no {{seed}}: {len(sweep.axes.seeds)} seeds would be one run, counted several times; "
                "add it, or give --seeds 1"
            )
        budgets = in_examples(*amounts, trainer.tokens_per_example) if amounts else ()
        return trained_by(trainer, _within(sweep, budgets) if finds else sweep, target, asked["settings"], budgets)
    sweep = override(sweep, asked["settings"])
    if program["metric"] is not None:
        sweep = sweep.replace(metric=program["metric"], target=UNRESOLVED)
    if amounts is None:
        return sweep
    per_example = None
    if amounts[1]:
        with calling_theirs():
            per_example = built(sweep.trial.workload).tokens_per_example
    budgets = in_examples(*amounts, per_example)
    return (_within(sweep, budgets) if finds else sweep).replace(budgets=budgets)


def _within(sweep: Sweep, budgets: Sequence[int]) -> Sweep:
    """Return the sweep with those of its batch sizes whose warmup ends within the smallest budget; at least one."""
    least = min(budgets, default=math.inf)
    sizes = [size for size in sweep.axes.batch_sizes if max(size, sweep.schedule.at(size).warmup_examples + 1) <= least]
    return sweep.replace(batch_sizes=tuple(sizes) or sweep.axes.batch_sizes[:1])


_INTERPRETERS = ("python", "torchrun", "accelerate", "deepspeed", "bash", "sh")


def check_there(command: str, flag: str = "--command") -> None:
    """Raise ``ConfigError`` if the program of a command line, or the script that it is given, is not there."""
    words = shlex.split(command)
    program, *words = words[len(variables_of(words)) :] or [""]
    if "{" not in program and shutil.which(program) is None:
        raise ConfigError(f"{flag}: no program {program!r} is found; check its spelling, or give its whole path")
    before_module = itertools.takewhile(lambda word: word not in ("-c", "-m"), words)
    script = next((word for word in before_module if word.endswith((".py", ".sh")) and "{" not in word), None)
    if script is not None and Path(program).name.startswith(_INTERPRETERS) and not Path(script).exists():
        raise ConfigError(
            f"{flag}: {script} is not in {Path.cwd()}; check its spelling, or start cbs in the folder that has it, "
            "because the command runs in the same folder"
        )


def told_first(sweep: Sweep, cores: int) -> list[str]:
    """Return what the user should know about an external program before any trial, of so many cores, starts."""
    if sweep.trial.workload.name != COMMAND:
        return []
    trainer = ExternalTrainer.of(sweep.trial.workload)
    lines = [f"each trial has {plural(cores, 'core')} (OMP_NUM_THREADS={cores}); --set cpus_per_trial=N gives it more"]
    if "seed" not in trainer.places:
        lines.append(
            "the command has no {seed}: every trial runs once, and as no seeds show how much runs scatter, the "
            "intervals are wide"
        )
    own = [choice.name for choice in sweep.axes.optimizers if choice.name not in OPTIMIZERS]
    if own and not sweep.axes.lrs and sweep.axes.lr_rule is None:
        lines.append(f"{', '.join(own)}: the search starts at learning rates of AdamW; --lrs gives others")
    given = dict(word.split("=", 1) for word in variables_of(shlex.split(trainer.command)))
    if (importer := trainer.importer) and (known := importer.on_following(dict(os.environ) | given)):
        lines.append(known)
    return [f"note: {line}" for line in [*lines, *told_secrets(trainer.command)]]


def told_secrets(command: str) -> list[str]:
    """Return a note if a program is given a key, a token or a password, which every record of the sweep would hold."""
    if (shown := masked(command)) == command:
        return []
    return [
        f"results hold the program's command line as it is, also what is *** in {shown}; give it in an environment "
        "variable instead"
    ]


def program_of(*, optimizers: Sequence[str] | None, **given: Any) -> ExternalTrainer | None:
    """Return the external program that trains; ``None`` if no command is given. ``given`` are the attributes of
    :class:`~sweeps.external.trainer.ExternalTrainer`, ``columns`` as pairs, and ``target``; all that is missing is
    named at once."""
    target = given.pop("target")
    if not given["command"]:
        return None
    from analysis.command_options import pairs
    from analysis.read.importers.settings import ask_for, missing  # importing pandas takes half a second

    absent = missing(target=target, **given)
    absent += [] if optimizers else ["--optim NAME (what it trains with)"]
    if absent:
        raise ask_for(absent)
    columns = pairs("--column", given.pop("columns"))
    trainer = ExternalTrainer(columns=columns, **{name: value for name, value in given.items() if value is not None})
    if trainer.reads != REPORT:
        trainer.settings(target, columns)  # Wrong names of columns are reported before anything runs.
    return trainer


def _choices(texts: Iterable[str]) -> tuple[Choice, ...] | None:
    """Parse choices in the order given, dropping repetitions; ``None`` if there are none."""
    return tuple({str(choice): choice for choice in map(parse_choice, texts)}.values()) or None


_PARSED: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "optimizers": ("optim", _choices),
    "batch_sizes": ("batch_sizes", parse_batch_sizes),
    "seeds": ("seeds", parse_seeds),
    "batch_schedules": ("schedule", _choices),
}


def with_flags(sweep: Sweep, **typed: Any) -> Sweep:
    """Return the sweep with its workload and axes replaced by the options as typed; ``None`` for options not given."""
    asked = {name: parse(typed[flag]) for name, (flag, parse) in _PARSED.items() if typed[flag] is not None}
    if (lrs := typed["lrs"]) is not None:
        asked |= {"lr_rule": parse_lr_rule(lrs)} if is_rule(lrs) else {"lrs": parse_numbers(lrs, "--lrs", float)}
    sweep = sweep.replace(**{name: value for name, value in asked.items() if value is not None})
    return with_axes(sweep if typed["workload"] is None else sweep.on(typed["workload"]), typed["axis"] or ())


def with_axes(sweep: Sweep, axes: Iterable[str]) -> Sweep:
    """Return the sweep with tuned options of the form ``option=value,value,...``; ``option`` applies to every optimizer
    that has it, ``optimizer.option`` to that optimizer only.

    Every combination of values is an optimizer with its own learning-rate search, and the analysis makes one curve of
    them: at every batch size it takes the combination of options and learning rate with the fewest steps, chosen again
    in every resample, as Shallue et al. tune momentum together with the learning rate (2019, "Measuring the Effects of
    Data Parallelism on Neural Network Training", JMLR 20:112, section 4).
    """
    return functools.reduce(_with_axis, axes, sweep)


def _with_axis(sweep: Sweep, text: str) -> Sweep:
    key, equals, listed = (part.strip() for part in text.partition("="))
    if not (key and equals):
        raise ConfigError(f"--axis takes option=value,value,..., got {text!r}; for example --axis momentum=0.9,0.95")
    values = parse_value(f"[{listed}]")
    texts = list(dict.fromkeys(map(value_text, values)))
    if len(texts) < len(values):
        raise ConfigError(f"--axis {text}: a value appears twice")
    if len(texts) < 2:
        raise ConfigError(f"--axis {text}: an axis takes two values or more; --set optimizer.{key}= sets one")
    names = list(dict.fromkeys(choice.name for choice in sweep.axes.optimizers))
    # names of optimizers from libraries contain a dot themselves: torch.adam.eps
    mine = next(((name, key[len(name) + 1 :]) for name in names if key.startswith(f"{name}.")), None)
    option = mine[1] if mine else key.removeprefix("optimizer.")
    having = [name for name in ([mine[0]] if mine else names) if option in options_of(name)]
    if not having:
        known = sorted(set().union(*map(options_of, names)))
        near = get_close_matches(option, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known) or 'none'}"
        raise ConfigError(
            f"--axis {text}: an axis is a setting of the sweep, as --set has them, or an option of an optimizer, and "
            f"{', '.join(names)} has no {option!r}{hint}"
        )
    for choice in sweep.axes.optimizers:
        if choice.name in having and option in choice.options:
            raise ConfigError(f"--axis {text}: {choice} has a value of {option} already; leave one of the two out")
    optimizers = tuple(
        Choice(name=choice.name, options=choice.options | ({option: value} if choice.name in having else {}))
        for choice in sweep.axes.optimizers
        for value in (values if choice.name in having else values[:1])
    )
    tuned = {name: sorted({*sweep.axes.tuned.get(name, []), option}) for name in having}
    return sweep.replace(optimizers=optimizers, tuned=sweep.axes.tuned | tuned)

"""Compose a ``cbs sweep`` command from an earlier one: with other axes for the same folder, or with another target."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.estimate.diagnosis import Verdict
from analysis.estimate.result import Answer
from analysis.estimate.studies import easier_or_equal
from cbs.registry.choices import Choice, parse_choice, value_text
from cbs.schedules.batch_size import batch_schedule_options
from cbs.trial.target import Target

SWITCHES = ("--dry-run", "--json", "--insecure")
"""Options without a value."""

_AXES = (
    *("--optim", "--axis", "--schedule", "--batch-sizes", "--lrs", "--seeds"),
    *("--precision", "--max-runs", "--max-time", "--max-examples", "--output", "--dry-run", "--json"),
)


def adding(
    manifest: Mapping[str, Any],
    folder: Path,
    optimizer: Choice,
    batch_sizes: Sequence[int],
    seeds: Sequence[int],
    lrs: Sequence[float] | None,
    target: Target | None = None,
    settings: Mapping[str, float] | None = None,
) -> str:
    """Return a shell command; empty if the sweep was not run by ``cbs sweep``.

    Recipe, target, workload and settings are those of the latest command that ran this optimizer, so the protocol is
    the same and the trials are added to the existing ones. ``seeds`` are all seeds, and ``lrs`` is ``None`` for a
    search. ``manifest`` is the content of ``sweep.json`` in ``folder``. A sweep with another ``target``, or with other
    ``settings``, has a folder beside it, and its search starts from the best learning rates there.
    """
    runs = [] if manifest.get("imported") else manifest.get("runs")
    commands = [run.get("command") for run in runs if isinstance(run, dict)] if isinstance(runs, list) else []
    parts = (parsed(text) for text in commands if isinstance(text, str))
    earlier = [options for options in parts if options is not None]
    if not earlier:
        return ""
    names = [
        {value.partition("(")[0].strip() for option, value in options if option == "--optim"} for options in earlier
    ]
    mine = [options for options, its in zip(earlier, names, strict=True) if optimizer.name in its]
    # options of optimizers are given with --optim, and a curve of steps against batch size has no batch schedules
    covered = (
        *(f"{name}." for name in {"optimizer", optimizer.name}.union(*names)),
        *(f"schedule.{option}=" for option in batch_schedule_options()),
        *("policy=", *(() if lrs is None else ("search=", "lr_resolution="))),
    )
    words = ["cbs", "sweep"]
    repeated = (mine or earlier)[-1]
    changed = {f"{key}=": f"{key}={value}" for key, value in (settings or {}).items()}
    anew = (*(() if target is None else ("--target", "--from")), *(("--from",) if changed else ()))
    left_out = (*_AXES, *(() if lrs is None else ("--from",)), *anew)
    covered += tuple(changed)
    for option, value in repeated:
        if option not in left_out and not (option == "--set" and value.startswith(covered)):
            words += [option] if option in SWITCHES else [option, value]
    set_here = [value for option, value in repeated if option == "--set"]
    across = any(value.startswith("policy=") for value in set_here)
    words += _width(manifest) if across and not any(value.startswith("workload.width=") for value in set_here) else []
    words += ["--optim", str(optimizer), *_tuned(manifest.get("axes"), optimizer.name)]
    words += ["--batch-sizes", ",".join(map(str, batch_sizes))]
    # a single number without a comma would be a count
    words += ["--seeds", f"{seeds[0]}," if len(seeds) == 1 else ",".join(map(str, seeds))]
    words += [] if lrs is None else ["--lrs", ",".join(map(repr, lrs))]
    words += [] if target is None else ["--target", repr(target.value)]
    words += [word for setting in changed.values() for word in ("--set", setting)]
    if anew:
        words += ["--from", str(folder)]
        at = "" if target is None else f"-at-{target.value:g}"
        often = any(key.startswith("evaluation.") for key in changed)
        how = "-often-evaluated" if often else "-short-warmup" if changed else ""
        folder = folder.with_name(f"{folder.name}{at}{how}")
    return shlex.join([*words, "--output", str(folder)])


def at_harder_target(answer: Answer) -> str:
    """Return the command of a sweep at the target of ``answer``, where that is harder than the one at which trials
    stopped and no batch size reached it; empty otherwise, or if the sweep was not run by ``cbs sweep``."""
    group, target = answer.group, answer.target
    harder = group.stops_at_target and not group.beside and not easier_or_equal(target, group.target)
    if answer.verdict is not Verdict.NOT_REACHED or not harder:
        return ""
    sizes = sorted({study.batch_size for study in answer.studies})
    seeds = sorted({int(seed) for study in answer.studies for seed in study.seeds})
    return adding(group.manifest, group.folder, group.choice, sizes, seeds, None, target=target)


def _width(manifest: Any) -> list[str]:
    """Return the option for the width of the folder, one of those across which the policy of its command went."""
    for key in ("protocol", "workload", "options", "width"):
        manifest = manifest.get(key) if isinstance(manifest, dict) else None
    return [] if manifest is None else ["--set", f"workload.width={value_text(manifest)}"]


def _tuned(axes: Any, name: str) -> Iterator[str]:
    """Yield the axes that were tuned together with the learning rate, with all values that the sweep has."""
    tuned = axes.get("tuned") if isinstance(axes, dict) else None
    for option in tuned.get(name, ()) if isinstance(tuned, dict) else ():
        choices = [choice for choice in map(parse_choice, axes["optimizers"]) if choice.name == name]
        values = dict.fromkeys(value_text(choice.options.get(option)) for choice in choices)
        yield from ("--axis", f"{option}={','.join(values)}")


def parsed(command: str) -> list[tuple[str, str]] | None:
    """Parse a ``cbs sweep`` command into long options with their values; ``None`` if it is not such a command."""
    words = shlex.split(command)
    if "sweep" not in words[1:2]:
        return None
    flags, rest = [], iter(words[2:])
    for word in rest:
        name, equals, value = word.partition("=")
        if word in SWITCHES:
            flags.append((word, ""))
        elif word.startswith("-o") and not word.startswith("--"):
            flags.append(("--output", word[2:] or next(rest, "")))
        else:
            flags.append((name, value if equals else next(rest, "")))
    return flags

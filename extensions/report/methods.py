"""Write the methods paragraph of a paper, in LaTeX, about a result: what was run, how it was analysed, what is open.

It contains only what ``sweep.json`` and the trials record; what neither records is listed in a comment, to be filled in
by the author.
"""

import functools
import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cbs
from analysis.config import DEFAULT, AnalysisConfig
from analysis.estimate.definitions import DEFINITIONS, HEADLINE, in_words, math_symbol, symbol
from analysis.estimate.estimates import answers
from analysis.estimate.result import Answer
from analysis.formatting import number, percent, plural
from analysis.present.answers import example_units, lrs_tried
from analysis.present.sentences import judged, sentence
from analysis.present.table import ESCAPED
from analysis.read.results import load
from cbs.registry.choices import Choice
from cbs.trial.config import COMMAND, ENDLESS, UNKNOWN
from cbs.trial.target import Target

SOFTWARE = "cbs"  # Key of the entry of this program

GAUSSIAN_PROCESSES = "rasmussen2006gaussian"

ARXIV = re.compile(r"arXiv:(\d{4}\.\d{5})")
_EPRINT = re.compile(r"eprint = \{([^}]*)\}")
# Field with the registered names of the optimizers that a paper introduces; not printed
_OPTIMIZERS = re.compile(r", optimizers = \{([^}]*)\}")


@functools.cache
def entries() -> dict[str, str]:
    """Return the BibTeX entries by key, from ``sources.bib`` beside this file and of this program."""
    lines = (Path(__file__).parent / "sources.bib").read_text().splitlines()
    known = {line[line.index("{") + 1 : line.index(",")]: line for line in lines if line.startswith("@")}
    title = "{cbs}: critical batch sizes of optimizers, with intervals"
    note = f"Version {cbs.__version__}, package critical-batch-size"
    known[SOFTWARE] = (
        f"@misc{{{SOFTWARE}, title = {{{title}}}, author = {{{{The cbs developers}}}}, note = {{{note}}}}}"
    )
    return known


def bibtex(keys: list[str]) -> str:
    """Return the entries of these keys, each once, one field per line."""
    texts = (_OPTIMIZERS.sub("", entries()[key]) for key in dict.fromkeys(keys))
    return "\n\n".join(re.sub(r", (?=\w+ = \{)", ",\n  ", text)[:-1] + "\n}" for text in texts)


def cited(name: str) -> list[str]:
    """Return the arXiv numbers that a definition cites, each once."""
    return list(dict.fromkeys(ARXIV.findall(inspect.getdoc(DEFINITIONS[name]) or "")))


def of_definition(name: str) -> list[str]:
    """Return the keys of the sources that a definition cites by arXiv number."""
    numbers = cited(name)
    return [key for key, entry in entries().items() if (found := _EPRINT.search(entry)) and found[1] in numbers]


def of_optimizer(choice: Choice) -> list[str]:
    """Return the keys of the papers whose entry names an optimizer; none for custom code, for optimizers known only
    from imports, and for classes of a library."""
    fields = {key: _OPTIMIZERS.search(entry) for key, entry in entries().items()}
    return [key for key, found in fields.items() if found and choice.name in found[1].split(", ")]


UNNAMED = "imported"  # Name of the workload of runs that were imported without one

_SHORT = 10  # Number of digits of a commit


@dataclass(frozen=True, kw_only=True)
class Methods:
    """One paragraph per sweep, in LaTeX, and the BibTeX entries that they cite."""

    paragraphs: tuple[str, ...]
    bibtex: str

    def to_json(self) -> dict[str, Any]:
        return {"paragraphs": list(self.paragraphs), "bibtex": self.bibtex}


def methods(
    path: str | os.PathLike[str],
    *,
    targets: Sequence[float | Target] | None = None,
    metric: str | None = None,
    config: AnalysisConfig = DEFAULT,
) -> Methods:
    """Describe how the critical batch sizes of a folder of results were measured, for use in a paper.

    Args:
        path, targets, metric, config: as for :func:`analysis.analyze`, including errors.
    """
    by_sweep: dict[str, list[Answer]] = {}
    for answer in answers(load(path, metric=metric), config, targets=targets):
        by_sweep.setdefault(answer.group.sweep, []).append(answer)
    keys = of_definition(config.definition)
    for members in by_sweep.values():
        for answer in members:
            keys += [GAUSSIAN_PROCESSES] if answer.draws else []
            keys += of_optimizer(answer.group.choice)
    paragraphs = tuple(_paragraph(members) for members in by_sweep.values())
    return Methods(paragraphs=paragraphs, bibtex=bibtex([*keys, SOFTWARE]))


def _paragraph(members: Sequence[Answer]) -> str:
    """Return a paragraph with one sentence per line; comments list what is not recorded, and what to quote."""
    manifest = members[0].group.manifest
    recorded = manifest.get("protocol")
    protocol = {
        name: value
        for name, value in (recorded if isinstance(recorded, dict) else {}).items()
        if value != UNKNOWN and (name, value) != ("max_steps", ENDLESS)
    }
    sentences = [
        *_definition(members[0]),
        *_trials(members, protocol),
        *_learning_rate(members, manifest, protocol),
        *_curve(members),
        *_software(manifest),
    ]
    needed = {"schedule": "learning-rate schedule", "max_steps": "budget", "precision": "precision"}
    missing = [words for name, words in needed.items() if protocol.get(name) is None]
    missing += [] if _commit(manifest) else ["commit"]
    if missing:
        sentences.append(f"% Not recorded, to be filled in: {', '.join(missing)}.")
    return "\n".join([*sentences, *(f"% {line}" for line in judged(members, each=True))])


def _definition(answer: Answer) -> Iterator[str]:
    critical, name = answer.critical, answer.critical.definition
    said = _tex(sentence(critical)).replace(_tex(symbol(name)), math_symbol(name))
    said = said.replace(_tex("steps x examples, B S(B)^2,"), r"steps $\times$ examples, $B\,S(B)^2$,")
    called = in_words(name, critical.options)
    yield f"In the definition \\emph{{{_tex(called)}}}{_cite(of_definition(name))}, {said}."
    if called == HEADLINE:
        yield r"On the hyperbola it is $E_{\mathrm{min}} / S_{\mathrm{min}}$."


def _trials(members: Sequence[Answer], protocol: Mapping[str, Any]) -> Iterator[str]:
    unit, workload = example_units(members), ", ".join(dict.fromkeys(answer.group.workload for answer in members))
    targets = ", ".join(dict.fromkeys(_tex(str(answer.target)).replace(r"\_", " ") for answer in members))
    trained = "our model" if workload == COMMAND else _tex(workload)
    optimizers = {}
    for answer in members:
        name = answer.group.optimizer
        options = answer.group.choice.options if "(" not in name else {}
        given = f" ({_tex(', '.join(f'{key} {value}' for key, value in options.items()))})" if options else ""
        optimizers[name] = _tex(name) + given + _cite(of_optimizer(answer.group.choice))
    parameters = {answer.group.parameters for answer in members}
    size = f" ({number(parameters.pop())} parameters)" if len(parameters) == 1 and None not in parameters else ""
    until = "until each run reached" if members[0].group.stops_at_target else "and read the first step past"
    if workload == UNNAMED:
        yield f"From imported runs with {_and(list(optimizers.values()))} we read the first step past {targets}."
    else:
        yield f"We trained {trained}{size} with {_and(list(optimizers.values()))} {until} {targets}."
    sizes = _each(members, lambda a: _and([f"{point.batch_size}" for point in a.points]))
    seeds = _each(members, _seeds)
    tokens = {answer.group.tokens_per_example for answer in members}
    length = f" of {tokens.pop()} tokens" if len(tokens) == 1 and None not in tokens else ""
    yield f"Batch sizes were {sizes} {_tex(unit)}{length}, with {seeds} at each."
    if "max_steps" in protocol:
        examples = protocol.get("max_examples") or 0
        more = f" plus {examples:,} {_tex(unit)} divided by the batch size" if examples else ""
        yield f"A run took at most {protocol['max_steps']:,} steps{more}."
    if growth := (protocol.get("evaluation") or {}).get("growth"):
        yield (
            f"The metric was evaluated at steps growing by a factor of {growth:g} near the target, and the steps to it "
            "were read from a line in their logarithm through the last of these evaluations."
        )


def _seeds(answer: Answer) -> str:
    fewest, most = (end(point.seeds for point in answer.points) for end in (min, max))
    return plural(most, "seed") if fewest == most else f"{fewest} to {most} seeds"


def _at_edge(answer: Answer) -> bool:
    """Whether some best learning rate is the lowest or highest that was tried there, known from elsewhere or not."""
    return any(study.winner is not None and study.at_edge(study.winner) for study in answer.studies)


def _learning_rate(
    members: Sequence[Answer], manifest: Mapping[str, Any], protocol: Mapping[str, Any]
) -> Iterator[str]:
    axes = manifest.get("axes")
    if isinstance(axes, dict) and axes.get("lr_rule"):
        yield f"The learning rate was prescribed at every batch size ({_tex(', '.join(axes['lr_rule']))})."
        how = ""
    elif isinstance(axes, dict) and axes.get("lrs"):
        how = f"was chosen at every batch size among {_and([f'{lr:g}' for lr in axes['lrs']])}"
    elif isinstance(axes, dict):
        inside = not any(point.reached and point.at_grid_edge for answer in members for point in answer.points)
        how = "was searched at every batch size"
        how += " until the best one had a worse one on either side" if inside else ""
        how += ", or was known from other batch sizes" if inside and any(map(_at_edge, members)) else ""
    else:
        how = "was chosen at every batch size among those that were run"
    if how:
        tried = _each(members, lambda a: "{:.3g} to {:.3g}".format(*(lrs_tried(a) or (float("nan"),) * 2)))
        known = "" if "nan" in tried else f" (tried: {tried})"
        yield f"The learning rate {how}{known}; the one with the fewest steps over all seeds counts."
    if protocol.get("prune_factor"):
        yield f"Runs that had passed {protocol['prune_factor']:g} times the steps of the best were stopped."
    schedule = protocol.get("schedule")
    if isinstance(schedule, dict):
        yield f"{_schedule(schedule)}{_further(protocol)}."


def _schedule(schedule: Mapping[str, Any]) -> str:
    options = ", ".join(f"{name} {value}" for name, value in (schedule.get("options") or {}).items())
    text = f"Its schedule was {_tex(str(schedule.get('name')))}{f' ({_tex(options)})' if options else ''}"
    unit = "steps" if schedule.get("warmup_examples") is None else "examples"  # examples replace steps
    if length := schedule.get(f"warmup_{unit}"):
        text += f" after a linear warmup of {length:,} {unit}"
    if schedule.get("decay_examples"):
        text += (
            f", decaying over {schedule['decay_examples']:,} examples to {schedule.get('final_fraction', 0):g} of it"
        )
    return text


def _further(protocol: Mapping[str, Any]) -> str:
    """Describe what else was done at every step, if it is not the default."""
    parts = [f"{protocol['precision']} arithmetic"] if protocol.get("precision") else []
    parts += [f"gradients clipped to norm {protocol['clip_norm']:g}"] if protocol.get("clip_norm") else []
    if isinstance(averaging := protocol.get("averaging"), dict):
        parts.append(f"weights averaged ({_tex(str(averaging.get('name')))})")
    return f", with {_and(parts)}" if parts else ""


def _curve(members: Sequence[Answer]) -> Iterator[str]:
    drawn = [answer.draws for answer in members if answer.draws is not None]
    if drawn:
        paired = any(draws.freedom for draws in drawn)
        seeds = ", and runs of one seed were paired by a covariance that was estimated" if paired else ""
        yield (
            r"The logarithm of the steps to target $S$ against that of the batch size $B$ was modelled as a power law "
            "plus a departure whose slope is a Gaussian process of a size that was learned"
            f"{_cite([GAUSSIAN_PROCESSES])}{seeds}; brackets hold {percent(members[0].confidence)}\\,\\% "
            f"intervals, percentiles of {members[0].config.resamples:,} posterior draws of the curve, with the error "
            "of choosing a learning rate."
        )
    several = len({str(answer.target) for answer in members}) > 1
    notes = []
    for answer in members:
        if answer.advice:
            who = answer.group.optimizer + (f", {answer.target}" if several else "")
            notes.append(f"{_tex(who)}: {_tex(answer.judgement)}.")
    if notes:
        yield rf"Not every answer is beyond doubt.\footnote{{{' '.join(notes)}}}"


def _software(manifest: Mapping[str, Any]) -> Iterator[str]:
    run = _run(manifest)
    versions = run.get("versions") or {}
    named = [f"{name} {versions[name]}" for name in ("torch", "ray") if versions.get(name)]
    on = f" on {_tex(run['hardware']['processor'])}" if (run.get("hardware") or {}).get("processor") else ""
    gpus = (run.get("hardware") or {}).get("gpus") or []
    on = f" on {_tex(_and(list(dict.fromkeys(map(str, gpus)))))}" if gpus else on
    commit = f", commit \\texttt{{{_commit(manifest)}}}" if _commit(manifest) else ""
    version = versions.get("cbs")
    measured = f"Runs were made with \\texttt{{cbs}} {_tex(str(version))}{commit}" if version else "Runs were imported"
    with_others = f" ({_tex(', '.join(named))})" if version and named else ""
    yield (
        f"{measured}{with_others}{on if version else ''} and analyzed with \\texttt{{cbs}} {_tex(cbs.__version__)}"
        f"{_cite([SOFTWARE])}."
    )


def _run(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    runs = [run for run in manifest.get("runs") or () if isinstance(run, dict) and "merged" not in run]
    return runs[-1] if runs else {}


def _commit(manifest: Mapping[str, Any]) -> str:
    commit = (_run(manifest).get("git") or {}).get("cbs") or ""
    return commit[:_SHORT] + ("-dirty" if commit.endswith("-dirty") else "")


def _each(members: Sequence[Answer], words: Callable[[Answer], str]) -> str:
    """Return what ``words`` says about every optimizer; only once if it is the same for all."""
    by_words: dict[str, list[str]] = {}
    for answer in members:
        by_words.setdefault(words(answer), []).append(answer.group.optimizer)
    if len(by_words) == 1:
        return next(iter(by_words))
    return "; ".join(f"{text} ({_tex(', '.join(dict.fromkeys(names)))})" for text, names in by_words.items())


def _and(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _cite(keys: Sequence[str]) -> str:
    return f"~\\cite{{{','.join(keys)}}}" if keys else ""


def _tex(text: str) -> str:
    return text.translate(ESCAPED)

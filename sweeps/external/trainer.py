"""Description of an external training program (``cbs sweep --command``): how to start it and read its log."""

from __future__ import annotations

import dataclasses
import itertools
import re
import shlex
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cbs.errors import ConfigError
from cbs.registry.choices import Choice, value_text
from cbs.training.reporting import FOLDER
from cbs.trial.config import COMMAND, CONSTANT, ENDLESS, OF_TRAINER, TrialConfig
from cbs.trial.target import Target
from sweeps.spec.axes import Cell
from sweeps.spec.lengths import ScheduleRule
from sweeps.spec.overrides import override
from sweeps.spec.spec import Sweep, prototype

if TYPE_CHECKING:
    from analysis.read.importers import Importer, Settings

REPORT = "report"  # Format of the log that :func:`cbs.report` writes
_COUNTERS = ("step", "examples")
ALONE = {"nodes": "1", "node_rank": "0", "head": "localhost"}
"""Values of the placeholders about nodes in a trial on one of them."""
_PLACES = ("batch_size", "lr", "seed", "folder", "optimizer", "steps", "port", "resume", "checkpoint", *ALONE)
_SET = ("parent", "max_steps", "max_examples", "prune_factor", "search", "lr_resolution", "within")
_TOLD = {
    "batch_size": "every batch size would give the same run",
    "lr": "every learning rate would give the same run",
}
_VARIABLE = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
# Words that only a shell knows: as the program, and anywhere
_BUILT_IN, _OPERATORS = ("cd", "source", ".", "export", "ulimit", "module"), ("&&", "||", "|", ";", "&", ">", ">>", "<")


@dataclass(frozen=True, kw_only=True)
class ExternalTrainer:
    """An external program that trains; what is not named here is as in :class:`~analysis.read.importers.Settings`.

    Attributes:
        command: its command line with the placeholders ``{batch_size}``, ``{lr}``, ``{seed}``, ``{folder}`` (of this
            trial alone), ``{optimizer}``, the options of the optimizer by their names, ``{steps}`` (the budget),
            ``{port}`` (a free one), ``{nodes}``, ``{node_rank}`` and ``{head}`` (the first node), ``{checkpoint}`` (to
            start from) and ``{resume}``. It is split as a shell would split it, but no shell runs it. Environment
            variables may stand before the program.
        reads: format of its log: ``"report"`` for what :func:`cbs.report` writes, or a format that ``cbs import``
            reads, of a file or of what the program prints.
        resume: what ``{resume}`` is replaced by if an earlier attempt at the same trial was cut short; otherwise it is
            replaced by nothing.
    """

    command: str
    metric: str
    direction: str
    metric_unit: str
    example_unit: str
    tokens_per_example: int | None = None
    reads: str = REPORT
    columns: Mapping[str, str] = field(default_factory=dict)
    resume: str = ""

    def __post_init__(self) -> None:
        from analysis.read.importers import IMPORTERS

        if self.metric in _COUNTERS:
            raise ConfigError(
                f"--metric {self.metric} measures progress, not quality: name the metric that has the target"
            )
        if self.reads != REPORT and self.reads.partition("(")[0] not in IMPORTERS:
            others = {kind.also: name for name in IMPORTERS if (kind := IMPORTERS[name]).also}
            if self.reads not in others:
                known = ", ".join([REPORT, *IMPORTERS, *others])
                raise ConfigError(f"--reads {self.reads}: no such format; known are {known}")
            object.__setattr__(self, "reads", others[self.reads])
        counts = getattr(self.importer, "counts_tokens", "")
        if counts and self.tokens_per_example is None:
            raise ConfigError(
                f"--reads {self.reads}: the program prints the tokens of an update, which are compared with the batch "
                f"size: give its {counts} as --tokens-per-example N"
            )
        words = self._tokens[len(variables_of(self._tokens)) :]
        for index, word in enumerate(words):
            if word in _OPERATORS or (index == 0 and word in _BUILT_IN):
                raise ConfigError(f"--command has {word!r}, but no shell runs it: write bash -c '...' around the line")
        named = self.places
        for name, what in _TOLD.items():
            if name not in named:
                strange = sorted(named - {*_PLACES})
                near = get_close_matches(name, strange, n=1, cutoff=0.5) or strange
                instead = f" but {{{near[0]}}}: if that is it, write {{{name}}}; without it" if near else ":"
                raise ConfigError(f"--command has no {{{name}}}{instead} {what}")
        if self.reads != REPORT and not self.prints and "folder" not in named:
            raise ConfigError(
                "--command has no {folder}, so the program cannot know where to write its log; what it prints is read "
                "by --reads 'stdout(step=PATTERN, metric=PATTERN)'"
            )
        if "resume" in named and "{resume}" not in self._tokens:
            raise ConfigError(
                "{resume} in --command must stand alone: it is replaced by nothing, or by the value of --resume"
            )
        if bool(self.resume) != ("resume" in named):
            without = "--command has {resume}: give what replaces it, as in --resume --resume"
            raise ConfigError("--resume is given, but --command has no {resume}" if self.resume else without)

    @property
    def places(self) -> set[str]:
        """Names in braces in the command."""
        return {name for token in self._tokens for name in _fields(token)}

    @property
    def importer(self) -> Importer | None:
        """What reads its log; ``None`` for what :func:`cbs.report` writes."""
        from analysis.read.importers.base import importer

        return None if self.reads == REPORT else importer(self.reads)

    @property
    def prints(self) -> bool:
        """Whether the log is what the program prints."""
        from analysis.read.importers.printed import Printed

        return isinstance(self.importer, Printed)

    @classmethod
    def of(cls, workload: Choice) -> ExternalTrainer:
        """Inverse of :meth:`choice`."""
        return cls(**workload.options)

    def choice(self) -> Choice:
        """Return the program as the workload of a configuration."""
        given = {part.name: getattr(self, part.name) for part in dataclasses.fields(self)}
        return Choice(name=COMMAND, options={n: v for n, v in given.items() if v and (n, v) != ("reads", REPORT)})

    def argv(
        self, trial: TrialConfig, folder: Path, *, resumed: bool, port: int = 0, node: Mapping[str, str] = ALONE
    ) -> list[str]:
        """Return the program and its arguments for one trial; the program is ``env`` if variables stand before it."""
        values = self._values(trial, folder, port) | dict(node)
        if "{steps}" in self.command and trial.max_steps >= ENDLESS:
            raise ConfigError("--command has {steps}: set the largest number, with --set max_steps=N")
        arguments: list[str] = []
        for token in self._tokens:
            if token == "{resume}":
                arguments += [_filled(part, values) for part in shlex.split(self.resume)] if resumed else []
            else:
                arguments.append(_filled(token, values))
        return ["env", *arguments] if variables_of(arguments) else arguments

    def filled(self, line: str, trial: TrialConfig, folder: Path) -> list[str]:
        """Return the words of a line with its placeholders replaced, such as the ``--launch`` of a trial."""
        return [_filled(word, self._values(trial, folder)) for word in shlex.split(line)]

    def _values(self, trial: TrialConfig, folder: Path, port: int = 0) -> dict[str, str]:
        options = trial.optimizer.options.items()
        return {
            **{name: value if isinstance(value, str) else value_text(value) for name, value in options},
            **({} if trial.parent is None else {"checkpoint": trial.parent.source}),
            **ALONE,
            **{name: str(getattr(trial, name)) for name in ("batch_size", "lr", "seed")},
            "folder": str(folder),
            "optimizer": trial.optimizer.name,
            "steps": str(trial.max_steps),
            "port": str(port),
        }

    def settings(self, target: float | None, columns: Mapping[str, str], run: str = "a trial") -> Settings:
        """Return how to read the log of one run, given the names of its columns."""
        from analysis.read.importers import Settings

        about = {"metric": self.metric, "direction": self.direction, **self.units}
        return Settings(**about, target=target, columns=columns, constants={"run": run})

    @property
    def units(self) -> dict[str, Any]:
        """Units of a trial's numbers, as stored in its record."""
        return {name: getattr(self, name) for name in ("example_unit", "tokens_per_example", "metric_unit")}

    @property
    def _tokens(self) -> list[str]:
        try:
            return shlex.split(self.command)
        except ValueError as error:
            raise ConfigError(f"--command {self.command!r}: {error}") from None


def trained_by(
    trainer: ExternalTrainer, sweep: Sweep, target: float | None, settings: Iterable[str], budgets: tuple[int, ...] = ()
) -> Sweep:
    """Return the sweep with its trials trained by an external program.

    Only the axes and the pruning of the recipe are used; everything else is up to the program and unknown here, so that
    ``settings`` (``key=value``) may be of the budget, pruning and options of optimizers. With ``budgets``, numbers of
    examples that every trial sees, no ``target`` is needed.

    Raises:
        ConfigError: if the target is missing, a setting is one that the program decides, the command contains a
            placeholder that has no value, or two optimizers would give the same trials.
    """
    if budgets and "{steps}" not in trainer.command:
        raise ConfigError("--command has no {steps}: with --budget the program must know how many updates to make")
    if (sweep.start.parent is None) == ("{checkpoint}" in trainer.command):
        scratch = "no {checkpoint}: every trial would start from scratch, not from the checkpoint"
        given = "{checkpoint}: give the checkpoint with --from-checkpoint PATH"
        raise ConfigError(f"--command has {given if sweep.start.parent is None else scratch}")
    if target is None and not budgets:
        raise ConfigError("a program's metric has no default target: give --target VALUE")
    made = Sweep(
        name=COMMAND,
        trial=prototype(
            workload=trainer.choice(),
            target=Target(metric=trainer.metric, value=target or 0.0, direction=trainer.direction),  # type: ignore[arg-type]
            probe=None,
            unknown=OF_TRAINER,
        ),
        axes=dataclasses.replace(
            sweep.axes,
            seeds=sweep.axes.seeds if "seed" in trainer.places else sweep.axes.seeds[:1],
            budgets=budgets,
            batch_schedules=(Choice(name=CONSTANT),),
        ),
        search=sweep.search,
        start=sweep.start,
        max_steps=ENDLESS,
        max_examples=0,
        schedule=ScheduleRule(warmup_steps=0) if budgets else ScheduleRule(),
    )
    for setting in settings:
        head = setting.partition("=")[0].strip().partition(".")[0]
        if head not in _SET and head not in ("optimizer", *(choice.name for choice in made.axes.optimizers)):
            raise ConfigError(f"--set {head}: the program decides it; settings of the sweep are {', '.join(_SET)}")
    made = override(made, settings)
    lines: dict[str, str] = {}
    for text in made.choices:
        trial = made.trial_at(Cell(text, made.axes.batch_sizes[0], made.axes.seeds[0]), made.lr_grid(text)[0])
        line = shlex.join(trainer.argv(dataclasses.replace(trial, lr=1.0), Path("folder"), resumed=True))
        if (other := lines.setdefault(line, text)) != text:
            raise ConfigError(f"--command has no {{optimizer}}: {other} and {text} would give the same run")
    return made


def variables_of(words: Sequence[str]) -> list[str]:
    """Return the words ``NAME=VALUE`` that stand before the program."""
    return list(itertools.takewhile(_VARIABLE.fullmatch, words))


def _fields(token: str) -> Iterator[str]:
    try:
        parts = list(string.Formatter().parse(token))
    except ValueError as error:
        raise ConfigError(f"--command, {token!r}: {error}; write {{{{ for a brace") from None
    for _, name, form, conversion in parts:
        if name is not None:
            if form or conversion or not name.isidentifier():
                raise ConfigError(f"--command, {token!r}: write the name alone in braces, and {{{{ for a brace")
            yield name


def _filled(token: str, values: Mapping[str, str]) -> str:
    for name in _fields(token):
        if name not in values:
            known = sorted({*values, *_PLACES})
            near = get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"; did you mean {{{near[0]}}}?" if near else ""
            raise ConfigError(f"--command has {{{name}}}, which is none of {', '.join(known)}{hint}")
    return token.format(**values)


def environment_of(folder: Path, threads: int) -> dict[str, str]:
    """Return what is added to the environment of a program in the folder of its trial, which has ``threads`` cores."""
    # Python holds back what it prints to a file, so that the log would be empty for minutes
    cores = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    return {FOLDER: str(folder), "PYTHONUNBUFFERED": "1", **cores}

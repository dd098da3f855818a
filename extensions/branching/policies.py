"""``cbs branch``: a run at one batch size, the trunk, and branches that start from its checkpoints.

Trunk and branches are trials in one folder. Each sweep holds the trunk of an optimizer, or branches of one optimizer at
one checkpoint: all of them, or those that a sequential test (:mod:`extensions.branching.sequential`) requests
next from the losses of earlier branches.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from cbs.errors import ConfigError
from cbs.training.birth import check_parent
from cbs.training.parents import digest, kept_path, parent_at, read_checkpoint
from cbs.trial.config import COMMAND, Choice, TrialConfig
from cbs.trial.parent import Parent
from cbs.trial.record import TrialResult, TrialStatus
from cbs.trial.store import Store
from extensions.branching.plan import AT, FACTORS, BranchPlan, branch_plan
from sweeps.launching.policies import POLICIES, Policy, SweepReport, Underway
from sweeps.outlook.cost import Cost
from sweeps.outlook.report import reasons, write_reasons
from sweeps.search.search import Limits, Search
from sweeps.search.trial_table import middle
from sweeps.spec.axes import Cell
from sweeps.spec.overrides import RunKey
from sweeps.spec.spec import Sweep
from sweeps.spec.workload import built, calling_theirs

if TYPE_CHECKING:  # every sweep imports the policies; importing scipy takes a second
    from extensions.branching.sequential import BracketedFactor, CheckpointTest

OF_BRANCHES = {
    "parent.optimizer": RunKey(str, "keep", "State of the optimizer in a branch: keep or reset."),
    "parent.warmup_examples": RunKey(int, "0", "Examples of a linear warmup at the start of a branch."),
}
"""Keys that say in ``cbs branch`` of every branch what they say of a trial with ``--from-checkpoint``."""


@dataclass(frozen=True)
class Trunk:
    """A run from whose checkpoints branches start.

    Attributes:
        choice: optimizer of the run.
        label: label of the optimizer.
        lr: learning rate of the run.
        base: sweep from which those of the branches are made; its schedule is the one at the trunk's batch size.
        sweep: sweep that trains the run; ``None`` if the user gave checkpoints.
    """

    choice: Choice
    label: str
    lr: float
    base: Sweep
    sweep: Sweep | None


@POLICIES.register("branch")
class Branch(Policy):
    """Trains a trunk for each optimizer, and then the branches from its checkpoints.

    The sweep describes the trunk: its only batch size, its learning rate (by default the middle of the optimizer's
    grid) and its budget. Its first seed is that of the trunk; a branch with this seed continues with the trunk's data.

    Args:
        at: where branches begin, see :func:`extensions.branching.plan.branch_plan`, as for the next three.
        factors: batch sizes as multiples of the trunk's.
        window: number of examples that every branch sees.
        lr_rule: rule for the learning rate of a branch.
        warmup: length in examples of a linear warmup at the start of every branch.
        state: ``"keep"`` to continue with the optimizer's state, ``"reset"`` to start without it.
        trunk_optimizer: optimizer of the only trunk, from which the branches of all optimizers start; empty if every
            optimizer has its own.
        checkpoints: checkpoints to use instead of a trunk: ``PATH@EXAMPLES``, or ``PATH`` if the checkpoint states its
            examples.
        error: probability that the sequential test may misplace k*; it runs only the branches and seeds that it needs.
            0 for no test: every branch runs with every seed.
        within: excess loss up to which a branch has not lost in that test, in the unit of the metric.
    """

    stored = False
    asked_as = "cbs branch"
    excludes: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("--lrs RULE", "--axis", "--from"), "a trunk has one learning rate, and nothing is tuned"),
        "--schedule": "branches measure one batch size at a time",
    }

    def __init__(
        self,
        at: str = AT,
        factors: str = FACTORS,
        window: str | None = None,
        lr_rule: str = "sqrt",
        warmup: int = 0,
        state: str = "keep",
        trunk_optimizer: str = "",
        checkpoints: Sequence[str] = (),
        error: float = 0.1,
        within: float = 0.01,
    ) -> None:
        self._asked: dict[str, Any] = {
            "factors": str(factors),
            "window": None if window is None else str(window),
            "lr_rule": lr_rule,
        }
        self._at, self._trunk_optimizer = str(at), trunk_optimizer
        self._how: dict[str, Any] = {"optimizer": state, "warmup_examples": warmup}
        self._checkpoints = tuple(checkpoints)
        self._error, self._within = error, within
        self._read: list[tuple[Path, int]] = []
        self._trunks_left: list[Trunk] = []
        self._trunk: Trunk | None = None
        self._branches: Iterator[Sweep] = iter(())
        self._test: CheckpointTest | None = None
        self._found: list[BracketedFactor] = []
        Parent(source="x", examples=0, digest="0" * 16, **self._how)  # refuses wrong values before anything runs

    def check(self, sweep: Sweep, *, limits: Limits, source: Path | None) -> None:
        super().check(sweep, limits=limits, source=source)
        if len(sweep.axes.batch_sizes) != 1:
            raise ConfigError(
                f"branches start from runs at one batch size, got {len(sweep.axes.batch_sizes)}: give it with "
                "--trunk-batch"
            )
        if len(sweep.axes.lrs or (1.0,)) != 1:
            raise ConfigError("a trunk has one learning rate, given with --lr; nothing is searched or tuned")
        if sweep.trial.averaging is not None and "decay" in sweep.trial.averaging.options:
            raise ConfigError(
                f"averaging={sweep.trial.averaging} spans k times as many examples in a branch of k times the batch "
                "size, which then seems to fall behind: give half_life=EXAMPLES instead of decay"
            )
        if not 0.0 <= self._error < 1.0:
            raise ConfigError(f"--error must be 0 or more and below 1, got {self._error:g}; 0 runs every branch")
        if not 0.0 < self._within < math.inf:
            raise ConfigError(f"--within must be a number above 0, got {self._within:g}")
        if self._trunk_optimizer and self._trunk_optimizer not in map(str, sweep.axes.optimizers):
            raise ConfigError(f"--trunk-optim {self._trunk_optimizer} is none of the optimizers; add it with --optim")
        if not self._checkpoints:
            if sweep.trial.workload.name == COMMAND:
                raise ConfigError(
                    "with --command the trunk is trained by your program: give its checkpoints with --from-checkpoint "
                    "PATH@EXAMPLES"
                )
            if len(sweep.budgets) != 1:
                raise ConfigError("a trunk needs --budget EXAMPLES, a single number")
        elif sweep.trial.workload.name != COMMAND and sweep.budgets and sweep.schedule.ends_with(sweep.budgets[-1]):
            raise ConfigError(
                f"--set schedule.name={sweep.schedule.name}: it is not known after how many examples the learning rate "
                "of the run decays: leave it out and give the learning rate at the checkpoint with --lr, or add --set "
                "schedule.decay_examples=N --budget N"
            )
        plan = self._plan(sweep)
        few = [f"--factors {self._asked['factors']}"] if len(plan.factors) < 2 else []
        few += ["--lr-rule tried"] if plan.rates_tried > 1 else []
        few += ["a single seed"] if len(sweep.axes.seeds) < 2 else []
        if self._error and few:
            raise ConfigError(f"{few[0]} does not go with the sequential test: add --error 0 to run every branch")

    def next(self, underway: Underway) -> tuple[Sweep, Path] | None:
        sweep, folder, limits, plan = underway.sweep, underway.folder, underway.limits, self._plan(underway.sweep)
        if not underway.ran:
            self._trunks_left = self._trunks(sweep)
        elif self._test is not None:
            self._test.add(underway.searches[-1])
        elif self._trunk is not None and underway.searches[-1].sweep == self._trunk.sweep:
            result = next(underway.searches[-1].trials(), None)
            if result is None or not result.status.final:
                return None
            _check_trunk(self._trunk, result)
        while True:
            if self._test is not None:
                following = None if limits.reached else self._test.next()
                if following is not None:
                    return following, folder
                self._found.append(self._test.result())
                underway.note(self._found[-1].line(min(plan.factors.values())))
                self._test = None
            if underway.ran and limits.reached:
                return None
            if (part := next(self._branches, None)) is not None:
                (label,) = part.axes.labels.values()
                assert part.start.parent is not None
                underway.note(f"{label}: branches at {part.start.parent.examples:,} examples")
                if not self._error:
                    return part, folder
                earlier = [each for each in self._found if each.optimizer == label]
                from extensions.branching.sequential import CheckpointTest

                self._test = CheckpointTest(part, plan.factors, within=self._within, error=self._error, earlier=earlier)
            elif self._trunks_left:
                self._trunk = self._trunks_left.pop(0)
                self._branches = self._parts(sweep, self._trunk, plan, Store(folder))
                if self._trunk.sweep is not None:
                    return self._trunk.sweep, folder
            else:
                return None

    def report(self, underway: Underway) -> SweepReport:
        searches, plan = underway.searches, self._plan(underway.sweep)
        write_reasons([row for search in searches for row in reasons(search)], underway.folder)
        report = _report(searches, underway.folder, plan, underway.limits)
        if not self._error:
            return report
        labels = list(underway.sweep.axes.labels.values())
        checkpoints = sorted(self._found, key=lambda each: labels.index(each.optimizer))
        content = {"error": self._error, "within": self._within, "tested": [each.to_json() for each in checkpoints]}
        lines = [*report.lines[:-1], *(each.line(min(plan.factors.values())) for each in checkpoints)]
        if any(each.done for each in checkpoints):
            lines.append(
                f"where the test has ended, k* is misplaced with a probability of at most {100 * self._error:g} % "
                f"(tolerance {self._within:g}) if losses are normal over seeds; near divergence they are not"
            )
        lines.append(f"{report.lines[-1]} --within {self._within:g} --noise-share 0")
        return SweepReport(report.content | content, lines)

    def preview(
        self, sweep: Sweep, folder: Path, cost: Cost | None, workers: int, gpu_hour: float | None = None
    ) -> SweepReport:
        plan, trunks = self._plan(sweep), self._trunks(sweep)
        each = len(plan.factors) * plan.rates_tried * len(sweep.axes.seeds) * len(plan.at)
        trained = [trunk.sweep.budgets[0] for trunk in trunks if trunk.sweep is not None]
        trials = len(trained) + each * len(sweep.axes.optimizers)
        examples = sum(trained) + each * len(sweep.axes.optimizers) * plan.window
        share = each * plan.window / (plan.at[-1] if self._checkpoints else sweep.budgets[0])
        content = {"output": str(folder), "trials": trials, "examples": examples, "share_of_trunk": share}
        most = "at most " if self._error else ""
        lines = [
            f"output        {folder}",
            *(f"trunk         {t.label}, batch size {plan.batch_size}, learning rate {t.lr:g}" for t in trunks),
            f"branches at   {' '.join(f'{at:,}' for at in plan.at)} examples",
            f"batch sizes   {' '.join(f'{size} (k={k})' for size, k in plan.factors.items())}",
            f"window        {plan.window:,} examples, {plan.window // max(plan.factors)} steps of the largest batch",
            f"trials        {most}{trials}, minus those already in the folder",
            f"examples      {most}{examples:,} in all",
            f"price         branches of an optimizer cost {most}{100 * share:.1f} % of its trunk's examples",
        ]
        if self._error:
            lines.append("the sequential test usually needs three to nine branches at a checkpoint")
        return SweepReport(content, lines)

    def _plan(self, sweep: Sweep) -> BranchPlan:
        (size,) = sweep.axes.batch_sizes
        given = [examples for _, examples in self._given(size)]
        plan = branch_plan(
            batch_size=size,
            examples=None if given else sweep.budgets[0],
            at=given or self._at,
            micro_batch_size=sweep.trial.micro_batch_size,
            **self._asked,
        )
        if sweep.trial.workload.name != COMMAND and sweep.target is not None:
            limit = getattr(built(sweep.trial.workload), "training_examples", None)
            if limit is not None and plan.at[-1] + plan.window > limit:
                raise ConfigError(
                    f"--window {plan.window:,}: the data end after {limit:,} examples, and the last branch begins at "
                    f"{plan.at[-1]:,}; give a shorter window, or branch earlier"
                )
        return plan

    def _given(self, batch_size: int) -> list[tuple[Path, int]]:
        """Return the given checkpoints by increasing number of examples that their run had seen, with this number; they
        are read once."""
        if self._read:
            return self._read
        checkpoints = []
        for text in self._checkpoints:
            name, at, amount = text.rpartition("@")
            path = Path(name if at and amount.isdigit() else text)
            known = parent_at(path).examples
            examples = int(amount) if at and amount.isdigit() else known
            if known and examples != known:
                raise ConfigError(f"--from-checkpoint {text}: the run of this checkpoint had seen {known:,} examples")
            if not examples and path.is_dir():
                examples = (read_checkpoint(path).steps or 0) * batch_size
            if not examples:
                raise ConfigError(f"--from-checkpoint {text}: add how many examples its run had seen: {text}@EXAMPLES")
            checkpoints.append((path, examples))
        if len({examples for _, examples in checkpoints}) < len(checkpoints):
            raise ConfigError(
                "two --from-checkpoint have the same number of examples, so their branches could not be told apart"
            )
        self._read = sorted(checkpoints, key=lambda pair: pair[1])
        return self._read

    def _trunks(self, sweep: Sweep) -> list[Trunk]:
        (size,) = sweep.axes.batch_sizes
        ends = sweep.schedule.decay_examples
        # where the trunk decays is its own budget's end, and branches decay there as it did
        if not self._checkpoints and sweep.schedule.ends_with(sweep.budgets[0]):
            ends = sweep.budgets[0]
        warmup = sweep.schedule.at(size).warmup_examples
        base = sweep.replace(schedule=dataclasses.replace(sweep.schedule, warmup_examples=warmup, decay_examples=ends))
        choices = [choice for choice in sweep.axes.optimizers if str(choice) == self._trunk_optimizer]
        trunks = []
        for choice in choices or sweep.axes.optimizers:
            lr = _rate(sweep, choice)
            trained = None
            if not self._checkpoints:
                starts = self._plan(sweep).at
                trained = base.replace(optimizers=(choice,), seeds=sweep.axes.seeds[:1], lrs=(lr,), keep=starts)
            trunks.append(Trunk(choice, sweep.axes.labels[str(choice)], lr, trained or base, trained))
        return trunks

    def _parts(self, sweep: Sweep, trunk: Trunk, plan: BranchPlan, store: Store) -> Iterator[Sweep]:
        """Yield the branches of a trunk as sweeps, checkpoint by checkpoint."""
        base, own = trunk.base, "" if trunk.sweep is None else _trial(trunk).fingerprint
        kept = [kept_path(store.kept_folder(own), at) for at in plan.at]
        for at, path in zip(plan.at, kept if own else [path for path, _ in self._given(plan.batch_size)], strict=True):
            source = own or str(path)
            parent = Parent(source=source, examples=at, digest=digest(path), **self._how)
            for choice in sweep.axes.optimizers if self._trunk_optimizer else (trunk.choice,):
                lr = _rate(sweep, choice)
                parts = [
                    base.replace(
                        optimizers=(choice,),
                        batch_sizes=tuple(plan.factors),
                        seeds=sweep.axes.seeds,
                        lrs=None,
                        lr_rule=rates,
                        budgets=(plan.window,),
                        parent=parent,
                        trunk=(plan.batch_size, lr),
                        keep=(),
                    )
                    for rates in plan.rates(lr)
                ]
                if sweep.trial.workload.name != COMMAND:
                    first = Cell(str(choice), min(plan.factors), sweep.axes.seeds[0])
                    with calling_theirs():
                        check_parent(built(sweep.trial.workload), parts[0].trial_at(first, lr), path)
                yield from parts


def _trial(trunk: Trunk) -> TrialConfig:
    assert trunk.sweep is not None
    (cell,) = [Cell(study.optimizer, study.batch_size, trunk.sweep.axes.seeds[0]) for study in trunk.sweep.studies()]
    return trunk.sweep.trial_at(cell, trunk.lr)


def _rate(sweep: Sweep, choice: Choice) -> float:
    return middle(sweep.lr_grid(str(choice)))


def _check_trunk(trunk: Trunk, result: TrialResult) -> None:
    if result.status is not TrialStatus.BUDGET_EXHAUSTED:
        raise ConfigError(
            f"the trunk of {trunk.label} ended as {result.status} ({result.message}), so it has no branches; try a "
            f"learning rate below {trunk.lr:g}"
        )


def _report(searches: Sequence[Search], folder: Path, plan: BranchPlan, limits: Limits) -> SweepReport:
    trials = {trial.trial_id: trial for search in searches for trial in search.trials()}
    trunks = [trial for trial in trials.values() if trial.config.parent is None]
    branches = [trial for trial in trials.values() if trial.config.parent is not None]
    failed = [f"{name}: {t.message}" for name, t in trials.items() if t.status is TrialStatus.FAILED]
    spent, whole = (sum(trial.final_examples for trial in of) for of in (branches, trunks))
    whole = whole or plan.at[-1] * len({str(trial.config.optimizer) for trial in branches})
    content = {
        "output": str(folder),
        "trunks": [trial.trial_id for trial in trunks],
        "branches": len(branches),
        "examples": sum(trial.final_examples for trial in trials.values()),
        "share_of_trunk": spent / whole if whole else None,
        "stopped": limits.reached,
        "failures": {"trials": len(failed), "first": failed[0] if failed else None},
    }
    lines = [f"trunk of {t.config.optimizer}, batch size {t.config.batch_size}, lr {t.config.lr:g}" for t in trunks]
    if whole:
        lines.append(f"branches took {spent:,} examples, {100 * spent / whole:.1f} % of those of their trunks")
    if limits.reached:
        lines.append(f"ended with trials missing: {limits.reached}")
    if failed:
        lines.append(f"{len(failed)} of {len(trials)} trials failed: {failed[0]}")
    return SweepReport(content, [*lines, f"next: cbs local {folder}"])

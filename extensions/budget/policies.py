"""Add trials of equal budgets until it is known how large a batch is free of cost, at given or found batch sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from sweeps.launching.policies import POLICIES
from sweeps.launching.policies.rounds import Judgement, Rounds, WantedTrials, first_sizes, half_width
from sweeps.spec.spec import Sweep

if TYPE_CHECKING:
    from extensions.budget.equal_budgets import OptimizerAtBudget

# No larger batch size is added if a budget would give it fewer updates than this
FEWEST_STEPS = 20

MOST_SEEDS = 32  # Largest number of seeds per batch size


@POLICIES.register("equal_budgets")
class EqualBudgets(Rounds):
    """Adds larger batch sizes until one is worse, smaller ones while the smallest is the best, finer learning rates
    where their spacing decides the answer, and seeds where a comparison is undecided.

    Args:
        goal: half-width of the interval of ln of the largest batch size that is as good as the best; ``None`` to stop
            once every batch size is shown to be worse than the best or equal to it.
        finds: whether it chooses the batch sizes itself, beginning with two.
        more_seeds: whether it may use other seeds than those of the sweep.
    """

    narrows_budgets = True
    needs: ClassVar[Mapping[str, str]] = {"--budget": "it compares losses at equal budgets"}
    excludes: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("--lrs", "--lrs RULE", "--set search=grid", "--schedule"), "it searches learning rates"
    )

    def __init__(self, goal: float | None = None, finds: bool = False, more_seeds: bool = True) -> None:
        super().__init__(goal)
        self.asked_as = "a sweep of budgets that finds its batch sizes" if finds else "--precision"
        self.remedy = "leave that out, or give --batch-sizes" if finds else Rounds.remedy
        self.finds, self.more_seeds = finds, more_seeds

    def asked(self) -> dict[str, Any]:
        return super().asked() | {"finds": self.finds}

    def first(self, sweep: Sweep) -> list[dict[str, Any]]:
        if not self.finds:
            return super().first(sweep)
        (entry,) = first_sizes(sweep, sweep.axes.seeds)
        sizes = entry["batch_sizes"]
        while sizes[0] > 1 and not _fits(sweep, sizes[-1], sweep.budgets[0]):
            sizes = [size // 2 for size in sizes]
        return [entry | {"batch_sizes": sizes}]

    def judge(self, sweep: Sweep, folder: Path, stop: str | None) -> Judgement:
        judged, answers = Judgement(), _look(sweep, folder)
        for text, label in sweep.axes.labels.items():
            mine = answers.get(text, [])
            if not mine:
                judged.reasons[label] = "it has no trials that can be read"
                continue
            wishes = []
            for budget, margin, answer in mine:
                equal = answer.equivalence.largest_within
                width = half_width(equal.interval)
                judged.estimates.append(
                    {
                        "optimizer": label,
                        "budget": budget,
                        "largest_within": equal.value,
                        "interval": list(equal.interval),
                        "half_width": width if math.isfinite(width) else None,
                        "standing": answer.standing,
                        "verdict": answer.verdict,
                    }
                )
                if (wish := self._wish(sweep, budget, margin, answer)) is not None:
                    wishes.append(wish)
            if wishes and stop is None:
                judged.wishes[text] = [_together(wishes)]
            elif wishes:
                judged.reasons[label] = f"{stop} ({wishes[0].why} would help)"
            elif any(answer.verdict != "ok" for _, _, answer in mine):
                judged.reasons[label] = f"no further trial is known to help ({mine[0][2].verdict})"
        return judged

    def told(self, estimate: dict[str, Any]) -> str:
        low, high = (f"{end:.3g}" if end else "?" for end in estimate["interval"])
        value = f"{estimate['largest_within']:.3g}" if estimate["largest_within"] else "unknown"
        after = f"{estimate['optimizer']} after {estimate['budget']:,.0f} examples"
        return f"{after}: as good up to batch size {value} [{low}, {high}]"

    def _wish(self, sweep: Sweep, budget: float, margin: float, answer: OptimizerAtBudget) -> WantedTrials | None:
        """Return the trials that one optimizer needs at one budget: the first kind that is missing."""
        from analysis.estimate.comparison import Standing
        from analysis.estimate.suggest.known import with_more

        sizes = answer.sizes
        first, last = sizes[0], sizes[-1]
        coarse = tuple(size.batch_size for size in sizes if size.between > margin)
        if coarse and (sweep.search.within is None or sweep.search.within > margin):
            why = f"learning rates to {margin:.2g} at batch size {', '.join(map(str, coarse))}"
            return WantedTrials(batch_sizes=coarse, seeds=sweep.axes.seeds, within=margin, why=why)
        larger = 2 * last.batch_size
        if last.excess.standing is not Standing.WORSE and _fits(sweep, larger, budget):
            why = f"batch size {larger}: {last.batch_size}, the largest, is not shown to be worse"
            return WantedTrials(batch_sizes=(larger,), seeds=sweep.axes.seeds, why=why)
        best = answer.equivalence.best.value
        worse = len(sizes) > 1 and sizes[1].excess.standing is Standing.WORSE
        if worse and best == first.batch_size and first.batch_size > 1:
            smaller = first.batch_size // 2
            why = f"batch size {smaller}: {first.batch_size}, the smallest, is the best"
            return WantedTrials(batch_sizes=(smaller,), seeds=sweep.axes.seeds, why=why)
        unknown = [size for size in sizes if size.excess.more_seeds]
        wide = self.goal is not None and half_width(answer.equivalence.largest_within.interval) > self.goal
        if not unknown and not wide:
            return None
        asked = unknown or [size for size in sizes if size.excess.value is not None and size.excess.value < 3 * margin]
        more = min((size.excess.more_seeds or size.seeds for size in asked), default=0)
        held = max((size.seeds for size in sizes), default=0)
        count = min(held + more, 2 * held, MOST_SEEDS if self.more_seeds else len(sweep.axes.seeds))
        if count <= held:
            return None
        tested = sorted({*(size.batch_size for size in asked), *([round(best)] if best else [])})
        seeds = with_more(sweep.axes.seeds, count)[:count]
        return WantedTrials(
            batch_sizes=tuple(size for size in tested if any(each.batch_size == size for each in sizes)),
            seeds=tuple(sorted(seeds)),
            why=f"{count} seeds at batch size {', '.join(map(str, tested))}",
        )


def _fits(sweep: Sweep, batch_size: int, budget: float) -> bool:
    """Return whether runs at a batch size have enough updates after their warmup."""
    warmup = sweep.schedule.at(batch_size).warmup_examples
    return (sweep.budgets[0] - warmup) / batch_size >= FEWEST_STEPS and budget / batch_size >= FEWEST_STEPS


def _together(wishes: list[WantedTrials]) -> WantedTrials:
    """Join the wishes of several budgets, whose trials may be the same."""
    known = [wish.within for wish in wishes if wish.within is not None]
    return WantedTrials(
        batch_sizes=tuple(sorted({size for wish in wishes for size in wish.batch_sizes})),
        seeds=max((wish.seeds for wish in wishes), key=len),
        within=min(known, default=None),
        why="; ".join(dict.fromkeys(wish.why for wish in wishes)),
    )


def _look(sweep: Sweep, folder: Path) -> dict[str, list[tuple[float, float, OptimizerAtBudget]]]:
    """Return budget, margin and answer of ``cbs budget`` for every optimizer of the sweep, by the text of its choice.

    Raises:
        ResultsError: if there are no usable results.
    """
    from extensions.budget.equal_budgets import budget

    within = None if sweep.search.within is None else f"{sweep.search.within:g}"
    compared = budget(folder, at=sweep.budgets if sweep.shares_trials else (), within=within)
    looked: dict[str, list[tuple[float, float, OptimizerAtBudget]]] = {}
    for text, choice in sweep.choices.items():
        group = str(sweep.axes.pooled(choice))
        looked[text] = [
            (entry.budget, entry.margin, answer)
            for entry in compared.budgets
            for answer in entry.optimizers
            if str(answer.group.choice) == group
        ]
    return looked

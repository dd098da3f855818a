"""What an answer is worth, and what to change where something is missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum

from analysis.load import Group
from analysis.select import Point, easier_or_equal
from cbs.target import Target


class Verdict(StrEnum):
    """The most serious thing that can be said against an answer; the advice names all of them."""

    NOT_REACHED = "target not reached"
    TOO_FEW_BATCH_SIZES = "too few batch sizes"
    NO_PERFECT_SCALING = "perfect-scaling part not reached"
    NO_SATURATION = "saturating part not reached"
    AT_GRID_EDGE = "LR optimum at edge of grid"
    TOO_FEW_SEEDS = "too few seeds"
    OK = "ok"


def judge(points: Sequence[Point], seen: tuple[bool, bool], not_reached: str, easier: str) -> tuple[Verdict, str]:
    """Verdict and advice.

    Args:
        points: one per batch size.
        seen: whether the measured batch sizes show the perfect-scaling part and the saturating part of the curve.
        not_reached: the advice when no batch size reached the target, see :func:`not_reached`.
        easier: an easier target that was reached at every batch size; empty if there is none.
    """
    if not any(point.reached for point in points):
        return Verdict.NOT_REACHED, not_reached
    found = list(_findings(points, seen))
    missed = [point for point in points if not point.reached]
    if missed:
        easier = f"; {easier} was reached at every batch size" if easier else ""
        where = ", ".join(f"{point.batch_size} ({point.status})" for point in missed)
        found.append((Verdict.OK, f"not reached at batch size {where}{easier}"))
    verdict = next(verdict for verdict in Verdict if verdict in (Verdict.OK, *(entry for entry, _ in found)))
    return verdict, "; ".join(text for _, text in found)


def _findings(points: Sequence[Point], seen: tuple[bool, bool]) -> Iterator[tuple[Verdict, str]]:
    reached = [point for point in points if point.reached]
    if len(reached) == 1:
        yield Verdict.TOO_FEW_BATCH_SIZES, "the target was reached at 1 batch size; 3 or more are needed"
    if len(reached) == 2:
        yield (
            Verdict.TOO_FEW_BATCH_SIZES,
            "2 batch sizes determine the curve exactly and leave no interval; add a third",
        )
    if len(reached) >= 2 and not seen[0]:
        smallest = reached[0].batch_size
        text = (
            f"batch size {smallest}, the smallest that reached the target, is past the critical one: add smaller ones"
        )
        yield Verdict.NO_PERFECT_SCALING, text
    if len(reached) >= 2 and not seen[1]:
        largest = reached[-1].batch_size
        text = (
            f"batch size {largest}, the largest that reached the target, is short of the critical one: add larger ones"
        )
        yield Verdict.NO_SATURATION, text
    edges = [point for point in reached if point.at_grid_edge]
    if edges:
        where = ", ".join(f"{point.batch_size} ({point.best_lr:g})" for point in edges)
        yield Verdict.AT_GRID_EDGE, f"the best LR is the lowest or highest tried at batch size {where}: extend the grid"
    if max(point.seeds for point in reached) < 2:
        yield Verdict.TOO_FEW_SEEDS, "one seed: run 3 or more before comparing optimizers"
    partly = [point for point in reached if point.seeds_reached < point.seeds]
    if partly:
        where = ", ".join(f"{point.batch_size} ({point.seeds_reached} of {point.seeds})" for point in partly)
        yield Verdict.OK, f"only some seeds reached the target at the best LR of batch size {where}"


def not_reached(group: Group, target: Target, reachable: float | None) -> str:
    """What to do about a target that no batch size reached.

    Args:
        group: the trials.
        target: the target.
        reachable: from :func:`analysis.select.within_reach`.
    """
    if group.stops_at_target and not easier_or_equal(target, group.target):
        return f"the trials stopped at the sweep's own target, {group.target}: run a sweep with the target {target}"
    if reachable is None:
        return "at some batch size no trial got as far as an evaluation: see the messages of the failed trials"
    return (
        f"analyze with an easier target ({with_value(target, reachable)} was reached at every batch size), "
        "or run with more steps or other learning rates"
    )


def with_value(target: Target, value: float) -> str:
    """``target`` in words, with another value."""
    return f"{target.metric} {'<' if target.direction == 'below' else '>'} {value:g}"

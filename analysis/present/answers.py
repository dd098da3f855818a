"""The tables of answers: the summary, every definition side by side, every point."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from analysis.estimate.definitions import in_words, math_symbol, symbol
from analysis.estimate.diagnosis import Verdict
from analysis.estimate.noise import PLAIN
from analysis.present.numbers import number, percent, share_in_percent, with_interval
from analysis.present.table import Column, Table

if TYPE_CHECKING:
    from analysis.estimate.result import Answer

Names = Mapping[str, str]
"""Headings in place of ours."""

_OURS: Names = MappingProxyType({})
_OF_HYPERBOLA = ("critical_batch_size", "min_steps", "min_examples")


def example_units(answers: Sequence[Answer]) -> str:
    """What examples are called, in the plural."""
    units = {answer.group.example_unit for answer in answers}
    return f"{units.pop()}s" if len(units) == 1 else "examples"


def _about(answers: Sequence[Answer], names: Names, of: str = "") -> tuple[Column, ...]:
    """The columns that tell rows apart; people see those that differ. ``of`` is the path from a row to its answer."""

    def several(read: Callable[[Answer], Any]) -> bool:
        return len({read(answer) for answer in answers}) > 1

    def shown(heading: str, when: bool) -> str:
        return names.get(heading, heading) if when else ""

    one_metric = not several(lambda answer: answer.target.metric)

    def target(row: Any) -> str:
        target = (row.answer if of else row).target
        return str(target).removeprefix(target.metric if one_metric else "").strip()

    return (
        Column("sweep", f"{of}group.sweep", shown("sweep", several(lambda a: a.group.sweep)), name=True),
        Column("workload", f"{of}group.workload", shown("workload", several(lambda a: a.group.workload)), name=True),
        Column("optimizer", f"{of}group.optimizer", shown("optimizer", True), name=True),
        Column("metric", f"{of}target.metric"),
        Column("target", f"{of}target.value"),
        Column("", target, shown("target", several(lambda a: str(a.target))), name=True),
        Column("direction", f"{of}target.direction"),
    )


def titled(answers: Sequence[Answer]) -> str:
    """After a comma the one target there is, or the one metric of several; nothing where it has no name."""
    targets = {answer.target for answer in answers}
    metrics = {target.metric for target in targets}
    if len(targets) == 1:
        target = targets.pop()
        return f", {target}" if getattr(target, "known", True) else ""
    return f", {metrics.pop()}" if len(metrics) == 1 and metrics != {"target"} else ""


def summary(answers: Sequence[Answer], *, names: Names = _OURS) -> Table:
    """One row per answer, the advice below."""
    first, several_targets = answers[0], len({str(answer.target) for answer in answers}) > 1
    b, b_latex = symbol(first.definition), math_symbol(first.definition)
    noise = any(answer.noise_scale.measured for answer in answers)
    matched = noise and any(answer.matched_geometry != PLAIN for answer in answers)
    tokens = any(answer.group.tokens_per_example for answer in answers)
    lrs_known = any(lr_interior(answer) is not None for answer in answers)

    def when(condition: bool, heading: str) -> str:
        return heading if condition else ""

    def quantity(key: str, of: str, heading: str = "", latex: str = "") -> Column:
        return Column(key, f"{of}.value", heading, f"{of}.interval", latex, wide=True)

    def scales(kind: str, of: str, condition: bool) -> tuple[Column, Column]:
        scale, b_scale = f"B_{kind}", rf"B_{{\mathrm{{{kind}}}}}"
        key, over = f"{kind}_noise_scale", rf"${b_scale} / {b_latex.strip('$')}$"
        return (
            quantity(key, of, when(condition, scale), f"${b_scale}$"),
            quantity(f"{key}_ratio", f"{of}_ratio", when(condition, f"{scale} / {b}"), over),
        )

    unit = example_units(answers)
    columns = (
        *_about(answers, names),
        Column("definition"),
        Column("example_unit", "group.example_unit"),
        Column("critical_batch_size", None, b, "interval", b_latex),
        Column("exponent", "exponent.value", "exponent", "exponent.interval"),
        Column(
            "critical_batch_size_tokens", _tokens, when(tokens, f"{b} (tokens)"), latex=f"{b_latex} (tokens)", wide=True
        ),
        quantity("min_steps", "min_steps", "S_min", r"$S_{\mathrm{min}}$"),
        quantity(
            "examples_at_critical", "examples_at_critical", f"{unit} at {symbol('pareto')}",
            f"{unit} at {math_symbol('pareto')}",
        ),
        *scales("simple", "noise_scale", noise),
        Column("matched_geometry", None, when(matched, "geometry"), left=True, wide=True),
        *scales("matched", "matched_noise_scale", matched),
        Column("interval_method", lambda a: a.fit.interval_method if a.fit else "none: no fit"),
        Column("residual_rms", "fit.residual_rms", "rms residual", text=share_in_percent),
        Column("lack_of_fit", "doubts.misfit.probability"),
        *(quantity(f"hyperbola_{name}", f"hyperbola.{name}") for name in _OF_HYPERBOLA),
        Column("far_seeds", lambda a: len(a.doubts.far_seeds)),
        Column("leave_one_out_low", lambda a: (a.leave_one_out or (None, None))[0]),
        Column("leave_one_out_high", lambda a: (a.leave_one_out or (None, None))[1]),
        Column("batch_sizes_reached", lambda a: sum(point.reached for point in a.points)),
        Column("batch_sizes", lambda a: len(a.points)),
        Column("lr_interior", lr_interior, when(lrs_known, "LR interior"), left=True, wide=True),
        Column("verdict", lambda a: str(a.verdict), "verdict", left=True),
        Column("advice"),
    )  # fmt: skip
    called = in_words(first.definition, first.critical.options)
    title = f"Critical batch size ({called}) in {unit} [{percent(first.confidence)} % interval]"
    lines = []
    for answer in answers:
        who = f"{answer.group.optimizer}{titled([answer]) if several_targets else ''}"
        if found := if_hyperbola(answer):
            lines.append(f"{who}: {found}")
        if answer.advice:
            lines.append(f"{who}: {'' if answer.verdict is Verdict.OK else f'{answer.verdict}: '}{answer.advice}")
        if answer.critical.remark:
            lines.append(f"{who}: {answer.definition}: {answer.critical.remark}")
    return Table(columns=columns, rows=answers, title=title + titled(answers), lines=lines)


def if_hyperbola(answer: Answer) -> str:
    """What the hyperbola would say, where that is something else; empty otherwise."""
    curve = answer.hyperbola
    if curve is None or answer.exponent.value is None:
        return ""
    own = answer.definitions["pareto"]
    size = curve.critical_batch_size
    other = with_interval(size.value, size.interval)
    if other == with_interval(own.value, own.interval):
        return ""
    steps, examples = (with_interval(each.value, each.interval) for each in (curve.min_steps, curve.min_examples))
    unit = answer.group.example_unit
    return f"if it were a hyperbola: B_crit {other}, S_min {steps}, E_min {examples} {unit}s"


def _tokens(answer: Answer) -> float | None:
    size, tokens = answer.critical_batch_size, answer.group.tokens_per_example
    return None if size is None or tokens is None else size * tokens


def lr_interior(answer: Answer) -> bool | None:
    """Whether every best learning rate lies inside the grid that was tried; ``None`` where that is not known."""
    edges = [point.at_grid_edge for point in answer.points if point.reached and point.at_grid_edge is not None]
    return not any(edges) if edges else None


@dataclass(frozen=True)
class _Of:
    """A row that belongs to an answer."""

    answer: Answer
    entry: Any


def definitions(answers: Sequence[Answer], *, names: Names = _OURS) -> Table:
    """One row per answer and definition, every remark once below."""
    rows = [_Of(answer, entry) for answer in answers for entry in answer.definitions.values()]
    tokens = any(answer.group.tokens_per_example for answer in answers)

    def in_tokens(row: _Of) -> float | None:
        size = row.answer.group.tokens_per_example
        return None if row.entry.value is None or size is None else row.entry.value * size

    columns = (
        *_about(answers, names, "answer."),
        Column("", lambda row: in_words(row.entry.definition, row.entry.options), "definition", name=True),
        Column("definition", "entry.definition"),
        Column("value", "entry.value", "critical batch size", "entry.interval", ends=("low", "high")),
        Column("value_tokens", in_tokens, "tokens" if tokens else ""),
        Column("example_unit", "answer.group.example_unit"),
        Column("tokens_per_example", "answer.group.tokens_per_example"),
        Column("confidence", "answer.confidence"),
        Column("options", lambda row: json.dumps(row.entry.options)),
        Column("remark", "entry.remark"),
    )
    title = f"Definitions side by side in {example_units(answers)} [{percent(answers[0].confidence)} % interval]"
    return Table(
        columns=columns, rows=rows, title=title + titled(answers), lines=_remarks(answers), asked="definitions"
    )


def _remarks(answers: Sequence[Answer]) -> list[str]:
    """Every remark once, with the answers it is about where these are not all."""
    about: dict[tuple[str, str], list[Answer]] = {}
    for answer in answers:
        for entry in answer.definitions.values():
            if entry.remark:
                about.setdefault((entry.definition, entry.remark), []).append(answer)
    lines = []
    for (definition, remark), members in about.items():
        scope = ""
        if len(members) < len(answers):
            by_name: dict[str, list[str]] = {}
            for answer in members:
                by_name.setdefault(answer.group.optimizer, []).append(f"{answer.target.value:g}")
            several = len({str(answer.target) for answer in answers}) > 1
            parts = [f"{name} at {', '.join(targets)}" if several else name for name, targets in by_name.items()]
            scope = f" ({'; '.join(parts)})"
        lines.append(f"{definition}{scope}: {remark}")
    return lines


def points(answers: Sequence[Answer]) -> Table:
    """One row per answer and batch size; what is shown is for the page, see ``points.csv`` for all."""
    rows = [_Of(answer, point) for answer in answers for point in answer.points]

    def measured(row: _Of, kind: str) -> float | None:
        found = row.answer.noise.get(row.entry.batch_size)
        return getattr(found, kind).value if found else None

    def steps(row: _Of) -> str:
        bound = row.entry.steps_lower_bound
        missed = not row.entry.reached and bound is not None
        return f"> {number(bound)}" if missed else number(row.entry.steps_to_target)

    def spread(row: _Of) -> str:
        found = row.entry.steps_per_seed
        return f"{number(min(found))} to {number(max(found))}" if len(found) > 1 else "–"

    def lr(row: _Of) -> str:
        best = row.entry.best_lr
        return "–" if best is None else f"{best:.4g}{' (edge)' if row.entry.at_grid_edge else ''}"

    noise = any(answer.noise_scale.measured for answer in answers)
    about = [column for column in _about(answers, _OURS, "answer.") if column.key not in ("", "direction")]
    columns = (
        *about,
        Column("batch_size", "entry.batch_size", "batch size"),
        Column("", lr, "best LR"),
        Column("steps_to_target", "entry.steps_to_target"),
        Column("", steps, "steps to target"),
        Column("", spread, "range over seeds"),
        Column("examples_to_target", "entry.examples_to_target", "examples to target"),
        Column("best_lr", "entry.best_lr"),
        Column("at_grid_edge", "entry.at_grid_edge"),
        Column("seeds", "entry.seeds"),
        Column("seeds_reached", "entry.seeds_reached"),
        Column("", lambda row: f"{row.entry.seeds_reached} of {row.entry.seeds}", "seeds"),
        Column("status", "entry.status", "status", left=True),
        Column("steps_lower_bound", "entry.steps_lower_bound"),
        Column("simple_noise_scale", lambda row: measured(row, "summary"), "noise scale" if noise else ""),
        Column("matched_noise_scale", lambda row: measured(row, "matched")),
    )
    return Table(columns=columns, rows=rows)


__all__ = ["definitions", "example_units", "if_hyperbola", "lr_interior", "points", "summary", "titled"]

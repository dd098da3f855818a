"""Tables of answers: the summary, what doubling buys, all definitions side by side, all points."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from analysis.estimate.definitions import HEADLINE, in_words, math_symbol, symbol
from analysis.estimate.diagnosis import Verdict
from analysis.estimate.noise import EUCLIDEAN
from analysis.estimate.result import Answer, BatchDoubling
from analysis.estimate.studies import Point
from analysis.formatting import DASH, number, percent, share_in_percent
from analysis.present.sentences import good, if_hyperbola, judged, meaning, named, quotes, sentence
from analysis.present.table import ESCAPED, Column, Table, files, quantity, text_of
from analysis.quantities import OPEN, Quantity
from cbs.trial.store import finite_or_none
from cbs.trial.target import Target

_OF_HYPERBOLA = ("critical_batch_size", "min_steps", "min_examples")


def example_units(answers: Sequence[Answer]) -> str:
    """Return the name of examples in the plural."""
    units = {answer.group.example_unit for answer in answers}
    return f"{units.pop()}s" if len(units) == 1 else "examples"


def about(answers: Sequence[Answer], names: Mapping[str, str] | None = None) -> tuple[Column, ...]:
    """Return the columns that identify rows; those whose values differ are displayed, with headings from ``names``."""
    names = names or {}
    metrics = {answer.target.metric for answer in answers}

    def target(at_target: Target) -> str:
        return str(at_target).removeprefix(at_target.metric if len(metrics) == 1 else "").strip()

    def column(key: str, value: str, of: set[Any], text: Callable[[Any], str] = text_of) -> Column:
        heading = key or "target"
        return Column(key, value, names.get(heading, heading) if len(of) > 1 else "", text=text, name=True)

    return (
        column("sweep", "group.sweep", {answer.group.sweep for answer in answers}),
        column("workload", "group.workload", {answer.group.workload for answer in answers}),
        Column("optimizer", "group.optimizer", names.get("optimizer", "optimizer"), name=True),
        Column("metric", "target.metric"),
        Column("target", "target.value"),
        column("", "target", {str(answer.target) for answer in answers}, target),
        Column("direction", "target.direction"),
    )


def titled(answers: Sequence[Answer]) -> str:
    """Return the target, or the metric if there are several targets, after a comma; empty if it has no name."""
    targets = {answer.target for answer in answers}
    metrics = {target.metric for target in targets}
    if len(targets) == 1:
        target = targets.pop()
        return f", {target}" if getattr(target, "known", True) else ""
    return f", {metrics.pop()}" if len(metrics) == 1 and metrics != {"target"} else ""


def summary(answers: Sequence[Answer], *, names: Mapping[str, str] | None = None) -> Table:
    """Return a table with one row per answer, and the advice below."""
    first, several_targets = answers[0], len({str(answer.target) for answer in answers}) > 1
    b, b_latex = symbol(first.critical.definition), math_symbol(first.critical.definition)
    noise = any(answer.noise_scale.measured for answer in answers)
    matched = noise and any(answer.matched_geometry != EUCLIDEAN for answer in answers)

    def scales(kind: str, of: str, *, told: bool = True) -> tuple[Column, Column]:
        scale, b_scale = f"B_{kind}", rf"B_{{\mathrm{{{kind}}}}}"
        key, over = f"{kind}_noise_scale", rf"${b_scale} / {b_latex.strip('$')}$"
        return (
            quantity(key, told * scale, of, f"${b_scale}$", wide=True),
            quantity(f"{key}_ratio", told * f"{scale} / {b}", f"{of}_ratio", over, wide=True),
        )

    def span(answer: Answer) -> str | None:
        return "{:.3g}..{:.3g}".format(*tried) if (tried := lrs_tried(answer)) else None

    unit, called = example_units(answers), in_words(first.critical.definition, first.critical.options)
    own = called == HEADLINE
    columns = (
        *about(answers, names),
        Column("definition", "critical.definition"),
        Column("example_unit", "group.example_unit"),
        Column("critical_batch_size", "", b, "interval", b_latex),
        Column("within_10_percent_low", lambda a: a.near[0]),
        Column("within_10_percent_high", lambda a: a.near[1]),
        Column("", good, "within 10 %", latex=r"within 10\,\%") if own else Column(""),
        Column(
            "critical_batch_size_tokens", lambda a: _tokens(a, a.critical_batch_size), f"{b} (tokens)",
            latex=f"{b_latex} (tokens)", wide=True,
        ),
        quantity("min_steps", "S_min", latex=r"$S_{\mathrm{min}}$", wide=True),
        quantity("exponent", "exponent", wide=True),
        quantity(
            "examples_at_critical", f"{unit} at {b}", latex=f"{unit.translate(ESCAPED)} at {b_latex}", wide=True,
        ),
        *scales("simple", "noise_scale"),
        Column("matched_geometry", "", matched * "geometry", left=True, wide=True),
        *scales("matched", "matched_noise_scale", told=matched),
        *(
            Column(key, of, heading, text=share_in_percent, wide=True)
            for key, of, heading in (
                ("seed_deviation", _noise_known("deviation"), "deviation of a seed"),
                ("shared_by_seeds", _noise_known("shared"), "shared by seeds"),
                ("residual_rms", "draws.residual_rms", "rms residual"),
                ("moved_by_prior", lambda a: finite_or_none(a.doubts.moved_by_prior), "moved by priors"),
            )
        ),
        *(quantity(f"hyperbola_{name}", of=f"hyperbola.{name}") for name in _OF_HYPERBOLA),
        Column("far_seeds", lambda a: len(a.doubts.far_seeds)),
        Column("batch_sizes_reached", lambda a: sum(point.reached for point in a.points)),
        Column("batch_sizes", lambda a: len(a.points)),
        Column("lr_interior", lr_interior, "LR interior", left=True, wide=True),
        Column("lowest_lr", lambda a: (lrs_tried(a) or (None, None))[0]),
        Column("highest_lr", lambda a: (lrs_tried(a) or (None, None))[1]),
        Column("", span, "LRs tried", left=True, wide=True),
        Column("verdict", heading="verdict", left=True),
        Column("advice"),
    )  # fmt: skip
    title = f"Critical batch size{'' if own else f' ({called})'} in {unit} [{percent(first.confidence)} % interval]"
    lines = list(judged(answers, advice=True))
    wide_lines = list(quotes(answers, lines))
    remarks: dict[str, list[Answer]] = {}
    scales_shown = {"B_simple": "noise_scale"} | ({"B_matched": "matched_noise_scale"} if matched else {})
    for answer in answers:
        who = f"{answer.group.optimizer}{titled([answer]) if several_targets else ''}"
        for name, of in scales_shown.items():
            if noise and (note := getattr(answer, of).note):
                wide_lines.append(f"{who}: {name}: {note}")
        if cell := meaning(answer):
            wide_lines.append(f"{who}: {cell}")
        if "; " in answer.advice:
            wide_lines.append(f"{who}: {answer.judgement}")
        if answer.draws is not None:
            wide_lines.append(f"{who}: {if_hyperbola(answer)}")
        if answer.critical.remark and not own:
            remarks.setdefault(f"{answer.critical.definition}: {answer.critical.remark}", []).append(answer)
    lines += [
        text if len(alike) == len(answers) else f"{named(alike, answers)}: {text}" for text, alike in remarks.items()
    ]
    if any(answer.draws for answer in answers):
        wide_lines.append("S_min and exponent are of the fitted power law, extrapolated")
    if first.critical.definition == HEADLINE:
        fine = all(answer.verdict is Verdict.OK for answer in answers)
        (lines if fine else wide_lines).append(sentence(first.critical))  # what is missing comes first
    return Table(columns=columns, rows=answers, title=title + titled(answers), lines=lines, wide_lines=wide_lines)


def _noise_known(name: str) -> Callable[[Answer], float | None]:
    """Return what reads a number of the draws that only several seeds show."""
    return lambda a: getattr(a.draws, name) if a.draws and a.draws.freedom else None


def doublings(answers: Sequence[Answer], *, names: Mapping[str, str] | None = None) -> Table:
    """Return a table with one row per answer and measured batch size: what its double buys."""
    rows = [(doubling, answer) for answer in answers for doubling in answer.doublings]

    def whole(name: str, heading: str) -> Column:
        def of(doubling: BatchDoubling) -> Quantity:
            return getattr(doubling, name).times(100)

        def ends(doubling: BatchDoubling, _: Answer) -> tuple[int | None, ...]:
            return tuple(None if end is None else round(end) for end in of(doubling).interval)

        return Column("", lambda doubling, _: round(of(doubling).value or 0), heading, ends, signed=True)

    columns = (
        *about(answers, names),
        Column("batch_size"),
        Column("", lambda doubling, _: f"{doubling.batch_size:g} to {2 * doubling.batch_size:g}", "B", name=True),
        quantity("steps_saved"),
        quantity("examples_added"),
        whole("steps_saved", "steps saved, %"),
        whole("examples_added", f"{example_units(answers)} added, %"),
    )
    title = f"What doubling the batch size buys [{percent(answers[0].confidence)} % interval]"
    return Table(columns=columns, rows=rows, title=title + titled(answers))


def _tokens(answer: Answer, size: float | None) -> float | None:
    tokens = answer.group.tokens_per_example
    return None if size is None or tokens is None else size * tokens


def lr_interior(answer: Answer) -> bool | None:
    """Return whether every best learning rate lies inside the grid that was tried; ``None`` if unknown."""
    edges = [point.at_grid_edge for point in answer.points if point.reached and point.at_grid_edge is not None]
    return not any(edges) if edges else None


def lrs_tried(answer: Answer) -> tuple[float, float] | None:
    """Return the lowest and the highest learning rate that ran at any batch size, beyond which a better optimum would
    not have been found; ``None`` if unknown."""
    lrs = [lr for study in answer.studies for lr in study.lrs[study.tried].tolist()]
    return (min(lrs), max(lrs)) if lrs and all(map(math.isfinite, lrs)) else None


def definitions(answers: Sequence[Answer], *, names: Mapping[str, str] | None = None) -> Table:
    """Return a table with one row per answer and definition, and every remark once below: for a definition without a
    value or a bound the remark, which says why, is all."""
    rows = [(entry, answer) for answer in answers for entry in answer.definitions.values()
            if entry.value is not None or entry.interval != OPEN or not entry.remark]  # fmt: skip
    columns = (
        *about(answers, names),
        Column("", lambda entry, _: in_words(entry.definition, entry.options), "definition", name=True),
        Column("definition"),
        Column("value", heading="critical batch size", interval="interval", ends=("low", "high")),
        Column("value_tokens", lambda entry, of: _tokens(of, entry.value), "tokens"),
        *files("example_unit", "tokens_per_example", of="group."),
        Column("confidence"),
        Column("options", lambda entry, _: json.dumps(entry.options)),
        Column("remark"),
    )
    title = f"Definitions side by side in {example_units(answers)} [{percent(answers[0].confidence)} % interval]"
    lines = list(_remarks(answers))
    return Table(columns=columns, rows=rows, title=title + titled(answers), lines=lines)


def _remarks(answers: Sequence[Answer]) -> Iterator[str]:
    """Yield every remark once, with the answers that it concerns unless these are all."""
    about: dict[tuple[str, str], dict[str, list[str]]] = {}
    for answer in answers:
        for entry in answer.definitions.values():
            if entry.remark:
                by_name = about.setdefault((entry.definition, entry.remark), {})
                by_name.setdefault(answer.group.optimizer, []).append(f"{answer.target.value:g}")
    several = len({str(answer.target) for answer in answers}) > 1
    for (definition, remark), by_name in about.items():
        parts = [f"{name} at {', '.join(targets)}" if several else name for name, targets in by_name.items()]
        everyone = sum(map(len, by_name.values())) == len(answers)
        scope = "" if everyone else f" ({'; '.join(parts)})"
        yield f"{definition}{scope}: {remark}"


def tuned_columns(answers: Sequence[Answer]) -> list[Column]:
    """Return a column of the best tuned options, for rows of something at a batch size and its answer; no column if
    nothing was tuned."""

    def tuned(row: Any, answer: Answer) -> str:
        point_there = next(point for point in answer.points if point.batch_size == row.batch_size)
        return f"{point_there.tuned} (edge)" if point_there.at_axis_edge else point_there.tuned

    return [Column("tuned", tuned, "best of the axes", left=True)] if any(a.group.tuned for a in answers) else []


def points(answers: Sequence[Answer]) -> Table:
    """Return a table with one row per answer and batch size; the page shows some columns, ``points.csv`` has all."""
    rows = [(point, answer) for answer in answers for point in answer.points]

    def measured(kind: str, point: Point, answer: Answer) -> float | None:
        noise_there = answer.noise.get(point.batch_size)
        return getattr(noise_there, kind).value if noise_there else None

    def steps(point: Point, _: Answer) -> str:
        if point.bounded:
            return f"< {number(point.steps_upper_bound)}"
        bound = None if point.reached else point.steps_lower_bound
        return number(point.steps_to_target) if bound is None else f"> {number(bound)}"

    def lr(point: Point, _: Answer) -> str:
        return DASH if point.best_lr is None else f"{point.best_lr:.4g}{' (edge)' if point.at_grid_edge else ''}"

    def spread(seeds: Sequence[float]) -> str:
        return f"{number(min(seeds))} to {number(max(seeds))}" if len(seeds) > 1 else DASH

    columns = (
        *(column for column in about(answers) if column.key not in ("", "direction")),
        Column("batch_size", heading="batch size"),
        Column("", lr, "best LR"),
        *tuned_columns(answers),
        Column("steps_to_target"),
        Column("", steps, "steps to target"),
        Column("", "steps_per_seed", "range over seeds", text=spread),
        Column("examples_to_target", heading="examples to target"),
        *files("best_lr", "at_grid_edge", "seeds", "seeds_reached"),
        Column("", lambda point, _: f"{point.seeds_reached} of {point.seeds}", "seeds"),
        Column("status", heading="status", left=True),
        *files("steps_lower_bound", "steps_upper_bound"),
        Column("simple_noise_scale", lambda *row: measured("summary", *row), "noise scale"),
        Column("matched_noise_scale", lambda *row: measured("matched", *row)),
        Column("clipped_share", lambda point, of: of.clipped.get(point.batch_size), "steps clipped",
               text=share_in_percent),
    )  # fmt: skip
    return Table(columns=columns, rows=rows)

"""The summary and the points as tables: CSV, LaTeX (booktabs) and for the terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pandas as pd

from analysis.estimate.definitions import in_words, math_symbol, symbol
from analysis.estimate.diagnosis import Verdict
from analysis.estimate.noise import PLAIN
from analysis.phrases import literal

if TYPE_CHECKING:
    from rich.console import RenderableType

    from analysis.estimate.estimates import Estimate
    from analysis.estimate.result import Answer

UNNAMED = "the target"
"""A target of which a table does not tell the value."""

_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "&": r"\&",
        "%": r"\%",
        "$": r"\$",
        "#": r"\#",
        "_": r"\_",
        "{": r"\{",
        "}": r"\}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
    }
)


def number(value: float | None, digits: int = 3) -> str:
    """``value`` with ``digits`` significant digits, whole where that loses nothing and with a thousands separator; a
    dash where it is undefined."""
    if value is None or not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def with_interval(value: float | None, interval: tuple[float | None, float | None], *, between: str = " ") -> str:
    """``value [low, high]``; an open end is an infinity or a zero, and an unknown interval is left out."""
    low, high = interval
    if low is None and high is None:
        return number(value)
    return f"{number(value)}{between}[{'0' if low is None else number(low)}, {'∞' if high is None else number(high)}]"


def summary(answers: Sequence[Answer]) -> pd.DataFrame:
    """One row per answer; numbers with their intervals as ``*_low`` and ``*_high``, units in the column names."""
    return pd.DataFrame([_row(answer) for answer in answers])


def _row(answer: Answer) -> dict[str, Any]:
    group = answer.group
    tokens = group.tokens_per_example
    row: dict[str, Any] = {
        "sweep": group.sweep,
        "workload": group.workload,
        "optimizer": group.optimizer,
        "metric": answer.target.metric,
        "target": answer.target.value,
        "direction": answer.target.direction,
        "definition": answer.definition,
        "example_unit": group.example_unit,
    }
    for name, value, interval in (
        ("critical_batch_size", answer.critical_batch_size, answer.interval),
        ("min_steps", answer.min_steps, answer.min_steps_interval),
        ("exponent", answer.exponent, answer.exponent_interval),
        ("examples_at_critical", answer.examples_at_critical, answer.examples_at_critical_interval),
        ("simple_noise_scale", answer.noise_scale.value, answer.noise_scale.interval),
        ("simple_noise_scale_ratio", answer.noise_scale_ratio.value, answer.noise_scale_ratio.interval),
        ("matched_noise_scale", answer.matched_noise_scale.value, answer.matched_noise_scale.interval),
        (
            "matched_noise_scale_ratio",
            answer.matched_noise_scale_ratio.value,
            answer.matched_noise_scale_ratio.interval,
        ),
    ):
        row |= {name: value, f"{name}_low": interval[0], f"{name}_high": interval[1]}
    critical = answer.critical_batch_size
    return row | {
        "matched_geometry": answer.matched_geometry,
        "critical_batch_size_tokens": None if critical is None or tokens is None else critical * tokens,
        "interval_method": answer.fit.interval_method if answer.fit else "none: no fit",
        "residual_rms": answer.fit.residual_rms if answer.fit else None,
        **_quality(answer.estimate),
        "batch_sizes_reached": sum(point.reached for point in answer.points),
        "batch_sizes": len(answer.points),
        "lr_interior": lr_interior(answer),
        "verdict": str(answer.verdict),
        "advice": answer.advice,
    }


def _quality(estimate: Estimate) -> dict[str, Any]:
    """What says whether a fit can be believed, see :class:`analysis.estimate.estimates.Estimate`."""
    low, high = estimate.leave_one_out or (None, None)
    return {
        "lack_of_fit": estimate.misfit.probability if estimate.misfit else None,
        "leave_one_out_low": low,
        "leave_one_out_high": high,
    }


def lr_interior(answer: Answer) -> bool | None:
    """Whether every best learning rate lies inside the grid that was tried; ``None`` where that is not known."""
    edges = [point.at_grid_edge for point in answer.points if point.reached and point.at_grid_edge is not None]
    return not any(edges) if edges else None


def points(answers: Sequence[Answer]) -> pd.DataFrame:
    """One row per answer and batch size."""
    rows = []
    for answer in answers:
        scope = {"sweep": answer.group.sweep, "workload": answer.group.workload, "optimizer": answer.group.optimizer}
        for point in answer.to_json()["points"]:
            del point["steps_per_seed"]
            rows.append(scope | {"metric": answer.target.metric, "target": answer.target.value} | point)
    return pd.DataFrame(rows)


_SIMPLE, _MATCHED = ("B_simple", "B_simple / B_crit"), ("B_matched", "B_matched / B_crit")
_NUMERIC = ("B_crit", "tokens", "S_min", "E_min", *_SIMPLE, *_MATCHED)
_HEADINGS = ("optimizer", "target", *_NUMERIC, "LR interior", "verdict")
"""``B_crit`` stands for whatever definition was chosen, see :func:`_name`."""


def _name(heading: str, answers: Sequence[Answer]) -> str:
    """A heading that names the definition: :func:`analysis.estimate.definitions.symbol` in place of ``B_crit``."""
    return heading.replace("B_crit", symbol(answers[0].definition) if answers else "B_crit")


def _cells(answers: Sequence[Answer], between: str = " ") -> tuple[list[str], list[list[str]]]:
    """Headings and text cells of the short table; names the same in every row are left out, and so are noise scales
    where none was looked for, and the matched one where it is the simple one in every row."""
    headings = list(_HEADINGS)
    if not any(answer.noise for answer in answers):
        headings = [name for name in headings if name not in _SIMPLE]
    if not any(answer.group.tokens_per_example for answer in answers):
        headings.remove("tokens")
    if all(answer.matched_geometry == PLAIN for answer in answers):
        headings = [name for name in headings if name not in _MATCHED]
    for name in ("workload", "sweep"):
        if len({getattr(answer.group, name) for answer in answers}) > 1:
            headings.insert(0, name)
    rows = []
    for answer in answers:
        interior = lr_interior(answer)
        size, per_example = answer.critical_batch_size, answer.group.tokens_per_example
        scales = (
            answer.noise_scale,
            answer.noise_scale_ratio,
            answer.matched_noise_scale,
            answer.matched_noise_scale_ratio,
        )
        simple, simple_ratio, matched, matched_ratio = (
            with_interval(scale.value, scale.interval, between=between) for scale in scales
        )
        cells = {
            "sweep": answer.group.sweep,
            "workload": answer.group.workload,
            "optimizer": answer.group.optimizer,
            "target": str(answer.target),
            "B_crit": with_interval(size, answer.interval, between=between),
            "tokens": number(size * per_example if size and per_example else None),
            "S_min": with_interval(answer.min_steps, answer.min_steps_interval, between=between),
            "E_min": with_interval(answer.examples_at_critical, answer.examples_at_critical_interval, between=between),
            "B_simple": simple,
            "B_simple / B_crit": simple_ratio,
            "B_matched": f"{answer.matched_geometry}: {matched}",
            "B_matched / B_crit": matched_ratio,
            "LR interior": "–" if interior is None else "yes" if interior else "no",
            "verdict": str(answer.verdict),
        }
        rows.append([cells[name] for name in headings])
    return headings, rows


def example_units(answers: Sequence[Answer]) -> str:
    """What examples are called, in the plural."""
    units = {answer.group.example_unit for answer in answers}
    return f"{units.pop()}s" if len(units) == 1 else "examples"


def percent(confidence: float) -> str:
    """A confidence in percent, without the sign."""
    return f"{100 * confidence:g}"


def terminal_table(
    answers: Sequence[Answer], *, confidence: float = 0.95, names: Mapping[str, str] = MappingProxyType({})
) -> RenderableType:
    """The short table for :mod:`rich`, advice below; ``names`` are headings in place of ours.

    The intervals of S_min and E_min are left to the files, and learning rates are only mentioned where one is not
    interior.
    """
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    headings, rows = _cells(answers, "\n")
    steps, examples = headings.index("S_min"), headings.index("E_min")
    for row in rows:
        row[steps] = "\n".join(row[column].split("\n")[0] for column in (steps, examples))
    headings, rows = _without("E_min", headings, rows)
    headings[steps] = "S_min E_min"
    edge = headings.index("LR interior")
    if all(row[edge] in ("yes", number(None)) for row in rows):
        headings, rows = _without("LR interior", headings, rows)
    targets = {str(answer.target) for answer in answers}
    if "tokens" in headings:
        column = headings.index("tokens")
        for row in rows:
            row[column - 1] += f"\n{row[column]} tokens" if row[column] != number(None) else ""
        headings, rows = _without("tokens", headings, rows)
    for scale, ratio in (_SIMPLE, _MATCHED):
        if ratio not in headings:
            continue
        at, below = headings.index(scale), headings.index(ratio)
        for row in rows:
            value, *rest = row[below].split("\n")
            row[at] += "\n".join(["", f"{value} {_name('B_crit', answers)}", *rest]) if value != number(None) else ""
        headings, rows = _without(ratio, headings, rows)
    title = f"Critical batch size{_by(answers)} in {example_units(answers)} [{percent(confidence)} % interval]"
    at = headings.index("target")
    for row, answer in zip(rows, answers, strict=True):
        row[at] = target_cell(answer, answers)
    if len(targets) == 1:
        headings, rows = _without("target", headings, rows)
    title += titled(answers)
    for row in rows:
        # A verdict in words would be cut off beside a long name; it stands with the advice.
        row[-1] = row[-1] if row[-1] == Verdict.OK else "see below"
    headings[-1] = "note"
    table = Table(box=box.SIMPLE_HEAD, title=literal(title), pad_edge=False, collapse_padding=True)
    for name in headings:
        numeric = name in (*_NUMERIC, "S_min E_min")
        table.add_column(
            names.get(name, _name(name, answers)).replace(" ", "\n"),
            justify="right" if numeric else "left",
            no_wrap=numeric or name in ("optimizer", "LR interior"),
            min_width=5 if name == "note" else 8,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*map(literal, row))
    advice = []
    for answer in answers:
        who = f"{answer.group.optimizer}{titled([answer])}"
        if answer.advice:
            verdict = "" if answer.verdict is Verdict.OK else f"{answer.verdict}: "
            advice.append(f"{who}: {verdict}{answer.advice}")
        if answer.critical.remark:
            advice.append(f"{who}: {answer.definition}: {answer.critical.remark}")
    return Group(table, *map(Text, advice))


def titled(answers: Sequence[Answer]) -> str:
    """After a comma the one target there is, or the one metric of several; nothing where it has no name."""
    targets = {str(answer.target) for answer in answers} - {UNNAMED}
    metrics = {answer.target.metric for answer in answers} - {"target"}
    if len(targets) == 1:
        return f", {targets.pop()}"
    return f", {metrics.pop()}" if len(targets) > 1 and len(metrics) == 1 else ""


def target_cell(answer: Answer, answers: Sequence[Answer]) -> str:
    """The target, without its metric where all share it: the heading then says it."""
    text = str(answer.target)
    one = len({other.target.metric for other in answers}) == 1
    return text.removeprefix(answer.target.metric).strip() if one else text


def _by(answers: Sequence[Answer]) -> str:
    """The definition with its options, in brackets."""
    return f" ({in_words(answers[0].definition, answers[0].critical.options)})" if answers else ""


def _without(name: str, headings: list[str], rows: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    at = headings.index(name)
    return headings[:at] + headings[at + 1 :], [row[:at] + row[at + 1 :] for row in rows]


def latex(answers: Sequence[Answer], *, confidence: float = 0.95) -> str:
    """The short table as a LaTeX ``tabular`` for the booktabs package, all text escaped."""
    headings, rows = _cells(answers)
    critical = math_symbol(answers[0].definition if answers else "pareto")
    inside = critical.strip("$")
    symbols = {
        "B_crit": critical,
        "tokens": f"{critical} (tokens)",
        "S_min": r"$S_{\mathrm{min}}$",
        "E_min": r"$E_{\mathrm{min}}$",
        "B_simple": r"$B_{\mathrm{simple}}$",
        "B_simple / B_crit": rf"$B_{{\mathrm{{simple}}}} / {inside}$",
        "B_matched": r"$B_{\mathrm{matched}}$",
        "B_matched / B_crit": rf"$B_{{\mathrm{{matched}}}} / {inside}$",
    }
    return booktabs(
        f"critical batch size{_by(answers)}; B and E in {example_units(answers)}, S in optimizer steps; "
        f"brackets: {percent(confidence)} percent interval",
        "".join("r" if name in symbols else "l" for name in headings),
        [symbols.get(name, escape(name)) for name in headings],
        rows,
    )


def booktabs(comment: str, columns: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A LaTeX ``tabular`` for the booktabs package.

    Args:
        comment: the line above it.
        columns: letter of every column, ``l`` or ``r``.
        headings: in LaTeX.
        rows: cells as plain text; they are escaped.
    """
    lines = [
        f"% {comment}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        " & ".join(headings) + r" \\",
        r"\midrule",
        *(
            " & ".join(escape(cell).replace("∞", r"$\infty$").replace("–", "--") for cell in row) + r" \\"
            for row in rows
        ),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def escape(text: str) -> str:
    """``text`` with every character that is special to LaTeX escaped."""
    return text.translate(_LATEX)


def write(answers: Sequence[Answer], folder: Path, *, confidence: float = 0.95) -> list[str]:
    """Write ``summary.csv``, ``summary.tex`` and ``points.csv``; returns the names."""
    summary(answers).to_csv(folder / "summary.csv", index=False)
    (folder / "summary.tex").write_text(latex(answers, confidence=confidence))
    points(answers).to_csv(folder / "points.csv", index=False)
    return ["summary.csv", "summary.tex", "points.csv"]

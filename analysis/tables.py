"""The summary and the points as tables: CSV, LaTeX (booktabs) and for the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from analysis.noise import PLAIN
from analysis.verdict import Verdict

if TYPE_CHECKING:
    from rich.table import Table

    from analysis.answers import Answer

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
        ("min_examples", answer.min_examples, answer.min_examples_interval),
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
        "batch_sizes_reached": sum(point.reached for point in answer.points),
        "batch_sizes": len(answer.points),
        "lr_interior": lr_interior(answer),
        "verdict": str(answer.verdict),
        "advice": answer.advice,
    }


def lr_interior(answer: Answer) -> bool | None:
    """Whether every best learning rate lies inside the grid that was tried; ``None`` when there is none."""
    edges = [point.at_grid_edge for point in answer.points if point.reached]
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


def _cells(answers: Sequence[Answer], between: str = " ") -> tuple[list[str], list[list[str]]]:
    """Headings and text cells of the short table; names the same in every row are left out, and so is the matched noise
    scale where it is the simple one in every row."""
    headings = list(_HEADINGS)
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
            "E_min": with_interval(answer.min_examples, answer.min_examples_interval, between=between),
            "B_simple": simple,
            "B_simple / B_crit": simple_ratio,
            "B_matched": f"{answer.matched_geometry}: {matched}",
            "B_matched / B_crit": matched_ratio,
            "LR interior": "–" if interior is None else "yes" if interior else "no",
            "verdict": str(answer.verdict),
        }
        rows.append([cells[name] for name in headings])
    return headings, rows


def _unit(answers: Sequence[Answer]) -> str:
    units = {answer.group.example_unit for answer in answers}
    return f"{units.pop()}s" if len(units) == 1 else "examples"


def _percent(confidence: float) -> str:
    return f"{100 * confidence:g}"


def terminal_table(answers: Sequence[Answer], *, confidence: float = 0.95) -> Table:
    """The short table for :mod:`rich`, advice below.

    The intervals of S_min and E_min are left to the files, and learning rates are only mentioned where one is not
    interior.
    """
    from rich import box
    from rich.table import Table

    headings, rows = _cells(answers, "\n")
    steps, examples = headings.index("S_min"), headings.index("E_min")
    for row in rows:
        row[steps] = "\n".join(row[column].split("\n")[0] for column in (steps, examples))
    headings, rows = _without("E_min", headings, rows)
    headings[steps] = "S_min E_min"
    edge = headings.index("LR interior")
    if all(row[edge] == "yes" for row in rows):
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
            row[at] += "\n".join(["", f"{value} B_crit", *rest]) if value != number(None) else ""
        headings, rows = _without(ratio, headings, rows)
    title = f"Critical batch size in {_unit(answers)} [{_percent(confidence)} % interval]"
    if len(targets) == 1:
        headings, rows = _without("target", headings, rows)
        title += f", {targets.pop()}"
    for row in rows:
        # A verdict in words would be cut off beside a long name; it stands with the advice.
        row[-1] = row[-1] if row[-1] == Verdict.OK else "see below"
    headings[-1] = "note"
    table = Table(box=box.SIMPLE_HEAD, title=_literal(title), pad_edge=False, collapse_padding=True)
    for name in headings:
        numeric = name in (*_NUMERIC, "S_min E_min")
        table.add_column(
            name.replace(" ", "\n"),
            justify="right" if numeric else "left",
            no_wrap=numeric or name in ("optimizer", "LR interior"),
            min_width=5 if name == "note" else 8,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*map(_literal, row))
    advice = [
        f"{answer.group.optimizer}, {answer.target}: "
        + (answer.advice if answer.verdict is Verdict.OK else f"{answer.verdict}: {answer.advice}")
        for answer in answers
        if answer.advice
    ]
    table.caption = _literal("\n".join(advice)) or None
    table.caption_justify = "left"
    return table


def _without(name: str, headings: list[str], rows: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    at = headings.index(name)
    return headings[:at] + headings[at + 1 :], [row[:at] + row[at + 1 :] for row in rows]


def _literal(text: str) -> str:
    """``text`` for :mod:`rich` without markup."""
    return text.replace("[", r"\[")


def latex(answers: Sequence[Answer], *, confidence: float = 0.95) -> str:
    """The short table as a LaTeX ``tabular`` for the booktabs package, all text escaped."""
    headings, rows = _cells(answers)
    symbols = {
        "B_crit": r"$B_\mathrm{crit}$",
        "tokens": r"$B_\mathrm{crit}$ (tokens)",
        "S_min": r"$S_\mathrm{min}$",
        "E_min": r"$E_\mathrm{min}$",
        "B_simple": r"$B_\mathrm{simple}$",
        "B_simple / B_crit": r"$B_\mathrm{simple} / B_\mathrm{crit}$",
        "B_matched": r"$B_\mathrm{matched}$",
        "B_matched / B_crit": r"$B_\mathrm{matched} / B_\mathrm{crit}$",
    }
    columns = "".join("r" if name in symbols else "l" for name in headings)
    lines = [
        rf"% B and E in {_unit(answers)}, S in optimizer steps; brackets: {_percent(confidence)} % interval".replace(
            " % ", r" percent "
        ),
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        " & ".join(symbols.get(name, escape(name)) for name in headings) + r" \\",
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

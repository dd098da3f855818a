"""What the user sees while a sweep runs: the best learning rates so far, the curve as it stands, and what is left.

On a terminal it is a live table, otherwise a line every few seconds. The running sweep also writes it to the lock of
its folder, where ``cbs status`` reads it.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from analysis.formatting import duration as duration
from analysis.formatting import number, plural
from cbs.trial.record import TrialResult, TrialStatus
from sweeps.outlook.nearness import Nearness
from sweeps.search.search import Observer, Search
from sweeps.spec.axes import StudyKey

BAR = 16  # Length of the longest bar in characters

HEADING = "log scale"  # Column heading of the bars; see :func:`bars`


@dataclass(frozen=True)
class TimeLeft:
    """Expected remaining effort of a sweep.

    Attributes:
        trials: number of planned trials that have not ended, including the running ones.
        seconds: seconds until the last of them ends.
    """

    trials: int
    seconds: float


def time_left(search: Search, workers: int) -> TimeLeft | None:
    """Return what a sweep still takes at least, as a search plans further trials; ``None`` before any has ended.

    A trial takes as long as those at the nearest batch size took.

    Args:
        search: search of the sweep.
        workers: number of trials at a time; 0 if only the cluster knows it, then the number of running trials is used.
    """
    took: dict[int, list[float]] = {}
    for result in search.trials():
        seconds = result.timing.get("seconds")
        if isinstance(seconds, int | float) and 0 < seconds < math.inf:
            took.setdefault(result.config.batch_size, []).append(float(seconds))
    if not took:
        return None

    def expected(batch_sizes: Iterable[int]) -> float:
        near = [min(took, key=lambda known: abs(math.log(known / size))) for size in batch_sizes]
        return sum(sum(took[size]) / len(took[size]) for size in near)

    running = [cell.batch_size for cell, _ in search.running.values()]
    waiting = [config.batch_size for config in search.waiting()]
    # a running trial is on average half done
    seconds = expected(waiting) + expected(running) / 2
    trials = len(waiting) + len(running)
    return TimeLeft(trials, seconds / max(1, min(workers or len(running), trials)))


def standing_of(workers: int, search: Search, running: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the progress of a running sweep as plain JSON values: ``studies``, ``trials_left`` and ``seconds_left``;
    the last two are ``None`` until a trial has ended. ``workers`` is as for :func:`time_left`."""
    left = time_left(search, workers)
    return {
        "studies": rows_of(search),
        "trials_left": None if left is None else left.trials,
        "seconds_left": None if left is None else left.seconds,
    }


def rows_of(search: Search) -> list[dict[str, Any]]:
    """Return one row for every optimizer and batch size.

    A row has ``best_lr`` and its ``amount`` (mean steps to the target over the seeds so far, or the metric after a
    budget; ``of`` says which), and the numbers of ``done`` and ``planned`` trials.
    """
    rows = []
    for key, study in search.studies.items():
        best, (done, planned) = study.best, study.counts
        rows.append(
            {
                "optimizer": search.sweep.axes.labels[key.optimizer],
                "batch_size": key.batch_size,
                "best_lr": best[0] if best else None,
                "amount": search.objective.amount(best[1]) if best else None,
                "of": search.objective.column,
                "done": done,
                "planned": planned,
            }
        )
    return rows


def bars(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a bar for every row, as long as the logarithm of its amount, so that the bars show the curve.

    If amounts are steps, a ``|`` in a bar marks where perfect scaling from the smallest batch size would end.
    """
    first: dict[str, tuple[int, float]] = {}
    for row in rows:
        if row["amount"] is not None and row["amount"] > 0 and row["of"] == "steps":
            first.setdefault(row["optimizer"], (row["batch_size"], row["amount"]))
    perfect: list[float | None] = []
    for row in rows:
        size, amount = first.get(row["optimizer"], (1, math.nan))
        perfect.append(None if math.isnan(amount) else amount * size / row["batch_size"])
    logs = [_log(row["amount"]) for row in rows]
    ends = [value for value in (*logs, *map(_log, perfect)) if value is not None]
    low, high = min(ends, default=0.0), max(ends, default=0.0)

    def length(value: float) -> int:
        return 1 + round((BAR - 1) * (value - low) / (high - low)) if high > low else BAR

    texts = []
    for value, ideal in zip(logs, map(_log, perfect), strict=True):
        text = "" if value is None else "=" * length(value)
        if value is not None and ideal is not None and length(ideal) < len(text):
            text = text[: length(ideal) - 1] + "|" + text[length(ideal) :]
        texts.append(text)
    return texts


def _log(value: float | None) -> float | None:
    return math.log(value) if value is not None and value > 0 else None


def table_lines(rows: Sequence[Mapping[str, Any]], width: int) -> list[str]:
    """Return the rows as lines of at most ``width`` characters, with a heading first; none if there are no rows."""
    if not rows:
        return []
    from analysis.present import table  # late, as it imports pandas

    curves = bars(rows)
    columns = (
        table.Column("optimizer", heading="optimizer", name=True),
        table.Column("batch_size", heading="batch"),
        table.Column("best_lr", heading="best LR"),
        table.Column("amount", heading=rows[0]["of"], text=functools.partial(number, digits=4)),
        table.Column("", lambda row, _: f"{row['done']}/{row['planned']}", "trials"),
        table.Column("", lambda _, curve: curve, HEADING, left=True),
    )
    said = ["| marks perfect scaling from the smallest batch size"] if "|" in "".join(curves) else []
    pairs = list(zip(rows, curves, strict=True))
    return table.text_lines(table.Table(columns=columns, rows=pairs, lines=said), width)


LINE_SECONDS = 15.0  # Shortest time between two lines if there is no terminal
WIDE = 90  # Width of a terminal, in columns, from which on curves are shown next to the table


class Progress(Observer):
    """Displays the progress of a sweep.

    Args:
        console: console to write to; ``None`` for no output.
        workers: number of trials at a time; 0 if only the cluster knows it.
    """

    def __init__(self, console: Console | None, workers: int) -> None:
        self._console = console
        self._workers = workers
        self._live: Live | None = None
        self._nearness: Nearness | None = None
        self._doubted = False
        self._running: dict[str, dict[str, Any]] = {}
        self._shown = 0.0
        self._began: float | None = None
        self.standing = functools.partial(standing_of, workers)

    @classmethod
    def silent(cls) -> Progress:
        """Create an object that shows nothing."""
        return cls(None, 1)

    def began(self, search: Search) -> None:
        self._began = self._began or time.monotonic()  # a sweep of several rounds begins several times
        if search.sweep.target is not None:
            self._nearness = Nearness(search.sweep.target, search.trials(), search.sweep.budget_judged)
        self._doubt()
        if self._console is not None and self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=False)
            self._live.start()
            self.update(search, {})

    def ended(self, search: Search) -> None:
        if self._live is not None:
            try:
                self.update(search, {})
            finally:
                self._live.stop()
                self._live = None

    def looked(self, search: Search, running: Mapping[str, dict[str, Any]]) -> None:
        # on a terminal lines are drawn over, in a log file each one stays
        pause = 0.25 if self._live is not None else LINE_SECONDS
        if self._console is not None and time.monotonic() - self._shown > pause:
            self.update(search, {key: beat for key, beat in running.items() if beat.get("value") is not None})

    def finished(self, result: TrialResult, search: Search) -> None:
        """Show a failure at once, and once a remark on a target that a whole budget did not reach."""
        if self._nearness is not None:
            self._nearness.add(result)
            self._doubt()
        if self._console is not None and result.status in (TrialStatus.FAILED, TrialStatus.OUT_OF_MEMORY):
            self._console.print(
                Text(str(result.status), style="red"),
                f"{result.trial_id}: {result.message}",
                markup=False,
                soft_wrap=True,
            )

    def note(self, line: str) -> None:
        """Show a message at once."""
        if self._console is not None:
            self._console.print(Text("note", style="yellow"), line, markup=False, highlight=False, soft_wrap=True)

    def update(self, search: Search, running: dict[str, dict[str, Any]]) -> None:
        """Show the present state; ``running`` holds the latest heartbeats of running trials, by trial id."""
        if self._console is None:
            return
        self._shown = time.monotonic()
        self._running = running
        if self._nearness is not None:
            for beat in running.values():
                self._nearness.look(beat["value"])
        if self._live is not None:
            self._live.update(self._picture(search), refresh=True)
        else:
            near = "" if self._nearness is None else f"; {self._nearness.words}"
            self._console.print(f"{self._line(search)}{near}", markup=False, highlight=False, soft_wrap=True)

    def _doubt(self) -> None:
        if not self._doubted and self._nearness is not None and self._nearness.doubt is not None:
            self._doubted = True
            self.note(self._nearness.doubt)

    def _line(self, search: Search) -> str:
        finished, planned = search.all_counts()
        now = time.monotonic()
        # Ray Tune requests one trial more than it can start.
        running = min(len(search.running), self._workers) if self._workers else len(self._running)
        trials = planned - finished
        done = f"{plural(finished, 'trial')} done, {running} running, {duration(now - (self._began or now))} elapsed"
        expected, left = time_left(search, self._workers), "an unknown time"
        if expected is not None:
            left = duration(expected.seconds) if expected.seconds >= 1 or not trials else "a few seconds"
        return f"{done}, at least {plural(trials, 'trial')} and {left} left"

    def _picture(self, search: Search) -> Group:
        assert self._console is not None
        finished, planned = search.all_counts()
        table = Table(box=None, pad_edge=False, header_style="dim")
        longest = max(map(len, search.sweep.axes.labels.values()))
        named = min(max(9, longest), self._console.width // 3)
        amount = search.objective.column
        columns = {"optimizer": named, "batch": 6, "best LR": 8, amount: 6, "trials": 6, "running": None}
        curves = dict(zip(search.studies, bars(rows_of(search)), strict=True))
        if self._console.width >= WIDE:
            columns |= {"running": 18, HEADING: BAR}
        for name, width in columns.items():
            text, long = name in ("optimizer", "running", HEADING), name == "optimizer"
            table.add_column(
                name,
                justify="left" if text else "right",
                no_wrap=not long,
                min_width=width,
                overflow="fold" if long else "ellipsis",
            )
        studies, hidden = self._visible(search, -(-longest // named))
        for study in studies:
            best, (done, total) = search.studies[study].best, search.studies[study].counts
            table.add_row(
                search.sweep.axes.labels[study.optimizer],
                str(study.batch_size),
                f"{best[0]:.3g}" if best else "",
                search.objective.text(best[1]) if best else "",
                Text(f"{done}/{total}", style="green" if done == total else ""),
                self._where(search, study),
                *([curves[study]] if HEADING in columns else []),
            )
        if hidden:
            table.add_row(f"and {hidden} more")
        bar = Table.grid()
        bar.add_row(ProgressBar(total=max(planned, 1), completed=finished, width=60))
        words = "" if self._nearness is None else self._nearness.words
        return Group(table, bar, Text(self._line(search), style="bold"), Text(words))

    def _visible(self, search: Search, lines: int) -> tuple[list[StudyKey], int]:
        """Return the studies that fit on the screen at this many lines each, and how many are hidden; studies with
        running trials come first, then unfinished ones."""
        assert self._console is not None
        studies, room = list(search.studies), max(4, (self._console.height - 6) // lines)
        if len(studies) <= room:
            return studies, 0
        active = {cell.study for cell, _ in search.running.values()}
        counts = {key: study.counts for key, study in search.studies.items()}
        ranked = sorted(studies, key=lambda key: (key not in active, counts[key][0] in (0, counts[key][1])))
        seen = set(ranked[:room])
        return [study for study in studies if study in seen], len(studies) - room

    def _where(self, search: Search, study: StudyKey) -> str:
        parts = []
        for trial_id, (cell, lr) in search.running.items():
            if cell.study == study:
                at = self._running.get(trial_id)
                parts.append(f"lr {lr:.3g} seed {cell.seed}" + (f" step {at['step']}: {at['value']:.3f}" if at else ""))
        return ", ".join(parts)

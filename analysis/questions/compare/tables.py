"""Presentation of ``cbs compare``: what it writes and prints."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from analysis.estimate.diagnosis import Verdict
from analysis.estimate.result import Answer
from analysis.estimate.scopes import SCOPE
from analysis.formatting import percent, share, time_unit
from analysis.present import Presentation, presentation
from analysis.present.sentences import home, judged, quotes
from analysis.present.table import Column, Table, files, pivot
from analysis.questions.compare.optimizers import Comparison, Comparisons, RatioAt, TokenRatio

_OPTIMIZER = Column("optimizer", heading="optimizer", name=True)

MOST = 2  # Optimizers whose token ratios a screen holds beside their critical batch sizes


@presentation.register
def _(comparisons: Comparisons) -> Presentation:
    interval_note = f"[{percent(comparisons.config.confidence)} % interval]"
    shown: list[Table | str] = []
    wide: list[Table | str] = []
    for comparison in comparisons.comparisons:
        shown += [side_by_side(comparison, interval_note), *(note for note in comparison.notes if note not in shown)]
        wide += _shown(comparison, interval_note)
    shown += [*([comparisons.throughput.statement] if comparisons.throughput else []), *comparisons.notes]
    every = [answer for comparison in comparisons.comparisons for answer in comparison.answers]
    folder, known = home(every), any(answer.draws is not None for answer in every)
    tables = {"token_ratios": ratios(comparisons.comparisons), "critical_batch_sizes": pairs(comparisons.comparisons)}
    if comparisons.throughput:
        tables["compute_time"] = plane(comparisons.comparisons)
    return Presentation(
        shown=shown, wide=wide, tables=tables, json="comparison.json",
        then=[f"cbs {'lr' if known else 'analyze'} {folder}"] if folder else (),
    )  # fmt: skip


def side_by_side(comparison: Comparison, said: str) -> Table:
    """Return a table with one row per optimizer: its critical batch size, and both beside those of the reference."""
    reference = comparison.reference
    against = {pair.larger: pair for pair in comparison.critical_batch_sizes if pair.smaller == reference}
    ratios = {ratio.optimizer: ratio.at for ratio in comparison.token_ratios if ratio.at}
    ends = {name: {at.batch_size: at for at in by_size} for name, by_size in ratios.items()}
    sizes = sorted({size for by_size in ends.values() for size in by_size})

    def name(answer: Answer) -> str:
        return answer.group.optimizer

    def token_ratio(size: float) -> Column:
        def at(answer: Answer) -> RatioAt | None:
            return ends.get(name(answer), {}).get(size)

        return Column(
            "", lambda answer: getattr(at(answer), "value", None), f"token ratio at {size:g}",
            lambda answer: getattr(at(answer), "interval", None), wide=len(comparison.answers) > MOST,
        )  # fmt: skip

    columns = (
        Column("", name, "optimizer", name=True),
        Column("", "critical_batch_size", "B_crit", "interval"),
        Column(
            "", lambda answer: getattr(against.get(name(answer)), "ratio", None), f"over {reference}'s",
            lambda answer: getattr(against.get(name(answer)), "interval", None),
        ),
        Column("", lambda answer: getattr(against.get(name(answer)), "probability", None), "P(larger)", text=share),
        *(token_ratio(size) for size in dict.fromkeys(sizes[:1] + sizes[-1:])),
    )  # fmt: skip
    lines = list(judged(comparison.answers))
    legend = [f"token ratio: examples {reference} needs over those of the other optimizer"] if sizes else []
    hidden = list(quotes(comparison.answers, lines))
    lines, hidden = (lines, [*hidden, *legend]) if len(comparison.answers) > MOST else ([*lines, *legend], hidden)
    title = f"Critical batch size, {comparison.title} {said}"
    return Table(columns=columns, rows=comparison.answers, title=title, lines=lines, wide_lines=hidden)


def _shown(comparison: Comparison, said: str) -> Iterator[Table]:
    """Yield the tables of one comparison."""
    if rows := ratios([comparison]).rows:
        across = Column("optimizer", "value", interval="interval")
        title = f"Token ratio, {comparison.title}: examples {comparison.reference} needs over those of the other {said}"
        lines = [rising(ratio) for ratio in comparison.token_ratios]
        yield replace(pivot(rows, Column("", "batch_size", "batch size"), across), title=title, lines=lines)
    title = f"Critical batch size ({comparison.definition}), {comparison.title}: probability that it is "
    title += f"larger than that of the other optimizer, and the ratio of the two {said}"
    yield replace(pairs([comparison]), title=title)
    table = plane([comparison])
    frontier = [row for row in table.rows if row[1]["on_frontier"]]
    yield replace(table, rows=frontier, title=f"Least time, {comparison.title} {said}")


def ratios(comparisons: Sequence[Comparison]) -> Table:
    """Return a table with one row per optimizer and batch size."""
    rows = [(each.scope, ratio, at) for each in comparisons for ratio in each.token_ratios for at in ratio.at]
    value = Column("token_ratio", "value", interval="interval")
    verdict = Column("verdict", lambda _, ratio, __: ratio.verdict)
    return Table(columns=(*files(*SCOPE, "reference", "optimizer", "batch_size"), value, verdict), rows=rows)


def pairs(comparisons: Sequence[Comparison]) -> Table:
    """Return a table with one row per ordered pair of optimizers."""
    columns = (
        *files(*SCOPE),
        replace(_OPTIMIZER, value="larger"),
        Column("other", "smaller", "over", name=True),
        Column("probability_larger", "probability", "probability", text=share),
        Column("ratio", heading="ratio", interval="interval"),
        *files("verdict"),
    )
    rows = [(each.scope, pair) for each in comparisons for pair in each.critical_batch_sizes]
    return Table(columns=columns, rows=rows)


def plane(comparisons: Sequence[Comparison]) -> Table:
    """Return a table with one row per optimizer, number of devices and batch size."""
    rows = [(each.scope, point) for each in comparisons for point in each.compute_time]
    unit, length = time_unit(point["seconds"] for _, point in rows if point["on_frontier"])

    columns = (
        *files(*SCOPE),
        Column("devices", heading="devices", name=True),
        _OPTIMIZER,
        Column("batch_size", heading="batch size"),
        Column(
            "", "seconds", f"time ({unit})", lambda _, at: (at["seconds_low"], at["seconds_high"]), times=1 / length
        ),
        *files("steps", "seconds", "seconds_low", "seconds_high", "on_frontier", "assumption"),
    )
    return Table(columns=columns, rows=rows)


def rising(ratio: TokenRatio) -> str:
    """Say in a sentence whether the token ratio decreases with the batch size."""
    if ratio.probability_not_decreasing is None:
        return f"{ratio.optimizer}: too few batch sizes to say whether the ratio decreases with the batch size"
    return (
        f"{ratio.optimizer}: the ratio does not decrease with the batch size with probability "
        f"{share(ratio.probability_not_decreasing)}"
        + ("" if ratio.verdict is Verdict.OK else f", but one of the curves is in doubt: {ratio.verdict}")
    )

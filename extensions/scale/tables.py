"""Presentation of ``cbs scale``: what it writes and prints."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from analysis.formatting import DASH, number, percent, with_interval
from analysis.present import Presentation, presentation
from analysis.present.table import Column, Table, files
from extensions.scale.fits import NOTHING, ScalingLaw
from extensions.scale.scaling import Scaling


@presentation.register
def _(answer: Scaling) -> Presentation:
    units = {f"{point.unit}s" for point in answer.points}
    unit = units.pop() if len(units) == 1 else "examples"
    said = f"[{percent(answer.config.confidence)} % interval]"
    head = f"{len(answer.points)} critical batch sizes ({answer.config.definition}), B_crit = c x^k in {unit}, {said}; "
    wide: list[Table | str] = [f"{head}data: {answer.data}"]
    if answer.laws:
        remarks = dict.fromkeys(line for law in answer.laws for line in _remarks_of(law))
        wide.append(laws(answer.laws, f"Laws {said}", remarks, hidden="equal"))
    if answer.comparisons:
        wide.append(laws(answer.comparisons, f"All else equal {said}", _remarks_of_sets(answer), hidden="c"))
    every = laws((*answer.laws, *answer.comparisons), f"B_crit = c x^k, B_crit in {unit}; brackets: {said[1:-1]}")
    tables = {"points": points(answer), "scaling": every}
    if (predicted := predictions(answer)).rows:
        tables["predictions"] = predicted
    return Presentation(
        shown=[at_a_glance(answer, unit, said), *answer.notes],
        wide=wide,
        then=answer.then,
        tables=tables,
        latex=("scaling",),
        json="scaling.json",
        drawn_in="",
    )


def at_a_glance(scaling: Scaling, unit: str, said: str) -> Table:
    """Return a table of the exponents and of what they say, one row per law, set and pool of sets; of the sets alone
    only those that have no pool."""
    pooled = {(law.axis, law.workload, law.optimizer) for law in scaling.comparisons if law.kind == "pooled"}
    rows = [
        law
        for law in (*scaling.laws, *scaling.comparisons)
        if law.kind != "set" or (law.axis, law.workload, law.optimizer) not in pooled
    ]

    def known(law: ScalingLaw) -> float | None:
        return None if law.fit is None or law.says == NOTHING else law.fit.exponent

    def equal(law: ScalingLaw) -> str:
        return "nothing" if law.kind == "law" else law.held.replace("validation_", "")

    columns = (
        Column("", "axis", "against", name=True),
        *(Column("", key, key, name=True) for key in ("workload", "optimizer") if _several(rows, key)),
        *([Column("", equal, "equal in", left=True)] if scaling.comparisons else []),
        Column("", lambda law: len(law.points), "points"),
        Column("", known, "k", lambda law: law.fit.exponent_interval if known(law) is not None else None, signed=True),
        Column("", lambda law: law.says, "B_crit", left=True),
    )
    alone = "" if _several(rows, "optimizer") else f" of {rows[0].optimizer}"
    lines = [f"{law.axis}, {law.optimizer}: {law.remark}" for law in rows if law.fit is None]
    lines += [line for law in scaling.laws for line in _predicted(law)]
    title = f"B_crit = c x^k in {unit}, {len(scaling.points)} critical batch sizes{alone} {said}"
    return Table(columns=columns, rows=rows, title=title, lines=lines)


def _several(laws: Sequence[ScalingLaw], key: str) -> bool:
    return len({getattr(law, key) for law in laws}) > 1


def points(scaling: Scaling) -> Table:
    """Return a table with one row per critical batch size; workload options are columns ``option_<name>``."""
    names = dict.fromkeys(name for point in scaling.points for name in point.workload_options)

    columns = (
        Column("point", lambda point: scaling.points.index(point)),
        *files("sweep", "workload", "optimizer"),
        Column("metric", "target.metric"),
        Column("target", "target.value"),
        Column("critical_batch_size", interval="interval"),
        Column("unit", lambda point: f"{point.unit}s"),
        Column("parameters"),
        Column("data", interval="data_interval"),
        Column("data_unit", lambda point: f"{point.data_unit}s"),
        Column("compute_flops", "compute"),
        Column("held_data"),
        Column("verdict"),
        *(Column(f"option_{name}", f"workload_options.{name}") for name in names),
    )
    return Table(columns=columns, rows=scaling.points)


def laws(rows: Sequence[ScalingLaw], title: str, lines: Iterable[str] = (), hidden: str = "") -> Table:
    """Return a table with one row per law, set and pool of sets; ``hidden`` is the heading of a column to leave out."""

    def constant(name: str) -> Any:
        return lambda law: getattr(law.fit, name)[0] if law.fit and len(law.fit.constants) == 1 else None

    def span(law: ScalingLaw) -> str:
        return f"{number(law.x.min())} to {number(law.x.max())} {law.unit}".strip() if len(law.x) else DASH

    def equal(law: ScalingLaw) -> str:
        return "all points" if law.kind == "law" else law.held.replace("validation_", "")

    columns = (
        Column("kind"),
        Column("axis", heading="against", name=True),
        Column("axis_unit", "unit"),
        Column("workload"),
        Column("optimizer", heading="optimizer", name=True),
        Column("", equal, "equal", left=True),
        *files("held", "also_varies"),
        Column("points", lambda law: len(law.points), "points"),
        *files("doubted"),
        Column("members", lambda law: " ".join(map(str, law.points))),
        Column("x_min", lambda law: law.x.min() if len(law.x) else None),
        Column("x_max", lambda law: law.x.max() if len(law.x) else None),
        Column("", span, "range", left=True),
        Column("exponent", "fit.exponent", "k", "fit.exponent_interval", "$k$"),
        Column("exponent_of_errors_low", lambda law: law.fit.exponent_interval_of_errors[0] if law.fit else None),
        Column("exponent_of_errors_high", lambda law: law.fit.exponent_interval_of_errors[1] if law.fit else None),
        Column("constant", constant("constants"), "c", constant("constant_intervals"), "$c$"),
        Column("scatter", "fit.scatter.total"),
        Column("freedom", "fit.freedom"),
        Column("residual_rms", "fit.residual_rms"),
        Column("B_star", "kaplan.B_star"),
        Column("alpha", "kaplan.alpha", interval="kaplan.alpha_interval"),
        Column("remark"),
    )
    kept = tuple(column for column in columns if column.heading != hidden or not hidden)
    return Table(columns=kept, rows=rows, title=title, lines=list(lines))


def predictions(scaling: Scaling) -> Table:
    """Return a table with one row per law and requested value."""
    columns = (
        Column("axis"),
        Column("axis_unit", "unit"),
        *files("optimizer", "x"),
        Column("critical_batch_size", interval="interval", ends=("low", "high")),
        Column("times_beyond_the_data"),
    )
    return Table(columns=columns, rows=[(entry, law) for law in scaling.laws for entry in law.predictions])


def _remarks_of_sets(scaling: Scaling) -> list[str]:
    """Return remarks on sets; a remark that holds for every set is given once for the pool."""

    def pool(law: ScalingLaw) -> tuple[str, str, str, float | None]:
        return law.axis, law.workload, law.optimizer, scaling.points[law.points[0]].held_data

    pooled = {pool(law) for law in scaling.comparisons if law.kind == "pooled"}
    return [
        f"{law.axis}, {law.optimizer}, {law.held}: {law.remark}"
        for law in scaling.comparisons
        if law.remark and (law.kind == "pooled" or pool(law) not in pooled)
    ]


def _remarks_of(law: ScalingLaw) -> Iterator[str]:
    name = f"{law.axis}, {law.optimizer}"
    if law.remark:
        yield f"{name}: {law.remark}"
    if law.also_varies and law.fit:
        yield f"not equal between the points against {law.axis}: {law.also_varies}"
    kaplan = law.kaplan
    if kaplan:
        star = _with_interval(kaplan["B_star"], kaplan["B_star_interval"])
        alpha = _with_interval(kaplan["alpha"], kaplan["alpha_interval"])
        yield f"{name}: B_crit = B*/L^(1/alpha) with B* = {star}, alpha = {alpha}"
    yield from _predicted(law)


def _predicted(law: ScalingLaw) -> Iterator[str]:
    name = f"{law.axis}, {law.optimizer}"
    for entry in law.predictions:
        beyond = entry.times_beyond_the_data
        where = f", extrapolated {beyond:.3g} times beyond the data" if beyond > 1 else ""
        value = _with_interval(entry.critical_batch_size, entry.interval)
        yield f"{name}: at {number(entry.x)} {law.unit}".rstrip() + f" {value}{where}"


def _with_interval(value: float | None, interval: Sequence[float | None]) -> str:
    low, high = interval
    unbounded = low is None and high is None
    return f"{number(value)} [not bounded]" if unbounded else with_interval(value, (low, high))

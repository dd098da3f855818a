"""Write a whole analysis as one self-contained HTML page: no network, no script, no other files.

The same results, options and command give the same bytes; the page contains no time except those at which the sweeps
were run. Values of marks are shown on hover by the titles of SVG elements.
"""

import itertools
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

import cbs
from analysis.config import DEFAULT, AnalysisConfig
from analysis.estimate.definitions import in_words
from analysis.estimate.estimates import answers
from analysis.estimate.result import Answer
from analysis.estimate.suggest import suggest
from analysis.formatting import percent
from analysis.present import presentation
from analysis.present.answers import definitions, doublings, example_units, points, summary
from analysis.present.figures import figures_of, pictures
from analysis.present.figures.of_answers import scoped
from analysis.present.findings import Analysis
from analysis.present.sentences import facts, sentence
from analysis.present.table import Table
from analysis.read.results import Results, load
from cbs.errors import ResultsError
from cbs.files import atomic_file, refuse_links
from cbs.registry import extensions
from cbs.trial.store import LOCK, STALE_SECONDS, find_sweeps
from cbs.trial.target import Target
from extensions.report import content, vector
from extensions.report.methods import ARXIV

LINES = 120  # Number of rows of points above which their tables are folded
MANY = 9  # Number of columns above which a table is wider than the page on every screen
REFRESH = 30  # Seconds between two versions of the page of a running sweep

_WITH_INTERVAL = re.compile(r"(?:\w+ )?[^ \[]+ \[[^\]]*\]")
_BREAKS = re.compile(r"\(?[^,_(=/]+[,_=/]*|[,_(=/]+")


@dataclass(frozen=True, kw_only=True)
class Page:
    """The page that :func:`report` wrote: its file, its size in bytes, one answer per sweep, group and target, and the
    number of figures."""

    path: Path
    size: int
    answers: tuple[Answer, ...]
    figures: int

    def to_json(self) -> dict[str, Any]:
        return {"path": str(self.path), "bytes": self.size, "fits": len(self.answers), "figures": self.figures}


def report(
    path: str | os.PathLike[str],
    *,
    targets: Sequence[float | Target] | None = None,
    metric: str | None = None,
    output: str | os.PathLike[str] | None = None,
    config: AnalysisConfig = DEFAULT,
    command: str = "",
    refresh: int | None = None,
) -> Page:
    """Analyze the results and write them as one self-contained HTML page.

    Args:
        path, targets, metric, config: as for :func:`analysis.analyze`, including errors.
        output: the file to write; ``analysis/report.html`` inside ``path`` by default.
        command: command that makes this page, to be shown on it; left out if empty.
        refresh: seconds after which a browser reloads the page, for a running sweep; ``None`` for never.

    Raises:
        ResultsError: if ``output`` cannot be written.
    """
    results = load(path, metric=metric)
    scope_answers = answers(results, config, targets=targets)
    file = Path(path) / "analysis" / "report.html" if output is None else Path(output)
    if output is None:
        refuse_links(Path(path), file)
    number = itertools.count(1)
    figures = drawings(scope_answers, number)
    added = list(sections(Path(path), config, number))
    text = render(results, scope_answers, config, figures, added, command=command, refresh=refresh)
    data = text.encode(errors="backslashreplace")
    with atomic_file(file, "the report to ", "; choose another file with --output") as draft:
        draft.write_bytes(data)
    return Page(path=file, size=len(data), answers=tuple(scope_answers), figures=next(number) - 1)


def follow(
    path: str | os.PathLike[str],
    write: Callable[[int | None], Page],
    note: Callable[[str], None],
    *,
    pause: Callable[[float], None] = time.sleep,
) -> Page:
    """Write the page while a sweep at ``path`` runs, and once more when none is running.

    Args:
        write: writes the page; receives the seconds after which a browser reloads it, ``None`` for never.
        note: called with each line of information for the user.
        pause: waits for a number of seconds.

    Raises:
        ResultsError: as for :func:`report`, once no sweep is running.
    """
    if not running(path):
        note(f"no sweep is running in {path}: the page is written once")
    told = False
    while running(path):
        try:
            page = write(REFRESH)
        except ResultsError as error:
            note(f"not yet: {error}")  # no trial has ended, or none got far enough
        else:
            if not told:
                note(f"open {page.path} in a browser; it is written again every {REFRESH} s")
            told = True
        pause(REFRESH)
    return write(None)


def running(path: str | os.PathLike[str]) -> bool:
    """Return whether the owner of one of the sweeps at ``path`` has touched its lock recently."""
    for store in find_sweeps(path):
        try:
            age = time.time() - (store.root / LOCK).stat().st_mtime
        except FileNotFoundError:
            continue
        if abs(age) <= STALE_SECONDS:
            return True
    return False


def sections(path: Path, config: AnalysisConfig, number: Iterator[int]) -> Iterator[dict[str, Any]]:
    """Yield what other questions add to the page: title, tables, sentences and figures, numbered by ``number``. A
    question adds something if its module ``section`` has a function ``section`` from a folder to a result or ``None``.
    """
    for module in map(extensions.load, dict(extensions.modules("section", "analysis.questions"))):
        try:
            found = module.section(path, config)
        except ResultsError as error:  # a damaged file of another question must not prevent the report
            yield {"title": module.TITLE, "tables": [], "lines": [f"Not shown: {error}"], "figures": []}
            continue
        if found is None:
            continue
        shown = presentation(found).shown
        drawn = [vector.drawn(picture, next(number)) for picture in figures_of(found)]
        tables = [part for part in shown if isinstance(part, Table) and part.rows]
        lines = [part for part in shown if isinstance(part, str)]
        yield {"title": module.TITLE, "tables": tables, "lines": lines, "figures": drawn}


def drawings(drawn_answers: Sequence[Answer], number: Iterator[int]) -> list[dict[str, Any]]:
    """Return the ``answers``, ``points`` and ``figures`` of every sweep, workload and target, figures numbered by
    ``number``."""
    pages: list[dict[str, Any]] = []
    for members, suffix, _ in scoped(drawn_answers):
        shown = list(pictures(Analysis, members, suffix))
        first = [f"{kind}{suffix}" for kind in vector.FIRST]
        shown.sort(key=lambda picture: first.index(picture.name) if picture.name in first else len(first))
        figures = [vector.drawn(picture, next(number)) for picture in shown]
        pages.append({"answers": members, "points": points(members), "figures": figures})
    return pages


def render(
    results: Results,
    shown_answers: Sequence[Answer],
    config: AnalysisConfig,
    figures: Sequence[Mapping[str, Any]],
    added: Sequence[Mapping[str, Any]] = (),
    *,
    command: str = "",
    refresh: int | None = None,
) -> str:
    """Return the page of at least one answer as text; ``figures`` are :func:`drawings`, ``added`` :func:`sections`, the
    rest is as for :func:`report`."""
    folders = {group.sweep: group for group in results.groups}
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("extensions.report", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"papers": _papers, "breakable": _breakable, "unbroken": _unbroken}
    environment.globals["many"] = MANY
    sweeps = [content.sweep(name, str(group.folder), group.manifest) for name, group in folders.items()]
    runs = [run for sweep in sweeps for run in sweep["runs"]]
    return environment.get_template("page.html").render(
        title=f"Critical batch size: {', '.join(folders)}",
        style=Markup((Path(__file__).parent / "page.css").read_text()),
        summary=content.verdict_first(summary(shown_answers).shown(wide=True)),
        definitions=definitions(shown_answers),
        judged=content.judged(shown_answers),
        workloads=list(dict.fromkeys(answer.group.workload for answer in shown_answers)),
        targets=list(dict.fromkeys(str(answer.target) for answer in shown_answers)),
        axis=content.axis(shown_answers),
        units=example_units,
        unit=example_units(shown_answers),
        percent=percent(config.confidence),
        called=in_words(config.definition, shown_answers[0].critical.options),
        config=config,
        headline=sentence(shown_answers[0].critical),
        doublings=doublings(shown_answers),
        described=content.definitions(shown_answers),
        suggestions=[(found, facts(found, answer)) for answer in shown_answers if (found := suggest(answer))],
        scopes=figures,
        added=added,
        fold=sum(len(entry["points"].rows) for entry in figures) > LINES,
        longest=vector.LONGEST_TABLE,
        sweeps=sweeps,
        origin=content.latest(runs),
        started=sorted(run["started"] for run in runs if run["started"]),
        results=results,
        statuses=content.statuses(results),
        messages=content.messages(results),
        command=command,
        refresh=refresh,
        version=cbs.__version__,
    )


def _papers(text: str) -> Markup:
    """Return ``text`` with arXiv numbers as links."""
    link = Markup('<a href="https://arxiv.org/abs/{0}">arXiv:{0}</a>')
    parts = ARXIV.split(text)
    return Markup("").join(link.format(part) if index % 2 else part for index, part in enumerate(parts))


def _unbroken(text: str) -> str:
    """Return ``text`` with its numbers on one line with what they are of and with their intervals."""
    return _WITH_INTERVAL.sub(lambda found: found[0].replace(" ", "\N{NO-BREAK SPACE}"), text)


def _breakable(text: str) -> Markup:
    """Return ``text`` with permitted line breaks before brackets and after commas, underscores, equals and slashes."""
    return Markup("").join(Markup("{}<wbr>").format(part) for part in _BREAKS.findall(text))

"""Presentation of ``cbs analyze`` and ``cbs fit``: what they write and print."""

from analysis.estimate.diagnosis import Verdict
from analysis.estimate.suggest.earlier_command import at_harder_target
from analysis.present import Presentation, presentation
from analysis.present.answers import definitions, doublings, points, summary
from analysis.present.findings import Analysis
from analysis.present.sentences import home, suggested


@presentation.register
def _(analysis: Analysis) -> Presentation:
    tables = {
        "summary": summary(analysis.answers, names=analysis.headings),
        "doublings": doublings(analysis.answers, names=analysis.headings),
        "points": points(analysis.answers),
        "definitions": definitions(analysis.answers, names=analysis.headings),
    }
    more = suggested(analysis.suggestions, analysis.answers)
    return Presentation(
        shown=[tables["summary"], *analysis.notes],
        wide=[tables["doublings"], tables["definitions"], *more],
        then=_then(analysis),
        tables=tables,
        latex=("summary", "doublings", "definitions"),
        paper={"summary": ("critical_batch_size", "within 10 %", "examples_at_critical", "verdict")},
        json="report.json",
    )


def _then(analysis: Analysis) -> list[str]:
    """Return the commands that run what the answers lack; where there are none, the question that comes next."""
    doubted = [answer for answer in analysis.answers if answer.verdict is not Verdict.OK]
    missed = [at_harder_target(answer) for answer in doubted]
    asked = {(answer.group.sweep, answer.group.optimizer, str(answer.target)) for answer in doubted}
    commands = [
        entry.command
        for entry in analysis.suggestions
        if (entry.group.sweep, entry.group.optimizer, str(entry.target)) in asked
    ]
    folder = home(analysis.answers)
    axes = [answer.group.manifest.get("axes") for answer in analysis.answers]
    if folder and any(isinstance(each, dict) and each.get("batch_schedules") for each in axes):
        commands.append(f"cbs schedule judge {folder}")
    if (found := list(dict.fromkeys(filter(None, [*missed, *commands])))) or not folder:
        return found
    several = len({answer.group.optimizer for answer in analysis.answers}) > 1
    if any(point.reached for answer in analysis.answers for point in answer.points):
        return [f"cbs {'compare' if several else 'lr'} {folder}"]
    easier = [answer.easier for answer in doubted if answer.easier and not answer.group.beside]
    easiest = max(easier, key=lambda target: target.sign * target.value, default=None)
    return [] if easiest is None else [f"cbs analyze {folder} --target {easiest.value:g}"]

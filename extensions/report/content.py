"""What the page says in addition to its tables, as plain values: about its answers and the origin of their numbers.

The origin is given by protocol, commands, software and machine, and how the trials ended.
"""

import inspect
import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from analysis.estimate.definitions import DEFINITIONS, in_words
from analysis.estimate.diagnosis import Verdict
from analysis.estimate.result import Answer
from analysis.formatting import DASH, flat, with_interval
from analysis.present.sentences import VERDICTS, good, if_hyperbola, meaning, quote, unmarked
from analysis.present.table import Column, Table
from analysis.read.results import Results
from extensions.report.methods import cited

MESSAGES = 20  # Largest number of trial messages that are shown


def axis(answers: Sequence[Answer]) -> tuple[float, float]:
    """Return the ends of a common log axis for critical batch sizes: powers of two around all values and finite
    ends."""
    known = [
        value for answer in answers for value in (answer.critical_batch_size, *answer.interval) if value and value > 0
    ]
    values = known or [float(point.batch_size) for answer in answers for point in answer.points]
    return 2.0 ** math.floor(math.log2(min(values)) - 0.01), 2.0 ** math.ceil(math.log2(max(values)) + 0.01)


def judged(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """Return what the page says about every answer.

    That is its ``value`` with interval, whether it is ``fine``, the range that is nearly as ``good``, what its verdict
    ``means`` and what to ``quote``, what a ``hyperbola`` would give, and the positions of low end, value and high end
    on the common axis, 0 to 1, ``None`` if open or undefined.
    """
    low, high = map(math.log, axis(answers))
    return [
        {
            "answer": answer,
            "bar": [
                None if value is None else (math.log(value) - low) / (high - low)
                for value in (answer.interval[0], answer.critical_batch_size, answer.interval[1])
            ],
            "fine": answer.verdict is Verdict.OK,
            "value": value_of(answer),
            "good": good(answer) if answer.draws else "",
            "meaning": meaning(answer),
            "means": VERDICTS[answer.verdict],
            "quote": quote(answer),
            "hyperbola": if_hyperbola(answer),
        }
        for answer in answers
    ]


def value_of(answer: Answer) -> str:
    """Return the critical batch size with interval and unit, or that there is no value."""
    words = with_interval(answer.critical_batch_size, answer.interval).removeprefix(f"{DASH} ")
    return "no value" if words == DASH else f"{words} {answer.group.example_unit}s"


def verdict_first(table: Table) -> Table:
    """Return the summary with its verdict next to the critical batch size, where no screen cuts it off."""
    verdict = next(column for column in table.columns if column.key == "verdict")
    columns = [column for column in table.columns if column is not verdict]
    index = next(index for index, column in enumerate(columns) if column.key == "critical_batch_size") + 1
    return replace(table, columns=(*columns[:index], verdict, *columns[index:]))


def definitions(answers: Sequence[Answer]) -> list[dict[str, str]]:
    """Return every evaluated definition: name with options, what is computed, and its source."""
    return [
        {
            "called": in_words(name, entry.options),
            "sentence": unmarked((inspect.getdoc(DEFINITIONS[name]) or "").partition("\n\n")[0]),
            "source": ", ".join(f"arXiv:{number}" for number in cited(name)),
        }
        for name, entry in answers[0].definitions.items()
    ]


def sweep(name: str, folder: str, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return a description of a sweep from its ``sweep.json``; what is missing there is left out.

    ``axes`` is what was varied and ``protocol`` what all trials share, as settings and values; ``runs`` has one entry
    per command that added to it, see :func:`_run`.
    """
    protocol = (manifest.get("protocol") or {}) | {"data hash": manifest.get("data_hash") or None}
    return {
        "name": name,
        "folder": folder,
        "protocol": _settings(protocol),
        "axes": _settings(manifest.get("axes") or {}),
        "runs": (runs := [_run(entry) for entry in manifest.get("runs") or ()]),
        "commands": _commands(runs),
    }


def latest(runs: Sequence[Mapping[str, str]]) -> list[tuple[str, str]]:
    """Return software and machine of the latest run, for the top of the page."""
    last = max(runs, key=lambda run: run["started"], default={})
    shown = (("Software", "software"), ("Machine", "hardware"), ("Commit", "git"))
    return [(name, re.sub(r"\b([0-9a-f]{10})[0-9a-f]{30}\b", r"\1", last[key])) for name, key in shown if last.get(key)]


def _commands(runs: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """Return the runs of a sweep, those that differ in their start alone as one."""
    alike: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for run in runs:
        alike.setdefault(tuple(text for name, text in run.items() if name != "started"), []).append(run)
    return [
        first | {"started": f"{first['started']}, and {len(others)} more until {others[-1]['started']}"}
        if others
        else first
        for first, *others in alike.values()
    ]


def _run(entry: Mapping[str, Any]) -> dict[str, str]:
    """Return command, start and machine as lines of text."""
    hardware = entry.get("hardware") or {}
    machine = {
        **{key: hardware.get(key) for key in ("system", "processor")},
        "cores": f"{hardware['cores']} cores" if hardware.get("cores") else "",
        "memory": f"{hardware['memory_bytes'] / 2**30:.0f} GiB memory" if hardware.get("memory_bytes") else "",
        "gpus": _text(hardware.get("gpus") or []),
    }
    versions, git = entry.get("versions") or {}, entry.get("git") or {}
    return {
        "command": str(entry.get("command", "")),
        "started": str(entry.get("started", "")),
        "software": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "hardware": ", ".join(str(part) for part in machine.values() if part),
        "git": ", ".join(f"{name} {commit}" for name, commit in git.items() if commit),
    }


def _settings(value: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, _text(part)) for name, part in flat(value) if part not in ({}, [], None)]


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return ", ".join(map(_text, value)) if isinstance(value, list) else json.dumps(value)


def statuses(results: Results) -> Table:
    """Return a table of how the trials ended, one row per group."""
    names = [name for name, _ in Counter(results.trials["status"]).most_common()]
    rows: list[dict[str, Any]] = [
        {"sweep": group.sweep, "optimizer": group.optimizer}
        | dict.fromkeys(names, 0)
        | Counter(results.of_group(index)["status"])
        for index, group in enumerate(results.groups)
    ]
    several = len({row["sweep"] for row in rows}) > 1
    columns = (
        Column("sweep", heading="sweep" if several else "", name=True),
        Column("optimizer", heading="optimizer", name=True),
        *(Column(name, heading=name) for name in names),
    )
    return Table(columns=columns, rows=rows)


def messages(results: Results) -> list[tuple[str, int]]:
    """Return the messages of trials that ended early, with their number, the most frequent first; messages that differ
    only in numbers are counted together under the first."""
    texts = results.trials["message"].fillna("")
    texts = texts[(texts != "") & ~texts.str.startswith("imported from run ")]  # each trial says that of itself
    alike = texts.groupby(texts.str.replace(r"\d+(\.\d+)?", "0", regex=True), sort=False).agg(["first", "size"])
    most = alike.sort_values("size", ascending=False, kind="stable").head(MESSAGES)
    return list(most.itertuples(index=False, name=None))

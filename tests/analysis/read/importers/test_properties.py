"""Whatever the bytes: runs, or one line that a person can act on."""

import math
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.read.cells import number, whole
from analysis.read.importers import import_runs
from analysis.read.importers.base import ImportedRun
from analysis.read.importers.trials import clean
from cbs.errors import CbsError, DataError
from tests.analysis.read.importers.sources import settings as wanted

QUICK = settings(max_examples=30, deadline=None)
SLOW = settings(max_examples=12, deadline=None)

LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
JSON = st.recursive(
    LEAVES,
    lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text(max_size=4), part, max_size=3),
    max_leaves=8,
)
CELLS = st.sampled_from(["", "nan", "inf", "1", "2", "-1", "1e999", "0.5", "x", '"', "9" * 400, "a,b", "\0", "٣"])


def imports_or_tells(source: Path, format: str, **changes: Any) -> None:
    out = source.parent / "out"
    told, trials = "", 0
    try:
        trials = len(import_runs([source], out, wanted(**changes), format=format).trials)
    except CbsError as error:
        told = str(error)
    assert "\n" not in told
    assert (trials == 0) == bool(told)
    assert out.exists() == (trials > 0)
    assert len(list((out / "trials").iterdir()) if trials else []) == trials


@QUICK
@given(st.binary(max_size=200), st.sampled_from([".csv", ".tsv", ".parquet"]))
def test_any_bytes_as_a_table(content: bytes, suffix: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"x{suffix}"
        path.write_bytes(content)
        imports_or_tells(path, "table")


@QUICK
@given(st.lists(st.tuples(st.integers(0, 6), st.sampled_from([1.0, 2.0, math.nan]))), st.randoms(use_true_random=False))
def test_a_curve_does_not_depend_on_the_order_of_its_rows(points: list[tuple[int, float]], random: Any) -> None:
    shuffled = list(points)
    random.shuffle(shuffled)
    found: list[list[Any] | None] = []
    restored = False
    for rows in (points, shuffled):
        run = ImportedRun(name="a", place="x", axis=[row[0] for row in rows], values=[row[1] for row in rows])
        try:
            steps, measured, counts = clean(run, 4, wanted())
        except DataError:
            found.append(None)
        else:
            assert all(steps[1:] > steps[:-1])
            assert len(steps) + counts["duplicates"] + counts["undone"] == len(points)
            found.append([steps.tolist(), [repr(value) for value in measured.tolist()]])
            restored |= counts["restored"] > 0
    values: dict[int, set[str]] = {}
    for step, value in points:
        values.setdefault(step, set()).add(repr(value))
    twice = any(len(entry) > 1 for entry in values.values())
    assert twice or not restored
    assert restored or (found[0] == found[1] and (found[0] is None) == twice)


@QUICK
@given(LEAVES | CELLS | st.text("0123456789.eE+-_ naif", max_size=6))
def test_a_cell_is_a_number_or_says_why_not(cell: Any) -> None:
    for parse in (number, lambda cell: whole(cell, 0)):
        try:
            value = parse(cell)
        except ValueError:
            continue
        assert float(cell) == value or math.isnan(value)

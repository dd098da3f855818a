"""``cbs fit``: every table a person might pass is a result, or one clear line."""

import io
import json
from pathlib import Path
from typing import Any

import pandas as pd
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from analysis import present
from analysis.config import AnalysisConfig
from analysis.questions.fit.table_fit import OPTIONAL, REQUIRED, TableFit, fit_table
from cbs.errors import CbsError

QUICK = AnalysisConfig(resamples=100)


def attempt(source: Any) -> TableFit | None:
    """A result that is strict JSON, or the misuse it was."""
    message = ""
    try:
        fitted = fit_table(source, QUICK)
    except CbsError as error:
        message = str(error)
    if message:
        assert "\n" not in message
        return None
    json.dumps(present.to_json(fitted), allow_nan=False)
    present.show(fitted, Console(width=100, file=io.StringIO()), wide=True)
    return fitted


CELLS = st.one_of(
    st.sampled_from(
        ["", "8", "16", "32", "1e3", "0", "-1", "4k", "nan", "inf", "true", "false", "sgd", '"', "'", "1,5", "½"]
    ),
    st.floats(1e-10, 1e19).map(str),
    st.text(max_size=6),
)
HEADERS = st.lists(
    st.sampled_from([*REQUIRED, *OPTIONAL, "x"]),
    min_size=2,
    max_size=7,
    unique=True,
)  # fmt: skip
RELAXED = settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])


@RELAXED
@given(data=st.data())
def test_any_table_is_a_result_or_one_clear_line(data: st.DataObject, tmp_path: Path) -> None:
    header = data.draw(HEADERS)
    rows = data.draw(st.lists(st.lists(CELLS, min_size=len(header), max_size=len(header)), max_size=5))
    path = tmp_path / "any.csv"
    path.write_text("\n".join(",".join(cells) for cells in [header, *rows]), encoding="utf-8", errors="replace")
    attempt(path)


@RELAXED
@given(st.binary(max_size=300))
def test_any_bytes_are_a_result_or_one_clear_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "any.csv"
    path.write_bytes(content)
    assert attempt(path) is None or b"steps" in content


POSITIVE = st.floats(1e-6, 1e15)


@RELAXED
@given(
    st.lists(
        st.tuples(POSITIVE, st.none() | POSITIVE, st.booleans(), st.integers(0, 2), st.sampled_from([-1.0, 0.5, 3.0])),
        min_size=2,
        max_size=12,
        unique_by=lambda row: (row[0], row[3], row[4]),
    )
)
def test_any_numbers_in_range_are_a_result(rows: list[tuple[float, float | None, bool, int, float]]) -> None:
    frame = pd.DataFrame(rows, columns=["batch_size", "steps", "censored", "seed", "target"])
    frame = frame[frame.groupby("target")["batch_size"].transform("nunique") > 1]
    assert frame.empty or attempt(frame) is not None

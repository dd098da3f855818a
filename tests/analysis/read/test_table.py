"""The one reader of tables: the same cells whatever the file, and where each stands."""

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis.read import cells
from analysis.read.table import header_of, of_rows, read_table, table_paths
from cbs.errors import DataError


def test_every_kind_of_file_has_the_same_numbers(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": [1, 2], "b c": [0.5, None]})
    frame.to_csv(tmp_path / "x.csv", index=False)
    frame.to_csv(tmp_path / "x.tsv", index=False, sep="\t")
    frame.to_parquet(tmp_path / "x.parquet")
    for source in (*(tmp_path / f"x{suffix}" for suffix in (".csv", ".tsv", ".parquet")), frame):
        table = read_table(source)
        assert list(table.columns) == ["a", "b c"]
        assert table.numbers("a", [0, 1]).tolist() == [1, 2]
        assert table.filled("b c") == [0]
        with pytest.raises(DataError, match=r"(line 3|row 2), column 'b c': it is empty"):
            table.numbers("b c", [0, 1])
        if isinstance(source, Path):
            assert header_of(source) == ["a", "b c"]


def test_nan_in_parquet_is_a_number_and_null_is_none(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": pa.array([math.nan, None], pa.float64())}), tmp_path / "x.parquet")
    table = read_table(tmp_path / "x.parquet")
    assert table.filled("a") == [0]
    assert np.isnan(table.numbers("a", [0])).all()


def test_the_index_of_a_frame_is_no_column(tmp_path: Path) -> None:
    pd.DataFrame({"a": [1, 2]}, index=[5, 7]).to_parquet(tmp_path / "x.parquet")
    assert list(read_table(tmp_path / "x.parquet").columns) == ["a"]


def test_places_survive_empty_lines_and_quotes_that_span_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text('a,b\n\n"two\nlines",1\n,\n3,4\n')
    table = read_table(path)
    assert table.places == ["line 3", "line 6"]
    part = table.rows([1])
    assert (part.places, part.columns["a"]) == (["line 6"], ["3"])


def test_a_cell_is_refused_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a\n1\nx\n")
    table = read_table(tmp_path / "x.csv")
    with pytest.raises(DataError, match=r"x\.csv, line 3, column 'a': 'x' is not a number; write a plain number"):
        table.cell(1, "a", cells.number)
    with pytest.raises(DataError, match=r"x\.csv has no column 'b'; it has a; add it"):
        table.need("b", "add it")
    with pytest.raises(DataError, match="line 2, column 'a': '1' is not a finite number of at least 2"):
        table.numbers("a", [0], minimum=2)


def test_of_hundreds_of_columns_a_message_names_the_first(tmp_path: Path) -> None:
    (tmp_path / "chart.csv").write_text(
        ",".join(f"c{number}" for number in range(300)) + "\n" + ",".join("1" * 300) + "\n"
    )
    with pytest.raises(DataError, match=r"it has c0, .*c29 and 270 more; rename it$"):
        read_table(tmp_path / "chart.csv").need("run", "rename it")


def test_what_has_no_end_is_refused_and_a_pipe_of_the_shell_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "zero.csv").symlink_to("/dev/zero")
    for name in ("pipe.csv", "zero.csv"):
        with pytest.raises(DataError, match=r"cannot read .*: it is not a regular file; pass a CSV"):
            read_table(tmp_path / name)
        assert header_of(tmp_path / name) == []
    out, into = os.pipe()
    os.write(into, b"a\n1\n")
    os.close(into)
    assert read_table(f"/dev/fd/{out}").numbers("a", [0]).tolist() == [1]
    os.close(out)


def test_rows_that_are_mappings() -> None:
    table = of_rows("log", [{"a": 1}, {"b": "x"}])
    assert dict(table.columns) == {"a": [1, None], "b": [None, "x"]}
    assert table.places == ["entry 1", "entry 2"]


def test_tables_of_a_folder(tmp_path: Path) -> None:
    for name in ("b.CSV", "a.tsv", ".c.csv", "notes.txt"):
        (tmp_path / name).touch()
    assert [path.name for path in table_paths(tmp_path)] == ["a.tsv", "b.CSV"]
    assert table_paths(tmp_path / "notes.txt") == []


@pytest.mark.parametrize(
    ("parse", "cell", "words"),
    [
        (cells.number, "4k", "in full, without a suffix"),
        (cells.number, "46,000", "without thousands separators"),
        (cells.number, True, "True is not a number"),
        (cells.number, 10**400, "not a measurement"),
        (cells.number, "", "it is empty"),
        (cells.positive, "0", "must be above 0"),
        (cells.positive, "inf", "not a finite number"),
        (cells.whole, "1.5", "not a whole number of at least 1"),
        (cells.whole, "64.000", "'64.000' may be 64 or 64000; write it without a point"),
        (cells.whole, 2**60, "not a whole number"),
        (cells.flag, "maybe", "write true or false"),
    ],
)
def test_a_cell_says_what_to_write_instead(parse: Any, cell: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse(cell)


def test_flags() -> None:
    assert [cells.flag(cell) for cell in ("yes", "1", True, "", None, "FALSE", 0)] == [True] * 3 + [False] * 4

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

from analysis.questions.fit.table_fit import read
from analysis.read import cells
from analysis.read.importers.base import run_of
from analysis.read.table import header_of, read_table, table_paths
from analysis.read.titles import factors, with_products
from cbs.errors import ConfigError, DataError
from tests.analysis.read.importers.sources import settings


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


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("micro*accumulation*8", 4 * 3 * 8),
        ("val/loss*2", 5.0),  # a title that holds a slash
        ("tokens/1024", 8.0),
        ("micro*tokens/accumulation", 4 * 8192 / 3),
        ("lr (x1e-3)*0.001", 0.00035),  # 0.35 * 0.001 is 0.00034999... in binary
        ("2e9", 2e9),
    ],
)
def test_products_are_columns(text: str, value: float) -> None:
    row = {"micro": 4, "accumulation": "3", "val/loss": 2.5, "tokens": 8192, "lr (x1e-3)": 0.35}
    table = with_products(read_table(pd.DataFrame([row, row])), [text])
    assert table.columns[text] == [pytest.approx(value, rel=1e-11)] * 2
    assert "lr" not in text or table.columns[text] == [0.00035] * 2


def test_what_is_no_product_stays_a_missing_column() -> None:
    table = read_table(pd.DataFrame([{"a": 2, "b": None, "c": "x", "a*b": 7}]))
    for text in ("a*d", "d/a", "d", "a"):
        assert with_products(table, [text]) is table
    assert factors("a*b", table.columns) == []  # a column of that title
    assert with_products(table, ["b*a"]).columns["b*a"] == [None]
    with pytest.raises(DataError, match=r"row 1, column 'a\*c': 'x' is not a number"):
        with_products(table, ["a*c"])


@pytest.mark.parametrize(
    ("name", "title", "said"),
    [
        ("lr", "lr (x1e-3)", "units of 1e-3: give --column 'lr=lr (x1e-3)*1e-3'"),
        ("lr", "learning rate [10^-4]", "units of 1e-4"),
        ("step", "steps (k)", "units of 1e3"),
        ("tokens", "tokens (in millions)", "units of 1e6"),
        ("tokens", "tokens (B tokens)", "units of 1e9"),
        ("step", "steps_k", "units of 1e3"),
        ("batch_size", "batch (M tokens)", "units of 1e6"),
        ("batch_size", "log2_batch", "a logarithm"),
        ("lr", "ln lr", "a logarithm"),
        ("step", "train/epoch", "counts epochs"),
        ("step", "_timestamp", "is a time"),
        ("step", "Wall time", "is a time"),
        ("step", "tokens", "give --column examples=tokens or tokens=tokens"),
        ("batch_size", "batch_size_tokens", "in tokens, not in sequences"),
    ],
)
def test_titles_that_say_something_else_are_asked_about(name: str, title: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(columns={name: title})
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("lr", "lr"), ("lr", "lr (peak)"), ("lr", "lr (x1e-3)*1e-3"), ("lr", "lr (x1e-3)*1"), ("step", "log_step"),
        ("step", "timesteps_total"), ("step", "time_step"), ("step", "train/global_step"), ("step", "tokens/65536"),
        ("batch_size", "batch_size_tokens/1024"), ("batch_size", "batch_k*1024"), ("seed", "log2_x"),
        ("loss", "acc (%)"),
    ],
)  # fmt: skip
def test_titles_that_say_nothing_else_are_not(name: str, title: str) -> None:
    assert settings(columns={name: title}).columns == {name: title}


def test_a_fit_reads_products_and_asks_about_parts() -> None:
    table = pd.DataFrame({"per_device_batch": [1, 2, 4], "accum": 2, "gpus": 4, "epochs": [3.0, 2.0, 1.5]})
    with pytest.raises(DataError, match=r"has no column 'batch_size'.*'batch_size=per_device_batch\*accum\*gpus'"):
        read(table)
    sizes, steps = "per_device_batch*accum*gpus", "epochs*800/batch_size"
    with pytest.raises(DataError, match=r"'batch_size=per_device_batch\*accum\*gpus', or"):
        read(table.assign(steps=9), {"batch_size": "per_device_batch"})
    with pytest.raises(DataError, match=r"counts epochs.*'steps=epochs\*N/batch_size'"):
        read(table.rename(columns={"per_device_batch": "batch_size"}), {"steps": "epochs", "batch_size": "batch_size"})
    _, rows, unused = read(table.assign(batch_size=[8, 16, 32]), {"batch_size": sizes, "steps": steps})
    assert rows["batch_size"].to_list() == [8, 16, 32]
    assert rows["steps"].to_list() == [300, 100, 37.5]
    assert unused == []
    with pytest.raises(DataError, match=r"'batch_size=batch_size\*accum', or"):
        read(pd.DataFrame({"batch_size": [1, 2, 4], "accum": 2, "steps": [9, 5, 3]}))
    with pytest.raises(DataError, match=r"in tokens, not in sequences.*or say so with --unit tokens"):
        read(pd.DataFrame({"batch_tokens": [1, 2], "steps": [9, 5]}), {"batch_size": "batch_tokens"}, "sequences")


def test_a_run_has_the_batch_size_that_is_named_a_product_too_but_not_that_of_one_pass() -> None:
    rows = [
        {"step": step, "loss": 4.0 - step, "micro_batch_size": 2, "accumulation_steps": 4, "batch_size": 16}
        for step in (1, 2)
    ]
    table = read_table(pd.DataFrame(rows))
    for given, size in (("micro_batch_size*accumulation_steps", 8), ("batch_size", 16), ("micro_batch_size*1", 2)):
        found = run_of(table, settings(columns={"batch_size": given}), ("step", "step"), name="one")
        assert (found.facts["batch_size"], found.values.tolist()) == (size, [3.0, 2.0])
    with pytest.raises(DataError, match="'micro_batch_size' may be the batch size of one pass or device, by its name"):
        run_of(table, settings(columns={"batch_size": "micro_batch_size"}), ("step", "step"), name="one")

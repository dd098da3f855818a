"""Products of columns, and titles that say something else than what they are named for."""

import pandas as pd
import pytest

from analysis.questions.fit.table_fit import read
from analysis.read.table import read_table
from analysis.read.titles import doubt, factors, parts_of, with_products
from cbs.errors import ConfigError, DataError
from tests.analysis.read.importers.sources import settings


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


def test_tokens_are_no_doubt_where_batch_sizes_are_in_tokens() -> None:
    given = {"columns": {"batch_size": "batch_tokens"}, "tokens_per_example": 8, "batch_unit": "tokens"}
    assert settings(**given).batch_unit == "tokens"
    assert not doubt("batch_size", "batch_tokens", "tokens")


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


@pytest.mark.parametrize(
    ("title", "parts"),
    [
        ("batch", ["batch"]),
        ("micro*accum*8", ["micro", "accum"]),
        ("tokens/2048", ["tokens/2048", "tokens"]),
        ("train/batch_size", ["train/batch_size"]),
    ],
)
def test_what_may_be_columns_of_a_product_without_a_table(title: str, parts: list[str]) -> None:
    assert parts_of(title) == parts

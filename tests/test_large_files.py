"""Files that are larger than they look are told in one line, before they fill the memory."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis.read.importers.files import read
from analysis.read.table import read_table
from cbs import checksum, files
from cbs.errors import DataError
from cbs.training.parents import _saved
from cbs.workloads.text_parts.files import read_documents

SIZE = 2**21  # Bytes of every file here, twice those of the memory that there seems to be


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("cbs.files", "analysis.read.table"):
        monkeypatch.setattr(f"{module}.memory", lambda: SIZE // 2)


@pytest.fixture
def sparse(tmp_path: Path) -> Path:
    path = tmp_path / "sparse.txt"
    with open(path, "wb") as file:
        file.truncate(SIZE)
    return path


@pytest.mark.parametrize(
    "call", [read_table, lambda path: read(path, bytes.decode), lambda path: list(read_documents(path, "text")), _saved]
)
def test_a_sparse_file(sparse: Path, call: Callable[[Path], object]) -> None:
    with pytest.raises(DataError, match=r"sparse\.txt.*it would take .* GB of memory, and this machine has") as told:
        call(sparse)
    assert "\n" not in str(told.value)


def test_a_result(sparse: Path) -> None:
    for call in (checksum.read_json, checksum.read_parquet):
        with pytest.raises(OSError, match="of memory, and this machine has"):
            call(sparse)


def test_a_table_of_few_bytes_and_many_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"loss": pa.array([0.0] * (SIZE // 8))}), path)
    assert path.stat().st_size < 10_000
    with pytest.raises(DataError, match=r"rows.parquet has 2.62e\+05 cells, more than fit in the memory"):
        read_table(path)
    with pytest.raises(OSError, match="of memory, and this machine has"):
        checksum.read_parquet(path)


def test_the_memory_of_a_container_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    machine = files.memory()
    assert machine > 2**28
    monkeypatch.setattr(Path, "read_text", lambda path: "1000\n")
    assert files.memory() == 1000
    monkeypatch.setattr(Path, "read_text", lambda path: "max\n")
    assert files.memory() >= machine

"""Files and archives larger than they look are told in one line, before they fill the memory."""

import gzip
import io
import tarfile
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cbs.errors import DataError
from extensions.papers.image_parts.formats import _unpacked, load_images
from extensions.papers.image_parts.trees import open_tree, read

SIZE = 2**21  # Bytes of every file here, twice those of the memory that there seems to be


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("cbs.files", "extensions.papers.image_parts.formats"):
        monkeypatch.setattr(f"{module}.memory", lambda: SIZE // 2)


def test_archives(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "zeros.tar.gz", "w:gz") as archive:
        archive.addfile(item := tarfile.TarInfo("train/0/a.png"), io.BytesIO(bytes(SIZE)))
        item.size = SIZE
        archive.addfile(item, io.BytesIO(bytes(SIZE)))
    with pytest.raises(DataError, match=r"zeros\.tar\.gz: .*it would take"):
        open_tree(tmp_path / "zeros.tar.gz")
    with zipfile.ZipFile(tmp_path / "zeros.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("a.png", bytes(SIZE))
    with pytest.raises(DataError, match=r"a\.png: .*it would take"):
        read(open_tree(tmp_path / "zeros.zip"), "a.png", tmp_path)
    with pytest.raises(OSError, match="it would take"):
        _unpacked(gzip.compress(bytes(SIZE)))
    assert _unpacked(gzip.compress(bytes(1000))) == bytes(1000)


def test_sparse_files_of_a_folder_and_an_archive(tmp_path: Path) -> None:
    for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"):
        with open(tmp_path / name, "wb") as file:
            file.truncate(SIZE)
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte: .*it would take") as told:
        load_images(str(tmp_path))
    assert "\n" not in str(told.value)
    with tarfile.open(tmp_path / "all.tar", "w") as archive:
        archive.add(tmp_path / "train-images-idx3-ubyte", "train-images-idx3-ubyte")
    for path in (tmp_path / "train-images-idx3-ubyte", tmp_path / "all.tar"):
        with pytest.raises(DataError, match=r"ubyte: .*it would take"):
            read(open_tree(path), "train-images-idx3-ubyte", tmp_path)


def test_a_table_of_few_bytes_and_many_labels(tmp_path: Path) -> None:
    rows = SIZE // 16
    image = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([b"a"]))
    pq.write_table(pa.table({"image": image, "label": [0] * rows}), tmp_path / "train.parquet")
    assert (tmp_path / "train.parquet").stat().st_size < 10_000
    with pytest.raises(DataError, match=r"train\.parquet: .*it would take"):
        load_images(str(tmp_path), str(tmp_path))

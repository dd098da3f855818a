"""Stored files that somebody damaged, by a bit or on purpose, or made larger than they look: found in one line, or
nothing changes."""

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from analysis.read.importers.files import read
from analysis.read.table import read_table
from cbs import checksum, files
from cbs.checksum import KEY, json_bytes, parquet_bytes, read_json, read_parquet
from cbs.errors import DamagedError, DataError, ResultsError
from cbs.training.parents import _saved
from cbs.trial.checkpoint import Checkpoint
from cbs.trial.store import Store
from cbs.workloads.text_parts.files import read_documents
from tests.trial.test_store import CONFIG, result_of

FLIPS = 300
STORED = ("record.parquet", "steps.parquet", "timing.json")
_NAME = f'"{KEY}": "'.encode()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "sweep")
    store.prepare()
    store.save(result_of())
    store.write_manifest({"protocol": {"target": 0.25, "prune_factor": 2.0}, "runs": [{"command": "cbs sweep"}]})
    return store


def outcomes(path: Path, content: bytes, read: Callable[[], Any], chance: random.Random, flips: int) -> Counter[str]:
    """What comes of single bits that flip in a file: ``found``, ``harmless`` or ``silent``."""
    path.write_bytes(content)
    expected, counted = read(), Counter()
    for bit in chance.sample(range(8 * len(content)), flips):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            found = read()
        except ResultsError:
            counted["found"] += 1
        else:
            counted["harmless" if found == expected else "silent"] += 1
    path.write_bytes(content)
    return counted


def without_checksum(content: bytes) -> bytes:
    """The same table as other software writes it."""
    head, _, rest = content.partition(_NAME)
    return head + rest[len("01234567") + 1 :]


def whole(store: Store) -> str:
    """All that is read of a trial, but the name of an entry that nobody asks for."""
    found = store.load(CONFIG.trial_id)
    steps = {name: (column.dtype.str, column.tobytes()) for name, column in found.steps.items()}
    timing = {name: value for name, value in found.timing.items() if name in ("seconds", "host")}
    return repr((found.replace(steps={}, timing=timing), steps))


def test_of_bits_that_flip_in_a_record_none_is_read_as_another_number(store: Store) -> None:
    chance, folder, counted = random.Random(0), store.trials / CONFIG.trial_id, Counter()
    sizes = [(folder / name).stat().st_size for name in STORED]
    for name, count in Counter(chance.choices(STORED, sizes, k=FLIPS)).items():
        content = (folder / name).read_bytes()
        counted += outcomes(folder / name, content, lambda: whole(store), chance, count)
    assert counted["silent"] == 0
    assert counted.total() == FLIPS
    assert counted["found"] > 0.97 * FLIPS  # the others hit the name of the checksum


def test_every_bit_of_a_checksum_and_of_what_stands_around_it_is_found_or_harmless(store: Store) -> None:
    path = store.trials / CONFIG.trial_id / "record.parquet"
    content, expected = path.read_bytes(), whole(store)
    start = content.index(_NAME)
    places = [*range(8), *range(start - 8, start + len(_NAME) + 17), *range(len(content) - 8, len(content))]
    for bit in (8 * place + bit for place in places for bit in range(8)):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        if start <= bit // 8 < start + len(_NAME):
            assert whole(store) == expected
        else:
            with pytest.raises(DamagedError, match="checksum"):
                store.load(CONFIG.trial_id)


def test_the_description_of_a_sweep_is_found_damaged_and_says_how_it_is_edited(store: Store) -> None:
    path = store.root / "sweep.json"
    content, keys = path.read_bytes(), store.manifest().keys()
    counted = outcomes(path, content, lambda: {key: store.manifest()[key] for key in keys}, random.Random(0), FLIPS)
    assert counted["silent"] == 0
    path.write_bytes(content.replace(b"0.25", b"0.26"))
    with pytest.raises(ResultsError, match=r"checksum is not that of its content; .* delete its entry crc32"):
        store.manifest()
    path.write_text(json.dumps({key: value for key, value in json.loads(path.read_text()).items() if key != KEY}))
    assert store.manifest()["protocol"]["target"] == 0.26


def test_a_checkpoint_is_found_damaged(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "trial.pt")
    checkpoint.save({"weights": torch.arange(2000.0), "step": 7})

    def read() -> tuple[list[float], int]:
        found = Checkpoint(checkpoint.path).load()
        if found is None:
            raise ResultsError("set aside")
        return found["weights"].tolist(), found["step"]

    content = checkpoint.path.read_bytes()
    counted = outcomes(checkpoint.path, content, read, random.Random(0), FLIPS)
    assert counted["silent"] == 0
    assert counted["found"] > FLIPS / 2


@pytest.mark.parametrize("name", STORED[:2])
def test_a_file_without_a_checksum_is_read(store: Store, name: str) -> None:
    path, expected = store.trials / CONFIG.trial_id / name, whole(store)
    path.write_bytes(without_checksum(path.read_bytes()))
    assert whole(store) == expected


@pytest.mark.parametrize("name", STORED[:2])
def test_without_the_checksum_such_bits_are_numbers(store: Store, name: str) -> None:
    path = store.trials / CONFIG.trial_id / name
    content = without_checksum(path.read_bytes())
    assert outcomes(path, content, lambda: whole(store), random.Random(0), FLIPS)["silent"] > 0


def test_a_sweep_sets_a_trial_aside_whose_steps_have_a_flipped_bit(store: Store) -> None:
    path, told = store.trials / CONFIG.trial_id / "steps.parquet", []
    damaged = bytearray(path.read_bytes())
    damaged[damaged.index(np.float64(-1e-300).tobytes())] ^= 1
    path.write_bytes(damaged)
    assert list(store.sound_results(told.append)) == []
    assert "checksum" in told[0]
    assert store.damaged()


@pytest.mark.parametrize("apart", [8, 8 * 256, 8 * 257], ids=["in a row", "in a column", "in neither"])
def test_words_that_changed_places_are_found(tmp_path: Path, apart: int) -> None:
    """Of the sums over rows and over columns that stand for long pages, each alone would miss one of these."""
    path = tmp_path / "table"
    path.write_bytes(parquet_bytes(pa.table({"x": np.random.default_rng(0).random(2000)})))
    content, place = path.read_bytes(), 8 * 300
    one, other = (slice(start, start + 8) for start in (place, place + apart))
    damaged = bytearray(content)
    damaged[one], damaged[other] = content[other], content[one]
    assert damaged != content
    read_parquet(path)
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match="checksum"):
        read_parquet(path)


def test_any_reader_of_parquet_and_json_reads_the_files(store: Store) -> None:
    folder = store.trials / CONFIG.trial_id
    table = pq.read_table(folder / "steps.parquet")
    assert table["step"].to_pylist() == [1, 2, 3]
    assert pq.read_table(folder / "steps.parquet", memory_map=True)["examples"].to_pylist() == [4, 8, 12]
    assert json.loads((folder / "timing.json").read_text())["seconds"] == 0.25


def test_what_looks_like_a_checksum_is_content(tmp_path: Path) -> None:
    text = f'"{KEY}": "00000000"'
    path = tmp_path / "file"
    path.write_bytes(json_bytes({"a": text, "b": {KEY: "00000000"}}))
    assert read_json(path) == {"a": text, "b": {KEY: "00000000"}}
    path.write_bytes(parquet_bytes(pa.table({"x": [1.0]}, metadata={"said": text})))
    read_parquet(path)


SIZE = 2**21  # Bytes of every file here, twice those of the memory that there seems to be


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("cbs.files", "analysis.read.table"):
        monkeypatch.setattr(f"{module}.memory", lambda: SIZE // 2)


@pytest.fixture
def sparse(small: None, tmp_path: Path) -> Path:
    path = tmp_path / "sparse.txt"
    with open(path, "wb") as file:
        file.truncate(SIZE)
    return path


@pytest.mark.parametrize(
    "call", [read_table, lambda path: read(path, bytes.decode), lambda path: list(read_documents(path, "text")), _saved]
)
def test_a_sparse_file_is_told_before_it_fills_the_memory(sparse: Path, call: Callable[[Path], object]) -> None:
    with pytest.raises(DataError, match=r"sparse\.txt.*it would take .* GB of memory, and this machine has") as told:
        call(sparse)
    assert "\n" not in str(told.value)


def test_a_result_larger_than_the_memory_is_told(sparse: Path) -> None:
    for call in (checksum.read_json, checksum.read_parquet):
        with pytest.raises(OSError, match="of memory, and this machine has"):
            call(sparse)


def test_a_table_of_few_bytes_and_many_rows_is_told(small: None, tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"loss": pa.array([0.0] * (SIZE // 8))}), path)
    assert path.stat().st_size < 10_000
    with pytest.raises(DataError, match=r"rows.parquet has 2.62e\+05 cells, more than fit in the memory"):
        read_table(path)
    with pytest.raises(OSError, match="of memory, and this machine has"):
        checksum.read_parquet(path)


def test_the_memory_of_a_container_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = files.memory()
    assert machine > 2**28
    monkeypatch.setattr(Path, "read_text", lambda path: "1000\n")
    assert files.memory() == 1000
    monkeypatch.setattr(Path, "read_text", lambda path: "max\n")
    assert files.memory() >= machine

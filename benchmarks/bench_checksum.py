"""Cost of checksums: reading a stored table with its checksum looked at, against opening it and decoding it alone.

Processor time of one thread. ``footer`` is what a sweep asks of every ``steps.parquet`` that is there.
"""

from __future__ import annotations

import functools
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from interleaved import measure, table

from cbs.checksum import parquet_bytes, read_parquet
from cbs.files import ended

ROWS = (20, 500, 10_000, 300_000)


def unchecked(path: Path, read: Callable[[pq.ParquetFile], object]) -> object:
    with pa.OSFile(os.fsencode(ended(path)), "rb") as file:
        return read(pq.ParquetFile(file))


def checked(path: Path, read: Callable[[pq.ParquetFile], object]) -> object:
    return read(read_parquet(path))


def decoded(file: pq.ParquetFile) -> object:
    return file.read(use_threads=False)


def footer(file: pq.ParquetFile) -> object:
    return file.metadata.num_rows


def main() -> None:
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        for rows in ROWS:
            columns = {name: rng.random(rows) for name in ("value", "train_loss", "grad_sq_norm", "noise_trace")}
            written = pa.table({"step": np.arange(rows)} | columns, metadata={"cbs": "x" * 1500})
            path = Path(folder) / f"{rows}.parquet"
            path.write_bytes(parquet_bytes(written))
            for read in (decoded, footer):
                candidates = {name.__name__: functools.partial(name, path, read) for name in (unchecked, checked)}
                print(f"\n{rows:,} rows, {path.stat().st_size / 1e3:,.0f} kB: {read.__name__}")
                print(table(measure(candidates, rounds=25, clock=time.process_time), "unchecked"))


if __name__ == "__main__":
    main()

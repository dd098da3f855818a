"""Loading and analysing large sweeps: seconds and peak memory on one core, and whether they grow linearly.

Writes 20,000 trials with 500 evaluations each (8 sweeps x 5 optimizers x 10 batch sizes x 10 learning rates x 5 seeds)
to a temporary folder, then analyses 1, 2, 4 and 8 of the sweeps at three targets, each in a fresh process. Figures are
not drawn.

The floor is reading and decoding the files: ``read`` opens every record once with pyarrow and does nothing else.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cbs.trial.config import Choice, Schedule, TrialConfig
from cbs.trial.store import METADATA_KEY, SCHEMA_VERSION
from cbs.trial.target import Target

SWEEPS, EVALUATIONS, SEEDS = 8, 500, 5
OPTIMIZERS = ("adamw", "lamb", "merit", "muon", "sgd")
BATCH_SIZES = tuple(2**power for power in range(1, 11))
LRS = tuple(1e-4 * 2.0**power for power in range(10))
TARGET = Target(metric="validation_loss", value=2.4)

CHILD = """
import json, resource, sys, time
from analysis.estimate.estimates import answers
from analysis.read.results import load
from analysis.config import AnalysisConfig
from cbs.trial.store import find_sweeps, read_record
path, what = sys.argv[1:]
if what == "read":
    begin = time.process_time()
    for store in find_sweeps(path):
        for trial in store.trial_ids():
            read_record(store.trials / trial / "record.parquet")
    print(json.dumps({"read": time.process_time() - begin}))
else:
    begin = time.process_time()
    results = load(path)
    loaded = time.process_time()
    found = answers(results, AnalysisConfig(), targets=[2.4, 2.6, 2.8])
    done = time.process_time()
    print(json.dumps({
        "load": loaded - begin, "analyse": done - loaded, "answers": len(found), "trials": len(results.trials),
        "rows": len(results.evaluations), "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }))
"""


def write_sweep(root: Path, index: int) -> None:
    """One sweep of 2,500 trials in the layout of results/README.md, without the cost of a ``Store``."""
    rng = np.random.default_rng(index)
    root.mkdir(parents=True)
    manifest = {"schema_version": SCHEMA_VERSION, "name": root.name, "protocol": {"prune_factor": None}}
    (root / "sweep.json").write_text(json.dumps(manifest))
    info = {"example_unit": "sequence", "tokens_per_example": 32, "metric_unit": "nats", "parameters": 30000}
    for place, optimizer in enumerate(OPTIMIZERS):
        for batch_size in BATCH_SIZES:
            for lr in LRS:
                for seed in range(SEEDS):
                    config = TrialConfig(
                        workload=Choice(name="synthetic"),
                        optimizer=Choice(name=optimizer),
                        lr=lr,
                        batch_size=batch_size,
                        seed=seed,
                        target=TARGET,
                        max_steps=100_000,
                        schedule=Schedule(warmup_examples=10 * batch_size),
                    )
                    best = 1e-3 * batch_size**0.3
                    steps_to_target = (
                        (200 + 50 * place)
                        * (1 + 50 / batch_size)
                        * np.exp(0.5 * np.log(lr / best) ** 2 + 0.05 * rng.standard_normal())
                    )
                    _write_trial(root / "trials" / config.trial_id, config, steps_to_target, info, rng)


def _write_trial(
    folder: Path, config: TrialConfig, steps_to_target: float, info: dict, rng: np.random.Generator
) -> None:
    folder.mkdir(parents=True)
    steps = np.unique(np.geomspace(1, 2 * steps_to_target, EVALUATIONS).astype(np.int64) + np.arange(EVALUATIONS))
    steps[0] = 0
    value = 2.4 + 0.3 * np.log(steps_to_target / np.maximum(steps, 0.5)) + 0.001 * rng.standard_normal(len(steps))
    summary = {
        "schema_version": SCHEMA_VERSION,
        "trial_id": config.trial_id,
        "config": config.to_dict(),
        "status": "REACHED",
        "steps_to_target": config.target.crossing(steps.tolist(), value.tolist()),
        "workload": info | {"data_hash": None},
        "message": "",
    }
    columns = {
        "step": steps,
        "examples": steps * config.batch_size,
        "value": value,
        "train_loss": value,
        "lr": np.full(len(steps), config.lr),
    }
    table = pa.table(columns).replace_schema_metadata({METADATA_KEY: json.dumps(summary, sort_keys=True)})
    pq.write_table(table, folder / "record.parquet")
    per_step = {"step": steps, "examples": steps * config.batch_size, "train_loss": value}
    moments = {name: rng.gamma(20.0, 0.05, len(steps)) for name in ("grad_sq_norm", "noise_trace")}
    pq.write_table(pa.table(per_step | moments), folder / "steps.parquet")
    (folder / "timing.json").write_text("{}")


def run(path: Path, what: str) -> dict[str, float]:
    """One analysis in a fresh process on one core."""
    command = ["taskset", "-c", "0", sys.executable, "-c", CHILD, str(path), what]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweeps", type=int, default=SWEEPS, help="of 2,500 trials each")
    parser.add_argument("--keep", type=Path, help="write the sweeps here and leave them; reused if there")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        home = arguments.keep or Path(scratch) / "all"
        for index in range(arguments.sweeps):
            if not (home / f"sweep{index}").exists():
                started = time.perf_counter()
                write_sweep(home / f"sweep{index}", index)
                print(f"written sweep {index} in {time.perf_counter() - started:.0f} s", file=sys.stderr)
        print(f"{'trials':>8}{'rows':>12}{'read s':>9}{'load s':>9}{'analyse s':>11}{'ms/trial':>10}{'peak MB':>9}")
        count = 1
        while count <= arguments.sweeps:
            part = Path(scratch) / f"first{count}"
            part.mkdir()
            for index in range(count):
                (part / f"sweep{index}").symlink_to((home / f"sweep{index}").resolve())
            floor = run(part, "read")["read"]
            found = run(part, "analyse")
            total = found["load"] + found["analyse"]
            print(
                f"{found['trials']:>8}{found['rows']:>12,}{floor:>9.1f}{found['load']:>9.1f}{found['analyse']:>11.1f}"
                f"{1e3 * total / found['trials']:>10.2f}{found['peak_mb']:>9.0f}",
                flush=True,
            )
            count *= 2


if __name__ == "__main__":
    main()

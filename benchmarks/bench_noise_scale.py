"""Cost of measuring the noise scale: a training step with the two-batch probe against one without. One thread."""

from __future__ import annotations

import torch
from interleaved import measure, table

from cbs import Choice, Target, TrialConfig, seeding
from cbs.noise_scale import PROBES
from cbs.training import TrainingLoop
from cbs.workloads import build_workload


def stepper(batch_size: int, probes: tuple[str, ...]):
    config = TrialConfig(
        workload=Choice(name="text"),
        optimizer=Choice(name="adamw"),
        lr=1e-4,
        batch_size=batch_size,
        micro_batch_size=128,
        seed=0,
        target=Target(metric="validation_loss", value=2.4),
        max_steps=10**9,
        probes=probes,
    )
    workload = build_workload(config.workload)
    loop = TrainingLoop(config, workload, [PROBES[name]() for name in probes], torch.device("cpu"))
    with seeding.seeded(0, "training"):
        return lambda: (loop.train_step(1), loop.columns.flush())


def main() -> None:
    torch.set_num_threads(1)
    for batch_size in (4, 32, 128, 512):
        candidates = {"plain": stepper(batch_size, ()), "two_batch": stepper(batch_size, ("two_batch",))}
        print(f"\ntext model 30k, batch size {batch_size}: one training step")
        print(table(measure(candidates), "plain"))


if __name__ == "__main__":
    main()

"""What a person with a GPU runs once, ``make gpu-check``: five minutes, one line for each thing that passed or did not.

The tests of this project run on processors; this is what they cannot see. Exit code 0 if all passed, 1 if something
failed, 2 where there is no device.
"""

import dataclasses
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from cbs.compute import device, seeding
from cbs.optimizers import build_optimizer
from cbs.training.run import run_trial
from cbs.trial.checkpoint import Checkpoint
from cbs.trial.config import Choice, TrialConfig
from cbs.trial.record import TrialResult
from cbs.trial.store import Store
from cbs.trial.target import Target
from cbs.workloads import Workload, build_workload
from extensions.noise_scale.measuring import check
from sweeps.running.worker import Setup, Worker

TEXT = TrialConfig(
    workload=Choice(name="text", options={"validation_sequences": 32}),
    optimizer=Choice(name="adamw"),
    lr=3e-3,
    batch_size=8,
    seed=1,
    target=Target(metric="validation_loss", value=1.0),
    max_steps=40,
)
QUADRATIC = dataclasses.replace(
    TEXT,
    workload=Choice(name="noisy_quadratic", options={"dimension": 30}),
    optimizer=Choice(name="sgd"),
    lr=0.05,
    batch_size=12,
    target=Target(metric="validation_loss", value=0.2),
    max_steps=400,
)


class NotRun(Exception):
    """This machine lacks what a check needs."""


class Killed(Exception):
    """Stands for the death of a process."""


def bitwise_resume(folder: Path) -> str:
    """A trial that is killed and goes on ends with the bits of one that was left alone."""

    def killed(rows: Any) -> None:
        if rows[-1].step > 20:
            raise Killed

    checkpoint = Checkpoint(folder / "trial.pt", seconds=0.0)
    try:
        run_trial(TEXT, checkpoint=checkpoint, monitor=killed)
    except Killed:
        resumed, alone = run_trial(TEXT, checkpoint=checkpoint), run_trial(TEXT)
    for name, column in alone.steps.items():
        np.testing.assert_array_equal(resumed.steps[name], column)
    assert str(resumed.evaluations) == str(alone.evaluations)
    return f"{resumed.final_step} steps"


def autocast(folder: Path) -> str:
    """bfloat16 ends near float32."""
    if not device.has_bfloat16(device.pick("auto", "float32")):
        raise NotRun("no bfloat16 here")
    return _near(dataclasses.replace(TEXT, precision="bfloat16"), 0.05)


def compiled(folder: Path) -> str:
    """A compiled model ends near the same one as it is."""
    return _near(dataclasses.replace(TEXT, compile=True), 0.01)


def _near(config: TrialConfig, tolerance: float) -> str:
    found, plain = (run_trial(each).evaluations[-1].value for each in (config, TEXT))
    assert abs(found / plain - 1) < tolerance, f"{found:.5g} against {plain:.5g}"
    return f"loss {found:.5g} against {plain:.5g}"


def hungry(share: float) -> Workload:
    """The noisy quadratic, each example of which takes a share of the device's memory."""
    base = build_workload(QUADRATIC.workload)
    losses = base.example_losses

    def example_losses(model: Any, batch: torch.Tensor) -> torch.Tensor:
        found = losses(model, batch)
        total = torch.get_device_module(batch.device).get_device_properties(batch.device).total_memory
        torch.empty(int(share * total * len(batch)), dtype=torch.uint8, device=batch.device)
        return found

    base.example_losses = example_losses  # type: ignore[method-assign]
    return base


def out_of_memory(folder: Path) -> str:
    """Passes are halved until they fit, to the same steps to the target."""
    if device.kind() not in ("cuda", "xpu"):
        raise NotRun("main memory is not filled on purpose")
    workload = Choice(name="benchmarks.gpu_check:hungry", options={"share": 0.15})
    config = dataclasses.replace(QUADRATIC, workload=workload, probe=None)
    found, alone = _worked(config, folder, 1), run_trial(dataclasses.replace(QUADRATIC, probe=None))
    assert found.micro_batch_size in (3, 6), found.micro_batch_size
    return f"{found.micro_batch_size} of 12 examples at a time, {_alike(found, alone)}"


def two_ranks(folder: Path) -> str:
    """Two devices train as one does, and find the same moments."""
    if device.count() < 2:
        raise NotRun("one device")
    config = dataclasses.replace(QUADRATIC, probe=Choice(name="auto", options={"every": 1}))
    alone = run_trial(dataclasses.replace(config, probe=Choice(name="accumulation", options={"every": 1})))
    found = _worked(config, folder, 2)
    np.testing.assert_allclose(found.steps["noise_trace"], alone.steps["noise_trace"], rtol=1e-3, atol=1e-4)
    return _alike(found, alone)


def _worked(config: TrialConfig, folder: Path, workers: int) -> TrialResult:
    worker = Worker(Setup(store=str(folder), path=".", threads=1, prune_factor=None, silence=120.0, workers=workers))
    try:
        answer = worker.run(config.to_dict(), None)
    finally:
        worker.close()
    assert answer.get("status") == "REACHED", answer
    return Store(folder).load(config.trial_id)


def _alike(found: TrialResult, alone: TrialResult) -> str:
    assert found.steps_to_target is not None
    assert alone.steps_to_target is not None
    assert abs(found.steps_to_target / alone.steps_to_target - 1) < 1e-3
    return f"{found.steps_to_target:.2f} steps to the target against {alone.steps_to_target:.2f}"


def noise_scale(folder: Path) -> str:
    """NoiseScaleMeter agrees with a loop over the examples."""
    found = check(
        workload="text", optimizer="adamw", batch_size=8, probe="split", parts=2, seed=0, settings=["device=auto"]
    )
    assert found.ok, str(found)
    return f"{len(found.layers)} layers agree"


def trust_ratio(folder: Path) -> str:
    """Steps of MERIT are those on the processor."""
    ends = []
    for where in (torch.device("cpu"), device.pick("auto", "float32")):
        with seeding.seeded(0, "init"):
            model = nn.Sequential(nn.Linear(40, 30), nn.Tanh(), nn.Linear(30, 20))
            examples = torch.randn(64, 40)
        model.to(where)
        optimizer = build_optimizer(Choice(name="merit"), model, 0.01)
        for _ in range(5):
            optimizer.zero_grad()
            model(examples.to(where)).square().mean().backward()
            optimizer.step()
        ends.append(torch.cat([weight.detach().cpu().flatten() for weight in model.parameters()]))
    error = float((ends[0] - ends[1]).abs().max() / ends[0].abs().max())
    assert error < 1e-4, error
    return f"weights differ by {error:.1g} of the largest"


CHECKS: dict[str, Callable[[Path], str]] = {
    "bitwise resume": bitwise_resume,
    "autocast to bfloat16": autocast,
    "torch.compile": compiled,
    "out of memory": out_of_memory,
    "NoiseScaleMeter": noise_scale,
    "MERIT's trust ratio": trust_ratio,
    "two ranks": two_ranks,
}


def main() -> int:
    """Run all checks; see the module for the exit code."""
    if not device.count():
        print("no GPU here: torch finds no accelerator, nothing was checked", file=sys.stderr)
        return 2
    print(f"torch {torch.__version__} on {', '.join(device.names())}")
    failed = 0
    for name, run in CHECKS.items():
        started = time.monotonic()
        try:
            with tempfile.TemporaryDirectory() as folder:
                said = f"passed   {name}: {run(Path(folder))}"
        except NotRun as why:
            said = f"not run  {name}: {why}"
        except Exception as error:  # noqa: BLE001 - told, and the next check runs
            traceback.print_exc()
            failed += 1
            said = f"FAILED   {name}: {type(error).__name__}: {error}"
        print(f"{said} ({time.monotonic() - started:.0f} s)", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""``run_trial`` as a Ray Tune trainable."""

from __future__ import annotations

import sys
import time
import traceback
from typing import Any

import ray
import torch
from ray import tune

from cbs.checkpoint import Checkpoint
from cbs.config import TrialConfig
from cbs.errors import CbsError, reason
from cbs.record import Measurement, TrialResult, TrialStatus
from cbs.store import Store
from cbs.training import run_trial
from sweeps.cell import Cell
from sweeps.memory import keep_freed_memory
from sweeps.pruning import beyond
from sweeps.workload import COMMAND, built

REPORT_SECONDS = 0.5
"""Least time between two calls of one trial to the scoreboard."""


class Trainable(tune.Trainable):
    """Runs one trial per ``step``; the actor is used again for the next trial.

    Its configuration: ``trial`` (:meth:`TrialConfig.to_dict`), ``store`` (path), ``scoreboard`` (actor name),
    ``namespace``, ``prune_factor``, ``threads``, ``path`` (folder in which a workload of the user's own is found).
    """

    def setup(self, config: dict[str, Any]) -> None:
        torch.set_num_threads(config["threads"])
        keep_freed_memory()
        sys.path.insert(0, config["path"])
        self._scoreboard = ray.get_actor(config["scoreboard"], namespace=config["namespace"])

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        return True

    def step(self) -> dict[str, Any]:
        trial = TrialConfig.from_dict(self.config["trial"])
        cell = Cell.of(trial)
        store = Store(self.config["store"])
        try:
            checkpoint = Checkpoint(store.checkpoint_path(trial))
            result = self._run(trial, cell, store, checkpoint)
            store.save(result)
            if result.status.final:
                checkpoint.remove()
        except CbsError as error:
            return {"done": True, "fatal": str(error)}
        ray.get(self._scoreboard.finish.remote(cell, trial.trial_id, result.steps_to_target))
        return {"done": True, "status": str(result.status)}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Nothing for Tune to save: a long trial leaves its state in the results folder."""

    def load_checkpoint(self, checkpoint: Any) -> None:
        """See :meth:`save_checkpoint`."""

    def _run(self, trial: TrialConfig, cell: Cell, store: Store, checkpoint: Checkpoint) -> TrialResult:
        monitor = Bound(self._scoreboard, cell, trial.trial_id, self.config["prune_factor"])
        try:
            if trial.workload.name == COMMAND:
                from sweeps.external.run import run_command

                folder = store.root / "runs" / trial.trial_id
                return run_command(trial, folder, path=self.config["path"], monitor=monitor)
            return run_trial(trial, workload=built(trial.workload), monitor=monitor, checkpoint=checkpoint)
        except CbsError:
            raise
        except torch.OutOfMemoryError as error:
            return failed(trial, TrialStatus.OUT_OF_MEMORY, reason(error))
        except Exception as error:  # noqa: BLE001 - whatever a model raises is the outcome of its trial
            frame = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{frame.filename}:{frame.lineno}"
            return failed(trial, TrialStatus.FAILED, f"{type(error).__name__}: {reason(error)} ({where})")


class Bound:
    """Monitor of a trial: reports to the scoreboard now and then, and prunes beyond the bound it learns there."""

    def __init__(self, scoreboard: Any, cell: Cell, trial_id: str, prune_factor: float | None) -> None:
        self._scoreboard = scoreboard
        self._cell = cell
        self._trial_id = trial_id
        self._prune_factor = prune_factor
        self._reported = -REPORT_SECONDS
        self._best: float | None = None

    def __call__(self, latest: Measurement) -> bool:
        now = time.monotonic()
        if now - self._reported >= REPORT_SECONDS:
            self._reported = now
            call = self._scoreboard.report.remote(self._cell, self._trial_id, latest.step, latest.value)
            self._best = ray.get(call)
        return beyond(latest.step, self._best, self._prune_factor)


def failed(trial: TrialConfig, status: TrialStatus, message: str) -> TrialResult:
    """The record of a trial that left no curve."""
    return TrialResult(
        config=trial, status=status, steps_to_target=None, evaluations=[], steps={}, workload=None, message=message
    )

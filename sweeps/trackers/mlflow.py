"""MLflow: the server or database of ``MLFLOW_TRACKING_URI``, else a file store in the folder of the sweep."""

from __future__ import annotations

import os
from pathlib import Path

from cbs.errors import needed
from cbs.trial.record import TrialResult
from sweeps.trackers import TRACKERS
from sweeps.trackers.base import Tracker, called, curve, outcome, settings

_MOST_METRICS, _MOST_PARAMS = 1000, 100
"""In one call, as MLflow's own servers allow."""


@TRACKERS.register("mlflow")
class MLflowTracker(Tracker):
    """Runs of the experiment ``MLFLOW_EXPERIMENT_NAME``, or one :func:`called` like the folder."""

    files = "mlruns"

    def __init__(self, folder: Path) -> None:
        # MLflow 3 refuses a file store unless it is asked for by this variable.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        with needed("mlflow", "runs of MLflow"):
            from mlflow import MlflowClient
        self._uri = os.environ.get("MLFLOW_TRACKING_URI", (folder.resolve() / self.files).as_uri())
        self._client = MlflowClient(tracking_uri=self._uri)
        self._name = os.environ.get("MLFLOW_EXPERIMENT_NAME", called(folder))
        self._experiment: str | None = None
        self._sweep = str(folder.resolve())

    def write(self, result: TrialResult) -> None:
        """A run of the same sweep and fingerprint, which was left when it was killed, is deleted."""
        from mlflow.entities import Metric, Param

        experiment = self._experiment_id()
        for left in self._client.search_runs([experiment], f"tags.fingerprint = '{result.config.fingerprint}'"):
            if left.data.tags.get("sweep") == self._sweep:  # another one may have the same trial
                self._client.delete_run(left.info.run_id)
        tags = {"fingerprint": result.config.fingerprint, "status": str(result.status), "sweep": self._sweep}
        run = self._client.create_run(experiment, run_name=result.trial_id, tags=tags).info.run_id
        params = [Param(name, str(value)) for name, value in settings(result).items()]
        metrics = [Metric(name, value, 0, step) for step, values in curve(result) for name, value in values.items()]
        metrics += [Metric(name, value, 0, result.final_step) for name, value in outcome(result).items()]
        for start in range(0, len(params), _MOST_PARAMS):
            self._client.log_batch(run, params=params[start : start + _MOST_PARAMS])
        for start in range(0, len(metrics), _MOST_METRICS):
            self._client.log_batch(run, metrics=metrics[start : start + _MOST_METRICS])
        self._client.set_terminated(run, "FINISHED" if result.status.final else "FAILED")

    def _experiment_id(self) -> str:
        if self._experiment is None:
            there = self._client.get_experiment_by_name(self._name)
            self._experiment = there.experiment_id if there else self._client.create_experiment(self._name)
        return self._experiment

    @property
    def where(self) -> str:
        return f"experiment {self._name} of {self._uri}"

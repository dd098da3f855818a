"""The glue between a search and Ray Tune, which asks for trials, runs them on reused actors, and says when one ends."""

from __future__ import annotations

import shutil
import uuid
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.search import Searcher

from cbs.config import TrialConfig
from cbs.errors import ResultsError
from cbs.record import TrialStatus
from cbs.store import Store
from sweeps.cluster import Resources, temporary_folder
from sweeps.progress import Progress
from sweeps.scoreboard import Scoreboard
from sweeps.search import Search
from sweeps.trainable import Trainable, failed

MAX_WORKER_DEATHS = 2
"""How often a trial whose worker process died is started again before it counts as FAILED."""


@dataclass
class Run:
    """What the hooks below share.

    Attributes:
        fatal: why the sweep has to end, or ``None``.
        configs: trials handed to Tune and not yet back, by Tune's own trial id.
        deaths: how often the worker of a trial has died, by trial id.
    """

    search: Search
    store: Store
    progress: Progress
    workers: int | None
    fatal: str | None = None
    configs: dict[str, TrialConfig] = field(default_factory=dict)
    deaths: Counter[str] = field(default_factory=Counter)

    def __deepcopy__(self, memo: dict[int, Any]) -> Run:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        # Tune pickles its hooks to resume an experiment; ours resume from the results folder and need nothing of it.
        return type(None), ()


def tune_search(run: Run, resources: Resources, namespace: str) -> None:
    """Run the search to its end on the Ray that is connected; returns early on an interrupt or a fatal problem."""
    search, device = run.search, run.search.sweep.device
    gpus = resources.gpus_per_trial
    if gpus is None:
        gpus = 1.0 if device != "cpu" and ray.cluster_resources().get("GPU", 0) >= 1 else 0.0
    best = {cell: steps for cell in search.cells() if (steps := search.best_steps(cell)) is not None}
    name = f"scoreboard-{uuid.uuid4().hex}"
    scoreboard: Any = ray.remote(Scoreboard).options(name=name, num_cpus=0, namespace=namespace).remote(best)
    config = {
        "trial": None,
        "store": str(run.store.root.resolve()),
        "scoreboard": name,
        "namespace": namespace,
        "prune_factor": search.sweep.prune_factor,
        "threads": resources.cpus_per_trial,
        "path": str(Path.cwd()),
    }
    scratch = temporary_folder()
    try:
        tuner = tune.Tuner(
            tune.with_resources(Trainable, {"cpu": resources.cpus_per_trial, "gpu": gpus}),
            param_space=config,
            tune_config=tune.TuneConfig(search_alg=Queue(run), num_samples=-1, reuse_actors=True),
            run_config=tune.RunConfig(
                storage_path=scratch,
                name="sweep",
                verbose=0,
                callbacks=[Watch(run, scoreboard)],
                stop=StopOnFatal(run),
            ),
        )
        tuner.fit()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        ray.kill(scoreboard)


class Queue(Searcher):  # type: ignore[misc]
    """Hands Tune the trials of the search and the search what came back."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run

    def suggest(self, trial_id: str) -> Any:
        """The next trial, ``None`` to wait, or ``Searcher.FINISHED``."""
        run = self._run
        if run.search.done or run.fatal is not None:
            return Searcher.FINISHED
        if run.workers is not None and len(run.search.running) >= run.workers:
            return None
        config = run.search.next()
        if config is None:
            return None
        run.configs[trial_id] = config
        return {"trial": config.to_dict()}

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        run, config = self._run, self._run.configs.pop(trial_id)
        if result is not None and result.get("fatal"):
            run.fatal = result["fatal"]
            return
        try:
            if error or result is None or "status" not in result:
                # Tune's own retries lose a trial whose worker dies between two trials, so the search gets it back.
                run.deaths[config.trial_id] += 1
                if run.deaths[config.trial_id] <= MAX_WORKER_DEATHS:
                    run.search.give_back(config)
                    return
                run.store.save(failed(config, TrialStatus.FAILED, "its worker process died; was it out of memory?"))
            elif not run.store.contains(config):
                run.fatal = f"trial {config.trial_id} was written, but not to {run.store.root}: all nodes must share it"
                return
            finished = run.store.load(config.trial_id, with_steps=False)
        except ResultsError as problem:
            run.fatal = str(problem)
            return
        run.search.add(finished)
        run.progress.finished(finished, run.search)

    def save(self, checkpoint_path: str) -> None:
        """Tune expects a file; the results folder is the state."""
        Path(checkpoint_path).touch()

    def restore(self, checkpoint_path: str) -> None:
        """See :meth:`save`."""


class Watch(tune.Callback):  # type: ignore[misc]
    """Keeps the display current while Tune's loop turns."""

    def __init__(self, run: Run, scoreboard: Any) -> None:
        self._run = run
        self._scoreboard = scoreboard

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        if self._run.progress.due():
            self._run.progress.update(self._run.search, ray.get(self._scoreboard.running.remote()))


class StopOnFatal(tune.Stopper):  # type: ignore[misc]
    """Ends the experiment once something happened that every further trial would run into."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self._run.fatal is not None

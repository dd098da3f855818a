"""Remember in the sweep's folder how many examples did not fit into memory, so that later trials do not try again."""

from __future__ import annotations

import json
from typing import Any

from cbs.compute.pass_sizes import halved
from cbs.files import atomic_file
from cbs.trial.config import fingerprint
from cbs.trial.store import Store

FILE = "too-large.json"
"""File: a fingerprint of what trains -> batch size -> fewest examples of a pass that did not fit. It may be deleted."""
_MATTERS = ("workload", "optimizer", "averaging", "probe", "diagnostics", "precision", "compile", "device")
"""Fields of a trial on which its memory depends, in addition to its batch size."""


class PassSizes:
    """Sizes of the forward and backward passes of a sweep's trials.

    What was too large at one batch size is too large at any larger one. Sizes come from halving a trial's own batch, so
    the final size depends on the available memory only, not on which trials ran before.

    Args:
        folder: folder of the sweep.
        workers: number of workers of a trial; each holds its share of a step.
        shard: whether each worker holds only a part of the model.
    """

    def __init__(self, folder: str, workers: int, shard: bool = False) -> None:
        self._path, self._workers, self._shard = Store(folder).root / FILE, workers, shard

    def most(self, trial: dict[str, Any]) -> int | None:
        """Return the largest number of examples per pass of a trial (:meth:`TrialConfig.to_dict`); ``None`` if
        unlimited."""
        known = self._known().get(self._key(trial), {})
        too_large = min((size for batch, size in known.items() if int(batch) <= trial["batch_size"]), default=None)
        return halved(-(-trial["batch_size"] // self._workers), trial.get("micro_batch_size"), too_large)

    def too_large(self, trial: dict[str, Any], examples: int) -> None:
        """Record that a pass of this many examples did not fit.

        Raises:
            ResultsError: if the file cannot be written.
        """
        known = self._known()
        sizes = known.setdefault(self._key(trial), {})
        batch = str(trial["batch_size"])
        sizes[batch] = min(examples, sizes.get(batch, examples))
        with atomic_file(self._path) as draft:
            draft.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n")

    def _key(self, trial: dict[str, Any]) -> str:
        matters = {name: trial.get(name) for name in _MATTERS}
        return fingerprint({"workers": self._workers, "shard": self._shard, **matters})

    def _known(self) -> dict[str, dict[str, int]]:
        """Return the content of the file as far as it can be read; lost entries will be found again."""
        try:
            content = json.loads(self._path.read_text())
            return {
                str(key): {str(int(batch)): int(size) for batch, size in sizes.items()}
                for key, sizes in content.items()
            }
        except (OSError, ValueError, TypeError, AttributeError, OverflowError, RecursionError):
            return {}

"""Section of a report: local critical batch sizes."""

from pathlib import Path

from analysis.config import AnalysisConfig
from analysis.read.results import are_branches, read_trials
from extensions.branching.local_batch_sizes import LocalBatchSizes, local

TITLE = "Local critical batch sizes"


def section(path: Path, config: AnalysisConfig) -> LocalBatchSizes | None:
    """Return the result of ``cbs local`` for a folder; ``None`` if it holds no branches."""
    return local(path, config=config) if are_branches(read_trials(path)[0]).any() else None

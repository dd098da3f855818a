"""Steps to result by the protocol of Shallue et al. (2019), obvious and slow.

After ``batch_science/measurement_utils.py`` of google-research: of all COMPLETE trials of a study, the fewest evaluated
steps whose metric is strictly better than the goal.
"""

import csv
import json
from pathlib import Path


def steps_to_result(study: Path, metric: str, goal: float, *, maximize: bool = False) -> tuple[int, int] | None:
    """The evaluated step, and the evaluation before it in the same trial; ``None`` if no trial gets there."""
    found = []
    for trial in study.iterdir():
        if not trial.is_dir() or json.loads((trial / "metadata.json").read_text())["status"] != "COMPLETE":
            continue
        before = 0
        for row in csv.DictReader((trial / "measurements.csv").open()):
            value = float(row[metric])
            if value > goal if maximize else value < goal:
                found.append((int(row["step"]), before))
                break
            before = int(row["step"])
    return min(found) if found else None

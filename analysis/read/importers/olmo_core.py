"""What the console logger of OLMo-core prints.

Tested with version 2.5.0. A metric stands below the line with its step, under its own name. Evaluations are printed
there with ``metrics=["train/*", "eval/*"]`` of the console logger; the lines ``Finished ... evals`` have no step.
"""

import re
from typing import Any

from analysis.read.importers.base import IMPORTERS
from analysis.read.importers.printed import NUMBER, WAS_UPDATE, Printed, counted

_BLOCK = re.compile(r"\[step=(?P<step>[\d,]+)/[^\]]*\].*(?P<metrics>(?:\n {4}\S.*=.*)+)")
_METRIC = re.compile(rf"\n {{4}}(?P<name>\S.*)=(?P<value>{NUMBER})(?=\s|$)")
_OF_BATCH = "train/"


@IMPORTERS.register("olmo_core")
class OLMoCore(Printed):
    """Every metric of the console, such as ``train/CE loss`` of the batch of an update."""

    doubt = ("train/CE loss", WAS_UPDATE)

    def rows(self, output: str) -> list[dict[str, Any]]:
        """Return the metrics of batches with the updates before theirs, all others with those made."""
        rows = []
        for block in _BLOCK.finditer(output):
            metrics = {each["name"]: each["value"] for each in _METRIC.finditer(block["metrics"])}
            for counter, chosen in (("update", True), ("step", False)):
                part = {name: text for name, text in metrics.items() if name.startswith(_OF_BATCH) is chosen}
                rows += [counted({counter: block["step"], **part})] if part else []
        return rows

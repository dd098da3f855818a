"""What litgpt prints.

``litgpt pretrain`` and ``litgpt finetune``, tested with version 0.5.13. Their validation counts passes, ``iter``. How
many of them make an update is seen in the lines that have both counts; ``val`` there repeats the last validation.
"""

from typing import Any

from analysis.read.importers.base import IMPORTERS
from analysis.read.importers.printed import Printed, group


@IMPORTERS.register("litgpt")
class LitGPT(Printed):
    """``loss`` of the batch of an update, and ``val_loss``."""

    lines = (
        rf"\biter {group('iter')} step {group('update')} \| loss train: {group('loss')},.* ms \(step\)",
        rf"\biter {group('iter')}: val loss {group('val_loss')}",
    )
    once = (rf"'global_batch_size': {group('batch_size')},",)

    def rows(self, output: str) -> list[dict[str, Any]]:
        """Return the measurements; a validation before the first line with both counts has no known step."""
        found = super().rows(output)
        passes = next((row["iter"] / (row["step"] + 1) for row in found if "step" in row), None)
        if passes is None:
            return []
        return [{"step": row["iter"] / passes, **row} for row in found]

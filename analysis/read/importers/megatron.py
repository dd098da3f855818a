"""What Megatron-LM prints.

Tested with lines of core 0.13, and of older versions without dates. The final evaluation, ``on validation set``, is
left out: it has other examples than the one at the same iteration.
"""

from typing import Any

from analysis.read.importers.base import IMPORTERS
from analysis.read.importers.printed import Printed, group


@IMPORTERS.register("megatron")
class MegatronLM(Printed):
    """``val_loss``, of several validation sets ``val_loss_0`` and so on; ``loss``: the mean since the last line."""

    lines = (
        rf"\bvalidation(?:-(?P<of>\d+))? loss at iteration {group('step')} \| lm loss value: {group('val_loss')}",
        rf"(?m)\biteration +{group('step')}/ *\d+ \|.*\| lm loss: {group('loss')}",
    )
    once = (
        rf"\| global batch size: *{group('batch_size')} \|",
        r"(?m)^ +(?P<name>\w+) \.{3,} (?P<value>.*)$",
    )
    doubt = ("loss", "loss of Megatron-LM is the mean of the batches trained on since its last line: see val_loss")

    def rows(self, output: str) -> list[dict[str, Any]]:
        """Return the measurements, each of several validation sets under a name of its own."""
        sets = ((row, row.pop("of", None)) for row in super().rows(output))
        return [row if of is None else {"step": row["step"], f"val_loss_{of:g}": row["val_loss"]} for row, of in sets]

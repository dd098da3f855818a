"""What modded-nanogpt prints.

Printed, and written to ``logs/ID.txt``, from its records of October 2024 to its commit f411b3d of August 2026.
"""

from analysis.read.importers.base import IMPORTERS
from analysis.read.importers.printed import Printed, group


@IMPORTERS.register("modded_nanogpt")
class ModdedNanoGPT(Printed):
    """``val_loss``, and in older versions the ``train_loss`` of the batch of each update."""

    lines = (
        rf"\bstep:{group('step')}/\d+ val_loss:{group('val_loss')}",
        rf"\bstep:{group('update')}/\d+ train_loss:{group('train_loss')}",
    )

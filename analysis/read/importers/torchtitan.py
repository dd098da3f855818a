"""What torchtitan prints.

Tested with lines of version 0.2.2 and of its commit b5bcd76 of August 2026, with and without colours.
"""

from analysis.read.importers.base import IMPORTERS
from analysis.read.importers.printed import Printed, group


@IMPORTERS.register("torchtitan")
class TorchTitan(Printed):
    """``loss`` of the batch of an update, and ``val_loss`` of its validator."""

    lines = (
        rf"(?<!validate )\bstep: *{group('update')} +loss: *{group('loss')}",
        rf"\bvalidate step: *{group('step')} +loss: *{group('val_loss')}",
    )
    once = (
        rf"\bTrainer is initialized with local batch size \d+, global batch size {group('batch_size')}",
        rf"\bTrainer is initialized with .*?, {group('tokens')} tokens per train step",
    )
    counts_tokens = "max_context_length"

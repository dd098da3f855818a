"""What nanoGPT prints.

Tested with its commit 3adf61e of November 2025. ``batch_size`` of nanoGPT is that of one pass on one device; what it
prints per update, the tokens, is compared with the batch size of the trial.
"""

from analysis.read.importers.base import IMPORTERS
from analysis.read.importers.printed import Printed, group


@IMPORTERS.register("nanogpt")
class NanoGPT(Printed):
    """``train_loss`` and ``val_loss`` of its evaluations; ``loss`` of single batches."""

    lines = (
        rf"\bstep {group('step')}: train loss {group('train_loss')}, val loss {group('val_loss')}",
        rf"\biter {group('step')}: loss {group('loss')}, time ",
    )
    once = (
        rf"tokens per iteration will be: {group('tokens')}",
        r"(?m)^Overriding: (?P<name>\w+) = (?P<value>.*)$",
    )
    counts_tokens = "block_size"

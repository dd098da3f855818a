"""What programs that pre-train models print: nanoGPT, modded-nanogpt, torchtitan, Megatron-LM, litgpt, OLMo-core."""

import re
from typing import Any

from analysis.read.importers.base import IMPORTERS
from analysis.read.importers.printed import NUMBER, WAS_UPDATE, Printed, counted, group


# Tested with its commit 3adf61e of November 2025. ``batch_size`` of nanoGPT is that of one pass on one device; what it
# prints per update, the tokens, is compared with the batch size of the trial.
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


# Printed, and written to ``logs/ID.txt``, from its records of October 2024 to its commit f411b3d of August 2026.
@IMPORTERS.register("modded_nanogpt")
class ModdedNanoGPT(Printed):
    """``val_loss``, and in older versions the ``train_loss`` of the batch of each update."""

    lines = (
        rf"\bstep:{group('step')}/\d+ val_loss:{group('val_loss')}",
        rf"\bstep:{group('update')}/\d+ train_loss:{group('train_loss')}",
    )


# Tested with lines of version 0.2.2 and of its commit b5bcd76 of August 2026, with and without colours.
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


# Tested with lines of core 0.13, and of older versions without dates. The final evaluation, ``on validation set``, is
# left out: it has other examples than the one at the same iteration.
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


# Tested with version 0.5.13. The validation of ``litgpt pretrain`` and ``litgpt finetune`` counts passes, ``iter``. How
# many of them make an update is seen in the lines that have both counts; ``val`` there repeats the last validation.
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


_BLOCK = re.compile(r"\[step=(?P<step>[\d,]+)/[^\]]*\].*(?P<metrics>(?:\n {4}\S.*=.*)+)")
_METRIC = re.compile(rf"\n {{4}}(?P<name>\S.*)=(?P<value>{NUMBER})(?=\s|$)")
_OF_BATCH = "train/"


# Tested with version 2.5.0. A metric stands below the line with its step, under its own name. Evaluations are printed
# with ``metrics=["train/*", "eval/*"]`` of the console logger; the lines ``Finished ... evals`` have no step.
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

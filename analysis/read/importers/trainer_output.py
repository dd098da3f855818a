r"""Format ``trainer_output``: the dictionaries that the Hugging Face ``Trainer`` prints (tested with transformers 5.23
and lines of 4.x).

They have an epoch but no step. The step is that of the progress bar, which is drawn anew after each of them; the epochs
show whether it is the right bar. Without a bar (``--disable_tqdm``) nothing is known.
"""

from __future__ import annotations

import re
from typing import Any

from analysis.read.importers.base import IMPORTERS
from analysis.read.importers.printed import NUMBER, Printed, counted
from cbs.errors import DataError

_PRINTED = re.compile(r"\{'.*'epoch': '?(?:[\d.e+-]+)'?\}")
_BAR = re.compile(r"^ *\d+%\|[^|]*\| *(\d+)/(\d+) \[")
_NUMBER = re.compile(rf"'([\w/]+)': '?({NUMBER})'?(?=[,}}])")


@IMPORTERS.register("trainer_output")
class TrainerOutput(Printed):
    """Every number of the dictionaries, such as ``eval_loss``."""

    doubt = ("loss", "loss of a Trainer is the mean of the batches trained on since its last log: see eval_loss")

    def rows(self, output: str) -> list[dict[str, Any]]:
        """Return the dictionaries with the steps of the bars that follow them; an error if they have none."""
        rows: list[dict[str, Any]] = []
        waiting, total, left = "", "", 0
        for line in output.split("\n"):
            if (said := _PRINTED.search(line)) is not None:
                left += bool(waiting)
                waiting = said[0]
            elif (bar := _BAR.match(line)) is not None:
                total = total or bar[2]  # the first bar without a name is that of training
                if waiting and bar[2] == total:
                    rows.append(counted({"step": bar[1], **dict(_NUMBER.findall(waiting))}))
                    waiting = ""
        if left and not rows:
            raise DataError("the dictionaries have no step, and no progress bar shows it: leave out --disable_tqdm")
        last = max(rows, key=lambda row: row["epoch"], default={"epoch": 0.0})
        for row in rows if last["epoch"] else ():
            # steps are in proportion to epochs, which are printed with two digits or more
            per_epoch = last["step"] / last["epoch"]
            if abs(row["step"] - row["epoch"] * per_epoch) > 1 + 0.02 * row["step"] + 0.01 * per_epoch:
                raise DataError(
                    f"the progress bar is at step {row['step']:g} at epoch {row['epoch']:g}, but at {last['step']:g} "
                    f"at {last['epoch']:g}: another bar is mixed in; use ReportCallback instead"
                )
        return rows

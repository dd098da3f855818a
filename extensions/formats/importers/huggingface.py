"""The Hugging Face ``Trainer``: its ``trainer_state.json``, and the dictionaries that it prints.

The file contains the logs of a run, but neither its global batch size nor its peak learning rate: the
``train_batch_size`` in it is per device, without accumulation and world size. The user has to give both.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from analysis.read import cells
from analysis.read.importers.base import IMPORTERS, ImportedRun, Importer, in_folder, run_of
from analysis.read.importers.files import read_mapping
from analysis.read.importers.printed import NUMBER, Printed, counted
from analysis.read.importers.settings import Settings
from analysis.read.table import of_rows
from cbs.errors import DataError

STATE = "trainer_state.json"
_REMEDY = "copy it again from where the run was trained"
_CHECKPOINT = re.compile(r"checkpoint-\d+")
_TRAINING = "loss"
_PER_DEVICE = "config.train_batch_size"


@IMPORTERS.register("huggingface")
class HuggingFace(Importer):
    """A ``trainer_state.json``, a checkpoint, the folder of a run, or a folder of runs."""

    expected = f"{STATE}, a checkpoint, or a folder of runs"
    marks = ((STATE,), STATE)
    also = "trainer_state"

    def read(self, source: str, settings: Settings, notes: list[str]) -> Iterator[ImportedRun]:
        """Yield one run per folder with checkpoints, from the latest one, whose log includes the earlier ones."""
        path = Path(source)
        if settings.columns.get("batch_size") == _PER_DEVICE:
            raise DataError(
                f"{_PER_DEVICE} is per device, without gradient accumulation and world size; give the global batch "
                "size with --set batch_size=N, --runs or --pattern"
            )
        latest: dict[Path, tuple[tuple[float, int], Path, dict[str, Any]]] = {}
        states = self.files(source)
        for state in states:
            folder, data = _folder(state), read_mapping(state, _REMEDY)
            log = data.get("log_history")
            try:
                reached = cells.number(data.get("global_step", 0)), len(log) if isinstance(log, list) else 0
            except ValueError as error:
                raise DataError(f"{state}: global_step: {error}; {_REMEDY}") from None
            if folder not in latest or reached > latest[folder][0]:
                latest[folder] = (reached, state, data)
        for folder, (_, state, data) in sorted(latest.items()):
            log = data.pop("log_history", None)
            if not isinstance(log, list) or not all(isinstance(entry, dict) for entry in log):
                raise DataError(f"{state} has no list of logs called log_history; {_REMEDY}")
            table = of_rows(str(state), log)
            titles = [title for title in table.columns if title not in ("step", "epoch")]
            about = {"files": (state,), **in_folder(folder, _folder(path) if path.is_file() else path)}
            yield run_of(table, settings, settings.axis("step"), config=data, metrics=titles, **about)
        if settings.measured == _TRAINING:
            notes.append(
                f"{_TRAINING} of a Trainer is the mean of the batches trained on since its last log: see eval_loss"
            )
        older = len(states) - len(latest)
        if older:
            notes.append(f"{older} checkpoints are older than the latest of their run and were not used")


def _folder(state: Path) -> Path:
    folder = state.resolve().parent if state.parent == Path() else state.parent
    return folder.parent if _CHECKPOINT.fullmatch(folder.name) else folder


_PRINTED = re.compile(r"\{'.*'epoch': '?(?:[\d.e+-]+)'?\}")
_BAR = re.compile(r"^ *\d+%\|[^|]*\| *(\d+)/(\d+) \[")
_NUMBER = re.compile(rf"'([\w/]+)': '?({NUMBER})'?(?=[,}}])")


# Tested with transformers 5.23 and lines of 4.x. They have an epoch but no step: that of the progress bar, which is
# drawn anew after each of them; the epochs show whether it is the right bar. Without a bar epochs alone are known.
@IMPORTERS.register("trainer_output")
class TrainerOutput(Printed):
    """Every number of the dictionaries, such as ``eval_loss``."""

    doubt = ("loss", "loss of a Trainer is the mean of the batches trained on since its last log: see eval_loss")
    stepless = (
        "the dictionaries have no step, and no progress bar shows it: leave out --disable_tqdm, use ReportCallback, or "
        "where every epoch was evaluated give --column step=epoch --examples-per-epoch N"
    )

    def rows(self, output: str) -> list[dict[str, Any]]:
        """Return the dictionaries with the steps of the bars that follow them, if there are any."""
        rows: list[dict[str, Any]] = []
        alone: list[str] = []
        waiting, total = "", ""
        for line in output.split("\n"):
            if (said := _PRINTED.search(line)) is not None:
                waiting = said[0]
                alone.append(waiting)
            elif (bar := _BAR.match(line)) is not None:
                total = total or bar[2]  # the first bar without a name is that of training
                if waiting and bar[2] == total:
                    rows.append(counted({"step": bar[1], **dict(_NUMBER.findall(waiting))}))
                    waiting = ""
        if not rows:
            return [counted(dict(_NUMBER.findall(line))) for line in alone]
        last = max(rows, key=lambda row: row["epoch"])
        for row in rows if last["epoch"] else ():
            # steps are in proportion to epochs, which are printed with two digits or more
            per_epoch = last["step"] / last["epoch"]
            if abs(row["step"] - row["epoch"] * per_epoch) > 1 + 0.02 * row["step"] + 0.01 * per_epoch:
                raise DataError(
                    f"the progress bar is at step {row['step']:g} at epoch {row['epoch']:g}, but at {last['step']:g} "
                    f"at {last['epoch']:g}: another bar is mixed in; use ReportCallback instead"
                )
        return rows

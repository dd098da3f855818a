"""Event files as torch's writer leaves them, whole and damaged."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.read.importers import import_runs
from cbs.errors import DataError, MissingDependencyError
from tests.analysis.read.importers.sources import CURVES, curves_of, settings

pytest.importorskip("tensorboard")

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.scalar.summary import scalar_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from torch.utils.tensorboard import SummaryWriter

HAS_CONFIG = False

FLOAT32 = 2.0**-23  # Events hold single precision

PATTERN = "{optimizer}-b{batch_size}-lr{lr}-s{seed}"
BOTH = {"optimizer": "adamw", "lr": "1e-3", "batch_size": "4"}


def write(folder: Path, rows: list[tuple[int, float]], tag: str = "eval/loss") -> Path:
    with SummaryWriter(str(folder)) as writer:
        for step, value in rows:
            writer.add_scalar(tag, value, step)
            writer.add_scalar("train/loss", 1.0, step)
    return next(folder.glob("*tfevents*"))


def write_run(top: Path, rows: list[dict[str, Any]], config: dict[str, Any]) -> Path:
    with SummaryWriter(str(top / "a")) as writer:
        for row in rows:
            for tag in [tag for tag in row if tag != "step"]:
                writer.add_scalar(tag, row[tag], row["step"])
    return top


def close(found: list[tuple[int, float]], wanted: list[tuple[int, float]]) -> bool:
    steps = [step for step, _ in found] == [step for step, _ in wanted]
    return steps and np.allclose([v for _, v in found], [v for _, v in wanted], rtol=FLOAT32, atol=0)


def test_one_run_per_folder_with_its_name(tmp_path: Path) -> None:
    for curve in CURVES[:4]:
        write(tmp_path / "in" / curve.name, curve.rows)
    imported = import_runs([tmp_path / "in"], tmp_path / "out", settings(metric="eval/loss", pattern=PATTERN))
    assert imported.format == "tensorboard"
    found = curves_of(tmp_path / "out")
    assert all(close(found[curve.name], curve.rows) for curve in CURVES[:4])
    assert len(found) == 4


def test_no_point_is_left_out_of_a_long_run(tmp_path: Path) -> None:
    """By default the accumulator keeps 10,000 points."""
    rows = [(step, 3.0 + step % 7) for step in range(1, 10_101)]
    folder = tmp_path / "in"
    writer = EventFileWriter(str(folder))
    for step, value in rows:
        summary = Summary(value=[Summary.Value(tag="loss", simple_value=value)])
        writer.add_event(Event(step=step, summary=summary))
    writer.close()
    import_runs([folder], tmp_path / "out", settings(constants=BOTH))
    assert curves_of(tmp_path / "out") == {"in": rows}


def test_scalars_that_are_tensors_and_several_files_of_a_run(tmp_path: Path) -> None:
    for start in (1, 3):
        writer = EventFileWriter(str(tmp_path / "in"), filename_suffix=f".{start}")
        for step in (start, start + 1):
            writer.add_event(Event(step=step, summary=scalar_pb("loss", 10.0 / step)))
        writer.close()
    import_runs([tmp_path / "in"], tmp_path / "out", settings(constants=BOTH))
    assert close(curves_of(tmp_path / "out")["in"], [(step, 10.0 / step) for step in (1, 2, 3, 4)])


@pytest.mark.parametrize(
    ("tag", "columns", "noted"),
    [("epoch_loss", {}, True), ("epoch_loss", {"step": "updates"}, False), ("loss_epoch", {}, False)],
)
def test_a_tag_that_keras_logs_against_epochs_is_noted(
    tmp_path: Path, tag: str, columns: dict[str, str], noted: bool
) -> None:
    rows = [{"step": step, tag: 3.0 - step, "updates": 50 * step} for step in (1, 2)]
    write_run(tmp_path / "in", rows, {})
    imported = import_runs([tmp_path / "in"], tmp_path / "out", settings(metric=tag, constants=BOTH, columns=columns))
    assert ["Keras logs tags" in note for note in imported.notes] == [True] * noted


@pytest.mark.parametrize("tag", ["lm loss validation vs samples", "Train/Samples/train_loss"])
def test_a_tag_that_says_what_it_is_drawn_against_is_asked_about(tmp_path: Path, tag: str) -> None:
    """As Megatron-LM logs each loss twice, against updates and against the samples seen; DeepSpeed logs the latter."""
    write_run(tmp_path / "in", [{"step": 4 * step, tag: 3.0 - step} for step in (1, 2)], {})
    wanted = settings(metric=tag, constants=BOTH | {"batch_size": "4"})
    with pytest.raises(DataError, match="drawn against samples, not updates: say so with --column examples=step, or"):
        import_runs([tmp_path / "in"], tmp_path / "out", wanted)
    for name, steps in (("examples", [1, 2]), ("step", [4, 8])):
        chosen = settings(metric=tag, constants=BOTH | {"batch_size": "4"}, columns={name: "step"})
        (trial,) = import_runs([tmp_path / "in"], tmp_path / name, chosen).trials
        assert [row.step for row in trial.evaluations] == steps


def test_a_file_cut_in_the_middle_is_named_with_where_to_cut_it_whole(tmp_path: Path) -> None:
    """Every length of the file: either it ends between two events, or the error says where the last whole one ends."""
    path = write(tmp_path / "in", CURVES[0].rows)
    content = path.read_bytes()
    wanted = settings(metric="eval/loss", constants=BOTH)
    path.write_bytes(content[:-7])
    with pytest.raises(DataError, match="cut off in the middle of an event") as caught:
        import_runs([tmp_path / "in"], tmp_path / "out", wanted)
    assert str(path) in str(caught.value)
    assert not (tmp_path / "out").exists()
    size = int(str(caught.value).split("--size=")[1].split()[0])
    path.write_bytes(content[:size])
    import_runs([tmp_path / "in"], tmp_path / "out", wanted)
    assert close(curves_of(tmp_path / "out")["in"], CURVES[0].rows)


@pytest.mark.parametrize("place", [20, 200, 500, -3])
def test_a_damaged_file_is_named(tmp_path: Path, place: int) -> None:
    path = write(tmp_path / "in", CURVES[0].rows)
    content = bytearray(path.read_bytes())
    content[place] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"is damaged|is cut off") as caught:
        import_runs([path], tmp_path / "out", settings(metric="eval/loss", constants=BOTH))
    assert path.name in str(caught.value)


def test_the_install_command_is_named_where_tensorboard_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "in", CURVES[0].rows)
    monkeypatch.setitem(__import__("sys").modules, "tensorboard.backend.event_processing.event_file_loader", None)
    with pytest.raises(MissingDependencyError, match=r"pip install tensorboard$"):
        import_runs([tmp_path / "in"], tmp_path / "out", settings(constants=BOTH))

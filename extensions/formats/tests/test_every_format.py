"""What all formats of single programs have in common: imported as a person types it, epochs, restored runs, damage."""

import contextlib
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.read.importers import IMPORTERS, import_runs
from cbs.errors import CbsError, ConfigError, DataError
from tests.analysis.read.importers.sources import CURVES, FLAGS, long_rows, settings, trainer_state, write_csv
from tests.analysis.read.importers.test_epochs import EXAMPLES, SIZES, UPDATES, imported, steps_of
from tests.analysis.read.importers.test_import_cli import PATTERN
from tests.analysis.read.importers.test_properties import QUICK
from tests.analysis.read.importers.test_restored import AGAIN, FIRST, KNOWN, STANDING, curve

Cli = Callable[..., tuple[int, str, str]]


def huggingface(top: Path) -> list[str]:
    for one in CURVES:
        (top / one.name).mkdir(parents=True)
        (top / one.name / "trainer_state.json").write_text(trainer_state(one.rows))
    return [str(top), "--pattern", PATTERN, "--column", "loss=eval_loss"]


def tensorboard(top: Path) -> list[str]:
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    for one in CURVES:
        with SummaryWriter(str(top / one.name)) as writer:
            for step, value in one.rows:
                writer.add_scalar("loss", value, step)
    return [str(top), "--pattern", PATTERN]


def wandb(top: Path) -> list[str]:
    for one in CURVES:
        write_csv(top / f"{one.name}.csv", [{"_step": step, "loss": value} for step, value in one.rows])
    runs = [{"run": one.name, "batch_size": one.batch_size, "lr": one.lr} for one in CURVES]
    return [str(top), "--runs", str(write_csv(top.parent / "about.csv", runs)), "--set", "optimizer=adamw"]


@pytest.mark.parametrize("write", [tensorboard, wandb, huggingface])
def test_imported_curves_give_their_critical_batch_size(run: Cli, tmp_path: Path, write: Any) -> None:
    arguments = write(tmp_path / "in")
    code, out, err = run("import", *arguments, "-o", tmp_path / "out", *FLAGS, "--json")
    assert code == 0, err
    told = json.loads(out)
    assert told["format"] == write.__name__
    assert (told["batch_sizes"], told["statuses"]) == ([2, 8, 32, 128, 512], {"REACHED": 15})
    code, out, err = run("analyze", tmp_path / "out", "--figures", "none", "--json", "--resamples", "100")
    assert code == 0, err
    (fit,) = json.loads(out)["fits"]
    assert fit["critical_batch_size"] == pytest.approx(32.0, rel=0.1)


def logged(top: Path, first: int = 1, *, before: bool = False) -> Path:
    """Write accuracy against epochs, and the training loss against updates, as scripts do after every epoch."""
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    for size in SIZES:
        with SummaryWriter(str(top / f"b{size}")) as writer:
            if before:
                writer.add_scalar("accuracy", 0.1, 0)
            for epoch in range(6):
                for update in range(20 * epoch, 20 * epoch + 20):
                    writer.add_scalar("loss", 1.0, 10 * update)
                writer.add_scalar("accuracy", 0.2 + 0.1 * epoch, first + epoch)
    return top


def test_epochs_beside_updates_are_refused_and_converted(tmp_path: Path) -> None:
    source = logged(tmp_path / "logs")
    with pytest.raises(DataError, match=r"1, 2, 3 to 6, and run b\d+ counts to 1,190 beside it: these are epochs"):
        imported(tmp_path, source)
    report = imported(tmp_path, source, examples_per_epoch=EXAMPLES)
    assert steps_of(report) == {size: [UPDATES[size] * epoch for epoch in range(1, 7)] for size in SIZES}
    (note,) = report.notes
    assert "34 at batch size 30, 10 at batch size 100, 2 at batch size 500; one less where" in note
    told = imported(tmp_path / "told", source, columns={"step": "step"})
    assert steps_of(told)[30] == [1, 2, 3, 4, 5, 6]
    assert told.notes[0].startswith("every run was measured at step 1, 2, 3 to 6, whatever its batch size")


@pytest.mark.parametrize("before", [False, True])
def test_epoch_0_is_the_first_unless_it_was_logged_before_training(tmp_path: Path, before: bool) -> None:
    source = logged(tmp_path / "logs", 1 if before else 0, before=before)
    report = imported(tmp_path, source, examples_per_epoch=EXAMPLES)
    assert steps_of(report)[100] == [10, 20, 30, 40, 50, 60]
    assert any("counted from 0, and 1 was added" in note for note in report.notes) is not before


def restored_lightning(top: Path, points: list[tuple[int, float]]) -> Path:
    logged = [{"epoch": 0, "step": step - 1, "loss": value} for step, value in points]
    return write_csv(top / "version_0" / "metrics.csv", logged).parent


def restored_tensorboard(top: Path, points: list[tuple[int, float]]) -> Path:
    """Write an event file for each process that trained."""
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    for at, part in enumerate((points[: len(FIRST)], points[len(FIRST) :])):
        with SummaryWriter(str(top / "new")) as writer:
            for step, value in part:
                writer.add_scalar("loss", value, step)
        (file,) = (top / "new").iterdir()
        (top / "a").mkdir(exist_ok=True)
        file.rename(top / "a" / f"events.out.tfevents.170000000{at}.host")
    (top / "new").rmdir()
    return top


def restored_printed(top: Path, points: list[tuple[int, float]]) -> Path:
    """As nanoGPT prints it, whose log was appended to."""
    top.mkdir(parents=True)
    (top / "a.log").write_text("".join(f"iter {step}: loss {value}, time 9.1ms, mfu 0.1%\n" for step, value in points))
    return top


@pytest.mark.parametrize("write", [restored_lightning, restored_tensorboard, restored_printed])
def test_rows_after_the_restore_count_and_a_note_says_so(tmp_path: Path, write: Any) -> None:
    report = import_runs([write(tmp_path / "in", FIRST + AGAIN)], tmp_path / "out", settings(constants=KNOWN))
    assert curve(report) == STANDING
    (note,) = [note for note in report.notes if note.startswith("1 run went back to an earlier step")]
    assert note.endswith("the rows after that count, and 2 earlier ones do not")
    # loss 2.4 on the line in ln step between 3.1 at 40 and 2.3 at 60
    assert report.trials[0].steps_to_target == pytest.approx(40 * 1.5 ** (0.7 / 0.8), rel=1e-3)


@QUICK
@given(st.binary(max_size=300))
def test_any_bytes_as_an_event_file_or_an_offline_run(content: bytes) -> None:
    for name, format in (("events.out.tfevents.1", "tensorboard"), ("run.wandb", "wandb")):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            path.write_bytes(content)
            with contextlib.suppress(CbsError):
                list(IMPORTERS[format]().read(str(path), settings(), []))


def test_a_folder_of_two_formats_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "trainer_state.json").write_text(trainer_state([]))
    write_csv(tmp_path / "x.csv", long_rows())
    words = r"may be huggingface \(1 trainer_state.json\) or table \(1 table, x.csv with columns batch.*; choose one"
    with pytest.raises(ConfigError, match=words) as caught:
        import_runs([tmp_path], tmp_path / "out", settings())
    assert "\n" not in str(caught.value)

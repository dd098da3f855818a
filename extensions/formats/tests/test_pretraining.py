"""Formats of what known programs print, on lines of the real programs."""

from pathlib import Path

import pytest

from analysis.read.importers import import_runs
from analysis.read.importers.base import importer
from analysis.read.importers.importing import detect
from cbs.errors import DataError
from tests.analysis.read.importers.sources import settings
from tests.analysis.read.importers.test_printed import NANOGPT

MODDED = """        print0(f"step:{step}/{train_steps} val_loss:{val_loss:.4f} train_time:{training_time_ms:.0f}ms")
step:0/5100 val_loss:15.9936 train_time:227ms step_avg:nanms
step:1/5100 train_loss:15.9929 train_time:1368ms step_avg:nanms
step:2/5100 train_loss:9.8606 train_time:1429ms step_avg:nanms
step:125/5100 val_loss:5.9598 train_time:15807ms step_avg:137.46ms
"""
TITAN = (
    "[rank0]:[titan] 2026-08-21 10:00:00,000 - root - INFO - Trainer is initialized with 8192 tokens per DP rank, "
    "16384 tokens per train step, gradient accumulation steps 1, maximum context length 2048, total steps 10\n"
    "[titan] 2026-08-21 10:00:01,000 - root - INFO - \x1b[31mstep:  1  \x1b[32mloss: 12.23450  \x1b[38;2;180;60;0m"
    "grad_norm:  4.1234  \x1b[38;2;54;234;195mmemory:  1.00GiB(1.05%)  \x1b[34mtps: 7,000\x1b[39m\n"
    "[titan] 2026-08-21 10:00:02,000 - root - INFO - validate step: 10  loss:  7.1234  memory:  1.00GiB(1.05%)\n"
)
OLDER = ("8192 tokens per DP rank, 16384 tokens per train step", "local batch size 8, global batch size 64")
MEGATRON = """  lr .............................................. 0.00015
 iteration     1000/    5000 | consumed samples:         8000 | elapsed time per iteration (ms): 283.9 | \
learning rate: 4.608E-05 | global batch size:     8 | lm loss: 5.544420E+00 | loss scale: 65536.0 | grad norm: 2.475 |
---------------------------------------------------------------------------
 validation loss at iteration 1000 | lm loss value: 6.439325E+00 | lm loss PPL: 6.259840E+02 |
 [2025-06-01 10:00:00] iteration     1100/    5000 | consumed samples:         8800 | global batch size:     8 | \
lm loss: 5.352916E+00 | loss scale: 65536.0 |
 validation loss at iteration 1100 on validation set | lm loss value: 6.200000E+00 | lm loss PPL: 4.927490E+02 |
"""
LITGPT = """           'global_batch_size': 8,
Epoch 1 | iter 16 step 4 | loss train: 4.151, val: n/a | iter time: 10.84 ms (step) remaining time: 0:00:40
Validating ...
iter 20: val loss 4.0969, val time: 15.89 ms
Epoch 1 | iter 22 step 5 | loss train: 4.200, val: 4.097 | iter time: 10.84 ms
Epoch 1 | iter 24 step 6 | loss train: 4.094, val: 4.097 | iter time: 10.84 ms (step) remaining time: 0:00:40
iter 40: val loss 3.9172, val time: 12.36 ms
Final evaluation | val loss: 3.673 | val ppl: 39.389
"""
OLMO = """2026-11-28 12:24:51.258\tvm:0\tconsole_logger:71\tINFO\t[step=1/1200,epoch=1,eta=1m10s]
    train/CE loss=10.81
    train/PPL=49,000
    optim/LR (group 0)=1.00E-05
2026-11-28 12:24:51.258\tvm:0\tevaluator_callback:171\tINFO\tFinished lm evals. Metrics:
    c4-validation/CE loss=3.600
2026-11-28 12:24:51.258\tvm:0\tconsole_logger:71\tINFO\t[step=1000/1200,epoch=1,eta=1m10s]
    train/CE loss=3.400
    eval/lm/c4-validation/CE loss=3.520
"""
TRAINER = (
    "Map: 100%|##########| 250/250 [00:00<00:00]\n"
    "\r  0%|          | 0/60 [00:00<?, ?it/s]\n"
    "\r  0%|          | 0/4 [00:00<?, ?it/s]\x1b[A\r     \r\n\r    \r\x1b[A"
    "{'eval_loss': '22.19', 'eval_runtime': '0.0051', 'epoch': 0}\n"
    "\r  0%|          | 0/60 [00:00<?, ?it/s]\n\r100%|##########| 4/4 [00:00<00:00, 3553.63it/s]\x1b[A\n"
    "\r      \x1b[A\r    \r{'loss': '25.73', 'grad_norm': '8.185', 'learning_rate': '0.04667', 'epoch': '0.1562'}\n"
    "\r  8%|8         | 5/60 [00:00<00:00, 429.74it/s]\n\r  0%|          | 0/4 [00:00<?, ?it/s]\x1b[A\r    \r\n"
    "\r    \r\x1b[A{'eval_loss': 1.821e+01, 'eval_runtime': 0.0019, 'epoch': 0.22}\n"
    "\r100%|##########| 4/4 [00:00<00:00, 4967.87it/s]\x1b[A\n\r 12%|#2        | 7/60 [00:00<00:00, 450.81it/s]\n"
    "\r      \r{'loss': '21.79', 'epoch': '0.3125'}\n"
)


@pytest.mark.parametrize(
    ("format", "printed", "metric", "points", "facts"),
    [
        ("nanogpt", NANOGPT, "val_loss", [(0, 5.4168), (250, 4.9843)], {"batch_size": 32}),
        ("nanogpt", NANOGPT, "train_loss", [(0, 5.5034), (250, 4.9758)], {"batch_size": 32}),
        ("nanogpt", NANOGPT.replace("nan,", "4.5,"), "loss", [(0, 5.4717), (250, 4.5)], {"batch_size": 32}),
        ("modded_nanogpt", MODDED, "val_loss", [(0, 15.9936), (125, 5.9598)], {}),
        ("modded_nanogpt", MODDED, "train_loss", [(0, 15.9929), (1, 9.8606)], {}),
        ("torchtitan", TITAN, "val_loss", [(10, 7.1234)], {"batch_size": 512}),
        ("torchtitan", TITAN.replace(*OLDER), "loss", [(0, 12.2345)], {"batch_size": 64}),
        ("megatron", MEGATRON, "val_loss", [(1000, 6.439325)], {"batch_size": 8}),
        ("megatron", MEGATRON, "loss", [(1000, 5.54442), (1100, 5.352916)], {"batch_size": 8}),
        ("litgpt", LITGPT, "val_loss", [(5, 4.0969), (10, 3.9172)], {"batch_size": 8}),
        ("litgpt", LITGPT, "loss", [(3, 4.151), (5, 4.094)], {"batch_size": 8}),
        ("litgpt", "iter 20: val loss 4.0969, val time: 15.89 ms\n", "val_loss", [], {}),  # of an unknown update
        ("olmo_core", OLMO, "train/CE loss", [(0, 10.81), (999, 3.4)], {}),
        ("olmo_core", OLMO, "eval/lm/c4-validation/CE loss", [(1000, 3.52)], {}),
        ("trainer_output", TRAINER, "eval_loss", [(0, 22.19), (7, 18.21)], {}),
        ("trainer_output", TRAINER, "loss", [(5, 25.73)], {}),
    ],
)
def test_lines_of_a_program(
    format: str, printed: str, metric: str, points: list[tuple[int, float]], facts: dict[str, float], tmp_path: Path
) -> None:
    (tmp_path / "run.log").write_text(printed)
    (run,) = importer(format).read(str(tmp_path), settings(metric=metric, tokens_per_example=32), [])
    assert list(zip(run.axis, run.values, strict=True)) == points
    assert run.facts == facts
    assert run.unit == "step"


@pytest.mark.parametrize(
    ("format", "printed"),
    [("nanogpt", NANOGPT), ("modded_nanogpt", MODDED), ("torchtitan", TITAN), ("megatron", MEGATRON),
     ("litgpt", LITGPT), ("olmo_core", OLMO), ("trainer_output", TRAINER)],
)  # fmt: skip
def test_a_program_is_recognised_by_its_lines(format: str, printed: str, tmp_path: Path) -> None:
    (tmp_path / "run.out").write_text(printed)
    (tmp_path / "notes.txt").write_text("a run of mine, step 3: loss was fine")
    assert detect([str(tmp_path)], settings())[0] == format
    (tmp_path / "notes.out").write_text("{'eval_loss': 2.0, 'epoch': 1}\n" * 2)  # of a Trainer without a bar
    (tmp_path / "trainer_state.json").touch()
    assert detect([str(tmp_path)], settings())[0] == "huggingface"


def test_a_printed_log_is_imported_with_what_the_program_says_of_itself(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "one.txt").write_text(NANOGPT)
    columns = {"lr": "config.learning_rate"}
    wanted = settings(metric="val_loss", constants={"optimizer": "adamw"}, columns=columns, tokens_per_example=32)
    (trial,) = import_runs([tmp_path / "in"], tmp_path / "out", wanted).trials
    assert (trial.config.batch_size, trial.config.lr) == (32, 1e-3)
    assert [(row.step, row.value) for row in trial.evaluations] == [(0, 5.4168), (250, 4.9843)]
    other = settings(metric="val_loss", constants={"optimizer": "adamw", "batch_size": "8"}, columns=columns,
                     tokens_per_example=32)  # fmt: skip
    with pytest.raises(DataError, match="batch_size"):
        import_runs([tmp_path / "in"], tmp_path / "other", other)


@pytest.mark.parametrize(
    ("format", "printed", "said"),
    [
        ("trainer_output", "{'eval_loss': 2.0, 'epoch': 1}\n" * 2, "leave out --disable_tqdm"),
        ("trainer_output", TRAINER.replace("'epoch': 0.22", "'epoch': 0.9"), "another bar is mixed in"),
        ("megatron", MEGATRON.replace("size:     8", "size:    16", 1), "batch_size of an update is 16 at first and 8"),
        ("nanogpt", NANOGPT, "1024 tokens, which are compared .* give block_size as --tokens-per-example"),
    ],
)
def test_output_that_leaves_step_or_batch_size_open_is_refused(
    format: str, printed: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "run.log").write_text(printed)
    with pytest.raises(DataError, match=said):
        list(importer(format).read(str(tmp_path), settings(), []))


def test_dictionaries_without_a_bar_are_recognised_and_read_by_their_epochs(tmp_path: Path) -> None:
    """Epochs of 100 examples at batch size 8: 13 updates each, the last of 4 examples."""
    lines = [f"{{'loss': 3.5, 'epoch': {at - 0.5}}}\n{{'eval_loss': {4.0 - at}, 'epoch': {at}.0}}\n" for at in (1, 2)]
    (tmp_path / "run.log").write_text("".join(lines))
    known = {"constants": {"optimizer": "adamw", "lr": "1e-3", "batch_size": "8"}, "metric": "eval_loss"}
    with pytest.raises(DataError, match=r"no step, .* leave out --disable_tqdm.*--examples-per-epoch N"):
        import_runs([tmp_path], tmp_path / "none", settings(**known))
    asked = settings(**known, columns={"step": "epoch"}, examples_per_epoch=100)
    found = import_runs([tmp_path], tmp_path / "out", asked)
    assert found.format == "trainer_output"
    assert [(row.step, row.value) for row in found.trials[0].evaluations] == [(13, 3.0), (26, 2.0)]


def test_each_of_several_validation_sets_has_its_own_name(tmp_path: Path) -> None:
    one = " validation loss at iteration 1000 | lm loss value: 6.439325E+00 |"
    two = "".join(one.replace("validation", f"validation-{at}").replace("6.4", f"{at}.4") + "\n" for at in (0, 1))
    (tmp_path / "run.log").write_text(MEGATRON.replace(one, two))
    for metric, points in (("val_loss_0", [0.439325]), ("val_loss_1", [1.439325]), ("val_loss", [])):
        (run,) = importer("megatron").read(str(tmp_path), settings(metric=metric), [])
        assert (list(run.axis), list(run.values)) == ([1000] * len(points), points)
    assert {each for each in run.metrics if each.startswith("val")} == {"val_loss_0", "val_loss_1"}

"""Patterns of the user's own for what programs print, on lines of real programs."""

from pathlib import Path

import pytest

from analysis.read.importers.base import importer
from cbs.errors import ConfigError, DataError
from tests.analysis.read.importers.sources import settings

NANOGPT = """Overriding: learning_rate = 0.001
tokens per iteration will be: 1,024
step 0: train loss 5.5034, val loss 5.4168
iter 0: loss 5.4717, time 30.79ms, mfu -100.00%
step 250: train loss 4.9758, val loss 4.9843
saving checkpoint to out
iter 250: loss nan, time 15.53ms, mfu 0.01%
"""
FAIRSEQ = """2026-01-01 10:00:00 | INFO | train_inner | {"epoch": 1, "loss": "8.1", "num_updates": "500", "lr": "0.1"}
2026-01-01 10:00:09 | INFO | valid | {"epoch": 1, "valid_loss": "7.25", "valid_num_updates": "500"}
"""
NANOCHAT = """step 00250/21400 (1.17%) | loss: 3.100000 | lrm: 1.00 | dt: 500.00ms
Step 00250 | Validation bpb: 0.9500
"""
NEOX = """ iteration     1000/  320000 | learning rate: 6.000E-04 | lm_loss: 3.100000E+00 | loss scale: 65536.0 |
 validation results at iteration 1000 | lm_loss value: 3.200000E+00 | lm_loss_ppl value: 2.453253E+01 |
"""


@pytest.mark.parametrize(
    ("format", "printed", "metric", "points"),
    [
        ("stdout(step=step, metric=val loss)", NANOGPT, "val_loss", [(0, 5.4168), (250, 4.9843)]),
        # fairseq with --log-format json, llm.c, nanochat and GPT-NeoX
        (r'stdout(step="valid_num_updates": "(\d+)", metric="valid_loss": "([\d.]+)")', FAIRSEQ, "x", [(500, 7.25)]),
        (
            "stdout(step=s:, metric=tel:)",
            "s:0 tel:10.9\ns:1 trl:10.8 lr:0.1 norm:2\ns:250 tel:6.5\n",
            "x",
            [(0, 10.9), (250, 6.5)],
        ),
        ("stdout(step=Step, metric=Validation bpb:)", NANOCHAT, "x", [(250, 0.95)]),
        ("stdout(step=at iteration, metric=lm_loss value:)", NEOX, "x", [(1000, 3.2)]),
        ("stdout(metric=val loss ([0-9.]+), examples='step')", NANOGPT, "x", [(0, 5.4168), (250, 4.9843)]),
    ],
)
def test_lines_of_a_program(
    format: str, printed: str, metric: str, points: list[tuple[int, float]], tmp_path: Path
) -> None:
    (tmp_path / "run.log").write_text(printed)
    (run,) = importer(format).read(str(tmp_path), settings(metric=metric, tokens_per_example=32), [])
    assert list(zip(run.axis, run.values, strict=True)) == points
    assert not run.facts
    assert run.unit == ("examples" if "examples" in format else "step")


@pytest.mark.parametrize(
    ("format", "printed", "said"),
    [
        ("stdout(step=iter, metric=val loss)", NANOGPT, r"found in one line; of 7: step= in 3, metric= in 2"),
        ("stdout(step=step, metric=loss)", NANOGPT, r"metric= finds 5.4168 and 5.5034 in 'step 0: train"),
    ],
)
def test_output_that_leaves_step_or_batch_size_open_is_refused(
    format: str, printed: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "run.log").write_text(printed)
    with pytest.raises(DataError, match=said):
        list(importer(format).read(str(tmp_path), settings(), []))


@pytest.mark.parametrize(
    ("format", "said"),
    [
        ("stdout", "write stdout"),
        ("stdout(step=x)", "write stdout"),
        ("stdout(step=st(ep, metric=x)", "step=st.ep is no regular expression"),
        ("stdout(step=(a)(b), metric=x)", "has 2 groups"),
        ("csv(step=x)", "takes nothing in parentheses"),
        ("jsnol", "did you mean jsonl"),
    ],
)
def test_a_format_that_cannot_be_meant_is_refused(format: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        importer(format)

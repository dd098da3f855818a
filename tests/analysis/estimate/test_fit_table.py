"""``cbs fit``: published tables end to end, round trips, and tables that are broken."""

import io
import json
import math
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

import cli
from analysis import present
from analysis.config import AnalysisConfig
from analysis.estimate.diagnosis import Verdict
from analysis.questions.fit.table_fit import fit_table
from cbs.errors import CbsError, ConfigError, DataError
from tests.certified import kaplan2020, zhang2024

QUICK = AnalysisConfig(resamples=100)
SIZES = (8, 16, 32, 64, 128, 256, 512)
CLOSE = 0.03  # Relative error of values of exact steps: the prior and the draws leave about 1 %


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write(content: str | bytes, name: str = "steps.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def curve(min_steps: float = 175.0, min_examples: float = 7381.0, sizes: Sequence[float] = SIZES) -> str:
    return "batch_size,steps\n" + "".join(f"{b},{min_steps + min_examples / b:.12g}\n" for b in sizes)


def command(*arguments: str) -> Any:
    result = CliRunner().invoke(cli.application(), ["fit", *arguments])
    if result.exception:
        raise result.exception
    return result.stdout


@pytest.mark.parametrize(("every", "coarse"), [(1, False), (50, False), (200, True)])
def test_steps_read_at_every_so_many_are_judged_by_how_many(every: int, coarse: bool) -> None:
    """Rounded up to a multiple of 200, steps down to 1000 are 10 % too large there and less elsewhere."""
    rng = np.random.default_rng(0)
    rows = [(b, seed, 1000 * (1 + 64 / b) * math.exp(rng.normal(0, 0.03))) for b in SIZES for seed in range(3)]
    table = pd.DataFrame(rows, columns=["batch_size", "seed", "steps"])
    (answer,) = fit_table(table.assign(steps=np.ceil(table["steps"] / every) * every), QUICK).answers
    assert (answer.verdict == "evaluations too rare") is coarse


def test_a_plateau_and_perfect_scaling_alone_bound_from_one_side() -> None:
    rng = np.random.default_rng(0)
    rows = [(b, seed, 1000 * (1 + 0.1 / b) * math.exp(rng.normal(0, 0.03))) for b in SIZES for seed in range(3)]
    flat = fit_table(pd.DataFrame(rows, columns=["batch_size", "seed", "steps"]), QUICK).answers[0]
    assert (flat.critical.value, flat.critical.interval[0], flat.verdict) == (None, None, Verdict.BELOW)
    steep = fit_table(pd.DataFrame({"batch_size": SIZES, "steps": [2**20 / b for b in SIZES]}), QUICK).answers[0]
    assert (steep.critical.value, steep.critical.interval[1], steep.verdict) == (None, None, Verdict.COARSE_STEPS)


def test_a_common_divisor_of_few_steps_may_be_chance() -> None:
    table = pd.DataFrame({"batch_size": [8, 16, 32], "steps": [4000, 2000, 1000]})
    assert "fewer steps" not in fit_table(table, QUICK).answers[0].advice
    table.loc[3] = [64, 1000]
    assert "fewer steps" not in fit_table(table, QUICK).answers[0].advice
    table.loc[4] = [128, 800]
    assert (
        "at batch size 32, 64, 128, because nothing was measured in between"
        in fit_table(table, QUICK).answers[0].advice
    )


def test_a_budget_that_is_given_as_steps_is_asked_about() -> None:
    rows = [(b, seed, min(1000 * (1 + 64 / b) + seed, 4000)) for b in SIZES for seed in range(3)]
    table = pd.DataFrame(rows, columns=["batch_size", "seed", "steps"])
    with pytest.raises(DataError, match="row 1: steps is 4000 in 6 rows, at batch size 8, 16, and larger nowhere"):
        fit_table(table, QUICK)
    assert fit_table(table.assign(censored=table["steps"] == 4000), QUICK).answers[0].points[0].status != "REACHED"
    assert fit_table(table.assign(censored=False), QUICK).answers[0].points[0].reached
    assert fit_table(table.assign(steps=500), QUICK).answers[0].points[0].reached


def test_a_column_that_says_how_runs_ended_is_not_passed_over() -> None:
    table = pd.read_csv(io.StringIO(curve()))
    mixed = table.assign(Status=["ok"] * (len(table) - 1) + ["diverged"])
    with pytest.raises(DataError, match=r"column 'Status' distinguishes rows.*censored"):
        fit_table(mixed, QUICK)
    assert "columns that are not used: Status" in fit_table(table.assign(Status="ok"), QUICK).notes


@pytest.mark.parametrize(
    ("steps", "noted"), [("12.327", True), ("990", False), ("1574.327", False), ("12.3271", False)]
)
def test_a_point_that_may_be_a_thousands_separator_is_named(
    write: Callable[..., Path], steps: str, noted: bool
) -> None:
    found = fit_table(write(f"batch_size,steps\n8,{steps}\n16,11\n32,10\n"), QUICK, unit="images")
    assert (
        f"steps {float(steps):g} is not whole: the point is read as a decimal point" in "".join(found.notes)
    ) == noted


def test_published_fits_end_to_end(write: Callable[..., Path]) -> None:
    """The rows of Zhang et al. give the a, b, b/a and critical batch size their notebook prints, within what the draws
    leave open."""
    lines = [
        f"{row.model},{size},{steps}"
        for row in zhang2024.ROWS
        for size, steps in zip(zhang2024.BATCH_SIZES, row.steps, strict=True)
    ]
    path = write("\n".join(["group,batch_size,steps", *lines]))
    options = {"overhead": 0.2, "reference_batch": 256.0, "hyperbola": True}
    config = AnalysisConfig(definition="overhead", options={"overhead": options}, resamples=100)
    fits = present.to_json(fit_table(path, config))["fits"]
    assert [fit["group"] for fit in fits] == [row.model for row in zhang2024.ROWS]
    for fit, row in zip(fits, zhang2024.ROWS, strict=True):
        assert (fit["definition"], fit["options"]) == ("overhead", options)
        for name, value in (("min_steps", row.a), ("min_examples", row.b), ("critical_batch_size", row.ratio)):
            low, high = fit["hyperbola"][f"{name}_interval"]
            assert fit["hyperbola"][name] == pytest.approx(value, rel=CLOSE)
            assert low < value < high
        assert fit["critical_batch_size"] == pytest.approx(row.overhead, rel=CLOSE)
        assert fit["interval"][0] < row.overhead < fit["interval"][1]
        assert (fit["optimizer"], len(fit["points"]), fit["verdict"]) == (None, 9, "too few seeds")


def test_the_values_in_the_guide_are_what_the_command_prints(write: Callable[..., Path]) -> None:
    page = (Path(__file__).parents[3] / "docs" / "definitions.md").read_text()
    blocks = [text for _, text in re.findall(r"^```(\w*)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)]
    path = write(next(block for block in blocks if block.startswith("batch_size,steps")))
    out = command(str(path), "--unit", "sequences", "--wide")
    said = re.findall(r"`(\w+)`(?: gives)? ([\d,]*\d)", page.partition("##")[0])
    assert len(said) == 2
    for name, number in said:
        assert re.search(rf"{name}( \(.*\))? +{number} \[", out), name


def test_the_law_of_kaplan_comes_back() -> None:
    """Curves made from the law in tokens: values and the doubling per 13 % are those of the paper, nearly."""
    law = kaplan2020
    losses = [*(loss for loss, _ in law.VALUES), 2.0 * (1.0 - law.DROP)]
    sizes = np.geomspace(2e5, 1e8, 9)
    frames = []
    for loss in losses:
        critical = law.B_STAR / loss ** (1 / law.ALPHA)
        frames.append(pd.DataFrame({"batch_size": sizes, "steps": 5e3 * (1 + critical / sizes), "target": loss}))
    fitted = fit_table(pd.concat(frames), AnalysisConfig(definition="kaplan", resamples=100), unit="tokens")
    fits = {fit["target"]: fit for fit in fitted.to_json()["fits"]}
    for loss, printed in law.VALUES:
        assert fits[loss]["critical_batch_size"] == pytest.approx(float(printed), rel=CLOSE)
    ratio = fits[losses[2]]["critical_batch_size"] / fits[2.0]["critical_batch_size"]
    assert ratio == pytest.approx(law.FACTOR, rel=0.05)  # "for every 13 %" is rounded: 1.94


def test_formats_give_the_same_answer(write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    text = curve()
    frame = pd.read_csv(io.StringIO(text))
    parquet = write(b"", "steps.parquet")
    frame.to_parquet(parquet)
    sources = [
        write(text),
        write(text.replace(",", "\t"), "steps.tsv"),
        write(text.replace(",", "\t"), "tabs.txt"),
        write("\ufeff" + text, "bom.csv"),
        write(text.replace("\n", "\r\n"), "windows.csv"),
        write("\n" + text.replace("\n", "\n\n") + ",\n", "blank.csv"),
        write(text.replace("batch_size,", ' "batch_size" ,'.strip() + "").replace(",steps", ", steps"), "spaces.csv"),
        parquet,
        frame,
    ]
    found = [fit_table(source, QUICK).answers[0].critical_batch_size for source in sources]
    assert found == pytest.approx([found[0]] * len(found))
    assert found[0] == pytest.approx(7381 / 175, rel=CLOSE)
    for piped in (text.encode(), parquet.read_bytes()):
        monkeypatch.setattr(sys, "stdin", type("Pipe", (), {"buffer": io.BytesIO(piped)}))
        assert fit_table("-", QUICK).answers[0].critical_batch_size == pytest.approx(found[0])


def test_columns_of_other_names_and_units(write: Callable[..., Path]) -> None:
    path = write(curve().replace("batch_size,steps", "global,updates"))
    out = command(str(path), "--column", "batch_size=global", "--column", "steps=updates", "--unit", "sequences")
    assert "in sequences" in out
    fit = json.loads(command(str(path), "--column", "batch_size=global", "--column", "steps=updates", "--json"))
    assert fit["unit"] == "examples (as in the table)"
    for option, words in (("steps", "OURS=THEIRS"), ("step=updates", "no column 'step'"), ("steps=x", "no column 'x'")):
        with pytest.raises(ConfigError, match=words):
            command(str(path), "--column", option)


def test_groups_optimizers_seeds_learning_rates_and_targets() -> None:
    rng = np.random.default_rng(3)
    rows = [
        {
            "optimizer": optimizer,
            "batch_size": size,
            "seed": seed,
            "lr": lr,
            "target": target,
            "steps": scale * (175 + 7381 / size) * (1 + math.log(lr / 2e-3) ** 2) * math.exp(0.03 * rng.normal()),
            "tokens_per_example": 32,
        }
        for optimizer, scale in (("adamw", 1.0), ("muon", 0.5))
        for target in (2.4, 2.8)
        for size in SIZES
        for seed in range(3)
        for lr in (1e-3, 2e-3, 4e-3)
    ]
    fitted = fit_table(pd.DataFrame(rows), QUICK, unit="sequences")
    fits = fitted.to_json()["fits"]
    assert [(fit["optimizer"], fit["target"]) for fit in fits] == [
        (name, target) for name in ("adamw", "muon") for target in (2.4, 2.8)
    ]
    for fit in fits:
        assert fit["verdict"] == "ok"
        assert fit["interval"][0] < 7381 / 175 < fit["interval"][1]
        assert [point["best_lr"] for point in fit["points"]] == [2e-3] * len(SIZES)
        assert {point["seeds"] for point in fit["points"]} == {3}
        assert fit["tokens_per_example"] == 32
    shown = Console(width=120, file=io.StringIO())
    present.show(fitted, shown, wide=True)
    text = shown.file.getvalue()
    assert re.search(r"muon +2\.8 ", text)
    assert "law, over 2 targets" in " ".join(text.split())
    assert "B_simple" not in text
    edge = fit_table(pd.DataFrame([row for row in rows if row["lr"] <= 2e-3]), QUICK)
    assert edge.answers[0].verdict == "LR optimum at edge of grid"


def test_a_table_with_the_best_learning_rate_alone_has_no_edge() -> None:
    frame = pd.read_csv(io.StringIO(curve())).assign(lr=1e-3)
    fit = fit_table(frame, QUICK).to_json()["fits"][0]
    assert (fit["verdict"], fit["points"][0]["at_grid_edge"]) == ("too few seeds", None)
    assert fit_table(frame.drop(columns="lr"), QUICK).to_json()["fits"][0]["points"] == fit["points"]


def test_what_was_not_reached_is_shown_as_that() -> None:
    frame = pd.read_csv(io.StringIO(curve()))
    frame["censored"] = [False] * 5 + [True, False]
    frame["steps"] = [*frame["steps"][:5], 120.0, np.nan]
    (answer,) = fit_table(frame, QUICK).answers
    assert [point.reached for point in answer.points] == [True] * 5 + [False, False]
    assert [point.steps_lower_bound for point in answer.points[5:]] == [120.0, None]
    assert "not reached at batch size 256" in answer.advice
    nothing = fit_table(frame.assign(censored=True), QUICK)
    assert nothing.answers[0].verdict == "target not reached"
    assert nothing.to_json()["fits"][0]["critical_batch_size"] is None
    shown = Console(width=100, file=io.StringIO())
    present.show(nothing, shown)
    assert "every row is censored" in " ".join(shown.file.getvalue().split())


LINES = curve().splitlines()
BROKEN: dict[str, tuple[str | bytes, str]] = {
    "empty": (b"", "is empty; it needs a header line"),
    "blank": ("\n  \n", "is empty"),
    "header alone": ("batch_size,steps\n", "has a header and no rows"),
    "missing column": ("batch_size,time\n8,3\n", "has no column 'steps'.*--column steps=NAME"),
    "tokens": (
        "batch_tokens,steps\n8,3\n",
        "if 'batch_tokens' holds examples.*--column batch_size=batch_tokens.*--unit",
    ),
    "examples": (
        "batch_size,examples\n8,3\n",
        "if 'examples' is what was trained on .* pass --column 'steps=examples/batch_size'",
    ),
    "scatter": ("batch_size,steps_std\n8,3\n", "pass --column steps=NAME"),
    "logarithm": ("log2_batch_size,steps\n3,3\n", "pass --column batch_size=NAME"),
    "JSON": ("[\n [8, 3]]", "line 1: not a JSON object; write one per line"),
    "quotes": ("batch size,steps\n8,3\n", "pass --column 'batch_size=batch size'"),
    "close name": ("batchsize,steps\n8,3\n", "--column batch_size=batchsize"),
    "two columns of a name": ("batch_size,steps,steps\n8,3,3\n", "line 1: two columns are called 'steps'"),
    "negative steps": (f"{LINES[0]}\n8,100\n16,-3\n", "line 3, column 'steps': '-3' must be above 0; leave"),
    "zero batch size": (f"{LINES[0]}\n8,100\n\n0,3\n", "line 4, column 'batch_size': '0' must be above 0"),
    "empty batch size": (f"{LINES[0]}\n8,100\n,3\n", "line 3, column 'batch_size': it is empty; every row"),
    "suffix": (f"{LINES[0]}\n4k,100\n", "line 2, column 'batch_size': '4k' is not a number; write the number in full"),
    "thousands": (f'{LINES[0]}\n8,"46,000"\n', "line 2, column 'steps': '46,000' is not a number; .*thousands"),
    "words": (f"{LINES[0]}\n8,many\n", "line 2, column 'steps': 'many' is not a number; write a plain number"),
    "NaN": (f"{LINES[0]}\n8,100\n16,NaN\n", "line 3, column 'steps': 'NaN' is not a finite number; leave"),
    "infinite": (f"{LINES[0]}\n8,1e999\n", "not a finite number"),
    "beyond": (f"{LINES[0]}\n8,1e300\n", "out of range"),
    "duplicate": (f"{LINES[0]}\n8,100\n16,60\n8,100\n", "line 4: repeats line 2; remove it"),
    "repeated": (f"{LINES[0]}\n8,100\n16,60\n8,101\n", "line 4: .*batch size 8 already exists.*column seed"),
    "same seed": (
        "batch_size,steps,seed\n8,100,1\n8,101,1\n",
        "line 3: .*seed 1 already exists, in line 2.*--column lr=",
    ),
    "no seed": ("batch_size,steps,seed\n8,100,\n16,60,1\n", "line 2, column 'seed': it is empty; number the runs"),
    "no target": ("batch_size,steps,target\n8,100,2.4\n16,60,\n", "line 3, column 'target': it is empty"),
    "one batch size": (f"{LINES[0]}\n8,100\n", "line 2: the table has one batch size, 8; a fit needs two"),
    "one of one": (
        "optimizer,batch_size,steps\nadamw,8,100\nadamw,16,60\nsgd,8,3\n",
        "line 4: optimizer 'sgd' has one batch size",
    ),
    "censored": ("batch_size,steps,censored\n8,100,maybe\n", "line 2, column 'censored': 'maybe' is neither"),
    "tokens per example": (
        "batch_size,steps,tokens_per_example\n8,1,1.5\n",
        "line 2, column 'tokens_per_example': '1.5' is not a whole number",
    ),
    "tokens differ": ("batch_size,steps,tokens_per_example\n8,9,4\n16,5,8\n", "line 3: .* differs from line 2"),
    "ragged": (f"{LINES[0]}\n8,100,3\n", "line 2: 3 cells where the header has 2"),
    "bars": (curve().replace(",", "|"), "line 1: .*separated by bars"),
    "spaces": (curve().replace(",", " "), "line 1: .*separated by spaces"),
    "binary": (bytes(range(256)), "line 1: not UTF-8|line 2: not UTF-8"),
    "zeros": (b"batch_size,steps\n8,\0\n", "line 2: holds binary data"),
    "UTF-16": (curve().encode("utf-16"), "not UTF-8 text; save the table as CSV in UTF-8"),
    "Parquet in name": (b"PAR1 and no more", "is not a Parquet file"),
    "a huge cell": (f'{LINES[0]}\n"{"x" * 200_000}",1\n', "line 2: not CSV"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_tables_name_file_row_and_remedy(case: str, write: Callable[..., Path]) -> None:
    content, words = BROKEN[case]
    path = write(content)
    with pytest.raises(DataError, match=words) as caught:
        fit_table(path, QUICK)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400 + len(str(path))


def test_what_is_not_a_file(tmp_path: Path) -> None:
    for source in (tmp_path, tmp_path / "none.csv", "a\0b"):
        with pytest.raises(DataError, match=r"cannot read .*pass a CSV"):
            fit_table(source, QUICK)
    (tmp_path / "x.parquet").write_text(curve())
    with pytest.raises(DataError, match="not a Parquet"):
        fit_table(tmp_path / "x.parquet", QUICK)
    with pytest.raises(ConfigError, match="--unit must be a word"):
        fit_table(pd.read_csv(io.StringIO(curve())), QUICK, unit="")


def test_a_table_in_memory_names_its_rows() -> None:
    with pytest.raises(DataError, match="the table, row 2, column 'batch_size': -1 must be above 0"):
        fit_table(pd.DataFrame({"batch_size": [1, -1], "steps": [1, 2]}), QUICK)
    with pytest.raises(DataError, match=r"row 1, column 'steps': True is not a number"):
        fit_table(pd.DataFrame({"batch_size": [1, 2], "steps": [True, False]}), QUICK)
    with pytest.raises(DataError, match=r"row 1, column 'steps': .* is not a"):
        fit_table(pd.DataFrame({"batch_size": [1, 2], "steps": pd.Series([10**400, 2], dtype=object)}), QUICK)


@pytest.mark.usefixtures("whole_figures")
@pytest.mark.parametrize("suffix", [".pdf", ".png"])
def test_the_figure_is_one_file(write: Callable[..., Path], tmp_path: Path, suffix: str) -> None:
    frame = pd.read_csv(io.StringIO(curve()))
    table = pd.concat(frame.assign(optimizer=name, target=t) for name in ("a_$b", "_c") for t in (2.0, 3.0))
    path = write(table.to_csv(index=False))
    command(str(path), "--figure", str(tmp_path / f"steps{suffix}"), "--resamples", "100")
    content = (tmp_path / f"steps{suffix}").read_bytes()
    assert content.startswith(b"%PDF" if suffix == ".pdf" else b"\x89PNG")
    assert sorted(tmp_path.iterdir()) == sorted([path, tmp_path / f"steps{suffix}"])
    assert path.read_text() == table.to_csv(index=False)


def test_a_figure_that_cannot_be_written(write: Callable[..., Path], tmp_path: Path) -> None:
    path = write(curve())
    for figure, words in (("x.svg", "a .pdf or a .png"), ("steps.csv/x.pdf", "cannot write the figure")):
        with pytest.raises(CbsError, match=words):
            command(str(path), "--figure", str(tmp_path / figure), "--resamples", "100")


@pytest.mark.parametrize(
    ("steps", "told"), [([4, 4, 5, 7], 1), ([40, 40, 40, 40], 1), ([40, 30, 31, 32], 0), ([4.0, 4.5, 5.0, 7.0], 0)]
)
def test_steps_that_never_fall_may_be_epochs(steps: list[float], told: int) -> None:
    table = pd.DataFrame({"batch_size": [32, 64, 128, 256], "steps": steps})
    notes = [note for note in fit_table(table, QUICK).notes if "epochs" in note]
    assert [("steps*N/batch_size" in note, "--examples-per-epoch N" in note) for note in notes] == [(True, True)] * told


@settings(deadline=None, max_examples=10)
@given(st.floats(1.0, 1e6), st.floats(18.0, 256.0), st.integers(0, 2))
def test_exact_curves_come_back(min_steps: float, critical: float, fewer: int) -> None:
    frame = pd.read_csv(io.StringIO(curve(min_steps, min_steps * critical, (4, *SIZES, 1024)[fewer:])))
    (answer,) = fit_table(frame, QUICK).answers
    assert answer.hyperbola.min_steps.value == pytest.approx(min_steps, rel=CLOSE)
    assert answer.critical_batch_size == pytest.approx(critical, rel=2 * CLOSE)

"""``cbs compare`` from a folder of results to tables, files, figures and one clear line."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.figure import Figure

from analysis import present
from analysis.config import AnalysisConfig
from analysis.present import in_one_piece
from analysis.present.figures import figures_of
from analysis.questions.compare.optimizers import compare
from analysis.read.throughput import Assumed
from cbs.errors import ConfigError, ResultsError
from cbs.trial.target import Target
from tests.factories import Truth, sweep

SIZES = (4, 16, 64, 256)
LRS = (1e-3, 2e-3, 4e-3)
NOISY = Truth(lr_at_1=2e-3, lr_power=0.0, noise=0.05)
MUON = dataclasses.replace(NOISY, min_steps=80.0, min_examples=4000.0)
ASSUMED = Assumed(examples_per_second=2000.0, max_batch_per_device=64, latency=0.02)
FAST = AnalysisConfig(resamples=100)
SITUATIONS = {
    "three optimizers": {"optimizers": {"adamw": NOISY, "muon": MUON, "sgd": NOISY}, "seeds": 2},
    "one optimizer": {"optimizers": {"adamw": NOISY}},
    "nothing reached": {"optimizers": {"adamw": NOISY, "muon": MUON}, "max_steps": 20},
    "one batch size": {"optimizers": {"adamw": NOISY, "muon": MUON}, "batch_sizes": (8,)},
    "two batch sizes": {"optimizers": {"adamw": NOISY, "muon": MUON}, "batch_sizes": (8, 64)},
    "partly reached": {"optimizers": {"adamw": NOISY, "muon": MUON}, "max_steps": 260},
}


RARE = ("one optimizer", "two batch sizes")


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=[pytest.mark.slow] * (name in RARE)) for name in SITUATIONS]
)
def situation(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    root = tmp_path_factory.mktemp("sweep")
    sweep(root, **{"batch_sizes": SIZES, "lrs": LRS, "growth": 1.5, **SITUATIONS[request.param]})
    return request.param, root


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("two")
    sweep(root, {"adamw": NOISY, "muon": MUON}, batch_sizes=SIZES, lrs=LRS, growth=1.5, seeds=2)
    (root / "throughput.csv").write_text(
        "batch_size,devices,seconds_per_step\n4,1,0.02\n64,1,0.05\n64,4,0.03\n256,4,0.035\n"
    )
    return root


def fits_on_the_page(figure: Figure) -> None:
    box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert box.x0 >= -0.01
    assert box.y0 >= -0.01
    assert box.x1 <= width + 0.01
    assert box.y1 <= height + 0.01


def written(report: present.Result, json_file: str, sketches: dict[str, Figure], out: Path) -> list[str]:
    """Write a report, check its files, and return the names of its figures."""
    files = present.write(report, out)
    text = (out / json_file).read_text()
    assert json.loads(text, parse_constant=pytest.fail) == present.to_json(report, files=files)
    assert {path.name for path in files} == {path.name for path in out.rglob("*") if path.is_file()}
    drawn = list(figures_of(report))
    assert list(sketches) == [picture.name for picture in drawn]
    for picture in drawn:
        fits_on_the_page(sketches[picture.name])
        table = out / "figures" / f"{picture.name}.csv"
        assert table.read_text() == picture.table.to_csv(index=False)  # drawing changed nothing
    return list(sketches)


def test_every_situation_is_compared_drawn_and_written_as_strict_json(
    situation: tuple, sketches: dict[str, Figure], tmp_path: Path
) -> None:
    name, root = situation
    drawn = written(compare(root, FAST, throughput=ASSUMED), "comparison.json", sketches, tmp_path / "out")
    absent = {"one optimizer": {"token_ratio"}, "nothing reached": {"token_ratio", "compute_time"}}
    absent["one batch size"] = {"compute_time"}
    assert set(drawn) == {"token_ratio", "compute_time"} - absent.get(name, set())
    for file in ("token_ratios.csv", "critical_batch_sizes.csv", "compute_time.csv"):
        assert {"sweep", "target"} <= set(pd.read_csv(tmp_path / "out" / file))


def test_compare_on_the_command_line(two: Path, run: Callable, tmp_path: Path) -> None:
    table = two / "throughput.csv"
    code, out, err = run("compare", two, "--throughput", table, "-o", tmp_path, "--resamples", 200, "--wide")
    assert (code, err) == (0, "")
    assert "Token ratio, validation loss < 2.4: examples adamw needs" in out
    assert "probability that it is larger than that of the other" in " ".join(out.split())
    assert "Least time" in out
    assert f"step times measured, from {table}" in " ".join(out.split())
    code, out, _ = run("compare", two, "--reference", "muon", "--figures", "none", "-o", tmp_path, "--json")
    found = json.loads(out)
    (comparison,) = found["comparisons"]
    assert (code, comparison["reference"]) == (0, "muon")
    assert (found["definition"], comparison["optimizers"]) == ("least_product", ["adamw", "muon"])
    assert comparison["compute_time"] == []
    pairs = {(pair["larger"], pair["smaller"]): pair["probability"] for pair in comparison["critical_batch_sizes"]}
    assert pairs["adamw", "muon"] + pairs["muon", "adamw"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["compare", "--reference", "lamb"], ["reference 'lamb'", "adamw, muon"]),
        (["compare", "--definition", "parreto"], ["parreto"]),
        (["compare", "--target", "9"], ["before the first step"]),
        (["compare", "--throughput", "missing.csv"], ["missing.csv"]),
        (["compare", "--throughput", "assumed(step_latency=1)"], ["examples_per_second_per_device=NUMBER"]),
    ],
)
def test_misuse_is_one_clear_line(two: Path, run: Callable, tmp_path: Path, arguments: list[str], words: list) -> None:
    command, *rest = arguments
    code, out, err = run(command, two, *rest, "-o", tmp_path / "out")
    assert (code, out) == (2, "")
    assert err.startswith("cbs: ")
    assert err.count("\n") == 1
    for word in words:
        assert word in err
    assert not (tmp_path / "out").exists()


def test_a_reference_that_one_sweep_lacks_is_said_there(two: Path, tmp_path: Path) -> None:
    sweep(tmp_path / "a", {"adamw": NOISY, "muon": MUON}, batch_sizes=SIZES, lrs=LRS, growth=1.5, name="a")
    sweep(tmp_path / "b", {"sgd": NOISY, "muon": MUON}, batch_sizes=SIZES, lrs=LRS, growth=1.5, name="b")
    report = compare(tmp_path, FAST, reference="sgd")
    by_sweep = {comparison.answers[0].group.sweep: comparison for comparison in report.comparisons}
    assert (by_sweep["a"].reference, by_sweep["b"].reference) == ("adamw", "sgd")
    assert "sgd is not among these optimizers: compared with adamw" in by_sweep["a"].notes
    assert by_sweep["a"].title == "a, validation loss < 2.4"
    with pytest.raises(ConfigError, match="lamb"):
        compare(tmp_path, FAST, reference="lamb")


def test_files_appear_together_or_not_at_all(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), in_one_piece(tmp_path / "out") as draft:  # noqa: PT012
        (draft / "half.csv").touch()
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(ResultsError, match="cannot write"), in_one_piece(tmp_path / "file" / "out"):
        pytest.fail("a folder inside a file")


def test_across_folders_optimizers_stand_side_by_side_and_what_differs_is_told(two: Path, tmp_path: Path) -> None:
    sweep(
        tmp_path / "c", {"sgd": NOISY, "muon": MUON}, batch_sizes=SIZES, lrs=LRS, growth=1.5, prune_factor=2, name="c"
    )
    (alone,) = compare(two, FAST).comparisons
    report = compare(two, FAST, others=[tmp_path / "c"])
    (joined,) = report.comparisons
    assert joined.optimizers == ("adamw", "muon, synthetic", "muon, c", "sgd")
    assert "the folders differ in prune_factor: 1.3 in synthetic, 2 in c" in report.notes
    assert joined.answers[0].interval == alone.answers[0].interval
    assert {ratio.optimizer for ratio in joined.token_ratios} == {"muon, synthetic", "muon, c", "sgd"}
    assert not any("differ" in note for note in compare(two, FAST).notes)


def test_across_folders_unlike_metrics_and_targets_are_one_line(
    two: Path, tmp_path: Path, run: Callable[..., tuple[int, str, str]]
) -> None:
    harder = Target(metric="validation_loss", value=2.0)
    sweep(tmp_path / "a", {"sgd": NOISY}, batch_sizes=SIZES, lrs=LRS, growth=1.5, target=harder, name="a")
    other = Target(metric="accuracy", value=2.4, direction="above")
    sweep(tmp_path / "b", {"sgd": NOISY}, batch_sizes=SIZES, lrs=LRS, growth=1.5, target=other, name="b")
    for folder, words in (("a", "validation_loss < 2 on synthetic in a"), ("b", "accuracy (above) in b")):
        code, out, err = run("compare", two, tmp_path / folder, "--figures", "none", "--resamples", 100)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert words in err
    code, out, _ = run("compare", two, tmp_path / "a", "--target", 2.6, "--resamples", 100, "-o", tmp_path / "out")
    assert code == 0
    assert "sgd" in out

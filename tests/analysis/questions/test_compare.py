"""``cbs compare`` from a folder of results to tables, files, figures and a clear line; ratios against closed forms."""

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from analysis import present
from analysis.config import AnalysisConfig
from analysis.estimate.diagnosis import Verdict
from analysis.estimate.estimates import answers
from analysis.estimate.result import Answer
from analysis.estimate.time_curves import undominated
from analysis.present import in_one_piece
from analysis.present.figures import figures_of
from analysis.questions.compare.optimizers import compare, critical_pairs, pick_reference, token_ratio
from analysis.questions.compare.tables import rising
from analysis.read.results import load
from analysis.read.throughput import Assumed
from cbs.errors import ConfigError, ResultsError
from cbs.registry.choices import Choice
from cbs.trial.target import Target
from tests.factories import Truth, sweep
from tests.references.comparison import undominated_by_pairs

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


def test_one_optimizer_has_no_columns_for_comparisons(tmp_path: Path, run: Callable) -> None:
    sweep(tmp_path, {"adamw": NOISY}, batch_sizes=SIZES, lrs=LRS, growth=1.5)
    out = run("compare", tmp_path, "--figures", "none", "--resamples", 100)[1]
    assert "B_crit" in out
    assert "the only optimizer" in " ".join(out.split())
    assert not [word for word in ("over adamw's", "P(larger)", "token ratio") if word in out]


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


COMPARED_SIZES = (2, 8, 32, 128, 512)

BASE = Truth(lr_at_1=2e-3, lr_power=0.0)
CLOSE = 1.5e-2  # No steps count as better known than to 1e-3


def read(root: Path, **options: object) -> list[Answer]:
    return answers(load(root), AnalysisConfig(**{"resamples": 500, **options}), noise=False)


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answer]:
    truth = dataclasses.replace(BASE, noise=0.05)
    return made(tmp_path_factory.mktemp("noisy"), {"muon": truth, "adamw": truth})


def made(root: Path, optimizers: dict[str, Truth], **options: object) -> dict[str, Answer]:
    sweep(root, optimizers, **{"batch_sizes": COMPARED_SIZES, "lrs": LRS, "seeds": 2, "growth": 1.5, **options})
    return {answer.group.optimizer: answer for answer in read(root)}


@given(points=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5)), min_size=1, max_size=12))
def test_the_frontier_is_what_no_other_point_beats(points: list[tuple[int, int]]) -> None:
    devices, seconds = (list(map(float, column)) for column in zip(*points, strict=True))
    assert undominated(np.array(devices), np.array(seconds)).tolist() == undominated_by_pairs(devices, seconds)


def test_without_noise_the_ratio_is_that_of_the_truths(tmp_path: Path) -> None:
    muon = dataclasses.replace(BASE, min_steps=80.0, min_examples=4000.0)
    found = made(tmp_path, {"adamw": BASE, "muon": muon})
    ratio = token_ratio(found["adamw"], found["muon"])
    for at in ratio.at:
        truth = (175 + 7381 / at.batch_size) / (80 + 4000 / at.batch_size)
        assert at.value == pytest.approx(truth, rel=CLOSE)
        assert at.measured == pytest.approx(truth)
        assert at.interval == (pytest.approx(truth, rel=CLOSE), pytest.approx(truth, rel=CLOSE))
    assert [at.batch_size for at in ratio.at] == list(COMPARED_SIZES)
    assert (ratio.curve[0].batch_size, ratio.curve[-1].batch_size) == (
        pytest.approx(COMPARED_SIZES[0]),
        pytest.approx(COMPARED_SIZES[-1]),
    )
    for at in ratio.curve:
        truth = (175 + 7381 / at.batch_size) / (80 + 4000 / at.batch_size)
        assert at.value == pytest.approx(truth, rel=CLOSE)
        assert at.interval == (pytest.approx(truth, rel=CLOSE), pytest.approx(truth, rel=CLOSE))
    assert ratio.probability_not_decreasing == 1.0, "50 examples is more than 42"
    assert token_ratio(found["muon"], found["adamw"]).probability_not_decreasing == 0.0


def test_the_interval_is_that_of_two_independent_curves(noisy: dict[str, Answer]) -> None:
    """The standard deviations of the draws of both logarithms add in squares."""
    ratio = token_ratio(noisy["adamw"], noisy["muon"])
    deviations = [noisy[name].draws.drawn(np.array(COMPARED_SIZES)).std(axis=0) for name in ("adamw", "muon")]
    for place, at in enumerate(ratio.at):
        low, high = at.interval
        width = math.log(high / low) / (2 * 1.96)
        both = math.hypot(*(part[place] for part in deviations))
        assert width == pytest.approx(both, rel=0.15), "500 draws: two 2.5 % tails to about 5 % each"


@pytest.mark.parametrize("edges", [{"at_grid_edge": True}, {"at_axis_edge": ("momentum",)}])
def test_an_optimum_at_the_edge_leaves_the_end_open_on_its_side(
    noisy: dict[str, Answer], edges: dict[str, Any]
) -> None:
    """The reference may need fewer examples than were measured, so that the ratio may be any lower."""
    muon, adamw = noisy["muon"], noisy["adamw"]
    edge = tuple(dataclasses.replace(point, **edges if point.batch_size == 32 else {}) for point in adamw.points)
    at_edge = dataclasses.replace(adamw, points=edge)
    whole = token_ratio(adamw, muon).at
    for found, side in ((token_ratio(at_edge, muon).at, 0), (token_ratio(muon, at_edge).at, 1)):
        for at in found:
            assert (at.interval[side] is None) is (at.batch_size == 32)
            assert at.interval[1 - side] is not None
    assert [at.value for at in token_ratio(at_edge, muon).at] == [at.value for at in whole]
    assert all(at.interval[0] is None and at.interval[1] > 0 for at in token_ratio(at_edge, muon).curve)


def test_only_batch_sizes_that_both_reached_are_compared(tmp_path: Path) -> None:
    sweep(tmp_path / "a", {"adamw": BASE}, batch_sizes=(2, 8, 32), lrs=LRS, growth=1.3, name="one")
    found = made(tmp_path / "b", {"adamw": BASE, "slow": dataclasses.replace(BASE, min_steps=600.0)}, max_steps=500)
    assert token_ratio(found["adamw"], found["slow"]).at == ()
    assert token_ratio(found["adamw"], found["slow"]).curve == ()
    assert token_ratio(found["adamw"], found["slow"]).probability_not_decreasing is None
    (single,) = read(tmp_path / "a")
    ratio = token_ratio(found["adamw"], single)
    assert [at.batch_size for at in ratio.at] == [32]
    assert ratio.probability_not_decreasing is None


def test_the_reference_is_the_one_asked_for_else_adamw_else_the_first(noisy: dict[str, Answer]) -> None:
    found = list(noisy.values())
    assert pick_reference(found, "muon").group.optimizer == "muon"
    assert pick_reference(found, None).group.optimizer == "adamw"
    assert pick_reference(found, "lamb").group.optimizer == "adamw"
    others = [answer for answer in found if answer.group.optimizer != "adamw"]
    assert pick_reference(others, None).group.optimizer == "muon"
    twins = [
        dataclasses.replace(
            answer,
            group=dataclasses.replace(
                answer.group, optimizer=f"adamw(eps={eps})", choice=Choice(name="adamw", options={"eps": eps})
            ),
        )
        for answer, eps in zip(found, (1, 2), strict=True)
    ]
    assert pick_reference(twins, "adamw(eps=2)").group.optimizer == "adamw(eps=2)"
    with pytest.raises(ConfigError, match="several optimizers"):
        pick_reference(twins, "adamw")


def test_what_is_told_of_two_optimizers_has_the_graver_verdict(noisy: dict[str, Answer]) -> None:
    for first, second, expected in (
        (Verdict.OK, Verdict.OK, Verdict.OK),
        (Verdict.OK, Verdict.FAR_SEED, Verdict.FAR_SEED),
        (Verdict.OFF_THE_CURVE, Verdict.FAR_SEED, Verdict.OFF_THE_CURVE),
    ):
        one, two = (dataclasses.replace(noisy["adamw"], verdict=each) for each in (first, second))
        assert {pair.verdict for pair in critical_pairs([one, two])} == {expected}
        ratio = token_ratio(one, two)
        assert ratio.verdict is expected
        assert (str(expected) in rising(ratio)) is (expected is not Verdict.OK)


def test_every_pair_is_compared_in_both_orders(noisy: dict[str, Answer]) -> None:
    found = {(pair.larger, pair.smaller): pair for pair in critical_pairs([*noisy.values()])}
    one, two = found["adamw", "muon"], found["muon", "adamw"]
    assert one.probability + two.probability == pytest.approx(1.0)
    assert one.ratio * two.ratio == pytest.approx(1.0, rel=0.05)
    assert one.interval[0] * two.interval[1] == pytest.approx(1.0, rel=0.1)
    sizes = [noisy[name].critical.drawn for name in ("adamw", "muon")]
    assert one.ratio == pytest.approx(np.median(sizes[0]) / np.median(sizes[1]), rel=0.1)
    width = math.log(one.interval[1] / one.interval[0]) / (2 * 1.96)
    assert width == pytest.approx(math.hypot(*(np.log(each).std() for each in sizes)), rel=0.2)

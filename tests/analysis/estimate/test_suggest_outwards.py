"""Where a sweep that finds its batch sizes goes on: outwards or not, on which side, with how many runs."""

from pathlib import Path
from unittest.mock import PropertyMock, patch

import pytest

from analysis.config import AnalysisConfig
from analysis.estimate.estimates import answers
from analysis.estimate.noise import NoiseScale
from analysis.estimate.result import Answer
from analysis.estimate.suggest import BEYOND, LEAST_OPEN, OPEN, Known, suggest
from analysis.estimate.suggest.design import MOST
from analysis.read.results import load
from tests.factories import Truth, sweep


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Answer:
    """Five batch sizes around the answer."""
    folder = tmp_path_factory.mktemp("measured")
    sweep(folder, {"adamw": Truth(noise=0.1)}, batch_sizes=(2, 8, 32, 128, 512), seeds=3, growth=1.3)
    return answers(load(folder), AnalysisConfig(resamples=300), noise=False)[0]


@pytest.mark.parametrize(
    ("noise", "sides"),
    [
        (3.0, ([4], [])),
        (-2.0, ([4], [])),
        (60.0, ([], [64])),
        # more than a factor of 16 away: a stride of 16
        (300.0, ([], [256])),
        (None, ([4], [64])),
    ],
)
def test_the_noise_scale_says_where_a_single_batch_size_goes_on(
    noise: float | None, sides: tuple[list[int], list[int]], tmp_path: Path
) -> None:
    sweep(tmp_path, batch_sizes=(16,), seeds=1, growth=1.3)
    (answer,) = answers(load(tmp_path), AnalysisConfig(resamples=300), noise=False)
    with patch.object(Answer, "noise_scale", PropertyMock(return_value=NoiseScale(value=noise))):
        assert Known(answer).sides(OPEN) == sides


@pytest.mark.parametrize(
    ("beyond", "sides"),
    [
        ((OPEN - 0.01, 0.1), ([], [])),
        ((OPEN + 0.01, 0.1), ([1], [])),
        ((0.1, OPEN + 0.01), ([], [2048])),
        ((0.45, 0.55), ([], [2048])),
    ],
)
def test_it_goes_outwards_on_the_side_where_the_answer_more_probably_lies(
    beyond: tuple[float, float], sides: tuple[list[int], list[int]], measured: Answer
) -> None:
    assert OPEN < 0.45 < BEYOND
    with patch.object(Known, "_beyond", return_value=beyond):
        assert Known(measured).sides(OPEN) == sides


def test_an_end_that_runs_at_the_measured_batch_sizes_do_not_close_is_looked_for_beyond_them(measured: Answer) -> None:
    with (
        patch.object(Known, "_beyond", return_value=(LEAST_OPEN, OPEN - 0.1)),
        patch.object(Known, "most_for_its_cost", return_value=None),
    ):
        assert Known(measured).asked_for() is None
        wished = suggest(measured)
    assert wished is not None
    assert max(wished.batch_sizes) == 2048


def test_seeds_are_no_help_where_the_answer_lies_beyond(measured: Answer) -> None:
    known = Known(measured, 0.01)
    for chance, helps in ((BEYOND - 0.01, True), (BEYOND + 0.01, False)):
        with patch.object(Known, "_beyond", return_value=(0.0, chance)):
            assert (known.most_for_its_cost() is not None) is helps


def test_busy_workers_get_as_many_runs_as_they_can_take(measured: Answer) -> None:
    few, many = suggest(measured, 0.01), suggest(measured, 0.01, most=4 * MOST, least=4 * MOST)
    assert few is not None
    assert many is not None
    assert len(few.missing) <= MOST
    assert len(many.missing) == 4 * MOST


def test_only_the_seeds_that_may_be_used(measured: Answer) -> None:
    assert Known(measured).seeds_up_to(5) == (0, 1, 2, 3, 4)
    assert Known(measured, allowed=(0, 1, 2, 9)).seeds_up_to(5) == (0, 1, 2, 9)
    found = suggest(measured, 0.01, seeds=(0, 1, 2))
    assert found is None or found.seeds == (0, 1, 2)

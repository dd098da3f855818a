"""Three pieces of examples against steps: continuous with their slopes, and found again from points on them."""

import numpy as np
import pytest

from analysis.questions.analyze.figures.pareto import LEAST, ThreePieces, three_pieces

TRUTH = ThreePieces(200.0, 600.0, (400.0, 900.0), 10_000.0, 0.05)


def test_pieces_meet_with_equal_slopes_and_are_what_the_formulas_say() -> None:
    for joint in TRUTH.joints:
        low, at, high = TRUTH.examples(joint + np.array([-1e-4, 0.0, 1e-4]))
        assert at == pytest.approx(low, rel=1e-6)
        assert (high - at) == pytest.approx(at - low, rel=1e-3)
    steps = np.array([250.0, 300.0, 350.0])
    inverse = TRUTH.examples(steps)
    ratio = (inverse[0] - inverse[1]) / (inverse[1] - inverse[2])  # of B / (S - S_min), whatever B_0
    assert ratio == pytest.approx((1 / 50 - 1 / 100) / (1 / 100 - 1 / 150))
    assert np.diff(TRUTH.examples(np.array([1000.0, 2000.0])))[0] / 1000 == pytest.approx(TRUTH.min_batch_size)
    assert TRUTH.examples(np.array([600.0]))[0] == 10_000.0
    assert TRUTH.best_batch_size == pytest.approx(10_000 / 600)


def test_points_on_pieces_give_them_back() -> None:
    steps = np.array([215.0, 240.0, 300.0, 380.0, 480.0, 600.0, 800.0, 1100.0, 1600.0, 2500.0])
    found = three_pieces(steps, TRUTH.examples(steps))
    assert found is not None
    np.testing.assert_allclose(found.examples(steps), TRUTH.examples(steps), rtol=0.01)
    assert found.best_batch_size == pytest.approx(TRUTH.best_batch_size, rel=0.05)
    assert found.min_batch_size == pytest.approx(TRUTH.min_batch_size, rel=0.1)


def test_six_parameters_need_more_points_than_six() -> None:
    steps = np.geomspace(215.0, 2500.0, LEAST - 1)
    assert three_pieces(steps, TRUTH.examples(steps)) is None

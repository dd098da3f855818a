"""What other forms of the curve say of an answer, and where they would be told apart."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy.integrate import quad

from analysis.config import AnalysisConfig
from analysis.estimate.curves import StepsCurve
from analysis.estimate.diagnosis import MAY_FALL, RISES, WIDE, Doubts, Verdict
from analysis.estimate.estimates import _doubts
from analysis.estimate.fitting import Fit, fit_curve
from analysis.estimate.fitting.bend import Bend
from analysis.estimate.fitting.data import Trials
from analysis.estimate.fitting.forms import FORMS
from analysis.estimate.fitting.other_forms import OtherForms, other_forms
from tests.analysis.estimate.test_diagnosis import verdict

SIZES = 2.0 ** np.arange(1, 9)


def fitted(steps: np.ndarray, noise: float, sizes: np.ndarray = SIZES, seed: int = 0) -> tuple[Fit, Doubts]:
    rng = np.random.default_rng(seed)
    tables = [Trials.of(np.exp(at + noise * rng.standard_normal((1, 3)))) for at in np.log(steps)]
    fit = fit_curve(sizes, tables, config=AnalysisConfig(resamples=600))
    return fit, _doubts(fit, (), tables, 0.95)


def test_beliefs_are_shares() -> None:
    assert sum(form.belief for form in FORMS) == pytest.approx(1.0)
    assert min(form.belief for form in FORMS) > 0


def test_the_likelihood_of_a_form_is_that_of_its_residuals_whatever_the_noise_is() -> None:
    """Against the integral over the standard deviation of a seed, with what the seeds say of it; the prior of
    the exponent counts as one residual more."""
    fit, _ = fitted(175 * (1 + 40 / SIZES) ** 1.3, 0.06)
    found = []
    for form in fit.forms:
        beyond = np.log(float(form.estimate.exponent)) - form.belief.whole.log_mean
        squares = fit.weights @ form.residuals**2 + form.deviation**2 * beyond**2 / form.belief.whole.variance
        both = squares + fit.seed_freedom * fit.seed_variance
        count = fit.seed_freedom + len(SIZES) - 2

        def density(log: float, both: float = float(both), count: float = count) -> float:
            return float(np.exp(-count * (log - np.log(0.06)) - both / (2 * np.exp(2 * log))))

        found.append(quad(density, np.log(0.06) - 2, np.log(0.06) + 3, epsabs=0)[0])
    shares = [form.form.belief * value for form, value in zip(fit.forms, found, strict=True)]
    assert [form.likelihood for form in fit.forms] == pytest.approx(np.array(found) / max(found), rel=0.02)
    assert [form.share for form in fit.forms] == pytest.approx(np.array(shares) / sum(shares), rel=0.02)
    assert min(found) < 0.7 * max(found)


def test_forms_are_named_with_what_they_say_and_where_they_differ() -> None:
    fit, _ = fitted(175 * (1 + 40 / SIZES), 0.06, seed=2)
    found = other_forms(fit)
    says = {form.form.words: float(form.estimate.critical) for form in fit.forms if form.likelihood >= 0.1}
    assert len(found.named) == 2
    assert [says[words] for words, _ in found.named] == [value for _, value in found.named]
    assert [value for _, value in found.named] == [min(says.values()), max(says.values())]
    assert found.deciding == (1, 1024)


def test_gaps_are_filled_and_nothing_is_asked_for_far_from_the_critical_batch_size() -> None:
    sizes = np.array([4.0, 32.0, 256.0])
    _, doubts = fitted(175 * (1 + 40 / sizes), 0.02, sizes)
    assert set(doubts.forms.deciding) <= {1, 11, 91, 1024}
    wide = 2.0 ** np.arange(0, 13)
    _, doubts = fitted(175 * (1 + 40 / wide), 0.02, wide)
    assert doubts.forms.deciding == ()


def test_batch_sizes_that_decide_do() -> None:
    """A blunt knee is read as it is once they have run."""

    def steps(sizes: np.ndarray) -> np.ndarray:
        return 175 * (1 + (2**0.7 - 1) * (40 / sizes) ** 0.7) ** (1 / 0.7)

    few, doubts = fitted(steps(SIZES), 0.02)
    more = np.array(sorted({*SIZES, *doubts.forms.deciding}))
    many, _ = fitted(steps(more), 0.02, more)
    blunt, power = (next(i for i, f in enumerate(FORMS) if f.knee == knee) for knee in (0.7, 1.0))

    def odds(fit: Fit) -> float:
        return fit.forms[blunt].likelihood / fit.forms[power].likelihood

    assert odds(many) > 2 * odds(few)


@pytest.mark.parametrize(
    ("sizes", "noise", "believed"), [(SIZES, 0.02, False), (SIZES[2:5], 0.001, True), (SIZES[2:6], 0.2, True)]
)
def test_whether_the_exponent_is_measured(sizes: np.ndarray, noise: float, believed: bool) -> None:
    """Never at three batch sizes; with more where the data know it to less than the 15 % of the belief."""
    _, doubts = fitted(175 * (1 + 40 / sizes), noise, sizes)
    assert doubts.exponent_from_prior is believed


def test_verdicts() -> None:
    told, falls = OtherForms((("its knee is blunt", 55.5),), (1, 1024)), Bend(MAY_FALL + 0.01, 0.1, 1.1, 0.8)
    found, advice = verdict(forms=told, bend=falls)
    assert found == "depends on the curve's form"
    assert "the exponent may fall towards large batch sizes (probability 0.21" in advice
    assert "from 1.1 at small to 0.8 at large batch sizes" in advice
    assert "if its knee is blunt, B_crit is 55.5; batch sizes 1 and 1024 would determine it best" in advice
    assert "more seeds would determine" in verdict(forms=dataclasses.replace(told, deciding=()), bend=falls)[1]
    assert (
        "the exponent rises from 1 at small to 1.6" in verdict(forms=told, bend=Bend(0.0, RISES + 0.001, 1.0, 1.6))[1]
    )
    assert verdict(forms=told, bend=Bend(MAY_FALL, RISES, 1.0, 1.2)) == (Verdict.OK, "")
    assert "the points do not determine the form of the curve: if its knee" in verdict(forms=told, bend=None)[1]
    assert verdict(forms=None, bend=falls) == (Verdict.OK, "")
    assert verdict(exponent_from_prior=True)[0] == "exponent from the prior"
    found, advice = verdict(ends=(10.0, 10.0 * WIDE))
    assert found == "interval too wide"
    assert "spans a factor of 10; four times as many seeds make that about 3.2" in advice
    assert verdict(ends=(10.0, 9.9 * WIDE)) == (Verdict.OK, "")


@pytest.mark.parametrize("knee", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("largest", [np.inf, 300.0])
def test_curves_of_other_forms_take_twice_their_fewest_steps_at_their_critical_batch_size(
    knee: float, largest: float
) -> None:
    curve = StepsCurve(*map(np.array, (np.log(175.0), np.log(40.0), 0.8, 40.0)), np.array(knee))
    curve = curve if np.isinf(largest) else curve.levelled(largest)
    fewest, at = curve.log_steps(np.array([1e20, float(curve.critical)]))
    assert float(curve.min_steps) == pytest.approx(np.exp(fewest), rel=1e-5)
    assert np.exp(at - fewest) == pytest.approx(2.0, rel=1e-5)
    assert np.exp(curve.log_sizes(at)) == pytest.approx(float(curve.critical))
    assert np.isnan(curve.log_sizes(fewest - 0.1))
    before = StepsCurve(*map(np.array, (np.log(175.0), np.log(40.0), 0.8, 40.0)), np.array(knee)).log_steps(SIZES)
    np.testing.assert_allclose(curve.log_steps(SIZES), before)


def test_a_curve_that_still_falls_steeply_is_not_levelled() -> None:
    curve = StepsCurve(*map(np.array, (np.log(175.0), np.log(40.0), 0.8, 40.0)))
    same = curve.levelled(32.0)
    assert (float(same.critical), float(same.largest), float(same.log_min_steps)) == (40.0, np.inf, np.log(175.0))


@pytest.mark.parametrize("knee", [0.7, 1.0, 1.5])
def test_the_batch_size_of_the_fewest_examples(knee: float) -> None:
    """On a grid; none where smaller is always cheaper."""
    curve = StepsCurve(*map(np.array, (np.log(175.0), np.log(40.0), 1.3, 40.0)), np.array(knee))
    grid = np.geomspace(1, 1000, 200_001)
    least = grid[np.argmin(np.log(grid) + curve.log_steps(grid))]
    assert np.exp(float(curve.log_cheapest)) == pytest.approx(least, rel=1e-3)
    assert np.isneginf(StepsCurve(*map(np.array, (0.0, 0.0, 0.9, 1.0)), np.array(knee)).log_cheapest)

"""Every definition on curves whose critical batch size is known, and what all of them share."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.config import AnalysisConfig
from analysis.estimate import study_fits
from analysis.estimate.curves import StepsCurve
from analysis.estimate.definitions import (
    DEFINITIONS,
    CurveSample,
    Definition,
    build,
    chosen,
    in_words,
    math_symbol,
    symbol,
)
from analysis.estimate.fitting import fit_curve, interval
from analysis.estimate.fitting.data import Trials
from analysis.estimate.fitting.exponent import Belief
from analysis.estimate.fitting.least_squares import FREE, HYPERBOLA, Exponent, fit_curves
from cbs.errors import ConfigError, UnknownNameError
from tests.certified import sato2025

SIZES = 2.0 ** np.arange(1, 11)
STEPS, EXAMPLES = 100.0, 6400.0
LOSSES = (3.0, 2.6, 2.2)
SHIFT = 1e-6
"""Relative, of fitted values: the fit stops at 1e-9 in ln B, and a shift of the grid it starts on costs as much."""

HELD = Belief(np.zeros(1), np.full(1, 1e-12), np.ones(1))
"""The hyperbola, all but."""


def sample(
    log_steps: np.ndarray, sizes: np.ndarray = SIZES, target: float | None = None, exponent: Exponent = HYPERBOLA
) -> CurveSample:
    """Rows ``[R, M]`` with the curve and the hyperbola fitted to each."""
    rows = np.atleast_2d(log_steps)
    fits = [fit_curves(sizes, rows, exponent=each) for each in (exponent, HYPERBOLA)]
    return CurveSample(sizes, rows, *fits, target)


def hyperbola(min_steps: float = STEPS, min_examples: float = EXAMPLES, sizes: np.ndarray = SIZES) -> np.ndarray:
    return np.log(min_steps + min_examples / sizes)


def picked(curve: StepsCurve, rows: np.ndarray) -> StepsCurve:
    return StepsCurve(*(getattr(curve, field.name)[rows] for field in dataclasses.fields(curve)))


def family(noise: float = 0.1, rows: int = 7, scale_steps: float = 1.0, scale_sizes: float = 1.0) -> list[CurveSample]:
    """Noisy curves at several targets, harder ones with larger critical batch sizes."""
    rng = np.random.default_rng(1)
    sizes = SIZES * scale_sizes
    found = []
    for index, loss in enumerate(LOSSES):
        curve = np.log(scale_steps * (STEPS * (1 + index) + scale_sizes * EXAMPLES * (1 + index) ** 2 / sizes))
        found.append(sample(curve + noise * rng.standard_normal((rows, len(sizes))), sizes, loss))
    return found


@pytest.fixture(params=DEFINITIONS.names())
def definition(request: pytest.FixtureRequest) -> Definition:
    return build(request.param)


class TestAll:
    """The cross product: no definition is left out."""

    def test_one_value_per_resample(self, definition: Definition) -> None:
        for rows in (1, 7):
            assert definition(family(rows=rows), 1).shape == (rows,)
        assert definition([sample(hyperbola())], 0).shape == (1,)
        assert isinstance(definition.remark(family(rows=1), 1), str)

    def test_resamples_do_not_see_one_another(self, definition: Definition) -> None:
        order = np.random.default_rng(0).permutation(7)
        curves = family()
        mixed = [
            CurveSample(s.batch_sizes, s.log_steps[order], picked(s.curve, order), picked(s.hyperbola, order), s.target)
            for s in curves
        ]
        np.testing.assert_allclose(definition(mixed, 1), definition(curves, 1)[order], rtol=1e-12)

    def test_more_steps_at_every_batch_size_change_nothing(self, definition: Definition) -> None:
        np.testing.assert_allclose(definition(family(scale_steps=3.7), 1), definition(family(), 1), rtol=SHIFT)

    def test_the_answer_is_in_the_unit_of_the_batch_size(self, definition: Definition) -> None:
        np.testing.assert_allclose(definition(family(scale_sizes=32), 1), 32 * definition(family(), 1), rtol=SHIFT)

    def test_the_interval_of_noise_free_curves_holds_the_estimate(self, definition: Definition) -> None:
        rows = [hyperbola(STEPS * k, EXAMPLES / 8 * k**2) for k in (1, 2, 3)]
        tables = [[Trials.of(np.exp(row[None, None])) for row in each] for each in rows]
        fits = [fit_curve(SIZES, table, config=AnalysisConfig(resamples=200), belief=HELD) for table in tables]
        # other forms of the curve pass through the same points, and say another critical batch size
        fits = [dataclasses.replace(fit, resampled=fit.resampled_power) for fit in fits]
        measured = [study_fits.sample(fit, loss) for fit, loss in zip(fits, LOSSES, strict=True)]
        drawn = [study_fits.sample(fit, loss, resampled=True) for fit, loss in zip(fits, LOSSES, strict=True)]
        low, high = interval(definition(drawn, 1), 0.95)
        assert low == pytest.approx(definition(measured, 1)[0], rel=SHIFT)
        assert high == pytest.approx(low, rel=SHIFT)

    def test_options_are_numbers_or_switches(self, definition: Definition) -> None:
        name = next(name for name in DEFINITIONS.names() if isinstance(definition, DEFINITIONS[name]))
        for field in dataclasses.fields(definition):  # type: ignore[arg-type]
            switch = isinstance(field.default, bool)
            for value in (-1.0, math.nan, math.inf, "0.2", 1 if switch else True):
                with pytest.raises(ConfigError, match=f"{name}.*{field.name}") as caught:
                    build(name, **{field.name: value})
                assert "\n" not in str(caught.value)
        with pytest.raises(ConfigError, match="no option 'colour'"):
            build(name, colour=1)

    def test_source_and_dependence_are_told(self, definition: Definition) -> None:
        assert "Depends on:" in (type(definition).__doc__ or "")


EXACT: dict[str, tuple[dict[str, Any], float]] = {
    "pareto": ({}, EXAMPLES / STEPS),
    "overhead": ({"overhead": 0.3}, 0.3 * EXAMPLES / STEPS),
    "sfo": ({}, SIZES[0]),
    "token_optimal": ({}, SIZES[0]),
}


@pytest.mark.parametrize("name", EXACT)
def test_closed_forms_on_an_exact_hyperbola(name: str) -> None:
    options, value = EXACT[name]
    assert build(name, **options)([sample(hyperbola())])[0] == pytest.approx(value, rel=SHIFT)


def test_overhead_counts_from_a_reference_batch_size() -> None:
    measured = sample(hyperbola())
    found = build("overhead", overhead=0.5, reference_batch=16.0)([measured])[0]
    linear = (STEPS + EXAMPLES / 16.0) * 16.0 / found
    assert STEPS + EXAMPLES / found == pytest.approx(1.5 * linear, rel=SHIFT)
    assert "reference batch size 1.5 was not measured" in build("overhead", reference_batch=1.5).remark([measured])
    assert "above the measured" in build("overhead", overhead=100.0).remark([measured])


@pytest.mark.parametrize("exponent", [0.7, 0.9, 1.0, 1.25])
@pytest.mark.parametrize("reference", [2.0, 16.0, 200.0])
def test_overhead_from_a_reference_solves_its_equation_on_any_curve(exponent: float, reference: float) -> None:
    """``S(B) = (1 + p) S(B_ref) B_ref / B``, and beyond B the left side is larger for good."""
    critical = EXAMPLES / STEPS
    measured = sample(np.log(STEPS) + np.log1p((critical / SIZES) ** exponent), exponent=FREE)
    (found,) = build("overhead", overhead=0.2, reference_batch=reference)([measured])

    def excess(size: float) -> float:
        steps = [STEPS * (1 + (critical / each) ** exponent) for each in (size, reference)]
        return steps[0] * size / (1.2 * steps[1] * reference) - 1

    assert abs(excess(found)) < 1e-6
    assert found > reference
    assert (np.diff([excess(size) for size in np.geomspace(found, 1e6, 50)]) > 0).all()
    closed = 1.2 * reference + 0.2 * measured.hyperbola.critical[0]
    held = build("overhead", overhead=0.2, reference_batch=reference, hyperbola=True)([measured])[0]
    assert held == pytest.approx(closed)
    assert bool(found == pytest.approx(held, rel=SHIFT)) == (exponent == 1.0)


def test_pareto_is_where_a_run_takes_twice_the_fewest_steps_of_the_curve() -> None:
    measured = sample(np.log(STEPS) + np.log1p((50.0 / SIZES) ** 0.8), exponent=FREE)
    (found,) = build("pareto")([measured])
    assert found == pytest.approx(50.0, rel=1e-5)
    assert measured.curve.log_steps(np.array([found]))[0, 0] == pytest.approx(math.log(2 * STEPS), rel=1e-6)
    assert measured.hyperbola.critical[0] < 0.95 * found


def test_ends_of_an_exact_hyperbola_lie_on_its_chord() -> None:
    """Between measured batch sizes the excess is linear in log-log, so that of the answer is the tolerance."""
    measured = sample(hyperbola())
    end = build("perfect_scaling_end", tolerance=0.5)([measured])[0]
    examples = np.interp(np.log(end), np.log(SIZES), measured.log_examples[0])
    assert examples - measured.log_examples[0, 0] == pytest.approx(math.log(1.5))
    start = build("saturation", tolerance=0.5)([measured])[0]
    assert np.interp(np.log(start), np.log(SIZES), measured.log_steps[0]) == pytest.approx(
        math.log(1.5) + measured.log_steps[0].min()
    )
    # the line through the smallest batch size: a + b/B = 1.5 (a + b/B_0) B_0/B, up to the chord of one doubling
    assert end == pytest.approx(1.5 * SIZES[0] + 0.5 * EXAMPLES / STEPS, rel=0.05)
    lowest = STEPS + EXAMPLES / SIZES[-1]
    assert start == pytest.approx(EXAMPLES / (1.5 * lowest - STEPS), rel=0.05)


PERFECT, PLATEAU = np.log(1e4 / SIZES), np.full(len(SIZES), math.log(300.0))


@pytest.mark.parametrize(
    ("name", "perfect", "plateau", "remarks"),
    [
        ("pareto", math.inf, 0.0, ("", "")),
        ("overhead", math.inf, 0.0, ("assumes exponent 1", "assumes exponent 1")),
        ("sfo", SIZES[0], SIZES[0], ("no interior optimum", "no interior optimum")),
        ("token_optimal", SIZES[-1], SIZES[0], ("at the largest measured", "brittle")),
        ("perfect_scaling_end", math.inf, 1.1 * SIZES[0], ("no measured batch size leaves", "has left the line")),
        ("saturation", math.inf, 0.0, ("still fall at the largest", "no longer fall at the smallest")),
        ("kaplan", math.inf, 0.0, ("do not bound the pareto", "do not bound the pareto")),
    ],
)
def test_perfect_scaling_alone_and_a_plateau_alone(
    name: str, perfect: float, plateau: float, remarks: tuple[str, str]
) -> None:
    for curve, value, remark in zip((PERFECT, PLATEAU), (perfect, plateau), remarks, strict=True):
        at_targets = [sample(curve, target=loss) for loss in LOSSES]
        assert build(name)(at_targets, 1)[0] == pytest.approx(value)
        found = build(name).remark(at_targets, 1)
        assert remark in found if remark else found == ""


def test_a_tie_goes_to_the_smallest_or_the_largest() -> None:
    steps = np.array([100.0, 40.0, 20.0, 15.0])
    tied = sample(np.log(steps), np.array([2.0, 4.0, 8.0, 16.0]))
    assert (build("sfo")([tied])[0], build("token_optimal")([tied])[0]) == (4.0, 8.0)
    assert build("sfo").remark([tied]) == ""
    assert build("token_optimal").remark([tied]) == ""
    assert build("token_optimal", tolerance=0.5)([tied])[0] == 16.0
    brittle = sample(np.log(steps * [1, 1, 1.01, 1]), tied.batch_sizes)
    assert build("token_optimal")([brittle])[0] == 4.0
    assert "brittle" in build("token_optimal").remark([brittle])


def test_sfo_has_an_interior_optimum_where_small_batches_do_worse() -> None:
    sizes = np.array([7.0, 9.0, sato2025.BEST, 16.0, 32.0])
    measured = sample(np.log([sato2025.steps(size) for size in sizes]), sizes)
    (best,) = build("sfo")([measured])
    assert best == sato2025.BEST
    assert np.exp(measured.log_examples.min()) == pytest.approx(sato2025.FEWEST)
    assert build("sfo").remark([measured]) == ""


def test_noisy_steps_that_return_to_the_line_or_rise_at_the_end() -> None:
    sizes = np.array([2.0, 4.0, 8.0, 16.0])
    back = sample(np.log([100, 60, 26, 25]), sizes)
    assert 8.0 < build("perfect_scaling_end")([back])[0] < 16.0
    risen = sample(np.log([100, 50, 40, 90]), sizes)
    assert 4.0 < build("saturation")([risen])[0] < 8.0
    assert build("saturation").remark([risen]) == ""


def law(star: float, alpha: float, losses: tuple[float, ...]) -> list[CurveSample]:
    ratios = [star / loss ** (1 / alpha) for loss in losses]
    sizes = np.geomspace(min(ratios) / 8, max(ratios) * 8, 9)
    return [sample(hyperbola(STEPS, STEPS * r, sizes), sizes, loss) for r, loss in zip(ratios, losses, strict=True)]


@given(st.floats(1e2, 1e9), st.floats(0.1, 2.0), st.integers(2, 5))
def test_a_power_law_comes_back(star: float, alpha: float, targets: int) -> None:
    losses = tuple(np.linspace(3.2, 2.0, targets).tolist())
    curves = law(star, alpha, losses)
    values = [build("kaplan")(curves, at)[0] for at in range(targets)]
    assert values == pytest.approx([star / loss ** (1 / alpha) for loss in losses], rel=1e-5)


def test_kaplan_is_the_least_squares_line_of_each_resample() -> None:
    curves = family()
    kaplan, pareto = build("kaplan"), build("pareto")
    for row in range(7):
        slope, intercept = np.polyfit(np.log(LOSSES), [math.log(pareto(curves, at)[row]) for at in range(3)], 1)
        assert kaplan(curves, 0)[row] == pytest.approx(math.exp(intercept + slope * math.log(LOSSES[0])))


def test_kaplan_needs_targets() -> None:
    kaplan = build("kaplan")
    alone, unknown = [sample(hyperbola(), target=2.4)], [sample(hyperbola())]
    assert np.isnan(kaplan(alone)).all()
    assert "analyze several" in kaplan.remark(alone)
    assert np.isnan(kaplan(unknown)).all()
    assert "needs the value of the target" in kaplan.remark(unknown)
    accuracy = [sample(hyperbola(), target=-1.0), *alone, *family(rows=1)]
    assert np.isnan(kaplan(accuracy, 0)).all()
    assert "above 0" in kaplan.remark(accuracy, 0)


def test_two_targets_are_a_law_without_an_interval() -> None:
    one, many = family(rows=1)[:2], family()[:2]
    assert np.isfinite(build("kaplan")(one)).all()
    assert "no interval" in build("kaplan").remark(one)
    assert np.isnan(build("kaplan")(many)).all()


def test_a_curve_through_two_batch_sizes_does_not_count_for_the_law() -> None:
    """It has no resamples, so the number of rows differs; the others go on without it."""
    nothing = StepsCurve(*(np.empty(0) for _ in range(4)))
    few = CurveSample(SIZES[:2], np.empty((0, 2)), nothing, nothing, 2.0)
    curves = [*family(), few]
    np.testing.assert_array_equal(build("kaplan")(curves, 1), build("kaplan")(family(), 1))
    assert build("kaplan")(curves, 3).shape == (0,)
    short = sample(hyperbola()[:2], SIZES[:2], 2.0)
    assert "fewer than 3" in build("kaplan").remark([*family(rows=1), short], 3)


def test_a_target_without_bound_leaves_the_law_without_bound() -> None:
    curves = [*family(rows=1)[:2], sample(PERFECT, target=2.2)]
    assert build("kaplan")(curves, 2)[0] == math.inf
    assert build("kaplan")(curves, 0)[0] == 0.0
    assert "do not bound the pareto critical batch size at target 2.2" in build("kaplan").remark(curves, 2)
    falling = [dataclasses.replace(s, target=loss) for s, loss in zip(family(rows=1), LOSSES[::-1], strict=True)]
    assert "does not grow" in build("kaplan").remark(falling)


def test_the_configuration_gives_every_definition_its_options() -> None:
    options = {"token_optimal": {"tolerance": 0.05}, "overhead": {"overhead": 0.3}}
    found = chosen(AnalysisConfig(definition="token_optimal", options=options))
    assert list(found) == DEFINITIONS.names()
    assert found["token_optimal"] == build("token_optimal", tolerance=0.05)
    assert found["overhead"] == build("overhead", overhead=0.3)
    assert found["saturation"] == build("saturation")


@pytest.mark.parametrize(
    ("definition", "options", "words"),
    [
        ("pareto", {"overhead": {"overhead": 0}}, "overhead must be a number above 0"),
        ("pareto", {"sfo": {"tolerance": 0.1}}, "'sfo' has no option 'tolerance'"),
        ("zhang", {}, "known names are interpolated, kaplan"),
        ("pareto", {"zhang": {}}, "known names are interpolated, kaplan"),
    ],
)
def test_a_configuration_that_names_what_there_is_not_is_refused(
    definition: str, options: dict[str, dict[str, float]], words: str
) -> None:
    with pytest.raises((ConfigError, UnknownNameError), match=words) as caught:
        chosen(AnalysisConfig(definition=definition, options=options))
    assert "\n" not in str(caught.value)


def test_names_in_headings() -> None:
    assert (symbol("pareto"), symbol("sfo")) == ("B_crit", "B_sfo")
    assert math_symbol("token_optimal") == r"$B_{\mathrm{token\ optimal}}$"
    assert in_words("overhead", {"overhead": 0.2, "reference_batch": None}) == "overhead (overhead 0.2)"
    assert in_words("overhead", {"overhead": 0.2, "hyperbola": False}) == "overhead (overhead 0.2)"
    assert in_words("overhead", {"overhead": 0.2, "hyperbola": True}) == "overhead (overhead 0.2, hyperbola)"
    assert in_words("sfo", {}) == "sfo"
    build("saturation", tolerance=0)

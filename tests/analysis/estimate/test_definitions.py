"""Every definition on curves whose critical batch size is known, and what all of them share."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from analysis.config import AnalysisConfig
from analysis.estimate.definitions import DEFINITIONS, EXTRAPOLATED, CurveSample, Definition, build, chosen
from analysis.estimate.definitions.least_product import within
from analysis.estimate.prior import STEP, StepsCurve
from cbs.errors import ConfigError, UnknownNameError
from tests.analysis.estimate.exact_draws import CHORD, CRITICAL, EXAMPLES, SIZES, STEPS, of_law, sample
from tests.certified import mccandlish2018

LOSSES = (3.0, 2.6, 2.2)
SHIFT = 1e-6  # Relative, of what only rounding moves


def family(rows: int = 7, scale_steps: float = 1.0, scale_sizes: float = 1.0) -> list[CurveSample]:
    """Noisy curves at several targets, harder ones with larger critical batch sizes."""
    rng, found = np.random.default_rng(1), []
    for index, loss in enumerate(LOSSES):
        steps = scale_steps * STEPS * (1 + index) * np.exp(0.1 * rng.standard_normal(rows))
        critical = scale_sizes * CRITICAL * (1 + index) * np.exp(0.2 * rng.standard_normal(rows))
        found.append(of_law(1.0, steps, critical, scale_sizes * SIZES, loss))
    return found


@pytest.fixture(params=DEFINITIONS.names())
def definition(request: pytest.FixtureRequest) -> Definition:
    return build(request.param)


class TestAll:
    """The cross product: no definition is left out."""

    def test_one_value_per_draw(self, definition: Definition) -> None:
        for rows in (1, 7):
            assert definition(family(rows=rows), 1).shape == (rows,)
        assert definition([of_law()], 0).shape == (1,)
        assert isinstance(definition.remark(family(rows=1), 1, 50.0), str)

    def test_draws_do_not_see_one_another(self, definition: Definition) -> None:
        order, curves = np.random.default_rng(0).permutation(7), family()
        mixed = [
            CurveSample(s.draws.taken(order), s.hyperbola.mapped(lambda values: values[order]), s.target)
            for s in curves
        ]
        np.testing.assert_allclose(definition(mixed, 1), definition(curves, 1)[order], rtol=1e-12)

    def test_more_steps_at_every_batch_size_change_nothing(self, definition: Definition) -> None:
        np.testing.assert_allclose(definition(family(scale_steps=3.7), 1), definition(family(), 1), rtol=SHIFT)

    def test_the_answer_is_in_the_unit_of_the_batch_size(self, definition: Definition) -> None:
        np.testing.assert_allclose(definition(family(scale_sizes=32), 1), 32 * definition(family(), 1), rtol=SHIFT)

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

    def test_what_lies_at_an_asymptote_says_that_it_is_extrapolated(self, definition: Definition) -> None:
        """A curve whose law is another one, with the same steps where it was measured."""
        curves = family()
        other = [
            CurveSample(
                dataclasses.replace(s.draws, law=s.draws.law.mapped(lambda values: values + 1.0)),
                s.hyperbola.mapped(lambda values: values + 1.0), s.target,
            )
            for s in curves
        ]  # fmt: skip
        asymptotic = not np.array_equal(definition(other, 1), definition(curves, 1))
        assert (EXTRAPOLATED in definition.remark(curves, 1, 50.0)) == asymptotic


EXACT: dict[str, tuple[dict[str, Any], float, float]] = {
    "least_product": ({}, CRITICAL, CHORD),
    "pareto": ({}, CRITICAL, SHIFT),
    "overhead": ({"overhead": 0.3}, 0.3 * CRITICAL, SHIFT),
}


@pytest.mark.parametrize("name", EXACT)
def test_closed_forms_on_an_exact_hyperbola(name: str) -> None:
    options, value, tolerance = EXACT[name]
    assert build(name, **options)([of_law()])[0] == pytest.approx(value, rel=tolerance)


def test_overhead_counts_from_a_reference_batch_size() -> None:
    measured = of_law()
    found = build("overhead", overhead=0.5, reference_batch=16.0)([measured])[0]
    linear = (STEPS + EXAMPLES / 16.0) * 16.0 / found
    assert STEPS + EXAMPLES / found == pytest.approx(1.5 * linear, rel=CHORD)
    remark = build("overhead", reference_batch=1.5).remark([measured], 0, found)
    assert "reference batch size 1.5 was not measured" in remark
    assert "above the measured" in build("overhead").remark([measured], 0, 1e6)


@pytest.mark.parametrize("exponent", [0.8, 1.0, 1.25])
@pytest.mark.parametrize("reference", [2.0, 16.0, 200.0])
def test_overhead_from_a_reference_solves_its_equation_on_any_curve(exponent: float, reference: float) -> None:
    """``S(B) = (1 + p) S(B_ref) B_ref / B``, and beyond B the left side is larger for good."""
    measured = of_law(exponent)
    (found,) = build("overhead", overhead=0.2, reference_batch=reference)([measured])

    def excess(size: float) -> float:
        steps = [STEPS * (1 + (CRITICAL / each) ** exponent) for each in (size, reference)]
        return steps[0] * size / (1.2 * steps[1] * reference) - 1

    assert abs(excess(found)) < CHORD
    assert found > reference
    assert (np.diff([excess(size) for size in np.geomspace(found, 1e6, 50)]) > 0).all()
    held = build("overhead", overhead=0.2, reference_batch=reference, hyperbola=True)([measured])[0]
    assert held == pytest.approx(1.2 * reference + 0.2 * CRITICAL)
    if exponent == 1.0:
        assert found == pytest.approx(held, rel=CHORD)


FOUR = np.exp(0.7 * np.arange(1, 5))


@pytest.mark.parametrize(
    ("slope", "value", "words"), [(-1.0, math.inf, "above the largest"), (0.0, 0.0, "below the smallest")]
)
def test_perfect_scaling_alone_and_a_plateau_alone(slope: float, value: float, words: str) -> None:
    measured = sample(lambda at: slope * np.log(at), StepsCurve(*(np.zeros(1) for _ in range(3))), FOUR)
    assert build("least_product")([measured])[0] == value
    assert words in build("least_product").remark([measured], 0, value)


def law(star: float, alpha: float, losses: tuple[float, ...]) -> list[CurveSample]:
    return [of_law(critical=star / loss ** (1 / alpha), target=loss) for loss in losses]


@given(st.floats(1e2, 1e9), st.floats(0.1, 2.0), st.integers(2, 5))
def test_a_power_law_comes_back(star: float, alpha: float, targets: int) -> None:
    losses = tuple(np.linspace(3.2, 2.0, targets).tolist())
    curves = law(star, alpha, losses)
    values = [build("kaplan")(curves, at)[0] for at in range(targets)]
    assert values == pytest.approx([star / loss ** (1 / alpha) for loss in losses], rel=1e-5)


def test_kaplan_needs_targets() -> None:
    kaplan = build("kaplan")
    alone, unknown = [of_law(target=2.4)], [of_law()]
    assert np.isnan(kaplan(alone)).all()
    assert "analyze several" in kaplan.remark(alone, 0, math.nan)
    assert np.isnan(kaplan(unknown)).all()
    assert "needs the value of the target" in kaplan.remark(unknown, 0, math.nan)
    accuracy = [of_law(target=-1.0), *alone, *family(rows=1)]
    assert np.isnan(kaplan(accuracy, 0)).all()
    assert "above 0" in kaplan.remark(accuracy, 0, math.nan)


def test_a_critical_batch_size_that_does_not_grow_is_said() -> None:
    falling = [dataclasses.replace(s, target=loss) for s, loss in zip(family(rows=1), LOSSES[::-1], strict=True)]
    assert "does not grow" in build("kaplan").remark(falling, 0, 50.0)
    assert "does not grow" not in build("kaplan").remark(family(rows=1), 0, 50.0)


def test_the_configuration_gives_every_definition_its_options() -> None:
    options = {"overhead": {"overhead": 0.05}, "least_product": {"exchange": 2.0}}
    found = chosen(AnalysisConfig(definition="overhead", options=options))
    assert list(found) == DEFINITIONS.names()
    assert found["overhead"] == build("overhead", overhead=0.05)
    assert found["least_product"] == build("least_product", exchange=2.0)
    assert found["kaplan"] == build("kaplan")


@pytest.mark.parametrize(
    ("definition", "options", "words"),
    [
        ("pareto", {"overhead": {"overhead": 0}}, "overhead must be a number above 0"),
        ("least_product", {"least_product": {"exchange": -1}}, "exchange must be a number above 0"),
        ("least_product", {"least_product": {"span": 0.5}}, "span must be from 1 to 2.72, got 0.5"),
        ("least_product", {"least_product": {"span": 3}}, "span must be from 1 to 2.72, got 3"),
        ("pareto", {"kaplan": {"tolerance": 0.1}}, "'kaplan' has no option 'tolerance'"),
        ("zhang", {}, "known names are kaplan, least_product"),
        ("pareto", {"zhang": {}}, "known names are kaplan, least_product"),
    ],
)
def test_a_configuration_that_names_what_there_is_not_is_refused(
    definition: str, options: dict[str, dict[str, float]], words: str
) -> None:
    with pytest.raises((ConfigError, UnknownNameError), match=words) as caught:
        chosen(AnalysisConfig(definition=definition, options=options))
    assert "\n" not in str(caught.value)


def test_from_half_to_twice_it_half_the_steps_take_twice_the_examples() -> None:
    """With the worked points of the paper: twice the fewest steps and twice the fewest examples; and doubling from
    half an octave below saves 29 % of the steps."""
    measured = of_law(1.0, mccandlish2018.MIN_STEPS, mccandlish2018.CRITICAL, np.exp(0.7 * np.arange(6, 14)))
    (found,) = build("least_product")([measured])
    assert found == pytest.approx(mccandlish2018.CRITICAL, rel=CHORD)
    half, double, below, above = measured.draws.drawn(found * 2 ** np.array([-1, 1, -0.5, 0.5]))[0]
    assert math.exp(double - half) == pytest.approx(1 / 2, abs=0.003)
    assert math.expm1(above - below) == pytest.approx(-0.29, abs=0.003)


@pytest.mark.parametrize("exponent", [0.8, 1.0, 1.4])
@pytest.mark.parametrize("exchange", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("span", [1.0, 2.0])
def test_any_exchange_rate_as_a_search_finds_it(exponent: float, exchange: float, span: float) -> None:
    """The mean of the logarithm from the batch size over the span to the batch size times it."""
    measured = of_law(exponent)

    def mean(log: float) -> float:
        logs = log + math.log(span) * np.linspace(-1, 1, 201)
        return float(np.mean(logs + (1 + exchange) * measured.draws.law.log_steps(np.exp(logs))[0]))

    search = minimize_scalar(mean, bounds=(-10.0, 20.0), method="bounded")
    found = build("least_product", exchange=exchange, span=span)([measured])[0]
    if SIZES[0] < math.exp(search.x) < SIZES[-1]:
        assert found == pytest.approx(math.exp(search.x), rel=5e-3)
    else:
        assert found == (0.0 if search.x < 1 else math.inf)


@pytest.mark.parametrize(("critical", "value", "words"), [
    (0.1, 0.0, "below the smallest measured batch size, 2.01375: add smaller"),
    (1e5, math.inf, "above the largest measured batch size, 1096.63: add larger"),
    (0.8 * SIZES[0], 0.0, "below"), (1.2 * SIZES[-1], math.inf, "above"),
])  # fmt: skip
def test_beyond_the_measured_batch_sizes_it_is_open(critical: float, value: float, words: str) -> None:
    measured = of_law(critical=critical)
    assert build("least_product")([measured])[0] == value
    assert words in build("least_product").remark([measured], 0, value)


def test_ten_percent_allow_half_to_nearly_twice_on_the_hyperbola() -> None:
    """``(1 + x)(1 + 1/x) = 4.4`` at .539 and 1.856, found at the points at which curves are drawn."""
    low, high, apart = *within(of_law().draws), 1.001 * math.exp(STEP)
    assert 0.539 <= low / CRITICAL < 0.539 * apart
    assert 1.856 / apart < high / CRITICAL <= 1.856
    assert within(of_law().draws, share=0.5)[1] > 2 * high  # type: ignore[operator]


def test_a_range_beyond_the_measured_batch_sizes_is_known_on_its_near_side() -> None:
    low, high = within(of_law(critical=SIZES[0] / 4).draws)
    assert low is None
    assert high < SIZES[0]
    low, high = within(of_law(critical=4 * SIZES[-1]).draws)
    assert high is None
    assert low > SIZES[-1]

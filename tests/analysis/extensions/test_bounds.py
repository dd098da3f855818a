"""The question of the bounds: which predictions hold, on sweeps whose steps have a known form."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.special import stdtrit

from analysis.config import AnalysisConfig
from analysis.estimate.fit_table import fit_table
from analysis.extensions.theory.bounds.checks import FORM, INSIDE, CheckOutcome, inside_check
from analysis.extensions.theory.bounds.closed_form import relative_best
from analysis.extensions.theory.bounds.measured import MeasuredBound, MeasuredBounds, measured_bounds
from analysis.extensions.theory.bounds.settings import COVERED, FREE_LENGTH, read_setting
from analysis.extensions.theory.bounds.variants import Scaled, check_outcome
from cbs.errors import ConfigError
from cbs.optimizers import OPTIMIZERS
from cbs.registry.choices import Choice, parse_choice
from tests.certified import sato2025
from tests.factories import LRS, Truth, sweep
from tests.references.steps_bounds import PowerBound

CONFIG = AnalysisConfig(resamples=100)
SIZES = (8, 16, 32, 64, 128, 256)


@dataclass(frozen=True, kw_only=True)
class BoundTruth(Truth):
    """Steps of the form of a bound; a batch size at or below the pole never gets there."""

    pole: float = 4.0
    power: float = 0.5
    never: float = 1e8

    def steps(self, batch_size: int, lrs: Sequence[float], seeds: int, rng: np.random.Generator) -> np.ndarray:
        noise = Truth.steps(replace(self, min_examples=1e-9), batch_size, lrs, seeds, rng)
        bound = PowerBound(x=1.0, y=self.pole**self.power, accuracy=1.0, power=self.power)
        return noise * min(float(bound.steps(batch_size)), self.never)


def pole_of(beta: float, at: float = 60.0) -> float:
    """As the bound without Nesterov's look-ahead has it."""
    return at * relative_best(beta, nesterov=False)


def asked(folder: Path, truths: dict[str, Truth], **options: Any) -> MeasuredBounds:
    """The question about a sweep; a steep valley in the learning rate keeps its best one inside."""
    given = {"batch_sizes": SIZES, "lrs": LRS[1::2], "seeds": 3, "growth": 1.5, "prune_factor": None}
    question = {name: options.pop(name) for name in ("form",) if name in options}
    sweep(folder, truths, variants=True, **(given | options))
    return measured_bounds(folder, CONFIG, **question)


def world(pole: float, **about: Any) -> BoundTruth:
    return BoundTruth(pole=pole, noise=0.01, lr_at_1=4e-3, lr_power=0.0, curvature=0.1, **about)


def checks(bound: MeasuredBound) -> dict[str, CheckOutcome]:
    return {check.prediction: check.verdict for check in bound.checks}


def scaled(found: MeasuredBounds, quantity: str, kind: str = "ratio") -> list[Scaled]:
    return [entry for entry in found.scopes[0].scalings if (entry.quantity, entry.kind) == (quantity, kind)]


@pytest.fixture(scope="module")
def following(tmp_path_factory: pytest.TempPathFactory) -> MeasuredBounds:
    """Three momenta whose steps follow the bound in form and in ratio."""
    truths: dict[str, Truth] = {f"signum(momentum={beta})": world(pole_of(beta)) for beta in (0.8, 0.9, 0.95)}
    return asked(tmp_path_factory.mktemp("following"), truths)


@pytest.fixture(scope="module")
def against(tmp_path_factory: pytest.TempPathFactory) -> MeasuredBounds:
    """The same pole whatever the momentum; and hyperbolas whose critical batch size moves the other way."""
    truths: dict[str, Truth] = {f"signum(momentum={beta})": world(5.0) for beta in (0.8, 0.9, 0.95)}
    for beta, critical in ((0.8, 30.0), (0.95, 90.0)):
        own = Truth(min_examples=175.0 * critical, noise=0.02, lr_at_1=4e-3, lr_power=0.0, curvature=0.3)
        truths[f"muon(momentum={beta}, nesterov=false)"] = own
    truths["adamw"] = own
    return asked(tmp_path_factory.mktemp("against"), truths)


def test_what_follows_the_bound_is_found_to_follow_it(following: MeasuredBounds) -> None:
    for bound, beta in zip(following.scopes[0].bounds, (0.8, 0.9, 0.95), strict=True):
        low, high = bound.best.interval
        assert low is not None
        assert high is not None
        assert low < 2.25 * pole_of(beta) < high
        assert high / low < 1.2
        assert bound.largest_best == pytest.approx(2.25 * 8)
        assert checks(bound)[FORM] is CheckOutcome.HOLDS
        assert CheckOutcome.FAILS not in checks(bound).values()
    first, last = following.scopes[0].bounds[0], following.scopes[0].bounds[-1]
    assert checks(first)[INSIDE] is CheckOutcome.HOLDS, first.checks
    # its b* lies below the smallest batch size
    assert checks(last)[INSIDE] is CheckOutcome.UNKNOWN


def test_ratios_that_follow_the_bound_hold(following: MeasuredBounds) -> None:
    for entry, pair in zip(scaled(following, "bound"), ((0.8, 0.9), (0.9, 0.95)), strict=True):
        assert entry.optimizers == tuple(f"signum(momentum={beta})" for beta in pair)
        assert entry.predicted == pytest.approx(pole_of(pair[1]) / pole_of(pair[0]))
        assert entry.verdict is CheckOutcome.HOLDS
    (exponent,) = scaled(following, "bound", "exponent")
    assert exponent.verdict is CheckOutcome.HOLDS
    assert exponent.measured.value == pytest.approx(1.0, abs=0.05)
    assert {entry.verdict for entry in scaled(following, "sfo")} == {CheckOutcome.UNKNOWN}


def test_a_pole_that_does_not_move_is_told_from_the_prediction(against: MeasuredBounds) -> None:
    found = [entry for entry in scaled(against, "bound") if entry.optimizers[0].startswith("signum")]
    assert [entry.verdict for entry in found] == [CheckOutcome.FAILS, CheckOutcome.FAILS]
    (exponent,) = scaled(against, "bound", "exponent")
    assert exponent.verdict is CheckOutcome.FAILS
    low, high = exponent.measured.interval
    assert low is not None
    assert high is not None
    assert low < 0.0 < high < 0.2


def test_a_hyperbola_has_not_the_form_and_no_b_star(against: MeasuredBounds) -> None:
    bounds = {bound.optimizer: bound for bound in against.scopes[0].bounds}
    for beta in (0.8, 0.95):
        muon = bounds[f"muon(momentum={beta})"]
        assert checks(muon)[FORM] is CheckOutcome.FAILS
        assert muon.best.value is None
        assert muon.fit is not None
        assert muon.residual_rms is not None
        assert muon.residual_rms > 0.08
        assert "AdamW" in muon.remark
    (form,) = [entry for entry in scaled(against, "bound") if entry.optimizers[0].startswith("muon")]
    assert form.verdict is CheckOutcome.UNKNOWN
    assert "form: does not hold" in form.why
    (critical,) = [entry for entry in scaled(against, "pareto") if entry.optimizers[0].startswith("muon")]
    assert critical.verdict is CheckOutcome.FAILS
    assert critical.measured.value == pytest.approx(3.0, rel=0.2)
    assert critical.predicted == pytest.approx(relative_best(0.95, nesterov=False) / relative_best(0.8, nesterov=False))


def test_no_bound_is_about_adamw(against: MeasuredBounds) -> None:
    adamw = next(bound for bound in against.scopes[0].bounds if bound.optimizer == "adamw")
    assert adamw.setting is None
    assert (adamw.form, adamw.fit) == ("", None)
    assert "no bound" in adamw.remark
    assert FORM not in checks(adamw)
    assert not [entry for entry in against.scopes[0].scalings if "adamw" in entry.optimizers]


def test_a_form_may_be_asked_for(tmp_path: Path) -> None:
    found = asked(tmp_path, {"adamw": world(5.0, power=1.0)}, form="linear")
    (adamw,) = found.scopes[0].bounds
    assert checks(adamw)[FORM] is CheckOutcome.HOLDS
    assert adamw.best.value == pytest.approx(10.0, rel=0.1)
    with pytest.raises(ConfigError, match="--form must be one of root, linear, decay, got 'power'"):
        measured_bounds(tmp_path, CONFIG, form="power")


def test_one_learning_rate_for_all_lets_a_batch_size_that_failed_count(tmp_path: Path) -> None:
    """At or below the pole nothing reaches the target. With a search for the learning rate that says nothing: another
    one might have; with one for all it is what the bounds say."""
    truths: dict[str, Truth] = {"signum(momentum=0.9)": world(8.0)}
    tuned = asked(tmp_path, truths, max_steps=5_000)
    one = measured_bounds(tmp_path, CONFIG, lr=LRS[3])
    (before,), (after,) = tuned.scopes[0].bounds, one.scopes[0].bounds
    assert not before.answer.points[0].reached
    inside = {name: next(c for c in bound.checks if c.prediction == INSIDE) for name, bound in
              (("before", before), ("after", after))}  # fmt: skip
    assert inside["before"].verdict is CheckOutcome.UNKNOWN
    assert inside["after"].verdict is CheckOutcome.HOLDS
    assert "batch size 8 took more examples" in inside["after"].why
    assert after.best.value == pytest.approx(18.0, rel=0.1)
    assert (tuned.lr, one.lr, one.notes) == (None, LRS[3], ())
    with pytest.raises(ConfigError, match=r"--at-lr 0\.005 was not run; there are 0\.001, 0\.004, 0\.016"):
        measured_bounds(tmp_path, CONFIG, lr=0.005)


def test_a_run_that_missed_the_target_where_the_form_has_it_speaks_against_the_form(tmp_path: Path) -> None:
    truth = world(3.0)
    bound = PowerBound(x=1.0, y=math.sqrt(3.0), accuracy=1.0)
    sweep(tmp_path, {"signum": truth}, batch_sizes=SIZES[1:], lrs=LRS[3:4], seeds=3, growth=2.0, prune_factor=None)
    lost = replace(truth, pole=7.99, never=1e6)
    sweep(tmp_path / "more", {"signum": lost}, batch_sizes=SIZES[:1], lrs=LRS[3:4], seeds=3, growth=2.0,
          prune_factor=None, max_steps=9_000)  # fmt: skip
    for trial in (tmp_path / "more" / "trials").iterdir():
        trial.rename(tmp_path / "trials" / trial.name)
    (found,) = measured_bounds(tmp_path, CONFIG, lr=LRS[3]).scopes[0].bounds
    check = next(check for check in found.checks if check.prediction == FORM)
    assert check.verdict is CheckOutcome.FAILS
    assert "batch size 8 ran 9,000 steps; the form says" in check.why
    assert found.best.value is None
    assert float(bound.steps(8)) * 175 < 1000


@pytest.mark.parametrize(
    ("interval", "predicted", "unmoved", "verdict"),
    [
        ((0.3, 0.6), 0.47, 1.0, CheckOutcome.HOLDS),
        ((0.3, 1.2), 0.47, 1.0, CheckOutcome.UNKNOWN),
        ((0.6, 1.2), 0.47, 1.0, CheckOutcome.FAILS),
        ((None, 0.4), 0.47, 1.0, CheckOutcome.FAILS),
        ((None, 0.9), 0.47, 1.0, CheckOutcome.HOLDS),
        ((0.3, None), 0.47, 1.0, CheckOutcome.UNKNOWN),
        ((None, None), 0.47, 1.0, CheckOutcome.UNKNOWN),
        ((-0.2, 0.2), 1.0, 0.0, CheckOutcome.FAILS),
    ],
)
def test_a_verdict(interval: Any, predicted: float, unmoved: float, verdict: CheckOutcome) -> None:
    assert check_outcome(interval, predicted, unmoved) is verdict


def test_what_is_known_of_optimizers_is_what_they_are() -> None:
    for name, covered in COVERED.items():
        spec = OPTIMIZERS[name]
        looked_at = ("momentum", "nesterov", "weight_decay")
        assert covered.options == {key: spec.defaults[key] for key in looked_at if key in spec.defaults}
        # torch adds SGD's weight decay to the gradient
        assert covered.fixed_length is bool(spec.decoupled_decay)


@pytest.mark.parametrize(
    ("text", "form", "said"),
    [
        ("muon", "root", "beta 0.95, Nesterov"),
        ("muon(momentum=0.9, nesterov=false)", "root", "beta 0.9"),
        ("muon(weight_decay=0.1)", "decay", "beta 0.95, Nesterov, weight decay 0.1"),
        ("sgd(momentum=0.0)", "linear", "beta 0"),
        ("sgd(momentum=0.9, nesterov=true)", "root", "beta 0.9, Nesterov"),
        ("signsgd", "root", "beta 0"),
        ("signum(weight_decay=0.2)", "decay", "beta 0.9, weight decay 0.2"),
    ],
)
def test_settings_and_their_forms(text: str, form: str, said: str) -> None:
    found = read_setting(parse_choice(text))
    assert (found.form, str(found)) == (form, said)
    assert (FREE_LENGTH in found.remark) is (text.startswith("sgd") and found.beta > 0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lion", "no bound for it"),
        ("sgd(weight_decay=0.1)", "not decoupled"),
        ("signum(momentum=1.5)", "not in"),
        ("signum(momentum=high)", "'high', not a number"),
        ("signum(weight_decay=-1)", "weight decay -1"),
    ],
)
def test_what_no_bound_is_about_says_why(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_setting(parse_choice(text))


def test_of_imported_results_nothing_is_taken_for_granted() -> None:
    with pytest.raises(ConfigError, match="do not say its momentum and nesterov and weight_decay"):
        read_setting(Choice(name="muon"), defaults=False)
    whole = {"momentum": 0.9, "nesterov": False, "weight_decay": 0.0}
    assert read_setting(Choice(name="muon", options=whole), defaults=False).beta == 0.9


@pytest.mark.parametrize("optimizer", sorted(sato2025.LLAMA_EXAMPLES))
def test_the_published_runs_of_a_llama_leave_the_optimum_open(optimizer: str) -> None:
    """Examples grow from the smallest batch size on, so the optimum lies there or below, whatever the error of reading
    them off the figure."""
    sizes, examples = np.array(sato2025.LLAMA_BATCH_SIZES), np.array(sato2025.LLAMA_EXAMPLES[optimizer])
    error = 1 + sato2025.READING_ERROR
    for signs in ((0,) * 6, (1, -1) * 3, (-1, 1) * 3):
        read = pd.DataFrame({"batch_size": sizes, "steps": examples * error ** np.array(signs) / sizes})
        (answer,) = fit_table(read, CONFIG).answers
        found = inside_check(answer)
        assert answer.definitions["sfo"].value == 64
        assert found.verdict is CheckOutcome.UNKNOWN
        assert "an optimum would lie there or below" in found.why


def test_the_margin_of_fewest_inside_is_known_as_well_as_two_means_and_holds_for_all() -> None:
    rng, seeds = np.random.default_rng(1), 4
    sizes = np.repeat(4.0 ** np.arange(6), seeds)
    steps = 1000.0 * (1 + 64.0 / sizes + 256.0 / sizes**2) * np.exp(0.1 * rng.standard_normal(len(sizes)))
    rows = pd.DataFrame({"batch_size": sizes, "steps": steps, "seed": np.tile(np.arange(seeds), 6)})
    (answer,) = fit_table(rows, AnalysisConfig()).answers
    found, fit = inside_check(answer), answer.fit
    assert fit is not None
    assert found.verdict is CheckOutcome.HOLDS
    low, high = found.margin.interval
    assert low is not None
    assert high is not None
    # five margins: each at 99 %
    reach = float(stdtrit(6 * (seeds - 1), 0.995)) * math.sqrt(2 * fit.seed_variance / seeds)
    assert math.log(high / low) / 2 == pytest.approx(reach, rel=0.15)

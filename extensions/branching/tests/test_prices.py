"""What branches cost before the first runs."""

import inspect
from pathlib import Path
from types import MappingProxyType

import pytest

from benchmarks import prices
from extensions.branching.commands.branch import branch_flags
from extensions.branching.plan import AT, FACTORS, SEEDS, branch_plan
from extensions.branching.policies import Branch
from extensions.branching.prices import branch_price
from sweeps.outlook.price import CriticalRun, measurements

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("steps", [400.0, 40_000.0])  # windows of 20 updates, and of 2 % of the trunk
def test_branches_cost_at_most_what_their_dry_run_counts(steps: float) -> None:
    critical = 4096
    run = CriticalRun(examples=steps * critical, steps=steps)
    plan = branch_plan(
        batch_size=critical // 4, examples=round(1.25 * steps / 2 * critical), at=AT, factors=FACTORS, window=None,
        lr_rule="sqrt",
    )  # fmt: skip
    found = branch_price(run)
    assert found is not None
    assert found.examples is not None
    counted = len(plan.at) * len(plan.factors) * SEEDS * plan.window
    assert found.examples[2] == pytest.approx(counted, rel=0.03)
    assert found.examples[0] < found.examples[1] < found.examples[2]
    assert branch_price(CriticalRun(examples=1.0)) is None


def test_what_is_priced_are_the_defaults_of_the_command() -> None:
    flags, policy = inspect.signature(branch_flags).parameters, inspect.signature(Branch).parameters
    assert (flags["at"].default, flags["factors"].default, flags["seeds"].default) == (AT, FACTORS, str(SEEDS))
    assert (policy["at"].default, policy["factors"].default) == (AT, FACTORS)


def test_branches_are_named_where_a_sweep_is_out_of_reach() -> None:
    (branches,) = (each for each in measurements() if each.command == "cbs branch")
    assert branches.about == "from checkpoints of one run at B_crit/4"
    assert branches.price is branch_price


def test_the_page_has_the_table_that_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "prices.md").read_text()
    assert prices.written(page) == page, "python -m benchmarks.prices --write docs/prices.md"
    monkeypatch.setattr(prices, "RUNS", MappingProxyType({0.2: (1, 2, 3)}))
    assert prices.written(page) != page
    with pytest.raises(ValueError, match="no lines"):
        prices.written("a page without a table")


@pytest.mark.parametrize(("millions", "sequences"), [(85, 2191), (151, 3240), (302, 5433)])
def test_the_law_for_the_table_returns_the_curves_that_it_was_fitted_to(millions: int, sequences: int) -> None:
    assert prices.critical_tokens(millions * 1_000_000) == pytest.approx(512 * sequences, rel=0.06)

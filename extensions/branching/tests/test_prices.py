"""What branches cost before the first runs."""

import inspect

import pytest

from extensions.branching.commands.branch import branch_flags
from extensions.branching.plan import AT, FACTORS, SEEDS, branch_plan
from extensions.branching.policies import Branch
from extensions.branching.prices import branch_price
from sweeps.outlook.price import CriticalRun, measurements


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

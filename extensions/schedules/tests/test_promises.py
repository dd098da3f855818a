"""What plans promise, against a quadratic whose every schedule can be computed."""

from pathlib import Path

import numpy as np
import pytest

from analysis.config import AnalysisConfig
from benchmarks.calibration.cases import CASES
from benchmarks.schedule_plans import compared
from benchmarks.schedule_plans import sweep as simulated_sweep
from extensions.schedules.plan.planning import of_sweep, plan_schedule
from extensions.schedules.plan.plans import PlanRequest
from extensions.schedules.tests.test_plan_sources import inside
from extensions.schedules.tests.test_schedule_plan import named


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rule", "promises"),
    [
        ("momentum", "plan, flat", True),
        ("momentum", "plan, square root", False),
        ("preconditioned", "plan, square root", False),  # at the edge of stability, where a law misses the best rates
        ("preconditioned", "plan, measured law", False),
    ],
)
def test_what_is_promised_on_the_quadratic_holds(name: str, rule: str, promises: bool, tmp_path: Path) -> None:
    """Three sweeps of the noisy quadratic; 20 of each case are in docs/evidence.md."""
    case, truths = CASES[name], []
    for index in range(3):
        config = AnalysisConfig(seed=index)
        (source,) = of_sweep(simulated_sweep(tmp_path / str(index), case, index), config, None, None)
        (plan,) = plan_schedule([source], PlanRequest(), config).plans
        outcome = named(plan, rule)
        _, _, saved = compared(case, outcome, [start for start, _ in plan.table], 50)
        assert inside(outcome.examples_saved, saved)
        truths.append(saved)
    assert (np.mean(truths) > 0.1) == promises

"""Published grids of final losses, imported and answered by ``cbs budget``, beside their authors' law."""

from __future__ import annotations

import math

import pytest

from analysis.config import AnalysisConfig
from analysis.questions.budget.answer import AtBudget, budget
from analysis.questions.budget.equivalence import SizeStanding
from analysis.read.importers import Settings, import_runs
from tests.certified.steplaw2025 import GRIDS, LRS, TOKENS_PER_EXAMPLE, law

SETTINGS = Settings(
    metric="loss", direction="below", target=2.0, metric_unit="nats/token", example_unit="sequence",
    tokens_per_example=TOKENS_PER_EXAMPLE, constants={"optimizer": "adamw"},
)  # fmt: skip


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> dict[int, AtBudget]:
    root = tmp_path_factory.mktemp("published")
    for tokens, grid in GRIDS.items():
        rows = ["batch_size,lr,step,loss"]
        for size, losses in grid.items():
            steps = round(tokens / TOKENS_PER_EXAMPLE / size)
            rows += [
                f"{size},{lr},{steps},{loss}" for lr, loss in zip(LRS, losses, strict=True) if not math.isnan(loss)
            ]
        (root / f"{tokens}.csv").write_text("\n".join(rows))
        import_runs([root / f"{tokens}.csv"], root / "sweeps" / str(tokens), SETTINGS)
    found = budget(root / "sweeps", config=AnalysisConfig(resamples=1000))
    return dict(zip(sorted(GRIDS), found.budgets, strict=True))


def test_the_budgets_are_those_of_the_paper(answered: dict[int, AtBudget]) -> None:
    for tokens, scope in answered.items():
        assert scope.budget * TOKENS_PER_EXAMPLE == pytest.approx(tokens, rel=0.005)
        assert [size.batch_size for size in scope.optimizers[0].sizes] == list(GRIDS[tokens])


@pytest.mark.parametrize("tokens", GRIDS)
def test_the_best_batch_size_of_the_law_is_one_that_may_be_best(tokens: int, answered: dict[int, AtBudget]) -> None:
    (entry,) = answered[tokens].optimizers
    low, high = entry.equivalence.best.interval
    assert low <= law(tokens) <= high
    # the law minimizes over all sizes; the nearest that was run is not called worse than the best of them
    nearest = min(entry.sizes, key=lambda size: abs(math.log(size.batch_size / law(tokens))))
    assert nearest.excess.standing is not SizeStanding.WORSE


def test_the_best_and_the_largest_within_the_margin_grow_with_the_data(answered: dict[int, AtBudget]) -> None:
    best = [scope.optimizers[0].equivalence.best.value for scope in answered.values()]
    largest = [scope.optimizers[0].equivalence.largest_within.value for scope in answered.values()]
    assert best == sorted(best)
    assert largest == sorted(largest)
    # from 4 to 100 billion tokens; the law says 25^0.571 = 6.3
    assert 4 < best[-1] / best[0] < 9
    assert 5 < largest[-1] / largest[0] < 15


def test_the_largest_of_the_grid_is_worse_where_it_is_far_above_the_law(answered: dict[int, AtBudget]) -> None:
    for scope in answered.values():
        (entry,) = scope.optimizers
        for size in entry.sizes:
            if size.batch_size > 4.7 * law(scope.budget * TOKENS_PER_EXAMPLE):
                assert size.excess.standing is SizeStanding.WORSE


def test_what_a_doubling_costs_in_data_is_read_off_the_smaller_budgets(answered: dict[int, AtBudget]) -> None:
    (entry,) = answered[100_000_000_000].optimizers
    costs = {each.batch_size: each for each in entry.doublings}
    assert costs[1024].larger == 2048
    assert 0.05 < costs[1024].data.value < 0.5
    assert costs[1024].data.interval[0] > 0
    assert abs(costs[736].data.value) < 0.05
    (entry,) = answered[4_000_000_000].optimizers
    assert {each.data.value for each in entry.doublings if each.loss.value > 0} == {None}


def test_one_seed_is_said_to_be_few(answered: dict[int, AtBudget]) -> None:
    verdicts = {scope.optimizers[0].verdict for scope in answered.values()}
    assert verdicts == {"too few seeds", "LR optimum at edge of grid"}
    assert {scope.optimizers[0].relation.remark for scope in answered.values()} == {"the runs have no curves"}

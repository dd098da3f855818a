"""What branches cost, where a sweep is out of reach."""

from fractions import Fraction

from extensions.branching.plan import AT, FACTORS, FEWEST_STEPS, SEEDS, SHARE
from sweeps.outlook.price import CriticalRun, Instead, Price, price

# Fewest and typical number of branches at a checkpoint that the sequential test runs (docs/branching.md)
BRANCHES: tuple[int, int] = (3, 7)

# Batch size of the run from which branches start, as a share of B_crit: branches reach from a sixteenth of B_crit to
# four times it.
TRUNK = 0.25


def branch_price(run: CriticalRun, gpu_hour: float | None = None) -> Price | None:
    """Return the price of ``cbs branch`` with its defaults from checkpoints of a run that exists, at :data:`TRUNK`
    times B_crit; the highest is what its ``--dry-run`` counts. ``None`` if the steps of a run are unknown."""
    if run.steps is None:
        return None
    largest = max(Fraction(factor) for factor in FACTORS.split(","))
    trunk = (1 + TRUNK) / 2  # examples, in those of a run at B_crit: E_min (1 + B/B_crit) over 2 E_min
    window = max(FEWEST_STEPS * float(largest) * TRUNK / run.steps, SHARE * trunk)
    checkpoints, most = len(AT.split(",")), len(FACTORS.split(",")) * SEEDS
    low, typical, high = (checkpoints * branches * window for branches in (*BRANCHES, most))
    return price((low, typical, high), run, gpu_hour)


INSTEAD = Instead("cbs branch", f"from checkpoints of one run at B_crit/{1 / TRUNK:g}", branch_price)

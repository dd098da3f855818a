"""Branches of a run: after how many examples they begin, how they differ from the run, and how long they train.

Merrill et al. (2025), "Critical Batch Size Revisited", arXiv 2505.23971, section 3: at a checkpoint of a run with batch
size B and learning rate eta, branches train with k B and f(k) eta for a window of examples, f(k) = sqrt(k) for Adam and
k for SGD.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from cbs.errors import ConfigError
from cbs.registry.values import parse_amount
from sweeps.spec.given_rates import POWERS, PrescribedRate, parse_lr_rule

TRIED = "tried"
"""Name of the rule that tries several learning rates: that of the square-root rule, half of it and twice it."""

_TRIED_FACTORS = (1.0, 0.5, 2.0)  # What multiplies the learning rate of the square-root rule, itself first

# Default beginnings of branches, their factors k, and the most seeds of a branch
AT, FACTORS, SEEDS = "5%,10%,20%,40%,80%", "1/4,1/2,1,2,4,8,16", 5

# Default window: the larger of this many updates of the largest batch, and this share of the trunk's examples
FEWEST_STEPS, SHARE = 20, 0.02


@dataclass(frozen=True, kw_only=True)
class BranchPlan:
    """The branches of a run in numbers.

    Attributes:
        batch_size: batch size of the run.
        at: numbers of examples after which branches begin, increasing; each is a whole number of batches of the run.
        factors: factor k by batch size of the branch, increasing.
        window: number of examples that each branch sees; a whole number of batches of every branch.
        lr_rule: ``sqrt``, ``linear``, :data:`TRIED`, or learning rates by batch size.
    """

    batch_size: int
    at: tuple[int, ...]
    factors: dict[int, Fraction]
    window: int
    lr_rule: str

    def rates(self, lr: float) -> Iterator[PrescribedRate]:
        """Yield the learning rates of all branches by batch size; several times if several are tried.

        Args:
            lr: learning rate of the run.

        Raises:
            ConfigError: if the rule is unknown, or has no learning rate for a batch size.
        """
        if self.lr_rule not in (*POWERS, TRIED):
            table = parse_lr_rule(self.lr_rule)
            yield PrescribedRate(power=None, lrs={size: table.at(size) for size in self.factors})
            return
        power = POWERS.get(self.lr_rule, 0.5)
        for factor in _TRIED_FACTORS if self.lr_rule == TRIED else (1.0,):
            lrs = {size: lr * factor * float(k) ** power for size, k in self.factors.items()}
            yield PrescribedRate(
                power=None, lrs={size: lr if rate == lr else float(f"{rate:.6g}") for size, rate in lrs.items()}
            )

    @property
    def rates_tried(self) -> int:
        """Number of learning rates of every branch."""
        return len(_TRIED_FACTORS) if self.lr_rule == TRIED else 1


def branch_plan(
    *,
    batch_size: int,
    examples: int | None,
    at: str | Sequence[int],
    factors: str,
    window: str | None,
    lr_rule: str,
    micro_batch_size: int | None = None,
) -> BranchPlan:
    """Parse the options that describe branches.

    Args:
        batch_size: batch size of the run.
        examples: number of examples that the run sees, to which percentages refer; ``None`` if the run is not trained
            here.
        at: ``"5%,10%,80%"`` or numbers of examples, rounded to whole batches of the run; or a sequence of exact
            numbers.
        factors: the factors k as fractions: ``"1/4,1/2,1,2,4"``.
        window: number of examples, or a percentage of the run; rounded up to whole batches of every branch.
        lr_rule: see :class:`BranchPlan`.
        micro_batch_size: examples per forward and backward pass; ``None`` for whole batches.

    Raises:
        ConfigError: if an option cannot be parsed, k times the batch size is not an integer, or a branch begins after
            the end.
    """
    sizes = {_size(text, batch_size, micro_batch_size): Fraction(text.strip()) for text in factors.split(",")}
    if len(sizes) < len(factors.split(",")):
        raise ConfigError(f"--factors {factors}: a factor appears twice")
    starts = tuple(sorted(set(at))) if not isinstance(at, str) else _starts(at, batch_size, examples)
    common = math.lcm(*sizes)
    wanted = max(FEWEST_STEPS * max(sizes), SHARE * (examples or 0))
    if window is not None:
        wanted = _amount("--window", window, examples)
    rounded = common * math.ceil(wanted / common)
    if rounded > 2 * max(wanted, max(sizes)):
        raise ConfigError(
            f"--window {wanted:,.0f}: batches of {', '.join(map(str, sorted(sizes)))} fill the same window only every "
            f"{common:,} examples; give such a window, or --factors that divide one another"
        )
    plan = BranchPlan(
        batch_size=batch_size, at=starts, factors=dict(sorted(sizes.items())), window=rounded, lr_rule=lr_rule.strip()
    )
    list(plan.rates(1.0))
    return plan


def _size(text: str, batch_size: int, micro_batch_size: int | None) -> int:
    try:
        factor = Fraction(text.strip())
    except (ValueError, ZeroDivisionError):
        factor = Fraction(0)
    if factor <= 0:
        raise ConfigError(f"--factors takes multiples of the batch size such as 1/4,1/2,1,2,4; got {text.strip()!r}")
    size = factor * batch_size
    if size.denominator != 1:
        raise ConfigError(f"--factors {text.strip()}: {factor} of batch size {batch_size} is {float(size):g} examples")
    if micro_batch_size is not None and size > micro_batch_size and size % micro_batch_size:
        raise ConfigError(
            f"--factors {text.strip()}: a batch of {size} is not a whole number of micro-batches of "
            f"{micro_batch_size}; leave it out, or change --set micro_batch_size"
        )
    return int(size)


def _starts(text: str, batch_size: int, examples: int | None) -> tuple[int, ...]:
    starts = []
    for point in text.split(","):
        amount = _amount("--at", point, examples)
        start = max(1, round(amount / batch_size)) * batch_size
        if examples is not None and start > examples:
            raise ConfigError(f"--at {point.strip()}: the trunk ends after {examples:,} examples")
        starts.append(start)
    if len(set(starts)) < len(starts):
        raise ConfigError(f"--at {text}: two of these points are the same update of the trunk")
    return tuple(sorted(starts))


def _amount(flag: str, text: str, examples: int | None) -> float:
    """Parse a number of examples, given as such or as a percentage of the run."""
    text = text.strip()
    if not text.endswith("%"):
        try:
            return parse_amount(text)
        except ConfigError as error:
            raise ConfigError(f"{flag} {text}: {error}; or a share of the trunk, as in 5%") from None
    try:
        share = float(text[:-1]) / 100
    except ValueError:
        share = math.nan
    if not 0 < share <= 1:
        raise ConfigError(f"{flag} {text} is not a share of the trunk such as 5%")
    if examples is None:
        raise ConfigError(f"{flag} {text}: shares need a trunk that is trained here; give a number of examples")
    return share * examples

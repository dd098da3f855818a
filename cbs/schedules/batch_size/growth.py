r"""Batch size and learning rate grow together, stage by stage (Umeda and Iiduka, arXiv 2508.05297).

:math:`b_m = \lceil b_0 \delta^m \rceil` up to a cap, :math:`\eta_m = \eta_0 \gamma^m` until the uncapped batch size
passes the cap, and stage m lasts :math:`e_0 \delta^{p m}` examples. For SGD :math:`b^*_m = 2 C_2/\epsilon_m^2` with
:math:`C_2 \sim \eta`, so with :math:`\delta = \gamma^2` every stage has as many steps and its examples go as
:math:`\delta^m`, which is p = 1; if :math:`C_2` does not depend on the learning rate it is p = 3/2. The released code
has both, 3/2 as the default of the function and 1 in its driver for CIFAR-100.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from cbs.errors import ConfigError
from cbs.schedules.batch_size import BATCH_SCHEDULES, OpenLoop, RunSettings, cap_of, capped, number, of_table, whole


@BATCH_SCHEDULES.register("growth")
def growth(
    run: RunSettings,
    *,
    first_examples: int,
    delta: float = 2.0,
    gamma: float = 1.4,
    stage_power: float = 1.0,
    cap: int | None = 2048,
) -> OpenLoop:
    """Return stages of growing length, batch size and learning rate.

    Args:
        run: settings of the run, whose batch size is the first.
        first_examples: length of the first stage.
        delta: factor of the batch size from one stage to the next, above 1.
        gamma: factor of the learning rate from one stage to the next, below the square root of ``delta``.
        stage_power: each stage has ``delta ** stage_power`` times the examples of the one before.
        cap: largest batch size; the learning rate stops growing when it is reached.

    Raises:
        ConfigError: if the growth diverges, a value is invalid, or the first stage takes the whole budget.
    """
    delta, gamma = checked_growth(delta, gamma)
    # ``above`` is excluded, and 0 is a valid power: stages of equal length.
    first, power = whole("first_examples", first_examples), number("stage_power", stage_power, above=-1e-12)
    limit = cap_of(run, cap)
    if first >= run.examples:
        raise ConfigError(
            f"the first stage of batch schedule 'growth' takes {first:,} examples, the whole budget of "
            f"{run.examples:,}; lower first_examples"
        )

    def table() -> Iterator[tuple[float, int, float]]:
        start, stage = 0.0, 0
        while start < run.examples:
            yield start, *grown(run, stage, delta, gamma, limit)
            start += first * delta ** (power * stage)
            stage += 1

    return of_table(run, table())


def grown(run: RunSettings, stage: int, delta: float, gamma: float, cap: int | None) -> tuple[int, float]:
    """Return batch size and factor of the learning rate after this many increases."""
    # Rounded first: a power that is a whole number may come out just above it, and would be raised by one.
    sizes = [math.ceil(round(run.batch_size * delta**index, 6)) for index in range(stage + 1)]
    under = sum(cap is None or size <= cap for size in sizes) - 1
    return capped(sizes[-1], cap), gamma ** max(0, under)


def checked_growth(delta: float, gamma: float) -> tuple[float, float]:
    """Check and return the two growth factors.

    Raises:
        ConfigError: if ``delta`` is not above 1 or ``gamma`` not above 0, or the learning rate grows faster than the
            square root of the batch size.
    """
    delta, gamma = number("delta", delta, above=1.0), number("gamma", gamma)
    if math.sqrt(delta) <= gamma:
        raise ConfigError(
            f"growth with delta={delta:g}, gamma={gamma:g} diverges: the learning rate may grow by less than "
            f"sqrt(delta) = {math.sqrt(delta):.4g} a stage (arXiv 2508.05297)"
        )
    return delta, gamma

"""AdaBatch: the batch size doubles at regular intervals and the learning rate falls a little (Devarakonda, Naumov and
Garland, arXiv 1712.02029).
"""

from __future__ import annotations

from collections.abc import Iterator

from cbs.errors import ConfigError
from cbs.schedules.batch_size import BATCH_SCHEDULES
from cbs.schedules.batch_size.base import OpenLoop, RunSettings, cap_of, number, of_table, whole


@BATCH_SCHEDULES.register("adabatch")
def adabatch(
    run: RunSettings, *, every_examples: int, grow: float = 2.0, lr_cut: float = 0.75, cap: int | None = None
) -> OpenLoop:
    """Return blocks of equal length with growing batch size and falling learning rate.

    By default the batch size doubles and the learning rate falls to 0.75, which cuts the effective learning rate, that
    is per example, to 0.375.

    Args:
        run: settings of the run, whose batch size is the first.
        every_examples: length of a block.
        grow: factor of the batch size from one block to the next, above 1.
        lr_cut: factor of the learning rate from one block to the next, above 0.
        cap: largest batch size; beyond it the learning rate falls by the effective cut, ``lr_cut / grow``.

    Raises:
        ConfigError: if a value is invalid, or the first block takes the whole budget.
    """
    every, grow, cut = (
        whole("every_examples", every_examples),
        number("grow", grow, above=1.0),
        number("lr_cut", lr_cut),
    )
    limit = cap_of(run, cap)
    if every >= run.examples:
        raise ConfigError(
            f"a block of batch schedule 'adabatch' takes {every:,} examples, the whole budget of {run.examples:,}; "
            "lower every_examples"
        )

    def table() -> Iterator[tuple[float, int, float]]:
        size, rate = float(run.batch_size), 1.0
        for start in range(0, run.examples, every):
            yield start, round(size), rate
            larger = round(size * grow)
            fits = (limit is None or larger <= limit) and larger <= run.examples - start - every
            size, rate = (size * grow, rate * cut) if fits else (size, rate * cut / grow)
            if rate < 1e-12:
                return

    return of_table(run, table())

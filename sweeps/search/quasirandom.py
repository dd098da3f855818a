r"""``--search random``: points of a low-discrepancy sequence in a box of ln learning rate and tuned options.

Bousquet et al. 2017 ("Critical Hyper-Parameters: No Random, No Cry", arXiv 1706.03200) propose such sequences in place
of random search, and Shallue et al. 2019 (JMLR 20:112, section 4) search with them, a fixed number of trials for every
batch size. Here it is Halton's (1960), coordinate :math:`j` of point :math:`i` being the radical inverse of :math:`i`
in the :math:`j`-th prime, shifted modulo 1 by a number drawn for the batch size (Cranley and Patterson 1976). Further
trials go on with the sequence, so those that are there stay.
"""

from __future__ import annotations

import math
import random

from cbs.registry.choices import value_text
from sweeps.spec.axes import pooled
from sweeps.spec.cell import Study
from sweeps.spec.spec import Sweep

_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29)


def points(dimensions: int, count: int, name: str) -> list[tuple[float, ...]]:
    """The first points of a sequence in the unit cube.

    Args:
        dimensions: at most ten.
        count: how many.
        name: what the shift is drawn for.
    """
    draw = random.Random(name)
    shifts = [draw.random() for _ in range(dimensions)]
    return [
        tuple((radical_inverse(place, base) + shift) % 1.0 for base, shift in zip(_PRIMES, shifts, strict=False))
        for place in range(count)
    ]


def radical_inverse(number: int, base: int) -> float:
    """The digits of a number behind the point, in their reverse order."""
    inverse, digit = 0.0, 1.0 / base
    while number:
        number, rest = divmod(number, base)
        inverse, digit = inverse + rest * digit, digit / base
    return inverse


def drawn_lrs(sweep: Sweep, study: Study) -> tuple[float, ...]:
    """Learning rates of one study, increasing, to six digits: those of the points whose tuned options are its own.

    A sweep tries ``sweep.trials`` points per batch size, over all values of the options that are tuned together.
    """
    choice = sweep.choices[study.optimizer]
    family = pooled(sweep, choice)
    members = [other for other in sweep.optimizers if pooled(sweep, other) == family]
    names = sweep.tuned.get(choice.name, [])
    values = [list(dict.fromkeys(value_text(other.options.get(name)) for other in members)) for name in names]
    mine = [value_text(choice.options.get(name)) for name in names]
    low, high = map(math.log, sweep.lr_box or (sweep.lr_grid(study.optimizer)[0], sweep.lr_grid(study.optimizer)[-1]))
    found = set()
    for first, *rest in points(1 + len(names), sweep.trials, f"{family} {study.batch_size}"):
        if [known[int(at * len(known))] for at, known in zip(rest, values, strict=True)] == mine:
            found.add(float(f"{math.exp(low + first * (high - low)):.6g}"))
    return tuple(sorted(found))

"""Checks for methods that step as Adam does (Kingma & Ba 2014, arXiv 1412.6980, Algorithm 1).

With almost no averaging Adam moves every entry by ``lr |g| / (|g| + eps)`` against the sign of its gradient g. A method
that has a pair of betas and does this for small eps is treated as a kind of Adam; these checks do not apply to other
methods.
"""

from __future__ import annotations

import math
from statistics import median
from typing import Any

import torch

from extensions.conformance.check import check
from extensions.conformance.construction import takes
from extensions.conformance.options import draws, feed
from extensions.conformance.subjects import NotApplicable, OptimizerRun, Subject, ensure

NO_AVERAGE = (1e-4, 1e-4)
"""Betas of averages that hold almost only the latest gradient; some methods refuse 0."""

LONG = (0.9, 0.999)

LR = 1e-3

CLOSE = 0.02


@check()
def check_bias_correction(subject: Subject) -> None:
    """A method that steps as Adam does corrects its averages for their start at 0: its first steps under a constant
    gradient are not those of uncorrected averages.
    """
    unit = adams_unit(subject)
    groups = subject.run().optimizer.param_groups
    if any("bias" in key and not value for group in groups for key, value in group.items()):
        raise NotApplicable("its groups say that it does not correct bias")
    ratios = [size / unit for size in sizes(subject, 0.5, 3, betas=LONG)]
    first = [1 - LONG[0] ** step for step in (1, 2, 3)]
    second = [1 / math.sqrt(1 - LONG[1] ** step) for step in (1, 2, 3)]
    both = [one * other for one, other in zip(first, second, strict=True)]
    for which, wrong in (("first", first), ("second", second), ("first and second", both)):
        alike = all(math.isclose(size, other, rel_tol=CLOSE) for size, other in zip(ratios, wrong, strict=True))
        shown = ", ".join(f"{size:.3g}" for size in ratios)
        ensure(not alike, f"the {which} average is not corrected for its start at 0: first steps are {shown} of Adam's")


@check()
def check_eps_is_outside_the_root(subject: Subject) -> None:
    """A method that steps as Adam does for small eps adds eps to the square root of the second average, not to the
    average.
    """
    unit, eps = adams_unit(subject), 1e-2
    if not takes(subject, "eps"):
        raise NotApplicable("it has no eps")
    (size,) = sizes(subject, eps, 1, betas=NO_AVERAGE, eps=eps)
    inside = eps / math.sqrt(eps**2 + eps)
    ensure(
        not math.isclose(size / unit, inside, rel_tol=CLOSE),
        f"eps is inside the root: where the gradient is eps, a step is {size / unit:.3g} of a usual one, not half",
    )


def adams_unit(subject: Subject) -> float:
    """Return the step size of a method that steps as Adam does, under large gradients.

    Raises:
        NotApplicable: if it does not.
    """
    groups = subject.run().optimizer.param_groups
    if not all(isinstance(group.get("betas"), tuple | list) and len(group["betas"]) == 2 for group in groups):
        raise NotApplicable("its groups have no pair of betas")
    subject.run().needs_gradients()
    if not takes(subject, "betas"):
        raise NotApplicable("it takes no betas")
    entries = [float(entry) for step in feed(undecayed(subject, betas=NO_AVERAGE), draws(), 2) for entry in step]
    unit = median(entries)
    if not (unit > 0 and all(math.isclose(size, unit, rel_tol=CLOSE) for size in entries)):
        raise NotApplicable("it does not step as Adam does")
    return unit


def sizes(subject: Subject, gradient: float, steps: int, **options: Any) -> list[float]:
    """Return the median size of each step under a constant gradient."""
    run = undecayed(subject, **options)
    return [float(step.median()) for step in feed(run, lambda _, param: torch.full_like(param, gradient), steps)]


def undecayed(subject: Subject, **options: Any) -> OptimizerRun:
    """Return a run of the optimizer without weight decay."""
    if takes(subject, "weight_decay"):
        options["weight_decay"] = 0.0
    return subject.run(lr=LR, **options)

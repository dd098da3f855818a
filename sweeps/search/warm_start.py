"""``cbs sweep --from``: start the learning-rate search at the best learning rates of other results.

The best learning rate at each batch size and its variance are taken from results of the same optimizer with the same
options, or else with other options. They are kept in ``sweep.json``, so a continued sweep uses what it first read even
if the other folder has changed since. They determine where a search starts, never where it ends: see
:func:`expected_from`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cbs.errors import ConfigError, ResultsError, reason
from cbs.registry.choices import Choice
from cbs.trial.store import MANIFEST, Store
from sweeps.spec.given_rates import Prior
from sweeps.spec.spec import Sweep

if TYPE_CHECKING:
    from analysis.estimate.learning_rate_law import LearningRateLaw
    from analysis.read.groups import Group
import math
from collections.abc import Sequence

from cbs.trial.lr_choice import Expected, expected

AT_AN_EDGE = 1.0  # Variance of ln lr if the best learning rate is the lowest or highest that was tried


def started(sweep: Sweep, folder: Path, source: Path | None, say: Callable[[str], None] = lambda line: None) -> Sweep:
    """Return the sweep with priors of its learning rates: those stored in ``folder``, else those read from ``source``.

    Args:
        sweep: the sweep, with its target resolved.
        folder: folder of the sweep.
        source: folder with results of other sweeps; ``None`` for none.
        say: called with one line for each optimizer that has a prior, or is not in ``source``.

    Raises:
        ConfigError: if ``source`` contains none of the optimizers, is the folder itself, or every learning rate is
            given.
        ResultsError: if there are no usable results, or ``folder`` has a damaged plan.
    """
    if source is not None and sweep.exhaustive:
        raise ConfigError(
            "--from sets where a learning-rate search starts, but this sweep searches nothing: leave it out"
        )
    if source is not None and source.resolve() == folder.resolve():
        raise ConfigError(f"--from {source} is the folder of this sweep, whose trials count anyway: leave it out")
    stored = {text: prior for text, prior in _stored(folder).items() if text in map(str, sweep.axes.optimizers)}
    for text, kept in stored.items():
        say(f"{text} starts from {kept.source}, as it was when first read: {kept.told}")
    missing = [choice for choice in sweep.axes.optimizers if str(choice) not in stored]
    if source is not None and missing:
        taken = _taken(sweep, source, missing)
        for choice in missing:
            prior = taken.get(str(choice))
            there = f"starts from {source}: {prior.told}" if prior else f"is not in {source}, and starts at its default"
            say(f"{choice} {there}")
        stored |= taken
    return sweep.replace(warm_start=stored) if stored else sweep


def _stored(folder: Path) -> dict[str, Prior]:
    if not (folder / MANIFEST).exists():
        return {}
    try:
        held = Store(folder).manifest().get("warm_start") or {}
        return {text: Prior.from_json(data) for text, data in held.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise ResultsError(f"warm_start in {folder / MANIFEST} cannot be read ({reason(error)}); remove it") from None


def _taken(sweep: Sweep, source: Path, choices: list[Choice]) -> dict[str, Prior]:
    """Return the priors found at ``source``, by the text of the optimizer."""
    from analysis.config import DEFAULT
    from analysis.estimate.estimates import answers
    from analysis.estimate.learning_rate_law import learning_rate_law
    from analysis.read.results import load

    there = answers(load(source), DEFAULT, noise=False)
    laws = [(answer.group, str(answer.target), learning_rate_law(answer.studies)) for answer in there]
    known = [entry for entry in laws if entry[2].optima]
    priors = {}
    for choice in choices:
        alike = [(_unlike(sweep, choice, group, law), index) for index, (group, _, law) in enumerate(known)]
        ranked = sorted((rank, index) for rank, index in alike if rank is not None)
        if ranked:
            priors[str(choice)] = _prior(str(source), choice, *known[ranked[0][1]])
    if not priors:
        others = ", ".join(dict.fromkeys(group.optimizer for group, *_ in known)) or "none with a best learning rate"
        named = ", ".join(map(str, choices))
        raise ConfigError(f"--from {source} has no best learning rate of {named}; its optimizers are: {others}")
    return priors


def _unlike(sweep: Sweep, choice: Choice, group: Group, law: LearningRateLaw) -> tuple[Any, ...] | None:
    """Return a sort key for how far a group is from an optimizer of the sweep; ``None`` if it is another
    optimizer's."""
    if group.choice.name != choice.name:
        return None
    alike = ((choice, ()), (sweep.axes.pooled(choice), tuple(sweep.axes.tuned.get(choice.name, ()))))
    return (
        (group.choice, group.tuned) not in alike,
        group.workload.partition("(")[0] != sweep.trial.workload.name,
        group.workload_options != sweep.trial.workload.options,
        -len(law.inside),
    )


def _prior(source: str, choice: Choice, group: Group, target: str, law: LearningRateLaw) -> Prior:
    inside = [entry for entry in law.optima if not entry.edge]
    used = inside or list(law.optima)
    sizes = [entry.batch_size for entry in used]
    what = f"{group.optimizer} on {group.workload} to {target}"
    what += f" ({' and '.join(group.tuned)} tuned there)" if group.tuned else ""
    what += "" if group.tuned or group.choice == choice else " (other options)"
    edge = "" if inside else ", the best at an edge"
    return Prior(
        source=source,
        told=f"{what}, best learning rates at {len(sizes)} batch sizes from {sizes[0]} to {sizes[-1]}{edge}",
        batch_sizes=tuple(sizes),
        log_lrs=tuple(entry.log_lr for entry in used),
        variances=tuple(entry.variance if inside else AT_AN_EDGE for entry in used),
    )


# Prior standard deviation of ln lr between two sweeps of the same optimizer
MOVED = math.log(2.0)


def expected_from(prior: Prior, at: float, known: Sequence[tuple[float, float, float]]) -> Expected:
    r"""Predict the best learning rate at one batch size, from another sweep and from the sweep's own results.

    .. math:: \ln\eta(B) = \ln\eta_{there}(B) + d(B)

    :math:`\eta_{there}` is the line of :mod:`cbs.trial.lr_choice` through the optima of the other sweep. Before any
    trial has run, :math:`d` is 0 with standard deviation :data:`MOVED`; afterwards it is the same kind of line, with a
    prior slope of 0, through the differences between the sweep's own optima and the prediction. Another width, depth or
    target that shifts all learning rates alike therefore costs one search only, and the sweep's own optima take over as
    they arrive: the prior places trials but never decides which learning rate is best.

    Args:
        prior: best learning rates of the optimizer in the other sweep.
        at: ln of the batch size asked for.
        known: the sweep's own optima, each as ln batch size, ln of the best learning rate and its variance; may be
            empty.
    """

    def there(size: float) -> Expected:
        return expected(size, prior.log_sizes, prior.log_lrs, prior.variances)

    law = there(at)
    if not known:
        return Expected(law.log_lr, math.hypot(law.deviation, MOVED))
    sizes, lrs, variances = zip(*known, strict=True)
    moved = [lr - there(size).log_lr for size, lr in zip(sizes, lrs, strict=True)]
    rest = expected(at, sizes, moved, variances, slope=0.0)
    return Expected(law.log_lr + rest.log_lr, rest.deviation)

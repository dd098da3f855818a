r"""Options in examples: hyperparameters that keep their meaning when the batch size changes.

A decay per step or a weight decay tuned at one batch size means something else at another. Two options can be given in
examples, for every optimizer that has the option they replace, and are converted for the batch size of a trial:

``beta2_half_life``
    Number of examples after which the weight of a squared gradient in the second moment is halved. With t the
    half-life, :math:`\beta_2(B) = 2^{-B/t}`, hence :math:`\beta_2(B) = \beta_2(B_0)^{B/B_0}` (Marek et al. 2025, arXiv
    2507.07101). Replaces the second of ``betas``. It is refused where that is another decay, as in Lion and Adan, or
    not applied at every step, as in Sophia.

``weight_decay_timescale``
    Examples over which decoupled weight decay averages the updates, :math:`\tau = B / (\eta \lambda)` with learning
    rate :math:`\eta` (the AdamW timescale, Bergsma et al. 2025, arXiv 2505.13738, there as a fraction of the training
    examples). Replaces ``weight_decay`` by :math:`\lambda = B / (\eta \tau)`, with the trial's peak learning rate. It
    is refused where weight decay is not decoupled, as inside the ratio of LAMB or in the gradient of SGD, because the
    product then means something else, and where a step decays weights several times, as Gauss-Newton does.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch

from cbs.errors import ConfigError
from cbs.registry.values import is_number
from cbs.trial.config import Choice

SCALED_OPTIONS = {"beta2_half_life": "betas", "weight_decay_timescale": "weight_decay"}
"""Options in examples, and the option of an optimizer that each replaces."""


def scaled_options(options: Mapping[str, Any], second_moment: bool, decoupled_decay: bool | str) -> tuple[str, ...]:
    """Return the options in examples that an optimizer supports.

    Args:
        options: its own options with their values.
        second_moment: whether the second of its ``betas`` is the decay per step of squared gradients.
        decoupled_decay: whether its weight decay is decoupled, or the option that says so.
    """
    decoupled = options[decoupled_decay] if isinstance(decoupled_decay, str) else decoupled_decay
    meaningless = {
        "beta2_half_life": not second_moment,
        # With fixed_decay a step of pytorch_optimizer decays by weight_decay, whatever the learning rate.
        "weight_decay_timescale": not decoupled or options.get("fixed_decay"),
    }
    known = [name for name, target in SCALED_OPTIONS.items() if target in options and name not in options]
    return tuple(name for name in known if not meaningless[name])


def resolve(
    choice: Choice,
    defaults: Mapping[str, Any],
    second_moment: bool = True,
    decoupled_decay: bool | str = True,
    *,
    lr: float,
    batch_size: int,
) -> dict[str, Any]:
    """Return the options of ``choice`` with those in examples converted for ``batch_size``.

    Args:
        choice: an optimizer and its options.
        defaults: the optimizer's own options with their defaults.
        second_moment: whether the second of its ``betas`` is the decay per step of squared gradients.
        decoupled_decay: whether its weight decay is decoupled, or the option that says so.
        lr: peak learning rate.
        batch_size: examples per update.

    Raises:
        ConfigError: if the optimizer does not support an option, both forms are given, or a value is not above 0.
    """
    options = dict(choice.options)
    for name, target in SCALED_OPTIONS.items():
        if name not in options or name in defaults:
            continue
        examples = options.pop(name)
        if name not in scaled_options({**defaults, **options}, second_moment, decoupled_decay):
            once = {"betas": "second moment that decays", "weight_decay": "decoupled weight decay that acts"}[target]
            lacking = f"{once} once a step" if target in defaults else target
            raise ConfigError(f"optimizer {choice.name!r} has no {lacking}, so {name} means nothing for it")
        if not is_number(examples) or not 0.0 < examples < math.inf:
            raise ConfigError(f"{name} of {choice.name!r} must be a number of examples above 0, got {examples!r}")
        if target == "weight_decay":
            if "weight_decay" in options:
                raise ConfigError(f"optimizer {choice.name!r}: give weight_decay or {name}, not both")
            options["weight_decay"] = batch_size / (lr * float(examples))
        else:
            beta1, _, *others = options.get("betas", defaults["betas"])
            options["betas"] = [beta1, decay_at(batch_size, float(examples)), *others]
    return options


def decay_at(batch_size: int, half_life: float) -> float:
    """Return the decay per step of an average, such as a second moment, in which weights are halved after ``half_life``
    examples.

    >>> decay_at(64, half_life=64.0)
    0.5
    """
    return 2.0 ** (-batch_size / half_life)


class Rescaling:
    """Keeps the options in examples of a built optimizer constant in examples when the batch size changes.

    Args:
        choice: the optimizer and its options.
        optimizer: the built optimizer.
        lr: peak learning rate with which it was built.
        batch_size: batch size for which it was built.
    """

    def __init__(self, choice: Choice, optimizer: torch.optim.Optimizer, lr: float, batch_size: int) -> None:
        self._optimizer = optimizer
        self._given = {name: choice.options[name] for name in SCALED_OPTIONS if name in choice.options}
        self._choice, self._now = choice, (lr, batch_size)

    def resume(self, batch_size: int, lr: float) -> None:
        """Set the batch size and learning rate that the options of a loaded optimizer are for."""
        self._now = (lr, batch_size)

    def to(self, batch_size: int, lr: float) -> None:
        """Convert the options for another batch size and another peak learning rate.

        Raises:
            ConfigError: if no parameter group holds the option with its expected value.
        """
        (old_lr, old_size), self._now = self._now, (lr, batch_size)
        for name, examples in self._given.items():
            count = 0
            for group in self._optimizer.param_groups:
                if name == "beta2_half_life" and _close(group.get("betas", (0, -1))[1], decay_at(old_size, examples)):
                    group["betas"] = (group["betas"][0], decay_at(batch_size, examples), *group["betas"][2:])
                    count += 1
                elif name == "weight_decay_timescale" and _close(
                    group.get("weight_decay", -1), old_size / (old_lr * examples)
                ):
                    group["weight_decay"] = batch_size / (lr * examples)
                    count += 1
            if not count:
                raise ConfigError(
                    f"{name} of {self._choice.name!r} cannot follow a batch size that changes; give "
                    f"{SCALED_OPTIONS[name]} instead"
                )


def _close(value: object, wanted: float) -> bool:
    return isinstance(value, int | float) and math.isclose(value, wanted, rel_tol=1e-9)

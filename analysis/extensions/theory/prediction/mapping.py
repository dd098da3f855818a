"""Which optimizers the noisy quadratic covers, and which settings of a trial it does not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cbs.registry.choices import Choice
from cbs.trial.config import UNKNOWN

DEFAULTS: dict[str, dict[str, Any]] = {
    "sgd": {"momentum": 0.9, "nesterov": False},
    "adam": {"betas": [0.9, 0.99]},
    "adamw": {"betas": [0.9, 0.99]},
}
"""Covered optimizers, with the options that matter and their defaults."""

ADAM_POWER = 0.5
"""Adam divides by the root of the second moment of the gradient. If noise dominates the gradient and is proportional to
the curvature, this is the root of the curvature (Zhang et al. 2019, arXiv:1907.04164)."""


_MATTERS = ("averaging", "clip_norm", "schedule")
"""Settings that the quadratic ignores."""


@dataclass(frozen=True, kw_only=True)
class Mapped:
    """A method of the noisy quadratic, with momentum and the preconditioner ``h^-power``."""

    method: str
    momentum: float = 0.0
    power: float = 0.0

    @property
    def words(self) -> str:
        """The method in a few words."""
        momentum = f" {self.momentum:g}" if self.momentum else ""
        power = f", preconditioner h^-{self.power:g}" if self.power else ""
        return f"{self.method.replace('_', ' ')}{momentum}{power}"


def mapped(choice: Choice, config: Mapping[str, Any]) -> Mapped | str:
    """Return the method on the quadratic that corresponds to an optimizer, or why there is none; ``config`` is that of
    a trial's record."""
    if choice.name not in DEFAULTS:
        return f"the noisy quadratic model covers {', '.join(DEFAULTS)}"
    if config.get("averaging") not in (None, UNKNOWN):
        return "the noisy quadratic model covers no averaged weights with momentum or preconditioning"
    options = DEFAULTS[choice.name] | choice.options
    if choice.name == "sgd":
        method = "sgd" if not options["momentum"] else "nesterov" if options["nesterov"] else "heavy_ball"
        return Mapped(method=method, momentum=float(options["momentum"]))
    momentum = float(options["betas"][0])
    return Mapped(method="heavy_ball" if momentum else "sgd", momentum=momentum, power=ADAM_POWER)


def unlike(choice: Choice, config: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the trials did that the quadratic does not."""
    if choice.options.get("weight_decay"):
        yield f"trained with weight decay {choice.options['weight_decay']:g}, which the quadratic leaves out"
    if unknown := [name for name in _MATTERS if config.get(name) == UNKNOWN]:
        yield f"how its program uses {', '.join(unknown)} is unknown; the quadratic does not model it"
        return
    if config.get("clip_norm"):
        yield f"gradients were clipped at {config['clip_norm']:g}, which the quadratic does not do"
    schedule = config["schedule"]["name"]
    if schedule != "constant":
        yield f"trained with the learning rate schedule {schedule}, the quadratic with a constant one"

"""Decide which bound covers an optimizer, by its options."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any

from analysis.extensions.theory.bounds.closed_form import relative_best
from analysis.read.groups import Group
from cbs.errors import ConfigError
from cbs.registry.choices import Choice


@dataclass(frozen=True, kw_only=True)
class Covered:
    """What the bounds need to know about one of our optimizers.

    Attributes:
        options: its options that matter to the bounds, with their defaults.
        fixed_length: whether a step has the length of the learning rate in some norm.
        also: other properties that the bounds do not cover.
    """

    options: dict[str, Any]
    fixed_length: bool = True
    also: str = ""


COVERED = {
    "muon": Covered(
        options={"momentum": 0.95, "nesterov": True, "weight_decay": 0.0},
        also="parameters that are not matrices are trained by AdamW",
    ),
    "sgd": Covered(options={"momentum": 0.9, "nesterov": False, "weight_decay": 0.0}, fixed_length=False),
    "signsgd": Covered(options={"weight_decay": 0.0}),
    "signum": Covered(options={"momentum": 0.9, "weight_decay": 0.0}),
}
"""Covered optimizers by name; the papers say nothing about any other."""

FREE_LENGTH = "the bound of momentum is for steps of a fixed length, and those of SGD are not"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One optimizer with its properties that matter to the bounds.

    ``form`` of the bound on its steps is one of :data:`analysis.extensions.theory.bounds.law.FORMS`, and ``remark``
    says where the optimizer deviates from what the bound assumes.
    """

    name: str
    beta: float
    nesterov: bool
    weight_decay: float
    form: str
    others: tuple[tuple[str, Any], ...]
    remark: str = ""

    @property
    def relative_best(self) -> float:
        """See :func:`.closed_form.relative_best`."""
        return relative_best(self.beta, nesterov=self.nesterov, weight_decay=self.weight_decay)

    def __str__(self) -> str:
        parts = (f"beta {self.beta:g}", "Nesterov" if self.nesterov else "", f"weight decay {self.weight_decay:g}")
        return ", ".join(part for part in parts if part and part != "weight decay 0")


def setting_of(group: Group) -> Setting:
    """Return the setting of a group of trials; raise ``ConfigError`` that says why no bound covers it.

    An option that the sweep did not name has our default, unless the results were imported, when it is unknown.
    """
    if group.tuned:
        raise ConfigError(
            f"its {' and '.join(group.tuned)} was tuned at every batch size, and a bound assumes one value"
        )
    imported = bool(group.manifest.get("imported"))
    return read_setting(group.choice, defaults=not imported)


def read_setting(choice: Choice, *, defaults: bool = True) -> Setting:
    """Return the setting of an optimizer with its options; ``defaults`` is whether unnamed options have our default.
    Errors are those of :func:`setting_of`."""
    covered = COVERED.get(choice.name)
    if covered is None:
        raise ConfigError(f"the papers have no bound for it, only for {', '.join(COVERED)}")
    unnamed = [name for name in covered.options if name not in choice.options]
    if unnamed and not defaults:
        raise ConfigError(f"the results do not say its {' and '.join(unnamed)}; name them when importing, with --set")
    options = {**covered.options, **choice.options}
    beta, decay = (_number(options.get(name, 0.0), name) for name in ("momentum", "weight_decay"))
    if not 0.0 <= beta < 1.0:
        raise ConfigError(f"its momentum {beta:g} is not in [0, 1)")
    if decay < 0 or (decay and not covered.fixed_length):
        raise ConfigError(f"its weight decay {decay:g} is not decoupled from the gradient, as the bound has it")
    nesterov = options.get("nesterov", False) is True
    remarks = [FREE_LENGTH if beta and not covered.fixed_length else "", covered.also]
    return Setting(
        name=choice.name,
        beta=beta,
        nesterov=nesterov and beta > 0,
        weight_decay=decay,
        form="decay" if decay else "root" if beta or covered.fixed_length else "linear",
        others=tuple(sorted((name, str(value)) for name, value in options.items() if name not in covered.options)),
        remark="; ".join(filter(None, remarks)),
    )


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ConfigError(f"its {name} is {value!r}, not a number")
    return float(value)

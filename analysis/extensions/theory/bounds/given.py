"""Steps bounds for constants that somebody names: how steps, examples and the best batch size follow from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from analysis.plain import shown
from cbs.errors import ConfigError
from cbs.theory.steps_bounds import BoundConstants, PowerBound, StepsBound, momentum, sgd
from cbs.trial.store import finite_or_none

NESTEROV = {"sgd": False, "momentum": False, "muon": True}
"""Optimizers that constants can be given for, and whether they look ahead unless told."""

REACHES = {
    "sgd": "least mean squared gradient norm",
    "momentum": "mean gradient norm",
    "decay": "loss above its least value",
}
"""What the accuracy is of; bounds on steps to unlike ones must not be compared."""


@dataclass(frozen=True, kw_only=True)
class GivenBound:
    """The bound of one setting.

    Attributes:
        optimizer: ``sgd``, ``momentum`` or ``muon``.
        beta: momentum; 0 for ``sgd``.
        weight_decay: decoupled.
        reaches: what the accuracy is of, one of :data:`REACHES`.
    """

    optimizer: str
    beta: float
    nesterov: bool
    weight_decay: float
    bound: StepsBound = field(repr=False)
    reaches: str

    @property
    def label(self) -> str:
        """The optimizer with its setting."""
        parts = [self.optimizer] if self.optimizer == "sgd" else [self.optimizer, f"beta {self.beta:g}"]
        parts += ["Nesterov"] if self.nesterov else []
        return ", ".join([*parts, *([f"weight decay {self.weight_decay:g}"] if self.weight_decay else [])])

    @property
    def lower_bound(self) -> float | None:
        """What ``b*`` exceeds whatever Z is; ``None`` with weight decay, for which the paper states none."""
        return self.bound.lower_bound if isinstance(self.bound, PowerBound) else None

    def curve(self, batch_sizes: Sequence[int]) -> list[dict[str, float | None]]:
        """Batch size, steps and examples; none where the bound does not exist."""
        rows = zip(batch_sizes, self.bound.steps(batch_sizes), self.bound.examples(batch_sizes), strict=True)
        return [
            {"batch_size": size, "steps": finite_or_none(steps), "examples": finite_or_none(examples)}
            for size, steps, examples in rows
        ]

    def to_json(self) -> dict[str, Any]:
        bound = self.bound
        return shown(self) | {
            **{name: getattr(bound, name) for name in ("x", "y", "z", "accuracy", "slack")},
            "smallest_batch_size": bound.pole,
            "best_batch_size": bound.best_batch_size,
            "best_batch_size_lower_bound": self.lower_bound,
            "steps_at_best": float(bound.steps(bound.best_batch_size)),
            "examples_at_best": bound.fewest_examples,
        }


@dataclass(frozen=True, kw_only=True)
class GivenBounds:
    """What :func:`given_bounds` found, one bound per setting; steps are evaluated at ``batch_sizes``, and ``notes``
    name the settings without a bound, one line each."""

    problem: BoundConstants
    bounds: tuple[GivenBound, ...]
    batch_sizes: tuple[int, ...]
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        curves = [bound.to_json() | {"curve": bound.curve(self.batch_sizes)} for bound in self.bounds]
        return {"problem": shown(self.problem), "bounds": curves, "notes": list(self.notes)}


def given_bounds(
    problem: BoundConstants,
    optimizers: Sequence[str],
    *,
    betas: Sequence[float] = (0.95,),
    weight_decays: Sequence[float] = (0.0,),
    nesterov: bool | None = None,
    batch_sizes: Sequence[int],
) -> GivenBounds:
    """The bounds of all settings.

    Args:
        problem: the constants.
        optimizers: names of :data:`NESTEROV`.
        betas, weight_decays, nesterov: of ``momentum`` and ``muon``; ``None`` is each one's own.
        batch_sizes: where steps are evaluated.

    Raises:
        ConfigError: if a value is outside its domain, or there is no bound for any of the settings.
    """
    bounds, notes = [], []
    for optimizer in optimizers:
        if optimizer not in NESTEROV:
            raise ConfigError(f"--optim {optimizer}: steps bounds are for {', '.join(NESTEROV)}")
        alone = optimizer == "sgd"
        for beta in (0.0,) if alone else betas:
            for decay in (0.0,) if alone else weight_decays:
                ahead = False if alone else NESTEROV[optimizer] if nesterov is None else nesterov
                about: dict[str, Any] = {"beta": beta, "nesterov": ahead, "weight_decay": decay}
                try:
                    bound = sgd(problem) if alone else momentum(problem, **about)
                except ValueError as error:
                    notes.append(f"{optimizer}, beta {beta:g}, weight decay {decay:g}: {error}")
                    continue
                kind = "sgd" if alone else "decay" if decay else "momentum"
                bounds.append(GivenBound(optimizer=optimizer, bound=bound, reaches=REACHES[kind], **about))
    if not bounds:
        raise ConfigError("; ".join(dict.fromkeys(notes)))
    if len({bound.reaches for bound in bounds}) > 1:
        notes.append("steps to different accuracies must not be compared: see column 'reaches'")
    return GivenBounds(problem=problem, bounds=tuple(bounds), batch_sizes=tuple(batch_sizes), notes=tuple(notes))

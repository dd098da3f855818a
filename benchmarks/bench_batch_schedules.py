r"""How near each batch schedule comes to the best one there is, on the noisy quadratic.

Everything is in closed form: the loss under a schedule, what a rule that looks at the run sees (the true noise scale),
and the best batch sizes at the learning rates that the rule had, which no other batch sizes beat. Every rule runs at
the best of a grid of learning rates, by the product of steps and examples. Run it as
``python benchmarks/bench_batch_schedules.py``; the table of ``benchmarks/tables.md`` is its output.

At given learning rates :math:`\eta_t`, t = 1 ... T, the noise of step t enters the loss at the end as
:math:`\eta_t^2 K_t / b_t` with

.. math:: K_t = \tfrac12 \sum_i h_i p_i^2 c_i \prod_{u > t} (1 - \eta_u p_i h_i)^2

and p the preconditioner; the rest of the loss does not see the batch sizes. Under :math:`\sum b_t = E` the sum is
convex in b, and least where :math:`\eta_t^2 K_t / b_t^2` is the same at every step:

.. math:: b_t = E \frac{\eta_t \sqrt{K_t}}{A}, \qquad L = L_0 + \frac{A^2}{E}, \qquad A = \sum_t \eta_t \sqrt{K_t}

So T steps at these learning rates reach a target with :math:`A^2 / (L^* - L_0)` examples, and no fewer. Batch sizes
are any positive numbers here; whole ones are a part of them, so it stays a bound.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from cbs.registry.choices import Choice
from cbs.schedules.batch_size import GRAD_SQ_NORM, ClosedLoop, Observed, OpenLoop, RunSettings, build_batch_schedule
from cbs.schedules.learning_rate import build_schedule
from cbs.trial.config import Schedule
from extensions.theory.noisy_quadratic import NoisyQuadratic

MODEL = NoisyQuadratic.power_law(200, power=1.0)
TARGET, FIRST, BUDGET = 0.05, 8, 24_000
FALLING = ("seesaw", "smith")
LRS = np.geomspace(1.2, 0.06, 10)
CONSTANT_LRS = np.geomspace(0.05, 1.9, 15)
HORIZONS = (4_000, 6_000, 9_000)  # Examples over which a learning rate falls, where it does; the best one counts

LOOKS = {"measurements": 20, "cap": 256}

RULES: dict[str, dict[str, Any]] = {
    "constant": {},
    "stages": {"table": "0:8 2K:16 6K:32 12K:64"},
    "linear_ramp": {"to": 64, "over_examples": 12_000, "increment": 4},
    "growth": {"first_examples": 1500, "cap": 256},
    "late_switch": {"to": 64, "at": 0.25},
    "noise_rule": {"price": 16.0, **LOOKS},
    "norm_test": {"theta": 0.9, **LOOKS},
    "dual_norm": {"theta": 0.9, **LOOKS},
    "doubling": LOOKS,
    "growth_by_gradient": {"first_norm": 0.7, **LOOKS},
    "seesaw": {"cap": 256},
    "smith": {"cut": 2.0, "cap": 256},
}


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    r"""The best batch sizes at given learning rates.

    Attributes:
        noiseless: loss at the end without any noise, below which no batch size leads.
        weights: :math:`\eta_t \sqrt{K_t}`, shape ``[T]``.
    """

    noiseless: float
    weights: np.ndarray

    def batch_sizes(self, examples: float) -> np.ndarray:
        """Those of the least loss with so many examples, shape ``[T]``; 0 where a step adds no noise."""
        return np.asarray(examples * self.weights / self.weights.sum())

    def loss(self, examples: float) -> float:
        """The least with so many examples."""
        return self.noiseless + float(self.weights.sum()) ** 2 / examples

    def examples(self, loss: float) -> float:
        """The fewest that lead to a loss; infinity where none do."""
        return float(self.weights.sum()) ** 2 / (loss - self.noiseless) if loss > self.noiseless else np.inf


def ceiling(model: NoisyQuadratic, lrs: np.ndarray, *, power: float = 0.0) -> Ceiling:
    """The best batch sizes of SGD at these learning rates, shape ``[T]``.

    Args:
        model: the noisy quadratic.
        lrs: of every step, at least 0.
        power: exponent of the preconditioner.

    Raises:
        ValueError: if a learning rate is negative, or there is none.
    """
    lrs = np.asarray(lrs, dtype=float)
    if lrs.ndim != 1 or not len(lrs) or not (lrs >= 0).all():
        raise ValueError("learning rates are a vector of at least one, none of them negative")
    scale = model.preconditioner(power)
    kept = (1.0 - lrs[:, None] * scale * model.curvature) ** 2
    after = np.cumprod(np.vstack([np.ones(kept.shape[1]), kept[:0:-1]]), axis=0)[::-1]
    weight = 0.5 * model.count * model.curvature
    noise = after @ (weight * scale**2 * model.noise)
    return Ceiling(
        noiseless=float(weight @ (model.start * after[0] * kept[0])), weights=np.asarray(lrs * np.sqrt(noise))
    )


def fewest_examples(
    model: NoisyQuadratic, target: float, steps: int, lrs: np.ndarray, *, power: float = 0.0
) -> tuple[float, float]:
    """Examples to the target in so many steps at the best constant learning rate of those given, and this one; infinity
    where none leads there."""
    found = [(ceiling(model, np.full(steps, lr), power=power).examples(target), float(lr)) for lr in lrs]
    return min(found)


@dataclass(frozen=True)
class Taken:
    """A run to the target: its steps, examples, learning rates ``[steps]`` and loss at the end."""

    steps: int
    examples: int
    lrs: np.ndarray
    loss: float


def run(name: str, lr: float, horizon: int | None, most: float) -> Taken | None:
    """One rule at one learning rate; ``None`` where it does not reach the target within the budget, or with steps times
    examples of ``most``."""
    schedule = Schedule() if horizon is None else Schedule(name="cosine", decay_examples=horizon)
    about = RunSettings(batch_size=FIRST, examples=horizon or BUDGET, lr_schedule=schedule)
    rule = build_batch_schedule(Choice(name=name, options=RULES[name]), about)
    falls = rule.multiplier or build_schedule(schedule)
    moment, noise, weight = MODEL.start.copy(), float(MODEL.noise.sum()), 0.5 * MODEL.curvature
    lrs: list[float] = []
    stage, seen, signals = rule.stage(0) if isinstance(rule, OpenLoop) else rule.first, 0, list[float]()
    while seen + stage.batch_size <= about.examples and len(lrs) * seen < most:
        if isinstance(rule, OpenLoop):
            stage = rule.stage(seen)
        signals.append(float((MODEL.curvature**2 * moment).sum()))
        seen += stage.batch_size
        lrs.append(lr * stage.lr_factor * falls(seen))
        kept = (1 - lrs[-1] * MODEL.curvature) ** 2
        moment = kept * moment + lrs[-1] ** 2 * MODEL.noise / stage.batch_size
        loss = float(weight @ moment)
        if loss <= TARGET:
            return Taken(len(lrs), seen, np.array(lrs), loss)
        if not loss < 1e3:
            return None
        if isinstance(rule, ClosedLoop) and len(lrs) % rule.measurements == 0 and seen >= rule.from_examples:
            signal = float(np.mean(signals[-rule.measurements :]))
            value = signal if rule.looks_at == GRAD_SQ_NORM else noise / signal
            stage = rule.decide(seen, Observed(stage=stage, low=value, value=value, high=value))
    return None


def best(name: str) -> Taken:
    """Over learning rates, by the product of steps and examples."""
    found, most = None, np.inf
    for horizon in HORIZONS if name in FALLING else (None,):
        for lr in LRS:
            taken = run(name, lr, horizon, most)
            if taken is not None and taken.steps * taken.examples < most:
                found, most = taken, taken.steps * taken.examples
    if found is None:
        raise SystemExit(f"{name} does not reach the target")
    return found


def rows() -> list[tuple[str, int, int, float, float]]:
    """Per rule its name, steps, examples, and these over the fewest in as many steps: with the best batch sizes at its
    own learning rates, and with the best constant learning rate, too."""
    found = []
    for name in RULES:
        taken = best(name)
        own = ceiling(MODEL, taken.lrs).examples(taken.loss)
        least, _ = fewest_examples(MODEL, taken.loss, taken.steps, CONSTANT_LRS)
        found.append((name, taken.steps, taken.examples, taken.examples / own, taken.examples / least))
    return found


def table() -> list[str]:
    """What :func:`main` prints, line by line."""
    head = "| rule | steps | examples | over the best at its learning rates | over the best at a constant one |"
    lines = [f"| `{name}` | {steps:,} | {seen:,} | {own:.2f} | {best:.2f} |" for name, steps, seen, own, best in rows()]
    return [head, "|---|---|---|---|---|", *lines]


def main() -> None:
    print("\n".join(table()))


if __name__ == "__main__":
    main()

r"""Steps to target as trials of a linear method on the noisy quadratic find them, without training.

A trial ends at the first *evaluation* below the target, and its loss fluctuates: it touches the target before its
expectation does. Nothing about that is left to training code here. The parameters of a coordinate and its momentum
:math:`z = (\theta, v)` follow :math:`z' = M z + k \xi` with :math:`\xi` standard normal,

.. math:: M = \begin{pmatrix} 1 - x & m \\ -x & m \end{pmatrix}, \quad k = \eta h^{-p} \sqrt{c/B}\,(1, 1),
    \quad x = \eta h^{1-p}

(arXiv:1907.04164, equation 21), so n steps later z is normal with mean :math:`M^n z` and covariance
:math:`Q_n = \sum_{j<n} M^j k k^\top M^{j\top}`. A run is drawn exactly at its evaluations, a hundred normal vectors for
a thousand steps.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from cbs.trial.config import EvaluationPlan
from cbs.trial.target import Target
from extensions.theory.noisy_quadratic import NoisyQuadratic

DIVERGED = 5.0  # Multiple of the first distance to the target beyond which a trial has diverged

Step = tuple[np.ndarray, np.ndarray]  # ``M^n`` and ``Q_n``, both of shape ``[parts, parts, d]``


@dataclass
class Walk:
    """A linear method at one setting; one part (the parameters) without momentum, else two.

    Attributes:
        model: the quadratic.
        lr, momentum, power: of the method.
        batch_size: examples per step; infinite for no noise.
    """

    model: NoisyQuadratic
    lr: float
    batch_size: float
    momentum: float = 0.0
    power: float = 0.0
    _known: dict[int, Step] = field(default_factory=dict, repr=False)

    @property
    def parts(self) -> int:
        """Vectors of the state."""
        return 2 if self.momentum else 1

    def step(self, count: int) -> Step:
        """What ``count`` steps do."""
        if count not in self._known:
            self._known[count] = self._one() if count == 1 else self._joined(count // 2, count - count // 2)
        return self._known[count]

    def root(self, count: int) -> np.ndarray:
        """Lower triangular root of ``Q_n``, shape ``[parts, parts, d]``."""
        covariance = self.step(count)[1]
        found = np.zeros_like(covariance)
        found[0, 0] = np.sqrt(covariance[0, 0])
        if self.parts == 2:
            lower = np.divide(covariance[1, 0], found[0, 0], out=np.zeros_like(found[0, 0]), where=found[0, 0] > 0)
            found[1, 0], found[1, 1] = lower, np.sqrt(np.maximum(covariance[1, 1] - lower**2, 0.0))
        return found

    def second_moments(self, steps: int) -> np.ndarray:
        """Of the parameters after so many steps, shape ``[d]``."""
        if steps == 0:
            return self.model.start
        power, covariance = self.step(steps)
        return np.asarray(power[0, 0] ** 2 * self.model.start + covariance[0, 0])

    def _one(self) -> Step:
        scale = self.lr * self.model.preconditioner(self.power)
        x, kick = scale * self.model.curvature, scale**2 * self.model.noise / self.batch_size
        m = np.full_like(x, self.momentum)
        power = np.array([[1.0 - x, m], [-x, m]])
        return power[: self.parts, : self.parts], np.broadcast_to(kick, (self.parts, self.parts, len(x)))

    def _joined(self, first: int, then: int) -> Step:
        (power, covariance), (later, added) = self.step(first), self.step(then)
        return (
            np.einsum("ijd,jkd->ikd", later, power),
            np.einsum("ijd,jkd,lkd->ild", later, covariance, later) + added,
        )


def first_passages(
    walk: Walk, target: float, plan: EvaluationPlan, runs: int, rng: np.random.Generator, *, most: int = 2**20
) -> np.ndarray:
    """Steps to a loss below ``target`` of ``runs`` runs, from starts of their own; infinity where one never gets there.

    Args:
        walk: the method.
        target: loss to fall below.
        plan: when the loss is looked at.
        runs: how many.
        rng: the randomness.
        most: steps after which a run is given up.
    """
    dimension = len(walk.model.curvature)
    state = np.zeros((runs, walk.parts, dimension), dtype=np.float32)
    state[:, 0] = rng.standard_normal((runs, dimension), dtype=np.float32) * np.sqrt(walk.model.start)
    weight = (0.5 * walk.model.curvature).astype(np.float32)

    def losses(rows: np.ndarray) -> np.ndarray:
        return np.einsum("rd,rd,d->r", rows, rows, weight).astype(float)

    at, value = np.zeros(runs, dtype=int), losses(state[:, 0])
    reach, alive = value - target, np.arange(runs)
    before: dict[int, tuple[int, float]] = {}
    seen = [(alive, at.copy(), value.copy())]
    while len(alive):
        shares = (value[alive] - target) / reach[alive]
        latest = dict(zip(alive.tolist(), zip(at[alive].tolist(), shares.tolist(), strict=True), strict=True))
        coming = np.array([plan.next_step(*each, before.get(run)) for run, each in latest.items()])
        before = latest
        ahead = coming - at[alive]
        now = np.empty(len(alive))
        for count in np.unique(ahead):
            some = np.flatnonzero(ahead == count)
            state[alive[some]] = moved = _moved(walk, int(count), state[alive[some]], rng)
            now[some] = losses(moved[:, 0])
        seen.append((alive, coming, now))
        at[alive], value[alive] = coming, now
        alive = alive[(now >= target) & (now - target <= DIVERGED * reach[alive]) & (coming < most)]
    run, steps, values = (np.concatenate(column) for column in zip(*seen, strict=True))
    order = np.argsort(run, kind="stable")
    crossings = Target(metric="loss", value=target).crossings(run[order], steps[order], values[order], runs)
    return np.where(np.isnan(crossings), math.inf, crossings)


def _moved(walk: Walk, count: int, state: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    power, root = walk.step(count)[0].astype(np.float32), walk.root(count).astype(np.float32)
    drawn = rng.standard_normal(state.shape, dtype=np.float32)
    moved = np.empty_like(state)
    for part in range(walk.parts):
        moved[:, part] = sum(power[part, other] * state[:, other] for other in range(walk.parts))
        moved[:, part] += sum(root[part, other] * drawn[:, other] for other in range(part + 1))
    return moved

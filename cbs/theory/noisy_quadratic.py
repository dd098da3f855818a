r"""Expected loss of SGD, heavy-ball momentum and averaged iterates on a noisy quadratic, in closed form.

The model of Zhang et al. (2019), "Which Algorithmic Choices Matter at Which Batch Sizes?", arXiv:1907.04164: the loss
is :math:`\frac12 \sum_i h_i \theta_i^2` and the gradient of a batch of B examples is :math:`h_i \theta_i` plus
independent noise of variance :math:`c_i/B`. The coordinates do not talk to each other and the second moments of each
follow a linear recurrence, so the expected loss after k steps takes about log k small matrix products.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True, kw_only=True)
class Recurrence:
    """Second moments ``q -> T q + n`` of every coordinate, and the expected loss read from them.

    There are ``d`` coordinates with ``m`` moments each. Leading dimensions, such as a grid of learning rates, are
    carried along.

    Attributes:
        transition: ``T``, shape ``[..., d, m, m]``.
        drive: ``n``, the moments that the gradient noise adds in a step, shape ``[..., d, m]``.
        start: moments before the first step, shape ``[d, m]``.
        readout: weights of the moments in the expected loss, shape ``[d, m]``.
    """

    transition: np.ndarray
    drive: np.ndarray
    start: np.ndarray
    readout: np.ndarray

    def loss(self, steps: int) -> np.ndarray:
        """Expected loss after ``steps`` steps, shape ``[...]``."""
        with np.errstate(all="ignore"):
            state, jump = self._state(), (self.transition, self.drive)
            while steps:
                if steps & 1:
                    state = _apply(jump, state)
                steps >>= 1
                jump = _twice(jump)
        return self._read(state)

    def losses(self, steps: int) -> np.ndarray:
        """Expected loss after 0, 1, ..., ``steps`` steps, shape ``[..., steps + 1]``; costs one matrix product."""
        doublings = (steps.bit_length() + 1) // 2
        width = 2**doublings
        row, offset = np.broadcast_to(self.readout, self.drive.shape), np.zeros(self.drive.shape[:-2])
        rows, offsets, states, state = [], [], [], self._state()
        with np.errstate(all="ignore"):
            jump = self.transition, self.drive
            for _ in range(width):
                rows.append(row.reshape(*offset.shape, -1))
                offsets.append(offset)
                offset = offset + (row * self.drive).sum((-1, -2))
                row = (row[..., None, :] @ self.transition)[..., 0, :]
            for _ in range(doublings):
                jump = _twice(jump)
            for _ in range(steps // width + 1):
                states.append(state.reshape(*offset.shape, -1))
                state = _apply(jump, state)
            table = np.stack(states, -2) @ np.stack(rows, -1) + np.stack(offsets, -1)[..., None, :]
        return table.reshape(*offset.shape, -1)[..., : steps + 1]

    def steps_to_target(self, target: float, limit: int = 10_000_000) -> float:
        """First step at or below ``target``, infinity if there is none up to ``limit``; no leading dimensions.

        Every step is looked at, so a loss that oscillates (momentum) or rises again is no trouble.
        """
        horizon = 1023
        while True:
            below = self.losses(min(horizon, limit)) <= target
            if below.any():
                return float(below.argmax())
            if horizon >= limit:
                return np.inf
            horizon = 8 * horizon + 7

    def bisect(self, target: float, limit: int) -> np.ndarray:
        """A step at which the loss passes ``target``, by bisection, shape ``[...]``; infinity where beyond ``limit``.

        It is the first such step where the loss never rises; otherwise a short dip below the target may be missed.
        """
        with np.errstate(all="ignore"):
            jumps = [(self.transition, self.drive)]
            while 2 ** len(jumps) <= limit:
                jumps.append(_twice(jumps[-1]))
            state, missed = self._state(), np.zeros(self.drive.shape[:-2])
            for exponent in reversed(range(len(jumps))):
                candidate = _apply(jumps[exponent], state)
                misses = ~(self._read(candidate) <= target)
                state = np.where(misses[..., None, None], candidate, state)
                missed += misses * 2.0**exponent
        first = np.where(self._read(self._state()) <= target, 0.0, missed + 1)
        return np.where(first <= limit, first, np.inf)

    def floor(self) -> np.ndarray:
        """Expected loss after infinitely many steps, shape ``[...]``; infinity where the recurrence is unstable."""
        stable = np.abs(np.linalg.eigvals(self.transition)).max((-1, -2)) < 1.0
        identity = np.eye(self.transition.shape[-1])
        solvable = np.where(stable[..., None, None, None], self.transition, 0.0)
        moments = np.linalg.solve(identity - solvable, self.drive[..., None])[..., 0]
        return np.where(stable, self._read(moments), np.inf)

    def _state(self) -> np.ndarray:
        return np.broadcast_to(self.start, self.drive.shape)

    def _read(self, state: np.ndarray) -> np.ndarray:
        return (self.readout * state).sum((-1, -2))


@dataclass(frozen=True, kw_only=True)
class NoisyQuadratic:
    """The noisy quadratic model.

    Attributes:
        curvature: ``h``, eigenvalues of the Hessian, shape ``[d]``.
        noise: ``c``, variance of a single example's gradient noise, shape ``[d]``.
        start: ``s_0``, second moment of the initial parameters, shape ``[d]``.
        count: how many coordinates share each entry, shape ``[d]``.
    """

    curvature: np.ndarray
    noise: np.ndarray
    start: np.ndarray
    count: np.ndarray

    @classmethod
    def power_law(cls, dimension: int, *, power: float = 1.0, noise: float = 1.0) -> NoisyQuadratic:
        """Curvature ``i^-power`` for ``i = 1 ... dimension``, noise variance ``noise * curvature``, unit start."""
        curvature = np.arange(1, dimension + 1) ** -float(power)
        ones = np.ones(dimension)
        return cls(curvature=curvature, noise=noise * curvature, start=ones, count=ones)

    @classmethod
    def binned(cls, dimension: int, bins: int = 100) -> NoisyQuadratic:
        """:meth:`power_law` with curvatures rounded down to ``bins`` geometric values, as in the paper's figures."""
        values = np.geomspace(1.0, 1.0 / dimension, bins)
        index = np.searchsorted(-values, -cls.power_law(dimension).curvature).clip(max=bins - 1)
        count = np.bincount(index, minlength=bins).astype(float)
        return cls(curvature=values, noise=values, start=np.ones(bins), count=count)

    @property
    def initial_loss(self) -> float:
        """Expected loss before the first step."""
        return float(0.5 * (self.count * self.curvature * self.start).sum())

    @property
    def grad_sq_norm(self) -> float:
        """Expected squared norm of the true gradient before the first step."""
        return float((self.count * self.curvature**2 * self.start).sum())

    @property
    def noise_trace(self) -> float:
        """Trace of the covariance of a single example's gradient, the same at every point."""
        return float((self.count * self.noise).sum())

    def lower_bound(self, batch_size: float, target: float) -> float:
        """Steps that no method of the paper can undercut when ``c = h``: ``d / (2 * target * batch_size)``."""
        return float(self.count.sum() / (2.0 * target * batch_size))

    def sgd(self, lr: float | np.ndarray, batch_size: float, *, precondition: float = 0.0) -> Recurrence:
        """SGD preconditioned by ``h ** -precondition``: ``s -> (1 - x)^2 s + noise``.

        Args:
            lr: learning rate, a number or any shape; it becomes the leading dimensions.
            batch_size: examples per step.
            precondition: 0 for plain SGD, 1 for Newton's method.
        """
        x, drive = self._scaled(lr, batch_size, precondition)
        return self._recurrence([[(1 - x) ** 2]], drive, start=[1.0], readout=[1.0])

    def heavy_ball(
        self, lr: float | np.ndarray, batch_size: float, momentum: float, *, precondition: float = 0.0
    ) -> Recurrence:
        """Heavy-ball momentum ``v -> momentum v - lr g``, ``theta -> theta + v``, from ``v = 0``.

        The moments are those of ``(theta^2, v^2, theta v)``; arXiv:1907.04164, equation 21. Arguments are those of
        :meth:`sgd`.
        """
        x, drive = self._scaled(lr, batch_size, precondition)
        transition = [
            [(1 - x) ** 2, momentum**2, 2 * momentum * (1 - x)],
            [x**2, momentum**2, -2 * momentum * x],
            [-x * (1 - x), momentum**2, momentum * (1 - 2 * x)],
        ]
        return self._recurrence(transition, drive, start=[1.0, 0.0, 0.0], readout=[1.0, 0.0, 0.0])

    def averaged(
        self, lr: float | np.ndarray, batch_size: float, decay: float, *, precondition: float = 0.0
    ) -> Recurrence:
        """Loss at the exponential moving average of SGD's iterates, started at the first iterate.

        The moments are those of ``(theta^2, e^2, theta e)`` for ``e -> decay e + theta``, whose average is
        ``(1 - decay) e``; arXiv:1907.04164, equation 38. Arguments are those of :meth:`sgd`.
        """
        x, drive = self._scaled(lr, batch_size, precondition)
        kept = (1 - x) ** 2
        transition: list[list[ArrayLike]] = [
            [kept, 0.0, 0.0],
            [kept, decay**2, 2 * decay * (1 - x)],
            [kept, 0.0, decay * (1 - x)],
        ]
        start = [1.0, (1 - decay) ** -2, 1 / (1 - decay)]
        return self._recurrence(transition, drive, start=start, readout=[0.0, (1 - decay) ** 2, 0.0])

    def _scaled(self, lr: float | np.ndarray, batch_size: float, precondition: float) -> tuple[np.ndarray, np.ndarray]:
        step = np.asarray(lr, dtype=float)[..., None] * self.curvature**-precondition
        return step * self.curvature, step**2 * self.noise / batch_size

    def _recurrence(
        self, transition: Sequence[Sequence[ArrayLike]], drive: np.ndarray, *, start: list[float], readout: list[float]
    ) -> Recurrence:
        full = [np.stack([np.broadcast_to(entry, drive.shape) for entry in row], -1) for row in transition]
        return Recurrence(
            transition=np.stack(full, -2),
            drive=np.stack([drive] * len(start), -1),
            start=self.start[:, None] * np.array(start),
            readout=0.5 * (self.count * self.curvature)[:, None] * np.array(readout),
        )


@dataclass(frozen=True, kw_only=True)
class Best:
    """The winner of :func:`best_setting`: steps to target, learning rate, and momentum (or averaging decay)."""

    steps: float
    lr: float
    momentum: float


def best_setting(
    recurrence: Callable[[np.ndarray, float], Recurrence],
    target: float,
    lrs: Sequence[float] | np.ndarray,
    momenta: Sequence[float] | np.ndarray = (0.0,),
    limit: int = 2**27,
) -> Best | None:
    """The point of a grid with the fewest steps to ``target``, ``None`` if none gets there within ``limit`` steps.

    Candidates are ranked by :meth:`Recurrence.bisect`; ties go to the earlier momentum, then the earlier learning rate.

    Args:
        recurrence: builds the recurrence of a row of learning rates at one momentum.
        target: expected loss to reach.
        lrs: learning rates.
        momenta: momenta or averaging decays.
        limit: steps after which the search gives up.
    """
    best = None
    for momentum in momenta:
        steps = recurrence(np.asarray(lrs, dtype=float), momentum).bisect(target, limit)
        index = int(steps.argmin())
        if steps[index] <= limit:
            best = Best(steps=float(steps[index]), lr=float(lrs[index]), momentum=float(momentum))
            limit = int(best.steps) - 1
    return best


Jump = tuple[np.ndarray, np.ndarray]
"""An affine map of the moments: matrix and offset."""


def _apply(jump: Jump, state: np.ndarray) -> np.ndarray:
    return (jump[0] @ state[..., None])[..., 0] + jump[1]


def _twice(jump: Jump) -> Jump:
    return jump[0] @ jump[0], _apply(jump, jump[1])

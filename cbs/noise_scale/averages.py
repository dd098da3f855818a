"""Means of the noise-scale moments over many steps, in constant memory, and the estimate that they give."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from cbs.errors import ConfigError
from cbs.noise_scale.interval import Array, ratio_interval

# Share of the signal from which on it is said with the number that a batch may share it unnoticed: less than this moves
# it by less than a quarter, at batch sizes up to the noise scale.
SAID = 0.1


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Estimate of ``(mean noise / mean signal) ** exponent`` over some steps, with its interval. Never clamped.

    There may be an interval although there is no value: a mean signal that is negative within its error shows that the
    noise scale is large, and the interval says at least how large.

    Attributes:
        value: the noise scale; ``None`` where it is undefined because a mean is not positive.
        low: lower end of the interval; ``None`` where the data do not exclude 0.
        high: upper end of the interval; ``None`` where the data do not exclude infinity. Both ends are ``None`` too
            where there is no interval, and then ``note`` says why.
        confidence: confidence level of the interval.
        signal: mean signal over the steps; ``None`` without steps.
        noise: mean noise over the steps; ``None`` without steps.
        steps: number of steps behind the means.
        examples: number of examples behind the means.
        note: a caveat, or why value or interval is missing; mostly empty.
        unseen: in ``l2``, largest share of the signal that the examples of a batch may have in common without a note,
            if their inputs do not show it; 1 where it may be all.
        unit: unit of the value and of the interval.

    Example:
        >>> print(Estimate(value=47.3, low=41.0, high=55.2, confidence=0.95, signal=0.4, noise=18.9))
        47.3 [41.0, 55.2] examples
        >>> print(Estimate(low=41.0, confidence=0.95, signal=-0.1, noise=18.9))
        above 41.0 examples, with no upper end at this batch size
        >>> print(Estimate(value=47.3, low=41.0, high=55.2, confidence=0.95, signal=0.4, noise=18.9, unseen=0.4))
        47.3 [41.0, 55.2] examples, unless a batch shares a draw (unnoticed up to 40 % of the signal)
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None
    confidence: float
    signal: float | None = None
    noise: float | None = None
    steps: int = 0
    examples: int = 0
    note: str = ""
    unit: str = "examples"
    unseen: float | None = None

    @property
    def interval(self) -> tuple[float | None, float | None]:
        """The interval ``(low, high)``."""
        return self.low, self.high

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; ``None`` where undefined, never NaN."""
        return asdict(self)

    def __str__(self) -> str:
        text = "undefined" if self.value is None else three_digits(self.value)
        if self.low is not None and self.high is None:
            guess = "" if self.value is None else f" (best guess {text})"
            text = f"above {three_digits(self.low)} {self.unit}{guess}, with no upper end at this batch size"
        elif self.high is not None:
            low = "0" if self.low is None else three_digits(self.low)
            text += f" [{low}, {three_digits(self.high)}] {self.unit}"
        elif self.value is not None:
            text += f" {self.unit}"
        # with a note it is in question anyway
        if self.unseen is not None and self.unseen >= SAID and self.signal and not self.note:
            text += f", unless a batch shares a draw (unnoticed up to {100 * self.unseen:.0f} % of the signal)"
        return f"{text}: {self.note}" if self.note else text


@dataclass(frozen=True, kw_only=True)
class Nested:
    """Noise scale where examples belong together in groups, and its two parts.

    Attributes:
        members: n, the number of examples in a group.
        groups: noise of a group's mean gradient over the squared gradient, in groups: about ``between + within/n``.
        between: noise that more examples in a group do not reduce, over the squared gradient, in groups.
        within: noise of an example around its group's mean, over the squared gradient, in examples.
    """

    members: int
    groups: Estimate
    between: Estimate
    within: Estimate

    def __str__(self) -> str:
        return f"{self.groups}; between groups {self.between}; within a group {self.within}"


def three_digits(value: float) -> str:
    """Format ``value`` with three significant digits and no exponent; as a whole number from 100 on."""
    decimals = 2 - math.floor(math.log10(abs(value))) if value else 2
    return f"{value:,.{max(0, decimals)}f}"


MOST_BLOCKS = 256  # Largest number of blocks; when there are more, neighbours are merged in pairs

# Least number of steps in a window that is a share of the run, however short: with fewer there is no good interval
LEAST = 32

# Layout of a block: the number of steps, the number of their examples, and from `_MOMENTS` on the sums over these
# steps of the signals of all parameter tensors, then of the noises.
_STEPS, _EXAMPLES, _MOMENTS = range(3)


class MomentAverages:
    """Averages of signal and noise over steps and parameter tensors; the noise scale is the ratio of the averages.

    Every step has the same weight, whatever its batch size: each gives an unbiased estimate of the moments, and the
    ratio means something only if signal and noise are averaged over the same stretch of training.

    Steps are kept as up to 256 blocks of consecutive steps. When there are more, neighbours are merged and blocks
    become twice as long, so memory does not grow with the number of steps. A window drops whole blocks: it holds at
    least the examples that were asked for and at most one block more, a 127th of more than 256 steps.

    >>> averages = MomentAverages()
    >>> for _ in range(64):
    ...     averages.add(16, signal=np.array([1.0]), noise=np.array([40.0]))
    >>> averages.estimate().value
    40.0

    Args:
        window: number of latest examples to average over, or, below 1, that share of all examples so far (at least
            :data:`LEAST` steps); ``None`` averages over everything.

    Attributes:
        steps: number of steps so far.
        examples: number of examples so far.
        skipped: number of steps left out because a moment was not finite; they are not among ``steps``.

    Raises:
        ConfigError: if the window is not positive.
    """

    def __init__(self, *, window: float | None = None) -> None:
        if window is not None and not window > 0:
            raise ConfigError(
                f"window of the averages must be a positive number of examples, or a share below 1, got {window}"
            )
        self.window = window
        self.reset()

    def reset(self) -> None:
        """Forget every step."""
        self.steps = 0
        self.examples = 0
        self.skipped = 0
        self._blocks: deque[Array] = deque()
        self._length = 1

    def add(self, examples: int, signal: Array, noise: Array) -> None:
        """Add the moments of one step.

        Args:
            examples: number of examples in the step.
            signal, noise: moments of every parameter tensor, each of shape ``[parameters]``.

        Raises:
            ConfigError: if the number of parameter tensors differs from that of the earlier steps.
        """
        signal, noise = (np.array(moment, dtype=np.float64, ndmin=1) for moment in (signal, noise))
        parameters = (len(self._blocks[-1]) - _MOMENTS) // 2 if self._blocks else len(signal)
        if not len(signal) == len(noise) == parameters:
            raise ConfigError(
                f"a step has moments of {len(signal)} and {len(noise)} parameter tensors, "
                f"the steps before it of {parameters}; start new averages when the model changes"
            )
        if not (np.isfinite(signal).all() and np.isfinite(noise).all()):
            self.skipped += 1
            return
        self.steps += 1
        self.examples += int(examples)
        self._append(np.concatenate([[1.0, int(examples)], signal, noise]))
        self._forget()
        if len(self._blocks) > MOST_BLOCKS:
            self._length *= 2
            blocks, self._blocks = self._blocks, deque()
            for block in blocks:
                self._append(block)

    def estimate(self, select: Sequence[int] | None = None, *, exponent: int = 1, confidence: float = 0.95) -> Estimate:
        """Return the noise scale of all parameter tensors together, or of some of them.

        Args:
            select: indices of parameter tensors, at least one; ``None`` for all.
            exponent: exponent of the geometry: 1 where the moments are squared norms, 2 where they are norms.
            confidence: confidence level of the interval.

        Raises:
            ConfigError: if ``confidence`` is not between 0 and 1.
        """
        if not 0.0 < confidence < 1.0:
            raise ConfigError(f"confidence must be between 0 and 1, got {confidence}")
        if not self._blocks:
            note = "no step yet" if not self.skipped else f"no finite moments in {self.skipped} steps"
            return Estimate(confidence=confidence, note=note)
        table = np.stack(self._blocks)
        steps = table[:, _STEPS]
        sums = table[:, _MOMENTS:].reshape(len(table), 2, -1).swapaxes(0, 1)
        means = (sums if select is None else sums[..., list(select)]).sum(axis=2) / steps
        signal, noise = means @ steps / steps.sum()
        interval = ratio_interval(*means, steps=steps, exponent=exponent, confidence=confidence)
        defined, note = bool(signal > 0 and noise > 0), interval.note
        if not defined:
            which, mean = ("signal", signal) if signal <= 0 else ("noise", noise)
            note = "; ".join(filter(None, (f"the mean {which} is not positive ({mean:.3g})", note)))
        return Estimate(
            value=float(noise / signal) ** exponent if defined else None,
            low=interval.low,
            high=interval.high,
            confidence=confidence,
            signal=float(signal),
            noise=float(noise),
            steps=int(steps.sum()),
            examples=int(table[:, _EXAMPLES].sum()),
            note=note,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state as plain numbers and lists of numbers."""
        names = ("window", "steps", "examples", "skipped")
        return {name: getattr(self, name) for name in names} | {
            "length": self._length,
            "blocks": [block.tolist() for block in self._blocks],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that :meth:`state_dict` returned.

        Raises:
            ConfigError: if the state was saved with another window or by another version.
        """
        if {*state} != {*self.state_dict()}:
            raise ConfigError("the saved averages come from another version of cbs; start new averages")
        if state["window"] != self.window:
            raise ConfigError(
                f"the saved averages have window={state['window']}, these window={self.window}; "
                "build them with the same arguments"
            )
        self.steps, self.examples, self.skipped = state["steps"], state["examples"], state["skipped"]
        self._length = state["length"]
        self._blocks = deque(np.array(state["blocks"], dtype=np.float64))

    def _append(self, block: Array) -> None:
        """Add a block at the end: merge it into the last block while that is short, else append it."""
        if self._blocks and self._blocks[-1][_STEPS] < self._length:
            self._blocks[-1] += block
        else:
            self._blocks.append(block)

    def _forget(self) -> None:
        if self.window is None:
            return
        share = self.window < 1
        wanted = self.window * self.examples if share else self.window
        steps, examples = (sum(int(block[entry]) for block in self._blocks) for entry in (_STEPS, _EXAMPLES))
        while len(self._blocks) > 1:
            steps, examples = steps - int(self._blocks[0][_STEPS]), examples - int(self._blocks[0][_EXAMPLES])
            if examples < wanted or (share and steps < LEAST):
                return
            self._blocks.popleft()

"""Means of the moments over many steps, in constant memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from cbs.errors import ConfigError
from cbs.noise_scale.estimate import Estimate
from cbs.noise_scale.interval import Array, ratio_interval

MOST_BLOCKS = 256
"""More blocks than these are merged in pairs."""

LEAST = 64
"""Steps that a window holds that is a share of the run, however short that is: fewer have no good interval."""

_STEPS, _EXAMPLES, _MOMENTS = range(3)
"""Entries of a block: how many steps, their examples, and from ``_MOMENTS`` on the sums over them of the signals, then
of the noises, of all parameter tensors."""


class MomentAverages:
    """Averages signal and noise over steps and parameter tensors; the division comes last.

    Every step counts alike, whatever its batch size: each is an unbiased look at the moments, and signal and noise must
    be averaged over the same stretch of training for their ratio to mean anything.

    Steps are kept as up to 256 blocks of consecutive steps. When there are more, neighbours are merged and blocks
    become twice as long, so memory does not grow with the number of steps. A window forgets whole blocks: it holds what
    it says or up to one block more, at most a 127th of it once it spans more than 256 steps.

    Args:
        window: examples to look back, or, below 1, the share of all examples so far, of at least :data:`LEAST` steps;
            everything so far when absent.

    Attributes:
        steps: steps so far.
        examples: examples so far.
        skipped: steps left out because a moment was not finite; not among ``steps``.

    Raises:
        ConfigError: if it is not positive.
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
        self._held = 0

    def add(self, examples: int, signal: Array, noise: Array) -> None:
        """Take in one step.

        Args:
            examples: of the step.
            signal: shape ``[parameters]``.
            noise: shape ``[parameters]``.

        Raises:
            ConfigError: if the number of parameter tensors is not that of the steps before.
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
        self._held += int(examples)
        self._append(np.concatenate([[1.0, int(examples)], signal, noise]))
        self._forget()
        if len(self._blocks) > MOST_BLOCKS:
            self._length *= 2
            blocks, self._blocks = self._blocks, deque()
            for block in blocks:
                self._append(block)

    def estimate(self, select: Sequence[int] | None = None, *, exponent: int = 1, confidence: float = 0.95) -> Estimate:
        """The noise scale of the parameter tensors together, or of some of them.

        Args:
            select: indices of parameter tensors, at least one; all when absent.
            exponent: of the geometry: 1 where the moments are squared norms, 2 where they are norms.
            confidence: level of the interval.

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
            examples=self._held,
            note=note,
        )

    def state_dict(self) -> dict[str, Any]:
        """Everything, as plain numbers and lists of them."""
        names = ("window", "steps", "examples", "skipped")
        return {name: getattr(self, name) for name in names} | {
            "length": self._length,
            "blocks": [block.tolist() for block in self._blocks],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore an earlier :meth:`state_dict`.

        Raises:
            ConfigError: if it was taken with another window, or by another version.
        """
        if {*state} != {*self.state_dict()}:
            raise ConfigError("the saved averages are of another version of cbs, whose blocks differ; start new ones")
        if state["window"] != self.window:
            raise ConfigError(
                f"the saved averages have window={state['window']}, these window={self.window}; "
                "build them with the same arguments"
            )
        self.steps, self.examples, self.skipped = state["steps"], state["examples"], state["skipped"]
        self._length = state["length"]
        self._blocks = deque(np.array(state["blocks"], dtype=np.float64))
        self._held = int(sum(block[_EXAMPLES] for block in self._blocks))

    def _append(self, block: Array) -> None:
        """Put a block at the end: into the last one while that is short, else after it."""
        last = self._blocks[-1] if self._blocks else None
        if last is None or last[_STEPS] >= self._length:
            self._blocks.append(block)
            return
        last += block

    def _forget(self) -> None:
        if self.window is None:
            return
        share = self.window < 1
        examples = self.window * self.examples if share else self.window
        steps = sum(int(block[_STEPS]) for block in self._blocks) if share else 0
        while len(self._blocks) > 1:
            gone_steps, gone = (int(self._blocks[0][entry]) for entry in (_STEPS, _EXAMPLES))
            if self._held - gone < examples or (share and steps - gone_steps < LEAST):
                return
            self._blocks.popleft()
            steps, self._held = steps - gone_steps, self._held - gone

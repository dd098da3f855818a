"""Means of the moments over many steps, in constant memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cbs.errors import ConfigError
from cbs.noise_scale.estimate import Estimate
from cbs.noise_scale.interval import Array, ratio_interval

MOST_BLOCKS = 256
"""More blocks than these are merged in pairs."""

_HALF_LIVES = 20.0


@dataclass(kw_only=True)
class _Block:
    """Consecutive steps: how many, their examples, and sums weighted as at the last of them: of the weights, and of the
    moments, each of shape ``[parameters]``."""

    steps: int
    examples: int
    weight: float
    signal: Array
    noise: Array

    def take(self, later: _Block, decay: float) -> None:
        """Join the steps that follow; ``decay`` is what they make of the weights before them."""
        self.steps += later.steps
        self.examples += later.examples
        self.weight = decay * self.weight + later.weight
        self.signal = decay * self.signal + later.signal
        self.noise = decay * self.noise + later.noise


class MomentAverages:
    """Averages signal and noise over steps and parameter tensors; the division comes last.

    Every step counts alike, whatever its batch size: each is an unbiased look at the moments, and signal and noise must
    be averaged over the same stretch of training for their ratio to mean anything.

    Steps are kept as up to 256 blocks of consecutive steps. When there are more, neighbours are merged and blocks
    become twice as long, so memory does not grow with the number of steps. A window or a half-life forgets whole
    blocks: a window holds what it says or up to one block more, at most a 127th of it once it spans more than 256
    steps. With a half-life, what is older than 20 half-lives (its weight is below a millionth) is forgotten.

    Args:
        window: examples to look back; everything so far when absent.
        half_life: examples after which a step counts half; no decay when absent.

    Attributes:
        steps: steps so far.
        examples: examples so far.
        skipped: steps left out because a moment was not finite; not among ``steps``.

    Raises:
        ConfigError: if both are given, or one is not positive.
    """

    def __init__(self, *, window: int | None = None, half_life: float | None = None) -> None:
        if window is not None and half_life is not None:
            raise ConfigError("averages take a window or a half_life, not both; leave one out")
        for name, value in (("window", window), ("half_life", half_life)):
            if value is not None and not value > 0:
                raise ConfigError(f"{name} of the averages must be a positive number of examples, got {value}")
        self.window = window
        self.half_life = half_life
        self.reset()

    def reset(self) -> None:
        """Forget every step."""
        self.steps = 0
        self.examples = 0
        self.skipped = 0
        self._blocks: deque[_Block] = deque()
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
        step = _Block(
            steps=1,
            examples=int(examples),
            weight=1.0,
            signal=np.array(signal, dtype=np.float64, ndmin=1),
            noise=np.array(noise, dtype=np.float64, ndmin=1),
        )
        parameters = len(self._blocks[-1].signal) if self._blocks else len(step.signal)
        if not len(step.signal) == len(step.noise) == parameters:
            raise ConfigError(
                f"a step has moments of {len(step.signal)} and {len(step.noise)} parameter tensors, "
                f"the steps before it of {parameters}; start new averages when the model changes"
            )
        if not (np.isfinite(step.signal).all() and np.isfinite(step.noise).all()):
            self.skipped += 1
            return
        self.steps += 1
        self.examples += step.examples
        self._held += step.examples
        if self._blocks and self._blocks[-1].steps < self._length:
            self._blocks[-1].take(step, self._decay(step.examples))
        else:
            self._blocks.append(step)
        self._forget()
        if len(self._blocks) > MOST_BLOCKS:
            self._merge()

    def estimate(
        self, select: Sequence[int] | Array | None = None, *, exponent: int = 1, confidence: float = 0.95
    ) -> Estimate:
        """The noise scale of the parameter tensors together, or of some of them.

        Args:
            select: indices or a mask of parameter tensors; all when absent.
            exponent: of the geometry: 1 where the moments are squared norms, 2 where they are norms.
            confidence: level of the interval.

        Raises:
            ConfigError: if ``select`` names none, or one there is not, or ``confidence`` is not between 0 and 1.
        """
        if not 0.0 < confidence < 1.0:
            raise ConfigError(f"confidence must be between 0 and 1, got {confidence}")
        if not self._blocks:
            note = "no step yet" if not self.skipped else f"no finite moments in {self.skipped} steps"
            return Estimate(
                value=None, low=None, high=None, confidence=confidence, signal=None, noise=None, steps=0, examples=0,
                note=note,
            )  # fmt: skip
        steps = np.array([block.steps for block in self._blocks], dtype=float)
        sums = np.stack([[block.signal, block.noise] for block in self._blocks], axis=1)
        weights = np.array([block.weight for block in self._blocks])
        means = _selected(sums, select).sum(axis=2) / weights
        weights *= self._decay(self._examples_after())
        signal, noise = means @ weights / weights.sum()
        interval = ratio_interval(
            *means, steps=steps, weights=weights / steps, exponent=exponent, confidence=confidence
        )
        value, note = None, interval.note
        if signal > 0 and noise > 0:
            value = float(noise / signal) ** exponent
        else:
            which, mean = ("signal", signal) if signal <= 0 else ("noise", noise)
            note = "; ".join(filter(None, (f"the mean {which} is not positive ({mean:.3g})", note)))
        return Estimate(
            value=value,
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
        """Everything, as plain numbers and arrays."""
        blocks = self._blocks
        return {
            "window": self.window,
            "half_life": self.half_life,
            "steps": self.steps,
            "examples": self.examples,
            "skipped": self.skipped,
            "length": self._length,
            "block_steps": np.array([block.steps for block in blocks], dtype=np.int64),
            "block_examples": np.array([block.examples for block in blocks], dtype=np.int64),
            "block_weight": np.array([block.weight for block in blocks], dtype=np.float64),
            "block_signal": np.array([block.signal for block in blocks], dtype=np.float64),
            "block_noise": np.array([block.noise for block in blocks], dtype=np.float64),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from an earlier :meth:`state_dict`.

        Raises:
            ConfigError: if it was taken with another window or half-life.
        """
        for name in ("window", "half_life"):
            if state[name] != getattr(self, name):
                raise ConfigError(
                    f"the saved averages have {name}={state[name]}, these {name}={getattr(self, name)}; "
                    "build them with the same arguments"
                )
        self.steps, self.examples, self.skipped = state["steps"], state["examples"], state["skipped"]
        self._length = state["length"]
        names = ("steps", "examples", "weight", "signal", "noise")
        self._blocks = deque(
            _Block(steps=int(steps), examples=int(examples), weight=float(weight), signal=signal, noise=noise)
            for steps, examples, weight, signal, noise in zip(*(state[f"block_{name}"] for name in names), strict=True)
        )
        self._held = sum(block.examples for block in self._blocks)

    def _forget(self) -> None:
        horizon = self.window if self.half_life is None else _HALF_LIVES * self.half_life
        if horizon is None:
            return
        while len(self._blocks) > 1 and self._held - self._blocks[0].examples >= horizon:
            self._held -= self._blocks.popleft().examples

    def _merge(self) -> None:
        self._length *= 2
        merged: deque[_Block] = deque()
        for block in self._blocks:
            if merged and merged[-1].steps < self._length:
                merged[-1].take(block, self._decay(block.examples))
            else:
                merged.append(block)
        self._blocks = merged

    def _decay(self, examples: Any) -> Any:
        """Weight of a step that lies ``examples`` back."""
        return 1.0 if self.half_life is None else 2.0 ** (-examples / self.half_life)

    def _examples_after(self) -> Array:
        """Examples of the blocks that follow each block."""
        examples = np.array([block.examples for block in self._blocks], dtype=float)
        return examples.sum() - np.cumsum(examples)


def _selected(sums: Array, select: Sequence[int] | Array | None) -> Array:
    if select is None:
        return sums
    index = np.asarray(select)
    try:
        chosen = sums[..., index if index.dtype == bool else index.astype(np.int64)]
    except IndexError:
        raise ConfigError(
            f"select names parameter tensors that are not there; there are {sums.shape[-1]}, counted from 0"
        ) from None
    if not chosen.shape[-1]:
        raise ConfigError("select names no parameter tensor; leave it out for all of them")
    return chosen

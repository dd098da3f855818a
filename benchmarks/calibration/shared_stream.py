"""The noisy quadratic with its examples kept: trials of one seed see the same ones, and drawing them is what costs."""

from __future__ import annotations

import torch
from torch import Tensor

from cbs.workloads.noisy_quadratic import NoiseStream, NoisyQuadraticWorkload

KEPT = 160_000
"""Examples that are kept of a seed; 0.6 GB at 1000 dimensions."""
BLOCK = 6_400
"""Drawn at a time, a multiple of the stream's own."""


class SharedStream(NoisyQuadraticWorkload):
    """The workload of ``quadratic``, bit for bit. :meth:`forget` gives the memory back."""

    def __init__(self, quadratic: NoisyQuadraticWorkload) -> None:
        super().__init__(quadratic.curvature, quadratic.noise)
        self._tapes: dict[int, _Tape] = {}

    def training_stream(self, generator: torch.Generator) -> Reader:  # type: ignore[override]
        """That of the seed of ``generator``, from its start."""
        seed = generator.initial_seed()
        if seed not in self._tapes:
            self._tapes[seed] = _Tape(self.noise.sqrt(), generator)
        return Reader(self._tapes[seed])

    def forget(self) -> None:
        """Drop all examples."""
        self._tapes.clear()


class _Tape:
    def __init__(self, scale: Tensor, generator: torch.Generator) -> None:
        self.scale, self.stream = scale, NoiseStream(scale, generator)
        self.examples, self.drawn = scale.new_empty(KEPT, len(scale)), 0
        self.state = torch.empty(0)
        self._generator = generator

    def until(self, count: int) -> None:
        """Draw as far as the tape goes and ``count`` examples need."""
        while self.drawn < min(count, KEPT):
            self.examples[self.drawn : self.drawn + BLOCK] = self.stream.next(BLOCK)
            self.drawn += BLOCK
            self.state = self._generator.get_state()


class Reader:
    """A stream that reads a tape and draws on where it ends."""

    def __init__(self, tape: _Tape) -> None:
        self._tape, self._place = tape, 0
        self._beyond: NoiseStream | None = None

    def next(self, examples: int) -> Tensor:
        """As :meth:`NoiseStream.next`."""
        tape, place = self._tape, self._place
        self._place += examples
        tape.until(self._place)
        kept = tape.examples[place : min(self._place, KEPT)]
        if len(kept) == examples:
            return kept
        if self._beyond is None:
            generator = torch.Generator()
            generator.set_state(tape.state)
            self._beyond = NoiseStream(tape.scale, generator)
        return torch.cat([kept, self._beyond.next(examples - len(kept))])

"""The options of a probe in a configuration."""

from __future__ import annotations

from dataclasses import dataclass

from cbs.errors import ConfigError
from cbs.noise_scale.probe import FALLBACK as ACCUMULATION
from cbs.noise_scale.probe import MATCHED, PER_EXAMPLE
from cbs.trial.config import Choice

PERIOD, EXAMPLES_PER_MEASUREMENT = 14, 64
"""Steps from one measurement to the next where it takes one extra backward pass, 70 to 90 % of a step; and least
number of examples from one to the next."""

OVERHEAD = 128
"""Number of examples of the embedded text whose steps take as long as what a measurement costs apart from the passes:
hooks and small operations on every parameter tensor, whatever the batch size."""


@dataclass(frozen=True, kw_only=True)
class ProbeOptions:
    """Options of a probe as set in a configuration.

    Attributes:
        source: name in :data:`~cbs.noise_scale.sources.SOURCES`, or ``"auto"``.
        parts: number of parts into which a backward pass is split.
        every: one step in this many is measured; ``None`` leaves it to the batch size, see :meth:`interval`.
        geometry: geometries to measure in: names in :data:`~cbs.noise_scale.geometries.GEOMETRIES`, ``"matched"`` or
            ``"all"``.
    """

    source: str
    parts: int = 2
    every: int | None = None
    geometry: tuple[str, ...] = (MATCHED,)

    @classmethod
    def of(cls, choice: Choice) -> ProbeOptions:
        """Read the options of a source: ``parts``, ``every``, and ``geometry`` as a name or a list of names.

        Raises:
            ConfigError: if an option is unknown or has the wrong type.
        """
        unknown = sorted(set(choice.options) - {"parts", "every", "geometry"})
        if unknown:
            raise ConfigError(
                f"probe {choice.name!r} has no option {unknown[0]!r}; its options are: "
                f"parts=2, every=None, geometry={MATCHED}"
            )
        geometry = choice.options.get("geometry", MATCHED)
        names = geometry if isinstance(geometry, list) else [geometry]
        if not names or not all(isinstance(name, str) for name in names):
            raise ConfigError(f"probe geometry must be a name or a list of names, got {geometry!r}")
        return cls(
            source=choice.name,
            parts=choice.options.get("parts", 2),
            every=choice.options.get("every"),
            geometry=tuple(names),
        )

    def interval(self, batch_size: int) -> int:
        """Return the number of steps from one measurement to the next.

        Measuring then costs 4 to 6 % of a run at every batch size, apart from the checks of its first few measurements;
        it is more seldom in small batches, where a measured step takes up to 2.6 times as long.
        """
        if self.every is not None:
            return self.every
        passes = {ACCUMULATION: 0, PER_EXAMPLE: batch_size - 1}.get(self.source, self.parts - 1)
        seldom = PERIOD * passes + (OVERHEAD // batch_size if passes else 0)
        return max(1, seldom, EXAMPLES_PER_MEASUREMENT // batch_size)

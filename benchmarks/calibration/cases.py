"""What is calibrated: three optimizers on the noisy quadratic with curvatures ``1/i``, to a loss of 0.1."""

import functools
from dataclasses import dataclass

from cbs.trial.config import Choice, EvaluationPlan
from cbs.trial.target import Target
from extensions.theory.noisy_quadratic import NoisyQuadratic
from sweeps.spec.axes import Axes
from sweeps.spec.lengths import ScheduleRule
from sweeps.spec.spec import Sweep, prototype

TARGET = Target(metric="validation_loss", value=0.1)
PLAN = EvaluationPlan()
SEEDS = 3  # Of every replicate, its own


@dataclass(frozen=True, kw_only=True)
class Case:
    """One optimizer.

    Attributes:
        name: as in the tables.
        optimizer: what is trained.
        method, momentum, power: the same in :mod:`extensions.theory.noisy_quadratic`.
        dimension: curvatures of the quadratic. Plain gradient descent takes steps in proportion to it.
        spectrum: the i-th curvature is ``i ** -spectrum``.
        batch_sizes: a factor 2 apart, around the critical one.
        budget: steps and examples, see :class:`sweeps.spec.spec.Sweep`.
    """

    name: str
    optimizer: Choice
    method: str
    momentum: float = 0.0
    power: float = 0.0
    dimension: int = 1000
    spectrum: float = 1.0
    batch_sizes: tuple[int, ...]
    budget: tuple[int, int]

    @functools.cached_property
    def theory(self) -> NoisyQuadratic:
        """What is trained, in closed form."""
        return NoisyQuadratic.power_law(self.dimension, power=self.spectrum)

    @property
    def workload(self) -> Choice:
        """What is trained."""
        return Choice(name="noisy_quadratic", options={"dimension": self.dimension, "spectrum_power": self.spectrum})

    def sweep(
        self, seeds: tuple[int, ...], *, batch_sizes: tuple[int, ...] = (), lrs: tuple[float, ...] | None = None
    ) -> Sweep:
        """The sweep of these seeds: without a warmup, of which theory knows nothing, otherwise as by default.

        Args:
            seeds: of the trials.
            batch_sizes: instead of the case's own.
            lrs: exactly these learning rates; ``None`` for the default search.
        """
        return Sweep(
            name=f"calibration of {self.name}",
            trial=prototype(workload=self.workload, target=TARGET, evaluation=PLAN, probe=None, device="cpu"),
            axes=Axes(optimizers=(self.optimizer,), batch_sizes=batch_sizes or self.batch_sizes, lrs=lrs, seeds=seeds),
            max_steps=self.budget[0],
            max_examples=self.budget[1],
            schedule=ScheduleRule(warmup_steps=0),
        )


def octaves(low: int, high: int) -> tuple[int, ...]:
    """Powers of two from ``2**low`` to ``2**high``."""
    return tuple(2**power for power in range(low, high + 1))


CASES = {
    case.name: case
    for case in (
        Case(
            name="sgd",
            optimizer=Choice(name="sgd", options={"momentum": 0.0}),
            method="sgd",
            dimension=200,
            batch_sizes=octaves(3, 8),
            budget=(500, 20_000),
        ),
        Case(
            name="momentum",
            optimizer=Choice(name="sgd", options={"momentum": 0.9}),
            method="heavy_ball",
            momentum=0.9,
            batch_sizes=octaves(6, 11),
            budget=(200, 100_000),
        ),
        Case(
            name="preconditioned",
            optimizer=Choice(name="benchmarks.calibration.optimizer:PreconditionedSGD", options={"power": 0.5}),
            method="sgd",
            power=0.5,
            batch_sizes=octaves(6, 11),
            budget=(100, 40_000),
        ),
    )
}

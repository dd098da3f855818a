"""Which optimizers gain from large batches on the noisy quadratic of Zhang et al. (2019, arXiv:1907.04164).

The curves come from closed forms, see :mod:`extensions.theory.noisy_quadratic`. They are drawn like those of a
measured sweep, but ``S_min`` and the batch size of least steps times examples are known without that.

SGD with a learning rate that is constant on pieces of equal length is added (section 3): the log rates of all pieces
are optimized together, with a gradient in closed form, and the length of a piece by bisection. On a piece of k steps at
rate alpha, with x = alpha h, the second moment of a coordinate goes from s to s_inf + (1 - x)^(2k) (s - s_inf), where
s_inf = alpha c / (B h (2 - x)).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import minimize

from analysis.config import DEFAULT, AnalysisConfig
from analysis.estimate.definitions import HEADLINE
from analysis.estimate.result import Answer
from analysis.quantities import OPEN, Array, Quantity
from analysis.questions.fit.table_fit import TableFit, fit_table
from cbs.errors import ConfigError
from extensions.theory.noisy_quadratic import OPTIMIZERS, NoisyQuadratic, Row, critical, curve, notebook_curve
from extensions.theory.noisy_quadratic.search import tuned

_LOWEST = 1e-9  # Lowest rate of a piece, as a share of the largest stable one


@dataclass(frozen=True, kw_only=True)
class QuadraticAnswer:
    """Result of :func:`quadratic`.

    Attributes:
        rows: one row per optimizer, power and batch size.
        fit: fit of the rows, one curve for each optimizer and power, with its exact ``S_min`` and ``B_crit``, which
            have no interval; ``None`` if no curve has a row, or none was requested.
        target: expected loss to reach.
        initial_loss: expected loss before the first step.
        lower_bound: lower bound of the steps of any method, by batch size; empty unless the noise equals the curvature.
        schedules: best learning rates of SGD over a run, by batch size, where they were requested.
    """

    rows: tuple[Row, ...]
    fit: TableFit | None
    target: float
    initial_loss: float
    lower_bound: dict[float, float]
    schedules: tuple[RateSchedule, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "initial_loss": self.initial_loss,
            "lower_bound": [{"batch_size": size, "steps": steps} for size, steps in self.lower_bound.items()],
            "rows": [asdict(row) for row in self.rows],
            "schedules": [asdict(each) for each in self.schedules],
            "fit": None if self.fit is None else self.fit.to_json(),
        }


def quadratic(
    optimizers: Sequence[str] = ("sgd", "momentum", "ema"),
    *,
    batch_sizes: Sequence[int],
    powers: Sequence[float] = (0.0,),
    target: float = 0.01,
    momenta: Sequence[float | None] = (None,),
    decays: Sequence[float | None] = (None,),
    pieces: int = 0,
    model: NoisyQuadratic | None = None,
    config: AnalysisConfig = DEFAULT,
    progress: Callable[[Row], None] = lambda row: None,
) -> QuadraticAnswer:
    """Compute steps to target over batch sizes for several optimizers on a noisy quadratic, and critical batch sizes.

    Args:
        powers: exponents p of the preconditioner ``h^-p``: 0 for none, 1/2 as in Adam, 1 as in Newton's method.
        target: expected loss to reach.
        momenta: momenta of momentum and Nesterov, one curve each; ``None`` to tune at every batch size.
        decays: decays of the average, one curve each; ``None`` to tune at every batch size.
        pieces: number of pieces of a learning rate that is optimized over the run, for plain SGD; 0 for none.
        model: the noisy quadratic; ``None`` for that of the paper.
        progress: called with every computed row.

    Raises:
        ConfigError: if a value is outside its domain, or the target is not below the loss at the start.
        DataError: if the rows cannot be fitted.
    """
    model = model or NoisyQuadratic.power_law(10_000).grouped()
    if target >= model.initial_loss:
        raise ConfigError(
            f"the loss starts at {model.initial_loss:.3g}, so a target of {target:g} takes no step: lower it"
        )

    def rows_of(optimizer: str, power: float) -> Iterable[Row]:
        own = {"sgd": (None,), "averaged": decays}.get(OPTIMIZERS.get(optimizer, ""), momenta)
        for given in dict.fromkeys(own):
            for row in curve(model, optimizer, target, batch_sizes, momentum=given, power=power):
                progress(row)
                yield row

    answer = _without_fit(rows_of, optimizers, powers, model, target, batch_sizes)
    if not np.allclose(model.noise, model.curvature, rtol=1e-9, atol=0.0):
        answer = replace(answer, lower_bound={})
    shaped = [best_pieces(model, target, size, pieces=pieces) for size in batch_sizes] if pieces else []
    schedules = tuple(each for each in shaped if each is not None)
    row_of = {label(row): row for row in answer.rows if row.steps}
    if not row_of:
        return replace(answer, schedules=schedules)
    curves = [(label(row), row.batch_size, row.steps, target) for row in answer.rows if row.steps]
    table = pd.DataFrame(curves, columns=["optimizer", "batch_size", "steps", "target"])
    fit = fit_table(table, config, unit="samples")
    exact = tuple(_exact(each, row_of[each.group.optimizer], model, target) for each in fit.answers)
    return replace(answer, schedules=schedules, fit=replace(fit, answers=exact))


def as_notebook(
    optimizers: Sequence[str] = ("sgd", "momentum", "ema"),
    *,
    batch_sizes: Sequence[int],
    powers: Sequence[float] = (0.0,),
    target: float = 0.01,
    dimension: int = 10_000,
) -> QuadraticAnswer:
    """Compute the steps as the authors' notebook does, without fitting curves; see
    :func:`~extensions.theory.noisy_quadratic.notebook_curve`.

    Raises:
        ConfigError: if the notebook has no such optimizer, or the target is not below the loss at the start.
    """
    model = NoisyQuadratic.binned(dimension)
    if target >= model.initial_loss:
        raise ConfigError(f"the loss starts at {model.initial_loss:.3g}: lower the target of {target:g}")

    def rows_of(optimizer: str, power: float) -> Iterable[Row]:
        return notebook_curve(optimizer, target, batch_sizes, dimension=dimension, power=power)

    return _without_fit(rows_of, optimizers, powers, model, target, batch_sizes)


def _without_fit(
    rows_of: Callable[[str, float], Iterable[Row]],
    optimizers: Sequence[str],
    powers: Sequence[float],
    model: NoisyQuadratic,
    target: float,
    batch_sizes: Sequence[int],
) -> QuadraticAnswer:
    """Return the rows of every optimizer and power, with the lower bound that holds where noise equals curvature."""
    try:
        every = [rows_of(*pair) for pair in itertools.product(dict.fromkeys(optimizers), dict.fromkeys(powers))]
        rows = tuple(itertools.chain.from_iterable(every))
    except ValueError as error:
        raise ConfigError(str(error)) from None
    bounds: dict[float, float] = {size: model.lower_bound(size, target) for size in batch_sizes}
    return QuadraticAnswer(rows=rows, fit=None, target=target, initial_loss=model.initial_loss, lower_bound=bounds)


def _exact(answer: Answer, row: Row, model: NoisyQuadratic, target: float) -> Answer:
    """Return the answer with the exact ``S_min``, ``B_crit`` and range around it of a row's curve, and without values
    beyond the batch sizes of the table.

    No interval would be open there, and a value would come from the form of the curve alone: steps that halve with
    every doubling may stop doing so at the next one.
    """
    given = row.momentum if row.ema is None else row.ema
    near = min(answer.points, key=lambda point: point.batch_size * (point.steps_to_target or np.inf) ** 2)
    least, size, around = critical(model, row.optimizer, target, momentum=given, power=row.power, near=near.batch_size)
    definitions = dict(answer.definitions)
    if answer.draws is not None:
        first, last = answer.draws.batch_sizes[[0, -1]]
        for name, each in definitions.items():
            if each.value is None or not first <= each.value <= last:
                definitions[name] = replace(each, value=None, interval=OPEN)
    hyperbola = answer.hyperbola if definitions["pareto"].value is not None else None
    definitions[HEADLINE] = replace(definitions[HEADLINE], value=size, interval=OPEN, remark="")
    return replace(answer, definitions=definitions, hyperbola=hyperbola, min_steps=Quantity(least), near=around)


def label(row: Row) -> str:
    """Return the optimizer and its fixed options: ``momentum, m = 0.9, p = 0.5``."""
    fixed = {"m": row.momentum, "decay": row.ema, "p": row.power or None}
    return ", ".join([row.optimizer, *(f"{name} = {value:g}" for name, value in fixed.items() if value is not None)])


@dataclass(frozen=True)
class RateSchedule:
    """The best rates at one batch size.

    Attributes:
        batch_size: examples per step.
        steps: number of steps to the target, a multiple of the number of pieces.
        lrs: learning rate of every piece, shape ``[pieces]``.
        constant_lr, constant_steps: the best constant rate, and the steps it takes.
    """

    batch_size: float
    steps: int
    lrs: tuple[float, ...]
    constant_lr: float
    constant_steps: float


def loss_and_slope(model: NoisyQuadratic, log_lrs: Array, length: int, batch_size: float) -> tuple[float, Array]:
    """Return the expected loss after pieces of ``length`` steps each, and its gradient by the log rates."""
    weight = 0.5 * model.count * model.curvature
    lrs = np.exp(log_lrs)[:, None]
    x = lrs * model.curvature
    with np.errstate(divide="ignore", invalid="ignore"):
        kick = np.where(model.curvature > 0, model.noise / (batch_size * model.curvature), 0.0)
    rest = lrs * kick / (2 - x)
    kept = (1 - x) ** (2 * length)
    moments = [model.start]
    for keep, at in zip(kept, rest, strict=True):
        moments.append(at + keep * (moments[-1] - at))
    before = np.array(moments[:-1])
    # derivatives by ln alpha: s_inf has alpha kick 2 / (2 - x)^2, (1 - x)^2k has -2 k x (1 - x)^(2k - 1)
    turns = 2 * lrs * kick / (2 - x) ** 2 * (1 - kept)
    turns -= 2 * length * x * (1 - x) ** (2 * length - 1) * (before - rest)
    after = np.cumprod(np.vstack([np.ones_like(kept[:1]), kept[:0:-1]]), axis=0)[::-1]
    return float(weight @ moments[-1]), np.asarray((turns * after) @ weight)


def best_pieces(model: NoisyQuadratic, target: float, batch_size: float, *, pieces: int = 50) -> RateSchedule | None:
    """Return the best rates to an expected loss of ``target``; ``None`` if no constant rate reaches it, or one does so
    in fewer steps than pieces."""
    constant = tuned(model, "sgd", target, batch_size)
    if constant is None or constant.steps <= pieces:
        return None
    largest = model.largest_lr()
    bounds = [(np.log(_LOWEST * largest), np.log(largest * (1 - 1e-4)))] * pieces
    start = np.full(pieces, np.log(min(constant.lr, largest * (1 - 1e-3))))

    def best(length: int, first: Array) -> tuple[float, Array]:
        def logged(logs: Array) -> tuple[float, Array]:
            loss, slope = loss_and_slope(model, logs, length, batch_size)
            return float(np.log(loss)), slope / loss

        found = minimize(logged, first, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 200})
        return float(np.exp(found.fun)), found.x

    low, high = 0, -(-int(np.ceil(constant.steps)) // pieces)
    logs = start
    while high - low > 1:
        middle = (low + high) // 2
        loss, there = best(middle, logs)
        low, high, logs = (low, middle, there) if loss <= target else (middle, high, logs)
    _, logs = best(high, logs)
    return RateSchedule(batch_size, high * pieces, tuple(np.exp(logs).tolist()), constant.lr, constant.steps)

"""Check the assumptions about a user's own workload or optimizer on a few small steps before a sweep.

A violated assumption makes no trial fail, so it is reported beforehand: without a warning, the answer would be wrong or
noisier than it claims.
"""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from cbs.compute import seeding
from cbs.compute.device import pick
from cbs.compute.state import evaluating
from cbs.errors import ConfigError
from cbs.optimizers import build_optimizer
from cbs.training.loop import TrainingLoop
from cbs.trial.config import TrialConfig
from cbs.workloads import Workload
from cbs.workloads.base import Batch
from cbs.workloads.streams import split_batch

EXAMPLES = 8  # Number of examples in a batch drawn for a check
PARTS = (2, 3, 3)  # Sizes of the parts into which such a batch is cut

# Relative difference up to which two values count as equal: above the rounding errors of half precision and of
# devices.
ALIKE = 1e-3


QUICK_STEP = 0.05  # Seconds; if a step takes no longer than this, more steps are checked


def doubts(config: TrialConfig, workload: Workload) -> Iterator[str]:
    """Yield one line for each assumption that does not hold.

    Args:
        config: a trial of the sweep; its batch size and probe do not matter.
        workload: its workload.

    Raises:
        ConfigError: if the optimizer ignores its learning rate.
    """
    yield from _of_data(workload)
    trained = _loop(config, workload)
    _check_lr(config, trained.model)
    yield from _of_seeds(trained)
    yield from _of_losses(trained)
    yield from _of_validation(trained)
    yield from _of_steps(config, workload)


def _check_lr(config: TrialConfig, model: nn.Module) -> None:
    rates = [
        [float(group["lr"]) for group in build_optimizer(config.optimizer, model, lr, EXAMPLES).param_groups]
        for lr in (config.lr, 2 * config.lr)
    ]
    if rates[0] == rates[1]:
        raise ConfigError(
            f"optimizer {config.optimizer.name!r} has the learning rate {rates[0][0]:g} in its param_groups whatever "
            "lr it is given: every learning rate would give the same run"
        )


def _of_data(workload: Workload) -> Iterator[str]:
    def drawn(seed: int, beside: int, times: int = 1) -> Batch:
        with seeding.seeded(beside, "look"):
            stream = workload.training_stream(seeding.generator(seed, "data"))
            return [stream.next(EXAMPLES) for _ in range(times)][-1]

    first = drawn(0, 0)
    if not _equal(first, drawn(0, 1)):
        yield (
            "its training stream gives different examples for the same generator: trials of one seed see different data"
        )
    elif _equal(first, drawn(1, 2)):
        yield (
            "its training stream gives the same examples for every seed: the noise of the data is not in the "
            "intervals, which are too narrow"
        )
    if _equal(first, drawn(0, 0, times=2)):
        yield "its training stream gives the same examples in every batch"


def _of_seeds(loop: TrainingLoop) -> Iterator[str]:
    """Check that random numbers depend on the seed of the trial: code that sets a seed itself leaves the same state."""
    batch, workload = loop.to_device(loop.stream.next(EXAMPLES)), loop.workload
    for what, same, run in (
        ("build_model", "every seed starts with the same weights, and intervals are too narrow", workload.build_model),
        ("a training step", "every step draws the same ones", lambda: workload.example_losses(loop.model, batch)),
    ):
        states = []
        for seed in (0, 1):
            with seeding.seeded(seed, "look"):
                run()
                states.append(seeding.states())
        if any(_equal(states[0][of], states[1][of]) for of in ("torch", "numpy", "python")):
            yield f"{what} sets the seed of random numbers itself: {same}"


def _of_losses(loop: TrainingLoop) -> Iterator[str]:
    """Check whether the loss of an example depends on the rest of the batch, either always, as with a sum over the
    batch, or in training mode only, as with batch normalisation."""
    batch = loop.to_device(loop.stream.next(EXAMPLES))
    parts = [part for _, part in split_batch(batch, PARTS)]
    with evaluating(loop.model), torch.no_grad():
        whole, again, apart = _losses(loop, [batch], 0), _losses(loop, [batch], 1), _losses(loop, parts, 0)
    if _apart(whole, again) <= ALIKE * float(whole.norm()) < _apart(whole, apart):
        yield (
            f"the loss of a batch is {float(whole.mean() / apart.mean()):.3g} times that of its parts: the "
            "example_losses depend on the rest of the batch, so the loss itself changes with the batch size"
        )
        return
    cutting = loop.passes.compare(batch, [EXAMPLES], PARTS)
    if cutting is not None and cutting.difference and not cutting.drew:
        yield (
            f"a training step depends on how its examples are cut into passes ({cutting.difference}), as with batch "
            "normalisation: the noise scale is measured only where every step has several passes anyway"
        )


def _losses(loop: TrainingLoop, batches: list[Batch], seed: int) -> torch.Tensor:
    """Return the loss of every example."""
    with seeding.seeded(seed, "look"):
        return torch.cat([loop.workload.example_losses(loop.model, batch) for batch in batches]).double()


def _of_validation(loop: TrainingLoop) -> Iterator[str]:
    """Check that validating the same model twice gives the same value, even if another model was used in between."""
    before = _validated(loop)
    with seeding.seeded(1, "init"):
        other = loop.workload.build_model().to(loop.device)
        stream = loop.workload.training_stream(seeding.generator(1, "data"))
        loop.workload.example_losses(other, loop.to_device(stream.next(EXAMPLES)))
    after = _validated(loop)
    if not math.isclose(before, after, rel_tol=ALIKE):
        yield (
            f"validate gives {before:.4g} and then {after:.4g} for one model: such noise of the metric ends trials too "
            "early; use the same data every time, whatever was built or trained in between"
        )


def _validated(loop: TrainingLoop) -> float:
    nothing = np.empty(0)
    return loop.validation.measure(nothing, nothing)[loop.config.target.metric]


def _of_steps(config: TrialConfig, workload: Workload) -> Iterator[str]:
    """Check that the learning rate set by a schedule has an effect, and that a trial resumed from a checkpoint takes
    the same steps as one that was never stopped."""
    whole, faster, begun, resumed = (_loop(config, workload) for _ in range(4))
    start = _weights(whole)
    with _under_way(whole):
        started = time.perf_counter()
        _take(whole, 1, 2)
        quick = time.perf_counter() - started < 2 * QUICK_STEP
        twice = _weights(whole)
        saved, last = (7, 13) if quick else (1, 2)  # something done every few steps falls on neither
        _take(whole, 3, last)
    faster.base_lrs = [2.0 * lr for lr in faster.base_lrs]
    with _under_way(faster):
        _take(faster, 1, 2)
    if _apart(_weights(faster), twice) <= ALIKE * _apart(twice, start):
        yield (
            f"optimizer {config.optimizer.name} takes the same steps whatever lr is set in its param_groups: "
            "schedules, warmup and the factors of batch sizes and widths do nothing"
        )
    with _under_way(begun):
        _take(begun, 1, saved)
        begun.evaluate(saved, lr=0.0, losses=begun.columns.flush()[:, 0])
        state = begun.state()
    with seeding.seeded(config.seed, "training"):
        try:
            resumed.load_state(state)
            _take(resumed, saved + 1, last)
            apart = _apart(_weights(resumed), _weights(whole))
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError):
            apart = math.inf
    if apart > ALIKE * _apart(_weights(whole), start):
        yield (
            "a trial resumed from a checkpoint takes other steps than one that was never stopped: random numbers are "
            "drawn outside torch, the model differs from call to call, or state is kept outside the state dict "
            f"(of optimizer {config.optimizer.name} or the model), or by the workload from one trial to the next"
        )


def _loop(config: TrialConfig, workload: Workload) -> TrainingLoop:
    return TrainingLoop(config, workload, pick(config.device, config.precision))


@contextmanager
def _under_way(loop: TrainingLoop) -> Iterator[None]:
    """Run the block in the state of a trial after its first evaluation."""
    with seeding.seeded(loop.config.seed, "training"):
        loop.evaluate(step=0, lr=0.0, losses=torch.empty(0).numpy())
        yield


def _take(loop: TrainingLoop, first: int, last: int) -> None:
    for step in range(first, last + 1):
        loop.train_step(step)


def _weights(loop: TrainingLoop) -> torch.Tensor:
    values = [weight.detach() for weight in loop.model.parameters()]
    real = [torch.view_as_real(value) if value.is_complex() else value for value in values]
    return torch.cat([value.double().flatten() for value in real])


def _apart(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).norm()) if one.shape == other.shape else math.inf


def _equal(one: Any, other: Any) -> bool:
    pairs = zip(tree_leaves(one), tree_leaves(other), strict=True)
    return all(a.shape == b.shape and torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in pairs)

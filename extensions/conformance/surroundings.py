"""Checks of an optimizer together with parameter groups, schedulers and compilers."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer, lr_scheduler
from torch.optim.swa_utils import SWALR

from extensions.conformance.state import again, through_file
from extensions.conformance.subjects import Failure, OptimizerRun, Subject, check, ensure, moved, same

PEAK = 0.125  # A power of two, whose fractions float32 holds exactly

# All schedulers of torch; the second argument says whether momentum is cycled, too
SCHEDULERS: dict[str, Callable[[Optimizer, bool], Any]] = {
    "LambdaLR": lambda o, _: lr_scheduler.LambdaLR(o, lambda step: 0.5**step),
    "MultiplicativeLR": lambda o, _: lr_scheduler.MultiplicativeLR(o, lambda _: 0.9),
    "StepLR": lambda o, _: lr_scheduler.StepLR(o, step_size=2, gamma=0.5),
    "MultiStepLR": lambda o, _: lr_scheduler.MultiStepLR(o, milestones=[1, 3], gamma=0.5),
    "ConstantLR": lambda o, _: lr_scheduler.ConstantLR(o, factor=0.5, total_iters=2),
    "LinearLR": lambda o, _: lr_scheduler.LinearLR(o, start_factor=0.25, total_iters=3),
    "ExponentialLR": lambda o, _: lr_scheduler.ExponentialLR(o, gamma=0.9),
    "PolynomialLR": lambda o, _: lr_scheduler.PolynomialLR(o, total_iters=4, power=2.0),
    "CosineAnnealingLR": lambda o, _: lr_scheduler.CosineAnnealingLR(o, T_max=4),
    "CosineAnnealingWarmRestarts": lambda o, _: lr_scheduler.CosineAnnealingWarmRestarts(o, T_0=2),
    "SequentialLR": lambda o, _: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o, total_iters=2), lr_scheduler.ExponentialLR(o, gamma=0.9)], milestones=[2]
    ),
    "ChainedScheduler": lambda o, _: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, total_iters=2), lr_scheduler.ExponentialLR(o, gamma=0.9)]
    ),
    "CyclicLR": lambda o, momentum: lr_scheduler.CyclicLR(
        o, base_lr=PEAK / 8, max_lr=PEAK, step_size_up=2, cycle_momentum=momentum
    ),
    "OneCycleLR": lambda o, momentum: lr_scheduler.OneCycleLR(o, max_lr=PEAK, total_steps=6, cycle_momentum=momentum),
    "ReduceLROnPlateau": lambda o, _: lr_scheduler.ReduceLROnPlateau(o, patience=0),
    "SWALR": lambda o, _: SWALR(o, swa_lr=PEAK / 2, anneal_epochs=3),
}


@check()
def check_schedulers(subject: Subject) -> None:
    """Every scheduler of torch sets the learning rate of every group, and the steps work."""
    for name, schedule in SCHEDULERS.items():
        run = subject.run()
        keys = run.optimizer.defaults.keys() | set.intersection(*map(set, run.optimizer.param_groups))
        cycles = not keys.isdisjoint(("betas", "momentum"))
        twin = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=subject.lr, momentum=0.9)
        try:
            schedulers = [schedule(run.optimizer, cycles), schedule(twin, True)]
            for _ in range(4):
                rates = [float(group["lr"]) for group in run.optimizer.param_groups]
                expected = twin.param_groups[0]["lr"]
                ensure(
                    all(math.isclose(rate, expected, rel_tol=1e-6) for rate in rates),
                    f"{name} sets learning rates to {rates}, not to {expected}",
                )
                run.train(1)
                twin.step()
                for scheduler in schedulers:
                    scheduler.step(*([1.0] if name == "ReduceLROnPlateau" else []))
        except Failure:
            raise
        except Exception as error:
            raise Failure(f"{name} raises {type(error).__name__}: {error}") from error
        ensure(run.finite(), f"weights are not finite with {name}")


@check()
def check_resumes_with_a_scheduler(subject: Subject) -> None:
    """Optimizer and scheduler resume together from a checkpoint."""
    run = subject.run()
    scheduler = SCHEDULERS["StepLR"](run.optimizer, False)
    for _ in range(3):
        run.train(1)
        scheduler.step()
    other = again(run, through_file(run.optimizer.state_dict()))
    follower = SCHEDULERS["StepLR"](other.optimizer, False)
    follower.load_state_dict(scheduler.state_dict())
    other.optimizer.load_state_dict(through_file(run.optimizer.state_dict()))
    for one, schedule in ((run, scheduler), (other, follower)):
        for _ in range(2):
            one.train(1)
            schedule.step()
    same(run.values(), other.values(), "resumed with its scheduler")


@check()
def check_options_of_groups(subject: Subject) -> None:
    """A group's own learning rate applies to its parameters only."""
    run = subject.run()
    groups = run.optimizer.param_groups
    if len(groups) == 1:
        model = run.model
        head = [model.head.weight]
        others = [param for param in model.parameters() if param is not head[0]]
        run = OptimizerRun(subject, model, subject.over([{"params": others}, {"params": head, "lr": 0.0}]))
        groups = run.optimizer.param_groups
    groups[-1]["lr"] = 0.0
    before = run.values()
    changed = moved(before, run.train(2).values())
    names = {name for name, param in run.named.items() if any(param is one for one in groups[-1]["params"])}
    ensure(not names & changed, "a group with a learning rate of 0 moves")
    ensure(bool(changed), "the other groups do not move")


@check(slow=True)
def check_compiled(subject: Subject) -> None:
    """``torch.compile(optimizer.step)`` steps as without compilation."""
    plain, run = subject.run(), subject.run()
    plain.needs_gradients()
    plain.train(3)
    torch.compiler.reset()
    step = torch.compile(run.optimizer.step, backend="aot_eager")
    for _ in range(3):
        run.backward()
        run.prepare()
        step()
    same(plain.values(), run.values(), "compiled", tolerance=1e-4)

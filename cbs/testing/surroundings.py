"""Checks of an optimizer together with parameter groups, schedulers, averages and compilers."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer, lr_scheduler
from torch.optim.swa_utils import SWALR, AveragedModel

from cbs.testing.check import check
from cbs.testing.construction import REFUSALS
from cbs.testing.state import again, through_file
from cbs.testing.subjects import Failure, NotApplicable, OptimizerRun, Subject, ensure, moved, same

PEAK = 0.125

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
"""All schedulers of torch; the second argument says whether momentum is cycled, too."""


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
def check_rebuilds_from_groups(subject: Subject) -> None:
    """A new optimizer can be built from the groups of another one, including the keys that schedulers have added."""
    if subject.construct is None:
        raise NotApplicable("it is built over a model, not over parameters")
    run = subject.run()
    cycles = any(key in run.optimizer.param_groups[0] for key in ("betas", "momentum"))
    SCHEDULERS["OneCycleLR"](run.optimizer, cycles)
    groups = [dict(group) for group in run.optimizer.param_groups]
    other = OptimizerRun(subject, run.model, subject.over(groups))
    before = other.values()
    ensure(bool(moved(before, other.train(2).values())), "it does not step")


@check()
def check_averaged_model(subject: Subject) -> None:
    """torch's AveragedModel, updated in a hook after every step, averages the weights of these steps."""
    run = subject.run()
    average, sums = AveragedModel(run.model), {name: torch.zeros_like(value) for name, value in run.values().items()}
    run.optimizer.register_step_post_hook(lambda *_: average.update_parameters(run.model))
    for _ in range(3):
        for name, value in run.train(1).values().items():
            sums[name] += value / 3
    same(sums, dict(average.module.named_parameters()), "the average of the weights", tolerance=1e-5)


@check()
def check_zero_grad(subject: Subject) -> None:
    """zero_grad removes the gradients, or sets them to 0 with ``set_to_none=False``."""
    run = subject.run()
    run.backward()
    run.optimizer.zero_grad(set_to_none=False)
    ensure(all(not param.grad.any() for param in run.params if param.grad is not None), "gradients are not 0")
    run.optimizer.zero_grad()
    ensure(all(param.grad is None for param in run.params), "gradients are not removed")


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


@check()
def check_empty_group(subject: Subject) -> None:
    """A group without parameters is accepted, or refused at construction, and the others step."""
    model = subject.run().model
    try:
        run = OptimizerRun(subject, model, subject.over([{"params": list(model.parameters())}, {"params": []}]))
    except REFUSALS:
        return
    same(subject.run().train(2).values(), run.train(2).values(), "beside an empty group")


@check()
def check_late_group(subject: Subject) -> None:
    """A group that is added after the first steps is trained with the defaults and saved, or it is refused and the old
    groups stay; a parameter that is in another group is refused.
    """
    run = subject.run().train(2)
    groups = len(run.optimizer.param_groups)
    late = nn.Parameter(torch.full((4, 3), 0.5))
    try:
        run.optimizer.add_param_group({"params": [late]})
    except (RuntimeError, *REFUSALS) as error:
        ensure(len(str(error).splitlines()) == 1, "refused without a message, or with more than one line")
        ensure(len(run.optimizer.param_groups) == groups, "refused, and a group was added all the same")
        run.train(1)
        return
    lacking = run.optimizer.defaults.keys() - run.optimizer.param_groups[-1].keys()
    ensure(not lacking, f"the new group lacks {sorted(lacking)}")
    before, start = run.values(), late.detach().clone()
    for _ in range(2):
        run.backward()
        late.grad = torch.linspace(-1, 1, 12).reshape(4, 3)
        run.only_step()
    ensure(not torch.equal(late, start), "the new parameter does not move")
    ensure("head.weight" in moved(before, run.values()), "the others do not move any more")
    ensure(bool(late.isfinite().all()), "the new parameter is not finite")
    number = len(run.params) - 1
    saved = run.optimizer.state_dict()["state"]
    ensure(number in saved or not saved, "state of the new parameter is not in the state dict")
    try:
        run.optimizer.add_param_group({"params": [late]})
    except ValueError:
        return
    raise Failure("a parameter may be in two groups")


@check()
def check_replaced_parameter(subject: Subject) -> None:
    """A parameter that replaces another one in its group is trained."""
    run = subject.run().train(2)
    run.needs_gradients()
    new = nn.Parameter(run.model.head.weight.detach().clone())
    for group in run.optimizer.param_groups:
        group["params"] = [new if param is run.model.head.weight else param for param in group["params"]]
    run.model.head.weight = new
    before = run.values()
    changed = moved(before, run.train(2).values())
    ensure("head.weight" in changed, "it does not move")
    ensure(run.finite(), "weights are not finite")


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


@check(slow=True)
def check_capturable(subject: Subject) -> None:
    """With ``capturable=True``, where it is an option, a step on a CUDA device can be captured in a graph and
    replayed.
    """
    if "capturable" not in inspect.signature(subject.construct or subject.build).parameters:
        raise NotApplicable("it has no option capturable")
    if not torch.cuda.is_available():
        raise NotApplicable("there is no CUDA device")
    plain, captured = (subject.run().model.cuda() for _ in range(2))
    optimizers = [subject.build(model, subject.lr, capturable=True) for model in (plain, captured)]
    for model in (plain, captured):
        for param in model.parameters():
            param.grad = torch.linspace(-1, 1, param.numel(), device="cuda").reshape(param.shape)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        optimizers[1].step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizers[1].step()
    for _ in range(2):
        graph.replay()
    for _ in range(3):
        optimizers[0].step()
    torch.cuda.synchronize()
    same(dict(plain.named_parameters()), dict(captured.named_parameters()), "replayed", tolerance=1e-4)

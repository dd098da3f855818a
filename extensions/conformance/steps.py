"""Checks of a step, whatever the gradients are."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from extensions.conformance.subjects import Failure, OptimizerRun, Shapes, Subject, check, ensure, moved, same

ODD: Shapes = {
    "scalar": (),
    "one": (1,),
    "vector": (7,),
    "row": (1, 9),
    "column": (9, 1),
    "cube": (2, 3, 4),
    "kernel": (3, 2, 3, 3),
    "flat kernel": (1, 1, 1, 1),
    "none": (0,),
    "no rows": (0, 3),
}


@check()
def check_learns(subject: Subject) -> None:
    """At one of its learning rates the loss of a small model falls by at least a tenth within 30 steps."""
    ends = {}
    for lr in sorted(subject.lr_grid, key=lambda lr: abs(math.log(lr / subject.lr_grid[-2:][0]))):
        run = subject.run(lr=lr)
        start = run.loss().item()
        ends[lr] = run.train(30).loss().item()
        if ends[lr] < 0.9 * start:
            return
    ends_by_lr = ", ".join(f"{end:.3g} (lr={lr:.3g})" for lr, end in ends.items())
    raise Failure(f"the loss started at {start:.3g} and ended at {ends_by_lr}")


@check()
def check_repeats_bitwise(subject: Subject) -> None:
    """The same run twice gives the same weights bit for bit."""
    same(subject.run().train(5).values(), subject.run().train(5).values(), "a second run")


@check()
def check_steps_in_place(subject: Subject) -> None:
    """Parameters keep their memory, dtype and requires_grad, and remain leaves without a graph."""
    run = subject.run()
    before = {name: (param.data_ptr(), param.dtype) for name, param in run.named.items()}
    run.train(2)
    for name, param in run.named.items():
        ensure((param.data_ptr(), param.dtype) == before[name], f"{name} has other memory or another dtype")
        ensure(param.requires_grad and param.is_leaf, f"{name} is not a leaf that requires a gradient")


@check(beyond_torch=True)
def check_leaves_gradients_alone(subject: Subject) -> None:
    """A step does not change the gradients, which may be read after it."""
    run = subject.run().train(2)
    run.backward()
    before = {name: param.grad.clone() for name, param in run.named.items()}
    run.only_step()
    ensure(all(param.grad is not None for param in run.params), "gradients are gone after the step")
    same(before, {name: param.grad for name, param in run.named.items()}, "gradients after the step")


@check()
def check_closure(subject: Subject) -> None:
    """A closure is called once, with gradients enabled, and the step returns its result; the update is the same as
    without a closure.
    """
    calls = []
    run, plain = subject.run(), subject.run().train(1)

    def closure() -> Tensor:
        calls.append(torch.is_grad_enabled())
        return run.backward()

    returned = run.only_step(closure)
    ensure(calls == [True], f"the closure is called {len(calls)} times, gradients enabled: {calls}")
    ensure(isinstance(returned, Tensor) and bool(returned.isfinite()), f"the step returns {returned!r}")
    same(plain.values(), run.values(), "a step with a closure")


@check()
def check_learning_rate_of_the_group(subject: Subject) -> None:
    """The learning rate is read from the group, where schedulers write it: at 0 from the start nothing moves, later it
    does.
    """
    run = subject.run(lr=0.25 * subject.lr)
    rates = {float(group["lr"]) for group in run.optimizer.param_groups}
    ensure(rates == {0.25 * subject.lr}, f"groups have learning rates {rates}, not the one given")
    for group in run.optimizer.param_groups:
        group["lr"] = 0.0
    before = run.values()
    run.train(2)
    same(before, run.values(), "weights after two steps with a learning rate of 0")
    for group in run.optimizer.param_groups:
        group["lr"] = subject.lr
    ensure("head.weight" in moved(before, run.train(2).values()), "nothing moves at a learning rate set later")


@check()
def check_missing_gradients(subject: Subject) -> None:
    """A parameter without a gradient stays unchanged and gets no state; the others step."""
    run = subject.run()
    run.needs_gradients()
    before = run.values()
    run.only_step()
    same(before, run.values(), "weights after a step without gradients")
    run.train(2)
    before = run.values()
    run.backward()
    run.named["hidden.weight"].grad = None
    run.only_step()
    changed = moved(before, run.values())
    ensure("hidden.weight" not in changed, "a parameter without a gradient moves")
    ensure("head.weight" in changed, "the others do not move")
    run.train(1)
    ensure(run.finite(), "weights are not finite at the next step")


@check()
def check_zero_gradients(subject: Subject) -> None:
    """Gradients of 0, from the first step on or later, leave weights finite."""
    for steps in (0, 2):
        run = subject.run().train(steps)
        for _ in range(3):
            scale_gradients(run, 0.0)
        ensure(run.finite(), f"weights are not finite after gradients of 0 that follow {steps} others")
        run.train(1)
        ensure(run.finite(), "weights are not finite at the next step")


@check(beyond_torch=True)
def check_huge_and_tiny_gradients(subject: Subject) -> None:
    """Gradients whose squares overflow or underflow leave weights finite."""
    for scale in (1e20, 1e-30):  # whose squares are beyond what float32 holds, above and below
        run = subject.run()
        run.needs_gradients()
        scale_gradients(run, scale)
        ensure(run.finite(), f"weights are not finite after gradients of {scale:g}")


@check()
def check_shapes(subject: Subject) -> None:
    """Parameters with 0, 1, 3 and 4 dimensions, single rows or columns and parameters without elements can be
    stepped.
    """
    for name, shape in ODD.items():
        run = subject.run(extra={name: shape})
        before = run.values()
        try:
            run.train(3)
        except Exception as error:
            raise Failure(f"shape {list(shape)} raises {type(error).__name__}: {error}") from error
        ensure(run.finite(), f"weights are not finite with a parameter of shape {list(shape)}")
        ensure("head.weight" in moved(before, run.values()), f"nothing moves beside a parameter of shape {list(shape)}")


@check()
def check_memory_layouts(subject: Subject) -> None:
    """Parameters and gradients that are not contiguous step like contiguous ones."""
    plain = subject.run().train(3)
    run = subject.run()
    for param in run.named.values():
        if param.ndim == 2:
            param.data = param.data.t().contiguous().t()  # the same values, column by column
    same(plain.values(), run.train(3).values(), "transposed in memory", tolerance=1e-4)
    run = subject.run()
    for _ in range(3):
        run.backward()
        for param in run.params:
            wide = torch.zeros(*param.shape, 2)
            wide[..., 0] = param.grad
            param.grad = wide[..., 0]
        run.only_step()
    same(plain.values(), run.values(), "gradients with gaps in memory", tolerance=1e-4)


@check()
def check_dtypes(subject: Subject) -> None:
    """bfloat16 and float64 parameters step, keep their dtype and stay finite."""
    steps_in(subject, torch.float64)
    steps_in(subject, torch.bfloat16)


@check(beyond_torch=True)
def check_float16(subject: Subject) -> None:
    """float16 parameters step, keep their dtype and stay finite, although the usual eps is 0 in float16."""
    steps_in(subject, torch.float16)


@check()
def check_double_precision(subject: Subject) -> None:
    """In float64 the steps equal those of float32 up to rounding."""
    coarse, fine = subject.run().train(2), subject.run(dtype=torch.float64).train(2)
    wide = {name: value.double() for name, value in coarse.values().items()}
    same(wide, fine.values(), "float64", tolerance=1e-2)


@check()
def check_sparse_gradients(subject: Subject) -> None:
    """A sparse gradient is refused, or steps like the dense one."""
    plain, run = subject.run(), subject.run()
    plain.needs_gradients()
    plain.train(1)
    run.backward()
    for param in run.params:
        param.grad = param.grad.to_sparse()
    try:
        run.only_step()
    except Exception as error:
        words = str(error).lower()
        if "sparse" not in words:
            raise Failure(f"a sparse gradient raises {type(error).__name__} that does not say so: {error}") from error
        return
    same(plain.values(), run.values(), "sparse gradients", tolerance=1e-5)


@check()
def check_new_memory(subject: Subject) -> None:
    """Between any two steps, gradients may be new tensors or the old ones overwritten, and parameters may move to other
    memory.
    """
    plain, kept, away = subject.run().train(4), subject.run(), subject.run()
    buffers: list[Tensor] = []
    for _ in range(4):
        kept.backward()
        buffers = buffers or [param.grad.clone() for param in kept.params]
        for param, buffer in zip(kept.params, buffers, strict=True):
            param.grad = buffer.copy_(param.grad)
        kept.only_step()
        away.train(1)
        for param in away.params:
            old = param.data
            param.data = old.clone()
            old.fill_(float("nan"))
    same(plain.values(), kept.values(), "gradients written into the same memory")
    same(plain.values(), away.values(), "parameters that moved to other memory")


@check(beyond_torch=True)
def check_changed_tensors(subject: Subject) -> None:
    """If a parameter changes its dtype or shape after the first step, or a gradient its dtype, the step raises or
    leaves finite weights.
    """

    def narrow(param: nn.Parameter) -> None:
        param.data, param.grad = param.data.bfloat16(), None
        param.grad = torch.ones_like(param)

    def shorten(param: nn.Parameter) -> None:
        param.data, param.grad = param.data[:2].clone(), None
        param.grad = torch.ones_like(param)

    def narrow_gradient(param: Any) -> None:
        param.grad.data = param.grad.data.bfloat16()

    for change in (narrow, shorten, narrow_gradient):
        run = subject.run()
        run.needs_gradients()
        run.train(2).backward()
        change(run.named["hidden.weight"])
        try:
            run.only_step()
            run.only_step()
        except Exception as error:  # noqa: BLE001  any error is better than a silent step
            ensure(bool(str(error)), f"{change.__name__}: raises {type(error).__name__} without a message")
            continue
        ensure(run.finite(), f"{change.__name__}: weights are not finite, without an error")


@check()
def check_gradient_scaler(subject: Subject) -> None:
    """It works with torch's GradScaler: scaled gradients step like unscaled ones, and a step with infinite gradients is
    skipped.
    """
    plain, run = subject.run().train(2), subject.run()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for _ in range(2):
        run.optimizer.zero_grad()
        scaler.scale(run.loss()).backward()
        scaled_step(run, scaler)
    same(plain.values(), run.values(), "with a GradScaler", tolerance=1e-4)
    before = run.values()
    run.backward()
    run.params[0].grad.fill_(float("inf"))
    scaled_step(run, scaler)
    same(before, run.values(), "after a step with infinite gradients")


def steps_in(subject: Subject, dtype: torch.dtype) -> None:
    """Run three steps with parameters of one dtype."""
    try:
        run = subject.run(dtype=dtype)
        before = run.values()
        run.train(3)
    except Exception as error:
        raise Failure(f"{dtype} raises {type(error).__name__}: {error}") from error
    ensure(all(param.dtype == dtype for param in run.params), f"{dtype} parameters change their dtype")
    ensure(run.finite(), f"{dtype} parameters are not finite")
    ensure(bool(moved(before, run.values())), f"{dtype} parameters do not move")


def scaled_step(run: OptimizerRun, scaler: torch.amp.GradScaler) -> None:
    """Run a step through a scaler."""
    run.prepare()
    scaler.step(run.optimizer)
    scaler.update()


def scale_gradients(run: OptimizerRun, scale: float) -> None:
    """Run a step with the gradients times ``scale``."""
    run.backward()
    for param in run.params:
        if param.grad is not None:
            param.grad.mul_(scale)
    run.only_step()

"""Checks of options: that steps read them from the groups, and that they mean what their names say."""

import math
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor

from cbs.optimizers.problem import ProblemOptimizer
from extensions.conformance.construction import REFUSALS, takes
from extensions.conformance.subjects import NotApplicable, OptimizerRun, Subject, check, ensure, moved, same

MATRICES = ("hidden.weight", "head.weight")


@check()
def check_weight_decay(subject: Subject) -> None:
    """Weight decay, where it is an option, has an effect, and a step reads it from the group if the group contains
    it.
    """
    try:
        plain, given, late = subject.run(weight_decay=0.0), subject.run(weight_decay=0.5), subject.run(weight_decay=0.0)
    except REFUSALS:
        subject.run().needs_gradients()
        return
    for group in late.optimizer.param_groups:
        group["weight_decay"] = 0.5
    for run in (plain, given, late):
        run.train(3)
    ensure({"hidden.weight", "head.weight"} <= moved(plain.values(), given.values()), "weight decay changes nothing")
    if takes(subject, "weight_decay"):
        same(given.values(), late.values(), "weight decay set in the groups", tolerance=1e-5)


@check(beyond_torch=True)
def check_weight_decay_of_the_group(subject: Subject) -> None:
    """Weight decay is the group's own: more of it in the last group moves the parameters of that group otherwise, and
    no others, whose gradients are the same."""
    if not takes(subject, "weight_decay"):
        raise NotApplicable("it has no weight decay")
    plain, given = parted(subject), parted(subject)
    group = last_with(given, "weight_decay")
    group["weight_decay"] += 0.5
    for run in (plain, given):
        for _ in feed(run, draws(), 8):
            pass
    mine = {name for name, param in given.named.items() if any(param is one for one in group["params"])}
    changed = moved(plain.values(), given.values())
    ensure(bool(changed & mine), "weight decay of the last group changes nothing in eight steps")
    ensure(changed <= mine, f"weight decay of one group moves {', '.join(sorted(changed - mine))} of another")


@check()
def check_decays_of_the_group(subject: Subject) -> None:
    """Betas and momentum, where they are options, are read from the groups, where loading and schedulers write them."""
    options = subject.run().optimizer.param_groups[0]
    for name in ("betas", "momentum"):
        value = options.get(name)
        if isinstance(value, float | tuple | list) and takes(subject, name):
            half: Any = 0.5 * value if isinstance(value, float) else tuple(0.5 * decay for decay in value)
            given, late = subject.run(**dict[str, Any]({name: half})), subject.run()
            for group in late.optimizer.param_groups:
                group.update({name: half} if name in group else {})
            same(given.train(3).values(), late.train(3).values(), f"{name} set in the groups", tolerance=1e-5)


@check()
def check_weight_decay_shrinks(subject: Subject) -> None:
    """Where gradients are 0, weights with weight decay are no larger than those without."""
    decay = min(0.5, 0.1 / subject.lr)
    try:
        plain, given = subject.run(weight_decay=0.0), subject.run(weight_decay=decay)
    except REFUSALS:
        raise NotApplicable("it has no weight decay") from None
    for run in (plain, given):
        for _ in feed(run, lambda step, param: torch.zeros_like(param), 3):
            pass
    for name in MATRICES:
        ratio = float(given.named[name].norm() / plain.named[name].norm())
        ensure(
            not ratio > 1 + 1e-5, f"weight decay lets {name} grow, {ratio:.6g} times in three steps without gradients"
        )


@check()
def check_decays_matter(subject: Subject) -> None:
    """Another value of any of the betas, or of momentum, where they are options, in the last group that has them,
    changes the steps of that group.
    """
    for name in ("betas", "momentum"):
        if not any(isinstance(group.get(name), float | tuple | list) for group in subject.run().optimizer.param_groups):
            continue
        if not takes(subject, name):
            continue
        plain = ends(subject, name)
        for number in range(len(decays(last_with(parted(subject), name)[name]))):
            changed = ends(subject, name, number)
            which = f"{name}[{number}]" if name == "betas" else name
            ensure(bool(moved(plain, changed)), f"another {which} in a group changes nothing in eight steps")


def draws() -> Callable[[int, Tensor], Tensor]:
    """Return a source of gradients with both signs and sizes between 0.5 and 2, the same for every call of this
    function.
    """
    generator = torch.Generator().manual_seed(0)

    def draw(_: int, param: Tensor) -> Tensor:
        size, sign = torch.rand(param.shape, generator=generator), torch.rand(param.shape, generator=generator)
        return ((0.5 + 1.5 * size) * (sign - 0.5).sign()).to(param)

    return draw


def feed(run: OptimizerRun, gradient: Callable[[int, Tensor], Tensor], steps: int) -> Iterator[Tensor]:
    """Run steps with given gradients; yield how far each moved the entries of the matrices against the gradient's sign.

    Raises:
        NotApplicable: if the optimizer does not read gradients.
    """
    if not reads_gradients(run):
        raise NotApplicable("it does not read gradients")
    for step in range(steps):
        before = run.values()
        for param in run.named.values():
            param.grad = gradient(step, param)
        signs = {name: run.named[name].grad.sign() for name in MATRICES}
        run.only_step()
        after = run.values()
        yield torch.cat([((before[name] - after[name]) * signs[name]).flatten() for name in MATRICES])


def reads_gradients(run: OptimizerRun) -> bool:
    """Return whether the optimizer's steps use the gradients of the parameters."""
    return not isinstance(run.optimizer, ProblemOptimizer) or run.optimizer.reads_gradients


def parted(subject: Subject) -> OptimizerRun:
    """Return the optimizer with the head in a separate group, where it accepts groups."""
    if subject.construct is None:
        return subject.run()
    model = subject.run().model
    head = [model.head.weight]
    others = [param for param in model.parameters() if param is not head[0]]
    return OptimizerRun(subject, model, subject.over([{"params": others}, {"params": head}]))


def last_with(run: OptimizerRun, name: str) -> dict[str, Any]:
    """Return the last group that has an option."""
    return [group for group in run.optimizer.param_groups if name in group][-1]


def ends(subject: Subject, name: str, number: int | None = None) -> dict[str, Tensor]:
    """Return the parameters of the last group that has an option, after eight steps.

    Args:
        subject: the optimizer.
        name: name of the option.
        number: index of the decay in it that is halved in that group; ``None`` for no change.
    """
    run = parted(subject)
    group = last_with(run, name)
    if number is not None:
        group[name] = halved(group[name], number)
    if reads_gradients(run):
        for _ in feed(run, draws(), 8):
            pass
    else:
        run.train(8)
    mine = {id(param) for param in group["params"]}
    return {key: run.values()[key] for key, param in run.named.items() if id(param) in mine}


def decays(value: Any) -> Sequence[float]:
    """Return the decays in an option's value."""
    return [value] if isinstance(value, float) else value


def halved(value: Any, number: int) -> Any:
    """Return an option's value with one of its decays halved, or set to 0.5 if it is 0."""
    changed = tuple((0.5 * decay or 0.5) if index == number else decay for index, decay in enumerate(decays(value)))
    return changed[0] if isinstance(value, float) else changed


NO_AVERAGE = (1e-4, 1e-4)  # Betas of averages that hold almost only the latest gradient; some methods refuse 0

LONG = (0.9, 0.999)  # the usual betas of Adam

LR = 1e-3  # Any small one: gradients are given, and only steps are compared

# Largest relative difference of steps that are alike: an average that is not corrected changes the first step by a
# factor of 10 or 32, eps inside of the root by 5.
CLOSE = 0.02


@check()
def check_bias_correction(subject: Subject) -> None:
    """A method that steps as Adam does corrects its averages for their start at 0: its first steps under a constant
    gradient are not those of uncorrected averages.
    """
    unit = adams_unit(subject)
    groups = subject.run().optimizer.param_groups
    if any("bias" in key and not value for group in groups for key, value in group.items()):
        raise NotApplicable("its groups say that it does not correct bias")
    ratios = [size / unit for size in sizes(subject, 0.5, 3, betas=LONG)]
    first = [1 - LONG[0] ** step for step in (1, 2, 3)]
    second = [1 / math.sqrt(1 - LONG[1] ** step) for step in (1, 2, 3)]
    both = [one * other for one, other in zip(first, second, strict=True)]
    for which, wrong in (("first", first), ("second", second), ("first and second", both)):
        alike = all(math.isclose(size, other, rel_tol=CLOSE) for size, other in zip(ratios, wrong, strict=True))
        shown = ", ".join(f"{size:.3g}" for size in ratios)
        ensure(not alike, f"the {which} average is not corrected for its start at 0: first steps are {shown} of Adam's")


@check()
def check_eps_is_outside_the_root(subject: Subject) -> None:
    """A method that steps as Adam does for small eps adds eps to the square root of the second average, not to the
    average.
    """
    unit, eps = adams_unit(subject), 1e-2
    if not takes(subject, "eps"):
        raise NotApplicable("it has no eps")
    (size,) = sizes(subject, eps, 1, betas=NO_AVERAGE, eps=eps)
    inside = eps / math.sqrt(eps**2 + eps)
    ensure(
        not math.isclose(size / unit, inside, rel_tol=CLOSE),
        f"eps is inside the root: where the gradient is eps, a step is {size / unit:.3g} of a usual one, not half",
    )


def adams_unit(subject: Subject) -> float:
    """Return the step size of a method that steps as Adam does, under large gradients.

    Raises:
        NotApplicable: if it does not.
    """
    groups = subject.run().optimizer.param_groups
    if not all(isinstance(group.get("betas"), tuple | list) and len(group["betas"]) == 2 for group in groups):
        raise NotApplicable("its groups have no pair of betas")
    subject.run().needs_gradients()
    if not takes(subject, "betas"):
        raise NotApplicable("it takes no betas")
    entries = [float(entry) for step in feed(undecayed(subject, betas=NO_AVERAGE), draws(), 2) for entry in step]
    unit = median(entries)
    if not (unit > 0 and all(math.isclose(size, unit, rel_tol=CLOSE) for size in entries)):
        raise NotApplicable("it does not step as Adam does")
    return unit


def sizes(subject: Subject, gradient: float, steps: int, **options: Any) -> list[float]:
    """Return the median size of each step under a constant gradient."""
    run = undecayed(subject, **options)
    return [float(step.median()) for step in feed(run, lambda _, param: torch.full_like(param, gradient), steps)]


def undecayed(subject: Subject, **options: Any) -> OptimizerRun:
    """Return a run of the optimizer without weight decay."""
    if takes(subject, "weight_decay"):
        options["weight_decay"] = 0.0
    return subject.run(lr=LR, **options)

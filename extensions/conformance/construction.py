"""Checks of how an optimizer is built."""

import math
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from cbs.errors import CbsError
from extensions.conformance.subjects import NotApplicable, OptimizerRun, Subject, check, ensure, moved, refused, same

REFUSALS = (ValueError, TypeError, CbsError)
BAD_OPTIONS: dict[str, Any] = {"betas": (0.9, 1.5), "momentum": -0.5, "weight_decay": -1.0}


@check()
def check_is_a_torch_optimizer(subject: Subject) -> None:
    """It derives from torch.optim.Optimizer, its groups have a learning rate and its defaults, and its name is in its
    repr.
    """
    optimizer = subject.run().optimizer
    ensure(isinstance(optimizer, torch.optim.Optimizer), f"it is a {type(optimizer).__name__}")
    ensure(all("lr" in group for group in optimizer.param_groups), "a group has no learning rate")
    lacking = optimizer.defaults.keys() - {key for group in optimizer.param_groups for key in group}
    ensure(not lacking, f"no group has the defaults {sorted(lacking)}")
    ensure(type(optimizer).__name__ in repr(optimizer), "its name is not in its representation")


@check()
def check_holds_trainable_parameters_once(subject: Subject) -> None:
    """Every trainable parameter is in exactly one group, and no other parameter is in any."""
    model = subject.run().model
    frozen = model.hidden.weight.requires_grad_(False)
    run = OptimizerRun(subject, model)
    held = [id(param) for param in run.params]
    trainable = [id(param) for param in model.parameters() if param.requires_grad]
    ensure(sorted(held) == sorted(trainable), f"it holds {len(held)} parameters, but {len(trainable)} are trainable")
    before = frozen.detach().clone()
    run.train(2)
    ensure(torch.equal(before, frozen), "it moves a parameter that is not trainable")


@check()
def check_frozen_parameters_stay(subject: Subject) -> None:
    """A parameter that is passed but not trainable stays unchanged."""
    model = subject.run().model
    model.hidden.weight.requires_grad_(False)
    run = OptimizerRun(subject, model, subject.over(model.parameters()))
    before = run.values()
    run.train(2)
    ensure("hidden.weight" not in moved(before, run.values()), "it moves a parameter that is not trainable")


@check()
def check_takes_what_torch_takes(subject: Subject) -> None:
    """Parameters may be a list, a generator, groups, or pairs of names and parameters; all step alike. Names are kept
    in the groups and in the state dict.
    """

    def ends(params: Any) -> OptimizerRun:
        model = subject.run().model
        return OptimizerRun(subject, model, subject.over(params(model))).train(2)

    plain = ends(lambda model: list(model.parameters()))
    same(plain.values(), ends(lambda model: model.parameters()).values(), "a generator steps differently from a list")
    groups = ends(lambda model: [{"params": [param]} for param in model.parameters()])
    same(plain.values(), groups.values(), "groups of one parameter step differently from one group", tolerance=1e-5)
    named = ends(lambda model: model.named_parameters())
    same(plain.values(), named.values(), "named parameters step differently from others")
    names = [name for group in named.optimizer.state_dict()["param_groups"] for name in group.get("param_names", [])]
    ensure(names == list(named.named), "the state dict does not have the names of the parameters")


@check()
def check_refuses_no_parameters(subject: Subject) -> None:
    """An empty list of parameters, or a model without trainable parameters, is refused."""
    model = subject.run().model.requires_grad_(False)
    refused(lambda: subject.build(model, subject.lr), REFUSALS, "without parameters")


@check()
def check_refuses_bad_values(subject: Subject) -> None:
    """A negative learning rate is refused at construction, and so are decays of 1 or more, negative momentum and
    negative weight decay.
    """
    refused(lambda: subject.run(lr=-0.1), REFUSALS, "lr=-0.1")
    options = subject.run().optimizer.param_groups[0]
    for name, value in BAD_OPTIONS.items():
        if isinstance(options.get(name), float | tuple | list) and takes(subject, name):
            given: Any = (*value, *options[name][2:]) if isinstance(value, tuple) else value
            refused(partial(subject.run, **dict[str, Any]({name: given})), REFUSALS, f"{name}={given}")


@check(beyond_torch=True)
def check_refuses_values_that_are_not_finite(subject: Subject) -> None:
    """Learning rates and weight decay that are infinite or NaN are refused at construction."""
    for value in (math.nan, math.inf):
        refused(partial(subject.run, lr=value), REFUSALS, f"lr={value}")
        if takes(subject, "weight_decay"):
            refused(partial(subject.run, weight_decay=value), REFUSALS, f"weight_decay={value}")


@check()
def check_refuses_unknown_options(subject: Subject) -> None:
    """A misspelt option is refused at construction."""
    refused(lambda: subject.run(weight_dcay=0.1), REFUSALS, "weight_dcay=0.1")


@check(beyond_torch=True)
def check_refuses_misspelt_keys_of_groups(subject: Subject) -> None:
    """A key of a group that is a misspelt option is refused; other keys, such as those of schedulers, are kept."""
    param = nn.Parameter(torch.ones(4, 3))
    optimizer = subject.over([{"params": [param], "initial_lr": 0.1, "owner": "me"}])
    ensure(optimizer.param_groups[0].get("owner") == "me", "it loses a key of a group that it does not know")
    for name in optimizer.defaults:
        if len(name) > 4:
            wrong = name[:-2] + name[-1]
            group = {"params": [nn.Parameter(torch.ones(4, 3))], wrong: optimizer.defaults[name]}
            refused(partial(subject.over, [group]), REFUSALS, f"a group with {wrong!r}")


@check(beyond_torch=True)
def check_complex_parameters(subject: Subject) -> None:
    """Complex parameters are refused at construction, or step like their real and imaginary parts."""
    values = torch.complex(torch.linspace(-1, 1, 6), torch.linspace(1, 2, 6)).reshape(2, 3)
    param = nn.Parameter(values.clone())
    try:
        optimizer = subject.over([param])
    except REFUSALS as error:
        ensure("complex" in str(error).lower(), f"the refusal does not say why: {error}")
        return
    ensure(not subject.matrices, "they are accepted, but a complex matrix is not a pair of real ones")
    twin = nn.Parameter(torch.view_as_real(values).clone())
    other = subject.over([twin])
    for step in range(3):
        param.grad = values * (step + 1)
        twin.grad = torch.view_as_real(values * (step + 1)).clone()
        optimizer.step()
        other.step()
    steps = {"parameter": torch.view_as_real(param.detach())}
    same(steps, {"parameter": twin}, "complex parameters are accepted and step differently", tolerance=1e-5)


@check(beyond_torch=True)
def check_declares_a_geometry(subject: Subject) -> None:
    """The geometry of its noise scale is known from an attribute ``geometry`` of its class, or from its name."""
    from cbs.noise_scale import GEOMETRIES, matched

    name = matched(subject.run().optimizer)
    ensure(name in GEOMETRIES.names(), f"there is no geometry {name!r}")


@check(beyond_torch=True)
def check_learning_rates_are_a_grid(subject: Subject) -> None:
    """The learning rates from which a sweep starts are finite, above 0 and increase by a constant ratio."""
    grid = subject.lr_grid
    ratios = [high / low for low, high in pairwise(grid)]
    ensure(all(0.0 < lr < math.inf for lr in grid), f"learning rates are not finite and above 0: {grid}")
    ensure(not ratios or (min(ratios) > 1 and max(ratios) < min(ratios) * 1.000001), f"no constant ratio: {grid}")


def takes(subject: Subject, name: str) -> bool:
    """Return whether an optimizer has an option: its groups contain it, and its default value can be passed."""
    value = subject.run().optimizer.param_groups[0].get(name)
    try:
        if value is None:
            raise NotApplicable
        subject.run(**{name: value})
    except (NotApplicable, *REFUSALS):
        return False
    return True

"""Checks of the state: where it is stored, and how it is saved and loaded."""

import copy
import io
import pickle
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from extensions.conformance.subjects import Failure, OptimizerRun, Subject, check, ensure, same

State = dict[str, Any]


@check()
def check_state_dict_has_torchs_format(subject: Subject) -> None:
    """A state dict has ``state`` by number of the parameter and ``param_groups`` with those numbers in order, and
    contains no parameter; calling it changes nothing.
    """
    run, quiet = subject.run().train(2), subject.run().train(3)
    saved = run.optimizer.state_dict()
    ensure(set(saved) == {"state", "param_groups"}, f"its keys are {sorted(saved)}")
    numbers = [number for group in saved["param_groups"] for number in group["params"]]
    ensure(numbers == list(range(len(run.params))), f"parameters are numbered {numbers}")
    ensure(set(saved["state"]) <= set(numbers), f"state is kept by {sorted(map(str, saved['state']))}")
    memory = {param.data_ptr() for param in run.params}
    ensure(not any(leaf.data_ptr() in memory for _, leaf in tensors(saved)), "a parameter itself is in its state")
    same(quiet.values(), run.train(1).values(), "a step after state_dict()")


@check()
def check_resumes_bitwise(subject: Subject) -> None:
    """A state dict that went through ``torch.save`` and ``torch.load(weights_only=True)`` resumes bit for bit, in an
    optimizer that was built with another learning rate, after the first step as after the fifth.
    """
    for steps in (1, 5):
        run = subject.run().train(steps)
        loaded = through_file(run.optimizer.state_dict())
        resumed = again(run, loaded, lr=2 * subject.lr)
        same_state(run.optimizer.state_dict(), resumed.optimizer.state_dict(), "the loaded state")
        same(run.train(3).values(), resumed.train(3).values(), f"resumed after {steps} steps")
        same_state(run.optimizer.state_dict(), resumed.optimizer.state_dict(), "the state after three steps more")


@check()
def check_loading_leaves_what_it_loads(subject: Subject) -> None:
    """Loading neither changes the dictionary nor adds keys to groups or state, before the first step as well."""
    fresh = subject.run()
    for run in (subject.run(), subject.run().train(2)):
        saved = run.optimizer.state_dict()
        untouched = copy.deepcopy(saved)
        other = again(run, saved)
        same_state(untouched, saved, "the dictionary after it was loaded")
        same_state(untouched, other.optimizer.state_dict(), "the state after a load")
        other.train(1)
    run.optimizer.load_state_dict(fresh.optimizer.state_dict())
    same_state(
        fresh.optimizer.state_dict(), run.optimizer.state_dict(), "the state after a load of that before any step"
    )


@check()
def check_loads_by_position(subject: Subject) -> None:
    """State belongs to the position of a parameter in the groups, whatever its number in the dictionary."""
    run = subject.run().train(2)
    saved = copy.deepcopy(run.optimizer.state_dict())
    saved["state"] = {100 - number: value for number, value in saved["state"].items()}
    for group in saved["param_groups"]:
        group["params"] = [100 - number for number in group["params"]]
    other = again(run, saved)
    same(run.train(1).values(), other.train(1).values(), "parameters numbered otherwise")


@check()
def check_step_hooks(subject: Subject) -> None:
    """Hooks before and after a step, both those of the optimizer and the global ones, are called once each."""
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    run = subject.run()
    calls: list[str] = []
    run.optimizer.register_step_pre_hook(lambda *_: calls.append("own before"))
    run.optimizer.register_step_post_hook(lambda *_: calls.append("own after"))
    handles = [
        register_optimizer_step_pre_hook(lambda *_: calls.append("global before")),
        register_optimizer_step_post_hook(lambda *_: calls.append("global after")),
    ]
    try:
        run.train(1)
    finally:
        for handle in handles:
            handle.remove()
    expected = ["global after", "global before", "own after", "own before"]
    ensure(sorted(calls) == expected, f"at one step hooks are called: {', '.join(calls)}")


@check(beyond_torch=True)
def check_loads_what_lacks_options(subject: Subject) -> None:
    """A state dict whose groups lack options, like that of an older version, leaves those as they were at
    construction.
    """
    run = subject.run().train(2)
    other = again(run)
    built = [dict(group) for group in other.optimizer.param_groups]
    saved = copy.deepcopy(run.optimizer.state_dict())
    for group, options in zip(saved["param_groups"], built, strict=True):
        for name in run.optimizer.defaults.keys() & group.keys() - {"lr"}:
            # Values that steps have changed are state that is kept in the group.
            if group[name] == options[name]:
                del group[name]
    other.optimizer.load_state_dict(saved)
    for options, saving, loaded in zip(built, saved["param_groups"], other.optimizer.param_groups, strict=True):
        for name in options.keys() - saving.keys():
            ensure(
                loaded.get(name) == options[name],
                f"{name} is {loaded.get(name)!r}, but was built with {options[name]!r}",
            )
    same(run.train(1).values(), other.train(1).values(), "after a load without options")


@check()
def check_reset(subject: Subject) -> None:
    """After ``optimizer.state = defaultdict(dict)`` or ``optimizer.state.clear()`` the next step is a first step."""
    for reset in ("state = defaultdict(dict)", "state.clear()"):
        run = subject.run().train(3)
        fresh = again(run)
        if reset == "state.clear()":
            run.optimizer.state.clear()
        else:
            run.optimizer.state = defaultdict(dict)
        fresh.steps = run.steps
        same(fresh.train(2).values(), run.train(2).values(), f"after {reset}, beside a fresh optimizer")
        saved = run.optimizer.state_dict()["state"]
        ensure(
            len(saved) == len(fresh.optimizer.state_dict()["state"]), f"after {reset} state is not in the state dict"
        )


@check()
def check_assigned_state(subject: Subject) -> None:
    """A tensor assigned to ``state[p][name]`` is used by the next step, like one changed in place."""
    changed, assigned = subject.run().train(3), subject.run().train(3)
    names = 0
    for one, other in zip(changed.params, assigned.params, strict=True):
        for name, value in list(changed.optimizer.state[one].items()):
            if isinstance(value, Tensor) and value.is_floating_point() and name != "step":
                value.mul_(0.5)
                assigned.optimizer.state[other][name] = assigned.optimizer.state[other][name] * 0.5
                names += 1
    same(changed.train(2).values(), assigned.train(2).values(), "state that was assigned, beside changed in place")
    for one, other in zip(changed.params, assigned.params, strict=True):
        for name, value in changed.optimizer.state[one].items():
            if names and isinstance(value, Tensor):
                ensure(
                    torch.equal(value, assigned.optimizer.state[other][name]), f"{name} does not continue as assigned"
                )


@check()
def check_pickle(subject: Subject) -> None:
    """Model and optimizer pickled together continue bit for bit."""
    run = subject.run().train(2)
    model, optimizer = pickle.loads(pickle.dumps((run.model, run.optimizer)))
    twin = OptimizerRun(subject, model, optimizer)
    twin.steps = run.steps
    ensure(type(optimizer) is type(run.optimizer), f"it comes back as a {type(optimizer).__name__}")
    same_state(run.optimizer.state_dict(), optimizer.state_dict(), "the state after pickling")
    same(run.train(2).values(), twin.train(2).values(), "after pickling")


@check()
def check_deepcopy(subject: Subject) -> None:
    """A deep copy of model and optimizer has the same public attributes, continues bit for bit, and leaves the original
    alone.
    """
    run = subject.run().train(2)
    model, optimizer = copy.deepcopy((run.model, run.optimizer))
    attributes = [{name for name in vars(one) if not name.startswith("_")} for one in (run.optimizer, optimizer)]
    ensure(attributes[0] == attributes[1], f"attributes that differ: {sorted(attributes[0] ^ attributes[1])}")
    twin = OptimizerRun(subject, model, optimizer)
    twin.steps = run.steps
    before = run.values()
    ends = twin.train(2).values()
    same(before, run.values(), "the original after steps of its copy")
    same(run.train(2).values(), ends, "the copy")


def through_file(saved: State) -> State:
    """Return a state dict after saving it to a file and loading it."""
    file = io.BytesIO()
    torch.save(saved, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def again(run: OptimizerRun, saved: State | None = None, *, lr: Any = None) -> OptimizerRun:
    """Return a new optimizer over a copy of the model, with a state if one is given."""
    other = OptimizerRun(run.subject, copy.deepcopy(run.model), lr=lr)
    other.steps = run.steps
    if saved is not None:
        other.optimizer.load_state_dict(saved)
    return other


def tensors(value: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield all tensors in nested dictionaries and lists, with their paths."""
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from tensors(item, f"{path}[{key!r}]")
    elif isinstance(value, list | tuple):
        for key, item in enumerate(value):
            yield from tensors(item, f"{path}[{key}]")


def same_state(one: Any, other: Any, message: str, path: str = "") -> None:
    """Fail unless two nested states are equal."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if one.dtype != other.dtype or not torch.equal(one, other):
            raise Failure(f"{message}: {path} differs")
    elif isinstance(one, dict) and isinstance(other, dict):
        if one.keys() != other.keys():
            keys = sorted(map(str, one.keys() ^ other.keys()))
            raise Failure(f"{message}: {path or 'it'} has more or fewer keys: {', '.join(keys)}")
        for key in one:
            same_state(one[key], other[key], message, f"{path}[{key!r}]")
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple):
        ensure(len(one) == len(other), f"{message}: {path} has another length")
        for key, (a, b) in enumerate(zip(one, other, strict=True)):
            same_state(a, b, message, f"{path}[{key}]")
    elif isinstance(one, Tensor) or isinstance(other, Tensor) or one != other:
        raise Failure(f"{message}: {path} is {one!r} and {other!r}")

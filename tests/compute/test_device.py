"""What is said of devices of every kind, with a stand-in for torch; sharded models train as whole ones do."""

import contextlib
import dataclasses
import functools
import json
import random
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, hessian
from torch.optim import Optimizer

from cbs.compute import device, seeding
from cbs.compute.hessian import flat, hessian_product, shaped
from cbs.compute.sharding import SHARDABLE, check_shardable
from cbs.compute.state import State
from cbs.diagnostics import DIAGNOSTICS
from cbs.errors import ConfigError
from cbs.optimizers import OPTIMIZERS
from cbs.optimizers.contract import unwrapped
from cbs.training.loop import TrainingLoop
from cbs.training.ranks import Ranks
from cbs.training.run import run_trial
from cbs.trial.config import Choice
from cbs.trial.record import TrialStatus
from cbs.workloads import build_workload
from tests.factories import quadratic
from tests.training.ranks_worker import TEXT, trial


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes torch find so many devices of a kind; returns what was done to them."""

    def make(kind: str, count: int) -> SimpleNamespace:
        states = {index: torch.tensor([index], dtype=torch.uint8) for index in range(count)}
        done = SimpleNamespace(index=None, waited=[], emptied=0, states=states)
        module = SimpleNamespace(
            get_device_name=lambda which: f"{kind} of {which}",
            get_rng_state=lambda index=0: states[index],
            set_rng_state=lambda state, index=0: states.update({index: state}),
        )
        if kind == "mps":  # its functions know of one device only
            del module.get_device_name
            module.get_rng_state = lambda: states[0]
            module.set_rng_state = lambda state: states.update({0: state})

        def emptied() -> None:
            done.emptied += 1

        for name, value in {
            "current_accelerator": lambda check_available=False: torch.device(kind),
            "device_count": lambda: count,
            "set_device_index": lambda index: setattr(done, "index", index),
            "synchronize": done.waited.append,
            "empty_cache": emptied,
        }.items():
            monkeypatch.setattr(torch.accelerator, name, value)
        monkeypatch.setattr(torch, "get_device_module", lambda which: module)
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: not including_emulation)
        return done

    return make


@pytest.mark.parametrize(("kind", "backend"), [("cuda", "nccl"), ("xpu", "xccl")])
def test_a_device_of_several(machine, kind, backend):
    done = machine(kind, 2)
    for asked in ("auto", kind):
        assert device.pick(asked, "bfloat16", 1) == torch.device(kind, 1)
        assert done.index == 1
    found = torch.device(kind, 1)
    assert device.names() == [f"{kind} of {kind}:0", f"{kind} of {kind}:1"]
    assert device.backend(found) == backend
    device.synchronize(found)
    device.release(found)
    assert (done.waited, done.emptied) == ([found], 1)
    assert device.pick("cpu", "float32") == torch.device("cpu")
    with pytest.raises(ConfigError, match=f"{kind}:2 was requested, but this process sees only 2"):
        device.pick("auto", "float32", 2)
    with pytest.raises(ConfigError, match="'mps' was requested"):
        device.pick("mps", "float32")


@pytest.mark.parametrize(("kind", "count"), [("cuda", 2), ("xpu", 1), ("mps", 1)])
def test_random_numbers_of_devices_go_back_to_where_they_were(machine, kind, count):
    done = machine(kind, count)
    with contextlib.suppress(ZeroDivisionError), seeding.seeded(1, "training"):
        saved = device.random_states()
        for index in range(count):
            done.states[index] = torch.tensor([99], dtype=torch.uint8)
        raise ZeroDivisionError
    assert [int(state) for state in saved] == list(range(count))
    assert [int(done.states[index]) for index in range(count)] == list(range(count))
    device.set_random_states([torch.tensor([5], dtype=torch.uint8)] * 3)  # of a machine with more
    assert [int(done.states[index]) for index in range(count)] == [5] * count


def test_half_precision_is_taken_where_it_is_not_emulated(machine, monkeypatch):
    machine("cuda", 1)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation)
    with pytest.raises(ConfigError, match="not cuda of cuda:0"):
        device.pick("auto", "bfloat16")
    with device.autocast(torch.device("cpu"), "bfloat16"):
        assert torch.ones(2, 2).matmul(torch.ones(2, 2)).dtype is torch.bfloat16
    with device.autocast(torch.device("cpu"), "float32"):
        assert torch.ones(2, 2).matmul(torch.ones(2, 2)).dtype is torch.float32


CONFIG = quadratic("merit", {"dimension": 5}, target=1e-3, lr=0.01, batch_size=4, seed=0, max_steps=3, probe=None)


def test_a_trial_calls_no_wrapper(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("add_param_group", "zero_grad"):

        @functools.wraps(unwrapped(getattr(Optimizer, name)))
        def wrapper(*_: Any, **__: Any) -> None:
            raise AssertionError("called")

        monkeypatch.setattr(Optimizer, name, wrapper)
    with pytest.raises(AssertionError):
        torch.optim.SGD(torch.nn.Linear(2, 1).parameters())
    assert run_trial(CONFIG).status is TrialStatus.BUDGET_EXHAUSTED


def test_buffers_come_back() -> None:
    module = nn.BatchNorm1d(3)
    before = State(module)
    assert before.other_buffer(State(module), 0.0) == ""
    module(torch.randn(5, 3))
    assert before.other_buffer(State(module), 0.0) == "running_mean"
    before.restore()
    assert before.other_buffer(State(module), 0.0) == ""
    assert module.running_mean.tolist() == [0, 0, 0]


def test_random_numbers_come_back_where_that_is_asked_for() -> None:
    module = nn.BatchNorm1d(3)
    before, buffers_alone = State(module, random=True), State(module)

    def drawn() -> tuple[float, ...]:
        return random.random(), torch.rand(1).item(), float(np.random.random())

    first = drawn()
    buffers_alone.restore()
    assert not {*drawn()} & {*first}
    before.restore()
    assert drawn() == first


def test_a_buffer_that_another_has_taken_the_place_of_comes_back() -> None:
    module = nn.BatchNorm1d(3)
    own, before = module.running_mean, State(module)
    module.running_mean = module.running_mean + 1
    assert before.other_buffer(State(module), 1e-3) == "running_mean"
    before.restore()
    assert module.running_mean is own
    assert before.other_buffer(State(module), 1e-3) == ""


class Network(nn.Module):
    """Two layers, and a parameter that the outputs do not depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4, bias=False), nn.Linear(4, 5)
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(inputs)))


def test_equals_the_dense_matrix() -> None:
    torch.manual_seed(0)
    model = Network().double()
    inputs, labels = torch.randn(6, 3, dtype=torch.float64), torch.randint(0, 5, (6,))
    parameters, names = list(model.parameters()), [name for name, _ in model.named_parameters()]
    at = flat(parameters)

    def loss(vector: Tensor) -> Tensor:
        values = dict(zip(names, shaped(vector, parameters), strict=True))
        return nn.functional.cross_entropy(functional_call(model, values, (inputs,)), labels)

    product = hessian_product(lambda of: nn.functional.cross_entropy(model(of[0]), of[1]), (inputs, labels), parameters)
    found = torch.stack([flat(product(shaped(unit, parameters))) for unit in torch.eye(len(at), dtype=torch.float64)])
    torch.testing.assert_close(found, hessian(loss)(at), rtol=1e-9, atol=1e-12)
    assert torch.linalg.eigvalsh(found).min() < -1e-3
    assert torch.equal(flat(parameters), at)
    assert all(parameter.grad is None for parameter in parameters)


CLOSE = {"rtol": 2e-4, "atol": 1e-6}
"""Sums over ranks round in another order; eight steps of a matrix method carry that on."""


@pytest.mark.slow
@pytest.mark.parametrize("optimizers", [SHARDABLE[:7], SHARDABLE[7:]])
def test_two_ranks_train_as_one_process_does_and_each_goes_on_where_the_other_was(optimizers, tmp_path):
    finished = subprocess.run(
        [sys.executable, "-m", "tests.training.ranks_worker", str(tmp_path), *optimizers],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    found = json.loads(finished.stdout)
    assert set(found) == set(optimizers)
    assert "copied" in found[optimizers[0]]
    for name, runs in found.items():
        assert runs["resumed"] == runs["sharded"], name
        for which in {"sharded", "resumed alone", "copied"} & runs.keys():
            for column, expected in runs["alone"].items():
                np.testing.assert_allclose(runs[which][column], expected, **CLOSE, err_msg=f"{name} {which} {column}")


def test_every_optimizer_is_known_to_shard_or_is_refused():
    assert set(SHARDABLE) <= set(OPTIMIZERS.names())
    for name in ("soap", "shampoo", "adafactor", "torch.optim:Adam"):
        with pytest.raises(ConfigError, match=f"{name}' cannot step on sharded weights"):
            check_shardable(dataclasses.replace(trial("adamw"), optimizer=Choice(name=name)))


@pytest.mark.parametrize(
    ("changes", "shard", "words"),
    [
        ({"averaging": Choice(name="ema", options={"half_life": 4})}, True, "sharded weights cannot be averaged"),
        ({"compile": True}, True, "cannot be compiled"),
        ({"batch_size": 7}, False, "batch size 7 is not a multiple of 2 workers"),
        ({"batch_size": 7, "probe": None}, True, "batch size 7 is not a multiple of 2 workers"),
        ({"batch_size": 1}, False, "a batch of 1 examples cannot be divided among 2 workers"),
        ({"diagnostics": (DIAGNOSTICS.names()[0],)}, False, "one worker's examples"),
    ],
)
def test_what_ranks_would_not_do_alike_is_refused(changes, shard, words):
    config = dataclasses.replace(trial("adamw"), **changes)
    with pytest.raises(ConfigError, match=words):
        TrainingLoop(config, build_workload(TEXT), torch.device("cpu"), Ranks(0, 2, shard))


def test_a_step_is_cut_into_all_of_its_examples():
    batch = torch.arange(7)
    parts = [Ranks(rank, 3).share(batch, 7, equal=False) for rank in range(3)]
    assert [(size, part.tolist()) for size, part in parts] == [(3, [0, 1, 2]), (2, [3, 4]), (2, [5, 6])]
    assert Ranks().share(batch, 7, equal=True)[1] is batch
    with pytest.raises(ConfigError, match="not a multiple of 3"):
        Ranks(0, 3).share(batch, 7, equal=True)


def test_weights_that_come_apart_are_noticed(monkeypatch):
    """A stand-in for the sums of two ranks, of which the other has a weight that is a bit larger."""
    model, other = torch.nn.Linear(2, 1), [0.0]

    def all_reduce(value: torch.Tensor, how: torch.distributed.ReduceOp) -> None:
        if how == torch.distributed.ReduceOp.MAX:
            value += torch.tensor([other[0], 0.0])

    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    Ranks(0, 2).check_alike(model)
    Ranks(0, 1).check_alike(model)
    other[0] = 1e-7
    with pytest.raises(ConfigError, match="workers differ"):
        Ranks(0, 2).check_alike(model)
    with torch.no_grad():
        model.weight.fill_(float("nan"))  # of both, which is divergence
    other[0] = 0.0
    Ranks(0, 2).check_alike(model)

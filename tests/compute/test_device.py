"""What is said of devices of every kind, with a stand-in for torch's own functions: nothing here runs on one."""

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cbs.compute import device, seeding
from cbs.errors import ConfigError


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


def test_the_one_of_apple(machine):
    machine("mps", 1)
    found = device.pick("auto", "float32")
    assert found == torch.device("mps", 0)
    assert device.name(found) == "mps"
    with pytest.raises(ConfigError, match="no process groups for mps; use one worker"):
        device.backend(found)


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


def test_a_machine_without_any(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: None)
    assert (device.kind(), device.count(), device.names(), device.random_states()) == ("cpu", 0, [], [])
    found = device.pick("auto", "float32", 1)  # ranks share it
    assert (found, device.name(found), device.backend(found)) == (torch.device("cpu"), "cpu", "gloo")
    device.synchronize(found)
    device.release(found)
    with pytest.raises(ConfigError, match="not cpu; use precision=float32"):
        device.pick("auto", "bfloat16")


def test_half_precision_is_taken_where_it_is_not_emulated(machine, monkeypatch):
    machine("cuda", 1)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation)
    with pytest.raises(ConfigError, match="not cuda of cuda:0"):
        device.pick("auto", "bfloat16")
    with device.autocast(torch.device("cpu"), "bfloat16"):
        assert torch.ones(2, 2).matmul(torch.ones(2, 2)).dtype is torch.bfloat16
    with device.autocast(torch.device("cpu"), "float32"):
        assert torch.ones(2, 2).matmul(torch.ones(2, 2)).dtype is torch.float32

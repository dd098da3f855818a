"""What the noise scale costs: its steps, named where a sweep is out of reach."""

import inspect

import pytest

from extensions.noise_scale.command import command as noise_scale
from extensions.noise_scale.prices import NOISE_STEPS, noise_scale_price
from sweeps.outlook import price as module
from sweeps.outlook.price import CriticalRun, price_lines, price_report
from tests.sweeps.test_price import GPT2, LARGE, expecting


def test_measurements_on_one_run_are_named_where_a_sweep_is_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    large = expecting((2000.0, 4e6), **LARGE)
    _, line = price_lines(price_report(large, None, 1))
    assert f"({NOISE_STEPS} measured steps at B_crit)" in line
    small = expecting((2000.0, 4e6), workload=GPT2)
    assert price_report(small, None, 1)["instead"] is None
    monkeypatch.setattr(module, "OUT_OF_REACH", 0.1)
    assert price_report(small, None, 1)["instead"] is not None
    _, line = price_lines(price_report(expecting(None, **LARGE), None, 1))
    assert "cbs noise-scale a part of one run (" in line


def test_the_noise_scale_costs_its_steps_each_dearer_than_a_plain_one() -> None:
    found = noise_scale_price(CriticalRun(examples=1e6, steps=1000.0, gpu_hours=100.0), 2.0)
    assert found is not None
    assert found.examples == pytest.approx([NOISE_STEPS * 1000.0] * 3)
    assert found.gpu_hours == pytest.approx([100.0 * NOISE_STEPS / 1000 * 1.9] * 3)
    assert found.dollars == pytest.approx([200.0 * NOISE_STEPS / 1000 * 1.9] * 3)


def test_what_is_priced_are_the_steps_of_the_command_by_default() -> None:
    assert inspect.signature(noise_scale).parameters["steps"].default == NOISE_STEPS

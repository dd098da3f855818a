"""``cbs noise-scale`` from the command line."""

import json

import pytest

from extensions.noise_scale.prices import NOISE_STEPS, noise_scale_price
from sweeps.outlook import price as module
from sweeps.outlook.price import CriticalRun, price_lines, price_report
from tests.sweeps.test_price import GPT2, LARGE, expecting

QUADRATIC = ("noise-scale", "--workload", "noisy_quadratic", "--set", "workload.dimension=50", "--steps", 64)


def test_noise_scale_as_json_and_as_a_table_with_its_figure(run, tmp_path):
    code, out, _ = run(*QUADRATIC, "--json", "-o", tmp_path / "one")
    assert code == 0
    report = json.loads(out)
    assert [phase["last_step"] for phase in report["phases"]] == [8, 16, 32, 64]
    assert {"l2", "l1", "preconditioned"} <= set(report["phases"][0]["noise_scales"])
    assert report["phases"][-1]["noise_scales"]["l2"]["noise"] > 0
    assert json.loads((tmp_path / "one" / "noise_scale.json").read_text()) == report
    code, out, _ = run(*QUADRATIC, "--geometry", "l2", "--wide", "-o", tmp_path / "two")
    assert code == 0
    assert "l2 (plain)" in out
    assert "theta" in out
    assert (tmp_path / "two" / "noise_scale.png").exists()


def test_noise_scale_check_says_whether_a_loop_over_examples_agrees(run, monkeypatch):
    code, out, _ = run("noise-scale", "--workload", "noisy_quadratic", "--check")
    assert code == 0
    assert "source 'split' agrees with a loop over 8 examples in every layer (1)" in out
    monkeypatch.setattr("cbs.noise_scale.check.AGREE", -1.0)
    code, out, _ = run("noise-scale", "--workload", "noisy_quadratic", "--batch-size", 4, "--check", "--json")
    found = json.loads(out)
    assert code == 1
    assert not found["ok"]
    assert found["examples"] == 4


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

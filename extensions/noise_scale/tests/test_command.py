"""``cbs noise-scale`` from the command line."""

import json

from tests.test_cli import one_line

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


def test_noise_scale_of_a_run_that_diverges_is_one_line(run, tmp_path):
    code, out, err = run(*QUADRATIC, "--lr", 1e30, "--optim", "sgd", "-o", tmp_path)
    assert code == 2
    assert not out
    assert one_line(err)
    assert "lower the learning rate" in err


def test_ctrl_c_is_one_line(run, monkeypatch, tmp_path):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("extensions.noise_scale.measuring.measure_run", interrupted)
    code, out, err = run(*QUADRATIC, "-o", tmp_path)
    assert (code, out) == (130, "")
    assert err.startswith("cbs: stopped; to run it again: cbs noise-scale --workload noisy_quadratic")
    assert one_line(err)

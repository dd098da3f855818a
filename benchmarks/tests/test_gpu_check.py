"""``make gpu-check`` where there is no GPU, and what of it a processor can rehearse."""

import pytest

from benchmarks import gpu_check
from cbs.compute import device


def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(device, "count", lambda: 0)
    assert gpu_check.main() == 2
    assert capsys.readouterr().err == "no GPU here: torch finds no accelerator, nothing was checked\n"


def test_what_passed_what_failed_and_what_could_not_run_is_told_apart(monkeypatch, capsys):
    def fails(folder):
        raise AssertionError("on purpose")

    monkeypatch.setattr(device, "count", lambda: 1)
    names = ["NoiseScaleMeter", "MERIT's trust ratio", "two ranks"]
    if device.kind() == "cpu":
        names += ["autocast to bfloat16", "out of memory"]
    monkeypatch.setattr(gpu_check, "CHECKS", {name: gpu_check.CHECKS[name] for name in names})
    assert gpu_check.main() == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.split()[0] for line in lines] == ["passed", "passed", "not", *["not"] * (len(names) - 3)]
    monkeypatch.setitem(gpu_check.CHECKS, "two ranks", fails)
    assert gpu_check.main() == 1
    assert "FAILED   two ranks: AssertionError: on purpose" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bitwise resume", "torch.compile", "two ranks"])
def test_the_other_checks_pass_on_a_processor(name, tmp_path, monkeypatch):
    monkeypatch.setattr(device, "count", lambda: 2)
    assert gpu_check.CHECKS[name](tmp_path)

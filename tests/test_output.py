"""What reaches the terminal whatever a model prints, closes or ends."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_cli import ROOT

TALKS = """
import os
from cbs import Choice
from cbs.workloads import build_workload
print("imported")
def talks():
    print("built")
    os.chdir("/")
    workload = build_workload(Choice(name="noisy_quadratic", options={"dimension": 50}))
    model = workload.build_model
    workload.build_model = lambda: print("number of parameters: 50") or model()
    return workload
def leaves():
    raise SystemExit(0)
"""


def test_a_model_that_prints_and_goes_elsewhere_spoils_neither_the_answer_nor_the_folder(run, tmp_path, monkeypatch):
    (tmp_path / "talks_here.py").write_text(TALKS)
    monkeypatch.chdir(tmp_path)
    asked = ("sweep", "--optim", "sgd", "--batch-sizes", "4,8", "--target", "0.4", "--dry-run", "--json", "-o", "out")
    code, out, err = run(*asked, "--workload", "talks_here:talks")
    assert code == 0, err
    assert json.loads(out)["output"] == "out"
    assert all(word in err for word in ("imported", "built", "number of parameters"))
    assert Path.cwd() == tmp_path


@pytest.mark.parametrize(
    ("source", "said"),
    [(TALKS, "called sys.exit(0)"), ("raise SystemExit('usage')", "cannot import workload module 'ends': SystemExit")],
)
def test_a_model_that_ends_the_process_is_told(run, tmp_path, monkeypatch, source, said):
    (tmp_path / "ends.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "ends", raising=False)
    code, _, err = run("sweep", "--workload", "ends:leaves", "--optim", "sgd", "--dry-run", "-o", tmp_path / "out")
    assert code == 2
    assert said in err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a full disk of Linux")
def test_an_answer_that_finds_no_room_is_one_line():
    with open("/dev/full", "w") as full:
        words = [sys.executable, str(ROOT / "cli.py"), "--version"]
        answer = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert answer.returncode == 2
    assert answer.stderr == "cbs: cannot write the answer to standard output: No space left on device\n"


def test_a_current_folder_that_is_gone_is_one_line(tmp_path):
    (tmp_path / "gone").mkdir()
    shell = f'cd {tmp_path}/gone; rmdir ../gone; exec "$@"'
    words = [sys.executable, str(ROOT / "cli.py"), "status", str(tmp_path)]
    answer = subprocess.run(["sh", "-c", shell, "sh", *words], capture_output=True, text=True, check=False)
    assert answer.returncode == 2
    assert answer.stderr == "cbs: the current folder is gone (No such file or directory); change to one that exists\n"

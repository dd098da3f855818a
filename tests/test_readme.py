"""What the README shows works as it stands."""

from __future__ import annotations

import re
from pathlib import Path

from tests import fresh

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
PYTHON = [text for language, text in BLOCKS if language == "python"]
SHELL = "\n".join(text for language, text in BLOCKS if not language)


def test_your_own_model_sweeps(tmp_path):
    (source,) = [block for block in PYTHON if "my_model.py" in block]
    assert len([line for line in source.splitlines() if line.strip()]) <= 20
    (tmp_path / "my_model.py").write_text(source)
    (command,) = [line for line in SHELL.splitlines() if "my_model:" in line]
    answer = fresh.python("import cli; cli.main()", tmp_path, *command.split()[1:], "--dry-run")
    assert answer.returncode == 0, answer.stderr
    assert "to run" in answer.stdout


def test_it_is_read_in_five_minutes():
    assert len(README.splitlines()) <= 120


def test_links_lead_somewhere():
    for path in re.findall(r"\]\(([^)#:]+)[^)]*\)", README):
        assert (ROOT / path).exists(), path


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"`?make ([a-z-]+)", README)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target

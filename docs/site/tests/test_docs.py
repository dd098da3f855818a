"""What the README and the guides show works as it stands."""

import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import fresh

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted((ROOT / "docs").glob("*.md"))
BLOCKS = [
    (page.name, number, source)
    for page in PAGES
    for number, source in enumerate(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE))
]


@pytest.mark.parametrize(("page", "number", "source"), BLOCKS, ids=[f"{page}-{number}" for page, number, _ in BLOCKS])
def test_a_block_runs_alone_and_prints_what_its_page_says(page: str, number: int, source: str, tmp_path: Path) -> None:
    answer = fresh.python(source, tmp_path)
    assert answer.returncode == 0, answer.stderr
    for line in answer.stdout.splitlines():
        assert re.search(
            r"\d \[[\d.,]+, [\d.,]+\] (groups of \d )?examples(, unless a batch shares a draw \(.*\))?$"
            r"|agrees with a loop over \d examples|\d+ checks pass, 0 fail",
            line,
        ), line
    assert answer.stdout


def test_the_guide_has_a_block_for_the_plain_loop_and_one_for_accumulation() -> None:
    sources = [source for page, _, source in BLOCKS if page == "noise-scale.md"]
    assert any("GradScaler" in source for source in sources)
    assert any("accumulation" not in source for source in sources)


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for path in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / path).exists(), f"{page.name}: {path}"


README = (ROOT / "README.md").read_text()
README_BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
PYTHON = [text for language, text in README_BLOCKS if language == "python"]
FILES = {"my_model.py": ("README.md", "# my_model.py"), "steps.csv": ("docs/definitions.md", "batch_size,steps")}
"""Files of a reader's that the commands need: the page that shows each, and how it begins."""

IN_ORDER = [
    part
    for block, code in re.findall(r"^```\w*\n(.*?)^```|`(cbs [^`]+)`", README, re.DOTALL | re.MULTILINE)
    for line in ([code] if code else [line.removeprefix("$ ") for line in block.splitlines()])
    for part in line.split(" && ")
    if part.startswith("cbs ") and "..." not in part
]
"""Every command, as the page gives it."""

ALONE = {"cbs branch", "cbs local", "cbs scale results/widths", "cbs sweep --workload my_model:Circles"}
"""What the page names without the options that it needs, or in full elsewhere."""

SHELL = "\n".join(text for language, text in README_BLOCKS if not language)


@pytest.mark.usefixtures("children_here")
def test_your_own_model_sweeps(tmp_path, run, monkeypatch):
    (source,) = [block for block in PYTHON if "my_model.py" in block]
    assert len([line for line in source.splitlines() if line.strip()]) <= 20
    (tmp_path / "my_model.py").write_text(source)
    (command,) = [line for line in SHELL.splitlines() if "my_model:" in line]
    monkeypatch.chdir(tmp_path)
    code, out, err = run(*command.split()[1:], "--dry-run")
    assert code == 0, err
    assert "to run" in out


def test_it_is_read_in_five_minutes():
    assert len(README.splitlines()) <= 110


def test_links_of_the_readme_lead_somewhere():
    for path in re.findall(r"\]\(([^)#:]+)[^)]*\)", README):
        assert (ROOT / path).exists(), path


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"`?make ([a-z-]+)", README)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_page_has_commands_in_an_order():
    assert len(IN_ORDER) >= 15
    assert IN_ORDER[:2] == ["cbs sweep --optim merit --optim adamw --recipe quick", "cbs analyze results/"]
    assert set(IN_ORDER) >= ALONE


@pytest.mark.slow
def test_every_command_runs_in_the_order_given(tmp_path):
    """In a fresh folder, with the time that each takes."""
    for name, (page, first) in FILES.items():
        blocks = re.findall(r"^```\w*\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
        (tmp_path / name).write_text(next(block for block in blocks if block.startswith(first)))
    failed = []
    for command in IN_ORDER:
        if command in ALONE:
            continue
        began = time.monotonic()
        answer = subprocess.run(
            [sys.executable, "-m", "cli", *shlex.split(command)[1:]],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
        )
        print(f"{answer.returncode} {time.monotonic() - began:6.1f} s  {command}")
        if answer.returncode:
            failed.append(f"{command}: {answer.stderr}")
    assert not failed, "\n".join(failed)

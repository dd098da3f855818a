"""What the guides show works as it stands."""

import re
from pathlib import Path

import pytest

from tests import fresh

ROOT = Path(__file__).resolve().parents[1]
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
            r"\d \[[\d.,]+, [\d.,]+\] (groups of \d )?examples$"
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

"""The site of the documentation: every page has a place on one shelf, its links lead somewhere, and what pages print is
compared with what the commands print."""

import importlib
import importlib.util
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted(page.name for page in (ROOT / "docs").glob("*.md"))
MADE = {"atlas.md", "commands.md", "python.md", "results-folder.md", "tables.md"}  # Pages that only the site has


def listed(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    for part in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
        yield from listed(part)


def test_every_page_stands_on_one_shelf() -> None:
    project = tomllib.loads((ROOT / "docs" / "site" / "zensical.toml").read_text())["project"]
    assert sorted(listed(project["nav"])) == sorted({*PAGES, *MADE})


def test_the_home_page_names_every_page() -> None:
    named = set(re.findall(r"\]\(([\w-]+\.md)\)", (ROOT / "docs" / "index.md").read_text()))
    assert named == {*PAGES} - {"index.md"}


TEXTS = {page: (ROOT / "docs" / page).read_text() for page in PAGES}


def test_blocks_are_closed_and_of_a_kind_that_every_reader_knows() -> None:
    for page, text in TEXTS.items():
        fences = re.findall(r"^ *```(.*)$", text, re.MULTILINE)
        assert [kind for kind in fences[1::2] if kind] == [], page
        assert len(fences) % 2 == 0, page
        assert [kind for kind in fences if not re.fullmatch(r"\w*", kind)] == [], page


@pytest.mark.parametrize("page", PAGES)
def test_a_page_begins_with_its_question(page: str) -> None:
    assert "?" in "".join(TEXTS[page].splitlines()[:6])


def test_links_within_a_page_and_to_others_lead_to_a_heading() -> None:
    known = {}
    for page, text in TEXTS.items():
        plain = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
        headings = re.findall(r"^#+ (.+)$", plain, re.MULTILINE)
        known[page] = {re.sub(r"[^\w\s-]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
    for page, text in TEXTS.items():
        for name, anchor in re.findall(r"\]\(([\w-]*\.md)?#([\w-]+)\)", text):
            assert anchor in known[name or page], f"{page}: {name}#{anchor}"


def module_of_site(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{name}_of_site", ROOT / "docs" / "site" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def build() -> ModuleType:
    return module_of_site("build")


@pytest.fixture(scope="module")
def numbers() -> ModuleType:
    return module_of_site("numbers")


def test_what_the_site_is_built_from(build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "printed", lambda *arguments: f"```text\ncbs {' '.join(arguments)}\n```\n")
    build.pages(tmp_path / "site")
    sources = tmp_path / "site" / "docs"
    assert sorted(page.name for page in sources.glob("*.md")) == sorted({*PAGES, *MADE})
    assert "cbs explain --settings" in (sources / "settings.md").read_text()
    assert {"site.css", "site.js"} <= {file.name for file in sources.iterdir()}
    commands = (sources / "commands.md").read_text()
    assert {"## cbs sweep", "## cbs analyze"} <= set(commands.splitlines())
    assert not [page.name for page in sources.glob("*.md") if "](../" in page.read_text()]


def test_a_public_name_is_there(build: ModuleType) -> None:
    for name in build.PUBLIC:
        module, _, entry = name.rpartition(".")
        assert hasattr(importlib.import_module(module), entry), name


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(build: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("zensical")
    assert build.main(tmp_path / "site") == 0
    assert "critical batch size" in (tmp_path / "site" / "html" / "index.html").read_text()


PAGE = """One.

<!-- file: steps.csv -->
```
batch_size,steps
64,100
```

<!-- prints: cbs fit steps.csv -->
```
{printed}
```

<!-- numbers: cbs theory: 1,507, 35.9 -->

The knee is at {knee} and at 1,507.
"""


@pytest.mark.parametrize(
    ("printed", "knee", "says", "complaints"),
    [
        ("as it was", "35.9", "35.9 and 1,507", []),
        ("otherwise", "35.9", "35.9 and 1,507", ["prints otherwise now"]),
        ("as it was", "36", "35.9 and 1,507", ["35.9 of 'cbs theory' is not said by the page"]),
        ("as it was", "35.9", "35.91 and 11,507", ["1,507 of", "35.9 of"]),
    ],
)
def test_what_is_out_of_date_is_told(numbers, monkeypatch, tmp_path, printed, knee, says, complaints):
    seen = {}

    def output(command: str, folder: Path) -> str:
        seen[command] = (folder / "steps.csv").read_text()
        return says if command == "cbs theory --wide" else "as  it was\n"

    monkeypatch.setattr(numbers, "output", output)
    page = tmp_path / "page.md"
    page.write_text(PAGE.format(printed=printed, knee=knee))
    lines = [*numbers.out_of_date(page)]
    assert len(lines) == len(complaints)
    assert all(part in line for part, line in zip(complaints, lines, strict=True))
    assert seen == dict.fromkeys(("cbs fit steps.csv", "cbs theory --wide"), "batch_size,steps\n64,100\n")


def test_a_command_runs_in_the_folder_of_its_files(numbers, tmp_path):
    (tmp_path / "steps.csv").write_text("batch_size,steps\n64,100\n128,60\n")
    assert "2 batch sizes do not show how a curve bends" in " ".join(
        numbers.output("cbs fit steps.csv", tmp_path).split()
    )


def test_some_pages_are_marked(numbers):
    marks = [mark for page in (ROOT / "docs").glob("*.md") for mark in numbers.MARK.findall(page.read_text())]
    assert len(marks) >= 5

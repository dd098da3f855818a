"""What the pages print is compared with what the commands print."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def numbers() -> ModuleType:
    spec = importlib.util.spec_from_file_location("numbers_of_pages", ROOT / "docs" / "site" / "numbers.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
        return says if command == "cbs theory" else "as  it was\n"

    monkeypatch.setattr(numbers, "output", output)
    page = tmp_path / "page.md"
    page.write_text(PAGE.format(printed=printed, knee=knee))
    lines = [*numbers.out_of_date(page)]
    assert len(lines) == len(complaints)
    assert all(part in line for part, line in zip(complaints, lines, strict=True))
    assert seen == dict.fromkeys(("cbs fit steps.csv", "cbs theory"), "batch_size,steps\n64,100\n")


def test_a_command_runs_in_the_folder_of_its_files(numbers, tmp_path):
    (tmp_path / "steps.csv").write_text("batch_size,steps\n64,100\n128,60\n")
    assert "2 batch sizes do not show how a curve bends" in " ".join(
        numbers.output("cbs fit steps.csv", tmp_path).split()
    )


def test_some_pages_are_marked(numbers):
    marks = [mark for page in (ROOT / "docs").glob("*.md") for mark in numbers.MARK.findall(page.read_text())]
    assert len(marks) >= 5

"""The report page: well-formed and complete, nothing loaded, hostile names are text, and it works in a browser."""

import html
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from matplotlib.image import imread

from analysis.config import AnalysisConfig
from analysis.estimate.diagnosis import Verdict
from analysis.formatting import B_CRIT, number
from analysis.present.answers import definitions, doublings, points, summary
from analysis.present.sentences import VERDICTS
from cbs.errors import ResultsError
from extensions.report.content import messages
from extensions.report.page import Page, report
from tests.factories import Truth, sweep

NAMES = ("<script>alert(1)", "a\"b'& {{ 7*7 }} %s $x$", "_under")
SWEEP = "<img src=x onerror=alert(2)>"
COMMAND = "cbs report results -o 'a <b>.html'"
VOID = {"meta", "link", "br", "wbr", "img", "input", "hr"}
FAST = AnalysisConfig(resamples=100)


class Document(HTMLParser):
    """Elements in their order, text, and what is not balanced."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.problems: list[str] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        self.problems += [f"<{tag}> is never closed" for tag in self.open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.problems.append(f"</{tag}> at {self.getpos()}")

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((self.open[-1] if self.open else "", data.strip()))

    def all(self, *tags: str) -> list[dict[str, str]]:
        return [attributes for tag, attributes in self.elements if tag in tags]

    def text(self) -> str:
        return " ".join(text for tag, text in self.texts if tag != "style")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("hostile")
    truth = Truth(noise=0.04, layers=1)
    store = sweep(
        root, dict.fromkeys(NAMES, truth), batch_sizes=(4, 16, 64, 256), lrs=(2e-3, 4e-3, 8e-3), seeds=2, growth=1.4,
        moments=True, name=SWEEP,
    )  # fmt: skip
    run = {
        "command": "cbs sweep --optim '<script>'",
        "started": "2026-03-01T08:00:00+00:00",
        "versions": {"python": "3.11.7", "torch": "2.9.0<b>"},
        "hardware": {"system": "Linux x86_64", "cores": 2, "memory_bytes": 2**34, "gpus": ["<i>H200</i>"]},
        "git": {"cbs": "0123456789" * 4 + "-dirty", "working_directory": None},
    }
    workload = {"name": "</td><script>", "options": {"size": 3}}
    protocol = {"prune_factor": 1.3, "workload": workload, "diagnostics": []}
    store.write_manifest({"name": SWEEP, "protocol": protocol, "data_hash": "4a05<", "runs": [run]})
    return root


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tiny")
    sweep(root, {"adamw": Truth()}, batch_sizes=(4, 16, 64), lrs=(2e-3, 4e-3), growth=1.5)
    return root


@pytest.fixture(scope="module")
def page(results: Path, tmp_path_factory: pytest.TempPathFactory) -> Page:
    return report(results, output=tmp_path_factory.mktemp("page") / "a page.html", config=FAST, command=COMMAND)


@pytest.fixture(scope="module")
def source(page: Page) -> str:
    return page.path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def document(source: str) -> Document:
    return Document(source)


def test_tags_are_balanced_and_references_lead_to_one_element(document: Document, source: str) -> None:
    assert document.problems == []
    ids = [attributes["id"] for _, attributes in document.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    found = {name for _, attributes in document.elements for name in attributes.get("aria-labelledby", "").split()}
    found |= {attributes["href"][1:] for attributes in document.all("a", "use") if attributes["href"][0] == "#"}
    found |= set(re.findall(r"url\(#([^)]+)\)", source))
    assert found
    assert found <= set(ids)


def test_nothing_is_loaded_and_nothing_runs(document: Document, source: str) -> None:
    for _, attributes in document.elements:
        for name, value in attributes.items():
            assert not name.startswith("on")
            if name in ("src", "href", "srcset", "action", "data"):
                assert value.startswith(("#", "data:", "https://arxiv.org/abs/")), value[:80]
    assert not document.all("script", "iframe", "object", "embed", "base")
    (sheet,) = [text for tag, text in document.texts if tag == "style"]
    assert "url(" not in sheet
    assert "@import" not in sheet
    assert "http" not in re.sub(r"https://arxiv\.org/abs/|http-equiv", "", source)
    (policy,) = [meta for meta in document.all("meta") if meta.get("http-equiv") == "Content-Security-Policy"]
    assert policy["content"].startswith("default-src 'none'")


def test_hostile_names_are_text(document: Document) -> None:
    texts = {text for _, text in document.texts}
    assert {NAMES[0], f"Critical batch size: {SWEEP}", "<i>H200</i>", COMMAND} <= {
        part for text in texts for part in (text, text.rpartition(", ")[2])
    }
    everything = document.text()
    for words in (*NAMES[:1], "</td><script>", "cbs sweep --optim '<script>'", "{{ 7*7 }}"):
        assert words in everything
    assert "49 %s" not in everything
    assert len(document.all("img")) == 0


def test_headings_tables_and_figures_are_accessible(document: Document) -> None:
    levels = [int(tag[1]) for tag, _ in document.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert max(np.diff(levels)) <= 1
    assert all(heading.get("scope") in ("col", "row") for heading in document.all("th"))
    assert len(document.all("figcaption")) == len(document.all("figure")) == 7
    drawings = [svg for svg in document.all("svg") if svg.get("aria-hidden") != "true"]
    assert len(drawings) == 7
    assert all(svg["role"] == "img" and svg["aria-labelledby"] for svg in drawings)
    assert {"lang": "en"} in document.all("html")
    assert document.all("title")


def test_everything_is_there(document: Document, page: Page) -> None:
    text = document.text()
    for answer in page.answers:
        examples = answer.examples_at_critical.value
        for value in (answer.critical_batch_size, answer.min_steps.value, examples, answer.noise_scale.value):
            assert number(value) in text
        for end in answer.interval:
            assert number(end) in text
        for entry in answer.definitions.values():
            assert entry.remark in text
        for point in answer.points:
            assert number(point.steps_to_target) in text
        assert str(answer.verdict) in text
        assert answer.advice in text
    for words in ("2026-03-01T08:00:00+00:00", "torch 2.9.0<b>", "0123456789-dirty", "16 GiB memory", "4a05<"):
        assert words in text
    for words in (
        "prune_factor",
        "workload.options.size",
        "REACHED",
        "PRUNED",
        B_CRIT,
        "What doubling the batch size buys",
    ):
        assert words in text
    assert "100 posterior draws" in " ".join(text.split())
    sections = [attributes["id"] for attributes in document.all("section")]
    linked = [attributes["href"][1:] for attributes in document.all("a") if attributes["href"][0] == "#"]
    assert set(sections) <= set(linked)
    assert page.size == page.path.stat().st_size


def test_tables_are_those_of_the_terminal_and_say_where_they_can_be_scrolled(document: Document, page: Page) -> None:
    cells = {text for tag, text in document.texts if tag in ("span", "td", "th", "wbr")}
    for table in (made(page.answers) for made in (summary, doublings, definitions, points)):
        shown = table.shown(wide=True)
        numbers = [cell for row in shown.cells() for cell in row]
        for column, (value, interval) in zip(shown.columns * len(table.rows), numbers, strict=True):
            assert column.name or value in cells
            assert not interval or interval in cells
    boxes = [attributes for attributes in document.all("div") if "scroll" in attributes.get("class", "").split()]
    hints = [attributes for attributes in document.all("p") if "hint" in attributes.get("class", "").split()]
    assert all(box["tabindex"] == "0" for box in boxes)
    wide = [attributes for attributes in document.all("figure") if attributes.get("class") == "wide"]
    assert len(boxes) - 2 <= len(hints) - len(wide) <= len(boxes)
    (sheet,) = [text for tag, text in document.texts if tag == "style"]
    assert ".hint { display: none;" in sheet
    narrow = re.search(r"@media \(max-width: 44rem\) \{.*?\n\}", sheet, re.DOTALL)
    assert narrow
    assert ".hint { display: block; }" in narrow[0]
    assert re.search(r"thead th\.name, tbody th, tbody th\.long \{ display: block;", narrow[0])


def test_that_a_run_was_imported_is_no_message_of_its_own() -> None:
    said = ["imported from run a", "loss is nan at step 3", "loss is nan at step 5", None]
    assert messages(SimpleNamespace(trials=pd.DataFrame({"message": said}))) == [("loss is nan at step 3", 2)]


def test_a_page_that_cannot_be_written_leaves_the_old_one(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "report.html"
    file.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("extensions.report.page.os.replace", full)
    monkeypatch.setattr("extensions.report.page.drawings", lambda *_: [])
    with pytest.raises(ResultsError, match=f"cannot write the report to {file}: No space left.*--output") as error:
        report(tiny, output=file, config=FAST)
    assert "\n" not in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert file.read_text() == "old"


def test_the_command_says_where_it_wrote_and_the_same_input_gives_the_same_bytes(
    tiny: Path, tmp_path: Path, run, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "r.html"
    code, out, _ = run("report", tiny, "-o", file, "--resamples", 100, "--json")
    assert code == 0
    said = json.loads(out)
    assert said == {"path": str(file), "bytes": file.stat().st_size, "fits": 1, "figures": said["figures"]}
    command = f"cbs report {tiny} -o {file} --resamples 100 --json"
    assert command in Document(file.read_text()).text()
    again = report(tiny, output=tmp_path / "new" / "b.html", config=FAST, command=command)
    assert again.path.read_bytes() == file.read_bytes()
    (tmp_path / "file").touch()
    monkeypatch.setattr("extensions.report.page.drawings", lambda *_: [])
    code, out, err = run("report", tiny, "-o", tmp_path / "file" / "r.html", "--resamples", 100)
    assert (code, out) == (2, "")
    assert err.startswith("cbs: cannot write the report to")
    assert err.count("\n") == 1


def test_every_verdict_is_explained() -> None:
    assert set(VERDICTS) == set(Verdict)


def browser() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
    return os.environ.get("CHROME") or next(filter(None, map(shutil.which, names)), None)


@pytest.fixture
def chromium(tmp_path: Path) -> Iterator[object]:
    program = browser()
    if program is None:
        pytest.skip("no chromium or google-chrome on PATH, nor in the environment variable CHROME")

    def run(*arguments: str) -> subprocess.CompletedProcess[bytes]:
        quiet = (
            "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr", "--hide-scrollbars",
        )  # fmt: skip
        done = subprocess.run([program, *quiet, *arguments], capture_output=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr.decode(errors="replace")[-2000:]
        console = [line for line in done.stderr.decode(errors="replace").splitlines() if ":CONSOLE" in line]
        assert console == []
        return done

    return run


MEASURE = """
<script>
const found = {};
let left = document.querySelectorAll("iframe").length;
for (const frame of document.querySelectorAll("iframe")) frame.onload = () => {
  const page = frame.contentDocument, root = page.documentElement;
  const box = element => { const b = element.getBoundingClientRect(); return [b.left, b.right, b.width, b.height]; };
  found[frame.width] = {
    names: [...page.querySelectorAll("tbody tr")].filter(row => row.querySelectorAll("th").length > 1).map(
        row => [...row.querySelectorAll("th")].map(box)),
    scroll: root.scrollWidth,
    inner: frame.contentWindow.innerWidth,
    pictures: [...page.querySelectorAll("figure svg, figure img")].map(box),
    boxes: [...page.querySelectorAll(".scroll, figure, pre, p, dl")].filter(e => e.offsetWidth).map(box),
    text: [...page.querySelectorAll("figure svg text")].map(e => box(e)[3]),
    unsaid: [...page.querySelectorAll(".scroll, .drawing")].filter(e => e.scrollWidth > e.clientWidth + 1)
      .filter(e => !e.previousElementSibling?.matches(".hint") || !e.previousElementSibling.offsetHeight).map(
        e => e.getAttribute("aria-label") || e.getAttribute("aria-labelledby")),
    loaded: frame.contentWindow.performance.getEntriesByType("resource").map(entry => entry.name),
  };
  if (--left == 0) document.querySelector("pre").textContent = JSON.stringify(found);
};
</script>
"""


def test_it_fits_narrow_and_wide_screens_and_loads_nothing(chromium, source: str, tmp_path: Path) -> None:
    frames = "".join(
        f'<iframe width="{width}" height="800" srcdoc="{html.escape(source)}"></iframe>' for width in (360, 1280)
    )
    wrapper = tmp_path / "wrapper.html"
    wrapper.write_text(f"<!DOCTYPE html><pre></pre>{frames}{MEASURE}")
    dom = chromium("--virtual-time-budget=20000", "--dump-dom", wrapper.as_uri()).stdout.decode()
    found = json.loads(html.unescape(dom.partition("<pre>")[2].partition("</pre>")[0]))
    assert set(found) == {"360", "1280"}
    for width, seen in found.items():
        assert seen["scroll"] <= seen["inner"] == int(width)
        assert seen["loaded"] == []
        assert seen["unsaid"] == []  # what is wider than the page says so above
        assert len(seen["pictures"]) == 7
        assert all(box[2] > 0 and box[3] > 0 for box in seen["pictures"])
        # Half a pixel for rounding of the layout.
        assert all(box[0] >= -0.5 and box[1] <= int(width) + 0.5 for box in seen["boxes"])
        # Labels of 7 points on paper stay legible: 8 pixels is what browsers call small print.
        assert np.median(seen["text"]) >= 8
        # on a narrow screen names stand below each other, so that the numbers are beside them
        assert seen["names"]
        apart = {len({round(name[0]) for name in row}) > 1 for row in seen["names"]}
        assert apart == {width == "1280"}


def test_it_prints(chromium, page: Page, tmp_path: Path) -> None:
    file = tmp_path / "page.pdf"
    chromium("--no-pdf-header-footer", f"--print-to-pdf={file}", page.path.as_uri())
    data = file.read_bytes()
    assert data.startswith(b"%PDF")
    assert 3 <= len(re.findall(rb"/Type\s*/Page\b", data)) <= 20
    assert b"/ToUnicode" in data
    if shutil.which("pdftotext"):
        text = subprocess.run(["pdftotext", "-layout", file, "-"], capture_output=True, text=True, check=True).stdout
        for words in ("Critical batch size", "Verdicts", "Figure 1.", "batch size (sequences)", "cbs report results"):
            assert words in text


def test_it_is_seen(chromium, page: Page, tmp_path: Path) -> None:
    file = tmp_path / "page.png"
    chromium("--window-size=1280,1600", f"--screenshot={file}", page.path.as_uri())
    pixels = imread(file)[..., :3]
    assert pixels.shape[:2] == (1600, 1280)
    # Ink, and white margins on both sides.
    assert 0.01 < (pixels.mean(axis=2) < 0.5).mean() < 0.5
    assert (pixels[:, :8] > 0.95).all()
    assert (pixels[:, -8:] > 0.95).all()

"""A recipe from its sweeps to verdicts, prices and the atlas; trials are written, not trained."""

import dataclasses
import json
import re
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
import torch

from cbs.checksum import json_bytes
from cbs.errors import ResultsError
from cbs.trial.store import Store
from cbs.trial.target import Target
from extensions.papers.experiments import (
    PAPERS,
    Beyond,
    Expectation,
    Likely,
    Measured,
    Near,
    OurNumber,
    PaperRecipe,
    RecipeRun,
    asks,
)
from extensions.papers.experiments.parts import TEXT, experiment, fitted, larger_critical
from extensions.papers.reproducing.reproduce import VERDICTS, is_figure, reproduce
from extensions.papers.reproducing.telling import lines
from sweeps.launching import launch
from sweeps.running.run import SweepRun
from sweeps.search.search import Limits, Search
from sweeps.spec.spec import Sweep
from sweeps.spec.workload import built
from tests.factories import Truth, sweep

Run = Callable[..., tuple[int, str, str]]
WORLDS = {"adamw": Truth(noise=0.01), "merit": Truth(noise=0.01, min_examples=30_000.0)}
"""Critical batch sizes 42 and 171."""


def recipe(scale: str) -> PaperRecipe:
    sizes = (4, 16, 64, 256, 1024)
    spec = experiment(TEXT, tuple(WORLDS), sizes, target=Target(metric="validation_loss", value=2.4))
    found, claims = (
        ("source", "published"),
        ("merit is about 171", "merit is about 42", "no such optimizer", "no answer"),
    )
    return PaperRecipe(
        title="a recipe of a test",
        paper="Nobody 2020",
        protocol="written trials",
        runs=(RecipeRun(name="main", sweep=spec),),
        analyses={
            "analyze": asks("analyze", "main"), "compare": asks("compare", "main"),
            "fails": asks("scale", "main", against=("parameters",), definition="least_product"),
        },
        expectations=(
            larger_critical("merit", "adamw", "4 times", "s"),
            Expectation(claim=claims[0], published="171", source=found[0], relation=Near((171.0,), 100.0),
                        ours=(fitted("critical", optimizer="merit"),)),
            Expectation(claim=claims[1], published="42", source=found[0], relation=Near((42.0,), 10.0),
                        ours=(fitted("critical", optimizer="merit"),)),
            Expectation(claim=claims[2], published="-", source=found[0], relation=Likely(),
                        ours=(fitted("critical", optimizer="lamb"),)),
            Expectation(claim=claims[3], published="-", source=found[0], relation=Beyond(0.0),
                        ours=(OurNumber(question="fails", of=lambda found: Measured("x", found.x)),)),
        ),
        figure="steps",
        minutes=1.0,
    )  # fmt: skip


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, Sweep]]:
    """Registers the recipe, whose runs are written where they would be trained; what was asked for, and where."""
    asked: list[tuple[Path, Sweep]] = []

    def train(spec: Sweep, folder: Path, *, limits: Limits, **_: Any) -> Generator[SweepRun, None, Search]:
        asked.append((folder, spec))
        if not limits.reached:
            sweep(folder, WORLDS, batch_sizes=(4, 16, 64, 256, 1024), seeds=3)
        for trial in folder.glob("trials/*"):
            (trial / "timing.json").write_bytes(json_bytes({"seconds": 7.0, "processor_seconds": 1000.0}))
        return Search(spec, Store(folder).results() if folder.exists() else [])
        yield

    list(PAPERS)
    monkeypatch.setattr(PAPERS, "_entries", {**PAPERS._entries, "test-recipe": recipe})
    monkeypatch.setattr(launch, "sweep", train)
    monkeypatch.setattr("sweeps.launching.policies.all_code_changes", lambda store: [])
    return asked


def test_every_statement_has_a_verdict_with_our_interval_and_the_atlas_is_made_of_them(
    written: list[tuple[Path, Sweep]], run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run("reproduce", "test-recipe", "--record", "tables")
    assert code == 0, err
    folder = Path("results/test-recipe-tiny")
    assert [place for place, _ in written] == [folder / "main"]
    assert out.count("verdict     reproduced") == 2
    assert out.count("verdict     differs") == 1
    assert f"figure      {folder}/main/analysis/figures/steps.png" in out
    stored = json.loads((folder / VERDICTS).read_text())
    assert [each["verdict"] for each in stored["verdicts"]] == [
        "reproduced", "reproduced", "differs", "cannot be told at this scale", "cannot be told at this scale",
    ]  # fmt: skip
    assert "0 entries have optimizer lamb" in stored["verdicts"][3]["why"][0]
    assert "parameters" in stored["verdicts"][4]["why"][0]
    assert set(stored["failures"]) == {"fails"}
    (merit,) = stored["verdicts"][1]["ours"]
    low, high = merit["interval"]
    assert low < 171 < high
    assert [Path(file).name for file in stored["figures"] if file.endswith(".png")] == ["steps.png"]
    assert "main/analysis/figures/steps.png" in stored["figures"]
    assert all((folder / file).is_file() for file in stored["figures"])
    assert stored["command"] == "cbs reproduce test-recipe"
    assert stored["complete"] is True
    code, out, _ = run("recipes", "atlas", "tables", "-o", "page.md")
    assert (code, out) == (0, "page.md: 5 statements\n")
    page = Path("page.md").read_text()
    assert "In all: 2 reproduced, 1 differs, 2 cannot be told at this scale." in page
    assert re.search(r"Not recorded here, so neither found nor missed: .*`nqm`", page)
    assert "`test-recipe`" not in page.split("## ")[0]
    assert "| merit is about 42 | 42 | " in page
    trials = len(list((folder / "main" / "trials").iterdir()))
    assert 1000 * trials <= stored["seconds"] < 1000 * (trials + 1)  # the analyses take seconds
    assert f"`cbs reproduce test-recipe`, {stored['seconds']:,} s." in page
    assert f"Recorded {stored['date']}." in page
    assert f"A recipe takes {stored['seconds']:,} s in the median, {stored['seconds']:,} s at most." in page


def test_a_run_starts_from_the_checkpoint_that_the_run_before_it_keeps(
    written: list[tuple[Path, Sweep]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = recipe("tiny").runs[0]
    runs = (two, dataclasses.replace(two, name="after", sweep=two.sweep.replace(after="main")))
    monkeypatch.setitem(
        PAPERS._entries,
        "test-recipe",
        lambda scale: dataclasses.replace(recipe(scale), runs=runs, analyses={}, expectations=()),
    )
    with pytest.raises(ResultsError, match=r"main holds 0 checkpoints, but after starts from exactly one"):
        reproduce("test-recipe", "tiny", tmp_path / "out")
    kept = tmp_path / "out" / "main" / "kept" / "trunk"
    kept.mkdir(parents=True)
    parameters = built(two.sweep.trial.workload).build_model().state_dict()
    torch.save(parameters, kept / "64.pt")
    written.clear()
    reproduce("test-recipe", "tiny", tmp_path / "out")
    (_, first), (_, second) = written
    assert first.start.parent is None
    assert (second.start.parent.source, second.start.parent.optimizer) == (str(kept / "64.pt"), "reset")
    assert second == first.replace(parent=second.start.parent)


@pytest.mark.parametrize(
    ("file", "is_one"),
    [
        ("a/steps.png", True),
        ("a/steps-loss_below_2.6.pdf", True),
        ("a/steps.csv", False),
        ("a/pareto.png", False),
        ("steps/pareto.png", False),
    ],
)
def test_a_figure_may_be_drawn_for_every_target(file: str, is_one: bool) -> None:
    assert is_figure(Path(file), "steps") is is_one
    assert not is_figure(Path(file), "")
    assert is_figure(Path(file), "steps-loss_below_2.6") is ("below" in file)


def test_what_a_limit_cut_short_is_not_complete(
    written: list[tuple[Path, Sweep]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    (tmp_path / "out").mkdir()
    sweep(tmp_path / "out" / "main", WORLDS, batch_sizes=(4, 16, 64), seeds=1)
    whole = recipe("tiny")
    runs = (whole.runs[0], dataclasses.replace(whole.runs[0], name="later"))
    monkeypatch.setitem(PAPERS._entries, "test-recipe", lambda scale: dataclasses.replace(whole, runs=runs))
    outcome = reproduce("test-recipe", "tiny", tmp_path / "out", limits=Limits(deadline=0.0), note=notes.append)
    assert [place.name for place, _ in written] == ["main"]  # where what is stored is read
    assert outcome.complete is False
    assert "the time of --max-time is over: no trial starts for later and what follows it" in notes
    assert str(outcome.judged[0].verdict) != "reproduced"


def test_the_atlas_says_once_what_rows_share_and_lists_what_cannot_be_told() -> None:
    row = {"claim": "c", "published": "p", "source": "s", "ours": [], "verdict": "differs", "why": []}
    table = dict.fromkeys(("recipe", "scale", "title", "paper", "command", "date"), "x")
    table |= {"complete": True, "seconds": 7}

    def page(*rows: dict[str, Any]) -> str:
        return "\n".join(lines([table | {"verdicts": rows}]))

    assert "|---|---|---|---|\n| c | p (s) |  | differs |" in page(row)
    assert "Published: s.\n\n| statement | published | ours" in page(row, row | {"published": "q"})
    assert "Published: p; s.\n\n| statement | ours" in page(row, row)
    assert "Published: s, unless a row says otherwise." in page(row, row, row | {"source": "t"})
    assert "| c | q (t) |" in page(row, row | {"published": "q", "source": "t"})
    unknown = row | {"claim": "d", "verdict": "cannot be told at this scale", "why": ["a"]}
    both = page(row, unknown, unknown | {"claim": "e"})
    assert both.endswith("| c | p (s) |  | differs |\n\nCannot be told: d; e.")
    assert page(unknown).endswith(
        "answer at this scale\n\nTheir statements: `cbs reproduce NAME --dry-run`.\n\n- x. `x`, 7 s: x"
    )


def test_a_dry_run_prices_the_paper_scale(run: Run) -> None:
    code, out, _ = run("reproduce", "merit-gpt2", "--scale", "paper", "--dry-run", "--tflops", "500")
    assert code == 0
    assert "run large" in out
    assert "774,030,080 parameters (published: 7.7e8)" in out
    assert "at 500 TFLOP/s" in out
    code, out, _ = run("reproduce", "merit-gpt2", "--scale", "paper", "--dry-run", "--json")
    rows = json.loads(out)
    assert [row["run"] for row in rows] == ["small", "medium", "large"]
    assert rows[0]["accelerator_hours"] == pytest.approx(rows[0]["flops"] / (989e12 * 0.4) / 3600)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["reproduce", "nqn"], "unknown recipe of a paper 'nqn': did you mean nqm"),
        (["reproduce", "nqm", "--scale", "huge"], "unknown scale 'huge'"),
        (["reproduce", "nqm", "--tflops", "0"], "--tflops must be above 0"),
        (["reproduce", "merit-gpt2", "--set", "nothing=1"], "unknown key 'nothing'"),
        (["reproduce", "merit-gpt2", "--dry-run", "--set", "nothing=1"], "unknown key 'nothing'"),
        (["reproduce", "nqm", "-o", "/proc/none"], "/proc/none"),
        (["reproduce", "nqm", "--record", "/proc/none"], "/proc/none"),
    ],
)
def test_what_there_is_not_is_one_line(run: Run, words: list[str], says: str) -> None:
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert says in err
    assert err.count("\n") == 1


def test_recipes_are_listed_and_shown(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    few = {name: PAPERS._entries[name] for name in list(PAPERS) if name in ("nqm", "seesaw")}
    monkeypatch.setattr(PAPERS, "_entries", few)
    code, out, _ = run("recipes")
    assert code == 0
    assert {line.split()[0] for line in out.splitlines()[1:-1]} == set(few)
    code, out, _ = run("reproduce", "seesaw", "--dry-run")
    assert code == 0
    for word in ("protocol", "differs", "run text", "analysis    cbs schedule judge", "expected", "published"):
        assert word in out

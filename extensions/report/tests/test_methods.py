"""The methods paragraph says what was recorded, names what was not, and cites what it rests on; LaTeX takes it."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from analysis import analyze, present
from analysis.config import AnalysisConfig
from analysis.estimate.definitions import DEFINITIONS
from analysis.present.sentences import judged
from cbs.optimizers import OPTIMIZERS
from cbs.registry.choices import Choice
from cbs.trial.config import ENDLESS, OF_TRAINER, UNKNOWN
from cbs.trial.store import Store
from extensions.report import methods as bibliography
from extensions.report.methods import methods
from tests.analysis.present.test_table import hard_to_set
from tests.factories import Truth, sweep

FAST = AnalysisConfig(resamples=100)
COMMIT = "0123456789abcdef" * 2 + "01234567"
MANIFEST = {
    "name": "mine",
    "protocol": {
        "prune_factor": 1.3,
        "max_steps": 1000,
        "max_examples": 30000,
        "schedule": {
            "name": "cosine",
            "warmup_steps": 10,
            "decay_examples": 90000,
            "final_fraction": 0.1,
            "options": {},
        },
        "precision": "bfloat16",
        "clip_norm": 1.0,
        "evaluation": {"growth": 1.04},
    },
    "axes": {"lrs": None},
    "runs": [
        {
            "command": "cbs sweep",
            "versions": {"cbs": "0.1.0", "torch": "2.13.0"},
            "hardware": {"processor": "CPU", "gpus": ["H100", "H100"]},
            "git": {"cbs": f"{COMMIT}-dirty"},
        }
    ],
}


@pytest.mark.parametrize(
    ("lengths", "said"),
    [
        ({"warmup_steps": 10, "warmup_examples": None}, " after a linear warmup of 10 steps"),
        ({"warmup_steps": 10, "warmup_examples": 256}, " after a linear warmup of 256 examples"),
        ({"warmup_steps": 10, "warmup_examples": 0}, ""),
    ],
)
def test_a_warmup_in_examples_replaces_that_in_steps(lengths: dict[str, int | None], said: str) -> None:
    assert bibliography._schedule({"name": "constant", **lengths}) == f"Its schedule was constant{said}"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sweep")
    truths = {"adamw": Truth(noise=0.03), "merit": Truth(noise=0.03)}
    lrs = (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2)
    store = sweep(root, truths, batch_sizes=(4, 16, 64, 256), lrs=lrs, seeds=2, growth=1.2)
    store.write_manifest(MANIFEST)
    return root


def test_everything_recorded_is_said(root: Path) -> None:
    (text,) = methods(root, config=FAST).paragraphs
    for words in (
        r"\emph{least\_product}~\cite{mccandlish2018empirical}, the critical batch size $B_{\mathrm{crit}}$ is the one "
        r"around which steps $\times$ examples, $B\,S(B)^2$, is least on average: from half to twice "
        r"$B_{\mathrm{crit}}$, the steps halve and the examples double.",
        r"Gaussian process of a size that was learned~\cite{rasmussen2006gaussian}, and runs of one seed were paired",
        r"adamw~\cite{loshchilov2019decoupled} and merit~\cite{luo2025merit} until each run reached",
        "Batch sizes were 4, 16, 64 and 256 sequences of 32 tokens, with 2 seeds at each.",
        "at most 1,000 steps plus 30,000 sequences divided by the batch size",
        "growing by a factor of 1.04",
        "searched at every batch size until the best one had a worse one on either side (tried: 0.001 to 0.016)",
        "1.3 times the steps of the best",
        "cosine after a linear warmup of 10 steps, decaying over 90,000 examples to 0.1 of it, with bfloat16 "
        "arithmetic and gradients clipped to norm 1",
        r"95\,\% intervals, percentiles of 100 posterior draws",
        r"\texttt{cbs} 0.1.0, commit \texttt{0123456789-dirty} (torch 2.13.0) on H100 and analyzed",
    ):
        assert words in text, words
    assert "Not recorded" not in text


def test_what_was_not_done_everywhere_is_not_said(tmp_path: Path) -> None:
    two, one = ({"adamw": Truth(noise=0.03)} for _ in range(2))
    sweep(tmp_path, two, batch_sizes=(4, 16), lrs=(1e-3, 2e-3, 4e-3), seeds=2, growth=1.2)
    store = sweep(tmp_path, one, batch_sizes=(64, 256), lrs=(1e-3, 2e-3, 4e-3), seeds=1, growth=1.2)
    store.write_manifest(MANIFEST)
    (text,) = methods(tmp_path, config=FAST).paragraphs
    assert "with 1 to 2 seeds at each" in text
    store.write_manifest(MANIFEST | {"axes": {"lr_rule": ["sqrt:0.001@4"]}})
    (text,) = methods(tmp_path, config=FAST).paragraphs
    assert "The learning rate was prescribed at every batch size (sqrt:0.001@4)." in text
    assert "fewest steps over" not in text


def test_a_learning_rate_that_others_predict_has_no_worse_one_on_either_side(root: Path, tmp_path: Path) -> None:
    store = Store(shutil.copytree(root, tmp_path / "one"))
    best = {answer.group.optimizer: answer.points[1].best_lr for answer in analyze(root, FAST).answers}
    for name in store.trial_ids():
        config = store.load(name, with_steps=False).config
        if config.batch_size == 16 and config.lr != best[config.optimizer.name]:
            shutil.rmtree(store.root / "trials" / name)
    (text,) = methods(store.root, config=FAST).paragraphs
    assert "until the best one had a worse one on either side, or was known from other batch sizes (tried" in text


def test_what_is_not_recorded_is_named(tmp_path: Path) -> None:
    store = sweep(tmp_path, {"mine:optimizer": Truth()}, batch_sizes=(4, 16, 64), lrs=(1e-3, 2e-3), growth=1.2)
    store.write_manifest({"name": "theirs"})
    (text,) = methods(tmp_path, config=FAST).paragraphs
    said = "% Not recorded, to be filled in: learning-rate schedule, budget, precision, commit.\n% "
    assert text.endswith(said + next(judged(analyze(tmp_path, FAST).answers)))
    assert "mine:optimizer until" in text, "nobody knows its paper, and its code is not imported"
    for words in ("Runs were imported", "was chosen at every batch size among those that were run"):
        assert words in text
    assert "None" not in text


def test_what_only_the_program_of_a_sweep_knows_is_left_to_the_author(tmp_path: Path) -> None:
    truth = {"adamw": Truth()}
    store = sweep(tmp_path, truth, batch_sizes=(4, 16, 64), lrs=(1e-3, 2e-3), growth=1.2, workload="command")
    settings = {"max_steps": ENDLESS} | dict.fromkeys(OF_TRAINER, UNKNOWN)
    store.write_manifest(MANIFEST | {"protocol": MANIFEST["protocol"] | settings})
    (text,) = methods(tmp_path, config=FAST).paragraphs
    assert "We trained our model (29,856 parameters) with adamw" in text
    assert "% Not recorded, to be filled in: learning-rate schedule, budget, precision.\n" in text
    for words in (UNKNOWN, "1,000,000,000", "schedule was", "was evaluated"):
        assert words not in text


def test_every_definition_has_its_source_and_every_paper_is_that_of_its_optimizers() -> None:
    for name in DEFINITIONS:
        assert bibliography.of_definition(name), name
    # a file holds two definitions, each from a paper of its own
    own = {"pareto": "1812.06162", "kaplan": "2001.08361"}
    assert {name: bibliography.cited(name) for name in own} == {name: [number] for name, number in own.items()}
    cited = {name: bibliography.of_optimizer(Choice(name=name)) for name in OPTIMIZERS}
    assert sum(map(len, cited.values())) > 15
    for name, keys in cited.items():
        for key in keys:
            number = re.search(r"eprint = \{([^}]*)\}", bibliography.entries()[key])
            words = number[1] if number else re.search(r"year = \{(\d+)\}", bibliography.entries()[key])[1]
            assert words in OPTIMIZERS[name].paper, (name, key)
    assert bibliography.of_optimizer(Choice(name="no_such_optimizer")) == []


def test_the_command_prints_them_and_writes_no_page(root: Path, tmp_path: Path, run) -> None:
    code, out, _ = run("report", root, "--methods", "--resamples", 100)
    assert code == 0
    assert out.startswith("In the definition")
    assert "@misc{luo2025merit," in out
    assert not (root / "analysis").exists()
    found = json.loads(run("report", root, "--methods", "--resamples", 100, "--json")[1])
    assert "\n\n".join([*found["paragraphs"], found["bibtex"]]) + "\n" == out
    code, out, err = run("report", root, "--methods", "-o", tmp_path / "a.html")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "--methods prints" in err


NEURIPS = 5.5 * 72.27  # Width of the text in points of TeX


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex on PATH")
def test_latex_takes_them_and_the_summary_is_no_wider_than_the_text(tmp_path: Path) -> None:
    hard_to_set(results := tmp_path / "results")
    present.write(analyze(results, FAST, targets=[2.4, 2.8]), tmp_path, figures=None)
    found = methods(results, targets=[2.4, 2.8], config=FAST)
    (tmp_path / "methods.tex").write_text("\n\n".join(found.paragraphs))
    (tmp_path / "sources.bib").write_text(found.bibtex)
    (tmp_path / "paper.tex").write_text(
        r"""\documentclass{article}
\usepackage{booktabs}\usepackage{url}\setlength{\textwidth}{5.5in}
\begin{document}
\sbox0{\input{summary.tex}\unskip}\typeout{WIDTH \the\wd0}
\input{summary.tex}

{\tiny \input{summary_full.tex} \input{definitions.tex}}

\input{methods.tex}
\bibliographystyle{plain}\bibliography{sources}
\end{document}
"""
    )
    steps = [["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper"]]
    steps += [["bibtex", "paper"], steps[0], steps[0]] if shutil.which("bibtex") else []
    for step in steps:
        done = subprocess.run(step, cwd=tmp_path, capture_output=True, check=False)
        assert done.returncode == 0, done.stdout.decode(errors="replace")[-3000:]
    log = (tmp_path / "paper.log").read_text(errors="replace")
    width = re.search(r"WIDTH ([\d.]+)pt", log)
    assert width
    assert 100 < float(width[1]) <= NEURIPS
    if len(steps) > 1:
        assert "undefined" not in log

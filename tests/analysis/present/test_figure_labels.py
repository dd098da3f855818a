"""Names of curves and titles of panels that the author sets; the tables keep the names of the results."""

from pathlib import Path

import pytest
from matplotlib.text import Text

from analysis import analyze
from analysis.config import AnalysisConfig
from analysis.figure_options import FigureLabels, parse_figures
from analysis.present.figures import FIGURES
from cbs.errors import ConfigError
from tests.factories import Truth, sweep

QUICK = AnalysisConfig(resamples=100)
BETAS, OTHER = "adamw(betas=[0.9, 0.95])", "adamw(betas=[0.9, 0.99])"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sweep")
    truths = {OTHER: Truth(), BETAS: Truth(min_steps=90.0)}
    sweep(root, truths, variants=True, batch_sizes=(2, 8, 32), lrs=(1e-3, 2e-3))
    return root


def test_names_are_separated_by_commas_outside_brackets() -> None:
    names = {BETAS: "AdamW", "merit": "MERIT", "a(x=1, y=[2])": "a = b"}
    shown = f"{BETAS}=AdamW, merit=MERIT,a(x=1, y=[2])=a = b"
    assert parse_figures(f"icml,{shown},titles=no") == ("icml", FigureLabels(names=names, titles=False))
    assert parse_figures(shown) == ("default", FigureLabels(names=names))
    assert parse_figures("none") == (None, FigureLabels())


@pytest.mark.parametrize("text", ["adamw", "adamw=", "=AdamW", "a=1,a=2", "a(=b", "icml,b", "icml,titles=maybe"])
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_figures(text)


def test_curves_and_panels_have_the_names_that_were_given(results: Path) -> None:
    answers = analyze(results, QUICK).answers
    for name in ("steps", "learning_rate"):
        kind = FIGURES[name]
        labels = FigureLabels(names={BETAS: "AdamW"})
        words = " ".join(text.get_text() for text in kind.figure(kind.compute(answers), labels=labels).findobj(Text))
        assert "AdamW" in words
        assert "0.99" in words
        assert "0.95" not in words


def test_the_command_sets_them_and_refuses_in_one_line(results: Path, tmp_path: Path, run) -> None:
    common = ["analyze", results, "--resamples", "100", "-o", tmp_path / "out"]
    for given, words in {
        ("--figures", "muon=Muon"): "no curve has that name; there are: ",
        ("--figures", f"{OTHER}={BETAS}"): "would call both",
        ("--figures", f"{OTHER}=X,{OTHER}=Y"): "given twice",
        ("--figures", "none,titles=no"): "leave out what follows",
    }.items():
        code, _, err = run(*common, *given)
        assert (code, words in err, err.count("\n")) == (2, True, 1), err
        assert not (tmp_path / "out").exists()
    assert run(*common, "--figures", f"{BETAS}=AdamW,{OTHER}=MERIT,titles=no")[0] == 0
    assert (tmp_path / "out" / "figures" / "learning_rate.png").exists()

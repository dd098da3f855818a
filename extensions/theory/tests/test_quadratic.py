"""Predictions of the noisy quadratic, as a question and as a command, and as its page shows them."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.config import AnalysisConfig
from analysis.estimate.definitions import HEADLINE
from analysis.estimate.definitions.least_product import least_product
from analysis.present import presentation
from cbs.errors import ConfigError
from extensions.theory.noisy_quadratic import OPTIMIZERS, NoisyQuadratic, curve
from extensions.theory.quadratic import QuadraticAnswer, as_notebook, quadratic
from extensions.theory.tests import certified
from tests.kinds import kinds

CONFIG = AnalysisConfig(resamples=200)
FACTORS = np.array([0.5, 1.0, 2.0])


def test_momentum_and_preconditioning_extend_perfect_scaling() -> None:
    model, sizes = NoisyQuadratic.power_law(30), [4**power for power in range(1, 7)]
    given = {"batch_sizes": sizes, "target": 0.05, "model": model, "config": CONFIG}
    found, heavy = quadratic(["sgd"], powers=[0.0, 0.5], **given), quadratic(["momentum"], **given)
    critical = {
        name: fit.critical.value
        for each in (found, heavy)
        for (_, name), fit in zip(each.fit.names, each.fit.answers, strict=True)
    }
    assert critical["sgd"] < 0.6 * critical["momentum"]
    assert critical["sgd"] < 0.8 * critical["sgd, p = 0.5"]
    steps = {(row.optimizer, row.power, row.batch_size): row.steps for row in (*found.rows, *heavy.rows)}
    for size in sizes:
        assert steps["momentum", 0.0, size] <= steps["sgd", 0.0, size]
        assert steps["sgd", 0.5, size] >= found.lower_bound[size] / 2


@pytest.mark.parametrize("optimizer", ["sgd", pytest.param("ema", marks=pytest.mark.slow)])
def test_the_critical_batch_size_is_that_of_the_least_product_and_needs_no_form(optimizer: str) -> None:
    model = NoisyQuadratic.power_law(50)
    sizes = [4**power for power in range(8)]
    found = quadratic([optimizer], batch_sizes=sizes, target=0.02, model=model, config=CONFIG)
    (answer,) = found.fit.answers
    assert (answer.critical.interval, answer.min_steps.interval) == ((None, None), (None, None))
    (beyond_counting,) = curve(model, optimizer, 0.02, [1e12])
    assert beyond_counting.steps == pytest.approx(answer.min_steps.value, abs=1.0)
    size = answer.critical_batch_size or 0.0
    products = [row.batch_size * (row.steps or 0.0) ** 2 for row in curve(model, optimizer, 0.02, size * FACTORS)]
    # on both sides of it the product is larger, at half of it as much as at twice it
    assert products[1] < min(products[0], products[2])
    assert products[0] / products[2] == pytest.approx(1.0, abs=0.02)
    # and 10 % larger at the ends of the range, which is told where it lies beyond the table, too
    ends = [row.batch_size * (row.steps or 0.0) ** 2 for row in curve(model, optimizer, 0.02, np.array(answer.near))]
    assert np.array(ends) / products[1] == pytest.approx(1.1, rel=0.05)
    (short,) = quadratic([optimizer], batch_sizes=sizes[:3], target=0.02, model=model, config=CONFIG).fit.answers  # type: ignore[union-attr]
    assert short.near == pytest.approx(answer.near, rel=0.02)
    # the curve through whole steps at eight batch sizes finds it, too
    assert answer.draws is not None
    assert np.median(least_product(answer.draws)) == pytest.approx(size, rel=0.4)
    text = "\n".join(part if isinstance(part, str) else "\n".join(part.lines) for part in presentation(found).shown)
    assert "exact" in text


@pytest.mark.parametrize(("noise", "known"), [(1.0, True), (2.0, False)])
def test_the_lower_bound_is_told_only_where_it_holds(noise: float, known: bool) -> None:
    model = NoisyQuadratic.power_law(50, noise=noise).grouped()
    found = quadratic(["sgd"], batch_sizes=[4, 8], target=0.5, model=model, config=CONFIG)
    assert bool(found.lower_bound) == known
    assert len(presentation(found).tables["steps"].frame()) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"optimizers": ["adam"]}, "no optimizer 'adam' on the quadratic: there are sgd"),
        ({"target": 0.0}, "the target must be above 0"),
        ({"target": 5.0}, "the loss starts at 1.14, so a target of 5 takes no step: lower it"),
        ({"batch_sizes": [0]}, "batch sizes must be finite and above 0"),
        ({"optimizers": ["momentum"], "momenta": [1.0]}, "momentum must be in"),
    ],
)
def test_bad_input(change: dict[str, object], message: str) -> None:
    small = NoisyQuadratic.power_law(5)
    given: dict[str, object] = {"optimizers": ["sgd"], "batch_sizes": [4], "model": small, "config": CONFIG}
    with pytest.raises(ConfigError, match=message):
        quadratic(**(given | change))  # type: ignore[arg-type]


@pytest.fixture
def once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that ask the same, in another form, share an answer."""
    answers: dict[str, QuadraticAnswer] = {}

    def asked(*, progress: object, **given: Any) -> QuadraticAnswer:
        if (key := repr(given)) not in answers:
            answers[key] = quadratic(**given)
        return answers[key]

    monkeypatch.setattr("extensions.theory.quadratic.quadratic", asked)


def test_the_command_prints_rows_and_a_fit(run, once) -> None:  # type: ignore[no-untyped-def]
    given = ["--dimension", 10, "--target", 0.1, "--batch-sizes", "4,16,64", "--optim", "sgd", "--optim", "ema"]
    code, out, err = run("theory", "quadratic", *given, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert {row["optimizer"] for row in found["rows"]} == {"sgd", "ema"}
    assert [fit["optimizer"] for fit in found["fit"]["fits"]] == ["sgd", "ema"]
    code, out, err = run("theory", "quadratic", *given, "--wide")
    assert code == 0, err
    assert re.search(r"\blower\b(.|\n)*\bbound\b", out)  # in one line or two, as the width allows
    out = " ".join(out.split())
    assert "B_crit, the range within 10 % and S_min are exact" in out
    assert "seed" not in out
    assert "ema" in out


@pytest.mark.parametrize(("dimension", "rough"), [(1, True), (20, False)])
def test_steps_off_the_form_are_told(run, once, dimension, rough, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """One parameter takes 1, 2 and 3 steps at most batch sizes, no smooth curve; twenty have one."""
    monkeypatch.setenv("COLUMNS", "200")
    given = ["--dimension", dimension, "--batch-sizes", "4..1024", "--optim", "sgd", "--optim", "sgd"]
    code, out, err = run("theory", "quadratic", *given)
    assert code == 0, err
    assert ("so its exponent is approximate" in out) == rough
    _, steps = run("theory", "quadratic", *given, "--wide")[1].split("Steps to an expected loss")
    assert steps.partition("Definitions")[0].count("sgd ") == 9


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--dimension", 0], "--dimension must be between"),
        (["--noise", -1], "the noisy quadratic cannot be made"),
        (["--batch-sizes", "four"], "whole numbers"),
        (["--optim", "adam"], "there are sgd"),
    ],
)
def test_a_mistake_is_one_line(run, arguments, words) -> None:  # type: ignore[no-untyped-def]
    code, out, err = run("theory", "quadratic", *arguments)
    assert (code, out) == (2, "")
    assert words in err.replace("\n", " ")


@pytest.mark.parametrize(("method", "power"), certified.LAST_MISSED_STEP)
def test_as_published_the_steps_are_those_of_the_notebook(method: str, power: float) -> None:
    (name,) = (name for name, own in OPTIMIZERS.items() if own == method)
    last = certified.LAST_MISSED_STEP[method, power]
    found = as_notebook([name], batch_sizes=tuple(last), powers=[power])
    assert [row.steps for row in found.rows] == [step + 1 for step in last.values()]
    assert found.fit is None
    assert found.initial_loss == pytest.approx(certified.INITIAL_LOSS, abs=0.01)
    assert {size: round(steps) for size, steps in found.lower_bound.items()} == certified.LOWER_BOUND


def test_as_published_goes_with_nothing_that_the_notebook_says(run: Callable[..., tuple[int, str, str]]) -> None:
    code, out, err = run("theory", "quadratic", "--as-published", "--noise", 2, "--ema", 0.9)
    assert (code, out) == (2, "")
    assert "--ema and --noise: --as-published takes this from the notebook" in err
    code, out, err = run("theory", "quadratic", "--as-published", "--optim", "sgd", "--batch-sizes", 65536)
    assert (code, err) == (0, "")
    assert "7,310" in out
    assert "nothing reached" not in out


ROOT = Path(__file__).resolve().parents[3]
QUADRATIC = (ROOT / "docs" / "noisy-quadratic.md").read_text()
SHOWN = re.findall(r"```sh\ncbs (theory quadratic [^\n]*)\n```\n\n!\[[^]]+\]\((figures/\w+\.png)\)", QUADRATIC)


def test_every_figure_of_the_quadratic_stands_below_its_command() -> None:
    assert [path for _, path in SHOWN] == re.findall(r"\((figures/\S+)\)", QUADRATIC)
    assert len(SHOWN) == 6
    for command, path in SHOWN:
        assert command.endswith(f"--figure docs/{path}")


COMMANDS = [command for command, _ in SHOWN] + re.findall(r"`cbs (theory quadratic [^`]+)`", QUADRATIC)


@pytest.mark.parametrize("command", kinds(COMMANDS[:1], COMMANDS[1:]))
def test_a_command_of_the_quadratic_draws_its_figure(
    command: str, run: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    """On a quadratic of ten coordinates and two batch sizes."""
    figure = tmp_path / "figure.png"
    given = [str(figure) if part.startswith("docs/") else part for part in command.split()]
    code, out, err = run(*given, "--dimension", 10, "--batch-sizes", "4,64", "--target", 0.02, "--resamples", 100)
    assert (code, err) == (0, "predicting the curves (seconds to minutes)\n")
    assert "Critical batch size" in out
    assert figure.exists() == ("--figure" in given)


@pytest.mark.slow
def test_numbers_of_the_quadratic_are_those_of_the_command(run: Callable[..., tuple[int, str, str]]) -> None:
    header, *rows = (
        line.strip("| ").split(" | ") for line in QUADRATIC.splitlines() if line.startswith(("| batch", "| 1,024"))
    )
    asked = [part for name in ("sgd", "ema") for part in ("--optim", name)]
    code, out, err = run("theory", "quadratic", *asked, "--batch-sizes", "1024,2048", "--json", "--resamples", 100)
    assert code == 0, err
    measured = {row["optimizer"]: row["steps"] for row in json.loads(out)["rows"] if row["batch_size"] == 1024}
    (row,) = rows
    assert {name: f"{steps:,}" for name, steps in measured.items()} == {
        name: row[header.index(name)] for name in measured
    }


def test_values_beyond_the_batch_sizes_of_the_table_are_not_told() -> None:
    found = quadratic(["sgd"], batch_sizes=[1, 4, 16], target=0.02, model=NoisyQuadratic.power_law(50), config=CONFIG)
    (answer,) = found.fit.answers
    others = [each for name, each in answer.definitions.items() if name != HEADLINE]
    known, beyond = ([each for each in others if (each.value is None) is none] for none in (False, True))
    assert known
    assert beyond
    assert all(1 <= each.value <= 16 for each in known)
    assert {each.interval for each in beyond} == {(None, None)}

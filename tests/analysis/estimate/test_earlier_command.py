"""The command that is suggested: the earlier one with other axes."""

from pathlib import Path

import pytest
import typer

import cli
from analysis.config import AnalysisConfig
from analysis.estimate.estimates import answers
from analysis.estimate.suggest import suggest
from analysis.estimate.suggest.earlier_command import SWITCHES, adding
from analysis.estimate.suggest.known import OPEN, Known
from analysis.read.results import load
from cbs.trial.config import Choice
from cbs.trial.store import Store
from tests.analysis.estimate.test_suggest import answer, with_command
from tests.factories import Truth, sweep


def test_the_earlier_command_with_other_axes(tmp_path: Path) -> None:
    sweep(tmp_path, batch_sizes=(4,), growth=1.5)
    with_command(
        tmp_path,
        "cbs sweep --optim adamw --recipe quick --precision .1 --max-time=2h --set adamw.eps=1e-6 -oout --json",
        "cbs sweep --optim=muon --optim torch.adam --recipe quick --set muon.beta=0.9 --set torch.adam.eps=1 --dry-run",
        "python other.py",
    )
    muon = Choice(name="muon", options={"beta": 0.9})
    line = adding(Store(tmp_path).manifest(), tmp_path, muon, (4, 8), (0, 1), (1e-3, 0.5))
    expected = "cbs sweep --recipe quick --optim 'muon(beta=0.9)' --batch-sizes 4,8 --seeds 0,1 --lrs 0.001,0.5"
    assert line == f"{expected} --output {tmp_path}"
    alone = adding(Store(tmp_path).manifest(), tmp_path, Choice(name="adamw", options={"eps": 1e-6}), (4,), (3,), None)
    assert "--optim 'adamw(eps=1e-06)'" in alone
    assert "--set" not in alone
    assert "--precision" not in alone
    assert "--max-time" not in alone
    assert "--seeds 3," in alone
    assert "muon" not in alone


def test_a_variant_is_said_whole_whatever_settings_there_were(tmp_path: Path) -> None:
    sweep(tmp_path, batch_sizes=(4,), growth=1.5)
    with_command(
        tmp_path,
        "cbs sweep --optim 'muon(nesterov=false)' --optim muon --set optimizer.native=false --set max_steps=9 "
        "--set muon.momentum=.9",
    )
    variant = Choice(name="muon", options={"nesterov": False, "momentum": 0.9})
    line = adding(Store(tmp_path).manifest(), tmp_path, variant, (4,), (0, 1), None)
    assert line.startswith("cbs sweep --set max_steps=9 --optim 'muon(momentum=0.9, nesterov=false)' --batch-sizes 4")
    assert "native" not in line


def test_a_search_is_said_only_where_learning_rates_are_not_listed(tmp_path: Path) -> None:
    sweep(tmp_path, batch_sizes=(4,), growth=1.5)
    with_command(tmp_path, "cbs sweep --optim adamw --set lr_resolution=1.1 --set policy=once --from other")
    searched, listed = (
        adding(Store(tmp_path).manifest(), tmp_path, Choice(name="adamw"), (4,), (0, 1), lrs) for lrs in (None, (1e-3,))
    )
    assert searched.startswith("cbs sweep --set lr_resolution=1.1 --from other --optim adamw")
    assert listed.startswith("cbs sweep --optim adamw --batch-sizes 4")


def test_every_option_without_a_value_is_known_as_one() -> None:
    command = typer.main.get_command(cli.application("sweep")).commands["sweep"]  # type: ignore[attr-defined]
    assert {name for each in command.params if each.is_flag for name in each.opts} <= {*SWITCHES, "--help", "-h"}


def test_more_trials_of_a_width_are_not_those_of_all_widths(tmp_path: Path) -> None:
    sweep(tmp_path, batch_sizes=(4,), growth=1.5)
    options = {"parametrization": "mup", "width": 32}
    with_command(
        tmp_path,
        "cbs sweep --optim adamw --set 'policy=mine:Widths(16..128)' --set workload.parametrization=mup -o there",
        protocol={"prune_factor": 1.3, "workload": {"name": "text", "options": options}},
    )
    line = adding(Store(tmp_path).manifest(), tmp_path, Choice(name="adamw"), (8,), (0, 1), (1e-3,))
    assert line.startswith(
        "cbs sweep --set workload.parametrization=mup --set workload.width=32 --optim adamw --batch-sizes 8"
    )


@pytest.mark.parametrize(("first", "smaller"), [(3, [1]), (5, [1]), (9, [2]), (1, []), (2, [1]), (16, [4])])
def test_smaller_batch_sizes_need_not_be_powers_of_two(tmp_path: Path, first: int, smaller: list[int]) -> None:
    sweep(tmp_path, batch_sizes=(first,), seeds=3, growth=1.3)
    assert Known(answer(tmp_path)).sides(OPEN)[0] == smaller


@pytest.mark.parametrize(("exchange", "added"), [(0.125, 2), (1.0, None), (8.0, 512)])
def test_with_an_exchange_rate_of_ones_own_its_least_product_is_looked_for(
    tmp_path: Path, exchange: float, added: int | None
) -> None:
    sweep(tmp_path, {"adamw": Truth(noise=0.03)}, batch_sizes=(8, 32, 128), seeds=3)
    config = AnalysisConfig(resamples=300, options={"least_product": {"exchange": exchange}})
    found = suggest(answers(load(tmp_path), config, noise=False)[0])
    assert found is not None
    assert (added in found.batch_sizes) if added else {*found.batch_sizes} <= {8, 16, 32, 64, 128}

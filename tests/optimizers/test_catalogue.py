"""The listing of optimizers: complete, measured, and shown within a terminal's width."""

import inspect
import io
import json
from collections.abc import Callable

import pytest
import pytorch_optimizer
import torch
from rich.console import Console

from cbs.optimizers import LAMB, MERIT, build_optimizer
from cbs.trial.config import Choice
from cbs.workloads.text_parts import GPT, SIZES
from sweeps.spec.catalogue import Entry, catalogue, details, overview, state_bytes_per_parameter


@pytest.fixture(scope="module")
def entries() -> list[Entry]:
    return catalogue()


def printed(renderable: object) -> str:
    file = io.StringIO()
    Console(file=file, width=80, highlight=False).print(renderable)
    return file.getvalue()


def test_shows_everything_within_eighty_columns(entries: list[Entry]) -> None:
    table = printed(overview(entries))
    assert all(len(line) <= 80 for line in table.splitlines())
    for entry in entries:
        assert entry.spec.name in table
        page = printed(details(entry))
        assert all(len(line) <= 80 for line in page.splitlines())
        assert all(option in page for option in (*entry.spec.defaults, *entry.spec.options_in_examples))


# Two moments, one, and none, in float32; a step counter per tensor adds less than 0.01 bytes per parameter.
@pytest.mark.parametrize(("name", "expected"), [("adamw", 8), ("lamb", 8), ("merit", 8), ("sgd", 4)])
def test_state_of_known_size(name: str, expected: float) -> None:
    assert state_bytes_per_parameter(name) == pytest.approx(expected, abs=0.01)


def test_the_command_it_shows_for_an_option_is_accepted(entries: list[Entry]) -> None:
    from sweeps.recipes import RECIPES
    from sweeps.spec.overrides import override

    for entry in entries:
        if not entry.spec.defaults:
            continue
        page = printed(details(entry)).replace("\n", " ")
        setting = " ".join(page.split("--set '")[1].split("'")[0].split())
        (choice,) = override(
            RECIPES["quick"]().replace(optimizers=(Choice(name=entry.spec.name),)), [setting]
        ).axes.optimizers
        build_optimizer(choice, GPT(SIZES["30k"], 128), entry.spec.lr_grid[0])


def betas_of(build: Callable[..., object]) -> tuple[float, ...]:
    return inspect.signature(build).parameters["betas"].default


PUBLISHED = {
    "adam": betas_of(torch.optim.Adam),
    "adamw": betas_of(torch.optim.AdamW),
    "schedule_free": betas_of(pytorch_optimizer.ScheduleFreeAdamW),
    "lamb": betas_of(LAMB),
    "merit": betas_of(MERIT),
}


def test_betas_that_are_not_the_published_ones_are_said_to_be(
    entries: list[Entry], run: Callable[..., tuple[int, str, str]]
) -> None:
    unlike = {entry.spec.name: dict(entry.spec.published) for entry in entries if entry.spec.published}
    assert unlike == {name: {"betas": betas} for name, betas in PUBLISHED.items()}
    for entry in entries:
        published = entry.spec.published.get("betas")
        assert published is None or published != entry.spec.defaults["betas"]
        assert ("published with [0.9, 0.999]" in printed(details(entry))) == (published is not None)
    _, out, _ = run("optimizers", "merit")
    assert "betas = [0.9, 0.99] in a sweep, published with [0.9, 0.999]" in out
    assert "use: cbs sweep --optim merit --set 'merit.betas=[0.9, 0.999]'" in out
    _, out, _ = run("optimizers", "merit", "--json")
    assert json.loads(out)[0]["published"] == {"betas": [0.9, 0.999]}

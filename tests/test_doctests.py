"""The examples in docstrings run, those who should have one do, and MERIT's plain lines are what its fast form does."""

import doctest
import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

import cbs
from analysis import Analysis, analyze, fit
from cbs.diagnostics import Diagnostic
from cbs.noise_scale import Estimate, NoiseScaleMeter, Probe
from cbs.optimizers import LARS, MERIT, OptimizerSpec
from cbs.schedules.batch_size import ClosedLoop, OpenLoop
from cbs.schedules.learning_rate import build_schedule
from cbs.training.averaging import WeightAverage
from cbs.workloads import TrainingStream, Workload

ROOT = Path(cbs.__file__).parents[1]
PLACES = [ROOT / "cbs", ROOT / "sweeps", ROOT / "analysis", ROOT / "extensions"]
FINDER = doctest.DocTestFinder(exclude_empty=True)


def modules() -> list[str]:
    files = [file for place in PLACES for file in sorted(place.rglob("*.py")) if "tests" not in file.parts]
    names = {".".join(file.relative_to(ROOT).with_suffix("").parts): file.read_text(encoding="utf-8") for file in files}
    return [name.removesuffix(".__init__") for name, text in names.items() if ">>> " in text]


@pytest.mark.parametrize("name", modules())
def test_examples_run(name: str) -> None:
    module = importlib.import_module(name)
    runner = doctest.DocTestRunner(optionflags=doctest.REPORT_ONLY_FIRST_FAILURE)
    said: list[str] = []
    with torch.random.fork_rng():
        for examples in FINDER.find(module):
            runner.run(examples, out=said.append)
    assert runner.tries > 0
    assert runner.failures == 0, "".join(said)


@pytest.mark.parametrize(
    "entry",
    [
        *(getattr(cbs, name) for name in cbs.__all__),
        *(Analysis, fit, NoiseScaleMeter, Probe, Estimate, Diagnostic, Workload, TrainingStream, OptimizerSpec),
        *(analyze, MERIT, LARS, WeightAverage, OpenLoop, ClosedLoop, build_schedule),
    ],
    ids=lambda entry: entry.__name__,
)
def test_who_is_used_from_outside_has_an_example(entry: Any) -> None:
    assert doctest.DocTestParser().get_examples(entry.__doc__)

"""A target that is not reached: how near the sweep has come, and what was meant perhaps, said once."""

import io
import math
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from cbs.errors import ConfigError
from cbs.registry.choices import Choice, parse_choice
from cbs.trial.config import TrialConfig
from cbs.trial.record import Measurement, TrialResult, TrialStatus
from cbs.trial.store import Store
from cbs.trial.target import Target
from sweeps.folder.manifest import merged_manifest
from sweeps.outlook.nearness import Nearness, meant_perhaps
from sweeps.outlook.progress import Progress
from sweeps.running.run import SweepRun
from sweeps.search.search import Search
from sweeps.spec.spec import Sweep
from tests.sweeps.alone import swept
from tests.sweeps.simulation import small_sweep

ACCURACY = Target(metric="accuracy", value=90, direction="above")
RISING = (0.1, 0.3, 0.62, 0.58)


def asked(target: Target = ACCURACY) -> Sweep:
    return small_sweep(optimizers=(parse_choice("adamw"),), batch_sizes=(4, 16), target=target)


def end(
    config: TrialConfig, values: tuple[float, ...], status: TrialStatus = TrialStatus.BUDGET_EXHAUSTED
) -> TrialResult:
    rows = [
        Measurement(
            step=100 * at, examples=100 * at * config.batch_size, value=value, train_loss=math.nan, lr=config.lr
        )
        for at, value in enumerate(values)
    ]
    steps = 250.0 if status is TrialStatus.REACHED else None
    return TrialResult(config=config, status=status, steps_to_target=steps, evaluations=rows, steps={}, workload=None)


@pytest.mark.parametrize(
    ("metric", "value", "direction", "values", "meant"),
    [
        ("accuracy", 90, "above", RISING, ["--target 0.9 (the values are fractions of 1)"]),
        ("accuracy", 1, "above", RISING, ["a --target below 1 (the values are fractions of 1)"]),
        ("accuracy", 100, "above", RISING, ["a --target below 1 (the values are fractions of 1)"]),
        ("accuracy", 0.9, "above", RISING, ["an easier --target or a longer budget (it came 65 % of the way)"]),
        ("score", 90, "above", (10.0, 30.0, 50.0), ["an easier --target or a longer budget (it came 50 % of the way)"]),
        ("loss", 5, "above", (4.0, 3.0, 2.5), ["another metric or below its target (it moves away from this one)"]),
        ("accuracy", 0.05, "below", RISING, ["another metric or above its target (it moves away from this one)"]),
        ("error", 0.1, "below", (92.0, 40.0, 30.0), ["--target 10 (the values are percent)"]),
        ("loss", 0.1, "below", (4.1, 2.1, 3.0), ["an easier --target or a longer budget (it came 50 % of the way)"]),
        ("loss", 1.0, "below", (4.0, 4.0, 4.0), ["another metric, as this one does not move,"]),
        ("loss", 2.0, "above", (0.9, 0.5, 0.4), [
            "a --target below 1 (the values are fractions of 1)",
            "another metric or below its target (it moves away from this one)",
        ]),
        ("loss", 1.0, "below", (), ["an easier --target or a longer budget (it came 0 % of the way)"]),
    ],
)  # fmt: skip
def test_what_was_meant_follows_from_the_values(
    metric: str, value: float, direction: str, values: tuple[float, ...], meant: list[str]
) -> None:
    found = list(meant_perhaps(Target(metric=metric, value=value, direction=direction), values))  # type: ignore[arg-type]
    if (metric, value) == ("loss", 2.0):
        assert found[1:] == meant[1:]
        assert "fractions of 1" in found[0]
    else:
        assert found == meant


def test_the_best_value_is_that_of_every_trial_and_stands_beside_the_target() -> None:
    search = Search(asked())
    one, other = (search.next(), search.next())
    assert one is not None
    assert other is not None
    near = Nearness(ACCURACY)
    assert near.words == "target accuracy > 90, nothing measured yet"
    near.look(math.nan)
    near.look(0.25)
    near.look(math.inf)
    near.look(0.125)
    assert near.words == "target accuracy > 90, best so far 0.25"
    assert near.doubt is None
    near.add(end(one, (0.1, 0.5), TrialStatus.DIVERGED))
    assert (near.best, near.doubt) == (0.5, None)
    near.add(end(one, RISING))
    assert near.best == 0.62
    assert near.doubt is not None
    near.add(end(other, (0.1, 91.0), TrialStatus.REACHED))
    assert (near.best, near.doubt) == (91.0, None)


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_shows_the_best_value_and_says_once_what_was_meant(terminal: bool) -> None:
    screen = io.StringIO()
    progress = Progress(Console(file=screen, force_terminal=terminal, width=300, height=40), 1)
    search = Search(asked())

    def shown() -> str:
        found = screen.getvalue()
        screen.seek(0), screen.truncate()
        return found

    progress.began(search)
    for count in range(3):
        config = search.next()
        assert config is not None
        progress.update(search, {config.trial_id: {"step": 1, "value": 0.2 + count / 10}})
        assert f"target accuracy > 90, best so far {(0.2, 0.62, 0.62)[count]}" in shown()
        result = end(config, RISING)
        search.add(result)
        progress.finished(result, search)
        assert ("perhaps --target 0.9 (the values are fractions of 1) is meant" in shown()) == (count == 0)
    progress.ended(search)
    shown()
    progress.began(search)
    assert "meant" not in shown()  # not once more for what is added to a sweep
    progress.ended(search)
    shown()
    again = Progress(Console(file=screen, width=300), 1)
    again.began(search)
    assert shown().count("meant") == 1  # the same command again


def test_a_target_that_is_passed_before_the_first_step_ends_the_sweep_at_the_first_trial(tmp_path) -> None:
    """An accuracy that is asked to be above what it starts with, or a loss with the wrong direction."""
    search, store = Search(asked(Target(metric="accuracy", value=0.05, direction="above"))), Store(tmp_path)
    store.prepare()
    store.write_manifest(merged_manifest(store, search.sweep, ""))
    run = SweepRun(search, store, 1.0)
    for status, steps, over in ((TrialStatus.BUDGET_EXHAUSTED, None, False), (TrialStatus.REACHED, 0.0, True)):
        started = run.next()
        assert started is not None
        found = end(started[0], (0.1, 0.2), status)
        store.save(found.replace(steps_to_target=steps, steps={"step": np.arange(100)}))
        run.take_in(started[0], {"status": str(status)})
        assert run.over == over
    assert run.fatal is not None
    assert not run.again
    assert "before the first step (trial adamw-b4" in run.fatal
    assert "0.1): choose a harder target, or check its direction: perhaps values below it are better" in run.fatal
    with pytest.raises(ConfigError, match="choose a harder target"):
        swept(search.sweep, tmp_path)


@pytest.mark.parametrize("answers", [["FAILED"] * 3, ["BUDGET_EXHAUSTED", *["FAILED"] * 4]])
@pytest.mark.parametrize("workload", ["command", "noisy_quadratic"])
def test_a_program_whose_first_three_trials_fail_without_a_value_ends_the_sweep(
    tmp_path: Path, answers: list[str], workload: str
) -> None:
    """One that measured something, or a workload of ours, goes on: other trials may be well."""
    search = Search(asked().replace(workload=Choice(name=workload)))
    run, store = SweepRun(search, Store(tmp_path), 1.0), Store(tmp_path)
    store.prepare()
    over = []
    for status in answers:
        started = run.next()
        assert started is not None
        if status == "FAILED":
            run.take_in(started[0], {"status": status, "message": "it logged nothing"})
        else:
            store.save(end(started[0], RISING).replace(steps={"step": np.arange(100)}))
            run.take_in(started[0], {"status": status})
        over.append(run.over)
    ends = workload == "command" and len(answers) == 3
    assert over == [*[False] * (len(answers) - 1), ends]
    assert run.fatal == ("the first 3 trials failed and logged nothing: it logged nothing" if ends else None)

"""The noise scale as a power of learning rate and batch size, against a known one."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from analysis.present.figures import figures_of
from analysis.quantities import Quantity
from cbs.trial.config import Choice, TrialConfig
from cbs.trial.record import GeometryColumns, Measurement, TrialResult, TrialStatus, WorkloadInfo
from cbs.trial.store import Store
from cbs.trial.target import Target
from extensions.theory.temperature import TemperaturePoint, law, temperature

PLAIN = GeometryColumns(geometry="l2", signal="grad_sq_norm", noise="noise_trace", exponent=1, symbol="B")
STEPS = 400


def write(
    root: Path, noise_scale: Callable[[float, int], float], *, sizes: tuple[int, ...] = (16, 64), seeds: int = 2,
    lrs: tuple[float, ...] = (0.1, 0.2, 0.4), shrinks: float = 1.0, probe: bool = True,
    status: str = "BUDGET_EXHAUSTED", workload: str = "synthetic",
) -> Path:  # fmt: skip
    """Trials whose moments scatter by a third about a noise scale; signal falls by a factor along the run."""
    store, rng = Store(root), np.random.default_rng(1)
    store.prepare()
    store.write_manifest({"name": "t", "recipe": "t", "protocol": {"prune_factor": None, "stops_at_target": True}})
    for lr in lrs:
        for size in sizes:
            for seed in range(seeds):
                config = TrialConfig(
                    workload=Choice(name=workload), optimizer=Choice(name="sgd"), lr=lr, batch_size=size, seed=seed,
                    target=Target(metric="loss", value=0.0), max_steps=STEPS,
                )  # fmt: skip
                course = shrinks ** -(np.arange(STEPS) / STEPS)
                signal = course * (1 + 0.3 * rng.standard_normal(STEPS))
                noise = noise_scale(lr, size) * (1 + 0.3 * rng.standard_normal(STEPS))
                columns = {"step": np.arange(1, STEPS + 1), "examples": np.arange(1, STEPS + 1) * size}
                columns |= {"grad_sq_norm": signal, "noise_trace": noise} if probe else {}
                ends = [Measurement(step=s, examples=s * size, value=1.0, train_loss=1.0, lr=lr) for s in (0, STEPS)]
                store.save(
                    TrialResult(
                        config=config, status=TrialStatus[status], evaluations=ends, steps_to_target=None,
                        steps=columns, geometries=(PLAIN,) if probe else (),
                        workload=WorkloadInfo(example_unit="sample", tokens_per_example=None, metric_unit="loss",
                                              parameters=4, data_hash=None),
                    )
                )  # fmt: skip
    return root


def inside(quantity: Quantity, value: float) -> bool:
    low, high = quantity.interval
    return low is not None and high is not None and low < value < high and high - low < 0.3


def test_the_powers_are_found_with_intervals(tmp_path: Path) -> None:
    found = temperature(write(tmp_path / "t", lambda lr, size: 30.0 * size / lr))
    assert len(found.points) == 6
    assert found.points[0].value == pytest.approx(30 * 16 / 0.1, rel=0.1)
    (one,) = found.laws
    assert inside(one.lr, -1.0)
    assert inside(one.batch_size, 1.0)
    assert inside(one.temperature, -1.0)
    assert one.points == 6
    assert found.notes == ()
    assert one.unsettled == 0
    (other,) = temperature(write(tmp_path / "u", lambda lr, size: 30.0 * lr**-0.5)).laws
    assert inside(other.lr, -0.5)
    assert inside(other.batch_size, 0.0)


def test_a_run_that_has_not_settled_is_told(tmp_path: Path) -> None:
    found = temperature(write(tmp_path / "t", lambda lr, size: 30.0 * size / lr, shrinks=4.0))
    assert len([note for note in found.notes if "has not settled at its temperature" in note]) == 6
    assert found.laws[0].unsettled == 6
    assert not temperature(write(tmp_path / "u", lambda lr, size: 30.0 * size / lr, shrinks=1.1)).notes


def test_it_is_told_as_tables_and_a_figure(
    tmp_path: Path, run: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    root = write(tmp_path / "t", lambda lr, size: 30.0 * size / lr)
    code, out, err = run("theory", "temperature", root)
    assert code == 0, err
    assert "power of LR / B alone" in out
    (picture,) = figures_of(temperature(root))
    line = picture.table[picture.table["kind"] == "inverse"]
    slope = np.diff(np.log(line["noise_scale"].astype(float))) / np.diff(np.log(line["temperature"].astype(float)))
    assert slope == pytest.approx(-1.0)


def test_the_interval_of_a_slope_is_that_of_students_t() -> None:
    values = [1.0, 2.3, 3.6, 8.9]
    points = [
        TemperaturePoint(
            value=value, interval=(None, None), sweep="s", workload="w", optimizer="o", lr=lr, batch_size=1, seeds=1
        )
        for value, lr in zip(values, (1.0, 2.0, 4.0, 8.0), strict=True)
    ]
    fitted = law(points, 0.95)
    from scipy import stats

    line = stats.linregress(np.log([1.0, 2.0, 4.0, 8.0]), np.log(values))
    half = line.stderr * stats.t.ppf(0.975, 2)
    assert fitted.lr.value == pytest.approx(line.slope)
    assert fitted.lr.interval == pytest.approx((line.slope - half, line.slope + half))
    two = law(points[:2], 0.95)
    assert two.lr.interval == (None, None)  # no residual is left

"""Step times: what a table may hold, what is said about a bad one, and what is known between its rows."""

import contextlib
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from analysis.command_options import times_of
from analysis.read.throughput import Assumed, StepTime, StepTimeTable, of_logs, read_throughput
from cbs.errors import ConfigError, DataError

ONE_DEVICE = StepTimeTable(
    tuple(StepTime(batch_size=size, seconds=seconds) for size, seconds in ((4, 0.1), (16, 0.2), (64, 0.8)))
)


def table(folder: Path, text: str, name: str = "throughput.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def seconds(
    throughput: StepTimeTable | Assumed, batch_size: float, devices: int = 1, optimizer: str = "adamw"
) -> float:
    return float(throughput.seconds_per_step(optimizer, np.array([batch_size]), devices)[0])


@pytest.mark.parametrize(("slip", "refused"), [("0.0004", 1), ("400", 1), ("0.2", 0), ("0.11", 0)])
def test_a_step_in_another_unit_is_asked_about(tmp_path: Path, slip: str, refused: int) -> None:
    """Seconds of a batch of 64 where those of 16 and 256 are .2 and .8: of another unit, and in noise."""
    path = table(tmp_path, f"batch_size,devices,seconds_per_step\n256,1,0.8\n16,1,0.2\n64,1,{slip}\n4,8,9\n")
    if not refused:
        assert len(read_throughput(path).rows) == 4
        return
    with pytest.raises(
        DataError, match=r"on 1 device a step of batch size (64|256) takes .* and one of (16|64) .* s: c"
    ):
        read_throughput(path)


@pytest.mark.parametrize(("longest", "refused"), [(0.9, False), (0.06, True)])
def test_what_a_busy_machine_measured_is_read_as_far_as_its_intervals_allow(
    tmp_path: Path, longest: float, refused: bool
) -> None:
    rows = f"8,0.6,0.4,0.9,3\n16,0.05,0.04,{longest},3\n"
    path = table(tmp_path, f"batch_size,seconds_per_step,seconds_low,seconds_high,repetitions\n{rows}")
    with pytest.raises(DataError, match="measure it again") if refused else contextlib.nullcontext():
        assert len(read_throughput(path).rows) == 2


BROKEN = [
    ("", "is empty; it needs a header line"),
    ("batch_size,seconds_per_step\n", "no rows"),
    ("devices,seconds_per_step\n8,1\n", "no column 'batch_size'; it has devices, seconds_per_step"),
    ("batch_size\n8\n", "'seconds_per_step' and 'examples_per_second'"),
    ("batch_size,seconds_per_step,examples_per_second\n8,1,8\n", "not both"),
    ("batch_size,second_per_step\n8,1\n", "unknown column 'second_per_step'; known columns are batch_size"),
    ("batch_size,batch_size,seconds_per_step\n8,8,1\n", "two columns are called 'batch_size'"),
    ("batch_size,seconds_per_step\n8,1\n16\n", "line 3"),
    ("batch_size,seconds_per_step\n8,1,2\n", "line 2"),
    ("batch_size,seconds_per_step\n8,fast\n", "line 2, column 'seconds_per_step': 'fast' is not a number"),
    ("batch_size,seconds_per_step\n8,nan\n", "line 2"),
    ("batch_size,seconds_per_step\n8,inf\n", "line 2"),
    ("batch_size,seconds_per_step\n8,0\n", "above 0"),
    ("batch_size,seconds_per_step\n8,-1\n", "above 0"),
    ("batch_size,examples_per_second\n8,1e-320\n", "line 2, column 'examples_per_second'"),
    ("batch_size,seconds_per_step\n8.5,1\n", "line 2, column 'batch_size': '8.5' is not a whole number"),
    ("batch_size,devices,seconds_per_step\n8,0,1\n", "devices"),
    ("batch_size,devices,seconds_per_step\n8,1.5,1\n", "column 'devices': '1.5' is not a whole number"),
    ("batch_size,seconds_per_step,price_per_device_hour\n8,1,\n", "column 'price_per_device_hour': it is empty"),
    ("batch_size,seconds_per_step\n8,1\n8,2\n", "batch size 8 on 1 device appears twice"),
    ("batch_size,seconds_per_step,price_per_device_hour\n8,1,2\n16,1,3\n", "another price"),
]


@pytest.mark.parametrize(("text", "words"), BROKEN)
def test_a_bad_table_is_refused_in_one_line_that_names_the_file(tmp_path: Path, text: str, words: str) -> None:
    path = table(tmp_path, text)
    with pytest.raises(DataError) as refusal:
        read_throughput(path)
    assert words in str(refusal.value)
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_between_measured_batch_sizes_the_logs_are_linear_and_beyond_nothing_is_known() -> None:
    assert [seconds(ONE_DEVICE, size) for size in (4, 16, 64)] == pytest.approx([0.1, 0.2, 0.8])
    assert seconds(ONE_DEVICE, 8) == pytest.approx(math.sqrt(0.1 * 0.2))
    assert seconds(ONE_DEVICE, 32) == pytest.approx(math.sqrt(0.2 * 0.8))
    assert math.isnan(seconds(ONE_DEVICE, 3))
    assert math.isnan(seconds(ONE_DEVICE, 65))
    assert ONE_DEVICE.span("adamw", 1) == (4, 64)


def test_more_devices_than_were_measured_take_as_long_at_the_same_share_and_that_is_said() -> None:
    assert seconds(ONE_DEVICE, 128, 8) == pytest.approx(seconds(ONE_DEVICE, 16))
    assert ONE_DEVICE.span("adamw", 8) == (32, 512)
    assert ONE_DEVICE.assumption("adamw", 1) == ""
    assert "measured on 1 device alone" in ONE_DEVICE.assumption("adamw", 8)
    assert "communication" in ONE_DEVICE.assumption("adamw", 8)
    assert ONE_DEVICE.device_counts("adamw", 12) == [1, 2, 4, 8, 12]


def test_with_several_numbers_of_devices_measured_no_others_are_made_up() -> None:
    rows = (*ONE_DEVICE.rows, *(StepTime(batch_size=size, devices=8, seconds=0.3) for size in (64, 512)))
    both = StepTimeTable(rows)
    assert both.device_counts("adamw", 8) == [1, 8]
    assert both.device_counts("adamw", 4) == [1, 4]
    assert seconds(both, 128, 8) == pytest.approx(0.3)
    assert seconds(both, 32, 4) == pytest.approx(0.3)
    assert seconds(both, 8, 2) == pytest.approx(seconds(both, 4, 1))
    assert "1 and 8 devices" in both.assumption("adamw", 4)


def test_rows_of_an_optimizer_go_before_those_of_all() -> None:
    both = StepTimeTable((StepTime(batch_size=8, seconds=1.0), StepTime(batch_size=8, seconds=2.0, optimizer="muon")))
    assert seconds(both, 8, optimizer="adamw") == 1.0
    assert seconds(both, 8, optimizer="muon") == 2.0
    assert seconds(both, 8, optimizer="muon(momentum=0.9)") == 2.0
    only = StepTimeTable((StepTime(batch_size=8, seconds=2.0, optimizer="muon"),))
    assert only.span("adamw", 1) is None
    assert math.isnan(seconds(only, 8, optimizer="adamw"))
    assert only.device_counts("adamw", 4) == []


def test_step_times_of_a_variant_are_its_own_else_said_to_be_of_another() -> None:
    times = {"muon": 1.0, "muon(nesterov=False)": 2.0, "": 9.0, "AdamW (fused)": 5.0}
    table = StepTimeTable(tuple(StepTime(batch_size=8, seconds=time, optimizer=name) for name, time in times.items()))
    for label, expected in {
        "muon": 1.0,
        "muon(nesterov=false)": 2.0,
        "muon(nesterov=false, schedule.name=cosine)": 2.0,
        "muon(ns_steps=9)": 1.0,
        "AdamW (fused)": 5.0,
        "AdamW": 9.0,
    }.items():
        assert seconds(table, 8, optimizer=label) == pytest.approx(expected)
    for own in ("muon", "muon(nesterov=false)", "AdamW"):
        assert table.assumption(own, 1) == ""
    assert table.assumption("muon(ns_steps=9)", 1) == "step times of muon are used for muon(ns_steps=9)"
    assert "muon are used for muon(ns_steps=9); step times" in table.assumption("muon(ns_steps=9)", 2)


def test_an_assumption_is_a_latency_and_a_rate_within_the_memory_of_a_device() -> None:
    assumed = Assumed(examples_per_second=100.0, max_batch_per_device=64, latency=0.5)
    assert seconds(assumed, 50) == pytest.approx(1.0)
    assert seconds(assumed, 100, 4) == pytest.approx(0.75)
    assert math.isnan(seconds(assumed, 65))
    assert seconds(assumed, 65, 2) == pytest.approx(0.825)
    assert math.isnan(seconds(assumed, 3, 4)), "every device needs an example"
    assert "assumed, not measured" in assumed.statement
    assert "0.5 s + batch size / (devices x 100 examples/s), at most 64 examples" in assumed.statement


@pytest.mark.parametrize(
    "given",
    [
        "max_batch_per_device=3",
        "examples_per_second_per_device=fast",
        "examples_per_second_per_device=true",
        "examples_per_second_per_device=5, max_batch_per_device=1.5",
        "examples_per_second_per_device=5, step_latency=none",
        "examples_per_second_per_device=5, latency=1",
    ],
)
def test_an_assumption_says_what_belongs_into_it(given: str) -> None:
    with pytest.raises(ConfigError, match=r"must be assumed\(examples_per_second_per_device=NUMBER\)"):
        times_of(f"assumed({given})")


def timed(rng: np.random.Generator, optimizer: str, *, noise: float, busy: bool = False) -> StepTime:
    """Five rounds at batch size 8 with lognormal noise; a busy machine is a third of the time half as fast."""
    factors = noise * rng.standard_normal(5) + (np.log(2.0) * (rng.random(5) < 1 / 3) if busy else 0.0)
    middle, interval = of_logs(np.log(0.1) + factors)
    return StepTime(optimizer=optimizer, batch_size=8, seconds=middle, interval=interval, repetitions=5)


@pytest.mark.parametrize("busy", [False, True])
def test_which_of_two_is_faster_is_as_probable_as_it_says(busy: bool) -> None:
    """Two optimizers whose steps take equally long: one is surely the faster in few of the simulated measurements."""
    rng = np.random.default_rng(1)
    faster = []
    for seed in range(400):
        table = StepTimeTable((timed(rng, "a", noise=0.1, busy=busy), timed(rng, "b", noise=0.1, busy=busy)))
        a, b = (table.seconds_per_step(name, [8.0], 1) * table.drawn(name, [8.0], 1, 2000, seed) for name in "ab")
        faster.append((a < b).mean())
    faster = np.array(faster)
    assert np.mean((faster < 0.025) | (faster > 0.975)) < 0.05
    assert np.mean((faster < 0.0005) | (faster > 0.9995)) < 0.005
    assert 0.15 < np.mean((faster > 0.25) & (faster < 0.75)) < 0.75  # and says something


def test_draws_are_those_of_the_rows_around_a_batch_size_and_the_same_whatever_is_asked() -> None:
    rows = [
        StepTime(batch_size=size, seconds=0.1, interval=(0.05, 0.2), repetitions=5) for size in (8, 32)
    ] + [StepTime(batch_size=128, seconds=0.1)]  # fmt: skip
    table = StepTimeTable(tuple(rows))
    factors = table.drawn("adamw", np.array([8.0, 16.0, 32.0, 128.0]), 1, 500, 0)
    assert np.log(factors[:, 1]) == pytest.approx(np.log(factors[:, [0, 2]]).mean(axis=1))
    assert (factors[:, 3] == 1).all()
    assert abs(np.corrcoef(np.log(factors[:, [0, 2]]).T)[0, 1]) < 0.2
    assert (table.drawn("adamw", np.array([32.0]), 1, 500, 0)[:, 0] == factors[:, 2]).all()
    error = np.log(4.0) / (2 * stats.t.ppf(0.975, 4))
    assert np.quantile(np.log(factors[:, 0]), [0.25, 0.75]) == pytest.approx(
        error * stats.t.ppf([0.25, 0.75], 4), rel=0.25
    )
    assert "5 repetitions, known of 2 of 3" in table.spread
    assert (StepTimeTable((StepTime(batch_size=8, seconds=1.0),)).drawn("a", np.array([8.0]), 1, 3, 0) == 1).all()


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ("8,0.1,0.05,,5", "the interval holds the seconds"),
        ("8,0.1,0.2,0.3,5", "the interval holds the seconds"),
        ("8,0.1,0.05,0.2,1", "not a whole number of at least 2"),
    ],
)
def test_a_spread_that_cannot_be_is_refused(cells: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"batch_size,seconds_per_step,seconds_low,seconds_high,repetitions\n{cells}\n")
    with pytest.raises(DataError, match=words):
        read_throughput(path)


def test_intervals_of_step_times_hold_the_truth_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    rows = [timed(rng, "a", noise=0.2) for _ in range(4000)]
    inside = np.mean([row.interval[0] <= 0.1 <= row.interval[1] for row in rows])
    assert inside == pytest.approx(0.95, abs=0.01)

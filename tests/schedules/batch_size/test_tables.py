"""Open-loop schedules: published arithmetic, and what holds for every table."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbs.errors import ConfigError
from cbs.registry.choices import Choice
from cbs.registry.values import parse_amount, parse_table
from cbs.schedules.batch_size import OpenLoop, RunSettings, Stage, build_batch_schedule, of_table
from cbs.trial.config import Schedule

BILLION = 10**9


def built(name: str, run: RunSettings, **options: Any) -> OpenLoop:
    schedule = build_batch_schedule(Choice(name=name, options=options), run)
    assert isinstance(schedule, OpenLoop)
    return schedule


def run_of(batch_size: int, examples: int, *, tokens: int | None = None, **schedule: Any) -> RunSettings:
    return RunSettings(
        batch_size=batch_size, examples=examples, lr_schedule=Schedule(**schedule), tokens_per_example=tokens
    )


def walked(schedule: OpenLoop, examples: int) -> list[tuple[int, Stage]]:
    """Examples before each step and its stage, one step at a time: the slow twin of ``OpenLoop.steps``."""
    seen, found = 0, []
    while seen + schedule.stage(seen).batch_size <= examples:
        found.append((seen, schedule.stage(seen)))
        seen += found[-1][1].batch_size
    return found


def saved(schedule: OpenLoop, batch_size: int, examples: int) -> float:
    """Share of the steps of the constant batch size that it saves."""
    return 1 - sum(schedule.steps(examples)) / (examples / batch_size)


def test_olmo_saves_40_percent_of_the_steps_and_43_with_the_anneal() -> None:
    # Merrill et al., arXiv 2505.23971: 1024 -> 2048 at 168B -> 4096 at 503B of 608B tokens, then 50B at 4096
    table = {"table": "0:1024 168B:2048 503B:4096", "unit": "tokens"}
    for tokens, share in ((608 * BILLION, 0.405), (658 * BILLION, 0.431)):
        run = run_of(1024, tokens // 4096, tokens=4096)
        assert saved(built("stages", run, **table), 1024, run.examples) == pytest.approx(share, abs=0.0005)


def test_a_stage_in_tokens_begins_with_the_first_whole_example_at_or_after_its_start() -> None:
    schedule = built("stages", run_of(8, 1000, tokens=8), table="0:8 100:16 328:32", unit="tokens")
    assert schedule.starts == (0, 13, 41)  # 100 / 8 is 12.5, 328 / 8 is 41


@pytest.mark.parametrize(
    ("schedule", "alpha", "share", "error"),
    [
        ({"name": "cosine", "decay_examples": 1}, 2.0, 0.378, 0.0006),
        ({"name": "linear", "decay_examples": 1}, 2.0, 0.333, 0.0006),
        ({"name": "cosine", "decay_examples": 1}, 1.01, 0.5, 0.006),
        ({"name": "linear", "decay_examples": 1}, 1.01, 0.5, 0.006),
        ({"name": "cosine", "decay_examples": 1, "final_fraction": 0.1}, 1.01, 0.45, 0.006),
        ({"name": "wsd", "decay_examples": 1, "options": {"decay_share": 0.2}}, 1.01, 0.1, 0.002),
    ],
)
def test_seesaw_saves_what_was_published(schedule: dict[str, Any], alpha: float, share: float, error: float) -> None:
    # arXiv 2510.14717 and the sum over its stages: shares of the steps of the constant batch size
    examples, batch_size = 10**9, 256
    run = run_of(batch_size, examples, **{**schedule, "decay_examples": examples})
    assert saved(built("seesaw", run, alpha=alpha), batch_size, examples) == pytest.approx(share, abs=error)


def test_seesaw_cuts_by_the_root_and_grows_by_alpha_where_the_schedule_has_fallen_by_alpha() -> None:
    run = run_of(8, 100_000, name="linear", decay_examples=100_000)
    schedule = built("seesaw", run, alpha=2.0)
    assert schedule.starts[:4] == (0, 50_000, 75_000, 87_500)
    assert schedule.stages[:4] == tuple(Stage(8 * 2**k, pytest.approx(2 ** (-k / 2))) for k in range(4))
    # of the pair (cut, growth) the product with the root of the growth is that of the schedule itself
    factors = np.array([stage.lr_factor for stage in schedule.stages[:4]])
    sizes = np.array([stage.batch_size for stage in schedule.stages[:4]])
    np.testing.assert_allclose(factors / np.sqrt(sizes / 8), [1, 0.5, 0.25, 0.125])
    assert schedule.multiplier is not None
    assert [schedule.multiplier(seen) for seen in (0, 60_000, 99_999)] == [1.0] * 3


def test_a_cap_leaves_the_rest_of_the_decay_to_the_learning_rate() -> None:
    run = run_of(8, 100_000, name="linear", decay_examples=100_000, warmup_examples=800)
    schedule = built("seesaw", run, cap=16)
    assert {stage.batch_size for stage in schedule.stages} == {8, 16}
    factors = [stage.lr_factor for stage in schedule.stages]
    np.testing.assert_allclose(factors[:4], [1, 2**-0.5, 2**-1.5, 2**-2.5])
    assert schedule.multiplier is not None
    assert schedule.multiplier(400) == 0.5


def test_smith_keeps_the_learning_rate_where_it_would_be_cut() -> None:
    run = run_of(8, 100_000, name="linear", decay_examples=100_000)
    schedule = built("smith", run, cut=2.0, cap=64)
    assert schedule.stages[:4] == tuple(Stage(8 * 2**k, 1.0) for k in range(4))
    assert schedule.starts[:4] == (0, 50_000, 75_000, 87_500)


tables = st.lists(st.tuples(st.integers(1, 80), st.integers(1, 60)), min_size=1, max_size=12)


@given(tables, st.integers(1, 900))
def test_no_boundary_is_skipped_and_the_batches_add_up_to_the_budget(
    table: list[tuple[int, int]], examples: int
) -> None:
    starts = np.cumsum([0, *(length for length, _ in table[:-1])])
    run = run_of(table[0][1], examples)
    schedule = of_table(run, zip(starts, (size for _, size in table), [1.0] * len(table), strict=True))
    steps = walked(schedule, examples)
    seen = sum(stage.batch_size for _, stage in steps)
    assert seen <= examples < seen + schedule.stage(seen).batch_size
    # the stages of the steps are those of the table, in order; none is jumped over
    met = [0, *(int(place) for place in np.searchsorted(schedule.starts, [at for at, _ in steps], side="right") - 1)]
    assert set(np.diff(met)) <= {0, 1}
    assert schedule.starts[0] == 0
    assert schedule.steps(examples) == [
        sum(place == index for place in met[1:]) for index in range(len(schedule.starts))
    ]


@given(tables)
def test_a_boundary_is_put_off_by_less_than_a_batch_and_never_moved_forward(table: list[tuple[int, int]]) -> None:
    starts = np.cumsum([0, *(length for length, _ in table[:-1])])
    sizes = [size for _, size in table]
    schedule = of_table(run_of(sizes[0], 10**6), zip(starts, sizes, [1.0] * len(table), strict=True))
    asked = OpenLoop(starts=tuple(map(int, starts)), stages=tuple(map(Stage, sizes)))
    for start, stage in zip(schedule.starts, schedule.stages, strict=True):
        assert stage.batch_size == asked.stage(start).batch_size
    assert schedule.stage(10**6) == asked.stage(10**6)


@given(st.lists(st.tuples(st.integers(1, 10**12), st.integers(1, 10**6)), max_size=8))
def test_a_table_is_read_as_it_is_written(stages: list[tuple[int, int]]) -> None:
    starts = [0, *np.cumsum([length for length, _ in stages]).tolist()]
    sizes = [7, *(size for _, size in stages)]
    text = " ".join(f"{start}:{size}" for start, size in zip(starts, sizes, strict=True))
    assert parse_table(text) == list(zip(starts, sizes, strict=True))


@given(st.text(alphabet="0123456789:KMBT. ,-x", max_size=30))
def test_any_other_text_is_one_clear_line(text: str) -> None:
    said = None
    try:
        found = parse_table(text)
    except ConfigError as error:
        said, found = str(error), [(0, 1)]
    assert said is None or len(said.splitlines()) == 1
    assert found[0][0] == 0
    assert all(size >= 1 for _, size in found)


REFUSED = [
    ("stages", {"table": "0:8 5k:16"}, {}, "beyond the budget of 4,000"),
    ("stages", {"table": "0:16"}, {}, "use --batch-sizes 16"),
    ("stages", {"table": "0:8 100:16 103:4"}, {}, "might jump over"),
    ("stages", {"table": "0:8 100:16", "unit": "tokens"}, {}, "no tokens"),
    ("stages", {"table": "0:8 100:16", "unit": "bytes"}, {}, "examples or tokens"),
    ("stages", {"table": "8"}, {}, "not start:size"),
    ("stages", {}, {}, "missing a required (keyword-only )?argument: 'table'"),
    ("linear_ramp", {"to": 32, "increment": 5, "over_examples": 100}, {}, "not a whole number of increments"),
    ("linear_ramp", {"to": 32, "over_examples": 4000}, {}, "beyond the budget"),
    ("linear_ramp", {"to": 8, "over_examples": 100}, {}, "at least 9"),
    ("seesaw", {}, {}, "does not decay within"),
    ("seesaw", {}, {"name": "cosine", "decay_examples": 400_000_000}, "does not decay within"),
    ("seesaw", {"alpha": 1}, {"name": "cosine", "decay_examples": 4000}, "above 1"),
    ("smith", {}, {"name": "two_stage", "decay_examples": 4000, "options": {"boundary_examples": 2000, "rewarmup_examples": 500}}, "rises again"),  # noqa: E501
    ("late_switch", {"to": 32, "at": 1.0}, {}, "below 1"),
    ("late_switch", {"to": 3000}, {}, "no room"),
    ("noise_rule", {"price": 0}, {}, "above 0"),
    ("noise_rule", {"price": 8, "measurements": 5}, {}, "at least 20"),
    ("norm_test", {"theta": 1}, {}, "below 1"),
    ("doubling", {"lr_exponent": 2}, {}, "between -1 and 1"),
    ("doubling", {"patience": 2}, {}, "its options are: cap, confidence, lr_exponent, measurements, ratio"),
    ("saw", {}, {}, "seesaw"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options", "schedule", "said"), REFUSED)
def test_what_cannot_be_is_refused(name: str, options: dict[str, Any], schedule: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        build_batch_schedule(Choice(name=name, options=options), run_of(8, 4000, **schedule))
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("name", ["norm_test", "dual_norm", "doubling"])
def test_a_rule_that_looks_needs_two_examples(name: str) -> None:
    with pytest.raises(ConfigError, match="start from 2 or more"):
        build_batch_schedule(Choice(name=name), run_of(1, 4000))


def test_amounts_are_read_as_people_and_programs_write_them() -> None:
    texts = ("250B", "250b", "250e9", "250_000_000_000", "250000000000", ".25T", "2.5E11")
    assert {parse_amount(text) for text in texts} == {250 * BILLION}
    assert parse_table("0:768 250e9:1536") == [(0, 768), (250 * BILLION, 1536)]
    for text in ("e9", "_1", "1e", "1e-3", "1e99", "0"):
        with pytest.raises(ConfigError):
            parse_amount(text)

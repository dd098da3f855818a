"""Every rule beside the best schedule there is."""

from pathlib import Path

from benchmarks.bench_batch_schedules import RULES, table
from cbs.schedules.batch_size import BATCH_SCHEDULES

PAGE = Path(__file__).resolve().parents[1] / "tables.md"


def test_no_rule_beats_the_ceiling_and_the_page_says_how_near_each_comes() -> None:
    made = table()
    assert set(RULES) <= set(BATCH_SCHEDULES.names())
    assert len(made) == 2 + len(RULES)  # each reaches the target
    assert all(1.0 <= float(line.split("|")[4]) < 5.0 for line in made[2:])
    assert "\n".join(made) in PAGE.read_text()

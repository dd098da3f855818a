"""What general tests know of this extension."""

from tests.cases import PRESENT, Flags, answer

FLAGS = {
    "schedule judge": Flags(
        {
            "extensions.schedules.judge.judge": answer,
            "analysis.read.throughput.read_throughput": "the table",
            **PRESENT,
        },
        cases={"--target": (["--target", "accuracy=0.75"], "metric='accuracy'")},
    ),
    "schedule plan": Flags(
        {
            "extensions.schedules.plan.planning.sources": lambda *_, **__: ([], None),
            "extensions.schedules.plan.planning.plan_schedule": answer,
            "extensions.schedules.trainers.exported": lambda *_: ("the text", []),
            "analysis.read.throughput.read_throughput": lambda path: f"the table {path}",
            **PRESENT,
        },
        base=["FOLDER"],
        cases={
            "--rule": (["--rule", "doubling(first_batch_size=8)"], "rule='doubling', price=None"),
            "--lr-exponent": (["--lr-exponent", "0.25"], "lr_exponent=0.25"),
        },
    ),
}

RULES = {
    "growth": ({"first_examples": 300}, {}),
    "growth_by_gradient": ({"first_norm": 6.0, "measurements": 20, "cap": 64}, {}),
}
"""Options with which a rule changes the batch size before ``tests/schedules/batch_size/test_theory.py`` ends."""

MISTAKES = [
    (["sweep", "--schedule", "growth(first_examples=100, gamma=1.5)", "--dry-run"], ["diverges"]),
    (["schedule", "plan", "8 16", "--budget", "1M"], ["'8 16'", "start:size"]),
    (["schedule", "plan", "0:8 2M:16", "--budget", "1M"], ["begins beyond the budget of 1,000,000"]),
    (
        ["schedule", "plan", "0:8", "--budget", "4K", "--rule", "price(step_price=3)", "--resamples", "200"],
        ["--rule, options of the intervals"],
    ),
    (["schedule", "plan", "elsewhere"], ["elsewhere", "cbs sweep"]),
    (["schedule", "plan", "0:8", "--budget", "lots"], ["'lots'", "608B"]),
    (["schedule", "plan", "0:8", "--budget", "4"], ["holds no batch of 8"]),
    (["schedule", "plan", "0:8 90:64 95:8", "--budget", "200"], ["might be skipped"]),
    (["schedule", "plan", "0:8", "--budget", "1M", "--tokens-per-example", "0"], ["at least 1"]),
]


ASKING = {"TRAINERS": "schedule plan 0:8 --budget 1000"}
"""A command that needs the entry, or all entries, of a registry."""


def of_table(words: list[str]) -> bool:
    """Whether nothing is planned, and a table of stages read."""
    return ":" in words[0]


QUICK = {"schedule plan": of_table}  # Commands that take a second or two where this is true of their words

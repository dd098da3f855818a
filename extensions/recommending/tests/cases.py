"""What general tests know of this extension."""

from analysis.read.throughput import StepTime
from extensions.recommending.recommendations import NEAR
from tests.cases import PRESENT, Flags, answer

ASSUMED = "assumed(examples_per_second_per_device=9)"
FLAGS = {
    "recommend": Flags(
        {
            "extensions.recommending.recommendations.recommend": answer,
            **PRESENT,
            "analysis.read.throughput.read_throughput": "the table",
        },
        base=["--throughput", "times.csv"],
        cases={"--target": (["--target", "accuracy=0.75"], "metric='accuracy'")},
    ),
    "throughput": Flags(
        {
            "extensions.recommending.step_times.measured_apart": [
                StepTime(optimizer="adamw", batch_size=4, seconds=3.0)
            ],
            "extensions.recommending.step_times.write_step_times": None,
        },
        base=["quick"],
        cases={
            "source": (["default"], "measured_apart('default'"),
            "--batch-sizes": (["--batch-sizes", "8..32"], "[8, 16, 32]"),
        },
    ),
}

MISTAKES = [
    (["recommend", "--throughput", ASSUMED, "/no/such/folder"], ["/no/such/folder", "cbs sweep"]),
    (["recommend", "--throughput", ASSUMED, "--confidence", "2"], ["confidence", "between 0 and 1"]),
    (["recommend"], ["--throughput is missing", "cbs throughput"]),
    (["recommend", "--throughput", "/no/such.csv"], ["/no/such.csv"]),
    (["recommend", "--throughput", ASSUMED.replace("9", "0")], ["examples per second", "above 0"]),
    (["recommend", "--throughput", ASSUMED, "--devices", "0"], ["devices", "at least 1"]),
    (["recommend", "--throughput", ASSUMED, "--price", "-1"], ["price"]),
    (["throughput"], ["Missing argument", "throughput --help"]),
    (["throughput", "quik"], ["quik", "quick"]),
    (["throughput", "quick", "--batch-sizes", "4,x"], ["--batch-sizes", "whole numbers"]),
    (["throughput", "quick", "--seconds", "0"], ["seconds", "above 0"]),
]

STATEMENTS = [("glossary.md", "batch sizes at most {:.0f} % above the best", lambda: (100 * (NEAR - 1),))]

CALLS = {
    "recommend": [f"FOLDER --throughput {ASSUMED} --resamples 100 --figures none"],
    "throughput": ["FOLDER -o times.csv --seconds 0.01"],
}

BESIDE_A_SWEEP = ["recommend"]
"""Has flags of a sweep, which are meant where pages show them alone."""

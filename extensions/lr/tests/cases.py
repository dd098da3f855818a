"""What general tests know of this extension."""

from tests.cases import PRESENT, Flags, answer

FLAGS = {
    "lr": Flags(
        {"extensions.lr.learning_rates.learning_rates": answer, **PRESENT},
        cases={
            "--target": (["--target", "accuracy=0.75"], "metric='accuracy'"),
            "--scale-from": (["--scale-from", "16"], "reference=16"),
        },
    )
}

RUN = ["lr"]
"""Takes a second or two on a small sweep."""

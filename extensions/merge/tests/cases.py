"""What general tests know of this extension."""

from tests.cases import Flags, answer

FLAGS = {
    "merge": Flags(
        {"extensions.merge.merging.merge": answer},
        base=["one", "other", "-o", "both"],
        cases={"--json": (["--json"], "to_json(")},
    )
}
CALLS = {"merge": ["FOLDER FOLDER -o merged", "FOLDER SECOND -o merged"]}

"""What general tests know of this extension."""

from tests.cases import PRESENT, Flags, answer

FLAGS = {"scale": Flags({"extensions.scale.scaling.scale": answer, **PRESENT}, base=["results"])}

TELESCOPE = ["sweep", "--set", "policy=telescope(widths=16..64)"]
MISTAKES = [
    (TELESCOPE, ["muP", "workload.parametrization=mup"]),
    (["sweep", "--set", "policy=telescope(widths=[16])", "--recipe", "essential_telescope"], ["two widths", "16"]),
    (["sweep", "--set", "policy=telescope(widths=wide)"], ["widths of policy telescope", "whole numbers"]),
    ([*TELESCOPE, "--max-examples", "1e6"], ["telescope", "--max-examples"]),
    ([*TELESCOPE, "--from", "x"], ["telescope does not go with --from"]),
    (["scale", "/no/such/folder"], ["/no/such/folder", "cbs sweep"]),
    (["scale"], ["Missing argument", "scale --help"]),
    (["scale", "results", "--against", "date"], ["date", "data"]),
    (["scale", "results", "--at", "3"], ["--at", "--against"]),
    (["scale", "results", "--hold-data", "0"], ["--hold-data", "positive"]),
    (["scale", "results", "--confidence", "2"], ["confidence", "between 0 and 1"]),
    (["scale", "results", "--resamples", "99"], ["resamples", "at least 100"]),
]

POLICY_OPTIONS = {"telescope": {"widths": "16..64"}}
"""What a policy needs."""

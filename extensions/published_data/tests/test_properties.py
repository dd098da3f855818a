"""Whatever stands in a study: runs, or one line that a person can act on."""

import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from extensions.published_data.tests.studies import batch_science
from tests.analysis.read.importers.sources import CURVES
from tests.analysis.read.importers.test_properties import JSON, SLOW, imports_or_tells


@SLOW
@given(JSON, st.sampled_from(["status", "parameters", "trial_id", None]))
def test_any_json_in_a_trial(value: Any, key: str | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        study = batch_science(Path(folder) / "in", 8, {1: ("COMPLETE", 0.1, CURVES[0].rows)})
        path = study / "1" / "metadata.json"
        path.write_text(json.dumps(value if key is None else json.loads(path.read_text()) | {key: value}))
        imports_or_tells(Path(folder) / "in", "batch_science", metric="val/loss")


@SLOW
@given(st.dictionaries(st.text(max_size=5), JSON, max_size=3), st.binary(max_size=80))
def test_any_parameters_and_any_measurements(parameters: dict[str, Any], content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows = CURVES[0].rows
        study = batch_science(Path(folder) / "in", 8, {1: ("COMPLETE", 0.1, rows), 2: ("COMPLETE", 0.1, rows)})
        path = study / "1" / "metadata.json"
        data = json.loads(path.read_text())
        path.write_text(json.dumps(data | {"parameters": parameters | {"learning_rate": 0.1}}))
        imports_or_tells(Path(folder) / "in", "batch_science", metric="val/loss")
        (study / "2" / "measurements.csv").write_bytes(content)
        (Path(folder) / "out").rename(Path(folder) / "before")
        imports_or_tells(Path(folder) / "in", "batch_science", metric="val/loss")

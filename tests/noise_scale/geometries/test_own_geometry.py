"""A geometry that nobody but this file knows: recorded by short runs, analyzed, and called by its own name."""

import dataclasses
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from analysis import present
from analysis.config import AnalysisConfig
from analysis.present.figures import FIGURES
from analysis.questions.analyze.critical_batch_sizes import analyze
from cbs.noise_scale.geometries.norms import L2
from cbs.training.run import run_trial
from cbs.trial.config import Choice
from cbs.trial.record import GeometryColumns
from cbs.trial.store import Store
from tests.factories import quadratic
from tests.kinds import kinds


class Thrice(L2):
    """Squared norms, the noise three times what it is."""

    name = "threefold_noise"
    symbol = r"B_{\times 3}"
    factor = 3.0

    def read(self, *args: Any) -> Any:
        signal, noise = super().read(*args)
        return signal, self.factor * noise


class ThriceOfNorms(Thrice):
    """The same with moments that count as norms."""

    name = "threefold_norms"
    exponent = 2


CONFIG = quadratic("sgd(momentum=0.5)", {"dimension": 30}, target=0.2, lr=0.05, batch_size=8, seed=5, max_steps=400)


def probe(geometry: str) -> Choice:
    return Choice(name="split", options={"geometry": f"{__name__}:{geometry}", "every": 1})


@pytest.mark.parametrize("geometry", kinds([ThriceOfNorms], [Thrice]))
def test_it_is_analyzed_under_its_own_name_symbol_and_exponent(geometry: type[Thrice], tmp_path: Path) -> None:
    store = Store(tmp_path / "sweep")
    store.prepare()
    store.write_manifest({"name": "own", "protocol": {"prune_factor": None}})
    for batch_size in (8, 16, 32):
        store.save(
            run_trial(dataclasses.replace(CONFIG, batch_size=batch_size, max_steps=200, probe=probe(geometry.__name__)))
        )
    stored = store.load(store.trial_ids()[0])
    name = geometry.name
    assert stored.geometries[1] == GeometryColumns(
        geometry=name, symbol=geometry.symbol, exponent=geometry.exponent,
        signal=f"{name}_signal", noise=f"{name}_noise",
    )  # fmt: skip
    np.testing.assert_allclose(stored.steps[f"{name}_noise"], 3.0 * stored.steps["noise_trace"])

    found = analyze(tmp_path, AnalysisConfig(resamples=100))
    (answer,) = found.answers
    fit = present.to_json(found)["fits"][0]
    assert (fit["matched_geometry"], fit["matched_symbol"]) == (name, geometry.symbol)
    assert fit["matched_exponent"] == geometry.exponent
    for size, measured in answer.noise.items():
        simple = measured.summary.value
        correction = 1.0 if geometry.exponent == 1 else 1.0 + simple / size
        assert measured.matched.value == pytest.approx((3.0 * simple) ** geometry.exponent * correction)

    console = Console(width=250, file=io.StringIO())
    present.show(found, console, wide=True)
    assert name in console.file.getvalue()
    kind = FIGURES["noise_scale"]
    (axes,) = kind.figure(kind.compute(found.answers)).axes
    assert f"${geometry.symbol}$" in [text.get_text() for text in axes.texts]

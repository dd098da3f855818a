"""What every geometry of the registry must do, and one that nobody but this file knows; the slow twin of each is the
function of its name in ``tests/references/geometry.py``."""

import dataclasses
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

from analysis import present
from analysis.config import AnalysisConfig
from analysis.present.figures import FIGURES
from analysis.questions.analyze.critical_batch_sizes import analyze
from cbs.noise_scale import Probe
from cbs.noise_scale.geometries import GEOMETRIES, Geometry
from cbs.noise_scale.geometries.norms import L2
from cbs.noise_scale.moments import Sizes
from cbs.training.run import run_trial
from cbs.trial.config import Choice
from cbs.trial.record import GeometryColumns
from cbs.trial.store import Store
from tests.factories import quadratic
from tests.kinds import kinds
from tests.references import geometry as twins

EVERY = pytest.mark.parametrize("name", GEOMETRIES.names())
SIZES = pytest.mark.parametrize("sizes", [[4, 4], [3, 3, 3, 3], [1] * 8, [5, 4], [1, 7, 2]], ids=str)
SHAPES = ((6, 10), (8, 3), (4, 4), (7,))
BETA2, EPS = 0.9, 1e-3


class Tensors(nn.Module):
    """Parameter tensors of several shapes; the loss of an example is linear in them, so it is its own gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors = nn.ParameterList(torch.zeros(shape, dtype=torch.float64) for shape in SHAPES)

    def forward(self, examples: Tensor) -> Tensor:
        return examples @ torch.cat([tensor.flatten() for tensor in self.tensors])


class Setting:
    """A geometry bound to tensors and to an AdamW that has made three steps."""

    def __init__(self, name: str) -> None:
        torch.manual_seed(0)
        self.model = Tensors()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.0, betas=(0.9, BETA2), eps=EPS)
        self.history = [[torch.randn_like(tensor) for tensor in self.model.tensors] for _ in range(3)]
        for gradients in self.history:
            for tensor, gradient in zip(self.model.tensors, gradients, strict=True):
                tensor.grad = gradient.clone()
            self.optimizer.step()
        self.geometry: Geometry = GEOMETRIES[name]()
        self.geometry.bind(list(self.model.tensors), self.optimizer)
        self.covered = [index for index in range(len(SHAPES)) if self.geometry.covers(index)]

    def groups(self, count: int, *, spread: float = 1.0) -> list[Tensor]:
        """Mean gradients of ``count`` groups, ``[count, *shape]`` for every tensor."""
        return [torch.randn(shape).double() + spread * torch.randn(count, *shape).double() for shape in SHAPES]

    def read(self, groups: Sequence[Tensor], sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Moments per covered tensor of a step whose groups have these mean gradients."""
        weights = torch.tensor(sizes, dtype=torch.float64) / sum(sizes)
        small = [
            sum(w.to(g) * self.geometry.statistic(index, g[None]) for w, g in zip(weights, groups[index], strict=True))
            for index in self.covered
        ]
        whole = [torch.tensordot(weights.to(groups[index]), groups[index], dims=1) for index in self.covered]
        big = [self.geometry.statistic(index, g[None]) for index, g in zip(self.covered, whole, strict=True)]
        return self.geometry.read(small, big, Sizes(small=sum(sizes) / len(sizes), big=sum(sizes), groups=len(sizes)))

    def noise_scale(self, groups: Sequence[Tensor], sizes: Sequence[int]) -> float:
        signal, noise = self.read(groups, sizes)
        return float((noise.sum() / signal.sum()) ** self.geometry.exponent)

    def metric(self, index: int) -> np.ndarray:
        return twins.adam_metric([gradients[index].numpy() for gradients in self.history], BETA2, EPS)


@EVERY
@SIZES
def test_agrees_with_its_slow_twin(name: str, sizes: list[int]) -> None:
    setting = Setting(name)
    groups = setting.groups(len(sizes))
    signal, noise = setting.read(groups, sizes)
    expected = [
        getattr(twins, name)(list(groups[index].numpy()), sizes, setting.metric(index)) for index in setting.covered
    ]
    assert signal.dtype == noise.dtype == torch.float64
    # the smallest digits go where groups nearly cancel; a twin in float64 leaves many more than six
    np.testing.assert_allclose(torch.stack([signal, noise], 1).numpy(), expected, rtol=1e-6)


@EVERY
@SIZES
def test_a_training_loop_gives_the_same(name: str, sizes: list[int]) -> None:
    setting = Setting(name)
    flat = torch.cat([group.flatten(1) for group in setting.groups(len(sizes))], 1)
    groups = [part.unflatten(1, shape) for part, shape in zip(flat.split([60, 24, 16, 7], 1), SHAPES, strict=True)]
    setting.model.zero_grad()
    with Probe(setting.model, setting.optimizer, source="accumulation", geometries=[name]) as probe:
        for group, size in zip(flat, sizes, strict=True):
            (setting.model(group.expand(size, -1)).sum() / sum(sizes)).backward()
        moments = probe.step()
    signal, noise = setting.read(groups, sizes)
    torch.testing.assert_close(moments[name].signal, signal, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(moments[name].noise, noise, rtol=1e-9, atol=1e-12)


@EVERY
def test_statistic_is_a_quadratic_form(name: str) -> None:
    setting = Setting(name)
    for index in setting.covered:
        one, other = torch.randn(2, 1, *SHAPES[index], dtype=torch.float64)
        values = [setting.geometry.statistic(index, g) for g in (one, other, one + other, one - other, 3 * one)]
        torch.testing.assert_close(values[2] + values[3], 2 * values[0] + 2 * values[1])
        torch.testing.assert_close(values[4], 9 * values[0])


@EVERY
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_statistic_of_short_floats_is_that_of_their_values(name: str, dtype: torch.dtype) -> None:
    setting = Setting(name)
    for index in setting.covered:
        groups = torch.randn(2, *SHAPES[index]).to(dtype)
        found = setting.geometry.statistic(index, groups)
        assert found.dtype in (torch.float32, torch.float64)
        torch.testing.assert_close(found, setting.geometry.statistic(index, groups.float()))


@EVERY
def test_noise_scale_counts_examples_and_ignores_the_unit_of_the_loss(name: str) -> None:
    setting = Setting(name)
    groups = setting.groups(4)
    noise_scale = setting.noise_scale(groups, [2, 2, 2, 2])
    assert setting.noise_scale(groups, [6, 6, 6, 6]) == pytest.approx(3 * noise_scale, rel=1e-9)
    assert setting.noise_scale([7 * group for group in groups], [2, 2, 2, 2]) == pytest.approx(noise_scale, rel=1e-9)
    shuffled = [group[[2, 0, 3, 1]] for group in groups]
    assert setting.noise_scale(shuffled, [2, 2, 2, 2]) == pytest.approx(noise_scale, rel=1e-9)


@EVERY
def test_equal_groups_have_no_noise(name: str) -> None:
    setting = Setting(name)
    groups = setting.groups(4, spread=0.0)
    signal, noise = setting.read(groups, [5, 5, 5, 5])
    assert (signal > 0).all()
    # rounding leaves a relative 1e-16 in a statistic, of which some geometries take the root
    assert setting.noise_scale(groups, [5, 5, 5, 5]) < 1e-6
    assert (noise.abs() < 1e-5 * signal).all()


@EVERY
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_stays_in_its_tensor(name: str, bad: float) -> None:
    setting = Setting(name)
    groups = setting.groups(2)
    groups[setting.covered[0]][0, 0] = bad
    signal, noise = setting.read(groups, [2, 2])
    assert not (signal[0].isfinite() and noise[0].isfinite())
    assert signal[1:].isfinite().all()
    assert noise[1:].isfinite().all()


@EVERY
def test_one_group_says_nothing(name: str) -> None:
    setting = Setting(name)
    with Probe(setting.model, setting.optimizer, source="accumulation", geometries=[name]) as probe:
        setting.model.zero_grad()
        setting.model(torch.randn(5, 107, dtype=torch.float64)).mean().backward()
        moments = probe.step()
    assert moments[name].signal.isnan().all()
    assert moments[name].noise.isnan().all()
    _, noise = setting.read(setting.groups(1), [4])
    assert noise.isnan().all()


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

"""Every workload: its noise scale against a loop over examples, both halves of its loss, samples of its curvature; how
it is found, built and fed."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import hessian
from torch.utils._pytree import tree_map

from cbs.compute import seeding
from cbs.compute.seeding import generator, seeded
from cbs.errors import ConfigError
from cbs.noise_scale import NoiseScaleMeter
from cbs.noise_scale.check import CheckReport
from cbs.trial.config import Choice
from cbs.workloads import WORKLOADS, RandomExamples, Workload, build_workload
from cbs.workloads.base import PredictiveWorkload
from cbs.workloads.streams import BLOCK, RandomIndices
from tests.kinds import kinds_of

PREDICTIVE = [name for name in WORKLOADS if isinstance(build_workload(Choice(name=name)), PredictiveWorkload)]
SAMPLES = 4000


def test_the_built_in_workloads_show_their_outputs() -> None:
    assert {"text", "noisy_quadratic"} <= set(PREDICTIVE)


@pytest.mark.parametrize("name", PREDICTIVE)
def test_the_two_halves_are_the_loss(name: str) -> None:
    workload = build_workload(Choice(name=name))
    assert isinstance(workload, PredictiveWorkload)
    model = workload.build_model()
    batch = workload.training_stream(seeding.generator(0, "data")).next(3)
    outputs = workload.outputs(model, batch)
    assert len(outputs) == 3
    torch.testing.assert_close(workload.output_losses(outputs, batch), workload.example_losses(model, batch))


@pytest.mark.parametrize("name", kinds_of(PREDICTIVE, PREDICTIVE[::2]))
def test_curvature_samples_have_the_hessian_as_their_covariance(name: str) -> None:
    workload = build_workload(Choice(name=name, options={"dimension": 40} if name == "noisy_quadratic" else {}))
    assert isinstance(workload, PredictiveWorkload)
    torch.manual_seed(0)
    model = workload.build_model()
    batch = workload.training_stream(seeding.generator(0, "data")).next(1)
    generator = seeding.generator(0, "optimizer")
    # A short piece of the outputs keeps the Hessian small; larger logits make the probabilities uneven.
    outputs = 3 * workload.outputs(model, batch).detach()
    keep = torch.arange(min(outputs.numel(), 200))

    def loss(part: torch.Tensor) -> torch.Tensor:
        whole = outputs.flatten().index_copy(0, keep, part)
        return workload.output_losses(whole.view_as(outputs), batch).sum()

    truth = hessian(loss)(outputs.flatten()[keep])
    draws = torch.stack([workload.curvature_sample(outputs, batch, generator).flatten()[keep] for _ in range(SAMPLES)])
    # The mean of N independent z z' is off by sqrt((E|z|^4 - |H|^2) / N) in Frobenius norm, and that of z likewise.
    error = (draws.square().sum(1).square().mean() - truth.square().sum()).sqrt() / SAMPLES**0.5
    assert (draws.T @ draws / SAMPLES - truth).norm() < 2 * error
    assert error < 0.25 * truth.norm()
    assert draws.mean(0).norm() < 4 * (truth.trace() / SAMPLES).sqrt()  # an output of one number is a normal one


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in WORKLOADS},
    "llama": ("text", {"size": "llama-200k", "layers": 1}),
    "biases": ("text", {"size": "gpt2-small", "width": 32, "heads": 2, "layers": 1, "context": 16}),
}


def checked(name: str, options: dict[str, Any], source: str) -> CheckReport:
    workload = build_workload(Choice(name=name, options=options))
    with seeded(0, "init"):
        model = workload.build_model().double()  # deep convolutions in single precision differ by 4 % in small layers
    batch = workload.training_stream(generator(0, "data")).next(6)
    batch = tree_map(lambda part: part.double() if part.is_floating_point() else part, batch)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return workload.example_losses(model, batch).mean()

    return NoiseScaleMeter.check(model, loss, batch, source=source, count=lambda args, kwargs: 6)


@pytest.mark.parametrize("variant", kinds_of(VARIANTS, [*WORKLOADS, "llama"]))
def test_the_noise_scale_is_that_of_a_loop_over_examples(variant: str) -> None:
    found = checked(*VARIANTS[variant], "split")
    assert found.ok, str(found)
    assert found.source == "split"
    assert not found.coupled


@pytest.mark.parametrize("name", WORKLOADS.names())
def test_every_workload_follows_the_protocol_and_is_repeatable(name):
    workload = build_workload(Choice(name=name))
    assert isinstance(workload, Workload)
    losses, metrics = [], []
    for _ in range(2):
        with seeded(1, "init"):
            model = workload.build_model()
        batch = workload.training_stream(generator(1, "data")).next(6)
        torch.manual_seed(len(losses))  # which is not what it draws from
        losses.append(workload.example_losses(model, batch))
        metrics.append(workload.validate(model))
    assert losses[0].shape == (6,)
    assert torch.equal(losses[0], losses[1])
    assert metrics[0] == metrics[1]


def rows(batch: object) -> list[torch.Tensor]:
    parts = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, tuple) else (batch,)
    return list(parts)


@pytest.mark.parametrize("name", WORKLOADS.names())
def test_examples_are_the_same_however_they_are_cut_and_skipped(name):
    workload = build_workload(Choice(name=name))
    whole = rows(workload.training_stream(generator(2, "data")).next(150))
    cut, skipped = (workload.training_stream(generator(2, "data")) for _ in range(2))
    parts = zip(*(rows(cut.next(size)) for size in (1, 7, 64, 3, 75)), strict=True)
    for together, pieces in zip(whole, parts, strict=True):
        assert torch.equal(torch.cat(pieces), together)
    skipped.skip(70)
    first = rows(skipped.next(5))
    skipped.skip(2)
    for together, some, more in zip(whole, first, rows(skipped.next(73)), strict=True):
        assert torch.equal(torch.cat([some, more]), torch.cat([together[70:75], together[77:]]))
    assert not torch.equal(rows(workload.training_stream(generator(3, "data")).next(150))[0], whole[0])


@pytest.mark.parametrize("name", WORKLOADS.names())
def test_the_loss_of_an_example_does_not_depend_on_the_others(name):
    workload = build_workload(Choice(name=name))
    with seeded(1, "init"):
        model = workload.build_model().double()
    batch = workload.training_stream(generator(1, "data")).next(4)

    def losses(part: slice) -> torch.Tensor:
        pieces = [row[part].double() if row.is_floating_point() else row[part] for row in rows(batch)]
        return workload.example_losses(model, tuple(pieces) if isinstance(batch, tuple) else pieces[0])

    alone = torch.cat([losses(slice(place, place + 1)) for place in range(4)])
    torch.testing.assert_close(losses(slice(0, 4)), alone)


def test_a_workload_of_the_users_own_is_found_in_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "mine_of_this_test.py").write_text(
        "from cbs.workloads import WORKLOADS\ndef make(dimension):\n"
        "    return WORKLOADS['noisy_quadratic'](dimension=dimension)\ndef wrong():\n    return object()\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert len(build_workload(Choice(name="mine_of_this_test:make", options={"dimension": 7})).curvature) == 7
    with pytest.raises(ConfigError, match="its options are: dimension"):
        build_workload(Choice(name="mine_of_this_test:make"))
    with pytest.raises(ConfigError, match="without build_model"):
        build_workload(Choice(name="mine_of_this_test:wrong"))
    with pytest.raises(ConfigError, match="no function 'absent'"):
        build_workload(Choice(name="mine_of_this_test:absent"))


def test_a_module_that_fails_to_import_says_why(tmp_path, monkeypatch):
    (tmp_path / "broken_of_this_test.py").write_text("import a_module_that_is_not_there\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="a_module_that_is_not_there"):
        build_workload(Choice(name="broken_of_this_test:make"))


def seeded_by(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=6), st.integers(1, 10**6))
def test_the_sequence_does_not_depend_on_how_it_is_cut(cuts, count):
    whole = RandomIndices(count, seeded_by()).next(sum(cuts))
    parts = RandomIndices(count, seeded_by())
    assert torch.equal(torch.cat([parts.next(cut) for cut in cuts]), whole)


def test_indices_are_uniform_and_depend_on_the_seed():
    drawn = RandomIndices(10, seeded_by(1)).next(20 * BLOCK)
    share = torch.bincount(drawn, minlength=10) / len(drawn)
    # Standard error of a share of 1/10 in 81920 draws is 0.001; 5 of them.
    assert (share - 0.1).abs().max() < 0.005
    assert not torch.equal(drawn, RandomIndices(10, seeded_by(2)).next(20 * BLOCK))


def test_rows_of_several_tensors_stay_together():
    points, labels = torch.arange(50.0).reshape(25, 2), torch.arange(25)
    drawn, which = RandomExamples((points, labels), seeded_by()).next(100)
    assert torch.equal(drawn, points[which])
    assert torch.equal(RandomExamples(points, seeded_by()).next(100), drawn)

"""A measurement never changes the training: a step that comes out otherwise in smaller passes is not cut."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout

from cbs.compute.pass_sizes import halved, micro_sizes
from cbs.registry.choices import Choice
from cbs.training.passes import compare
from cbs.training.run import run_trial
from cbs.trial.checkpoint import Checkpoint
from cbs.trial.config import EvaluationPlan, Schedule, TrialConfig
from cbs.trial.record import TrialResult, TrialStatus
from cbs.trial.target import Target
from cbs.workloads import RandomExamples
from cbs.workloads.streams import split_batch

STEPS = 12


class Images:
    """Small images of three classes, and a convolutional network."""

    metric, metric_unit, direction, default_target = "validation_loss", "nats", "below", 0.01
    example_unit, tokens_per_example, data_hash = "image", None, None

    def __init__(self, middle: Callable[[], nn.Module], losses: Callable[[Tensor], Tensor] = lambda own: own) -> None:
        generator = torch.Generator().manual_seed(0)
        labels = torch.randint(3, (256,), generator=generator)
        self.data = torch.randn(256, 2, 4, 4, generator=generator) + labels[:, None, None, None], labels
        self.middle, self.losses = middle, losses

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Conv2d(2, 4, 3), self.middle(), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))

    def training_stream(self, generator: torch.Generator) -> Any:
        return RandomExamples(self.data, generator)

    def example_losses(self, model: nn.Module, batch: Any) -> Tensor:
        return self.losses(cross_entropy(model(batch[0]), batch[1], reduction="none"))

    def validate(self, model: nn.Module) -> float:
        return float(cross_entropy(model(self.data[0]), self.data[1]))


class Centred(nn.Module):
    """Mixes examples, and no name or buffer says so."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class Drawing(nn.Module):
    """Draws as many random numbers for a batch as for its parts, in another order."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (1 + torch.randn(x.shape[1:] + x.shape[:1]).permute(3, 0, 1, 2) / 2)


class Counting(nn.Module):
    """Leaves something else behind and computes the same."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls = self.calls + 1
        return x


def hardest(own: Tensor) -> Tensor:
    """The hardest quarter of a batch counts."""
    chosen = own.topk(max(1, len(own) // 4))
    return torch.zeros_like(own).index_put((chosen.indices,), chosen.values * (len(own) / len(chosen.values)))


def train(workload: Any, probe: str | None, batch_size: int = 64, **changes: Any) -> TrialResult:
    config = TrialConfig(
        workload=Choice(name="mine"),
        optimizer=Choice(name="sgd", options={"momentum": 0.9}),
        lr=0.1,
        batch_size=batch_size,
        seed=3,
        target=Target(metric="validation_loss", value=0.0),
        max_steps=STEPS,
        schedule=Schedule(warmup_examples=0),
        probe=None if probe is None else Choice(name=probe, options={"every": 1}),
        evaluation=EvaluationPlan(),
        **changes,
    )
    return run_trial(config, workload=workload)


def noise(result: TrialResult) -> np.ndarray:
    return result.steps["noise_trace"]


@pytest.mark.parametrize("batch_size", [8, 64])
def test_batch_normalisation_trains_bit_for_bit_as_without_the_probe(batch_size: int) -> None:
    workload = Images(lambda: nn.BatchNorm2d(4))
    plain, probed = (train(workload, probe, batch_size) for probe in (None, "auto"))
    assert plain.evaluations == probed.evaluations
    np.testing.assert_array_equal(plain.steps["train_loss"], probed.steps["train_loss"])
    assert probed.status is TrialStatus.BUDGET_EXHAUSTED
    assert np.isnan(noise(probed)).all()
    assert "would change the training, because buffer '1.running_mean' has other values" in probed.message
    assert "\n" not in probed.message


@pytest.mark.parametrize(
    ("middle", "probe", "said"),
    [
        (Centred, "auto", "the loss of an example depends on other examples"),
        (Centred, "accumulation", "the gradient of a step differs in smaller passes"),
        (Drawing, "accumulation", "smaller passes draw other random numbers"),
        (Counting, "accumulation", "buffer '1.calls' has other values after smaller passes"),
    ],
)
def test_whatever_depends_on_the_cut_is_not_cut(middle: Callable[[], nn.Module], probe: str, said: str) -> None:
    workload = Images(middle)
    plain, probed = (train(workload, each) for each in (None, probe))
    np.testing.assert_array_equal(plain.steps["train_loss"][0], probed.steps["train_loss"][0])
    np.testing.assert_allclose(plain.steps["train_loss"], probed.steps["train_loss"], rtol=1e-4)
    assert np.isnan(noise(probed)[1:]).all()
    assert said in probed.message


@pytest.mark.parametrize("middle", [nn.Identity, lambda: nn.GroupNorm(2, 4)])
def test_what_does_not_depend_on_it_is_cut_and_measured(middle: Callable[[], nn.Module]) -> None:
    workload = Images(middle)
    plain, probed = (train(workload, probe) for probe in (None, "accumulation"))
    np.testing.assert_allclose(plain.steps["train_loss"], probed.steps["train_loss"], rtol=1e-4)
    assert np.isfinite(noise(probed)).all()
    assert probed.message == plain.message


@pytest.mark.parametrize("probe", ["split", "per_example", "auto"])
def test_a_loss_that_couples_examples_is_not_measured_inside(probe: str) -> None:
    found = train(Images(nn.Identity, hardest), probe)
    assert np.isnan(noise(found)).all()
    assert "the loss of an example depends on other examples" in found.message


def test_both_ways_start_from_one_state() -> None:
    """So that the same way twice is no difference, whatever the passes draw and leave behind."""
    model, x = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5)), torch.randn(8, 3)

    def gradients(sizes: Sequence[int]) -> Sequence[Tensor]:
        total = sum(model(part).square().sum() for part in x.split(list(sizes)))
        return torch.autograd.grad(total, list(model.parameters()))

    before = torch.get_rng_state(), model[1].running_mean.clone()
    assert compare(model, gradients, [4, 4], [4, 4]).difference == ""
    assert compare(model, gradients, [8], [4, 4]).difference != ""

    def drawing(sizes: Sequence[int]) -> Sequence[Tensor]:
        torch.rand(len(sizes))  # of no use to this step, but the next ones draw others
        return torch.autograd.grad(model[0](x).sum(), list(model[0].parameters()))

    assert compare(model, drawing, [8], [4, 4]).difference == "smaller passes draw other random numbers"

    def failing(sizes: Sequence[int]) -> Sequence[Tensor]:
        gradients(sizes)
        raise MemoryError

    with pytest.raises(MemoryError):
        compare(model, failing, [8], [4, 4])
    assert torch.equal(torch.get_rng_state(), before[0])
    assert torch.equal(model[1].running_mean, before[1])


@pytest.mark.parametrize("losses", [lambda own: own, lambda own: dropout(own, 0.3)])
def test_a_loss_of_single_examples_is_measured_inside(losses: Callable[[Tensor], Tensor]) -> None:
    found = train(Images(lambda: nn.Dropout(0.5), losses), "split")
    assert np.isfinite(noise(found)).all()
    assert "noise scale" not in found.message


sizes = st.integers(1, 5000)


@given(sizes, st.none() | sizes, sizes)
def test_every_example_is_in_one_pass_and_no_pass_is_too_large(examples, most, wanted):
    found = micro_sizes(examples, most, wanted)
    assert sum(found) == examples
    assert max(found) <= (most or examples)
    assert max(found) - min(found) <= 1
    assert len(found) >= min(wanted, examples)


@given(st.integers(1, 300), st.none() | st.integers(1, 300), st.integers(1, 300), st.integers(1, 300))
def test_halving_ends_with_what_fits_whatever_was_known_before(examples, most, fits, beyond):
    def ends(known: int | None) -> int:
        tried = []
        while True:
            tried.append(micro_sizes(examples, halved(examples, most, known))[0])
            if tried[-1] <= fits:
                break
            assert known is None or tried[-1] < known
            known = tried[-1]
        assert len(tried) == 1 or tried[-2] > fits >= tried[-1] >= tried[-2] // 2 - 1
        return tried[-1]

    alone = ends(None)
    assert ends(min(fits + beyond, examples)) == alone if fits < examples else alone == ends(None)


def test_a_pass_of_a_later_stage_is_halved_too():
    assert halved(32, None, 64) == 32
    assert halved(32, 48, 64) == 48
    assert halved(32, 48, 48) == 24
    assert halved(7, None, 1) == 1


def test_parts_of_a_batch_hold_their_examples_and_what_is_no_tensor():
    batch = {"ids": torch.arange(5), "name": "all"}
    assert [(size, part["ids"].tolist(), part["name"]) for size, part in split_batch(batch, [3, 2])] == [
        (3, [0, 1, 2], "all"), (2, [3, 4], "all")
    ]  # fmt: skip


def test_passes_that_every_step_has_are_measured() -> None:
    workload = Images(lambda: nn.BatchNorm2d(4))
    plain, probed = (train(workload, probe, micro_batch_size=16) for probe in (None, "auto"))
    assert plain.evaluations == probed.evaluations
    assert np.isfinite(noise(probed)).all()
    assert probed.message == plain.message


def test_it_is_found_in_a_model_with_dropout_too() -> None:
    assert "depends on other examples" in train(Images(lambda: nn.Dropout(0.5), hardest), "split").message


def test_a_trial_that_goes_on_has_not_forgotten_it(tmp_path: Any) -> None:
    workload = Images(lambda: nn.BatchNorm2d(4))
    whole = train(workload, "auto")
    checkpoint = Checkpoint(tmp_path / "state.pt", seconds=0)
    ends = (TrialStatus.PRUNED, "")
    stops = iter([None, ends])
    run_trial(whole.config, workload=workload, checkpoint=checkpoint, monitor=lambda _: next(stops, ends))
    resumed = run_trial(whole.config, workload=workload, checkpoint=checkpoint)
    assert [row.value for row in resumed.evaluations] == [row.value for row in whole.evaluations]
    assert resumed.message == whole.message
    np.testing.assert_array_equal(noise(resumed), noise(whole))

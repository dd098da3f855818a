"""The drop-in: any loop, the same numbers; nothing left behind."""

import copy
import io
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from cbs.compute import seeding
from cbs.errors import ConfigError
from cbs.noise_scale import Estimate, NoiseScaleMeter
from tests.kinds import kinds, kinds_of

SOURCES = ("split", "accumulation", "per_example")


def small_model() -> nn.Module:
    with seeding.seeded(0, "init"):
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))


def batches(steps: int, examples: int = 16, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    generator = seeding.generator(seed, "data")
    inputs = [torch.randn(examples, 6, generator=generator) for _ in range(steps)]
    return [(x, x[:, :1] + torch.randn(examples, 1, generator=generator)) for x in inputs]


def train(
    noise_scale: NoiseScaleMeter,
    model: nn.Module,
    data: list[tuple[Tensor, Tensor]],
    *,
    parts: int = 4,
    after_backward: Callable[[], None] = lambda: None,
    before_step: Callable[[], None] = lambda: None,
    scale: float = 1.0,
    **step: Any,
) -> None:
    """A loop at learning rate zero: every step is at the same point, so the moments have one truth."""
    for inputs, targets in data:
        for x, y in zip(inputs.chunk(parts), targets.chunk(parts), strict=True):
            (scale * mse_loss(model(x), y) / parts).backward()
        before_step()
        noise_scale.step(**step)
        after_backward()
        model.zero_grad()


def close(first: Estimate, second: Estimate, rel: float = 1e-4) -> None:
    """float32 sums in another order: a few units in the seventh digit of norms, more in their difference."""
    assert first.signal == pytest.approx(second.signal, rel=rel)
    assert first.noise == pytest.approx(second.noise, rel=rel)


def truth(model: nn.Module, examples: int = 8_000) -> tuple[float, float]:
    """``(|G|^2, tr(Sigma))`` by one gradient per example."""
    (inputs, targets) = batches(1, examples, seed=7)[0]
    parameters = dict(model.named_parameters())

    def loss(values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return mse_loss(torch.func.functional_call(model, values, (x[None],)), y[None])

    gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(parameters, inputs, targets)
    flat = torch.cat([gradient.flatten(1) for gradient in gradients.values()], dim=1)
    mean = flat.mean(0)
    noise = (flat - mean).square().sum().item() / (examples - 1)
    return mean.square().sum().item() - noise / examples, noise


@pytest.mark.parametrize("source", kinds_of(SOURCES, SOURCES[:2]))
def test_every_source_finds_the_truth(source: str) -> None:
    model = small_model()
    noise_scale = NoiseScaleMeter(model, source=source, every=1, window=None)
    train(noise_scale, model, batches(400), parts=2)
    found = noise_scale.estimate(confidence=0.9999)
    signal, noise = truth(model)
    assert found.low < noise / signal < found.high
    # 400 steps of 16 examples know tr(Sigma) to about 3 %
    assert found.noise == pytest.approx(noise, rel=0.12)
    assert found.steps == 400
    assert found.examples == 6400


@pytest.mark.parametrize("source", SOURCES)
def test_clipping_after_the_measurement_does_not_matter(source: str) -> None:
    estimates = []
    for clipped in (False, True):
        model = small_model()
        noise_scale = NoiseScaleMeter(model, source=source)
        clip = (lambda m=model: nn.utils.clip_grad_norm_(m.parameters(), 1e-3)) if clipped else (lambda: None)
        train(noise_scale, model, batches(5), after_backward=clip)
        estimates.append(noise_scale.estimate())
    assert estimates[0] == estimates[1]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("unscaled", [False, True])
def test_scaled_losses(source: str, unscaled: bool) -> None:
    model, scaled_model = small_model(), small_model()
    plain, scaled = NoiseScaleMeter(model, source=source), NoiseScaleMeter(scaled_model, source=source)
    train(plain, model, batches(5))

    def unscale() -> None:
        for parameter in scaled_model.parameters():
            if unscaled and parameter.grad is not None:
                parameter.grad.div_(1024.0)

    train(
        scaled, scaled_model, batches(5), scale=1024.0, before_step=unscale, loss_scale=1024.0,
        gradients_unscaled=unscaled,
    )  # fmt: skip
    close(scaled.estimate(), plain.estimate(), rel=1e-6)


@pytest.mark.parametrize("source", SOURCES)
def test_a_step_that_overflowed_is_left_out(source: str) -> None:
    model = small_model()
    noise_scale = NoiseScaleMeter(model, source=source)
    data = batches(6)
    train(noise_scale, model, data[:3])
    train(noise_scale, model, data[3:4], scale=1e38, loss_scale=1e38)
    train(noise_scale, model, data[4:])
    estimate = noise_scale.estimate()
    assert estimate.steps == 5
    assert noise_scale.skipped == 1
    assert math.isfinite(estimate.noise)


def test_restart_from_a_state_dict() -> None:
    data = batches(60)
    whole_model, model = small_model(), small_model()
    whole, first, second = (NoiseScaleMeter(m, source="accumulation") for m in (whole_model, model, small_model()))
    train(whole, whole_model, data)
    train(first, model, data[:25])
    buffer = io.BytesIO()
    torch.save(first.state_dict(), buffer)
    buffer.seek(0)
    first.detach()
    second = NoiseScaleMeter(model, source="accumulation")
    second.load_state_dict(torch.load(buffer, weights_only=True))
    train(second, model, data[25:])
    assert second.estimate() == whole.estimate()


def test_parts_add_up() -> None:
    model = small_model()
    optimizer = torch.optim.SGD(
        [{"params": model[0].parameters(), "lr": 0.1}, {"params": [model[2].weight], "lr": 0.2, "name": "head"}]
    )
    noise_scale = NoiseScaleMeter(model, optimizer)
    train(noise_scale, model, batches(20))
    total = noise_scale.estimate()
    expected = {
        "layer": {"0", "2"},
        "parameter": {"0.weight", "0.bias", "2.weight", "2.bias"},
        "parameter_group": {"0", "head", "not optimized"},
    }
    for by, names in expected.items():
        parts = noise_scale.estimate(by)  # type: ignore[call-overload]
        assert set(parts) == names
        assert sum(part.signal for part in parts.values()) == pytest.approx(total.signal, rel=1e-9)
        assert sum(part.noise for part in parts.values()) == pytest.approx(total.noise, rel=1e-9)


def test_several_geometries_at_once() -> None:
    model = small_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    noise_scale = NoiseScaleMeter(model, optimizer, geometry=["l2", "matched"])
    train(noise_scale, model, batches(20))
    assert noise_scale.geometries == ("l2", "l1")
    l1 = noise_scale.estimate(geometry="l1")
    assert noise_scale.estimate(geometry="matched") == l1
    assert l1.value == pytest.approx((l1.noise / l1.signal) ** 2)
    assert "nuclear" in NoiseScaleMeter(small_model(), geometry="all").geometries
    with pytest.raises(ConfigError, match="not measured"):
        noise_scale.estimate(geometry="nuclear")


@pytest.mark.parametrize("source", SOURCES)
def test_detached_models_are_as_before(source: str) -> None:
    model = small_model()
    before = copy.deepcopy(model)
    with NoiseScaleMeter(model, source=source) as noise_scale:
        train(noise_scale, model, batches(1))
    for module, other in zip(model.modules(), before.modules(), strict=True):
        assert set(vars(module)) == set(vars(other))
        assert not module._forward_pre_hooks
        assert not module._forward_hooks
    x, y = batches(1)[0]
    for network in (model, before):
        mse_loss(network(x), y).backward()
    for ours, theirs in zip(model.parameters(), before.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"source": "spilt"}, "did you mean split"),
        ({"geometry": "l3"}, "known names"),
        ({"geometry": []}, "at least one"),
        ({"geometry": "matched"}, "needs the optimizer"),
        ({"parts": 1}, "at least 2"),
        ({"window": 0}, "window"),
    ],
)
def test_misuse_is_one_line(arguments: dict[str, Any], word: str) -> None:
    model = small_model()
    with pytest.raises(ConfigError) as caught:
        NoiseScaleMeter(model, **arguments)
    assert word in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize(("source", "measured"), kinds([("split", 73)], [("per_example", 16), ("accumulation", 200)]))
def test_by_default_measuring_costs_little_of_a_long_run(source: str, measured: int) -> None:
    """Steps of two passes of eight examples; one example more than seven others is a backward pass more each."""
    model = small_model()
    noise_scale = NoiseScaleMeter(model, source=source, window=None)
    train(noise_scale, model, batches(200), parts=2)
    assert noise_scale.estimate().steps == measured


def test_by_default_measured_steps_thin_out_so_that_a_window_follows_the_run() -> None:
    probe, steps = NoiseScaleMeter(small_model()).probe, []
    for step in range(6400):
        probe.start_at(step)
        steps += [step] * probe.watching
    assert steps[:32] == [*range(32)]
    assert steps[-294:] == [*range(520, 6400, 20)]
    assert len(steps) < 6400 / 16
    for end in (128, 400, 1000, 2000):
        assert [step for step in steps if step < end][-32] >= end / 5


def test_what_a_step_says_and_what_goes_to_a_tracker() -> None:
    model = small_model()
    noise_scale = NoiseScaleMeter(model, source="accumulation", every=2)
    seen = []
    for batch, _ in batches(40):
        with noise_scale.paused():
            model(batch).sum().backward()  # no part of a step
        model.zero_grad()
        for part in batch.chunk(2):
            (model(part).square().mean() / 2).backward()
        seen.append(noise_scale.step())
        model.zero_grad()
    assert [step is not None for step in seen] == [True, False] * 20
    means = [sum(float(getattr(step, name)) for step in seen[::2]) / 20 for name in ("signal", "noise")]
    found = noise_scale.estimate()
    assert (found.signal, found.noise) == pytest.approx(means)
    assert seen[0].ratio == pytest.approx(float(seen[0].noise / seen[0].signal))
    assert noise_scale.log()["noise_scale/simple"] == found.value
    assert noise_scale.estimate() is found
    for part in batches(1)[0][0].chunk(2):
        (model(part).square().mean() / 2).backward()
    noise_scale.step()
    assert noise_scale.estimate().steps == found.steps + 1


@pytest.mark.parametrize("source", ["accumulation", "auto"])
def test_compiled_models(source: str) -> None:
    model, other = small_model(), small_model()
    eager = NoiseScaleMeter(model, source="accumulation")
    train(eager, model, batches(3))
    compiled = torch.compile(other, backend="aot_eager")
    noise_scale = NoiseScaleMeter(compiled, source=source)
    train(noise_scale, compiled, batches(3))
    close(noise_scale.estimate(), eager.estimate())
    assert set(noise_scale.estimate("layer")) == {"0", "2"}
    assert ("compiled" in noise_scale.estimate().note) == (source == "auto")


@pytest.mark.parametrize("source", ["split", "per_example"])
def test_layers_of_compiled_models_are_refused(source: str) -> None:
    with pytest.raises(ConfigError, match="run its backward pass only once; use the source 'accum"):
        NoiseScaleMeter(torch.compile(small_model(), backend="eager"), source=source)


def test_a_state_dict_of_other_geometries_is_refused() -> None:
    one = NoiseScaleMeter(small_model())
    two = NoiseScaleMeter(small_model(), geometry="l1")
    with pytest.raises(ConfigError, match="l1"):
        two.load_state_dict(one.state_dict())


def test_a_window_forgets() -> None:
    model = small_model()
    noise_scale = NoiseScaleMeter(model, source="accumulation", window=320)
    train(noise_scale, model, batches(100))
    assert 20 <= noise_scale.estimate().steps <= 25


def test_reset_forgets_everything() -> None:
    model = small_model()
    noise_scale = NoiseScaleMeter(model, source="accumulation")
    train(noise_scale, model, batches(3))
    noise_scale.reset()
    assert noise_scale.estimate().steps == 0
    train(noise_scale, model, batches(2))
    assert noise_scale.estimate().steps == 2


def test_nothing_to_train() -> None:
    with pytest.raises(ConfigError, match="no trainable parameter"):
        NoiseScaleMeter(small_model().requires_grad_(False))


@pytest.mark.parametrize("source", SOURCES)
def test_one_step_in_three(source: str) -> None:
    model, other = small_model(), small_model()
    often = NoiseScaleMeter(model, source=source, geometry=["l2", "l1"], every=1)
    rarely = NoiseScaleMeter(other, source=source, geometry=["l2", "l1"], every=3)
    data = batches(9)
    train(rarely, other, data)
    train(often, model, data)
    assert rarely.estimate().steps == 3
    assert rarely.skipped == 0
    often.reset()
    train(often, model, data[::3])
    for geometry in ("l2", "l1"):
        close(rarely.estimate(geometry=geometry), often.estimate(geometry=geometry))


def test_by_default_the_average_follows_the_run() -> None:
    """The noise grows tenfold after 300 of 400 steps; a fifth of the examples are 80 steps."""
    model = small_model()
    late, whole = (NoiseScaleMeter(model, source="accumulation", **window) for window in ({}, {"window": None}))
    for step, (batch, _) in enumerate(batches(400)):
        for part in batch.chunk(2):
            losses = (1.0 if step < 300 else 10.0) * model(part).square().mean()
            (losses / 2).backward()
        late.step()
        whole.step()
        model.zero_grad()
        assert step != 99 or late.estimate().steps == 32
    assert (late.estimate().steps, whole.estimate().steps) == (80, 400)
    assert late.estimate().noise > 2.5 * whole.estimate().noise

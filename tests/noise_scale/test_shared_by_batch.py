"""What the examples of a batch share is told: it counts as signal."""

import math
import random
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from cbs.noise_scale import NoiseScaleMeter
from cbs.noise_scale.moments import Moments, Sizes
from cbs.noise_scale.shared_by_batch import LAGS, LASTING, OFTEN, SELDOM, SharedByBatch, SharedInputs, Sketch
from tests.noise_scale.loops import SIZE, Batch, line, points, run, squared

SHARED = "examples of a batch share what other batches do not have"
ALIKE = "inputs of examples of a batch are alike"
NORMED = "inputs have the same mean in every batch"
DRAWN = "the model draws random numbers of shape"


class Skipping(nn.Module):
    """A residual block that is left out, or whose features are, for all examples of a batch or for single ones."""

    def __init__(self, draw: Callable[[], object]) -> None:
        super().__init__()
        self.inner, self.head, self.draw = nn.Linear(4, 4), nn.Linear(4, 1), draw

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + self.inner(x) * (torch.as_tensor(self.draw()) < 0.6))


def shared(kind: str) -> Callable[[torch.Generator], Batch]:
    def draw(draws: torch.Generator) -> Batch:
        x, one = torch.randn(SIZE, 4, generator=draws), torch.randn((), generator=draws)
        noise = torch.randn(SIZE, 1, generator=draws)
        sign = one.sign()
        if kind == "one task":
            y = x[:, :1] + sign * x[:, 1:2]
        elif kind == "one of two datasets":
            x, y = x + sign, x[:, :1] * (1 + sign)
        elif kind == "one length":
            x = x * (torch.arange(4) < 1 + int(one.abs() * 2))
            y = x.sum(1, keepdim=True)
        elif kind == "one crop":
            x = x.roll(int(one * 10), 1)
            y = x[:, :1] + one
        elif kind == "one level of noise":
            x, y = x * 2 * (3 * one).sigmoid(), x[:, :1]
        elif kind == "one offset":
            y = x[:, :1] + 5 * sign
        else:
            y = x[:, :1]
        return x, y + noise, x

    return draw


@pytest.mark.parametrize(
    "kind", ["one task", "one of two datasets", "one length", "one crop", "one level of noise", "one offset", "nothing"]
)
def test_what_a_batch_shares_is_told(kind: str) -> None:
    torch.manual_seed(0)
    note = run(line(), squared, shared(kind), 320)
    assert (SHARED in note) == (kind != "nothing"), note


def test_products_of_sketches_are_in_the_scale_of_the_signal() -> None:
    torch.manual_seed(0)
    some, others = (torch.complex64, torch.float64), torch.randn(1030, 1021).bfloat16()  # 1027 is not a bfloat16
    tensors = [torch.randn(50, 60), torch.randn(7), *(torch.randn(40, 50, dtype=each) for each in some), others]
    sketch = Sketch([nn.Parameter(tensor) for tensor in tensors])
    sketch.active = True
    for _ in range(8):
        statistics = [
            sketch.statistic(place, torch.view_as_real(one)[None] if one.is_complex() else one[None])
            for place, one in enumerate(tensors)
            if sketch.covers(place)
        ]
        product = (sketch.of(tensors) * sketch.scales) @ sketch.of(tensors)
        torch.testing.assert_close(product, torch.stack([one.float() for one in statistics]).sum(), rtol=1e-4, atol=0.0)
        sketch.draw()


def test_steps_that_are_compared_together_give_what_single_ones_do() -> None:
    draws, sizes = torch.Generator().manual_seed(0), Sizes(small=4, big=8, groups=2)
    weights = nn.Parameter(torch.randn(40, 50, generator=draws))  # every second entry is compared
    shared, gradients, expected = SharedByBatch([weights]), list[Tensor](), list[list[float]]()
    for step in range(2 * LASTING):
        entries, before = shared.sketch._entries[0], weights.detach().clone()
        weights.data += 0.1 * torch.randn(40, 50, generator=draws)
        gradients.append(torch.randn(40, 50, generator=draws))
        weights.grad = 2 * gradients[-1]
        of_step = Moments(indices=(0,), signal=torch.tensor([float(step)]), noise=torch.tensor([3.0]), sizes=sizes)
        shared.add(step, 2.0, moments := of_step if step != 5 else None, last=True)
        last, *past = (one.flatten()[entries] for one in reversed(gradients[-LAGS - 1 :]))
        if step == LAGS:  # the first that is compared says how weights move
            moved = (weights.detach() - before).flatten()[entries]
            against = [-float((moved.sign() * past[0].sign()).mean()), float(moved.abs().max())]
        if step in range(LAGS, LAGS + LASTING + 1) and moments:
            expected.append([step, 3 / 8, *against, *(float(2 * last @ one) for one in reversed(past))])
    (rows,) = shared._rows
    torch.testing.assert_close(rows, torch.tensor(expected), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("moves", [False, True])
def test_what_would_not_be_told_is_known(moves: bool) -> None:
    """With products of 1 - f of the signal a test tells f above ``unseen`` and nothing below it."""
    draws = np.random.default_rng(0)
    signal, noise = 2 + 0.1 * draws.standard_normal(64), 1 + draws.random(64)

    def tested(shared: float, scale: float = 1.0) -> SharedByBatch:
        latest, moved = np.full(64, 0.2), np.full(64, float(moves))
        products = 2 * (1 - shared) + np.array([0.0, 0.1 * moves])
        rows = np.column_stack([scale * signal, noise, latest, moved, np.tile(products, (64, 1))])
        found = SharedByBatch([nn.Parameter(torch.ones(3))])
        found._test(rows)
        return found

    plain = tested(0.0)  # The largest of two products that differ is what is left
    lost = (math.sin(math.pi / 10) ** 2 * noise.mean() + 0.1) / 2 + 1 / 3 if moves else 0.05
    assert lost < plain.unseen < lost + 0.05
    known = plain.unseen + 0.05 * moves
    assert not tested(known - 0.01).told
    assert SHARED in tested(known + 0.01).told
    assert tested(0.0, scale=-1.0).unseen == 1  # a signal that is not positive
    assert (
        tested(0.0, scale=0.01).unseen == 1
    ) == moves  # what weights do to the next gradient is more than the signal


def test_what_would_not_be_told_stands_beside_the_noise_scale() -> None:
    torch.manual_seed(0)
    model, draws, shares = line(), torch.Generator().manual_seed(3), list[float]()
    meter = NoiseScaleMeter(model, every=1, geometry=["l2", "l1"])
    for step in range(320):
        x, y, _ = shared("nothing")(draws)
        model.zero_grad()
        mse_loss(model(x), y).backward()
        meter.step()
        shares += [meter.log()["noise_scale/unseen"]] if step in (9, 319) else []
    assert shares == [1, meter.estimate().unseen]
    assert 0.05 < shares[1] < 0.5
    assert meter.estimate(geometry="l1").unseen is None


def test_batches_that_are_looked_at_together_give_what_single_ones_do(monkeypatch: pytest.MonkeyPatch) -> None:
    draws, units = torch.Generator().manual_seed(7), torch.arange(SIZE)[:, None]
    batches, found = [masked(draws, SIZE) for _ in range(50)], list[Tensor]()
    for at_once in 16, 1:
        monkeypatch.setattr("cbs.noise_scale.shared_by_batch.AT_ONCE", at_once)
        inputs = SharedInputs()
        for each in batches:
            changed = each.clone()
            inputs.add([changed], units)
            changed.zero_()  # as a loader that uses its memory again does
        assert not inputs.told()
        (values,) = inputs._batches.values()
        found.append(torch.cat([moments for (moments,) in values]))
    torch.testing.assert_close(*found)
    zeros = torch.stack([(each == 0).float().mean() for each in batches])
    torch.testing.assert_close(found[0][:, 2, 0], zeros)


FOR_ALL = [random.random, np.random.rand, partial(torch.rand, []), partial(torch.rand, [1])]
FOR_EACH = [partial(np.random.rand, SIZE, 1), partial(torch.rand, [SIZE, 1]), partial(torch.rand, [SIZE, 4])]


@pytest.mark.parametrize("draw", [*FOR_ALL, *FOR_EACH])
def test_random_numbers_for_a_whole_batch_are_told(draw: Callable[[], object]) -> None:
    torch.manual_seed(0)
    assert (DRAWN in run(Skipping(draw), squared, points, 3)) == (draw in FOR_ALL)


def sentences(draws: torch.Generator, length: int, least: int = 1) -> Tensor:
    return torch.randint(least, 30, (SIZE, length), generator=draws)


def padded(draws: torch.Generator) -> Tensor:
    lengths = torch.randint(1, 9, (SIZE, 1), generator=draws)
    return torch.where(torch.arange(8) < lengths, sentences(draws, 8), 0)[:, : int(lengths.max())]


def masked(draws: torch.Generator, ratios: int) -> Tensor:
    x, chances = torch.randn(SIZE, 6, generator=draws), torch.rand(SIZE, 6, generator=draws)
    return x * (chances < torch.rand(ratios, 1, generator=draws))


def centred(x: Tensor) -> Tensor:
    return x - x.mean(0)


def standardised(x: Tensor) -> Tensor:
    return centred(x) / x.std(0)


def scaled(x: Tensor) -> Tensor:
    return x / x.square().mean().sqrt()


def turned(rows: Tensor, draws: torch.Generator, coins: int) -> Tensor:
    """Rows in their order or in reverse, as one coin says for all of them or one for each."""
    return torch.where(torch.rand(coins, 1, generator=draws) < 0.5, rows, rows.flip(1))


def shifted(draws: torch.Generator, coins: int) -> Tensor:
    """Pairs of numbers that are alike, and where they begin: only products of neighbours differ."""
    rows = torch.randn(SIZE, 100, generator=draws).repeat_interleave(2, 1)
    return torch.where(torch.rand(coins, 1, generator=draws) < 0.5, rows, rows.roll(1, 1))


def halves(draws: torch.Generator, coins: int) -> Tensor:
    """Two halves of the same sign or not: products of neighbours hardly differ."""
    signs = torch.rand(coins, 1, generator=draws).sub(0.5).sign()
    return torch.randn(SIZE, 1, generator=draws) * torch.cat([torch.ones(coins, 32), signs.expand(-1, 32)], 1)


SLOPE, LONG = torch.linspace(-1, 1, 6), torch.linspace(-1, 1, 200)
FIXED = torch.randn(SIZE, 6, generator=torch.Generator().manual_seed(5))
INPUTS: dict[str, tuple[Callable[[torch.Generator, int], Tensor], str]] = {
    "one masking ratio": (lambda draws, _: masked(draws, 1), ALIKE),
    "one number of masked words": (
        lambda draws, _: sentences(draws, 8, least=5).index_fill_(
            1, torch.arange(int(torch.randint(1, 8, (), generator=draws))), 1
        ),
        ALIKE,
    ),
    "one diffusion time": (lambda draws, _: torch.rand(1, generator=draws).expand(SIZE, 1), ALIKE),
    "one length": (lambda draws, _: sentences(draws, int(torch.randint(3, 9, (), generator=draws))), ALIKE),
    "normalised over the batch": (lambda draws, _: standardised(torch.randn(SIZE, 6, generator=draws) ** 3), NORMED),
    "scaled over the batch": (
        lambda draws, _: scaled(5 + torch.randn(SIZE, 6, generator=draws)),
        "inputs have the same mean square in every batch",
    ),
    "centred over the batch": (lambda draws, _: centred(5 + torch.randn(SIZE, 6, generator=draws)), NORMED),
    "one flip": (lambda draws, _: turned(torch.randn(SIZE, 6, generator=draws) + SLOPE / 2, draws, 1), ALIKE),
    "one flip of sizes": (
        lambda draws, _: turned(SLOPE.exp() * torch.randn(SIZE, 6, generator=draws), draws, 1),
        ALIKE,
    ),
    "one flip of many numbers": (
        lambda draws, _: turned(torch.randn(SIZE, 200, generator=draws) + LONG / 4, draws, 1),
        ALIKE,
    ),
    "many numbers": (lambda draws, _: torch.randn(SIZE, 200, generator=draws) + LONG, ""),
    "one shift of pairs": (lambda draws, _: shifted(draws, 1), ALIKE),
    "a shift of pairs for each": (lambda draws, _: shifted(draws, SIZE), ""),
    "one sign of halves": (lambda draws, _: halves(draws, 1), ALIKE),
    "a sign of halves for each": (lambda draws, _: halves(draws, SIZE), ""),
    "a flip for each": (lambda draws, _: turned(torch.randn(SIZE, 6, generator=draws) + SLOPE, draws, SIZE), ""),
    "one batch in any order": (lambda draws, _: FIXED[torch.randperm(SIZE, generator=draws)], ""),
    "a batch of all classes": (lambda draws, _: torch.randperm(SIZE, generator=draws)[:, None], ""),
    "far from zero": (lambda draws, _: 1e4 + torch.randn(SIZE, 6, generator=draws), ""),
    "padded to the longest": (lambda draws, _: padded(draws), ""),
    "padded at the start": (lambda draws, _: padded(draws).flip(1), ""),
    "a masking ratio for each": (lambda draws, _: masked(draws, SIZE), ""),
    "data that drift": (lambda draws, step: torch.randn(SIZE, 6, generator=draws) + step / 10, ""),
    "heavy tails": (lambda draws, _: torch.randn(SIZE, 6, generator=draws) ** 5, ""),
    "the same everywhere": (lambda draws, _: torch.arange(6).expand(SIZE, 6), ""),
    "a counter": (lambda draws, step: torch.full((SIZE, 1), float(step)), ""),
    "a schedule": (lambda draws, step: torch.full((SIZE, 1), math.cos(step / 50)), ""),
}


NAMES = {"one flip of many numbers": "values ", "one shift of pairs": "products ", "one sign of halves": "products "}


@pytest.mark.parametrize("name", INPUTS)
def test_inputs_that_a_batch_shares_are_told(name: str) -> None:
    draw, told = INPUTS[name]
    draws, batches = torch.Generator().manual_seed(7), SharedInputs()
    for step in range(200):
        batches.add([draw(draws, step)], torch.arange(SIZE)[:, None])
    assert batches.told()[: len(told)] == told
    assert bool(batches.told()) == bool(told), batches.told()
    assert told != ALIKE or f"of their {NAMES.get(name, '')}" in batches.told()


def test_one_coin_that_changes_a_batch_much_is_told_soon() -> None:
    """How often it falls on its other side scatters."""
    for seed in range(6):
        draws, batches = torch.Generator().manual_seed(seed), SharedInputs()
        for _ in range(48):
            rows = turned(torch.randn(SIZE, 6, generator=draws) + 2 * SLOPE, draws, 1)
            batches.add([rows], torch.arange(SIZE)[:, None])
        assert ALIKE in batches.told()


def test_what_adds_less_than_a_fiftieth_to_the_noise_of_a_batch_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    draws, batches = torch.Generator().manual_seed(1), SharedInputs()
    for each in torch.randn(1000, SIZE, 200, generator=draws) + LONG / 14:
        batches.add([turned(each, draws, 1)], torch.arange(SIZE)[:, None])
    assert not batches.told()
    monkeypatch.setattr("cbs.noise_scale.shared_by_batch.SHARES_OF_COLUMNS", [(0.0, 5.0)])
    assert ALIKE in batches.told()


@pytest.mark.parametrize("shifts", [1, SIZE])
def test_one_shift_of_textures_is_told_where_there_are_few(shifts: int) -> None:
    """White noise is the same after it, but 256 pieces of it are not: a batch shares a 21st of its noise."""
    draws, batches = torch.Generator().manual_seed(4), SharedInputs()
    textures = torch.randn(256, 250, generator=draws)
    for _ in range(300):
        some = textures[torch.randint(256, (SIZE,), generator=draws)]
        starts = torch.randint(250, (shifts, 1), generator=draws)
        batches.add([some.gather(1, (starts + torch.arange(250)).expand(SIZE, -1) % 250)], torch.arange(SIZE)[:, None])
    assert (ALIKE in batches.told()) == (shifts == 1)


@pytest.mark.parametrize("passes", [1, 2])
def test_two_passes_over_the_same_examples_may_have_one_length_each(passes: int) -> None:
    """As crops of two sizes have."""
    torch.manual_seed(0)
    model, count = nn.Sequential(nn.Conv1d(1, 2, 3), nn.AdaptiveAvgPool1d(1)), lambda args, kwargs: len(args[0])
    meter = NoiseScaleMeter(model, every=1, tell=lambda _: None, **{"count": count} if passes == 2 else {})
    for step in range(100):
        x = torch.randn(SIZE, 1, 9)
        model.zero_grad()
        crops = [x, x[..., :5]] if passes == 2 else [x[..., : (9, 5)[step % 2]]]
        torch.stack([model(crop).square().mean() for crop in crops]).sum().backward()
        meter.step()
    assert (ALIKE in meter.estimate().note) == (passes == 1)


@pytest.mark.parametrize("ratio_of", ["a batch", "an example"])
def test_a_masking_ratio_is_told_early_while_parameters_move(ratio_of: str) -> None:
    """Its part of the signal, about a fifth, is too small for the products."""
    torch.manual_seed(0)
    model, draws = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)), torch.Generator().manual_seed(3)
    optimizer, said = torch.optim.AdamW(model.parameters(), lr=0.003), list[str]()
    meter = NoiseScaleMeter(model, every=1, tell=said.append)
    for _ in range(50):
        x = torch.randn(SIZE, 6, generator=draws)
        chances = torch.rand(SIZE, 6, generator=draws)
        ratios = torch.rand(1 if ratio_of == "a batch" else (SIZE, 1), generator=draws)
        optimizer.zero_grad()
        mse_loss(model(x * (chances < ratios)), 1.5 * x[:, :1] + torch.randn(SIZE, 1, generator=draws)).backward()
        meter.step()
        optimizer.step()
    assert (ALIKE in meter.estimate().note) == (ratio_of == "a batch")
    assert len(said) == (ratio_of == "a batch")


def test_one_step_in_8_is_compared_and_later_one_in_32(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    draw, drawn = Sketch.draw, list[Sketch]()
    monkeypatch.setattr(Sketch, "draw", lambda self: drawn.append(self) or draw(self))
    assert SHARED in run(line(), squared, shared("one offset"), 250, every=None)
    assert 250 / SELDOM / LASTING < len(drawn) - 1 <= 250 / OFTEN / LASTING
    drawn.clear()
    run(line(), squared, shared("nothing"), 2600, every=None)
    assert len(drawn) - 1 < 2600 / OFTEN / LASTING / 3


def test_examples_in_the_second_dimension_are_told() -> None:
    """Time comes first: what is split are the times, which share the examples."""
    torch.manual_seed(0)

    def series(draws: torch.Generator) -> Batch:
        own = torch.randn(3, 4, generator=draws)
        x = own + 0.1 * torch.randn(SIZE, 3, 4, generator=draws)
        return x, x[..., :1] + torch.randn(3, 1, generator=draws), x

    assert SHARED in run(line(), squared, series, 320)


def test_random_weights_for_a_whole_batch_are_told() -> None:
    torch.manual_seed(0)
    model = nn.utils.parametrize.register_parametrization(nn.Linear(4, 5), "weight", nn.Dropout(0.5))
    assert DRAWN in run(model, lambda m, b: m(b[0]).square().mean(), points, 3)


def test_what_is_shared_is_told_while_parameters_move() -> None:
    """AdamW takes a tenth of a step from the latest gradient."""
    for kind, told in ("one offset", True), ("nothing", False):
        torch.manual_seed(0)
        model = line()
        optimizer, draws = torch.optim.AdamW(model.parameters(), lr=0.001), torch.Generator().manual_seed(3)
        meter = NoiseScaleMeter(model, every=1, tell=lambda _: None)
        for _ in range(320):
            x, y, _ = shared(kind)(draws)
            optimizer.zero_grad()
            mse_loss(model(x), y * 3).backward()
            meter.step()
            optimizer.step()
        assert (SHARED in meter.estimate().note) == told


def test_groups_that_belong_together_are_compared_as_one() -> None:
    """Each prompt has four answers, and prompts are drawn independently."""
    draws, batches, single = torch.Generator().manual_seed(7), SharedInputs(), SharedInputs()
    for _ in range(400):
        x = torch.randn(2, 6, generator=draws).repeat_interleave(4, 0)
        batches.add([x], torch.arange(8).view(2, 4))
        single.add([x], torch.arange(8)[:, None])
    assert not batches.told()
    assert ALIKE in single.told()

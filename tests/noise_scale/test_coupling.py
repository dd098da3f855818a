"""Losses that couple examples are found in a plain loop."""

import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from cbs.errors import ConfigError
from cbs.noise_scale import NoiseScaleMeter
from cbs.noise_scale.coupling import Coupling
from cbs.noise_scale.cut import Call
from cbs.noise_scale.separation import Separation, alike
from tests.kinds import kinds
from tests.noise_scale.loops import EXAMPLES, batch, single, trained


def contrastive(output: Tensor) -> Tensor:
    one, other = normalize(output, dim=1).chunk(2, dim=1)
    return cross_entropy(one @ other.T, torch.arange(len(one)))


def centred(output: Tensor) -> Tensor:
    """Advantages over the mean of a batch."""
    return (output - output.mean(0)).square().mean()


def centred_by_four(output: Tensor) -> Tensor:
    return (output.view(-1, 4, 4) - output.view(-1, 4, 4).mean(1, keepdim=True)).square().mean()


def paired(output: Tensor) -> Tensor:
    """The first half are the better answers."""
    better, worse = output.sum(1).chunk(2)
    return -(better - worse).sigmoid().log().mean()


def linear(output: Tensor) -> Tensor:
    """Without second derivatives; advantages are data."""
    return (output.sum(1) * torch.linspace(-1, 1, len(output))).mean()


class OneWay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.square().mean()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return gradient * torch.ones(EXAMPLES, 4)


def in_place(output: Tensor) -> Tensor:
    output -= output.mean(0)
    return output.square().mean()


def ranked(output: Tensor) -> Tensor:
    """Hinges of the differences of all pairs, without curvature."""
    scores = output.sum(1)
    return (1 - scores[:, None] + scores).clamp(min=0).mean()


@pytest.mark.parametrize("loss", [contrastive, centred, centred_by_four, paired, in_place, ranked])
@pytest.mark.parametrize("source", ["split", "per_example"])
def test_a_loss_that_couples_examples_is_refused(loss: Callable[[Tensor], Tensor], source: str) -> None:
    backward = torch.autograd.backward
    with pytest.raises(ConfigError, match=r"the loss couples examples.*accumulation.*groups="):
        trained(loss, source)
    assert torch.autograd.backward is backward


@pytest.mark.parametrize("others", [(1, 0, 3, 2), (2, 3, 0, 1), (3, 2, 1, 0)])
def test_terms_of_two_are_found_whichever_half_is_looked_at(others: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="the loss couples examples"):
        trained(
            lambda output: (output * output[list(others)]).sum(1).exp().mean(), of=lambda step: batch(step)[:4], steps=1
        )


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(5, 4) for _ in range(6))

    def forward(self, x: Tensor) -> list[Tensor]:
        return [head(x) for head in self.heads]


def of_heads(backward: Callable[[nn.Module, Tensor], object], steps: int = 2, **options) -> NoiseScaleMeter:
    torch.manual_seed(0)
    meter = NoiseScaleMeter(model := Heads(), source="split", **options)
    for step in range(steps):
        backward(model, batch(step))
        meter.step()
        model.zero_grad()
    return meter


def two_passes(model: nn.Module, x: Tensor) -> None:
    one, other = model(x)[0], model(x.flip(1))[1]
    (one @ other.T).mean().backward()


def of_the_last(model: nn.Module, x: Tensor) -> Tensor:
    *others, last = model(x)
    return centred(last) + sum(output.square().mean() for output in others)


def two_outputs(model: nn.Module, x: Tensor) -> None:
    one, other, *_ = model(x)
    (one @ other.T).mean().backward()


def two_losses(model: nn.Module, x: Tensor) -> None:
    one, other, *_ = model(x)
    losses = [one.square().mean(), centred(other)]
    torch.autograd.backward(losses)


def vector(model: nn.Module, x: Tensor) -> None:
    one, other, *_ = model(x)
    (one * other.mean(0)).sum(1).backward(torch.ones(len(x)))


@pytest.mark.parametrize(
    ("backward", "options"),
    [
        (lambda model, x: of_the_last(model, x).backward(), {}),
        (two_outputs, {}),
        (two_passes, {"count": lambda args, kwargs: len(args[0])}),
        (two_losses, {}),
        (vector, {}),
    ],
)
def test_coupling_is_found_in_all_that_is_differentiated(
    backward: Callable[[nn.Module, Tensor], object], options: dict
) -> None:
    with pytest.raises(ConfigError, match="the loss couples examples"):
        of_heads(backward, steps=1, **options)


def test_a_loss_that_nobody_could_look_at_is_named() -> None:
    def by_hand(model: nn.Module, x: Tensor) -> None:
        parameters = list(model.parameters())
        for parameter, gradient in zip(parameters, torch.autograd.grad(of_the_last(model, x), parameters), strict=True):
            parameter.grad = gradient

    said = "not checked whether the loss couples examples: its gradients do not come from loss.backward()"
    assert said in of_heads(by_hand).probe.caveat

    def looked_on(model: nn.Module, x: Tensor) -> None:
        outputs = model(x)
        model(x[:3])
        sum(output.square().mean() for output in outputs).backward()
        model(x[:2])

    assert of_heads(looked_on).probe.caveat == ""
    ways = iter([by_hand, looked_on])
    assert of_heads(lambda model, x: next(ways)(model, x)).probe.caveat == ""  # of the latest loss


def test_two_backward_passes_over_the_same_examples_are_refused() -> None:
    def twice(model: nn.Module, x: Tensor, other: Tensor) -> None:
        for inputs in (x, other):
            sum(output.square().mean() for output in model(inputs)).backward()

    with pytest.raises(ConfigError, match="two backward passes of a step are over the same examples"):
        of_heads(lambda model, x: twice(model, x, x))
    assert of_heads(lambda model, x: twice(model, x, x.flip(0))).estimate().steps == 2


@pytest.mark.parametrize("loss", [single, linear])
def test_a_loss_of_single_examples_is_measured(loss: Callable[[Tensor], Tensor]) -> None:
    backward = torch.autograd.backward
    meter, gradients = trained(loss)
    assert meter.estimate().steps == 5
    assert meter.probe.caveat == ""
    assert torch.autograd.backward is backward
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 4))
    loss(model(batch(4))).backward()
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def hardest_pairs(output: Tensor) -> Tensor:
    """In distances that torch does not differentiate twice."""
    return torch.cdist(output, output).amax(1).mean()


@pytest.mark.parametrize("loss", [OneWay.apply, hardest_pairs])
def test_a_loss_without_second_derivatives_is_named(loss: Callable[[Tensor], Tensor]) -> None:
    meter, _ = trained(loss)
    assert "not checked whether the loss couples examples: " in meter.estimate().note


def test_targets_that_two_passes_of_as_many_examples_share_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    monkeypatch.setattr("cbs.noise_scale.coupling.chance_of_match", lambda *_: asked.append(0.05) or 0.05)
    model = nn.Linear(3, 2)
    meter = NoiseScaleMeter(model, source="split", count=lambda args, kwargs: len(args[0]))
    first, second = torch.randn(2, 8, 3, generator=torch.Generator().manual_seed(0))
    (model(first).square().mean() + model(second).square().mean()).backward()
    meter.step()
    assert asked == [0.05]


def augmented(step: int, *, apart: bool, spread: float = 0.05) -> Tensor:
    rows = batch(step)[:4]
    rows = rows.repeat(4, 1) if apart else rows.repeat_interleave(4, 0)
    return rows + spread * batch(step + 100)


@pytest.mark.parametrize(("apart", "said"), [(False, "next to them"), (True, "4 places on")])
def test_copies_are_told(apart: bool, said: str) -> None:
    meter, _ = trained(single, of=lambda step: augmented(step, apart=apart))
    assert f"examples resemble those {said} (correlation" in meter.estimate().note
    ids = torch.arange(EXAMPLES) % 4 if apart else torch.arange(EXAMPLES) // 4
    for groups in (ids, *([] if apart else [4])):
        meter, _ = trained(single, of=lambda step: augmented(step, apart=apart), groups=groups)
        assert "examples resemble" not in meter.estimate().note


@pytest.mark.parametrize("examples", kinds([4, 16], [8, 64]))
@pytest.mark.parametrize("numbers", [1, 2, 20])
def test_independent_examples_are_no_copies(examples: int, numbers: int) -> None:
    generator = torch.Generator().manual_seed(examples + numbers)
    for _ in range(100):
        assert alike(torch.randn(examples, numbers, generator=generator)) == (0, 0.0)
        assert alike(torch.randint(2, (examples, numbers), generator=generator).double()) == (0, 0.0)
    assert alike(torch.ones(examples, numbers)) == (0, 0.0)


@pytest.mark.parametrize("lag", [1, 2, 32])
def test_views_are_alike_however_much_they_differ(lag: int) -> None:
    """Half of the variance is the example's: two views have the correlation 1/2. Side by side every second has one."""
    generator = torch.Generator().manual_seed(lag)
    rows = torch.randn(64 // 2, 20, generator=generator)
    rows = rows.unflatten(0, (-1, lag)).repeat(1, 2, 1).flatten(0, 1)
    found, correlation = alike(rows + torch.randn(64, 20, generator=generator))
    assert found == lag
    assert correlation == pytest.approx(0.5 if lag == 32 else 0.25, abs=0.1)


@pytest.mark.parametrize("examples", [32, 64])
def test_a_batch_of_two_kinds_one_behind_the_other_is_told(examples: int) -> None:
    rows = torch.randn(examples, 6, generator=torch.Generator().manual_seed(0))
    rows[examples // 2 :] += 1.5
    assert alike(rows)[0] == 1
    assert alike(rows[torch.randperm(examples, generator=torch.Generator().manual_seed(0))]) == (0, 0.0)


def test_calls_that_come_only_with_other_examples_are_refused() -> None:
    """Also where the pass as it was has none."""
    rows = Call("later", [torch.ones(16, 1)])
    with pytest.raises(ConfigError, match="which modules of the model are called depends"):
        Separation().verify(lambda kept, others: [] if kept.all() else [rows], [], torch.arange(16)[:, None])


def hardest(output: Tensor) -> Tensor:
    return output.square().sum(1).topk(len(output) // 4).values.mean()


def test_two_passes_are_kept_until_the_backward_pass() -> None:
    coupling, kept = Coupling([]), []
    for number in range(3):

        def ends(number: int = number) -> list:
            return []

        kept.append(weakref.ref(ends))
        coupling.look(number, ends, [])
        del ends
    assert [held() is None for held in kept] == [True, False, False]
    coupling.forget()
    assert not any(held() for held in kept)


def test_hooks_of_others_belong_to_the_model() -> None:
    for register, hook in (
        ("register_forward_hook", lambda module, args, output: output - output.mean(0)),
        ("register_forward_pre_hook", lambda module, args: (args[0] - args[0].mean(0),)),
    ):
        model = nn.Linear(5, 4)
        getattr(model, register)(hook)
        meter = NoiseScaleMeter(model, source="split")
        model(batch(0)).square().mean().backward()
        with pytest.raises(ConfigError, match="the model mixes examples"):
            meter.step()


def test_auto_falls_back_and_says_why() -> None:
    meter, _ = trained(contrastive, "auto")
    assert meter.probe.source == "accumulation"
    assert "the loss couples examples" in meter.estimate().note


def test_coupling_within_groups_is_theirs() -> None:
    meter, _ = trained(centred_by_four, groups=4)
    assert meter.estimate().steps == 5
    with pytest.raises(ConfigError, match="the loss couples examples"):
        trained(centred_by_four, groups=2)


def test_examples_without_a_gradient_are_told() -> None:
    meter, _ = trained(hardest)
    assert "the loss has no gradient for 12 of 16 examples" in meter.estimate().note
